"""G13: everything has a bound, in one table, and reaching one is a typed outcome or a typed error, never silence."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from helpers import Played, agent_playing, limits, play, records_of, reply
from interlock import Agent, AgentRunConfig, Limits, Outcome, ProviderError, UsageError, tool
from interlock.events import RecoveryStarted, RunFinished, TextDelta
from interlock.extensions.base import AgentExtension, RunContext
from interlock.messages import StopReason, ToolMessage, Usage
from interlock.model import ModelRequest
from interlock.providers.openai import OpenAIChatModel
from interlock.records import HandlerStarted, RunEnded, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, cut, error, hold, reasoning, repeat, text
from reopened import left_behind


async def act(n: int = 0) -> int:
    """Act."""
    return n


def forever(step: Any, **options: Any) -> Played:
    return asyncio.run(play([repeat(step)], tools=[act], **options))


# ---- what ends a run LIMIT -------------------------------------------------------------------------


def test_the_limit_of_requests_ends_the_run_without_a_further_request_and_without_an_answer() -> None:
    played = forever(calls(call("c", "act"), before="I will fetch it."), bounds=limits(requests=2))
    result = played.result
    assert (result.outcome, result.reason, result.text) == (Outcome.LIMIT, "requests", "")
    assert (len(played.bodies), result.usage.requests, result.usage.tool_calls) == (2, 2, 2)
    assert len([m for m in result.messages if isinstance(m, ToolMessage)]) == 2


def test_re_prompts_count_against_the_limit_of_requests() -> None:
    played = forever(text("I will add them.", finish="tool_calls"), bounds=limits(requests=2))
    assert (played.result.outcome, played.result.reason, len(played.bodies)) == (Outcome.LIMIT, "requests", 2)


def test_failed_attempts_count_against_the_limit_of_requests() -> None:
    played = forever(error(503), bounds=limits(requests=2))
    assert (played.result.outcome, played.result.reason, len(played.bodies)) == (Outcome.LIMIT, "requests", 2)


def test_the_further_requests_of_a_layer_count_against_the_limit_of_requests() -> None:
    class Greedy(AgentExtension):
        async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: Any) -> Any:
            for _ in range(100):
                response = [event async for event in call_next(request)][-1]
            yield response

    played = forever(text("hello"), bounds=limits(requests=3), extensions=[Greedy()])
    assert (played.result.outcome, played.result.reason, len(played.bodies)) == (Outcome.LIMIT, "requests", 3)


def test_the_limit_of_tool_calls_settles_what_would_pass_it_without_running_and_ends_the_run() -> None:
    ran: list[int] = []

    async def act(n: int) -> int:
        ran.append(n)
        return n

    steps = [calls(*(call(f"c{n}", "act", {"n": n}) for n in range(4)))]
    played = asyncio.run(play(steps, tools=[act], bounds=limits(tool_calls=2)))
    assert (played.result.outcome, played.result.reason, played.result.text) == (Outcome.LIMIT, "tool_calls", "")
    assert sorted(ran) == [0, 1]
    ended = {record.message.tool_call_id: record for record in played.records if isinstance(record, ToolStepEnded)}
    assert [ended[f"c{n}"].code for n in range(4)] == ["ok", "ok", "limit", "limit"]
    assert [ended[f"c{n}"].effect for n in (2, 3)] == ["none", "none"]
    assert len([m for m in played.result.messages if isinstance(m, ToolMessage)]) == 4


def test_a_limit_of_no_tool_calls_lets_none_run() -> None:
    played = asyncio.run(play([calls(call("c", "act"))], tools=[act], bounds=limits(tool_calls=0)))
    assert (played.result.outcome, played.result.reason) == (Outcome.LIMIT, "tool_calls")
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]


def test_calls_that_a_tool_makes_count_against_the_limit_of_tool_calls() -> None:
    ran: list[str] = []

    async def inner() -> None:
        ran.append("inner")

    async def outer(context: RunContext) -> str:
        ran.append("outer")
        for _ in range(100):
            await context.call_tool("inner")
        return "all"

    steps = [calls(call("c", "outer")), calls(call("d", "outer"))]
    played = asyncio.run(play(steps, tools=[inner, outer], bounds=limits(tool_calls=4)))
    assert ran == ["outer", "inner", "inner", "inner"]
    outer_ended = next(r for r in played.records if isinstance(r, ToolStepEnded) and r.message.tool_call_id == "c")
    assert (outer_ended.effect, outer_ended.code) == ("unknown", "failed")
    assert "the limit of tool calls for this run is reached" in str(outer_ended.message.content)
    assert (played.result.outcome, played.result.reason, played.result.usage.tool_calls) == (Outcome.LIMIT, "tool_calls", 4)


@pytest.mark.parametrize(("tokens", "requests"), [(1, 1), (119, 1), (120, 2), (179, 2), (180, 3)])
def test_no_request_is_made_that_would_pass_the_limit_of_tokens_if_it_takes_as_many_as_the_one_before(tokens: int, requests: int) -> None:
    played = forever(calls(call("c", "act"), usage=(40, 20)), bounds=limits(tokens=tokens))
    assert (played.result.outcome, played.result.reason, len(played.bodies)) == (Outcome.LIMIT, "tokens", requests)


class Priced(ScriptedModel):
    """A model that knows its own price: a cent for each output token."""

    def cost_usd(self, usage: Usage) -> float:
        return (usage.output_tokens or 0) / 100


def priced() -> Priced:
    return Priced([repeat(calls(call("c", "act"), usage=(40, 20)))])


@pytest.mark.parametrize(("dollars", "requests"), [(0.01, 1), (0.39, 1), (0.41, 2), (0.61, 3)])
def test_no_request_is_made_that_would_pass_the_limit_of_dollars_if_it_costs_as_much_as_the_one_before(
    dollars: float, requests: int
) -> None:
    async def main() -> None:
        model = priced()
        async with agent_playing(model, tools=[act], bounds=limits(cost_usd=dollars)) as agent:
            result = await agent.run("Go.")
            assert (result.outcome, result.reason, len(model.requests)) == (Outcome.LIMIT, "cost_usd", requests)
            assert result.cost_usd == pytest.approx(0.2 * requests)

    asyncio.run(main())


def test_a_price_list_knows_what_a_well_known_model_costs_and_one_that_nobody_knows_is_refused_with_a_limit_of_dollars() -> None:
    async def main() -> None:
        known = OpenAIChatModel("gpt-4o", api_key="k")
        async with await Agent.create(known, limits=Limits(cost_usd=1.0)) as agent:
            price = agent.parts.price
            assert price is not None
            assert 0 < price(Usage(input_tokens=1000)) < price(Usage(input_tokens=1000, output_tokens=1000)) < 1
            assert price(Usage(input_tokens=1000, cached_input_tokens=1000)) < price(Usage(input_tokens=1000))
        local = OpenAIChatModel("gpt-4o", base_url="http://127.0.0.1:1/v1")
        with pytest.raises(UsageError, match=r"no price is known for the model 'gpt-4o' at http://127.0.0.1:1/v1"):
            await Agent.create(local, limits=Limits(cost_usd=1.0))

    asyncio.run(main())


def test_what_a_run_has_cost_is_unknown_and_not_zero_if_nobody_says_what_it_took_or_no_dollars_are_limited() -> None:
    async def cost(usage: Any, **bounds: Any) -> float | None:
        async with agent_playing(Priced([text("Done.", usage=usage)]), bounds=limits(**bounds)) as agent:
            return (await agent.run("Go.")).cost_usd

    async def main() -> None:
        assert await cost((40, 20), cost_usd=1.0) == pytest.approx(0.2)
        assert await cost((40, 0), cost_usd=1.0) == 0.0
        assert await cost(None, cost_usd=1.0) is None
        assert await cost((40, 20)) is None

    asyncio.run(main())


def test_what_a_run_has_cost_survives_its_process() -> None:
    async def main() -> None:
        standing = asyncio.Event()

        async def stand(n: int = 0) -> int:
            standing.set()
            await asyncio.Event().wait()
            return n

        bounds = limits(cost_usd=0.5)
        journal = await left_behind(priced(), at=standing, tools=[tool(stand, name="act")], limits=bounds)
        config, again = AgentRunConfig(session_id="s"), priced()
        async with await Agent.create(again, config=config, tools=[act], journal=journal, limits=bounds) as agent:
            result = await agent.resume()
            assert (result.reason, result.cost_usd, len(again.requests)) == ("cost_usd", pytest.approx(0.4), 1)
        await journal.aclose()

    asyncio.run(main())


def test_tokens_that_nobody_reports_do_not_count() -> None:
    steps = [calls(call("c", "act"), usage=None), text("done", usage=None)]
    played = asyncio.run(play(steps, tools=[act], bounds=limits(tokens=1)))
    assert (played.result.outcome, played.result.usage.input_tokens) == (Outcome.COMPLETED, None)


@pytest.mark.parametrize("where", ["limits", "config", "run"])
def test_a_deadline_ends_the_run_in_the_middle_of_a_request(where: str) -> None:
    async def main() -> Any:
        bounds = limits(deadline_s=0.02) if where == "limits" else limits()
        config = AgentRunConfig(session_id="s", deadline_s=0.02 if where == "config" else None)
        model = ScriptedModel([hold(asyncio.Event(), after="Let me")])
        async with await Agent.create(model, config=config, limits=bounds) as agent:
            return await agent.run("go", config=AgentRunConfig(deadline_s=0.02) if where == "run" else None)

    result = asyncio.run(main())
    assert (result.outcome, result.reason, result.text) == (Outcome.LIMIT, "deadline", "")


def test_a_deadline_cancels_what_runs_and_settles_what_has_not_started() -> None:
    stopped: list[int] = []

    @tool(parallel=False)
    async def wait(n: int) -> None:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(n)

    steps = [calls(call("a", "wait", {"n": 1}), call("b", "wait", {"n": 2}))]
    played = asyncio.run(play(steps, tools=[wait], bounds=limits(deadline_s=0.03)))
    assert (played.result.outcome, played.result.reason, stopped) == (Outcome.LIMIT, "deadline", [1])
    ended = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert sorted((record.message.tool_call_id, record.effect) for record in ended) == [("a", "unknown"), ("b", "none")]


def test_a_deadline_ends_a_wait_between_two_attempts() -> None:
    bounds = Limits(deadline_s=0.03, backoff_s=30.0, backoff_max_s=30.0)
    played = forever(error(503), bounds=bounds)
    assert (played.result.outcome, played.result.reason, len(played.bodies)) == (Outcome.LIMIT, "deadline", 1)


# ---- what ends a run INCOMPLETE ---------------------------------------------------------------------

RECOVERED = [
    pytest.param(text("I will add them.", finish="tool_calls"), "dropped_calls", "dropped_tool_call", "I will add them.", id="dropped"),
    pytest.param(text(""), "empty_replies", "empty_reply", "", id="empty"),
    pytest.param(reasoning("Hm."), "reasoning_only", "reasoning_only", "", id="reasoning"),
    pytest.param(calls(call("c", "act", "{")), "malformed_calls", "malformed_tool_call", "", id="malformed"),
    pytest.param(calls(call("c", "nothing")), "malformed_calls", "malformed_tool_call", "", id="unknown tool"),
    pytest.param(text("ab", finish="length"), "continuations", "length", "ab", id="length"),
]


@pytest.mark.parametrize(("step", "bound", "code", "said"), RECOVERED)
@pytest.mark.parametrize("most", [None, 0, 1])
def test_n_in_a_row_are_n_re_prompts_and_n_plus_one_requests(step: Any, bound: str, code: str, said: str, most: int | None) -> None:
    bounds = limits() if most is None else limits(**{bound: most})
    most = getattr(bounds, bound)
    assert most is not None
    played = forever(step, bounds=bounds)
    expected = said * (most + 1) if code == "length" else said
    assert (played.result.outcome, played.result.reason, played.result.text) == (Outcome.INCOMPLETE, code, expected)
    assert len(played.bodies) == most + 1
    shown = [(event.code, event.count, event.bound) for event in played.of(RecoveryStarted)]
    assert shown == [(code, count, most) for count in range(1, most + 1)]


def test_the_defaults_of_the_recoveries_are_three_two_two_three_three_five() -> None:
    bounds = Limits()
    assert (bounds.dropped_calls, bounds.empty_replies, bounds.reasoning_only) == (3, 2, 2)
    assert (bounds.malformed_calls, bounds.continuations, bounds.pauses) == (3, 3, 5)
    assert (bounds.requests, bounds.model_attempts) == (25, 4)


def test_pauses_have_a_bound_of_their_own() -> None:
    asked: list[int] = []

    class Pausing(ScriptedModel):
        def stream(self, request: ModelRequest) -> Any:
            asked.append(1)
            return self._pause()

        async def _pause(self) -> Any:
            yield reply("x", reason=StopReason.PAUSE)[0]

    async def main() -> Any:
        async with await Agent.create(Pausing([]), limits=limits()) as agent:
            return await agent.run("go")

    result = asyncio.run(main())
    assert (result.outcome, result.reason, len(asked)) == (Outcome.INCOMPLETE, "pause", 6)


# ---- what ends in ProviderError ---------------------------------------------------------------------


@pytest.mark.parametrize("step", [error(500), error(429), cut(after="Hel")], ids=["500", "429", "cut"])
def test_the_attempts_of_a_model_step_have_a_bound_and_the_session_can_be_resumed(step: Any) -> None:
    async def main() -> None:
        model = ScriptedModel([step] * 4 + [text("at last")])
        async with await Agent.create(model, config=AgentRunConfig(session_id="s"), limits=limits()) as agent:
            with pytest.raises(ProviderError) as caught:
                await agent.run("go")
            assert caught.value.retryable
            assert len(model.requests) == 4
            result = await agent.resume()
            assert (result.outcome, result.text, len(model.requests)) == (Outcome.COMPLETED, "at last", 5)

    asyncio.run(main())


def test_a_failure_that_cannot_be_helped_is_not_tried_again() -> None:
    played = asyncio.run(play([error(401)], tools=[]))
    assert [type(one) for one in played.errors] == [ProviderError]
    assert len(played.bodies) == 1


def test_a_provider_that_asks_for_an_hour_fails_at_once_and_says_so() -> None:
    played = asyncio.run(play([error(429, headers={"retry-after": "3600"})], bounds=limits(retry_after_max_s=60.0)))
    (failure,) = played.errors
    assert isinstance(failure, ProviderError)
    assert failure.retry_after_s == 3600


# ---- worker threads ------------------------------------------------------------------------------------


def test_a_call_that_finds_every_worker_occupied_is_refused_before_its_handler_is_recorded_as_started() -> None:
    release = threading.Event()

    @tool(timeout_s=0.02)
    def block() -> None:
        """Block."""
        release.wait(10)

    def quick() -> str:
        return "quick"

    steps = [calls(call("a", "block")), calls(call("b", "quick")), text("done")]
    try:
        played = asyncio.run(play(steps, tools=[block, quick], bounds=limits(worker_threads=1, worker_wait_s=0.02)))
    finally:
        release.set()
    ended = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert [(record.code, record.effect) for record in ended] == [("timeout", "unknown"), ("no_worker", "none")]
    assert "all 1 worker threads are occupied" in str(ended[1].message.content)
    started = [record.key for record in played.records if isinstance(record, HandlerStarted)]
    assert started == [ended[0].key]


def test_a_fast_tool_does_not_wait_behind_forty_that_hang() -> None:
    release = threading.Event()

    @tool(timeout_s=0.1)
    def hang(n: int) -> None:
        """Hang."""
        release.wait(20)

    def fast() -> str:
        return "fast"

    async def main() -> float:
        steps = [calls(*(call(f"c{n}", "hang", {"n": n}) for n in range(40))), calls(call("f", "fast")), text("done")]
        async with agent_playing(steps, tools=[hang, fast]) as agent:
            took = 0.0
            async for event in agent.stream("go"):
                kind = type(event).__name__
                if kind == "ToolStarted" and event.call.name == "fast":
                    took = -time.monotonic()
                if kind == "ToolFinished" and event.call.name == "fast":
                    took += time.monotonic()
                    assert event.message.content == "fast"
            codes = [record.code for record in await records_of(agent, ToolStepEnded)]
            assert codes == ["timeout"] * 40 + ["ok"]
            return took

    try:
        assert asyncio.run(main()) < 1.0
    finally:
        release.set()


HANGING = """
import asyncio, threading
from interlock import Agent, tool
from interlock.testing import ScriptedModel, call, calls, text

