"""Layers that keep, race, swallow or misuse what they were given: nothing runs twice, nothing is left open."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    AlreadyDelegated,
    Outcome,
    RunContext,
    UsageError,
    current_tool_call_id,
    extension,
    tool,
)
from interlock import (
    Stop as StopRun,
)
from interlock.messages import ToolMessage
from interlock.records import ExtensionNoted, HandlerStarted
from interlock.testing import ScriptedModel, call, calls, text

from .saying import refused

SESSION = AgentRunConfig(session_id="s")


def test_a_run_that_a_tool_starts_is_not_part_of_that_tools_call() -> None:
    """An agent as a tool of another: what is true of the outer call is not said in the inner run, and nothing of it can be touched."""
    seen: list[str | None] = []

    class Looks(AgentExtension):
        async def on_model_request(self, context: RunContext, request: Any, call_next: Any) -> Any:
            seen.append(current_tool_call_id())
            with refused("while a tool call runs"):
                context.emit("progress")
            with refused("while a tool call runs"):
                await context.call_tool("ping")
            async for event in call_next(request):
                yield event

    async def ping() -> str:
        seen.append(current_tool_call_id())
        return "pong"

    async def main() -> None:
        inner = await Agent.create(ScriptedModel([calls(call("inner", "ping", {})), text("Inner.")]), extensions=[Looks()], tools=[ping])

        async def ask() -> str:
            answer = (await inner.run("x")).text
            seen.append(current_tool_call_id())
            return answer

        async with inner, await Agent.create(ScriptedModel([calls(call("outer", "ask", {})), text("Outer.")]), tools=[ask]) as outer:
            result = await outer.run("x")
        assert [m.content for m in result.messages if isinstance(m, ToolMessage)] == ["Inner."]

    asyncio.run(main())
    assert seen == [None, "inner", None, "outer"]


def test_an_extension_that_notes_something_at_every_note_is_stopped() -> None:
    class Echo(AgentExtension):
        def on_record(self, context: RunContext, record: Any) -> None:
            context.note({"heard": type(record).__name__})

    async def main() -> None:
        async with await Agent.create(ScriptedModel([text("Fine.")]), extensions=[Echo()], config=SESSION) as agent:
            assert (await agent.run("x")).text == "Fine."
            rows = await agent.session("s").records()
            assert 5 < sum(isinstance(row.record, ExtensionNoted) for row in rows) < 100

    asyncio.run(main())


def test_a_context_that_is_kept_is_of_no_use_when_its_run_is_over() -> None:
    kept: list[RunContext] = []

    @extension
    async def keeps(context: Any, call: Any, call_next: Any) -> Any:
        kept.append(context)
        return await call_next()

    async def ping(context: RunContext) -> str:
        kept.append(context)
        return "pong"

    async def main() -> None:
        model = ScriptedModel([calls(call("c1", "ping", {})), text("Fine.")])
        async with await Agent.create(model, tools=[ping], extensions=[keeps], config=SESSION) as agent:
            await agent.run("x")
            before = await agent.session("s").records()
            for context in kept:
                with pytest.raises(UsageError):
                    context.note({"late": 1})
                with pytest.raises(UsageError):
                    context.emit("late")
                with pytest.raises(UsageError):
                    await context.call_tool("ping")
                with pytest.raises(UsageError):
                    context.idempotency_key()
            assert await agent.session("s").records() == before

    asyncio.run(main())


@pytest.mark.parametrize("what", [None, 5, "x", [None], [5], {"role": "user"}], ids=str)
@pytest.mark.parametrize("place", ["request", "messages"])
def test_a_layer_that_sends_no_request_is_told_so_and_nothing_is_sent(what: Any, place: str) -> None:
    class Odd(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async with aclosing(call_next(what if place == "request" else replace(request, messages=what))) as events:
                async for event in events:
                    yield event

    async def main() -> None:
        model = ScriptedModel([])
        async with await Agent.create(model, extensions=[Odd()]) as agent:
            with refused("call_next"):
                await agent.run("x")
        assert model.requests == []

    asyncio.run(main())


def test_a_call_next_that_is_kept_runs_nothing_later() -> None:
    """On both boundaries: after its call, after its step, and after the run."""
    kept: list[Any] = []
    started: list[int] = []

    class Keeps(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            kept.append(lambda: anext(call_next(request)))
            async for event in call_next(request):
                yield event

        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            with pytest.raises(UsageError):
                await kept[0]()  # the step that asked for this call is over
            kept.append(call_next)
            return "answered"

    async def ping() -> None:
        started.append(1)

    async def main() -> None:
        model = ScriptedModel([calls(call("c1", "ping", {})), text("Fine.")])
        async with await Agent.create(model, tools=[ping], extensions=[Keeps()], config=SESSION) as agent:
            assert (await agent.run("x")).text == "Fine."
            before = await agent.session("s").records()
            for late in kept:
                with pytest.raises(UsageError):
                    await late()
            with pytest.raises(AlreadyDelegated):
                await kept[1]()
            assert await agent.session("s").records() == before
            assert (started, len(model.requests)) == ([], 2)

    asyncio.run(main())


def test_a_layer_that_swallows_a_cancellation_does_not_save_the_run() -> None:
    """The calls are settled, the caller gets its CancelledError, and the model never sees more of that run."""

    class Swallows(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            try:
                return await call_next()
            except asyncio.CancelledError:
                return "swallowed"

    async def main() -> None:
        running = asyncio.Event()

        async def waits() -> None:
            running.set()
            await asyncio.Event().wait()

        model = ScriptedModel([calls(call("c1", "waits", {}), call("c2", "waits", {})), text("Second.")])
        async with await Agent.create(model, tools=[waits], extensions=[Swallows()], config=SESSION) as agent:
            task = asyncio.create_task(agent.run("x"))
            await running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(model.requests) == 1
            result = await agent.run("y")
            assert result.text == "Second."
            assert [m.effect for m in result.messages if isinstance(m, ToolMessage)] == ["unknown", "unknown"]

    asyncio.run(main())


def test_a_layer_may_race_two_requests_and_leaves_neither_open() -> None:
    class Races(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async def one() -> list[Any]:
                return [event async for event in call_next(request)]

            tasks = [asyncio.create_task(one()) for _ in range(2)]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for event in done.pop().result():
                yield event

    async def main() -> None:
        from interlock.testing import hold

        before = asyncio.all_tasks()
        model = ScriptedModel([text("Fast."), hold(asyncio.Event())])
        async with await Agent.create(model, extensions=[Races()]) as agent:
            result = await agent.run("x")
            assert (result.text, result.usage.requests) == ("Fast.", 2)
            for _ in range(10):
                await asyncio.sleep(0)
            assert model.open_streams == 0
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_what_stops_a_run_settles_its_siblings_and_starts_nothing_more() -> None:
    @extension
    async def stops(context: Any, call: Any, call_next: Any) -> Any:
        return StopRun("That is all.") if call.name == "last" else await call_next()

    started: list[str] = []

    @tool(parallel=False)
    async def first() -> str:
        started.append("first")
        return "first"

    @tool(parallel=False)
    async def last() -> str:
        started.append("last")
        return "last"

    @tool(parallel=False)
    async def never() -> str:
        started.append("never")
        return "never"

    async def main() -> None:
        model = ScriptedModel([calls(call("c1", "first", {}), call("c2", "last", {}), call("c3", "never", {}))])
        async with await Agent.create(model, tools=[first, last, never], extensions=[stops], config=SESSION) as agent:
            result = await agent.run("x")
            assert (result.outcome, result.reason, result.text) == (Outcome.COMPLETED, "stop", "That is all.")
            assert started == ["first"]
            effects = [m.effect for m in result.messages if isinstance(m, ToolMessage)]
            assert effects == ["happened", "none", "none"]
            rows = await agent.session("s").records()
            assert sum(isinstance(row.record, HandlerStarted) for row in rows) == 1

    asyncio.run(main())
