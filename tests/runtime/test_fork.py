"""A fork is a new session from the beginning of another one: nothing outside is undone, and nothing is done a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, limits, looped
from interlock import Agent, AgentExtension, AgentRunConfig, Outcome, RunContext, ToolFailure, tool
from interlock.errors import CommandRefused, SessionBusy, UsageError
from interlock.extensions.base import Stop, Suspended
from interlock.journal import MemoryJournal, SQLiteJournal
from interlock.machine import Phase, fold
from interlock.messages import AssistantMessage, ToolMessage, UserMessage, text_of
from interlock.messages.validity import is_valid
from interlock.records import HandlerStarted, ModelStepEnded, RunStarted, SessionForked, ToolLateResult, ToolStepEnded, ToolStepStarted
from interlock.testing import ScriptedModel, Step, call, calls, text

STORES = ("memory", "sqlite")


class World:
    """What was paid, and the keys under which it was."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.keys: list[str] = []

    def tools(self) -> list[Any]:
        @tool(parallel=False)
        async def pay(invoice: str, context: RunContext) -> str:
            """Pay an invoice."""
            self.paid.append(invoice)
            self.keys.append(context.idempotency_key())
            return f"paid {invoice}"

        @tool(parallel=False, on_crash="rerun")
        async def look(invoice: str) -> str:
            """Look at an invoice."""
            self.paid.append(f"looked {invoice}")
            return f"{invoice} is due"

        return [pay, look]


def script() -> list[Step]:
    return [
        calls(call("a", "pay", {"invoice": "A"}), call("b", "pay", {"invoice": "B"}), call("c", "look", {"invoice": "C"})),
        text("All three are done."),
    ]


@contextmanager
def journal_of(store: str, folder: Path) -> Iterator[Any]:
    yield MemoryJournal() if store == "memory" else SQLiteJournal(folder / "agent.db")


def seq_of(rows: list[Any], kind: type[Any], number: int = 0) -> int:
    return [row.seq for row in rows if isinstance(row.record, kind)][number]


@pytest.mark.parametrize("store", STORES)
@looped
async def test_a_fork_at_any_row_runs_no_call_of_its_source_again_and_its_next_request_is_valid(store: str, tmp_path: Path) -> None:
    world = World()
    with journal_of(store, tmp_path) as journal:
        async with agent_playing(script(), tools=world.tools(), journal=journal) as agent:
            await agent.run("Pay what is due.")
        done = list(world.paid)
        rows = await journal.read("s")
        for seq in range(1, len(rows) + 1):
            model = ScriptedModel([text("Again.")])
            async with await Agent.create(model, tools=world.tools(), journal=journal, limits=limits()) as agent:
                fork = await agent.fork("s", seq)
                result = await fork.run("And now?")
                assert (result.outcome, result.text) == (Outcome.COMPLETED, "Again.")
            assert world.paid == done, seq
            (request,) = model.requests
            assert is_valid(request.messages)
            told = [m for m in request.messages if isinstance(m, ToolMessage)]
            assert [text_of(m.content) for m in told] in ([], ["paid A", "paid B", "C is due"]), seq
            kept = await journal.read(fork.id)
            assert [(row.seq, row.at, row.record) for row in kept[:seq]] == [(row.seq, row.at, row.record) for row in rows[:seq]]
            assert kept[seq].record == SessionForked(source="s", seq=seq, known=len(rows))
            assert fold(row.record for row in kept).phase is Phase.IDLE
        assert await journal.read("s") == rows
        await journal.aclose()


@looped
async def test_the_open_run_of_a_fork_can_be_resumed_and_asks_the_model_anew() -> None:
    world = World()
    async with agent_playing([*script(), text("Another answer.")], tools=world.tools()) as agent:
        await agent.run("Pay what is due.")
        turns = await agent.session("s").turns()
        assert [(turn.what, turn.turn, turn.text) for turn in turns] == [
            ("prompt", 0, "Pay what is due."),
            ("results", 0, "pay, pay, look"),
            ("end", 1, "completed (answer)"),
        ]
        fork = await agent.fork(at_seq=turns[1].seq)
        result = await fork.resume()
        assert (result.outcome, result.text) == (Outcome.COMPLETED, "Another answer.")
        assert world.paid == ["A", "B", "looked C"]
        assert fork.id != "s"
        assert [text_of(m.content) for m in result.messages if isinstance(m, UserMessage)] == ["Pay what is due."]