@tool(timeout_s=0.05)
def hang(n: int) -> None:
    threading.Event().wait()

async def main():
    steps = [calls(*(call(f"c{n}", "hang", {"n": n}) for n in range(10))), text("done")]
    async with await Agent.create(ScriptedModel(steps), tools=[hang]) as agent:
        print((await agent.run("go")).text, flush=True)

asyncio.run(main())
"""


def test_a_process_ends_although_handlers_hang() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# ---- events ---------------------------------------------------------------------------------------------


class Fountain:
    """A model that writes as fast as it is let; ``written`` is how far it came."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.written = 0

    async def stream(self, request: ModelRequest) -> Any:
        for _ in range(self.pieces):
            self.written += 1
            yield TextDelta("x")
        yield reply("x" * self.pieces)[0]

    async def aclose(self) -> None:
        pass


def test_a_slow_consumer_slows_the_model_down_instead_of_filling_the_memory() -> None:
    async def main() -> None:
        model = Fountain(1000)
        async with await Agent.create(model, limits=limits(event_buffer=8)) as agent:
            events = agent.stream("go")
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            for _ in range(100):
                await asyncio.sleep(0)
            assert model.written <= 2 * 8 + 2
            count = 1
            async for event in events:
                count += isinstance(event, TextDelta)
                last = event
            assert isinstance(last, RunFinished)
            assert (count, model.written) == (1000, 1000)

    asyncio.run(main())


