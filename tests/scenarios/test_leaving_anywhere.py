"""A run is left at every single step of the event loop, in every way there is to leave it: nothing is ever left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    CommandRefused,
    Limits,
    Outcome,
    ProviderError,
    RunContext,
    SessionBusy,
)
from interlock.machine import Phase, fold
from interlock.records import HandlerStarted
from interlock.testing import ScriptedModel, Step, call, calls, error, reasoning, text

from .validity import complaints

SESSION = AgentRunConfig(session_id="s")
LIMITS = Limits(backoff_s=0.0, backoff_max_s=0.0, drain_s=0.2)


class Layers(AgentExtension):
    """A layer on both boundaries whose clean-up takes a few steps."""

    def __init__(self) -> None:
        self.open = 0

    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        self.open += 1
        try:
            await asyncio.sleep(0)
            async for event in call_next(request):
                yield event
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                self.open -= 1

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        self.open += 1
        try:
            await asyncio.sleep(0)
            return await call_next()
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                self.open -= 1


def answer(body: dict[str, Any]) -> Step:
    """A plan, a failed attempt, a batch of four calls, an empty reply, and the answer; one step per request of a run."""
    last = max(
        place for place, message in enumerate(body["messages"]) if message["role"] == "user" and message["content"] in ("Go.", "And now?")
    )
    since = body["messages"][last + 1 :]
    if body["messages"][last]["content"] == "And now?":
        return text("Second.")
    if any(message["role"] == "tool" for message in since):
        return text("Done.") if since[-1]["role"] == "user" else reasoning("Hm.")
    if not since:
        return text("I shall call.", finish="tool_calls")
    return calls(call("a", "waits", {"x": 1}), call("b", "in_thread", {}), call("c", "outer", {}), call("d", "fails", {}))


Leave = Callable[[Agent, "asyncio.Task[Any]"], Awaitable[None]]


async def by_cancelling_the_task(agent: Agent, task: asyncio.Task[Any]) -> None:
    task.cancel()


async def by_cancelling_it_twice(agent: Agent, task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()


async def by_the_cancel_command(agent: Agent, task: asyncio.Task[Any]) -> None:
    try:
        await agent.cancel()
    except CommandRefused:
        pass  # it had not begun, or was over


async def by_closing_the_agent(agent: Agent, task: asyncio.Task[Any]) -> None:
    await agent.aclose()


async def by_a_timeout_in_the_journal(agent: Agent, task: asyncio.Task[Any]) -> None:
    steer = asyncio.create_task(agent.steer("Stop at ten."))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({steer})
    if not steer.cancelled():
        steer.exception()


LEAVES: list[Leave] = [
    by_cancelling_the_task,
    by_cancelling_it_twice,
    by_the_cancel_command,
    by_closing_the_agent,
    by_a_timeout_in_the_journal,
]
STEPS_MAX = 400


async def leave_after(steps: int, leave: Leave, journal: str, *, streamed: bool) -> bool:
    """Leave a run after so many steps, and look at everything. Whether it was over by itself before that."""
    started: list[str] = []

    async def waits(x: int) -> str:
        started.append("waits")
        for _ in range(5):
            await asyncio.sleep(0)
        return "waited"

    def in_thread() -> str:
        started.append("in_thread")
        return "from a thread"

    async def outer(context: RunContext) -> str:
        started.append("outer")
        return f"outer {await context.call_tool('inner')}"

    async def inner() -> str:
        started.append("inner")
        await asyncio.sleep(0)
        return "inner"

    async def fails() -> None:
        started.append("fails")
        raise ValueError("no")

    failed: list[int] = []

    def faulty(body: dict[str, Any]) -> Step:
        if len(failed) == 0:
            failed.append(1)
            return error(500)
        return answer(body)

    layer, model = Layers(), ScriptedModel(faulty)
    tools = [waits, in_thread, outer, inner, fails]
    before = asyncio.all_tasks()
    agent = await Agent.create(model, tools=tools, extensions=[layer], config=SESSION, journal=journal, limits=LIMITS)

    async def run() -> None:
        if not streamed:
            await agent.run("Go.")
            return
        async with aclosing(agent.stream("Go.")) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(run())
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    over = task.done()
    await leave(agent, task)
    await asyncio.wait({task})
    if not task.cancelled() and not (steps == 0 and leave is by_closing_the_agent):
        assert task.exception() is None, task.exception()
    if leave is by_closing_the_agent:
        agent = await Agent.create(model, tools=tools, extensions=[layer], config=SESSION, journal=journal, limits=LIMITS)

    # The session goes on, every request was one that a provider takes, and nothing ran twice.
    while True:
        try:
            result = await agent.run("And now?")
            break
        except SessionBusy:  # who did not wait for the end of the first run must wait now
            assert leave is by_cancelling_it_twice
            await asyncio.sleep(0)
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "Second.")
    assert [why for body in model.bodies for why in complaints(body)] == []
    assert len(started) == len(set(started))
    rows = await agent.session("s").records()
    keys = [row.record.key for row in rows if isinstance(row.record, HandlerStarted)]
    assert len(keys) == len(set(keys)) >= len(started)
    assert fold(row.record for row in rows).phase is Phase.IDLE
    assert await agent.messages("s") == result.messages

    await agent.aclose()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=0.5)
    assert [one for one in left if not one.done()] == []
    assert (layer.open, model.open_streams) == (0, 0)
    return over


# A memory journal ends with its agent, so there is no session left to go on with.
WAYS = [(leave, where) for leave in LEAVES for where in ("memory", "sqlite") if (leave, where) != (by_closing_the_agent, "memory")]


@pytest.mark.parametrize(("leave", "where"), WAYS, ids=lambda part: part if isinstance(part, str) else part.__name__)
def test_leaving_at_any_step_leaves_nothing_behind(leave: Leave, where: str, tmp_path: Path) -> None:
    async def sweep() -> None:
        for steps in range(STEPS_MAX):
            journal = "memory:" if where == "memory" else f"sqlite:///{tmp_path / f'{steps}.db'}"
            try:
                async with asyncio.timeout(5):
                    if await leave_after(steps, leave, journal, streamed=bool(steps % 2)):
                        return
            except BaseException as error:
                error.add_note(f"left {leave.__name__} after {steps} steps of the event loop")
                raise
        raise AssertionError(f"the run was not over after {STEPS_MAX} steps")

    asyncio.run(sweep())


def test_leaving_a_resumed_run_at_any_step_leaves_it_closed_or_resumable() -> None:
    async def once(steps: int) -> bool:
        replies = iter([error(400)])

        def next_reply(body: dict[str, Any]) -> Step:
            return next(replies, None) or answer({**body})

        async def waits(x: int) -> str:
            return "waited"

        async def nothing() -> None: ...

        from interlock import tool

        tools = [waits, *(tool(nothing, name=name) for name in ("in_thread", "outer", "fails"))]
        async with await Agent.create(ScriptedModel(next_reply), tools=tools, config=SESSION, limits=LIMITS) as agent:
            with pytest.raises(ProviderError):
                await agent.run("Go.")
            task = asyncio.create_task(agent.resume())
            for _ in range(steps):
                await asyncio.sleep(0)
            over = task.done()
            task.cancel()
            await asyncio.wait({task})
            result = await agent.run("And now?")
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "Second.")
            return over

    async def sweep() -> None:
        for steps in range(STEPS_MAX):
            if await once(steps):
                return
        raise AssertionError("the run was never over")

    asyncio.run(sweep())