@looped
async def test_a_new_call_of_a_fork_has_another_idempotency_key_than_the_same_call_of_the_source() -> None:
    world = World()
    pays = [calls(call("a", "pay", {"invoice": "A"})), text("Paid.")]
    async with agent_playing([*pays, *pays], tools=world.tools()) as agent:
        await agent.run("Pay A.")
        prompt = (await agent.session("s").turns())[0]
        fork = await agent.fork(at_seq=prompt.seq)
        await fork.resume()
        keys = [[row.record.key for row in await s.records() if isinstance(row.record, HandlerStarted)] for s in (agent.session("s"), fork)]
    assert keys[0] == keys[1]  # the same place in the same run: only the session differs
    assert world.paid == ["A", "A"]  # the model of the fork decided anew, and its payment is not taken for the source's
    assert len(set(world.keys)) == 2


@looped
async def test_what_runs_or_is_open_in_a_live_source_is_unknown_in_the_fork_and_is_not_run_there() -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    started: list[str] = []

    @tool(parallel=False, on_crash="rerun")
    async def slow(name: str) -> str:
        started.append(name)
        inside.set()
        await go.wait()
        return f"{name} done"

    steps = [calls(call("a", "slow", {"name": "A"}), call("b", "slow", {"name": "B"})), text("Noted."), text("Done.")]
    async with agent_playing(steps, tools=[slow]) as agent:
        running = asyncio.ensure_future(agent.run("Go."))
        await inside.wait()
        fork = await agent.fork("s")
        result = await fork.run("Where are we?")
        ended = [row.record for row in await fork.records() if isinstance(row.record, ToolStepEnded)]
        assert {record.message.tool_call_id: (record.code, record.effect) for record in ended} == {
            "a": ("interrupted", "unknown"),
            "b": ("superseded", "unknown"),  # the source may start it a moment later
        }
        assert all("may have happened" in text_of(record.message.content) for record in ended)
        assert (started, result.text) == (["A"], "Noted.")
        go.set()
        assert (await running).text == "Done."
    assert started == ["A", "B"]


