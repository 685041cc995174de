"""The door: how a tool runs, what it is given, and what may come out of it."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import threading
from typing import Any

import pydantic
import pytest

from helpers import Played, agent_playing, limits, no_noise, play, records_of
from interlock import AgentRunConfig, Outcome, RunContext, ToolFailure, tool
from interlock.events import ToolFinished, ToolProgress, ToolStarted
from interlock.messages import ImagePart, TextPart, ToolMessage
from interlock.records import HandlerStarted, ToolLateResult, ToolStepEnded
from interlock.testing import call, calls, text


def contents(played: Played) -> list[Any]:
    return [m.content for m in played.result.messages if isinstance(m, ToolMessage)]


def batch(name: str, *arguments: dict[str, Any]) -> list[Any]:
    return [calls(*(call(f"c{n}", name, given) for n, given in enumerate(arguments))), text("done")]


# ---- order ---------------------------------------------------------------------------------------------


def test_parallel_calls_overlap() -> None:
    meet = asyncio.Barrier(3)

    async def act(n: int) -> int:
        await asyncio.wait_for(meet.wait(), 5)
        return n

    assert contents(asyncio.run(play(batch("act", {"n": 0}, {"n": 1}, {"n": 2}), tools=[act]))) == ["0", "1", "2"]


def test_synchronous_handlers_overlap_too() -> None:
    meet = threading.Barrier(3)

    def act(n: int) -> int:
        meet.wait(5)
        return n

    assert contents(asyncio.run(play(batch("act", {"n": 0}, {"n": 1}, {"n": 2}), tools=[act]))) == ["0", "1", "2"]


def test_results_are_in_the_order_of_the_calls_although_events_come_in_the_order_of_completion() -> None:
    async def main() -> None:
        second_done = asyncio.Event()

        async def act(name: str) -> str:
            if name == "slow":
                await second_done.wait()
            else:
                second_done.set()
            return name

        played = await play(batch("act", {"name": "slow"}, {"name": "fast"}), tools=[act])
        assert [event.message.content for event in played.of(ToolFinished)] == ["fast", "slow"]
        assert contents(played) == ["slow", "fast"]
        assert [m["tool_call_id"] for m in played.bodies[1]["messages"] if m["role"] == "tool"] == ["c0", "c1"]

    asyncio.run(main())


def test_a_serial_call_is_a_barrier_in_the_order_of_the_calls() -> None:
    log: list[str] = []
    running: set[str] = set()

    async def work(name: str) -> None:
        log.append(f"{name} begins beside {sorted(running)}")
        running.add(name)
        for _ in range(3):
            await asyncio.sleep(0)
        running.discard(name)
        log.append(f"{name} ends")

    @tool
    async def free(name: str) -> None:
        """Run beside others."""
        await work(name)

    @tool(parallel=False)
    async def alone(name: str) -> None:
        """Run alone."""
        await work(name)

    made = [("free", "a"), ("free", "b"), ("alone", "C"), ("alone", "D"), ("free", "e"), ("free", "f")]
    steps = [calls(*(call(name, kind, {"name": name}) for kind, name in made)), text("done")]
    asyncio.run(play(steps, tools=[free, alone]))
    begins = {line[0]: line.split("beside ")[1] for line in log if "begins" in line}
    assert begins["C"] == begins["D"] == "[]"
    assert begins["b"] == "['a']"
    assert begins["f"] == "['e']"
    order = [line[0] for line in log if "begins" in line]
    assert order == ["a", "b", "C", "D", "e", "f"]


# ---- time ---------------------------------------------------------------------------------------------


def test_an_asynchronous_handler_is_cancelled_when_its_time_is_up() -> None:
    stopped: list[str] = []

    @tool(timeout_s=0.02)
    async def act() -> None:
        """Hang."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("finally")

    played = asyncio.run(play(batch("act", {}), tools=[act]))
    assert stopped == ["finally"]
    assert str(contents(played)[0]).startswith("Tool error (act): timed out after 0.02 s\n")


def test_a_handler_that_ignores_its_cancellation_is_given_up_and_what_it_says_later_is_recorded_once() -> None:
    async def main() -> None:
        gate, ended = asyncio.Event(), asyncio.Event()

        @tool(timeout_s=0.02)
        async def act() -> str:
            """Never listen."""
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    pass
            ended.set()
            return "at last"

        async with no_noise(), agent_playing(batch("act", {}), tools=[act], bounds=limits(drain_s=0.02)) as agent:
            assert (await agent.run("go")).text == "done"
            gate.set()
            await ended.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            late = await records_of(agent, ToolLateResult)
            assert [(record.failed, record.content) for record in late] == [(False, "at last")]

    asyncio.run(main())


def test_a_handler_that_is_quick_is_not_bothered_by_its_time_limit() -> None:
    @tool(timeout_s=30)
    async def act() -> str:
        """Act."""
        return "quick"

    @tool(timeout_s=30)
    def threaded() -> str:
        """Act."""
        return "quick too"

    steps = [calls(call("a", "act"), call("b", "threaded")), text("done")]
    assert contents(asyncio.run(play(steps, tools=[act, threaded]))) == ["quick", "quick too"]


# ---- what a handler is given -------------------------------------------------------------------------


def test_a_context_parameter_is_filled_in_and_not_shown_to_the_model() -> None:
    got: list[Any] = []

    async def act(n: int, context: RunContext) -> str:
        got.append((n, context.deps, context.session_id, context.epoch))
        return context.idempotency_key()

    def threaded(context: RunContext, n: int = 7) -> str:
        got.append((n, context.deps, context.session_id, context.epoch))
        return context.idempotency_key()

    steps = [calls(call("a", "act", {"n": 1}), call("b", "threaded")), text("done")]
    played = asyncio.run(play(steps, tools=[act, threaded], config=AgentRunConfig(deps="the deps")))
    assert sorted(got) == [(1, "the deps", "s", 1), (7, "the deps", "s", 1)]
    for spec in played.bodies[0]["tools"]:
        assert "context" not in spec["function"]["parameters"]["properties"]
    keys = contents(played)
    assert len(set(keys)) == 2
    assert all(len(str(key)) == 32 for key in keys)


