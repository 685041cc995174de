"""G03: what a handler or a layer raises after delegation reaches the enclosing layers unchanged, and nothing is replayed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import Played, agent_playing, play, records_of
from interlock import Fatal, Outcome, ToolFailure, extension
from interlock.extensions.base import AgentExtension, CallNext, RunContext, ToolInvocation
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.testing import call, calls, text


class Broken(Exception):
    """An exception with a shape of its own, which a copy would not have."""

    def __init__(self, code: int, *, detail: object) -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


class Watch(AgentExtension):
    """Passes through and keeps what came up, from the first layer in to the last one out."""

    def __init__(self, priority: int, seen: list[BaseException]) -> None:
        self.priority = priority
        self.seen = seen

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            self.seen.append(error)
            raise


def ended(played: Played) -> ToolStepEnded:
    (record,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    return record


def act_once(act: Any, *layers: Any) -> Played:
    return asyncio.run(play([calls(call("c1", "act")), text("done")], tools=[act], extensions=layers))


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        Broken(7, detail=object()),
        ToolFailure("say it so"),
        TimeoutError("of the handler's own"),
        asyncio.CancelledError("by the handler itself"),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        StopAsyncIteration("odd"),
        BaseExceptionGroup("worse", [asyncio.CancelledError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_exception_object_of_a_handler_is_the_one_that_every_layer_sees(error: BaseException, threaded: bool) -> None:
    ran: list[int] = []

    async def act() -> None:
        ran.append(1)
        raise error

    def act_in_a_thread() -> None:
        ran.append(1)
        raise error

    seen: list[BaseException] = []
    steps = [calls(call("c1", "act_in_a_thread" if threaded else "act")), text("done")]
    layers = [Watch(priority, seen) for priority in (10, 20, 30)]
    played = asyncio.run(play(steps, tools=[act, act_in_a_thread], extensions=layers))
    assert len(seen) == 3
    assert all(one is error for one in seen)
    assert ran == [1]
    assert (ended(played).code, ended(played).decided_by, ended(played).effect) == ("failed", "handler", "unknown")
    assert played.result.outcome is Outcome.COMPLETED


def test_the_traceback_and_the_cause_of_a_handlers_exception_are_its_own() -> None:
    cause = OSError("disk")

    async def act() -> None:
        raise Broken(1, detail=None) from cause

    seen: list[BaseException] = []
    act_once(act, Watch(10, seen), Watch(20, seen))
    assert seen[0].__cause__ is cause
    frames = []
    trace = seen[0].__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "act"


def test_the_exception_of_a_layer_after_delegation_reaches_the_layers_around_it_and_not_those_within() -> None:
    error, ran = Broken(2, detail=None), []
    outer: list[BaseException] = []
    inner: list[BaseException] = []

    async def act() -> str:
        ran.append(1)
        return "acted"

    @extension(priority=50, name="middle")
    async def middle(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        await call_next()
        raise error

    record = ended(act_once(act, Watch(10, outer), middle, Watch(90, inner)))
    assert (ran, inner) == ([1], [])
    assert outer[0] is error
    assert (record.code, record.decided_by, record.effect) == ("layer_error", "middle", "happened")


def test_a_layer_may_catch_a_handlers_exception_and_answer_instead() -> None:
    async def act() -> None:
        raise Broken(3, detail=None)

    @extension(name="fallback")
    async def fallback(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Broken as error:
            return {"fallback": error.code}

    played = act_once(act, fallback)
    record = ended(played)
    assert (record.message.content, record.message.failed, record.decided_by) == ('{"fallback":3}', False, "fallback")
    assert record.effect == "unknown"
    assert played.result.outcome is Outcome.COMPLETED


def test_a_layer_may_raise_another_exception_instead_and_that_one_is_seen_further_out() -> None:
    seen: list[BaseException] = []
    other = LookupError("nothing there")

    async def act() -> None:
        raise Broken(4, detail=None)

    @extension(priority=50, name="translate")
    async def translate(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Broken:
            raise other from None

    record = ended(act_once(act, Watch(10, seen), translate))
    assert seen == [other]
    assert seen[0] is other
    assert (record.code, record.decided_by, record.effect) == ("layer_error", "translate", "unknown")


def test_what_a_handler_returns_goes_out_through_the_layers_raw_as_the_same_object() -> None:
    class Row:
        """No JSON, no dataclass: only a layer can make something of it."""

    row, seen = Row(), []

    async def act() -> Row:
        return row

    @extension(priority=50)
    async def present(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        seen.append(await call_next())
        return "one row"

    @extension(priority=60)
    async def through(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        seen.append(await call_next())
        return seen[-1]

    assert ended(act_once(act, present, through)).message.content == "one row"
    assert seen == [row, row]


def test_a_refusal_by_the_final_validation_reaches_the_layers_as_one_object_too() -> None:
    seen: list[BaseException] = []

    async def act(n: int) -> int:
        return n

    steps = [calls(call("c1", "act", {"n": "many"})), text("done")]
    played = asyncio.run(play(steps, tools=[act], extensions=[Watch(10, seen), Watch(20, seen)]))
    assert len(seen) == 2
    assert seen[0] is seen[1]
    assert (ended(played).code, ended(played).decided_by) == ("invalid_arguments", "runtime")
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]


def test_a_fatal_error_passes_every_layer_unchanged_and_is_what_the_caller_gets() -> None:
    error, seen = Fatal("stop everything"), []

    async def act() -> None:
        raise error

    async def main() -> None:
        layers = [Watch(10, seen), Watch(20, seen)]
        async with agent_playing([calls(call("c1", "act"))], tools=[act], extensions=layers) as agent:
            with pytest.raises(Fatal) as caught:
                await agent.run("go")
            assert caught.value is error
            assert len(await records_of(agent, HandlerStarted)) == 1

    asyncio.run(main())
    assert seen == [error, error]


def test_the_model_boundary_passes_a_layers_exception_to_the_layers_around_it_and_to_the_caller_as_the_same_object() -> None:
    error, seen = Broken(5, detail=None), []

    class Outer(AgentExtension):
        priority = 10

        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            try:
                async for event in call_next(request):
                    yield event
            except BaseException as caught:
                seen.append(caught)
                raise

    class Inner(AgentExtension):
        priority = 20

        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async for _ in call_next(request):
                raise error
            yield None

    async def main() -> None:
        async with agent_playing([text("hello")], extensions=[Outer(), Inner()]) as agent:
            with pytest.raises(Broken) as caught:
                await agent.run("go")
            assert caught.value is error

    asyncio.run(main())
    assert seen == [error]
    assert seen[0] is error