def test_a_consumer_that_leaves_while_the_model_is_slowed_down_does_not_hang_it() -> None:
    async def main() -> None:
        model = Fountain(1000)
        async with await Agent.create(model, config=AgentRunConfig(session_id="s"), limits=limits(event_buffer=2)) as agent:
            events = agent.stream("go")
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            await asyncio.sleep(0)
            await asyncio.wait_for(events.aclose(), 1.0)
            assert model.written < 1000
            assert [record.outcome for record in await records_of(agent, RunEnded)] == [Outcome.CANCELLED]

    asyncio.run(main())


def test_progress_that_a_slow_consumer_does_not_take_is_left_out_and_the_call_goes_on() -> None:
    async def act(context: RunContext) -> str:
        for n in range(10_000):
            context.emit(n)
        return "done"

    played = asyncio.run(play([calls(call("c", "act")), text("ok")], tools=[act], bounds=limits(event_buffer=16)))
    progress = [event for event in played.events if type(event).__name__ == "ToolProgress"]
    assert 0 < len(progress) <= 16
    assert played.result.text == "ok"


# ---- the size of results -----------------------------------------------------------------------------------


def test_a_result_of_two_megabytes_is_shown_by_its_head_and_tail_and_can_be_read_in_full() -> None:
    lines = "".join(f"line {n:06d} äö\n" for n in range(130_000))
    size = len(lines.encode())
    assert size > 2_000_000
    seen: list[str] = []

    async def dump() -> str:
        return lines

    def step(body: dict[str, Any]) -> Any:
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        offered = [spec["function"]["name"] for spec in body["tools"]]
        if not results:
            assert "read_result" not in offered
            return calls(call("big", "dump"))
        assert "read_result" in offered
        if len(results) == 1:
            seen.append(results[0])
            return calls(call("r1", "read_result", {"call_id": "big", "offset": 1_000_000, "limit": 500}))
        seen.append(results[-1])
        return text("done")

    played = asyncio.run(play(step, tools=[dump]))
    shown, more = seen
    limit = Limits().result_bytes
    assert len(shown.encode()) <= limit
    assert shown.startswith("line 000000 äö\n")
    assert shown.endswith("line 129999 äö\n")
    assert f"of {size} bytes are left out here" in shown
    assert 'read_result(call_id="big"' in shown
    assert more.startswith("[bytes ")
    assert f"of {size}; next offset" in more.splitlines()[0]
    body = more.split("\n", 1)[1]
    assert body.encode() in lines.encode()
    assert len(body.encode()) <= 500
    (record,) = [r for r in played.records if isinstance(r, ToolStepEnded) and r.message.name == "dump"]
    assert record.payload is not None
    assert record.payload.size == size
    assert played.result.text == "done"


