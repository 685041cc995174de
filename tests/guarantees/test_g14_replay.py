"""G14: a replay makes no provider and no tool call, writes nothing, and yields the same transcript; or names the first difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replaced

from helpers import agent_playing, limits, looped, reply
from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    Diverged,
    Outcome,
    RunContext,
    RunResult,
    Stop,
    Suspended,
    ToolFailure,
    UsageError,
    happened,
    tool,
)
from interlock.driver.rederive import rederive
from interlock.journal import MemoryJournal
from interlock.messages import AssistantMessage, ToolMessage, UserMessage, text_of
from interlock.model import ModelResponse
from interlock.providers.openai import OpenAIChatModel
from interlock.records import HandlerStarted, ModelStepEnded, RunEnded, ToolStepEnded, ToolStepStarted
from interlock.records.redaction import with_texts
from interlock.testing import ScriptedModel, WireServer, call, calls, eof, error, text

PAY = [calls(call("a", "pay", {"invoice": "A"}), call("b", "pay", {"invoice": "B"})), text("Done.")]


class Desk:
    """A tool that counts what it does."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def tools(self) -> list[Any]:
        @tool
        async def pay(invoice: str) -> dict[str, Any]:
            """Pay an invoice."""
            self.paid.append(invoice)
            return {"paid": invoice}

        @tool(parallel=False)
        def note_down(line: str) -> str:
            """Write a line into the book."""
            self.paid.append(line)
            if line == "bad":
                raise KeyError(line)
            return f"noted {line}"

        return [pay, note_down]


