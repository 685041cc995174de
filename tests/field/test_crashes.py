"""Crashes as users met them: approvals delivered twice, deferred calls, effects before a pause, half-written conversations."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, limits, records_of
from interlock import Agent, AgentRunConfig, Allow, CommandRefused, NothingToResume, Outcome, RunContext, Suspended, extension, tool
from interlock.journal import MemoryJournal
from interlock.machine import fold
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, Row, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, text
from reopened import journal_of, reopened
from wire_rules import faults

PAY = calls(call("c1", "pay", {"amount": 5}))


@extension
async def approve(context: RunContext, call: Any, call_next: Any) -> Any:
    if call.name != "pay":
        return await call_next()
    return await call_next() if context.answer else Suspended("Pay?")


@pytest.mark.parametrize(("on_crash", "paid"), [("report", [5]), ("rerun", [5, 5])])
def test_an_approved_call_whose_worker_died_after_the_effect_is_not_delivered_again_unless_it_may_be(
    on_crash: Any, paid: list[int]
) -> None:
    async def main() -> None:
        done: list[int] = []
        standing = asyncio.Event()

        def pay(stands: bool) -> Any:
            @tool(on_crash=on_crash)
            async def pay(amount: int) -> str:
                done.append(amount)
                if stands:
                    standing.set()
                    await asyncio.Event().wait()
                return "paid"

            return pay

        async with reopened(MemoryJournal(), [PAY], tools=[pay(stands=True)], extensions=[approve]) as agent:
            (question,) = (await agent.run("Go.")).questions
            answering = asyncio.create_task(agent.answer(question.id, Allow()))
            await standing.wait()
            left = await journal_of(await agent.session("s").records())
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering
        async with reopened(left, [text("Done.")], tools=[pay(stands=False)], extensions=[approve]) as agent:
            with pytest.raises(CommandRefused, match="answered already"):
                await agent.answer(question.id, Allow())  # the queue delivers the approval a second time
            result = await agent.resume()
            effects = [message.effect for message in result.messages if isinstance(message, ToolMessage)]
            assert effects == [{"report": "unknown", "rerun": "happened"}[on_crash]]
        assert done == paid

    asyncio.run(main())


def test_the_result_of_a_call_that_somebody_else_carries_out_comes_in_another_process_and_its_body_never_runs() -> None:
    @extension
    async def elsewhere(context: RunContext, call: Any, call_next: Any) -> Any:
        return context.answer if context.answer is not None else Suspended("Somebody else does this.")

    async def pay(amount: int) -> str:
        raise AssertionError("it is carried out elsewhere")

    async def main() -> None:
        journal, given = MemoryJournal(), {"receipt": 17, "by": "the night shift"}
        async with reopened(MemoryJournal(), [PAY], tools=[pay], extensions=[elsewhere]) as agent:
            (question,) = (await agent.run("Go.")).questions
            journal = await journal_of(await agent.session("s").records())
        async with reopened(journal, [text("Done.")], tools=[pay], extensions=[elsewhere]) as agent:
            result = await agent.answer(question.id, given)
            (message,) = [message for message in result.messages if isinstance(message, ToolMessage)]
            assert (message.content, message.failed) == ('{"receipt":17,"by":"the night shift"}', False)
            assert await records_of(agent, HandlerStarted) == []
            assert result.usage.requests == 2  # the run's: one here

    asyncio.run(main())


def test_a_pause_lies_between_calls_and_never_inside_one_so_no_effect_before_it_is_repeated() -> None:
    """Two people are asked, one after the other; and a handler that tries to pause in its middle is refused after it has run."""

    @extension
    async def owner(context: RunContext, call: Any, call_next: Any) -> Any:
        return await call_next() if context.answer else Suspended("The owner?")

    @extension
    async def auditor(context: RunContext, call: Any, call_next: Any) -> Any:
        return await call_next() if context.answer == "auditor" else Suspended("The auditor?")

    async def main() -> None:
        rows: list[int] = []

        async def pay(amount: int) -> Any:
            rows.append(amount)
            return Suspended("And now in the middle?") if amount == 6 else "paid"

        steps = [PAY, calls(call("c2", "pay", {"amount": 6})), text("Done.")]
        async with agent_playing(steps, tools=[pay], extensions=[owner, auditor]) as agent:
            result = await agent.run("Go.")
            asked = 0
            while result.outcome is Outcome.WAITING:
                asked += 1
                result = await agent.answer(result.questions[0].id, "auditor" if "auditor" in result.questions[0].text else "owner")
            assert (result.text, asked) == ("Done.", 4)
            ended = [(record.code, record.effect) for record in await records_of(agent, ToolStepEnded)]
            assert ended[0] == ("ok", "happened")
            assert ended[1][1] == "happened"  # it ran, and said something that cannot be
        assert rows == [5, 6]

    asyncio.run(main())


# ---- a crash at every point ---------------------------------------------------------------------------------


class Story:
    """One conversation whose rows are cut at every place."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def tools(self) -> list[Callable[..., Any]]:
        async def pay(amount: int, context: RunContext) -> str:
            self.started.append(context.idempotency_key())
            return f"paid {amount}"

        async def note(text: str, context: RunContext) -> str:
            self.started.append(context.idempotency_key())
            return "noted"

        return [pay, note]

    async def rows(self) -> list[Row]:
        steps = [
            calls(call("c1", "note", {"text": "first"}), call("c2", "pay", {"amount": 1}), call("c3", "nowhere"), before="Let me see."),
            calls(call("c4", "pay", {"amount": 2})),
            text("Done."),
        ]
        async with agent_playing(steps, tools=self.tools(), extensions=[approve]) as agent:
            result = await agent.run("Go.")
            while result.outcome is Outcome.WAITING:
                result = await agent.answer(result.questions[0].id, Allow())
            return await agent.session("s").records()


