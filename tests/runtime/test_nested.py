"""Calls that calls make: the same onion, the same door."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from helpers import Played, agent_playing, limits, no_noise, play, records_of
from interlock import Fatal, Outcome, RunContext, UsageError, current_tool_call_id, extension, tool
from interlock.events import ToolFinished, ToolStarted
from interlock.extensions.base import CallNext, Stop, Suspended, ToolInvocation
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolStepEnded, ToolStepStarted
from interlock.testing import call, calls, text

ONE = [calls(call("c1", "outer")), text("done")]


def play_outer(*tools: Any, layers: Any = (), **options: Any) -> Played:
    return asyncio.run(play(ONE, tools=tools, extensions=layers, **options))


def ended(played: Played) -> dict[str, ToolStepEnded]:
    return {record.message.name: record for record in played.records if isinstance(record, ToolStepEnded)}


def test_a_nested_call_goes_through_every_layer_and_is_journaled_with_its_parent_in_its_key() -> None:
    seen: list[tuple[str, str, Any]] = []

    @extension
    async def look(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        seen.append((call.name, call.id, current_tool_call_id()))
        return await call_next()

    async def inner(n: int) -> dict[str, int]:
        seen.append(("in inner", "", current_tool_call_id()))
        return {"n": n}

    async def outer(context: RunContext) -> Any:
        first = await context.call_tool("inner", {"n": 1})
        assert current_tool_call_id() == "c1"
        second = await context.call_tool("inner", {"n": 2})
        return [first, second]

    played = play_outer(inner, outer, layers=[look])
    started = [record for record in played.records if isinstance(record, ToolStepStarted)]
    top = started[0].key
    assert [(record.key, record.parent) for record in started] == [(top, None), (f"{top}/0", top), (f"{top}/1", top)]
    assert len([record for record in played.records if isinstance(record, HandlerStarted)]) == 3
    assert seen == [
        ("outer", "c1", "c1"),
        ("inner", "c1.0", "c1.0"),
        ("in inner", "", "c1.0"),
        ("inner", "c1.1", "c1.1"),
        ("in inner", "", "c1.1"),
    ]
    assert [m.content for m in played.result.messages if isinstance(m, ToolMessage)] == ['[{"n":1},{"n":2}]']
    assert [event.call.name for event in played.of(ToolStarted)] == ["outer", "inner", "inner"]
    assert [event.call.name for event in played.of(ToolFinished)] == ["inner", "inner", "outer"]
    assert played.result.usage.tool_calls == 3


def test_the_results_of_nested_calls_are_not_part_of_the_conversation() -> None:
    async def inner() -> str:
        return "hidden"

    async def outer(context: RunContext) -> str:
        return f"said {await context.call_tool('inner')}"

    played = play_outer(inner, outer)
    assert [m["role"] for m in played.bodies[1]["messages"]] == ["user", "assistant", "tool"]


def test_a_veto_holds_for_a_nested_call_and_the_parent_sees_the_same_exception_object() -> None:
    denied, ran, seen = PermissionError("not inner"), [], []

    @extension(name="guard")
    async def guard(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.name == "inner":
            raise denied
        return await call_next()

    async def inner() -> None:
        ran.append(1)

    async def outer(context: RunContext) -> str:
        try:
            await context.call_tool("inner")
        except PermissionError as error:
            seen.append(error)
        return "went on"

    played = play_outer(inner, outer, layers=[guard])
    assert ran == []
    assert seen[0] is denied
    assert (ended(played)["inner"].code, ended(played)["inner"].effect) == ("vetoed", "none")
    assert (ended(played)["outer"].code, ended(played)["outer"].effect) == ("ok", "happened")


def test_a_layer_may_call_another_tool_in_place_of_the_one_it_wraps() -> None:
    @extension(name="swap")
    async def swap(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.name == "outer":
            return await context.call_tool("safe", {})
        return await call_next()

    ran: list[str] = []

    async def outer() -> None:
        ran.append("outer")

    async def safe() -> str:
        ran.append("safe")
        return "safely"

    played = play_outer(outer, safe, layers=[swap])
    assert ran == ["safe"]
    assert (ended(played)["outer"].decided_by, ended(played)["outer"].effect) == ("swap", "none")


def test_arguments_of_a_nested_call_are_validated_as_strictly() -> None:
    async def inner(n: int) -> int:
        return n

    async def outer(context: RunContext) -> str:
        problems = []
        for given in ({"n": True}, {"m": 1}, {}):
            with pytest.raises(Exception, match=r"n: |m: ") as caught:
                await context.call_tool("inner", given)
            problems.append(type(caught.value).__name__)
        with pytest.raises(UsageError, match="no tool named"):
            await context.call_tool("nothing")
        with pytest.raises(UsageError, match="JSON"):
            await context.call_tool("inner", {"n": object()})
        return ",".join(problems)

    played = play_outer(inner, outer)
    assert ended(played)["outer"].message.content == "InvalidArguments,InvalidArguments,InvalidArguments"


def test_the_time_limit_of_an_outer_call_is_not_the_inner_calls_and_the_inner_one_is_recorded_as_unknown() -> None:
    """A flag that says "do not wait for the thread" must not leak: the inner call has no limit of its own."""
    release = threading.Event()

    def inner() -> str:
        release.wait(5)
        return "inner done"

    @tool(timeout_s=0.05)
    async def outer(context: RunContext) -> str:
        """Call the inner one."""
        return await context.call_tool("inner")

    async def main() -> None:
        async with no_noise(), agent_playing(ONE, tools=[inner, outer]) as agent:
            assert (await agent.run("go")).text == "done"
            by_name = {record.message.name: record for record in await records_of(agent, ToolStepEnded)}
            assert (by_name["inner"].effect, by_name["outer"].effect) == ("unknown", "unknown")
            assert by_name["outer"].code == "timeout"
            assert by_name["inner"].code != "timeout"
            release.set()

    asyncio.run(main())


def test_a_fast_outer_limit_does_not_cut_a_nested_tool_that_has_a_longer_one_short_of_the_outers_end() -> None:
    @tool(timeout_s=0.02)
    async def inner() -> None:
        """Hang."""
        await asyncio.Event().wait()

    @tool(timeout_s=10)
    async def outer(context: RunContext) -> str:
        """Try, and go on."""
        try:
            await context.call_tool("inner")
        except Exception as error:
            return type(error).__name__
        return "no"

    played = play_outer(inner, outer)
    assert ended(played)["outer"].message.content == "ToolTimeout"
    assert ended(played)["outer"].code == "ok"


def test_nested_calls_in_parallel_each_have_a_key_of_their_own() -> None:
    async def inner(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def outer(context: RunContext) -> list[Any]:
        return list(await asyncio.gather(*(context.call_tool("inner", {"n": n}) for n in range(5))))

    played = play_outer(inner, outer)
    assert ended(played)["outer"].message.content == "[0,1,2,3,4]"
    keys = [record.key for record in played.records if isinstance(record, ToolStepStarted)]
    assert len(set(keys)) == 6


def test_a_nested_call_that_its_parent_leaves_behind_does_not_outlive_it() -> None:
    order: list[str] = []

    async def inner() -> None:
        order.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            order.append("stopped")

    left: list[Any] = []

    async def outer(context: RunContext) -> str:
        left.append(asyncio.create_task(context.call_tool("inner")))  # type: ignore[arg-type]
        while not order:
            await asyncio.sleep(0)
        return "early"

    async def main() -> None:
        async with agent_playing(ONE, tools=[inner, outer]) as agent:
            result = await agent.run("go")
            assert result.text == "done"
            assert order == ["began", "stopped"]
            by_name = {record.message.name: record for record in await records_of(agent, ToolStepEnded)}
            assert (by_name["inner"].effect, by_name["outer"].effect) == ("unknown", "happened")

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_nested_call_cannot_wait_for_a_person() -> None:
    @extension(name="ask")
    async def ask(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return Suspended("may I?") if call.name == "inner" else await call_next()

    ran: list[int] = []

    async def inner() -> None:
        ran.append(1)

    async def outer(context: RunContext) -> str:
        with pytest.raises(UsageError, match="cannot wait for a person"):
            await context.call_tool("inner")
        return "refused"

    played = play_outer(inner, outer, layers=[ask])
    assert (ran, played.result.outcome, ended(played)["inner"].effect) == ([], Outcome.COMPLETED, "none")


def test_a_stop_in_a_nested_call_ends_the_run_once_its_parent_has_ended() -> None:
    @extension(name="enough")
    async def enough(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        result = await call_next()
        return Stop("the answer") if call.name == "inner" else result

    async def inner() -> str:
        return "found"

    async def outer(context: RunContext) -> str:
        await context.call_tool("inner")
        return "outer's own"

    steps = [calls(call("c1", "outer"))]
    played = asyncio.run(play(steps, tools=[inner, outer], extensions=[enough]))
    assert (played.result.outcome, played.result.text) == (Outcome.COMPLETED, "the answer")
    assert len(played.bodies) == 1


def test_a_fatal_error_in_a_nested_call_reaches_the_caller_even_if_the_parent_lets_it_through() -> None:
    fatal = Fatal("stop")

    async def inner() -> None:
        raise fatal

    async def outer(context: RunContext) -> Any:
        return await context.call_tool("inner")

    async def main() -> None:
        async with agent_playing([calls(call("c1", "outer"))], tools=[inner, outer], bounds=limits()) as agent:
            with pytest.raises(Fatal) as caught:
                await agent.run("go")
            assert caught.value is fatal
            assert {record.effect for record in await records_of(agent, ToolStepEnded)} == {"unknown"}

    asyncio.run(main())
