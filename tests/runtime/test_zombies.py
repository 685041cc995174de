"""A step that was given up goes on in the background: it must not act on the next run of its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from helpers import agent_playing, eager_tasks, limits, no_noise, records_of
from interlock import Agent, AgentExtension, AgentRunConfig, Fatal, Outcome, RunContext, extension, tool
from interlock.messages import AssistantMessage, StopReason
from interlock.model import ModelResponse, Stop
from interlock.providers.openai import OpenAIChatModel
from interlock.records import ModelStepEnded, ModelStepStarted, RunStarted
from interlock.testing import ScriptedModel, WireServer, call, calls, error, hold, repeat, text


class Lingering(AgentExtension):
    """Turns the cancellation of the first run into something of its own, long after the run has ended without it."""

    def __init__(self, then: str) -> None:
        self.then = then
        self.go_on = asyncio.Event()
        self.refused: list[BaseException] = []
        self.over = asyncio.Event()

    async def on_model_request(self, context: RunContext, request: Any, call_next: Any) -> AsyncIterator[Any]:
        try:
            async for event in call_next(request):
                yield event
        except asyncio.CancelledError:
            await self.go_on.wait()
            if self.then == "answers":
                yield ModelResponse(message=AssistantMessage(content="OLD"), stop=Stop(StopReason.STOP))
                return
            try:
                async for event in call_next(request):
                    yield event
            except Exception as refusal:
                self.refused.append(refusal)
                raise
        finally:
            self.over.set()


@pytest.mark.parametrize("then", ["answers", "asks again"])
def test_a_model_step_that_was_given_up_neither_answers_nor_asks_in_the_next_run(then: str) -> None:
    async def main() -> None:
        layer, started, second = Lingering(then), asyncio.Event(), asyncio.Event()

        def script(body: Any) -> Any:
            started.set()
            return hold(asyncio.Event()) if len(body["messages"]) == 1 else hold(second, then=text("NEW"))

        model = ScriptedModel(script)
        config = AgentRunConfig(session_id="s")
        async with await Agent.create(model, config=config, extensions=[layer], limits=limits(drain_s=0.01)) as agent:
            first = asyncio.create_task(agent.run("one"))
            await started.wait()
            await agent.cancel()
            assert (await first).outcome is Outcome.CANCELLED
            layer_two = asyncio.create_task(agent.run("two"))
            while len(await records_of(agent, RunStarted)) < 2:
                await asyncio.sleep(0)
            layer.over.clear()
            layer.go_on.set()
            await layer.over.wait()
            second.set()
            result = await layer_two
            assert (result.outcome, result.text, len(model.requests)) == (Outcome.COMPLETED, "NEW", 2)
            ended = [record.message.content for record in await records_of(agent, ModelStepEnded)]
            assert ended == ["NEW"]
            assert len(await records_of(agent, ModelStepStarted)) == 2

    asyncio.run(main())


def test_what_a_handler_raises_after_its_run_has_ended_does_not_end_the_next_run() -> None:
    async def main() -> None:
        started, go_on, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await go_on.wait()
                raise Fatal("too late")

        steps = [calls(call("c", "slow")), hold(second, then=text("fine"))]
        async with agent_playing(steps, tools=[slow], bounds=limits(drain_s=0.01)) as agent:
            first = asyncio.create_task(agent.run("one"))
            await started.wait()
            await agent.cancel()
            await first
            next_run = asyncio.create_task(agent.run("two"))
            while len(await records_of(agent, RunStarted)) < 2:
                await asyncio.sleep(0)
            go_on.set()
            for _ in range(20):
                await asyncio.sleep(0)
            second.set()
            assert (await next_run).outcome is Outcome.COMPLETED

    asyncio.run(main())


def test_a_layer_cannot_swallow_the_limit_of_requests() -> None:
    @extension(name="stubborn")
    async def stubborn(context: RunContext, request: Any, call_next: Any) -> AsyncIterator[Any]:
        while True:
            try:
                async for event in call_next(request):
                    yield event
                return
            except Exception:
                await asyncio.sleep(0)

    async def main() -> None:
        bounds = limits(requests=3)
        async with no_noise(), agent_playing([repeat(error(500))], extensions=[stubborn], bounds=bounds) as agent, asyncio.timeout(5):
            result = await agent.run("go")
            assert (result.outcome, result.reason, result.usage.requests) == (Outcome.LIMIT, "requests", 3)

    asyncio.run(main())


@eager_tasks
def test_a_loop_that_starts_tasks_eagerly_changes_nothing() -> None:
    """Python 3.12 has such a factory; this one does what it does where a step can end before it has been waited for."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # pyright: ignore

        async def add(a: int) -> int:
            """Add."""
            return a + 1

        async with agent_playing([calls(call("c", "add", {"a": 1}), call("d", "add", {"a": 2})), text("done")], tools=[add]) as agent:
            async with asyncio.timeout(5):
                assert (await agent.run("go")).text == "done"

    asyncio.run(main())


@eager_tasks
def test_the_scripted_server_answers_a_second_request_in_a_loop_that_starts_tasks_eagerly() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # pyright: ignore
        async with WireServer([text("one"), text("two")]) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", stream=False)
            async with await Agent.create(model) as agent, asyncio.timeout(5):
                assert [(await agent.run("go")).text for _ in range(2)] == ["one", "two"]

    asyncio.run(main())


def test_the_failure_of_a_call_is_capped_like_any_result_and_can_be_read_in_full() -> None:
    @tool
    def fail() -> None:
        """Fail at length."""
        raise ValueError("x" * 500_000 + "THE END")

    async def main() -> None:
        model = ScriptedModel([calls(call("c", "fail")), text("I see.")])
        async with agent_playing(model, tools=[fail]) as agent:
            result = await agent.run("go")
        (message,) = [m for m in result.messages if getattr(m, "tool_call_id", None) == "c"]
        assert len(message.content) <= 64 * 1024  # pyright: ignore
        assert "read_result" in message.content  # pyright: ignore
        assert [spec.name for spec in model.requests[1].tools] == ["fail", "read_result"]

    asyncio.run(main())
