"""How often a handler runs, when the model, the provider, the tool and the clock all give it a reason to run again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal

import pytest

from helpers import agent_playing, no_noise, play, records_of
from interlock import Outcome, RunContext, extension, tool
from interlock.extensions.base import CallNext, ToolInvocation
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolLateResult, ToolStepEnded
from interlock.testing import call, calls, error, text


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("on_crash", [None, "report", "rerun"])
def test_no_flag_and_no_budget_of_retries_makes_a_failed_call_run_again_while_its_process_lives(
    on_crash: Literal["report", "rerun"] | None, threaded: bool
) -> None:
    sent: list[str] = []

    async def send(to: str) -> None:
        """Send a mail."""
        sent.append(to)
        raise ConnectionResetError("connection reset by peer")

    def send_in_a_thread(to: str) -> None:
        sent.append(to)
        raise ConnectionResetError("connection reset by peer")

    made = tool(name="send", on_crash=on_crash or "report")(send_in_a_thread if threaded else send)
    steps = [error(503), error(503), calls(call("c1", "send", {"to": "ann"})), error(503), text("I do not know whether it was sent.")]
    played = asyncio.run(play(steps, tools=[made if on_crash or threaded else send]))
    assert (sent, played.result.outcome) == (["ann"], Outcome.COMPLETED)
    assert len([record for record in played.records if isinstance(record, HandlerStarted)]) == 1
    (result,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert (result.failed, result.effect) == (True, "unknown")


def test_a_filter_of_arguments_that_falls_back_and_tries_again_three_times_runs_the_handler_once() -> None:
    rows: list[int] = []

    async def append(row: int) -> None:
        """Append a row."""
        rows.append(row)
        raise ValueError("no such table")

    @extension(priority=50)
    async def three_attempts(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        for _ in range(3):
            try:
                return await call_next()
            except Exception as problem:
                last = problem
        raise last

    @extension(priority=60)
    async def fall_back(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Exception:
            call.arguments = dict(call.original_arguments)
            return await call_next()

    steps = [calls(call("c1", "append", {"row": 1})), text("It failed.")]
    played = asyncio.run(play(steps, tools=[append], extensions=[three_attempts, fall_back]))
    (result,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert rows == [1]
    assert (result.failed, result.effect) == (True, "unknown")


def test_a_handler_that_writes_after_its_time_is_said_to_be_of_unknown_effect_and_is_not_started_again() -> None:
    release = threading.Event()
    written: list[str] = []

    @tool(timeout_s=0.02)
    def write(line: str) -> str:
        """Write a line."""
        release.wait(5)
        written.append(line)
        return "written"

    async def main() -> list[Any]:
        async with no_noise(), agent_playing([calls(call("c1", "write", {"line": "x"})), text("I see.")], tools=[write]) as agent:
            result = await agent.run("go")
            assert (result.outcome, written) == (Outcome.COMPLETED, [])
            release.set()
            while not (late := await records_of(agent, ToolLateResult)):
                await asyncio.sleep(0.001)
            assert len(late) == 1
            return await records_of(agent)

    records = asyncio.run(main())
    (ended,) = [record for record in records if isinstance(record, ToolStepEnded)]
    assert (ended.code, ended.effect, ended.message.failed) == ("timeout", "unknown", True)
    assert len([record for record in records if isinstance(record, HandlerStarted)]) == 1
    assert written == ["x"]


def test_the_model_learns_of_a_connection_that_was_reset_that_the_effect_may_have_happened_and_of_no_retry() -> None:
    async def post() -> None:
        """Post a message."""
        raise ConnectionResetError("reset after the request had been sent")

    played = asyncio.run(play([calls(call("c1", "post")), text("I will check first.")], tools=[post]))
    reason, effect = played.bodies[1]["messages"][-1]["content"].splitlines()
    assert reason == "Tool error (post): reset after the request had been sent"
    assert "may have happened" in effect
    assert "retr" not in effect.replace("not retr", "").lower()
