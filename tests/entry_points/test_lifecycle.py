"""Agents that are closed, shared, moved between event loops, or left by their consumers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    CommandRefused,
    Limits,
    NothingToResume,
    Outcome,
    RunContext,
    RunNotCompleted,
    SessionBusy,
    UsageError,
)
from interlock.events import TextDelta
from interlock.messages import AssistantMessage
from interlock.model import ModelRequest, ModelResponse, Stop, StopReason
from interlock.providers.openai import OpenAIChatModel
from interlock.records import ToolStepStarted
from interlock.testing import ScriptedModel, Step, WireServer, call, calls, hold, text
from threaded import serving

from .saying import refused

SESSION = AgentRunConfig(session_id="s")


# ---- closed ------------------------------------------------------------------------------------------

USES: list[Callable[[Agent], Any]] = [
    lambda agent: agent.run("x"),
    lambda agent: anext(agent.stream("x")),
    lambda agent: agent.resume(),
    lambda agent: agent.answer("q", True),
    lambda agent: agent.steer("x"),
    lambda agent: agent.cancel(),
    lambda agent: agent.import_messages([]),
]


@pytest.mark.parametrize("use", USES, ids=["run", "stream", "resume", "answer", "steer", "cancel", "import_messages"])
def test_a_closed_agent_says_that_it_is_closed(use: Callable[[Agent], Any]) -> None:
    async def main() -> None:
        agent = await Agent.create(ScriptedModel([]))
        session = agent.session("s")
        await agent.aclose()
        await agent.aclose()
        with refused("closed"):
            await use(agent)
        with refused("closed"):
            agent.session("s")
        with refused("closed"):
            await session.run("x")

    asyncio.run(main())


def test_closing_ends_what_runs_and_everyone_hears_of_it() -> None:
    async def main() -> None:
        model = ScriptedModel([hold(asyncio.Event()), hold(asyncio.Event())])
        agent = await Agent.create(model)
        tasks = [asyncio.create_task(agent.run("x", config=AgentRunConfig(session_id=name))) for name in "ab"]
        while model.open_streams < 2:
            await asyncio.sleep(0)
        await asyncio.gather(agent.aclose(), agent.aclose())
        assert [task.result().outcome for task in tasks] == [Outcome.CANCELLED] * 2
        assert model.closed
        assert model.open_streams == 0

    asyncio.run(main())


def test_a_tool_may_close_its_agent() -> None:
    async def main() -> None:
        async def close() -> str:
            await agent.aclose()
            return "closed"

        model = ScriptedModel([calls(call("c1", "close", {}))])
        agent = await Agent.create(model, tools=[close])
        result = await agent.run("x")
        assert result.outcome is Outcome.CANCELLED
        await agent.aclose()
        assert model.closed

    asyncio.run(main())


def test_a_close_that_is_given_up_is_finished_all_the_same() -> None:
    async def main() -> None:
        async def stubborn() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.15)

        model = ScriptedModel([calls(call("c1", "stubborn", {}))])
        agent = await Agent.create(model, tools=[stubborn])
        task = asyncio.create_task(agent.run("x"))
        while not model.requests or model.open_streams:
            await asyncio.sleep(0)
        closing = asyncio.create_task(agent.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        await agent.aclose()
        assert model.closed
        assert (await task).outcome is Outcome.CANCELLED

    asyncio.run(main())


# ---- commands where there is nothing to command --------------------------------------------------------


def test_commands_on_a_session_without_a_run_say_that_there_is_none() -> None:
    async def main() -> None:
        async with await Agent.create(ScriptedModel([text("Hi.")])) as agent:
            for _ in range(2):
                with refused("no run is open", kind=CommandRefused):
                    await agent.steer("x")
                with refused("no run is open", kind=CommandRefused):
                    await agent.cancel()
                with refused("no open run", kind=NothingToResume):
                    await agent.resume()
                with refused("question", "q1", kind=CommandRefused):
                    await agent.answer("q1", True)
                await agent.run("x") if _ == 0 else None
            with refused("interrupt", "now"):
                await agent.steer("x", interrupt="later")

    asyncio.run(main())


def test_a_second_run_is_refused_while_one_is_alive_and_harms_it_not() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        model = ScriptedModel([hold(gate, then=text("First.")), text("Second.")])
        async with await Agent.create(model, config=SESSION) as agent:
            task = asyncio.create_task(agent.run("x"))
            while not model.open_streams:
                await asyncio.sleep(0)
            for attempt in (agent.run("y"), anext(agent.stream("y")), agent.resume(), agent.session("s").run("y")):
                with refused("'s'", "wait", kind=SessionBusy):
                    await attempt
            gate.set()
            assert (await task).text == "First."
            assert (await agent.run("y")).text == "Second."

    asyncio.run(main())


def test_a_run_that_meets_a_stray_command_waits_for_it_and_is_not_refused() -> None:
    async def main() -> None:
        for command in (lambda agent: agent.steer("x"), lambda agent: agent.cancel()):
            async with await Agent.create(ScriptedModel([text("Hi.")])) as agent:
                stray, result = await asyncio.gather(command(agent), agent.run("x"), return_exceptions=True)
                assert isinstance(stray, CommandRefused)
                assert not isinstance(result, BaseException)
                assert result.text == "Hi."

    asyncio.run(main())


def test_a_result_that_is_no_answer_says_how_the_run_ended() -> None:
    async def main() -> None:
        async with await Agent.create(ScriptedModel([text("No.", finish="content_filter"), text("Yes.")])) as agent:
            result = await agent.run("x")
            with pytest.raises(RunNotCompleted, match=r"REFUSED.*content_filter") as caught:
                result.require()
            assert caught.value.result is result
            assert (await agent.run("x")).require().text == "Yes."

    asyncio.run(main())


def test_a_run_id_that_was_used_is_refused_because_two_calls_would_have_one_key() -> None:
    async def main() -> None:
        keys: list[str] = []

        async def pay(context: RunContext) -> str:
            keys.append(context.idempotency_key())
            return "paid"

        model = ScriptedModel([calls(call("c1", "pay", {})), text("Paid."), calls(call("c1", "pay", {})), text("Paid.")])
        async with await Agent.create(model, tools=[pay], config=SESSION) as agent:
            await agent.run("x", config=AgentRunConfig(run_id="one"))
            with refused("run_id", "'one'", "leave it out"):
                await agent.run("x", config=AgentRunConfig(run_id="one"))
            await agent.run("x")
            assert len(set(keys)) == 2

    asyncio.run(main())


# ---- shared ----------------------------------------------------------------------------------------------


def test_one_agent_serves_two_hundred_sessions_at_once_and_mixes_nothing(tmp_path: Path) -> None:
    count = 200

    def answer(body: dict[str, Any]) -> Step:
        first = body["messages"][0]["content"]
        done = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        return text(f"{first}: {done[0]}") if done else calls(call("c1", "echo", {"what": first}))

    class Counts(AgentExtension):
        def __init__(self) -> None:
            self.calls = 0

        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            self.calls += 1
            await asyncio.sleep(0)
            assert context.session_id == call.arguments["what"]
            return await call_next()

        def fold(self, memory: Any, record: Any) -> Any:
            return (memory or 0) + isinstance(record, ToolStepStarted)

    async def main() -> None:
        async def echo(what: str, context: RunContext) -> str:
            assert context.session_id == what
            return what

        layer = Counts()
        async with WireServer(answer) as server:
            agent = await Agent.create(
                OpenAIChatModel("m", base_url=server.base_url), tools=[echo], extensions=[layer], journal=f"sqlite:///{tmp_path / 'j.db'}"
            )
            async with agent:
                results = await asyncio.gather(*(agent.run(f"s{n}", config=AgentRunConfig(session_id=f"s{n}")) for n in range(count)))
        assert [result.text for result in results] == [f"s{n}: s{n}" for n in range(count)]
        assert [result.session_id for result in results] == [f"s{n}" for n in range(count)]
        assert layer.calls == count
        assert len(server.requests) == 2 * count

    asyncio.run(main())


def test_an_agent_may_be_used_in_one_event_loop_after_another(tmp_path: Path) -> None:
    """With a real socket, a synchronous tool and a SQLite file."""

    def wait() -> str:
        return "waited"

    def answer(body: dict[str, Any]) -> Step:
        return text("Done.") if body["messages"][-1]["role"] == "tool" else calls(call(f"c{len(body['messages'])}", "wait", {}))

    async def make(base_url: str) -> Agent:
        model = OpenAIChatModel("m", base_url=base_url)
        return await Agent.create(model, tools=[wait], config=SESSION, journal=f"sqlite:///{tmp_path / 'j.db'}")

    with serving(answer) as server:
        agent = asyncio.run(make(server.base_url))
        for turn in range(3):
            result = asyncio.run(agent.run("x"))
            assert (result.text, len(result.messages)) == ("Done.", 4 * (turn + 1))
        asyncio.run(agent.aclose())


def test_a_scripted_agent_goes_on_in_another_event_loop_where_it_stopped(tmp_path: Path) -> None:
    def wait() -> str:
        return "waited"

    model = ScriptedModel([calls(call("c1", "wait", {})), text("One."), calls(call("c2", "wait", {})), text("Two.")])

    async def first() -> Agent:
        agent = await Agent.create(model, tools=[wait], config=SESSION, journal=f"sqlite:///{tmp_path / 'j.db'}")
        assert (await agent.run("x")).text == "One."
        return agent

    agent = asyncio.run(first())

    async def second() -> None:
        result = await agent.run("y")
        assert result.text == "Two."
        assert len(result.messages) == 8
        await agent.aclose()

    asyncio.run(second())


def test_a_model_that_is_a_plain_dataclass_serves_two_agents_and_is_closed_with_the_last() -> None:
    closed: list[str] = []

    @dataclass
    class Plain:  # neither hashable nor weakly referable
        __slots__ = ()

        async def stream(self, request: ModelRequest) -> Any:
            yield ModelResponse(message=AssistantMessage(content="Hi."), stop=Stop(StopReason.STOP))

        async def aclose(self) -> None:
            closed.append("closed")

    async def main() -> None:
        model = Plain()
        one, two = await Agent.create(model), await Agent.create(model)
        assert (await one.run("x")).text == "Hi."
        await one.aclose()
        await one.aclose()
        assert closed == []
        assert (await two.run("x")).text == "Hi."
        await two.aclose()
        assert closed == ["closed"]

    asyncio.run(main())


# ---- streams and imports -----------------------------------------------------------------------------------


def test_a_stream_that_nobody_reads_any_more_ends_when_its_last_reference_goes() -> None:
    async def main() -> None:
        model = ScriptedModel([hold(asyncio.Event(), after="one two"), text("Second.")])
        async with await Agent.create(model, config=SESSION) as agent:
            events = agent.stream("x")
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            del events, event
            gc.collect()
            async with asyncio.timeout(1):
                while model.open_streams:
                    await asyncio.sleep(0)
            while True:
                try:
                    result = await agent.run("y")
                    break
                except SessionBusy:
                    await asyncio.sleep(0)
            assert result.text == "Second."

    asyncio.run(main())


def test_a_consumer_that_stops_reading_holds_the_model_back_and_loses_nothing() -> None:
    async def main() -> None:
        pieces = 500
        model = ScriptedModel([text("abcde" * pieces, pieces=pieces)])
        async with await Agent.create(model, limits=Limits(event_buffer=4)) as agent:
            async with aclosing(agent.stream("x")) as events:
                await anext(events)
                for _ in range(200):
                    await asyncio.sleep(0)
                assert model.open_streams == 1
                shown = "".join([event.text async for event in events if isinstance(event, TextDelta)])
        assert shown == "abcde" * pieces

    asyncio.run(main())


def test_an_import_beside_a_run_is_refused() -> None:
    from interlock.messages import UserMessage

    async def main() -> None:
        gate = asyncio.Event()
        model = ScriptedModel([hold(gate, then=text("First."))])
        async with await Agent.create(model, config=SESSION) as agent:
            task = asyncio.create_task(agent.run("x"))
            while not model.open_streams:
                await asyncio.sleep(0)
            with refused("a run is open", kind=CommandRefused):
                await agent.import_messages([UserMessage(content="y")])
            gate.set()
            assert (await task).text == "First."

    asyncio.run(main())


def test_the_sync_pair_says_where_it_cannot_be_used() -> None:
    async def main() -> None:
        with refused("event loop", "await"):
            Agent.create_sync(ScriptedModel([]))
        async with await Agent.create(ScriptedModel([])) as agent:
            with refused("create_sync"):
                agent.run_sync("x")

    asyncio.run(main())
    agent = Agent.create_sync(ScriptedModel([text("Hi.")]))
    assert agent.run_sync("x").text == "Hi."
    agent.close_sync()
    agent.close_sync()
    with pytest.raises(UsageError):
        agent.run_sync("x")