@looped
async def test_an_open_question_is_not_open_in_the_fork() -> None:
    class Ask(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            return await call_next() if context.answer is True else Suspended("May I?")

    world = World()
    steps = [calls(call("a", "pay", {"invoice": "A"})), text("All right."), text("Paid.")]
    async with agent_playing(steps, tools=world.tools(), extensions=[Ask()]) as agent:
        waiting = await agent.run("Pay A.")
        fork = await agent.fork("s")
        with pytest.raises(CommandRefused):
            await fork.answer(waiting.questions[0].id)
        assert (await fork.resume()).text == "All right."
        assert (await agent.answer(waiting.questions[0].id)).text == "Paid."
    assert world.paid == ["A"]


@looped
async def test_a_result_that_ended_the_source_is_in_the_fork_without_ending_it() -> None:
    class End(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            return Stop(await call_next())

    world = World()
    steps = [calls(call("a", "pay", {"invoice": "A"})), text("Then it goes on.")]
    async with agent_playing(steps, tools=world.tools(), extensions=[End()]) as agent:
        assert (await agent.run("Pay A.")).reason == "stop"
        rows = await agent.session("s").records()
        fork = await agent.fork("s", seq_of(rows, ModelStepEnded))
        result = await fork.resume()
    assert (result.text, world.paid) == ("Then it goes on.", ["A"])
    assert [text_of(m.content) for m in result.messages if isinstance(m, ToolMessage)] == ["paid A"]


@looped
async def test_a_call_that_made_a_call_which_started_is_unknown_and_a_late_result_is_told() -> None:
    from interlock.driver.fork import appendix

    class Twice(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            return await context.call_tool("look", {"invoice": "A"}) if call.name == "pay" else await call_next()

    world = World()
    async with agent_playing(
        [calls(call("a", "pay", {"invoice": "A"})), text("Done.")], tools=world.tools(), extensions=[Twice()]
    ) as agent:
        await agent.run("Pay A.")
        rows = await agent.session("s").records()
    outer = seq_of(rows, ToolStepStarted)
    until = seq_of(rows, ToolStepEnded)  # the nested call has ended, the outer one has not
    settled = [record for record in appendix("s", rows[:until], outer) if isinstance(record, ToolStepEnded)]
    assert [(record.code, record.effect) for record in settled] == [("interrupted", "unknown")]

    known = [*rows, rows[-1]._replace(seq=len(rows) + 1, record=ToolLateResult(key=settled[0].key, content="late"))]
    forked, *rest = appendix("s", known, outer)
    assert isinstance(forked, SessionForked)
    assert [type(record) for record in rest] == [ToolStepEnded, ToolLateResult]


@pytest.mark.parametrize("store", STORES)
@looped
async def test_a_fork_that_cannot_be_is_refused_and_nothing_is_written(store: str, tmp_path: Path) -> None:
    with journal_of(store, tmp_path) as journal:
        async with agent_playing([text("Hi."), text("Ho.")], journal=journal) as agent:
            await agent.run("Hello.")
            await agent.session("other").run("Hello.")
            rows = len(await journal.read("s"))
            for seq in (0, -1, rows + 1):
                with pytest.raises(UsageError, match=f"has the rows 1 to {rows}"):
                    await agent.fork("s", seq, "new")
            for wrong in (True, "3", 1.0):
                with pytest.raises(UsageError, match="at_seq"):
                    await agent.fork("s", wrong, "new")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="no session 'nobody'"):
                await agent.fork("nobody", None, "new")
            with pytest.raises(UsageError, match="new_session_id"):
                await agent.fork("s", None, "")
            for taken in ("s", "other"):
                before = await journal.read(taken)
                with pytest.raises(CommandRefused, match="already"):
                    await agent.fork("s", None, taken)
                assert await journal.read(taken) == before
            assert {info.session_id for info in await journal.sessions()} == {"s", "other"}
            assert (await agent.fork("s", None, "new")).id == "new"
            assert {info.state for info in await journal.sessions()} == {"idle"}
        await journal.aclose()


@looped
async def test_of_two_forks_into_one_new_session_one_is_refused(tmp_path: Path) -> None:
    journals = [SQLiteJournal(tmp_path / "agent.db") for _ in range(2)]
    async with agent_playing([text("Hi.")], journal=journals[0]) as agent:
        await agent.run("Hello.")
        other = await Agent.create(ScriptedModel([]), journal=journals[1])
        outcomes = await asyncio.gather(agent.fork("s", None, "new"), other.fork("s", None, "new"), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, CommandRefused)]
        assert len(refused) == 1
        assert len(await journals[0].read("new")) == len(await journals[0].read("s")) + 1
        await other.aclose()
    for journal in journals:
        await journal.aclose()


@looped
async def test_a_fork_keeps_the_full_copies_of_capped_results_and_what_extensions_remember(tmp_path: Path) -> None:
    class Count(AgentExtension):
        def fold(self, memory: Any, record: Any) -> Any:
            return (memory or 0) + isinstance(record, RunStarted)

        def instructions(self, context: Any) -> str:
            return f"Run {context.memory}."

    @tool
    async def long() -> str:
        return "x" * 3000 + "the middle" + "y" * 3000

    steps = [calls(call("a", "long")), text("Long."), calls(call("b", "read_result", {"call_id": "a", "offset": 2990})), text("Read.")]
    journal = SQLiteJournal(tmp_path / "agent.db")
    async with agent_playing(steps, tools=[long], extensions=[Count()], journal=journal, bounds=limits(result_bytes=1024)) as agent:
        await agent.run("Go.")
        fork = await agent.fork("s")
        await journal.delete("s")  # the fork has copies of its own
        result = await fork.run("What is in its middle?")
        assert any("the middle" in text_of(m.content) for m in result.messages if isinstance(m, ToolMessage))
    await journal.aclose()


@looped
async def test_a_fork_of_a_fork_says_where_each_came_from() -> None:
    async with agent_playing([text("Hi."), text("Ho.")]) as agent:
        await agent.run("Hello.")
        first = await agent.fork("s", None, "first")
        await first.run("More.")
        second = await first.fork(None, "second")
        said = [row.record.source for row in await second.records() if isinstance(row.record, SessionForked)]
        assert said == ["s", "first"]
        assert [m.content for m in await second.messages() if isinstance(m, AssistantMessage)] == ["Hi.", "Ho."]


@looped
async def test_a_fork_into_a_session_that_is_being_run_is_refused() -> None:
    gate, inside = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        inside.set()
        await gate.wait()
        raise ToolFailure("enough", effect="none")

    async with agent_playing([text("Hi."), calls(call("a", "wait")), text("Done.")], tools=[wait]) as agent:
        await agent.run("Hello.")
        running = asyncio.ensure_future(agent.run("Wait.", config=AgentRunConfig(session_id="busy")))
        await inside.wait()
        with pytest.raises(SessionBusy):
            await agent.fork("s", None, "busy")
        gate.set()
        assert (await running).text == "Done."
