"""What a person may say to a run that is alive: stop, or something new."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import agent_playing, limits, no_noise, records_of, said, slow_claim
from interlock import Agent, AgentRunConfig, CommandRefused, Outcome, UsageError, tool
from interlock.events import RunFinished, SteeringLanded, TextDelta, ToolStarted
from interlock.messages import ToolMessage
from interlock.messages.validity import is_valid
from interlock.records import RunCancelled, RunEnded, SteeringReceived, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, hold, text


class Gate:
    """A handler that says when it runs and waits until it may go on."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.ran: list[int] = []

    async def act(self, n: int = 0) -> int:
        """Act."""
        self.ran.append(n)
        self.started.set()
        await self.open.wait()
        return n


# ---- cancel ---------------------------------------------------------------------------------------------


def test_cancel_makes_run_return_cancelled_and_is_journaled_before_it_returns() -> None:
    async def main() -> None:
        gate = Gate()
        async with no_noise(), agent_playing([calls(call("c", "act")), text("on")], tools=[gate.act]) as agent:
            task = asyncio.create_task(agent.run("go"))
            await gate.started.wait()
            await agent.cancel()
            (cancelled,) = await records_of(agent, RunCancelled)
            assert (cancelled.outcome, cancelled.reason) == (Outcome.CANCELLED, "cancelled")
            result = await task
            assert (result.outcome, result.reason, result.text) == (Outcome.CANCELLED, "cancelled", "")
            assert (await agent.run("and now?")).text == "on"

    asyncio.run(main())


def test_cancel_in_the_middle_of_a_reply_shows_the_result_to_the_consumer_and_keeps_the_partial_text_out() -> None:
    async def main() -> None:
        async with no_noise(), agent_playing([hold(asyncio.Event(), after="Half an")]) as agent:
            events: list[Any] = []
            async for event in agent.stream("go"):
                events.append(event)
                if isinstance(event, TextDelta) and not await records_of(agent, RunCancelled):
                    await agent.cancel()
            assert isinstance(events[-1], RunFinished)
            result = events[-1].result
            assert (result.outcome, result.text, len(result.messages)) == (Outcome.CANCELLED, "", 1)

    asyncio.run(main())


def test_cancel_at_once_after_the_run_was_asked_for_cancels_that_run() -> None:
    async def main() -> None:
        for turns in range(6):  # wherever the run has come to in the meantime
            model = ScriptedModel(lambda body: hold(asyncio.Event()))
            async with no_noise(), await Agent.create(model, config=AgentRunConfig(session_id="s")) as agent:
                task = asyncio.create_task(agent.run("go"))
                await asyncio.sleep(0)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await agent.cancel()
                assert (await task).outcome is Outcome.CANCELLED

    asyncio.run(main())


def test_what_is_said_while_a_session_is_still_being_taken_is_meant_for_the_run_that_is_about_to_begin() -> None:
    async def main(say: str) -> None:
        gate = asyncio.Event()
        model = ScriptedModel([text("one"), text("two")] if say == "steer" else lambda body: hold(asyncio.Event()))
        async with no_noise(), await Agent.create(model, config=AgentRunConfig(session_id="s")) as agent:
            claiming = slow_claim(agent, gate)
            task = asyncio.create_task(agent.run("go"))
            await claiming.wait()
            command = asyncio.create_task(agent.steer("and B") if say == "steer" else agent.cancel())
            await asyncio.sleep(0)
            gate.set()
            await command
            result = await task
            if say == "steer":
                assert result.text == "two"
                assert said(model.bodies[1])[-1] == ("user", "and B")
            else:
                assert result.outcome is Outcome.CANCELLED

    for say in ("steer", "cancel"):
        asyncio.run(main(say))


def test_cancelling_the_task_raises_cancelled_error_and_is_journaled() -> None:
    async def main() -> None:
        gate = Gate()
        async with no_noise(), agent_playing([calls(call("c", "act")), text("on")], tools=[gate.act]) as agent:
            task = asyncio.create_task(agent.run("go"))
            await gate.started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (end,) = await records_of(agent, RunEnded)
            assert end.outcome is Outcome.CANCELLED
            (ended,) = await records_of(agent, ToolStepEnded)
            assert (ended.effect, ended.code) == ("unknown", "cancelled")
            result = await agent.run("and now?")
            assert (result.text, is_valid(result.messages)) == ("on", True)

    asyncio.run(main())


def test_a_second_cancel_is_refused_and_so_is_one_without_a_run() -> None:
    async def main() -> None:
        gate = Gate()
        async with agent_playing([calls(call("c", "act"))], tools=[gate.act]) as agent:
            with pytest.raises(CommandRefused):
                await agent.cancel()
            assert await records_of(agent, RunCancelled) == []
            task = asyncio.create_task(agent.run("go"))
            await gate.started.wait()
            await agent.cancel()
            with pytest.raises(CommandRefused):
                await agent.cancel()
            await task
            assert len(await records_of(agent, RunCancelled)) == 1

    asyncio.run(main())


def test_cancel_ends_a_wait_between_two_attempts() -> None:
    from interlock.events import RecoveryStarted
    from interlock.testing import error

    async def main() -> None:
        bounds = limits(backoff_s=60.0, backoff_max_s=60.0)
        async with no_noise(), agent_playing([error(503)], bounds=bounds) as agent:
            async for event in agent.stream("go"):
                if isinstance(event, RecoveryStarted):
                    assert event.delay_s == 60.0
                    await agent.cancel()
                last = event
            assert last.result.outcome is Outcome.CANCELLED  # type: ignore[union-attr]

    asyncio.run(asyncio.wait_for(main(), 10))


