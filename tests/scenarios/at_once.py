"""Parallel calls, sessions side by side, steering, leaving and cancelling, and the bounds of it all."""

from __future__ import annotations

import asyncio
from typing import Any

from interlock import Fatal, Outcome

from .checks import (
    answered,
    effect,
    ended,
    largest_request,
    logged,
    logged_among,
    never_sent,
    raised,
    ran,
    requests,
    result_of,
    roles,
    used,
    user_said,
)
from .play import Play, Scenario
from .rounds import Calls, Chunks, ForEver, Held, Says
from .stage import PASSES, logs

DONE = Says("All done.")
PROMPT = "Please charge the card."
NEXT = "And now?"
LONG = Calls(("c1", "long_job", {"x": 1}))


def _scenario(name: str, rounds: Any, *checks: Any, **rest: Any) -> Scenario:
    return Scenario(name=name, rounds=rounds, checks=checks, **rest)


async def leave_in_the_text(play: Play) -> None:
    await play.stage.gate("text shown").wait()
    play.task.cancel()
    request = play.server.requests[0]
    began = asyncio.get_running_loop().time()
    await request.disconnected.wait()
    assert request.disconnected_at is not None
    if request.disconnected_at - began > 0.25:
        play.wrong.append(f"the socket was closed after {request.disconnected_at - began:.3f} s")


async def leave_in_the_tool(play: Play) -> None:
    await play.stage.running.wait()
    play.task.cancel()
    began = asyncio.get_running_loop().time()
    await asyncio.wait({play.task})
    if asyncio.get_running_loop().time() - began > 1:
        play.wrong.append("the run did not stop within a second")


async def cancel_in_the_tool(play: Play) -> None:
    while len(play.stage.ran) < 2:  # a handler that has not started would be settled otherwise
        play.stage.running.clear()
        await play.stage.running.wait()
    await play.agent.session(play.session).cancel()


async def steer_in_the_tool(play: Play) -> None:
    await play.stage.running.wait()
    await play.agent.session(play.session).steer(play.words.text("Stop at ten."))
    play.stage.gate("job").set()


async def interrupt_in_the_tool(play: Play) -> None:
    await play.stage.running.wait()
    await play.agent.session(play.session).steer(play.words.text("Stop at ten."), interrupt="now")
    play.stage.gate("job").set()


async def steer_in_the_text(play: Play) -> None:
    while not play.server.requests:
        await asyncio.sleep(0.001)
    await play.agent.session(play.session).steer(play.words.text("Stop at ten."))
    play.stage.gate("go").set()


_PARALLEL = [
    _scenario(
        f"two {kind} calls run at the same time",
        (Calls(("c1", tool, {"who": "a"}), ("c2", tool, {"who": "b"})), DONE),
        ran(tool, {"who": "a"}, {"who": "b"}),
        result_of("c1", "a met"),
        result_of("c2", "b met"),
        answered("All done."),
        requests(2),
        tools=(tool,),
    )
    for kind, tool in (("asynchronous", "meet"), ("synchronous", "sync_meet"))
]

