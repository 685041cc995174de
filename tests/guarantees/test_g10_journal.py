"""G10: an accepted command is journaled before it is acknowledged; the live state is the journal's fold; no illegal record reaches it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers import limits
from interlock import (
    Agent,
    AgentRunConfig,
    CommandRefused,
    JournalConflict,
    JournalError,
    Outcome,
    ProtocolError,
    RunContext,
    Suspended,
    ToolFailure,
    extension,
)
from interlock.driver.session import LiveSession
from interlock.journal import MemoryJournal, SQLiteJournal
from interlock.journal.transcript import Transcript
from interlock.machine import TRANSITIONS, Phase, fold
from interlock.messages import AssistantMessage, StopReason, ToolCall, ToolMessage, UserMessage
from interlock.records import HandlerStarted, ModelStepEnded, Record, Row, RunEnded, ToolStepEnded, Verdict
from interlock.records import Outcome as RecordedOutcome
from interlock.testing import ScriptedModel, call, calls, cut, text
from machine_facts import opened, run_started, steering

CONFIG = AgentRunConfig(session_id="s")


def views(transcript: Transcript) -> tuple[Any, ...]:
    return (
        transcript.messages,
        transcript.overlay,
        transcript.pending_input,
        transcript.snapshot(),
        transcript.ids,
        transcript.questions,
        transcript.last,
    )


@contextmanager
def watched(check: Callable[[LiveSession, list[Record]], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Record]]]:
    """Call ``check`` after every append of every session, with all that was appended to it."""
    appended: dict[str, list[Record]] = {}
    original = LiveSession.commit

    def commit(self: LiveSession, record: Any, finish: Any = None) -> Any:
        written = original(self, record, finish)
        appended.setdefault(self.session_id, []).append(written)
        check(self, appended[self.session_id])
        return written

    with monkeypatch.context() as patch:
        patch.setattr(LiveSession, "commit", commit)
        yield appended


def busy_agent_parts() -> tuple[list[Any], list[Any], list[Agent]]:
    """Tools and layers that do a little of everything."""
    agents: list[Agent] = []

    async def quick() -> str:
        return "quick"

    async def boom() -> str:
        raise ToolFailure("boom")

    async def outer(context: RunContext) -> str:
        return str(await context.call_tool("quick"))

    async def steer() -> str:
        await agents[0].steer("Wait.")
        return "steered"

    async def leave() -> str:
        await agents[0].cancel()
        return "left"

    async def pay() -> str:
        return "paid"

    @extension
    async def ask(context: Any, invocation: Any, call_next: Any) -> Any:
        if invocation.name == "pay" and context.answer is None:
            return Suspended("Really?")
        return await call_next()

    return [quick, boom, outer, steer, leave, pay], [ask], agents


SCRIPT = [
    text("Plan.", finish="tool_calls"),
    calls(call("a", "quick"), call("b", "boom"), call("c", "outer"), call("d", "nowhere"), call("", "quick", "[")),
    cut(after="Hel"),
    text("Hel", finish="length"),
    text("lo"),  # the first run ends
    calls(call("e", "steer")),
    calls(call("f", "pay"), call("g", "quick")),  # the second waits
    text("Paid."),
    text("", finish="content_filter"),
    calls(call("h", "leave"), call("i", "quick")),
    *[cut(after="x")] * 4,
    text("At last."),
]


async def live_through_everything(journal: Any) -> None:
    tools, extensions, agents = busy_agent_parts()
    model = ScriptedModel(SCRIPT)
    async with await Agent.create(model, tools=tools, extensions=extensions, config=CONFIG, limits=limits(), journal=journal) as agent:
        agents.append(agent)
        await agent.import_messages([AssistantMessage(tool_calls=(ToolCall(id="a", name="quick"),)), UserMessage(content="Hi.")])
        assert (await agent.run("1")).text == "Hello"
        waiting = await agent.run("2")
        assert waiting.outcome is Outcome.WAITING
        assert (await agent.answer(waiting.questions[0].id, "yes")).text == "Paid."
        assert (await agent.run("3")).outcome is Outcome.REFUSED
        assert (await agent.run("4")).outcome is Outcome.CANCELLED
        with pytest.raises(Exception, match="without"):
            await agent.run("5")
        assert (await agent.run("6")).text == "At last."
    model.assert_done()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_live_state_and_transcript_are_the_fold_of_the_journal_after_every_append(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, str]] = set()

    def check(live: LiveSession, records: list[Record]) -> None:
        assert live.state == fold(records)
        assert views(live.transcript) == views(Transcript(records))
        seen.add((live.state.phase.value, type(records[-1]).__name__))

    async def scenario() -> list[Row]:
        journal = MemoryJournal() if store == "memory" else SQLiteJournal(tmp_path / "agent.db")
        await journal.open()
        with watched(check, monkeypatch) as appended:
            await live_through_everything(journal)
        rows = await journal.read("s")
        assert [row.record for row in rows] == appended["s"]
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        await journal.aclose()
        return rows

    rows = asyncio.run(scenario())
    assert len(seen) >= 20  # a phase and the record that led to it
    assert fold(row.record for row in rows).phase is Phase.IDLE


# ---- illegal records -----------------------------------------------------------------------------

MESSAGE = AssistantMessage(content="Hi.")
ILLEGAL: list[Record] = [
    run_started(),
    HandlerStarted(key="r/0/0", attempt=0, arguments="{}"),
    ToolStepEnded(key="r/0/0", message=ToolMessage(tool_call_id="a", name="f", content="x")),
    ModelStepEnded(message=MESSAGE, stop=StopReason.STOP, verdict=Verdict.ANSWER),
]


@pytest.mark.parametrize("record", ILLEGAL, ids=lambda record: type(record).__name__)
def test_an_illegal_record_never_reaches_the_journal_and_leaves_the_state_as_it_was(record: Record) -> None:
    async def scenario() -> None:
        async with await Agent.create(ScriptedModel([calls(call("a", "f")), text("Done.")]), tools=[f], config=CONFIG) as agent:

            async def attempt() -> None:
                live = agent.live("s")
                before, seq, said = live.state, live.log.seq, views(live.transcript)
                with pytest.raises(ProtocolError):
                    live.commit(record)
                assert (live.state, live.log.seq, views(live.transcript)) == (before, seq, said)

            attempts.append(attempt)
            assert (await agent.run("Go.")).text == "Done."
            rows = await agent.session("s").records()
            assert sum(type(row.record) is type(record) for row in rows) == {"ModelStepEnded": 2}.get(type(record).__name__, 1)

    attempts: list[Any] = []

    async def f() -> str:
        await attempts[0]()
        return "ok"

    asyncio.run(scenario())


def test_every_missing_pair_of_the_table_is_refused_by_the_journal_as_well() -> None:
    """One idle session: everything that cannot follow is refused, nothing is written."""

    async def scenario() -> None:
        async with await Agent.create(ScriptedModel([]), config=CONFIG) as agent:
            live = agent.live("s")
            await live.claim(lease_s=15.0, version="test")
            possible = {kind for phase, kind in TRANSITIONS if phase is Phase.IDLE}
            refused = [steering(), *ILLEGAL[1:], RunEnded(run_id="r", outcome=RecordedOutcome.COMPLETED, reason="answer")]
            for record in refused:
                assert type(record) not in possible
                with pytest.raises(ProtocolError):
                    live.commit(record)
            await live.log.release()
            assert [type(row.record) for row in await agent.session("s").records()] == [type(opened())]

    asyncio.run(scenario())


# ---- commands ------------------------------------------------------------------------------------


class GatedLog:
    """A log whose ``durable`` waits at a gate, while there is one."""

    def __init__(self, inner: Any, journal: GatedJournal) -> None:
        self._inner = inner
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def durable(self, seq: int | None = None) -> None:
        gate = self._journal.gate
        if gate is not None:
            self._journal.asked.set()
            await gate.wait()
        await self._inner.durable(seq)


class GatedJournal(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    def session(self, session_id: str) -> Any:
        return GatedLog(super().session(session_id), self)


@pytest.mark.parametrize("kind", ["steer", "cancel"])
def test_a_command_to_a_live_run_is_acknowledged_only_once_it_is_stored(kind: str) -> None:
    async def scenario() -> None:
        journal, in_handler, go_on = GatedJournal(), asyncio.Event(), asyncio.Event()

        async def f() -> str:
            in_handler.set()
            await go_on.wait()
            return "ok"

        model = ScriptedModel(lambda body: calls(call("", "f")) if len(body["messages"]) == 1 else text("Done."))
        async with await Agent.create(model, tools=[f], config=CONFIG, journal=journal) as agent:
            run = asyncio.create_task(agent.run("Go."))
            await in_handler.wait()
            journal.gate = asyncio.Event()
            command = asyncio.create_task(agent.steer("Wait.") if kind == "steer" else agent.cancel())
            await journal.asked.wait()
            name = {"steer": "SteeringReceived", "cancel": "RunCancelled"}[kind]
            assert not command.done()
            assert name not in str(await agent.session("s").records())
            gate, journal.gate = journal.gate, None
            gate.set()
            await command
            assert name in str(await agent.session("s").records())
            go_on.set()
            assert (await run).outcome is (Outcome.COMPLETED if kind == "steer" else Outcome.CANCELLED)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["steer", "answer", "cancel"])
def test_a_command_to_a_run_that_waits_is_stored_when_it_returns_and_before_its_handler_starts(kind: str) -> None:
    async def scenario() -> None:
        journal = MemoryJournal()
        stored: list[str] = []

        async def pay() -> str:
            stored.extend(type(row.record).__name__ for row in await journal.read("s"))
            return "paid"

        @extension
        async def ask(context: Any, invocation: Any, call_next: Any) -> Any:
            return await call_next() if context.answer is not None else Suspended("Really?")

        model = ScriptedModel(lambda body: calls(call("", "pay")) if len(body["messages"]) == 1 else text("Done."))
        async with await Agent.create(model, tools=[pay], extensions=[ask], config=CONFIG, journal=journal) as agent:
            waiting = await agent.run("Go.")
            if kind == "steer":
                await agent.steer("Wait.")
                stored.extend(type(row.record).__name__ for row in await journal.read("s"))
            elif kind == "cancel":
                await agent.cancel()
                stored.extend(type(row.record).__name__ for row in await journal.read("s"))
                assert stored[-1] == "RunEnded"
            else:
                assert (await agent.answer(waiting.questions[0].id)).text == "Done."
        assert {"steer": "SteeringReceived", "answer": "QuestionAnswered", "cancel": "RunCancelled"}[kind] in stored

    asyncio.run(scenario())


def test_a_refused_command_records_nothing() -> None:
    async def scenario() -> None:
        async with await Agent.create(ScriptedModel([text("Hi.")]), config=CONFIG) as agent:
            await agent.run("Go.")
            before = await agent.session("s").records()
            for command in (agent.steer("x"), agent.cancel(), agent.answer("no such question"), agent.resume()):
                with pytest.raises(CommandRefused):
                    await command
            assert await agent.session("s").records() == before

    asyncio.run(scenario())


# ---- a journal that fails ------------------------------------------------------------------------


class Failing:
    """A world in which the journal fails at the handler's door, and then works again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.undo: list[Callable[[], Any]] = []

    async def journal(self) -> Any:
        return SQLiteJournal(self.path, busy_s=0.01)

    async def break_it(self) -> None: ...

    error: type[JournalError] = JournalError


