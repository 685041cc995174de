"""G09: one session has one writer, in one process or in many; a stale one cannot start a handler; two sessions never mix."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers import limits
from interlock import Agent, AgentRunConfig, InterlockError, JournalConflict, Outcome, RunContext, SessionBusy, extension
from interlock.journal import SQLiteJournal
from interlock.messages import ToolMessage, UserMessage
from interlock.records import HandlerStarted, SessionOpened
from interlock.testing import ScriptedModel, call, calls, text

PAY = calls(call("c1", "pay", {"invoice": "A"}))


class World:
    """The outside: what was done, and by whom."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def pay(self, who: str) -> Any:
        async def pay(invoice: str, context: RunContext) -> str:
            self.paid.append(f"{who} paid {invoice} in epoch {context.epoch}")
            return "paid"

        return pay


def later() -> float:
    """The clock of a process that comes when every lease of another one has expired."""
    return time.time() + 3600


@asynccontextmanager
async def processes(path: Path) -> AsyncGenerator[Callable[..., Awaitable[Agent]]]:
    """Makes agents with a journal object, and so a lease, each of its own: to the store each is another process. Closes them at the end."""
    async with AsyncExitStack() as stack:

        async def process(steps: Any, *, clock: Any = time.time, **options: Any) -> Agent:
            journal = SQLiteJournal(path, clock=clock)
            stack.push_async_callback(journal.aclose)
            config = AgentRunConfig(session_id="s")
            made = await Agent.create(ScriptedModel(steps), config=config, journal=journal, limits=limits(), **options)
            return await stack.enter_async_context(made)

        yield process


def test_a_process_that_was_frozen_before_its_handler_wakes_up_to_a_conflict_and_has_no_effect(tmp_path: Path) -> None:
    async def main() -> None:
        world, inside, wake = World(), asyncio.Event(), asyncio.Event()

        @extension
        async def frozen(context: RunContext, call: Any, call_next: Any) -> Any:
            inside.set()
            await wake.wait()
            return await call_next()

        async with processes(tmp_path / "agent.db") as process:
            stale = await process([PAY], tools=[world.pay("stale")], extensions=[frozen])
            running = asyncio.create_task(stale.run("Pay A."))
            await inside.wait()
            fresh = await process([PAY, text("Paid.")], clock=later, tools=[world.pay("fresh")])
            assert (await fresh.resume()).text == "Paid."
            wake.set()
            with pytest.raises(JournalConflict):
                await running
            assert world.paid == ["fresh paid A in epoch 2"]
            rows = await fresh.session("s").records()
            assert [row.record.epoch for row in rows if isinstance(row.record, SessionOpened)] == [1, 2]
            assert sum(isinstance(row.record, HandlerStarted) for row in rows) == 1

    asyncio.run(main())


def test_a_process_that_was_frozen_after_its_handler_cannot_record_it_and_the_other_says_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        world, inside, wake = World(), asyncio.Event(), asyncio.Event()

        async def pay(invoice: str) -> str:
            world.paid.append(invoice)
            inside.set()
            await wake.wait()
            return "paid"

        async def never(invoice: str) -> str:
            raise AssertionError("started again")

        async with processes(tmp_path / "agent.db") as process:
            stale = await process([PAY], tools=[pay])
            running = asyncio.create_task(stale.run("Pay A."))
            await inside.wait()
            never.__name__ = "pay"
            fresh = await process([text("I shall look.")], clock=later, tools=[never])
            result = await fresh.resume()
            assert [message.effect for message in result.messages if isinstance(message, ToolMessage)] == ["unknown"]
            wake.set()
            with pytest.raises(JournalConflict):
                await running
            assert world.paid == ["A"]
            assert result.messages == await fresh.session("s").messages()

    asyncio.run(main())


def test_while_a_process_is_alive_another_one_neither_runs_nor_resumes_nor_answers_nor_cancels_its_session(tmp_path: Path) -> None:
    async def main() -> None:
        world, inside, wake = World(), asyncio.Event(), asyncio.Event()

        @extension
        async def slow(context: RunContext, call: Any, call_next: Any) -> Any:
            inside.set()
            await wake.wait()
            return await call_next()

        async with processes(tmp_path / "agent.db") as process:
            first = await process([PAY, text("Paid.")], tools=[world.pay("first")], extensions=[slow])
            second = await process([], tools=[world.pay("second")])
            running = asyncio.create_task(first.run("Pay A."))
            await inside.wait()
            # What has been waited for is stored, the lease with it.
            for attempt in (second.run("Me too."), second.resume(), second.answer("q"), second.steer("Hi."), second.cancel()):
                with pytest.raises(SessionBusy):
                    await attempt
            wake.set()
            assert (await running).text == "Paid."
            assert world.paid == ["first paid A in epoch 1"]

    asyncio.run(main())


@pytest.mark.parametrize("rivals", [2, 5])
def test_of_many_that_resume_at_once_exactly_one_wins_and_the_handler_starts_once(tmp_path: Path, rivals: int) -> None:
    async def main() -> None:
        world, inside, wake = World(), asyncio.Event(), asyncio.Event()

        @extension
        async def slow(context: RunContext, call: Any, call_next: Any) -> Any:
            inside.set()
            await wake.wait()
            return await call_next()

        async with processes(tmp_path / "agent.db") as process:
            dead = await process([PAY], tools=[world.pay("dead")], extensions=[slow])
            running = asyncio.create_task(dead.run("Pay A."))
            await inside.wait()
            others = [await process([PAY, text("Paid.")], clock=later, tools=[world.pay(str(n))]) for n in range(rivals)]
            said = await asyncio.gather(*(agent.resume() for agent in others), return_exceptions=True)
            won = [result for result in said if not isinstance(result, BaseException)]
            assert [result.outcome for result in won] == [Outcome.COMPLETED]
            assert all(isinstance(result, InterlockError) for result in said if isinstance(result, BaseException)), said
            assert len(world.paid) == 1
            wake.set()
            with pytest.raises(JournalConflict):
                await running
            assert len(world.paid) == 1

    asyncio.run(main())


def test_many_sessions_at_once_in_one_journal_never_mix(tmp_path: Path) -> None:
    async def main() -> None:
        seen: dict[str, list[str]] = {}

        async def remember(word: str, context: RunContext) -> str:
            await asyncio.sleep(0)
            seen.setdefault(context.session_id, []).append(word)
            return f"{context.session_id}:{word}"

        def script(body: Any) -> Any:
            (prompt,) = [m["content"] for m in body["messages"] if m["role"] == "user"]
            results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
            assert all(result.startswith(f"{prompt}:") for result in results)
            return text(prompt) if len(results) == 2 else calls(call("c", "remember", {"word": f"{prompt}-{len(results)}"}))

        names = [f"session-{n}" for n in range(40)]
        journal = SQLiteJournal(tmp_path / "agent.db")
        async with await Agent.create(ScriptedModel(script), tools=[remember], journal=journal, limits=limits()) as agent:
            results = await asyncio.gather(*(agent.run(name, config=AgentRunConfig(session_id=name)) for name in names))
            for name, result in zip(names, results, strict=True):
                assert (result.text, result.session_id, seen[name]) == (name, name, [f"{name}-0", f"{name}-1"])
                assert {row.session for row in await agent.session(name).records()} == {name}
                assert [m.content for m in result.messages if isinstance(m, UserMessage)] == [name]
        await journal.aclose()

    asyncio.run(main())