_FAILING = [
    _scenario(
        "one of three parallel calls raises",
        (Calls(("c1", "add", {"a": 2, "b": 3}), ("c2", "boom", {"x": 1}), ("c3", "ping", {})), DONE),
        result_of("c1", "sum=5"),
        result_of("c2", "BOOM-42"),
        result_of("c3", "pong"),
        ran("boom", {"x": 1}),
        answered("All done."),
        tools=("add", "boom", "ping"),
    ),
    _scenario(
        "a handler cancels itself",
        (Calls(("c1", "cancels_itself", {"x": 1}), ("c2", "ping", {})), DONE),
        ran("cancels_itself", {"x": 1}),
        result_of("c1", "unknown"),
        result_of("c2", "pong"),
        answered("All done."),
        tools=("cancels_itself", "ping"),
    ),
    *(
        _scenario(
            f"a handler raises {kind.__name__}",
            (Calls(("c2", "long_job", {"x": 2}), ("c1", tool, {"x": 1})), Says("Second.")),
            ran(tool, {"x": 1}),
            raised(kind),
            logged_among("long_job left"),
            answered("Second.", turn=1),
            effect("c1", "unknown", turn=1),
            effect("c2", "unknown", turn=1),
            tools=(tool, "long_job"),
            layers=[PASSES],
            prompts=(PROMPT, NEXT),
        )
        for kind, tool in ((SystemExit, "exits"), (KeyboardInterrupt, "interrupts"), (Fatal, "fatal"))
    ),
    _scenario(
        "a handler declines in its own words",
        (Calls(("c1", "declines", {"x": 1})), DONE),
        ran("declines", {"x": 1}),
        result_of("c1", "give a smaller x", "nothing happened"),
        effect("c1", "none"),
        answered("All done."),
        tools=("declines",),
    ),
    _scenario(
        "a handler returns what no text can stand for",
        (Calls(("c1", "unspeakable", {"x": 1})), DONE),
        ran("unspeakable", {"x": 1}),
        result_of("c1", "lock", "Do not repeat it"),
        effect("c1", "happened"),
        answered("All done."),
        tools=("unspeakable",),
    ),
    _scenario(
        "a handler returns five megabytes",
        (Calls(("c1", "big", {"x": 1})), DONE),
        ran("big", {"x": 1}),
        result_of("c1", "zzz", "read_result"),
        largest_request(100_000),
        answered("All done."),
        tools=("big",),
    ),
]

_LEAVING = [
    _scenario(
        "the consumer leaves in the text",
        (Held("never", DONE, after="one two"), Says("Second.")),
        raised(asyncio.CancelledError),
        answered("Second.", turn=1),
        user_said(2, PROMPT, NEXT),
        requests(2),
        prompts=(PROMPT, NEXT),
        act=leave_in_the_text,
        plain=False,
    ),
    _scenario(
        "the task is cancelled in a tool",
        (LONG, Says("Second.")),
        raised(asyncio.CancelledError),
        logged_among("long_job left", "after guard"),
        answered("Second.", turn=1),
        effect("c1", "unknown", turn=1),
        roles(2, "uatu"),
        requests(2),
        tools=("long_job",),
        layers=[logs("guard")],
        prompts=(PROMPT, NEXT),
        act=leave_in_the_tool,
    ),
    _scenario(
        "the run is cancelled in a tool",
        (Calls(("c1", "long_job", {"x": 1}), ("c2", "long_job", {"x": 2})), Says("Second.")),
        ended(Outcome.CANCELLED, "cancelled", ""),
        logged_among("long_job left", "after guard"),
        answered("Second.", turn=1),
        effect("c2", "unknown", turn=1),
        tools=("long_job",),
        layers=[logs("guard"), PASSES],
        prompts=(PROMPT, NEXT),
        act=cancel_in_the_tool,
    ),
    _scenario(
        "the deadline passes in a tool",
        (LONG, Says("Second.")),
        ended(Outcome.LIMIT, "deadline", ""),
        logged_among("long_job left"),
        tools=("long_job",),
        limits={"deadline_s": 0.15},
        prompts=(PROMPT, NEXT),
    ),
]

_STEERING = [
    _scenario(
        "steering lands at the end of the batch",
        (Calls(("c1", "gated", {"x": 1}), ("c2", "ping", {})), DONE),
        result_of("c1", "job 1 done"),
        result_of("c2", "pong"),
        roles(2, "uattu"),
        user_said(2, PROMPT, "Stop at ten."),
        answered("All done."),
        tools=("gated", "ping"),
        act=steer_in_the_tool,
    ),
    _scenario(
        "steering during the last text is answered",
        (Held("go", Says("Nearly there.")), DONE),
        roles(2, "uau"),
        user_said(2, PROMPT, "Stop at ten."),
        answered("All done."),
        act=steer_in_the_text,
    ),
    _scenario(
        "an interruption lets what runs come to its end",
        (Calls(("c1", "gated", {"x": 1})), DONE),
        result_of("c1", "job 1 done"),
        roles(2, "uatu"),
        answered("All done."),
        tools=("gated",),
        act=interrupt_in_the_tool,
    ),
]