class Locked(Failing):
    async def break_it(self) -> None:
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        self.undo += [lambda: other.execute("ROLLBACK"), other.close]


class Full(Failing):
    async def journal(self) -> Any:
        return SQLiteJournal(self.path, pragmas={"max_page_count": 60})

    async def break_it(self) -> None:
        pass  # the reply itself does not fit


class TakenOver(Failing):
    error = JournalConflict

    async def break_it(self) -> None:
        """Another process, whose clock says that our lease is long void, runs the session to an end."""
        other = SQLiteJournal(self.path, clock=lambda: time.time() + 3600.0)
        async with await Agent.create(ScriptedModel([text("Mine.")]), config=CONFIG, journal=other) as agent:
            await agent.run("Now me.")
        await other.aclose()


@pytest.mark.parametrize("world", [Locked, Full, TakenOver])
def test_a_journal_that_fails_is_a_typed_error_before_any_handler_runs_and_then_the_session_is_read_anew_and_goes_on(
    world: type[Failing], tmp_path: Path
) -> None:
    ran: list[str] = []

    async def f() -> str:
        ran.append("f")
        return "ok"

    async def scenario() -> None:
        failing = world(tmp_path / "agent.db")

        async def script(body: dict[str, Any]) -> Any:
            if len(model.requests) > 1:
                return text("Done.")
            await failing.break_it()
            return calls(call("a", "f"), before="x" * (1_000_000 if world is Full else 1))

        model = ScriptedModel(script)
        journal = await failing.journal()
        async with await Agent.create(model, tools=[f], config=CONFIG, journal=journal, limits=limits()) as agent:
            with pytest.raises(failing.error) as raised:
                await agent.run("Go.")
            assert str(raised.value)
            assert ran == []
            for undo in failing.undo:
                undo()
            assert (await agent.run("Again.")).text == "Done."
            rows = [row.record for row in await agent.session("s").records()]
            assert fold(rows).phase is Phase.IDLE
            assert not [record for record in rows if isinstance(record, HandlerStarted)]
            live = agent.live("s")
            assert (live.state, views(live.transcript)) == (fold(rows), views(Transcript(rows)))
        await journal.aclose()

    asyncio.run(scenario())
    assert ran == []


def test_a_run_whose_end_could_not_be_stored_is_no_result() -> None:
    """The lease is lost in the very moment of the end."""
    from interlock import AgentExtension
    from interlock.journal.memory import MemoryStore

    async def scenario() -> None:
        store = MemoryStore()
        journal = MemoryJournal(store)

        class Thief(AgentExtension):
            def on_record(self, context: Any, record: Record) -> None:
                if isinstance(record, RunEnded):
                    store.leases.clear()

        async with await Agent.create(ScriptedModel([text("Hi.")]), extensions=[Thief()], config=CONFIG, journal=journal) as agent:
            with pytest.raises(JournalConflict):
                await agent.run("Go.")
        await journal.aclose()

    asyncio.run(scenario())


def test_the_state_can_be_stored_and_read_back_which_is_what_makes_it_a_value() -> None:
    state = fold([opened(), run_started()])
    assert msgspec.json.decode(msgspec.json.encode(state), type=type(state)) == state