@pytest.mark.parametrize("goes_on", ["resume", "run"])
def test_whatever_row_is_the_last_one_the_history_is_valid_and_no_started_handler_starts_again(goes_on: str) -> None:
    async def cut(rows: list[Row], story: Story) -> None:
        before = [row.record for row in rows if isinstance(row.record, HandlerStarted)]
        open_run = fold(row.record for row in rows).phase.value != "idle"
        model = ScriptedModel(lambda _: text("I see."))
        journal, config = await journal_of(rows), AgentRunConfig(session_id="s")
        async with await Agent.create(
            model, config=config, tools=story.tools(), extensions=[approve], journal=journal, limits=limits()
        ) as agent:
            if goes_on == "run":
                assert (await agent.run("hi")).text == "I see."
            elif not open_run:
                with pytest.raises(NothingToResume):
                    await agent.resume()
                assert model.bodies == []
            else:
                result = await agent.resume()
                while result.outcome is Outcome.WAITING:
                    result = await agent.answer(result.questions[0].id, Allow())
                assert result.outcome is Outcome.COMPLETED
            records = [row.record for row in await agent.session("s").records()]
        for body in model.bodies:
            assert faults(body) == []
        starts = [record for record in records if isinstance(record, HandlerStarted)]
        assert starts[: len(before)] == before
        assert len({record.key for record in starts}) == len(starts)
        ended = {record.key: record for record in records if isinstance(record, ToolStepEnded)}
        finished = {row.record.key for row in rows if isinstance(row.record, ToolStepEnded)}
        for record in before:
            assert ended[record.key].effect == ("happened" if record.key in finished else "unknown")
        assert fold(records).phase.value == "idle"
        await journal.aclose()

    async def main() -> None:
        story = Story()
        rows = await story.rows()
        assert len(rows) > 20
        for last in range(1, len(rows) + 1):
            await cut(rows[:last], story)

    asyncio.run(main())


# ---- the store ----------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_written_right_after_the_effect_is_tried_again_and_the_result_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        path, done, live = tmp_path / "agent.db", list[int](), list[Any]()
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        loop = asyncio.get_running_loop()

        async def pay(amount: int) -> str:
            done.append(amount)
            other.execute("BEGIN IMMEDIATE")  # from now on the store is locked by somebody else
            loop.call_later(0.1, other.execute, "COMMIT")
            return "paid"

        def script(body: Any) -> Any:
            if body["messages"][-1]["role"] == "tool":
                live.append([m["content"] for m in body["messages"] if m["role"] == "tool"])
                reader = sqlite3.connect(path)
                stored = reader.execute("SELECT count(*) FROM readable WHERE record LIKE '%ToolStepEnded%'").fetchone()[0]
                reader.close()
                live.append(stored)
                return text("Done.")
            return PAY

        config = AgentRunConfig(session_id="s")
        async with await Agent.create(ScriptedModel(script), config=config, tools=[pay], journal=f"sqlite:///{path}") as agent:
            result = await agent.run("Go.")
            assert (result.text, done) == ("Done.", [5])
            assert live == [["paid"], 1]
            assert result.messages == await agent.session("s").messages()
        other.close()

    asyncio.run(main())