_STEERING += [
    _scenario(
        "an interruption supersedes what has not started",
        (Calls(("c1", "serial_gated", {"x": 1}), ("c2", "ping", {}), ("c3", "serial_gated", {"x": 3})), DONE),
        ran("gated", {"x": 1}),
        ran("ping"),
        result_of("c1", "job 1 done"),
        result_of("c2", "superseded", "nothing happened"),
        effect("c3", "none"),
        roles(2, "uatttu"),
        answered("All done."),
        tools=("serial_gated", "ping"),
        act=interrupt_in_the_tool,
    ),
    _scenario(
        "a serial call is a barrier",
        (Calls(("c1", "ping", {}), ("c2", "serial_gated", {"x": 2}), ("c3", "ping", {})), DONE),
        logged("run ping", "run gated", "run ping"),
        answered("All done."),
        tools=("serial_gated", "ping"),
        act=steer_in_the_tool,
    ),
]

_BESIDE = [
    _scenario(
        "two sessions of one agent at the same time",
        (Calls(("c1", "add", {"a": 1, "b": 1})), Says("Answer A")),
        answered("Answer A"),
        ran("add", {"a": 1, "b": 1}, {"a": 2, "b": 2}),
        result_of("c1", "sum=2"),
        user_said(2, "I am the first."),
        tools=("add",),
        prompts=("I am the first.",),
        beside=Scenario(
            name="beside",
            rounds=(Calls(("c1", "add", {"a": 2, "b": 2})), Says("Answer B")),
            prompts=("I am the second.",),
            checks=(answered("Answer B"), result_of("c1", "sum=4"), user_said(2, "I am the second.")),
        ),
    ),
]

_BOUNDS = [
    _scenario(
        "nothing but calls",
        (ForEver(Calls(("k{n}", "ping", {}))),),
        requests(25),
        ran("ping", *[{}] * 25),
        ended(Outcome.LIMIT, "requests", ""),
        tools=("ping",),
    ),
    _scenario(
        "more calls than a run may make",
        (Calls(*((f"c{n}", "ping", {}) for n in range(8))),),
        ran("ping", *[{}] * 3),
        ended(Outcome.LIMIT, "tool_calls", ""),
        effect("c7", "none"),
        tools=("ping",),
        limits={"tool_calls": 3},
    ),
    _scenario(
        "more tokens than a run may use",
        (Calls(("c1", "ping", {}), usage=(90, 20)),),
        ended(Outcome.LIMIT, "tokens", ""),
        requests(1),
        tools=("ping",),
        limits={"tokens": 100},
    ),
    _scenario(
        "usage is summed over the requests of a run",
        (Calls(("c1", "ping", {}), usage=(10, 5)), Says("All done.", usage=(20, 7))),
        answered("All done."),
        used(30, 12),
        tools=("ping",),
    ),
    _scenario(
        "usage that the provider does not tell is unknown, not nothing",
        (Calls(("c1", "ping", {}), usage=None), Says("All done.", usage=None)),
        answered("All done."),
        used(None, None),
        tools=("ping",),
    ),
    _scenario(
        "usage that comes in every chunk counts once",
        (Chunks(({"t": "Well."}, {"u": (9, 1)}, {"u": (9, 2)}, {"f": "stop"}, {"u": (9, 3)})),),
        answered("Well."),
        used(9, 3),
        never_sent("Well."),
    ),
]

SCENARIOS = [*_PARALLEL, *_FAILING, *_LEAVING, *_STEERING, *_BESIDE, *_BOUNDS]