def test_the_full_copy_of_a_capped_result_can_be_put_together_again_by_reading_on() -> None:
    import re

    content = "".join(f"{n:05d}" for n in range(2000))
    parts: list[str] = []

    async def dump() -> str:
        return content

    def step(body: dict[str, Any]) -> Any:
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        if not results:
            return calls(call("big", "dump"))
        offset = 0
        if len(results) > 1:
            head, said = results[-1].split("\n", 1)
            parts.append(said)
            match = re.search(r"next offset (\d+)", head)
            if match is None:
                return text("done")
            offset = int(match[1])
        return calls(call(f"r{len(results)}", "read_result", {"call_id": "big", "offset": offset}))

    played = asyncio.run(play(step, tools=[dump], bounds=limits(result_bytes=2048, requests=100)))
    assert played.result.text == "done"
    assert "".join(parts) == content


def test_a_result_that_fits_is_left_alone_and_read_result_is_not_offered() -> None:
    async def dump() -> str:
        return "x" * 1000

    played = asyncio.run(play([calls(call("c", "dump")), text("done")], tools=[dump], bounds=limits(result_bytes=1000)))
    (message,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert message.content == "x" * 1000
    assert [spec["function"]["name"] for spec in played.bodies[1]["tools"]] == ["dump"]


# ---- nesting and parallel calls -----------------------------------------------------------------------------


def test_calls_can_be_nested_only_so_deep() -> None:
    depths: list[int] = []

    async def dig(depth: int, context: RunContext) -> int:
        depths.append(depth)
        return await context.call_tool("dig", {"depth": depth + 1})

    played = asyncio.run(play([calls(call("c", "dig", {"depth": 0})), text("done")], tools=[dig], bounds=limits(nesting=3)))
    assert depths == [0, 1, 2, 3]
    ended = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert all("limits.nesting (3)" in str(record.message.content) for record in ended)
    assert played.result.text == "done"


def test_no_more_calls_than_the_limit_are_in_the_onion_at_once() -> None:
    running, most = 0, 0

    async def act(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return n

    steps = [calls(*(call(f"c{n}", "act", {"n": n}) for n in range(20))), text("done")]
    played = asyncio.run(play(steps, tools=[act], bounds=limits(parallel_calls=3)))
    assert (most, played.result.usage.tool_calls) == (3, 20)


def test_a_prompt_that_is_too_large_is_a_usage_error_and_nothing_is_recorded() -> None:
    async def main() -> None:
        async with agent_playing([text("hi")], bounds=limits(prompt_bytes=10)) as agent:
            with pytest.raises(UsageError, match="prompt_bytes"):
                await agent.run("x" * 11)
            assert await records_of(agent) == []
            await agent.run("x" * 10)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [("requests", 0), ("requests", -1), ("requests", True), ("requests", 1.5), ("drain_s", float("nan")), ("drain_s", "1"), ("tokens", -1)],
)
def test_a_limit_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize("dollars", [float("nan"), float("inf"), -1.0, None, "5", True, 10**400])
def test_a_price_that_no_limit_could_count_is_refused(dollars: Any) -> None:
    class Unpriced(ScriptedModel):
        def cost_usd(self, usage: Usage) -> Any:
            return dollars

    async def main() -> None:
        async with await Agent.create(Unpriced([text("Done.")]), limits=limits(cost_usd=1.0)) as agent:
            with pytest.raises(UsageError, match="must return dollars"):
                await agent.run("Go.")

    asyncio.run(main())