# ---- steer ---------------------------------------------------------------------------------------------------


def test_what_is_said_during_a_batch_lands_at_its_end_after_the_results() -> None:
    async def main() -> None:
        gate = Gate()
        model = ScriptedModel([calls(call("a", "act", {"n": 1}), call("b", "act", {"n": 2})), text("done")])
        async with await Agent.create(model, config=AgentRunConfig(session_id="s"), tools=[gate.act]) as agent:
            events = []
            async for event in agent.stream("go"):
                events.append(event)
                if isinstance(event, ToolStarted) and not await records_of(agent, SteeringReceived):
                    await agent.steer("also look at B")
                    assert len(await records_of(agent, SteeringReceived)) == 1
                    gate.open.set()
            assert sorted(gate.ran) == [1, 2]
            assert [role for role, _ in said(model.bodies[1])] == ["user", "assistant", "tool", "tool", "user"]
            assert said(model.bodies[1])[-1] == ("user", "also look at B")
            assert [event.text for event in events if isinstance(event, SteeringLanded)] == ["also look at B"]
            assert is_valid(events[-1].result.messages)  # type: ignore[union-attr]

    asyncio.run(main())


def test_interrupt_now_supersedes_the_calls_that_have_not_started_and_lets_the_running_ones_finish() -> None:
    async def main() -> None:
        gate = Gate()
        serial = tool(parallel=False)(gate.act)
        steps = [calls(*(call(f"c{n}", "act", {"n": n}) for n in range(3))), text("done")]
        async with agent_playing(steps, tools=[serial]) as agent:
            task = asyncio.create_task(agent.run("go"))
            await gate.started.wait()
            await agent.steer("stop that", interrupt="now")
            gate.open.set()
            result = await task
            ended = {record.message.tool_call_id: record for record in await records_of(agent, ToolStepEnded)}
            assert gate.ran == [0]
            assert [(ended[f"c{n}"].code, ended[f"c{n}"].effect) for n in range(3)] == [
                ("ok", "happened"),
                ("superseded", "none"),
                ("superseded", "none"),
            ]
            assert [m.tool_call_id for m in result.messages if isinstance(m, ToolMessage)] == ["c0", "c1", "c2"]
            assert result.text == "done"

    asyncio.run(main())


def test_what_is_said_during_the_last_reply_gets_a_turn_of_its_own() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        model = ScriptedModel([hold(gate, then=text("first answer")), text("second answer")])
        async with await Agent.create(model, config=AgentRunConfig(session_id="s")) as agent:
            task = asyncio.create_task(agent.run("go"))
            while not model.requests:
                await asyncio.sleep(0)
            await agent.steer("and B?")
            gate.set()
            result = await task
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "second answer")
            assert said(model.bodies[1]) == [("user", "go"), ("assistant", "first answer"), ("user", "and B?")]

    asyncio.run(main())


def test_steering_an_idle_session_is_refused_and_nothing_is_recorded() -> None:
    async def main() -> None:
        async with agent_playing([text("done")]) as agent:
            for _ in range(2):
                before = len(await records_of(agent, SteeringReceived))
                with pytest.raises(CommandRefused):
                    await agent.steer("hello?")
                assert len(await records_of(agent, SteeringReceived)) == before == 0
                if not await records_of(agent, RunEnded):
                    await agent.run("go")

    asyncio.run(main())


def test_steering_takes_the_same_care_of_its_arguments_as_a_prompt() -> None:
    async def main() -> None:
        async with agent_playing([]) as agent:
            for wrong in ("", "  ", None, 7):
                with pytest.raises(UsageError):
                    await agent.steer(wrong)
            with pytest.raises(UsageError, match="interrupt"):
                await agent.steer("x", interrupt="later")

    asyncio.run(main())


def test_steering_never_resets_a_limit() -> None:
    async def main() -> None:
        async def act() -> None:
            pass

        model = ScriptedModel(lambda body: calls(call("c", "act")))
        async with await Agent.create(model, config=AgentRunConfig(session_id="s"), tools=[act], limits=limits(requests=3)) as agent:
            result: Any = None
            async for event in agent.stream("go"):
                if isinstance(event, ToolStarted):
                    await agent.steer("go on")
                if isinstance(event, RunFinished):
                    result = event.result
            assert (result.outcome, result.reason, len(model.requests)) == (Outcome.LIMIT, "requests", 3)
            assert is_valid(result.messages)

    asyncio.run(main())


def test_what_is_said_during_a_streak_is_heard_even_if_the_streak_runs_out() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        steps = [text("I will.", finish="tool_calls"), hold(gate, then=text("I will.", finish="tool_calls")), text("Heard.")]
        model = ScriptedModel(steps)
        async with no_noise(), agent_playing(model, bounds=limits(dropped_calls=1)) as agent:
            task = asyncio.create_task(agent.run("go"))
            while len(model.requests) < 2:
                await asyncio.sleep(0)
            await agent.steer("Never mind.")
            gate.set()
            result = await task
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "Heard.")
            assert model.requests[2].messages[-1].content == "Never mind."

    asyncio.run(main())
