"""The rails all at once: what they decide is in the journal, so a replay, a fork and another process come to the same."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, limits
from interlock import Agent, AgentRunConfig, Outcome, Suspended
from interlock.extensions.base import CallNext, RunContext, ToolInvocation
from interlock.extensions.budget import Budget
from interlock.extensions.dryrun import DryRun
from interlock.extensions.secrets import RedactSecrets
from interlock.extensions.urlguard import UrlGuard
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted
from interlock.testing import ScriptedModel, call, calls, text

SECRET = "tr0ub4dor-and-3"
BOUNDS = limits(repeated_results=2, repeated_failures=2, repeated_effects=2)


def pay(amount: float, password: str) -> str:
    """Pay."""
    assert password == SECRET
    return f"paid {amount:g} with {password}"


def asked(name: str, *amounts: float) -> Any:
    return calls(*(call(f"{name}{n}", "pay", {"amount": amount, "password": SECRET}) for n, amount in enumerate(amounts)))


STEPS = [asked("a", 100, 300, 200), asked("b", 200), asked("c", 200)]


def rails(*, dry: bool = False) -> list[Any]:
    made: list[Any] = [RedactSecrets([SECRET]), Budget("pay", sum="amount", at_most=500, per="session"), Budget("pay", calls=5)]
    return [*made, DryRun()] if dry else made


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="interlock.tools")


@pytest.mark.parametrize("dry", [False, True])
def test_a_replay_comes_to_the_same_end_without_asking_anybody(dry: bool) -> None:
    async def main() -> None:
        async with agent_playing(STEPS, tools=[pay], extensions=rails(dry=dry), bounds=BOUNDS) as agent:
            result = await agent.run("Pay.")
            assert (result.outcome, result.reason) == (Outcome.LIMIT, "loop")
            replay = await agent.replay()
            assert replay.messages == result.messages
            assert SECRET not in repr(replay)

    asyncio.run(main())


def test_a_fork_has_spent_what_its_source_had_spent_at_that_row() -> None:
    async def main() -> None:
        async with agent_playing(
            [asked("a", 100, 300, 200), text("one"), asked("d", 200, 100), text("two")], tools=[pay], extensions=rails()
        ) as agent:
            await agent.run("Pay.")
            fork = await agent.fork()
            result = await fork.run("Pay more.")
            told = [str(m.content) for m in result.messages if isinstance(m, ToolMessage)][-2:]
            assert "would be passed" in told[0]
            assert told[1] == "paid 100 with [redacted]"

    asyncio.run(main())


def test_a_call_that_waits_with_a_redacted_argument_and_a_reserved_share_is_paid_once_or_given_back(tmp_path: Path) -> None:
    """Its process still there: it runs as it was meant. Another one: nobody knows the arguments, it is not run, and the share is back."""

    class Ask(UrlGuard):  # further in than the budget
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            return await call_next() if context.answer else Suspended("pay?")

    async def agent(*steps: Any) -> Agent:
        return await Agent.create(
            ScriptedModel(list(steps)),
            config=AgentRunConfig(session_id="s"),
            tools=[pay],
            extensions=[*rails(), Ask()],
            journal=f"sqlite:///{tmp_path / 'agent.db'}",
        )

    async def main() -> None:
        async with await agent(asked("a", 400), text("paid")) as first:
            waiting = await first.run("Pay.")
            result = await first.answer(waiting.questions[0].id, True)
            assert result.messages[2].content == "paid 400 with [redacted]"
        async with await agent(asked("b", 100)) as second:
            waiting = await second.run("Pay 100 more.")
        async with await agent(text("Again, then."), asked("c", 100), text("done")) as third:
            told = (await third.answer(waiting.questions[0].id, True)).messages[-2]
            assert isinstance(told, ToolMessage)
            assert (told.failed, told.effect) == (True, "none")
            waiting = await third.run("Pay 100 more.")
            await third.answer(waiting.questions[0].id, True)
            started = [row.record for row in await third.session("s").records() if isinstance(row.record, HandlerStarted)]
            assert len(started) == 2

    asyncio.run(main())
    assert not any(SECRET.encode() in path.read_bytes() for path in tmp_path.iterdir())