def test_a_handler_cannot_note_for_an_extension_and_a_context_is_no_use_after_its_call() -> None:
    from interlock import UsageError

    kept: list[RunContext] = []

    async def act(context: RunContext) -> str:
        kept.append(context)
        with pytest.raises(UsageError):
            context.note({"a": 1})
        return "acted"

    async def main() -> None:
        async with agent_playing(batch("act", {}), tools=[act]) as agent:
            assert (await agent.run("go")).text == "done"
            for use in (kept[0].idempotency_key, lambda: kept[0].emit(1)):
                with pytest.raises(UsageError):
                    use()
            with pytest.raises(UsageError):
                await kept[0].call_tool("act")

    asyncio.run(main())


def test_progress_is_shown_from_the_loop_and_from_a_thread_in_order_and_before_the_result() -> None:
    async def act(context: RunContext) -> None:
        for n in range(3):
            context.emit({"step": n})

    def threaded(context: RunContext) -> None:
        for n in range(3):
            context.emit(n)

    for handler, expected in ((act, [{"step": 0}, {"step": 1}, {"step": 2}]), (threaded, [0, 1, 2])):
        played = asyncio.run(play(batch(handler.__name__, {}), tools=[handler]))
        kinds = [type(event) for event in played.events if isinstance(event, ToolStarted | ToolProgress | ToolFinished)]
        assert [event.data for event in played.of(ToolProgress)] == expected
        assert {event.call_id for event in played.of(ToolProgress)} == {"c0"}
        assert kinds[0] is ToolStarted
        assert kinds[-1] is ToolFinished


def test_progress_of_a_run_without_a_consumer_is_dropped() -> None:
    async def act(context: RunContext) -> str:
        context.emit("nobody listens")
        return "acted"

    async def main() -> None:
        async with agent_playing(batch("act", {}), tools=[act]) as agent:
            assert (await agent.run("go")).text == "done"

    asyncio.run(main())


# ---- strict at the end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [{"n": True}, {"n": 5.5}, {"n": 1, "extra": 2}, {}, {"n": None}, {"n": "five"}],
    ids=str,
)
def test_the_final_validation_is_strict(arguments: dict[str, Any]) -> None:
    ran: list[Any] = []

    async def act(n: int) -> None:
        ran.append(n)

    played = asyncio.run(play(batch("act", arguments), tools=[act]))
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ran, ended.code) == ([], "invalid_arguments")
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]


def test_a_date_may_come_as_a_string_and_defaults_are_filled_in() -> None:
    got: list[Any] = []

    async def act(day: datetime.date, n: int = 3) -> None:
        got.append((day, n))

    asyncio.run(play(batch("act", {"day": "2026-02-03"}), tools=[act]))
    assert got == [(datetime.date(2026, 2, 3), 3)]


# ---- what may come out -------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    when: datetime.date


class Model(pydantic.BaseModel):
    name: str
    points: list[int]


VALUES: list[tuple[Any, Any]] = [
    ("text", "text"),
    ("", ""),
    (None, "null"),
    (True, "true"),
    (0, "0"),
    (1.5, "1.5"),
    (float("nan"), "null"),
    ([1, "a", None], '[1,"a",null]'),
    ((1, 2), "[1,2]"),
    ({"a": {"b": [1]}}, '{"a":{"b":[1]}}'),
    ({3, 1, 2}, "[1,2,3]"),
    (b"bytes", "bytes"),
    (Colour.RED, "red"),
    (Point(1, datetime.date(2026, 1, 2)), '{"x":1,"when":"2026-01-02"}'),
    (Model(name="m", points=[1]), '{"name":"m","points":[1]}'),
    ([Model(name="m", points=[])], '[{"name":"m","points":[]}]'),
    (TextPart("part"), (TextPart("part"),)),
    (["see", ImagePart(url="https://example.com/a.png")], (TextPart("see"), ImagePart(url="https://example.com/a.png"))),
    ("W\0s\0l", "W\0s\0l"),
    ("half \ud835 pair", "half \N{REPLACEMENT CHARACTER} pair"),
]


@pytest.mark.parametrize(("value", "content"), VALUES, ids=lambda value: type(value).__name__)
def test_any_result_that_has_a_text_form_is_kept(value: Any, content: Any) -> None:
    async def act() -> Any:
        return value

    played = asyncio.run(play(batch("act", {}), tools=[act]))
    assert contents(played) == [content]
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ended.code, ended.effect) == ("ok", "happened")
    assert played.result.outcome is Outcome.COMPLETED


def test_a_tool_may_say_in_its_own_words_what_to_fix() -> None:
    async def act(path: str) -> None:
        raise ToolFailure(f"{path} does not exist; list the folder first", effect="none")

    played = asyncio.run(play(batch("act", {"path": "a"}), tools=[act]))
    assert contents(played) == ["Tool error (act): a does not exist; list the folder first\nIt had no effect; nothing happened."]


def test_the_same_function_can_be_called_in_ordinary_code() -> None:
    @tool(name="renamed", description="Does it.")
    async def act(n: int) -> int:
        return n + 1

    assert asyncio.run(act(1)) == 2
    played = asyncio.run(play(batch("renamed", {"n": 1}), tools=[act]))
    assert contents(played) == ["2"]
    assert played.bodies[0]["tools"][0]["function"]["description"] == "Does it."
