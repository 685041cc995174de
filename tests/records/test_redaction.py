"""What an extension takes out of a record is written nowhere, and what ran or is run with it stays honest."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, limits, records_of, reply
from interlock import Agent, AgentExtension, AgentRunConfig, Outcome, RunContext, ToolFailure, UsageError, tool
from interlock.events import Event, RunFinished, TextDelta, ToolFinished, ToolStarted
from interlock.extensions.base import CallNext, Suspended, ToolInvocation
from interlock.journal import MemoryJournal, SQLiteJournal
from interlock.journal.transcript import Transcript
from interlock.machine import Call, fold
from interlock.messages import ToolCall, ToolMessage, UserMessage, text_of
from interlock.records import (
    ExtensionNoted,
    HandlerStarted,
    ModelStepEnded,
    ModelStepFailed,
    Record,
    RunEnded,
    RunStarted,
    ToolLateResult,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
)
from interlock.records.redaction import with_texts
from interlock.testing import ScriptedModel, call, calls, error, text
from records.secret import GONE, SECRET, Redact, files_with_the_secret, holds_it, names

CONFIG = AgentRunConfig(session_id="s")


def later() -> float:
    """A clock by which every lease of today is void."""
    return time.time() + 3600.0


async def log_in(key: str) -> str:
    """Log in."""
    return f"logged in with {key}"


def with_key(id: str = "a", name: str = "log_in", **more: Any) -> Any:
    return call(id, name, {"key": SECRET, **more})


# ---- live ----------------------------------------------------------------------------------------


def test_the_handler_and_the_layers_get_the_real_arguments_and_everything_that_is_kept_or_shown_does_not() -> None:
    seen: list[Any] = []

    class Look(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            seen.append(("layer", call.arguments["key"], call.original_arguments["key"]))
            return await call_next()

        def on_record(self, context: RunContext, record: Record) -> None:
            seen.append(record)

        def fold(self, memory: Any, record: Record) -> Any:
            return (*(memory or ()), record)

    async def log_in(key: str) -> str:
        seen.append(("handler", key))
        return f"logged in with {key}"

    async def scenario() -> None:
        model = ScriptedModel([calls(with_key()), text(f"I used {SECRET}.")])
        events: list[Event] = []
        async with agent_playing(model, tools=[log_in], extensions=[Look(), Redact()]) as agent:
            async with aclosing(agent.stream(f"The key is {SECRET}.")) as stream:
                async for event in stream:
                    events.append(event)
            records = await records_of(agent)
            live = agent.live("s")
            assert live.state == fold(records)
            assert live.transcript.messages == Transcript(records).messages
        assert ("layer", SECRET, SECRET) in seen
        assert ("handler", SECRET) in seen
        assert not holds_it([item for item in seen if not isinstance(item, tuple)])
        assert not holds_it(records)
        assert [record.redacted for record in records if isinstance(record, ModelStepEnded)] == [(0,), ()]
        # What is streamed is streamed as it comes; everything else is what the journal holds.
        shown = [event for event in events if not isinstance(event, TextDelta)]
        assert {type(event) for event in shown} >= {ToolStarted, ToolFinished, RunFinished}
        assert not holds_it(shown)
        # And so is all that the model is told again.
        assert SECRET not in json.dumps(model.bodies)
        assert model.bodies[1]["messages"][-1]["content"] == f"logged in with {GONE}"  # type: ignore[index]

    asyncio.run(scenario())


class Everything(AgentExtension):
    """Says the secret wherever an extension can."""

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        context.note({"seen": [SECRET], SECRET: call.arguments})
        if call.name == "ask" and context.answer is None:
            return Suspended(f"May {SECRET} be used?")
        return await call_next()


def the_tools(gate: asyncio.Event, left: asyncio.Event) -> list[Any]:
    async def ask(key: str) -> str:
        return f"{key} it is"

    async def large(key: str) -> str:
        # The secret lies across the place where the result is cut, too.
        return "x" * 1000 + SECRET + ("y" * 100 + SECRET) * 100

    async def fails(key: str) -> str:
        raise OSError(f"the server does not know {key}")

    async def says(key: str) -> str:
        raise ToolFailure(f"not {key}", effect="none")

    async def outer(context: RunContext, key: str) -> Any:
        return await context.call_tool("log_in", {"key": key})

    @tool(timeout_s=0.01)
    async def late(key: str) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                left.set()
        return f"{key} came late {'z' * 2000}"

    return [log_in, ask, large, fails, says, outer, late]


@asynccontextmanager
async def crowded(journal: Any) -> AsyncIterator[tuple[Agent, ScriptedModel]]:
    """An agent through which the secret passes in every way there is, up to a question that is answered in the same process."""
    gate, left = asyncio.Event(), asyncio.Event()
    names = ("log_in", "large", "fails", "says", "outer", "late", "ask")
    model = ScriptedModel(
        [
            error(429, f"too often: {SECRET}"),
            calls(*(with_key(f"c{n}", name) for n, name in enumerate(names)), call("bad", "log_in", f'{{"key": "{SECRET}'), before=SECRET),
            reply(f"done with {SECRET}", reasoning=f"I thought of {SECRET}"),
        ]
    )
    options: dict[str, Any] = {"tools": the_tools(gate, left), "extensions": [Everything(), Redact()], "config": CONFIG}
    async with await Agent.create(model, journal=journal, limits=limits(result_bytes=1005, drain_s=0.0), **options) as agent:
        await agent.import_messages([UserMessage(content=f"once I used {SECRET}")])
        waiting = await agent.run(f"Use {SECRET}.")
        assert waiting.outcome is Outcome.WAITING, waiting
        assert not holds_it(waiting)
        gate.set()
        await asyncio.wait({task for task in agent.parts.background if not task.done()})
        await agent.steer(f"Hurry, says {SECRET}.")
        result = await agent.answer(waiting.questions[0].id, {"yes": SECRET})
        assert (result.outcome, result.text) == (Outcome.COMPLETED, f"done with {GONE}")
        assert not holds_it(result)
        yield agent, model


def check_records(records: list[Record]) -> None:
    ended = {record.message.tool_call_id: record for record in records if isinstance(record, ToolStepEnded)}
    assert {id: record.code for id, record in ended.items()} == {
        "c0": "ok",
        "c1": "ok",
        "c2": "failed",
        "c3": "failed",
        "c4": "ok",
        "c4.0": "ok",
        "c5": "timeout",
        "c6": "ok",
        "bad": "malformed",
    }
    assert ended["c1"].payload is not None
    assert text_of(ended["c6"].message.content) == f"{GONE} it is"
    kinds = {type(record) for record in records}
    assert kinds >= {ExtensionNoted, ToolLateResult, ToolStepSuspended, ModelStepFailed, HandlerStarted}
    assert not holds_it(records)
    (step,) = [record for record in records if isinstance(record, ModelStepEnded) and record.message.tool_calls]
    assert step.redacted == tuple(range(8))


def test_a_secret_that_passes_through_everything_is_in_no_record() -> None:
    async def scenario() -> None:
        async with crowded(MemoryJournal()) as (agent, model):
            records = await records_of(agent)
            check_records(records)
            assert agent.live("s").state == fold(records)
            payload = next(r.payload for r in records if isinstance(r, ToolStepEnded) and r.payload is not None)
            full = await agent.live("s").log.get_payload(payload.digest)
            assert full is not None
            assert SECRET[:6].encode() not in full
            assert GONE.encode() in full
            assert SECRET not in json.dumps(model.bodies)

    asyncio.run(scenario())


def test_a_secret_that_passes_through_everything_is_nowhere_in_the_files_of_a_database(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        async with crowded(journal) as (agent, _):
            check_records(await records_of(agent))
            assert names(tmp_path) >= {"agent.db", "agent.db-wal"}
            assert files_with_the_secret(tmp_path) == []
        await journal.aclose()
        assert files_with_the_secret(tmp_path) == []
        assert GONE.encode() in (tmp_path / "agent.db").read_bytes()

    asyncio.run(scenario())


def test_the_same_without_a_redaction_is_in_the_file(tmp_path: Path) -> None:
    """The search finds what is there."""

    async def scenario() -> None:
        async with await Agent.create(ScriptedModel([text("Yes.")]), config=CONFIG, journal=f"sqlite:///{tmp_path}/agent.db") as agent:
            await agent.run(f"Use {SECRET}.")
            assert files_with_the_secret(tmp_path) == ["agent.db-wal"]
        assert files_with_the_secret(tmp_path) == ["agent.db"]

    asyncio.run(scenario())


def test_a_pin_cannot_be_found_by_trying_every_one_against_the_digest_of_a_question() -> None:
    import hashlib

    class Ask(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            return Suspended("Really?")

    class NoPins(AgentExtension):
        def redact(self, record: Record) -> Record:
            return with_texts(record, lambda text: "****" if text == "4711" else text)

    async def asked(*extensions: AgentExtension) -> str:
        async with agent_playing([calls(call("a", "log_in", {"key": "4711"}))], tools=[log_in], extensions=extensions) as agent:
            await agent.run("Go.")
            (record,) = await records_of(agent, ToolStepSuspended)
            assert record.question_id.startswith(record.digest[:12])
            return record.digest

    guesses = {hashlib.sha256(f'{{"key":"{pin:04}"}}'.encode()).hexdigest() for pin in range(10_000)}
    assert asyncio.run(asked(Ask())) in guesses
    assert asyncio.run(asked(Ask(), NoPins())) not in guesses


def test_the_outermost_redaction_comes_first_and_each_sees_what_the_one_before_left() -> None:
    class Append(AgentExtension):
        def __init__(self, mark: str, priority: int) -> None:
            self.mark, self.priority = mark, priority

        def redact(self, record: Record) -> Record:
            return with_texts(record, lambda text: text + self.mark) if isinstance(record, RunStarted) else record

    async def scenario() -> None:
        async with agent_playing([text("Yes.")], extensions=[Append("c", 30), Append("a", 10), Append("b", 20)]) as agent:
            await agent.run("go-")
            (started,) = await records_of(agent, RunStarted)
            assert started.prompt.content == "go-abc"

    asyncio.run(scenario())


def test_without_a_redaction_nothing_is_asked() -> None:
    async def scenario() -> None:
        async with agent_playing([text("Yes.")], extensions=[AgentExtension()]) as agent:
            assert agent.parts.redactors == ()
            asked: list[Any] = []
            AgentExtension.redact, kept = lambda self, record: asked.append(record) or record, AgentExtension.redact  # type: ignore[method-assign]
            try:
                await agent.run("Go.")
            finally:
                AgentExtension.redact = kept  # type: ignore[method-assign]
            assert asked == []

    asyncio.run(scenario())


def test_a_nested_call_gets_its_real_arguments_too() -> None:
    got: list[str] = []

    async def inner(key: str) -> str:
        got.append(key)
        return "in"

    async def outer(context: RunContext, key: str) -> Any:
        return await context.call_tool("inner", {"key": key})

    async def scenario() -> None:
        steps = [calls(with_key("a", "outer")), text("Done.")]
        async with agent_playing(steps, tools=[inner, outer], extensions=[Redact()]) as agent:
            await agent.run("Go.")
            nested = [record for record in await records_of(agent, ToolStepStarted) if record.parent is not None]
            assert [record.call.arguments for record in nested] == [f'{{"key":"{GONE}"}}']

    asyncio.run(scenario())
    assert got == [SECRET]


def test_what_is_known_of_a_call_is_forgotten_when_it_is_settled() -> None:
    known: list[list[bool]] = []

    @tool(parallel=False)
    async def log_in(key: str) -> str:
        known.append(who_is_known())
        return "ok"

    def who_is_known() -> list[bool]:
        stored = ToolCall(id="x", name="log_in")
        return [live[0].real(Call(key=f"r/0/{n}", call=stored)).call is not stored for n in range(2)]

    live: list[Any] = []

    async def scenario() -> None:
        async with agent_playing([calls(with_key("a"), with_key("b")), text("Done.")], tools=[log_in], extensions=[Redact()]) as agent:
            live.append(agent.live("s"))
            await agent.run("Go.", config=AgentRunConfig(run_id="r"))
            known.append(who_is_known())

    asyncio.run(scenario())
    assert known == [[True, True], [False, True], [False, False]]


# ---- a redaction that fails ----------------------------------------------------------------------


class Fails(AgentExtension):
    """Takes the secret out, but fails on one kind of record: it raises, or changes what must stay."""

    name = "Faulty"

    def __init__(self, kind: type[Any], how: str) -> None:
        self.kind, self.how = kind, how

    def redact(self, record: Record) -> Record:
        if type(record) is not self.kind:
            return with_texts(record, lambda text: text.replace(SECRET, GONE))
        if self.how == "raises":
            raise LookupError(f"do not tell: {SECRET}")
        return RunEnded(run_id="", outcome=Outcome.COMPLETED, reason="") if self.kind is not RunEnded else None  # type: ignore[return-value]


@pytest.mark.parametrize("how", ["raises", "returns another record"])
@pytest.mark.parametrize("kind", [RunStarted, ModelStepEnded, ToolStepStarted, HandlerStarted, ToolStepEnded, RunEnded, ModelStepFailed])
def test_a_redaction_that_fails_fails_the_run_loudly_and_nothing_is_written_unredacted(kind: type[Any], how: str, tmp_path: Path) -> None:
    ran: list[str] = []

    class Swallow(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            try:
                return await call_next()
            except Exception:
                return "all is well"

    async def log_in(key: str) -> str:
        ran.append(key)
        return key

    async def scenario() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        steps = [error(400, f"bad {SECRET}")] if kind is ModelStepFailed else [calls(with_key()), text(f"used {SECRET}")]
        options: dict[str, Any] = {"tools": [log_in], "config": CONFIG, "journal": journal, "limits": limits()}
        async with await Agent.create(ScriptedModel(steps), extensions=[Swallow(), Fails(kind, how)], **options) as agent:
            with pytest.raises(UsageError, match=f"redact of extension Faulty .* {kind.__name__}") as raised:
                await agent.run(f"Use {SECRET}.")
            assert SECRET not in str(raised.value)
            before = [row.record for row in await journal.read("s")]
            assert not [record for record in before if type(record) is kind]
            # Nor anything after it: what a layer made of the failure is no result of the call.
            assert kind is RunEnded or not [record for record in before if isinstance(record, ToolStepEnded)]
            assert fold(before) is not None
            assert not holds_it(before)
            assert files_with_the_secret(tmp_path) == []
        async with await Agent.create(ScriptedModel([text("Yes.")]), extensions=[Redact()], **options) as agent:
            assert (await agent.run("Again.")).text == "Yes."
        await journal.aclose()
        assert files_with_the_secret(tmp_path) == []

    asyncio.run(scenario())
    assert ran == ([SECRET] if kind in (ToolStepEnded, RunEnded) else [])


def test_a_hook_that_is_no_plain_function_is_refused_when_the_agent_is_made() -> None:
    class Waits(AgentExtension):
        async def redact(self, record: Record) -> Record:  # type: ignore[override]
            return record

    async def scenario() -> None:
        with pytest.raises(UsageError, match="redact of Waits must be a plain function"):
            await Agent.create(ScriptedModel([]), extensions=[Waits()])

    asyncio.run(scenario())


def test_a_late_result_that_cannot_be_redacted_is_not_written_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    gate, left = asyncio.Event(), asyncio.Event()

    @tool(timeout_s=0.01)
    async def late(key: str) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                left.set()
        return key

    async def scenario() -> None:
        journal = MemoryJournal()
        steps = [calls(with_key("a", "late")), text("Too late."), text("Yes.")]
        bounds = limits(drain_s=0.0)
        async with agent_playing(
            steps, tools=[late], extensions=[Fails(ToolLateResult, "raises")], journal=journal, bounds=bounds
        ) as agent:
            await agent.run("Go.")
            gate.set()
            while pending := {task for task in agent.parts.background if not task.done()}:
                await asyncio.wait(pending)
            records = await records_of(agent)
            assert not [record for record in records if isinstance(record, ToolLateResult)]
            assert not holds_it(records)
            async with await Agent.create(ScriptedModel([text("Me, too.")]), config=CONFIG, journal=journal) as other:
                assert (await other.run("May I?")).text == "Me, too."  # nobody holds the session
            assert (await agent.run("And now?")).text == "Yes."

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records if record.name == "interlock.driver"]
    assert len(said) == 1
    assert "could not be recorded: redact of extension Faulty raised LookupError on ToolLateResult" in said[0]
    assert SECRET not in said[0]


# ---- after the process is gone -------------------------------------------------------------------


class AskFirst(AgentExtension):
    priority = 50

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return await call_next() if context.answer is not None else Suspended("Really?")


def told(records: list[Record]) -> list[tuple[str, str, str]]:
    """(call id, code, effect) of each settled call, in order."""
    return [(record.message.tool_call_id, record.code, record.effect) for record in records if isinstance(record, ToolStepEnded)]


async def reopened(folder: Path, steps: list[Any], work: Any, **options: Any) -> list[Record]:
    """What ``work(agent)`` and its records are in a process that has only a copy of the files."""
    journal = SQLiteJournal(folder / "agent.db", clock=later)
    model = ScriptedModel(steps)
    async with await Agent.create(model, journal=journal, config=CONFIG, limits=limits(), **options) as agent:
        await work(agent)
        records = await records_of(agent)
        assert agent.live("s").state == fold(records)
    model.assert_done()
    await journal.aclose()
    return records


@pytest.mark.parametrize("kind", ["report", "rerun"])
def test_a_call_whose_stored_arguments_were_redacted_is_never_run_by_another_process(kind: Any, tmp_path: Path) -> None:
    """Killed while the first of three serial calls runs; the second was redacted, the third was not."""
    ran: list[str] = []
    crash = asyncio.Event()
    copy = tmp_path / "copy"
    original = tmp_path / "original"
    original.mkdir()

    @tool(parallel=False, on_crash=kind)
    async def log_in(key: str) -> str:
        ran.append(key)
        if not copy.exists():
            shutil.copytree(original, copy)  # all that the next process will have
            crash.set()
            await asyncio.Event().wait()
        return "ok"

    async def scenario() -> None:
        journal = SQLiteJournal(original / "agent.db")
        steps = [calls(with_key("a"), with_key("b"), call("c", "log_in", {"key": "harmless"}))]
        async with await Agent.create(ScriptedModel(steps), tools=[log_in], extensions=[Redact()], config=CONFIG, journal=journal) as agent:
            run = asyncio.create_task(agent.run("Go."))
            await crash.wait()
            run.cancel()
            await asyncio.wait({run})
        await journal.aclose()
        assert ran == [SECRET]

        async def resume(agent: Agent) -> None:
            assert [call.what for call in (await agent.explain()).run.calls] == ["unknown", "refused", "not_started"]
            result = await agent.resume()
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "Done.")
            results = [message for message in result.messages if isinstance(message, ToolMessage)]
            assert "redacted" in str(results[1].content)
            assert str(results[1].content).endswith("It was not executed; nothing happened.")

        records = await reopened(copy, [text("Done.")], resume, tools=[log_in], extensions=[Redact()])
        assert sorted(told(records)) == [("a", "interrupted", "unknown"), ("b", "arguments_redacted", "none"), ("c", "ok", "happened")]
        assert files_with_the_secret(copy) == []

    asyncio.run(scenario())
    assert ran == [SECRET, "harmless"]


@pytest.mark.parametrize("gone", [False, True], ids=["the same process", "another process"])
def test_a_waiting_call_runs_with_its_real_arguments_if_the_process_is_still_there_and_not_at_all_if_not(
    gone: bool, tmp_path: Path
) -> None:
    ran: list[str] = []
    copy = tmp_path / "copy"
    original = tmp_path / "original"
    original.mkdir()

    async def log_in(key: str) -> str:
        ran.append(key)
        return "ok"

    async def scenario() -> None:
        journal = SQLiteJournal(original / "agent.db")
        options: dict[str, Any] = {"tools": [log_in], "extensions": [AskFirst(), Redact()]}
        steps = [calls(with_key("a"), call("b", "log_in", {"key": "harmless"})), *([] if gone else [text("Done.")])]
        async with await Agent.create(ScriptedModel(steps), config=CONFIG, journal=journal, **options) as agent:
            waiting = await agent.run("Go.")
            assert waiting.outcome is Outcome.WAITING
            assert [question.call.arguments for question in waiting.questions] == [f'{{"key":"{GONE}"}}', '{"key": "harmless"}']

            async def answer(agent: Agent) -> None:
                again = await agent.resume()
                assert again.questions == waiting.questions
                for question in waiting.questions:
                    result = await agent.answer(question.id, "yes")
                assert result.text == "Done."

            if gone:
                shutil.copytree(original, copy)
            else:
                await answer(agent)
                assert told(await records_of(agent)) == [("a", "ok", "happened"), ("b", "ok", "happened")]
        await journal.aclose()
        if gone:
            records = await reopened(copy, [text("Done.")], answer, **options)
            assert sorted(told(records)) == [("a", "arguments_redacted", "none"), ("b", "ok", "happened")]

    asyncio.run(scenario())
    assert sorted(ran) == (["harmless"] if gone else ["harmless", SECRET])


def test_a_waiting_call_of_a_session_that_another_process_has_touched_meanwhile_is_not_run(tmp_path: Path) -> None:
    """The journal says that the session was opened anew, and what it says holds for every process alike."""
    ran: list[str] = []

    async def log_in(key: str) -> str:
        ran.append(key)
        return "ok"

    async def scenario() -> None:
        path = f"sqlite:///{tmp_path}/agent.db"
        options: dict[str, Any] = {"tools": [log_in], "extensions": [AskFirst(), Redact()], "config": CONFIG, "journal": path}
        async with await Agent.create(ScriptedModel([calls(with_key("a")), text("Done.")]), **options) as agent:
            waiting = await agent.run("Go.")
            async with await Agent.create(ScriptedModel([]), **options) as other:
                await other.steer("Hurry.")
            assert (await agent.answer(waiting.questions[0].id, "yes")).text == "Done."
            records = await records_of(agent)
            assert told(records) == [("a", "arguments_redacted", "none")]
            assert agent.live("s").state == fold(records)

    asyncio.run(scenario())
    assert ran == []


PROGRAM = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from interlock import Agent, AgentRunConfig, tool
from interlock.testing import ScriptedModel, call, calls
from records.secret import Redact, SECRET

@tool(parallel=False)
async def log_in(key: str) -> str:
    assert key == SECRET
    print("here", flush=True)
    await asyncio.Event().wait()

async def main():
    steps = [calls(call("a", "log_in", {"key": SECRET}), call("b", "log_in", {"key": SECRET}))]
    options = {"tools": [log_in], "extensions": [Redact()], "config": AgentRunConfig(session_id="s")}
    async with await Agent.create(ScriptedModel(steps), journal="sqlite:///" + sys.argv[1], **options) as agent:
        await agent.run("Use " + SECRET)

asyncio.run(main())
"""


