"""Leaving at a bad moment: nothing is held up, nothing is left over, nobody complains afterwards."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from helpers import agent_playing, limits, no_noise, records_of
from interlock import Agent, AgentRunConfig, Limits, Outcome
from interlock.events import RecoveryStarted, ToolStarted
from interlock.providers.openai import OpenAIChatModel
from interlock.records import RunEnded, ToolStepEnded
from interlock.testing import ScriptedModel, Step, WireServer, call, calls, error, error_object, hold, raw, text

HERE = {"choices": [{"index": 0, "delta": {"content": "Here it comes"}, "finish_reason": None}]}


@pytest.mark.parametrize("breaks", ["not at all", "by an error object", "by a cut"])
@pytest.mark.parametrize("times", [1, 5])
def test_waiting_for_the_next_event_no_longer_ends_the_run_and_no_exception_stays_unretrieved(breaks: str, times: int) -> None:
    """Also where the provider fails in the very moment in which its consumer gives up."""

    async def main() -> None:
        async with no_noise():
            for _ in range(times):
                gate = asyncio.Event()
                then = {"not at all": (), "by an error object": error_object(500).frames, "by a cut": ()}[breaks]
                step = raw(HERE, gate, *then, ends="cut" if breaks == "by a cut" else "eof")
                async with WireServer([step]) as server:
                    model = OpenAIChatModel("scripted", base_url=server.base_url)
                    async with await Agent.create(model, limits=limits(model_attempts=1)) as agent:
                        events = agent.stream("go")
                        with pytest.raises(TimeoutError):
                            while True:
                                waiting = asyncio.wait_for(anext(events), 0.01)
                                await waiting
                        gate.set()
                        await events.aclose()
                        with pytest.raises(StopAsyncIteration):
                            await anext(events)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_under_the_default_limits_aclose_does_not_wait_for_a_tool_that_cleans_up_for_long_and_its_cleaning_up_ends(kind: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate, open_gate = asyncio.Event(), threading.Event()
        started, cleaned = asyncio.Event(), asyncio.Event()

        async def act() -> None:
            """Act."""
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await gate.wait()
                cleaned.set()

        def act_in_a_thread() -> None:
            """Act."""
            loop.call_soon_threadsafe(started.set)
            try:
                open_gate.wait(10)
            finally:
                loop.call_soon_threadsafe(cleaned.set)

        name = "act" if kind == "async" else "act_in_a_thread"
        async with no_noise(), agent_playing([calls(call("c1", name)), text("on")], tools=[act, act_in_a_thread], bounds=Limits()) as agent:
            events = agent.stream("go")
            async for event in events:
                if isinstance(event, ToolStarted):
                    break
            await started.wait()
            left = loop.time()
            await events.aclose()
            assert loop.time() - left < 0.5
            assert not cleaned.is_set()
            assert [record.effect for record in await records_of(agent, ToolStepEnded)] == ["unknown"]
            assert (await agent.run("and now?")).text == "on"
            gate.set()
            open_gate.set()
            await asyncio.wait_for(cleaned.wait(), 2.0)

    asyncio.run(main())


def test_twelve_runs_cancelled_twice_each_at_every_stage_leave_room_for_ten_at_once() -> None:
    def script(body: dict[str, Any]) -> Step:
        said = body["messages"][-1]
        if said["role"] == "tool":
            return text("done")
        return hold(asyncio.Event(), after="Here") if said["content"] == "silence" else calls(call("c", said["content"]))

    async def main() -> None:
        async def hang() -> None:
            """Hang."""
            await asyncio.Event().wait()

        def quick() -> str:
            """Be quick."""
            return "quick"

        async with no_noise(), WireServer(script) as server:
            model = OpenAIChatModel("scripted", base_url=server.base_url)
            bounds = limits(worker_threads=10)
            async with await Agent.create(model, tools=[hang, quick], limits=bounds) as agent:
                for number in range(12):
                    prompt = ("hang", "silence")[number % 2]
                    task = asyncio.create_task(agent.run(prompt, config=AgentRunConfig(session_id=f"cancelled-{number}")))
                    for _ in range(number * 3):
                        await asyncio.sleep(0)
                    assert task.cancel()
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                ten = [agent.run("quick", config=AgentRunConfig(session_id=f"after-{n}")) for n in range(10)]
                results = await asyncio.wait_for(asyncio.gather(*ten), 5.0)
                assert [result.text for result in results] == ["done"] * 10
                assert agent.parts.workers.occupied == 0

    asyncio.run(main())


@pytest.mark.parametrize("prompt", ["cancel", "task"])
def test_a_wait_that_a_provider_asked_for_ends_when_the_run_is_cancelled(prompt: str) -> None:
    async def main() -> None:
        model = ScriptedModel([error(429, headers={"retry-after": "30"})])
        async with no_noise(), await Agent.create(model, config=AgentRunConfig(session_id="s")) as agent:
            waits = asyncio.Event()

            async def consume() -> None:
                async for event in agent.stream("go"):
                    if isinstance(event, RecoveryStarted):
                        assert (event.code, event.delay_s) == ("model_failed", 30.0)
                        waits.set()

            task = asyncio.create_task(consume())
            await waits.wait()
            left = asyncio.get_running_loop().time()
            if prompt == "cancel":
                await agent.cancel()
                await task
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert asyncio.get_running_loop().time() - left < 0.5
            (ended,) = await records_of(agent, RunEnded)
            assert ended.outcome is Outcome.CANCELLED
        model.assert_done()

    asyncio.run(main())