class NoModel:
    """A model that must not be asked."""

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        raise AssertionError("a provider was asked")
        yield

    async def aclose(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def another(journal: Any, tools: Any, *extensions: Any, **options: Any) -> AsyncIterator[Agent]:
    """Another agent over the same journal, whose model must not be asked."""
    config = AgentRunConfig(session_id="s")
    async with await Agent.create(NoModel(), config=config, tools=tools, extensions=extensions, journal=journal, **options) as agent:
        yield agent


async def same_again(agent: Agent, session_id: str = "s") -> Any:
    """Replay both ways; the session's rows are what they were, and the transcript is theirs."""
    session = agent.session(session_id)
    rows, messages = await session.records(), await session.messages()
    replay = await session.replay()
    assert await session.records() == rows
    assert (replay.rows, replay.messages) == (len(rows), messages)
    strict = rederive(session_id, rows)
    assert strict.messages == messages
    assert [(r.outcome, r.text, r.messages, r.usage) for r in strict.results] == [
        (r.outcome, r.text, r.messages, r.usage) for r in replay.results if r.outcome is not Outcome.WAITING
    ]
    return replay


@looped
async def test_a_session_from_a_socket_reopened_from_sqlite_is_replayed_without_a_request_or_a_tool_call(tmp_path: Path) -> None:
    desk, url = Desk(), f"sqlite:///{tmp_path / 'agent.db'}"
    async with WireServer([*PAY, text("You are welcome.")]) as server:
        model = OpenAIChatModel("scripted", base_url=server.base_url)
        async with await Agent.create(model, config=AgentRunConfig(session_id="s"), tools=desk.tools(), journal=url) as agent:
            results = [await agent.run("Pay what is due."), await agent.run("Thanks.")]
        requests, connections, paid = len(server.requests), server.connections, list(desk.paid)

        model = OpenAIChatModel("scripted", base_url=server.base_url)
        async with await Agent.create(model, config=AgentRunConfig(session_id="s"), tools=desk.tools(), journal=url) as agent:
            replay = await same_again(agent)
        assert (len(server.requests), server.connections) == (requests, connections)
    assert (requests, desk.paid, paid) == (3, ["A", "B"], ["A", "B"])
    assert list(replay.results) == results
    assert (replay.result, replay.open) == (results[-1], False)


@looped
async def test_retries_reprompts_and_continuations_are_replayed_without_waiting() -> None:
    steps = [
        error(503),
        eof(after="Half of"),
        text("I will pay now.", finish="tool_calls"),
        calls(call("a", "pay", {"invoice": "A"}), call("a", "pay", {"invoice": "B"}), call("x", "nothing")),
        text("The first part", finish="length"),
        text(" and the second."),
    ]
    desk, bounds = Desk(), limits(backoff_s=0.0)
    async with agent_playing(steps, tools=desk.tools(), bounds=bounds) as agent:
        result = await agent.run("Pay.")
        assert (await same_again(agent)).result == result
        rows = await agent.session("s").records()
    slow = [row._replace(record=_slow(row.record)) for row in rows]  # a journal under whose limits an attempt waits for an hour
    journal = MemoryJournal()
    log = journal.session("s")
    for row in slow:
        log.append(row.record, at=row.at)
    await log.durable()
    async with another(journal, desk.tools()) as agent, asyncio.timeout(10):
        assert (await agent.replay()).messages == result.messages
    assert desk.paid == ["A", "B"]


def _slow(record: Any) -> Any:
    return replaced(record, limits=limits(backoff_s=3600.0, backoff_max_s=3600.0)) if hasattr(record, "limits") else record


@looped
async def test_what_a_handler_gave_and_raised_goes_through_the_layers_again() -> None:
    class Wrap(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            if call.name == "pay":
                return {**await call_next(), "by": "Wrap"}  # not what came through a first time
            try:
                return f"<{await call_next()}>"
            except KeyError as error:
                raise ToolFailure(f"no such line: {error}") from error

    class Sign(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async with aclosing(call_next(replace(request, messages=(*request.messages, UserMessage(content="Sign."))))) as events:
                async for event in events:
                    if isinstance(event, ModelResponse) and event.message.content:
                        yield replaced(event, message=replaced(event.message, content=f"{event.message.content} (signed)"))
                    else:
                        yield event

    steps = [
        calls(call("a", "pay", {"invoice": "A"}), call("b", "note_down", {"line": "x"}), call("c", "note_down", {"line": "bad"})),
        text("Done."),
    ]
    desk = Desk()
    async with agent_playing(steps, tools=desk.tools(), extensions=[Wrap(), Sign()]) as agent:
        result = await agent.run("Pay.")
        assert result.text == "Done. (signed)"
        told = [text_of(m.content) for m in result.messages if isinstance(m, ToolMessage)]
        assert told[:2] == ['{"paid":"A","by":"Wrap"}', "<noted x>"]
        assert told[2].startswith("Tool error (note_down): no such line: 'bad'")
        assert (await same_again(agent)).result == result
    assert desk.paid == ["A", "x", "bad"]


@looped
async def test_a_layer_that_asks_again_is_given_the_answer_that_it_dismissed() -> None:
    class Twice(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            dismissed = [event async for event in call_next(request)]
            if isinstance(dismissed[-1], ModelResponse) and dismissed[-1].message.content == "Good?":
                async for event in call_next(request):
                    yield event

    async with agent_playing([text("Good?"), text("Better.")], extensions=[Twice()]) as agent:
        result = await agent.run("Go.")
        assert result.text == "Better."
        assert (await same_again(agent)).result == result


@looped
async def test_questions_answers_and_stops_are_replayed() -> None:
    class Ask(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            if call.name == "note_down":
                return Stop(await call_next())
            return await call_next() if context.answer == "yes" else Suspended("May I?")

    desk = Desk()
    steps = [PAY[0], calls(call("c", "note_down", {"line": "end"}))]
    async with agent_playing(steps, tools=desk.tools(), extensions=[Ask()]) as agent:
        waiting = await agent.run("Pay.")
        assert (await same_again(agent)).result == waiting
        still = await agent.answer(waiting.questions[0].id, "yes")
        assert (await same_again(agent)).result == still
        result = await agent.answer(waiting.questions[1].id, "yes")
        assert (result.reason, result.text) == ("stop", "noted end")
        assert (await same_again(agent)).result == result
    assert desk.paid == ["A", "B", "end"]


@looped
async def test_nested_calls_of_layers_and_of_handlers_and_their_notes_are_replayed() -> None:
    class Around(AgentExtension):
        def fold(self, memory: Any, record: Any) -> Any:
            return [*(memory or []), record.data] if getattr(record, "extension", "") == "Around" else memory

        def instructions(self, context: Any) -> str:
            return f"Noted: {context.memory}"

        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            if call.name == "outer":
                context.note(["before", call.id])
                first = await context.call_tool("pay", {"invoice": "first"})
                value = await call_next()
                last = await context.call_tool("pay", {"invoice": "last"})
                return [first, value, last]
            return await call_next()

    desk = Desk()

    @tool
    async def outer(context: RunContext) -> str:
        await asyncio.gather(*(context.call_tool("pay", {"invoice": name}) for name in ("x", "y")))
        return "inside"

    steps = [calls(call("a", "outer"), call("b", "outer")), text("Done.")]
    async with agent_playing(steps, tools=[*desk.tools(), outer], extensions=[Around()]) as agent:
        result = await agent.run("Go.")
        paid = list(desk.paid)
        assert sorted(paid) == sorted(["first", "x", "y", "last"] * 2)
        assert (await same_again(agent)).result == result
        assert desk.paid == paid


@looped
async def test_cancelled_and_steered_runs_and_an_import_are_replayed() -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    @tool
    async def slow(name: str) -> str:
        inside.set()
        await go.wait()
        return name

    @tool(parallel=False)
    async def after() -> str:
        return "after"

    two = calls(call("a", "slow", {"name": "A"}), call("b", "after"))
    async with agent_playing([two, text("So."), two], tools=[slow, after]) as agent:
        await agent.import_messages([UserMessage(content="Earlier."), AssistantMessage(content="Yes.")])
        running = asyncio.ensure_future(agent.run("Go."))
        await inside.wait()
        await agent.steer("Something else.", interrupt="now")
        go.set()
        assert (await running).text == "So."
        inside.clear()
        go.clear()
        running = asyncio.ensure_future(agent.run("Again."))
        await inside.wait()
        await agent.cancel()
        cancelled = await running
        assert cancelled.outcome is Outcome.CANCELLED
        assert (await same_again(agent)).result == cancelled


@looped
async def test_crashes_at_any_row_reruns_and_reconciled_calls_are_replayed() -> None:
    ran: list[str] = []

    @tool(on_crash="rerun")
    async def again(name: str) -> str:
        ran.append(name)
        return f"{name} done"

    async def find(key: str, arguments: dict[str, Any]) -> Any:
        return happened(f"{arguments['name']} was done")

    @tool(reconcile=find, parallel=False)
    async def once(name: str) -> str:
        ran.append(name)
        return f"{name} done"

    @tool
    async def report(name: str) -> str:
        ran.append(name)
        return f"{name} done"

    tools = [again, once, report]
    steps = [calls(call("a", "again", {"name": "A"}), call("b", "once", {"name": "B"}), call("c", "report", {"name": "C"})), text("Done.")]
    async with agent_playing(steps, tools=tools) as agent:
        await agent.run("Go.")
        rows = await agent.session("s").records()
    seen: set[str] = set()
    for cut_at in range(3, len(rows)):
        journal = MemoryJournal()
        log = journal.session("s")
        for row in rows[:cut_at]:
            log.append(row.record, at=row.at)
        await log.durable()
        async with another(journal, tools) as agent:
            assert (await same_again(agent)).open is True  # as the process left it
        model = ScriptedModel([*steps])
        async with await Agent.create(model, config=AgentRunConfig(session_id="s"), tools=tools, journal=journal) as agent:
            result = await agent.resume()
            started = list(ran)
            assert (await same_again(agent)).result == result
            assert ran == started
            seen |= {type(row.record).__name__ for row in await agent.session("s").records()}
    assert {"ReconcileStarted"} <= seen


@looped
async def test_a_fork_and_what_came_late_are_replayed() -> None:
    started, go, late = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(timeout_s=0.01)
    async def slow() -> str:
        started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                pass
        late.set()
        return "late"

    class Watch(AgentExtension):
        def on_record(self, context: Any, record: Any) -> None:
            if type(record).__name__ == "ToolLateResult":
                seen.set()

    seen = asyncio.Event()
    steps = [calls(call("a", "slow")), text("Too slow."), text("Ho.")]
    async with agent_playing(steps, tools=[slow], extensions=[Watch()], bounds=limits(drain_s=0.01)) as agent:
        await agent.run("Go.")
        go.set()
        await late.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        await same_again(agent)
        rows = await agent.session("s").records()
        place = next(row.seq for row in rows if isinstance(row.record, ModelStepEnded))
        fork = await agent.fork("s", place)
        await fork.resume()
        await same_again(agent, fork.id)


# ---- differences ---------------------------------------------------------------------------------------


async def recorded(journal: Any, desk: Desk, *extensions: Any, steps: Any = PAY) -> RunResult:
    async with agent_playing(steps, tools=desk.tools(), extensions=extensions, journal=journal) as agent:
        return await agent.run("Pay.")


@looped
async def test_a_new_guard_that_vetoes_a_call_that_ran_is_the_first_difference() -> None:
    class Guard(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            if call.arguments.get("invoice") == "B":
                raise PermissionError("not B")
            return await call_next()

    desk, journal = Desk(), MemoryJournal()
    await recorded(journal, desk)
    async with another(journal, desk.tools(), Guard()) as agent:
        rows = await agent.session("s").records()
        with pytest.raises(Diverged) as caught:
            await agent.replay()
    place = next(row.seq for row in rows if isinstance(row.record, HandlerStarted) and '"B"' in row.record.arguments)
    assert caught.value.seq == place
    assert caught.value.expected.startswith("HandlerStarted")
    assert '{"invoice":"B"}' in caught.value.expected
    assert "vetoed by Guard" in caught.value.found
    assert "not B" in caught.value.found
    assert f"seq {place}" in str(caught.value)


@looped
async def test_a_guard_that_is_gone_and_arguments_that_changed_are_differences() -> None:
    class Guard(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            raise PermissionError("no")

    class Double(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            call.arguments["invoice"] *= 2
            return await call_next()

    for before, after, found in ((Guard(), None, "its handler would start with"), (None, Double(), '{"invoice":"AA"}')):
        desk, journal = Desk(), MemoryJournal()
        await recorded(journal, desk, *([before] if before else []))
        paid = list(desk.paid)
        async with another(journal, desk.tools(), *([after] if after else [])) as agent:
            with pytest.raises(Diverged) as caught:
                await agent.replay()
        assert found in caught.value.found
        assert desk.paid == paid


@pytest.mark.parametrize("what", ["result", "answer", "tools", "more calls"])
@looped
async def test_a_layer_that_makes_something_else_of_an_answer_or_of_the_offer_is_a_difference(what: str) -> None:
    class Other(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            value = await call_next()
            if what == "more calls" and call.name == "pay":
                await context.call_tool("note_down", {"line": "more"})
            return "something else" if what == "result" else value

        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async for event in call_next(replace(request, tools=()) if what == "tools" else request):
                if what == "answer" and isinstance(event, ModelResponse):
                    yield replaced(event, message=replaced(event.message, content="Something else."))
                else:
                    yield event

    desk, journal = Desk(), MemoryJournal()
    await recorded(journal, desk)
    async with another(journal, desk.tools(), Other()) as agent:
        with pytest.raises(Diverged) as caught:
            await agent.replay()
    expected = {"result": ToolStepEnded, "answer": ModelStepEnded, "tools": ModelStepEnded, "more calls": ToolStepEnded}
    assert caught.value.expected.startswith(expected[what].__name__)
    assert desk.paid == ["A", "B"]


@looped
async def test_a_layer_that_answers_in_other_words_than_it_did_is_a_difference() -> None:
    class Say(AgentExtension):
        def __init__(self, word: str) -> None:
            self.word = word

        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            return self.word

    desk, journal = Desk(), MemoryJournal()
    result = await recorded(journal, desk, Say("one"))
    async with another(journal, desk.tools(), Say("one")) as agent:
        assert (await agent.replay()).result == result
    async with another(journal, desk.tools(), Say("two")) as agent:
        with pytest.raises(Diverged, match=r"answered by Say, effect none: 'one'; in the replay .*'two'"):
            await agent.replay()


@looped
async def test_a_layer_may_change_the_request_and_note_what_it_likes_for_neither_is_in_the_answers() -> None:
    class Other(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            context.note("seen")
            async for event in call_next(replace(request, messages=(*request.messages, UserMessage(content="More.")))):
                yield event

    desk, journal = Desk(), MemoryJournal()
    result = await recorded(journal, desk)
    async with another(journal, desk.tools(), Other()) as agent:
        assert (await agent.replay()).result == result


@looped
async def test_a_journal_that_was_changed_differs_where_it_was_changed() -> None:
    desk = Desk()
    async with agent_playing(PAY, tools=desk.tools()) as agent:
        await agent.run("Pay.")
        rows = await agent.session("s").records()
    changes: dict[type[Any], Any] = {
        ModelStepEnded: lambda record: replaced(record, code="empty_reply"),
        RunEnded: lambda record: replaced(record, text="Something else."),
    }
    for kind, change in changes.items():
        place = next(row.seq for row in rows if isinstance(row.record, kind))
        changed = [row._replace(record=change(row.record)) if row.seq == place else row for row in rows]
        with pytest.raises(Diverged) as caught:
            rederive("s", changed)
        assert (caught.value.seq, caught.value.expected.split(":")[0]) == (place, kind.__name__)


@looped
async def test_a_session_that_is_not_there_cannot_be_replayed() -> None:
    async with agent_playing([]) as agent:
        with pytest.raises(UsageError, match="no session 'nobody'"):
            await agent.replay("nobody")


@looped
async def test_a_replay_leaves_no_task_behind_and_the_session_can_go_on() -> None:
    desk = Desk()
    async with agent_playing([*PAY, text("More.")], tools=desk.tools()) as agent:
        await agent.run("Pay.")
        before = asyncio.all_tasks()
        await agent.replay()
        assert asyncio.all_tasks() == before
        assert (await agent.run("And now?")).text == "More."


@looped
async def test_a_live_session_is_replayed_as_far_as_it_has_come() -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        inside.set()
        await go.wait()
        return "slow"

    async with agent_playing([calls(call("a", "slow")), reply("Done.")], tools=[slow]) as agent:
        running = asyncio.ensure_future(agent.run("Go."))
        await inside.wait()
        replay = await agent.replay()
        assert (replay.open, replay.results) == (True, ())
        go.set()
        assert (await running).text == "Done."


@pytest.mark.parametrize("mask", [False, True])
def test_a_call_that_was_cancelled_before_any_layer_saw_it_meets_no_layer_in_the_replay_whatever_a_redaction_made_of_its_result(
    mask: bool,
) -> None:
    async def main() -> None:
        seen: list[str] = []
        cancelling: list[asyncio.Task[None]] = []

        class Masks(AgentExtension):
            def redact(self, record: Any) -> Any:
                return with_texts(record, lambda _: "***") if mask and isinstance(record, ToolStepEnded) else record

        class Watches(AgentExtension):
            def on_record(self, context: Any, record: Any) -> None:
                if isinstance(record, ToolStepStarted) and record.key.endswith("/1") and not cancelling:
                    cancelling.append(asyncio.ensure_future(agent.cancel()))

            async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
                seen.append(call.arguments["invoice"])
                return await call_next()

        async with agent_playing(PAY[:1], tools=Desk().tools(), extensions=[Masks(), Watches()]) as agent:
            assert (await agent.run("Go.")).outcome is Outcome.CANCELLED
            await cancelling[0]
            assert seen == ["A"]
            await agent.replay()
            assert seen == ["A", "A"]

    asyncio.run(main())