def test_after_kill_9_nothing_of_it_is_in_the_files_and_the_call_that_had_not_started_is_not_run(tmp_path: Path) -> None:
    path, ran = tmp_path / "agent.db", list[str]()
    command = [sys.executable, "-c", PROGRAM, str(path), str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.kill()
        assert said == "here\n", process.communicate()
    assert files_with_the_secret(tmp_path) == []

    @tool(parallel=False)
    async def log_in(key: str) -> str:
        ran.append(key)
        return "ok"

    async def resume(agent: Agent) -> None:
        assert (await agent.resume()).text == "Done."

    async def scenario() -> list[Record]:
        return await reopened(tmp_path, [text("Done.")], resume, tools=[log_in], extensions=[Redact()])

    records = asyncio.run(scenario())
    assert told(records) == [("a", "interrupted", "unknown"), ("b", "arguments_redacted", "none")]
    assert ran == []
    assert files_with_the_secret(tmp_path) == []


def test_the_event_of_a_call_that_a_call_makes_is_redacted_as_well() -> None:
    async def main() -> None:
        @tool
        async def outer(key: str, context: RunContext) -> str:
            return str(await context.call_tool("log_in", {"key": key}))

        steps = [calls(with_key(name="outer")), text("Done.")]
        async with agent_playing(steps, tools=[outer, log_in], extensions=[Redact()]) as agent:
            started = [event async for event in agent.stream("Go.") if isinstance(event, ToolStarted)]
        assert [event.call.name for event in started] == ["outer", "log_in"]
        assert not any(holds_it(event) for event in started)

    asyncio.run(main())


def test_a_hook_that_makes_bytes_of_text_is_refused() -> None:
    class Bytes(AgentExtension):
        def redact(self, record: Record) -> Record:
            return with_texts(record, lambda text: text.encode())  # pyright: ignore[reportArgumentType, reportReturnType]

    async def main() -> None:
        async with agent_playing([], tools=[log_in], extensions=[Bytes()]) as agent:
            with pytest.raises(UsageError, match=r"RunStarted\.prompt\.content must stay text"):
                await agent.run("Go.")

    asyncio.run(main())


def test_no_layer_can_swallow_a_hook_that_was_cancelled() -> None:
    class Cancels(AgentExtension):
        def redact(self, record: Record) -> Record:
            if isinstance(record, HandlerStarted):
                raise asyncio.CancelledError
            return record

    async def main() -> None:
        async with agent_playing([calls(with_key())], tools=[log_in], extensions=[Cancels()]) as agent:
            with pytest.raises(UsageError, match="redact of extension Cancels raised CancelledError on HandlerStarted"):
                await agent.run("Go.")

    asyncio.run(main())
