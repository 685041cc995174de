"""Everything at once, by chance: whatever happens, no handler starts twice, every request is valid, and nothing is left over."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest

from helpers import limits, no_noise
from interlock import Agent, AgentRunConfig, CommandRefused, ProviderError, RunContext, tool
from interlock.extensions.base import AgentExtension, CallNext, ToolInvocation
from interlock.machine import fold
from interlock.messages.validity import is_valid
from interlock.records import HandlerStarted, ToolStepEnded, ToolStepStarted
from interlock.testing import ScriptedModel, call, calls, cut, error, text


class Storm:
    """Tools, a layer and a model that do whatever the dice say."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.starts: Counter[str] = Counter()

    async def pause(self, turns_max: int) -> None:
        for _ in range(self.dice.randrange(turns_max)):
            await asyncio.sleep(0)

    async def act(self, n: int, context: RunContext) -> Any:
        """Act."""
        self.starts[context.idempotency_key()] += 1
        await self.pause(5)
        if self.dice.random() < 0.2:
            raise ValueError("bad day")
        if self.dice.random() < 0.2 and n < 50:
            return await context.call_tool("act", {"n": n + 50})
        return n

    def threaded(self, n: int, context: RunContext) -> int:
        """Act in a thread."""
        self.starts[context.idempotency_key()] += 1
        time.sleep(self.dice.random() * 0.002)
        return n

    async def slow(self, n: int, context: RunContext) -> int:
        """Be slow, now and then too slow."""
        self.starts[context.idempotency_key()] += 1
        try:
            await asyncio.sleep(self.dice.random() * 0.006)
        finally:
            await self.pause(3)
        return n

    def answer(self, body: dict[str, Any]) -> Any:
        chance = self.dice.random()
        if chance < 0.25:
            return text("hello there", pieces=4)
        if chance < 0.3:
            return error(500)
        if chance < 0.35:
            return cut(after="abc def")
        names = ("act", "threaded", "slow", "unknown")
        return calls(*(call(f"c{n}", self.dice.choice(names), {"n": n}) for n in range(self.dice.randrange(1, 5))))


class Wild(AgentExtension):
    def __init__(self, storm: Storm) -> None:
        self.storm = storm

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        chance = self.storm.dice.random()
        await self.storm.pause(3)
        if chance < 0.1:
            raise KeyError("a veto")
        if chance < 0.2:
            return await asyncio.wait_for(call_next(), 0.002)
        if chance < 0.3:
            task = asyncio.create_task(call_next())  # type: ignore[arg-type]
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.sleep(0)
            return "early"
        if chance < 0.4:
            await asyncio.gather(call_next(), call_next(), return_exceptions=True)
            return "raced"
        return await call_next()

    async def on_model_request(self, context: RunContext, request: Any, call_next: Any) -> Any:
        async for event in call_next(request):
            await self.storm.pause(2)
            yield event


async def one_run(agent: Agent, storm: Storm) -> None:
    """Start a run and end it, or not, in one of four ways."""
    way = storm.dice.randrange(4)
    if way == 0:
        await agent.run("go")
    elif way == 1:
        task = asyncio.create_task(agent.run("go"))
        await storm.pause(60)
        task.cancel()
        if storm.dice.random() < 0.5:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait({task})
    elif way == 2:
        events, left = agent.stream("go"), storm.dice.randrange(30)
        async for _ in events:
            left -= 1
            if left < 0:
                break
        await events.aclose()
    else:
        task = asyncio.create_task(agent.run("go"))
        await storm.pause(60)
        try:
            if storm.dice.random() < 0.5:
                await agent.steer("hey", interrupt=storm.dice.choice([None, "now"]))
            else:
                await agent.cancel()
        except CommandRefused:
            pass
        await task


@pytest.mark.parametrize("start", range(0, 40, 8))
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # a dropped call_next may never begin
def test_whatever_happens_no_handler_starts_twice_and_nothing_is_left_over(start: int) -> None:
    async def main(seed: int) -> None:
        storm = Storm(seed)
        model = ScriptedModel(storm.answer)
        config = AgentRunConfig(session_id="s")
        tools = [storm.act, storm.threaded, tool(timeout_s=0.003)(storm.slow)]
        bounds = limits(drain_s=0.02, requests=6)
        async with (
            no_noise(),
            await Agent.create(model, config=config, tools=tools, extensions=[Wild(storm)], limits=bounds) as agent,
        ):
            for _ in range(4):
                try:
                    await one_run(agent, storm)
                except ProviderError:
                    pass
                live = agent.live("s")
                while live.run is not None:  # a run that was left may still drain
                    await asyncio.sleep(0.001)
            rows = await agent.session("s").records()
            state = agent.live("s").state
        records = [row.record for row in rows]
        assert fold(records) == state
        assert set(storm.starts.values()) <= {1}
        started = Counter(record.key for record in records if isinstance(record, HandlerStarted))
        ended = Counter(record.key for record in records if isinstance(record, ToolStepEnded))
        assert set(started.values()) | set(ended.values()) <= {1}
        assert {record.key for record in records if isinstance(record, ToolStepStarted)} <= ended.keys()
        assert all(is_valid(request.messages) for request in model.requests)

    for seed in range(start, start + 8):
        try:
            asyncio.run(asyncio.wait_for(main(seed), 20))
        except BaseException as problem:
            problem.add_note(f"seed {seed}")
            raise
