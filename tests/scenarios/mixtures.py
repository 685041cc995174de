"""What nobody writes down: several behaviours and several faults in one run."""

from __future__ import annotations

import asyncio
from typing import Any

from interlock import Outcome

from .at_once import DONE, NEXT, PROMPT
from .checks import answered, effect, ended, logged_among, ran, requests, result_of, roles, used, user_said
from .play import Play, Scenario
from .rounds import Calls, Chunks, Explodes, ForEver, Held, Says, Status, Thinks, Torn, Trails
from .stage import PASSES, RACES, TRACES, TWICE, answers, edits, logs, raises_after, sees_errors, swallows, vetoes, wraps

PLAN = Says("Let me charge the card now.", finish="tool_calls")
NOTHING = Chunks(({"t": ""}, {"f": "stop"}))
CHARGE = Calls(("c1", "charge", {"amount": 5}))
CHARGED = ran("charge", {"amount": 5})


def _scenario(name: str, rounds: Any, *checks: Any, **rest: Any) -> Scenario:
    count = [] if isinstance(rounds[-1], ForEver) else [requests(len(rounds))]
    return Scenario(name=name, rounds=rounds, checks=(*checks, *count), **rest)


async def steer_while_it_waits(play: Play) -> None:
    """Between two attempts of the first model step."""
    while len(play.server.requests) < 1 or not play.server.requests[0].finished.is_set():
        await asyncio.sleep(0.001)
    await play.agent.session(play.session).steer(play.words.text("Stop at ten."))


async def steer_when_asked_anew(play: Play) -> None:
    """During the re-prompt that follows a plan."""
    while len(play.server.requests) < 2:
        await asyncio.sleep(0.001)
    await play.agent.session(play.session).steer(play.words.text("Stop at ten."))
    play.stage.gate("go").set()


async def cancel_while_it_waits(play: Play) -> None:
    while play.agent.live(play.session).state.failures < 1:  # that the server has answered does not say that anybody has read it
        await asyncio.sleep(0.001)
    await play.agent.session(play.session).cancel()


async def cancel_then_leave(play: Play) -> None:
    await play.stage.running.wait()
    await play.agent.session(play.session).cancel()
    play.task.cancel()


_BATCHES = [
    _scenario(
        "a batch of every kind of call",
        (
            Calls(
                ("c1", "charge", {"amount": 5}),
                ("c2", "boom", {"x": 1}),
                ("c3", "no_such_tool", {}),
                ("c4", "add", {"a": 1, "b": 2}),
                ("c5", "add", '{"a": 1,'),
                ("c6", "ping", "null"),
                ("c7", "declines", {"x": 9}),
                ("c8", "cancels_itself", {"x": 1}),
                ("c9", "unspeakable", {"x": 1}),
                ("c10", "charge", {"amount": 6}),
            ),
            DONE,
        ),
        ran("charge", {"amount": 5}, {"amount": 6}),
        result_of("c1", "charged 5"),
        result_of("c2", "BOOM-42"),
        result_of("c3", "there is no tool"),
        result_of("c4", text="VETO-77 denied by policy"),
        result_of("c5", "not valid JSON"),
        result_of("c6", "TRANSFORMED<pong>"),
        result_of("c7", "smaller"),
        result_of("c8", "unknown"),
        result_of("c9", "lock"),
        *(effect(f"c{n}", want) for n, want in ((1, "happened"), (2, "unknown"), (3, "none"), (4, "none"), (5, "none"), (7, "none"))),
        answered("All done."),
        tools=("charge", "boom", "add", "ping", "declines", "cancels_itself", "unspeakable"),
        layers=[logs("outer"), vetoes(only="add"), wraps(only="ping"), sees_errors(only="boom"), PASSES],
    ),
    _scenario(
        "eight layers of mixed behaviour around one call",
        (CHARGE, DONE),
        ran("charge", {"amount": 8}),
        result_of("c1", "TRANSFORMED<TRANSFORMED<charged 8>>"),
        effect("c1", "happened"),
        logged_among("second call refused", "1 refused"),
        answered("All done."),
        layers=[logs("a"), wraps(), TWICE, edits({"amount": 7}), RACES, wraps(), edits({"amount": 8}), logs("z")],
    ),
    _scenario(
        "a layer raises after it delegated, another answers",
        (CHARGE, DONE),
        CHARGED,
        result_of("c1", text="FALLBACK-55"),
        effect("c1", "happened"),
        answered("All done."),
        layers=[PASSES, swallows(), raises_after(), RACES],
    ),
    _scenario(
        "a layer raises after an inner one answered",
        (CHARGE, DONE),
        ran("charge"),
        result_of("c1", "LAYER-BUG-99"),
        effect("c1", "none"),
        layers=[raises_after(), answers()],
    ),
    _scenario(
        "a veto inside, edits outside, and the same call again",
        (CHARGE, Calls(("c2", "charge", {"amount": 5})), DONE),
        ran("charge"),
        effect("c1", "none"),
        effect("c2", "none"),
        answered("All done."),
        layers=[edits({"amount": 1}), TWICE, vetoes()],
    ),
    _scenario(
        "forty calls at once, a third of which are vetoed",
        (Calls(*((f"c{n}", "add" if n % 3 else "ping", {"a": n, "b": 1} if n % 3 else {}) for n in range(40))), DONE),
        ran("ping"),
        ran("add", *({"a": n, "b": 1} for n in range(40) if n % 3)),
        result_of("c38", "sum=39"),
        effect("c39", "none"),
        answered("All done."),
        tools=("add", "ping"),
        layers=[PASSES, vetoes(only="ping")],
    ),
]

_FAULTS = [
    _scenario(
        "every fault once in one run",
        (
            Status(500),
            PLAN,
            Torn(CHARGE),
            NOTHING,
            Thinks("hm"),
            CHARGE,
            Explodes(502, "All"),
            Calls(("c2", "charge", "[")),
            Trails(Says("All d")),
            Says("All ", finish="length"),
            Says("done."),
        ),
        CHARGED,
        roles(11, "uatatau"),
        answered("All ", "done."),
    ),
    _scenario(
        "two faults of two kinds before the first answer",
        (Torn(Says("The full"), 0), Status(503), PLAN, Explodes("overloaded"), DONE),
        answered("All done."),
    ),
    _scenario(
        "a plan, a cut, a plan: the streak goes on over the cut",
        (PLAN, Torn(Says("Let me")), PLAN, PLAN, PLAN),
        ran("charge"),
        ended(Outcome.INCOMPLETE, "dropped_tool_call", "Let me charge the card now."),
    ),
    _scenario(
        "a cut in a continuation",
        (Says("One two thr", finish="length"), Torn(Says("ee and more")), Says("ee.")),
        answered("One two thr", "ee."),
    ),
    _scenario(
        "a continuation that turns into a call",
        (Says("First I charge. ", finish="length"), CHARGE, DONE),
        CHARGED,
        answered("All done."),
    ),
    _scenario(
        "faults in the second turn, of three kinds",
        (CHARGE, PLAN, Status(500), NOTHING, Torn(Says("All")), DONE),
        CHARGED,
        answered("All done."),
        roles(2, "uat"),
    ),
    _scenario(
        "faults in the second run",
        (CHARGE, DONE, PLAN, Torn(Says("Sec")), Says("Second.")),
        CHARGED,
        answered("Second.", turn=1),
        user_said(3, PROMPT, NEXT),
        prompts=(PROMPT, NEXT),
    ),
    _scenario(
        "a malformed batch, a plan, a malformed batch, and the call",
        (Calls(("c1", "charge", "{")), PLAN, Calls(("c2", "nobody", {})), Calls(("c3", "charge", {"amount": 5})), DONE),
        CHARGED,
        effect("c1", "none"),
        answered("All done."),
    ),
    _scenario(
        "the request limit ends a storm of faults",
        (PLAN, Status(500), NOTHING, PLAN, Torn(Says("x"))),
        ran("charge"),
        ended(Outcome.LIMIT, "requests", ""),
        limits={"requests": 5},
    ),
    _scenario(
        "a filter after a call that ran",
        (CHARGE, Calls(("c2", "charge", {"amount": 6}), before="And", finish="content_filter"), Says("Second.")),
        CHARGED,
        ended(Outcome.REFUSED, "content_filter", "And"),
        answered("Second.", turn=1),
        roles(3, "uatu"),
        prompts=(PROMPT, NEXT),
    ),
    _scenario(
        "a layer on every boundary and a fault on every step",
        (Status(500), CHARGE, Torn(Says("A")), PLAN, DONE),
        CHARGED,
        result_of("c1", "TRANSFORMED<charged 5>"),
        answered("All done."),
        used(50, 19),
        layers=[TRACES, wraps(), TWICE],
    ),
]

_STEERED = [
    _scenario(
        "steering while an attempt waits for the next",
        (Status(500, {"retry-after-ms": "60"}), Says("Nearly."), DONE),
        answered("All done."),
        roles(3, "uau"),
        user_said(3, PROMPT, "Stop at ten."),
        act=steer_while_it_waits,
    ),
    _scenario(
        "steering in the middle of a streak",
        (PLAN, Held("go", CHARGE), DONE),
        CHARGED,
        roles(3, "uatu"),
        user_said(3, PROMPT, "Stop at ten."),
        answered("All done."),
        act=steer_when_asked_anew,
    ),
    _scenario(
        "a cancel while an attempt waits for the next",
        (Status(500, {"retry-after-ms": "5000"}), Says("Second.")),
        ended(Outcome.CANCELLED, "cancelled", ""),
        answered("Second.", turn=1),
        roles(2, "uu"),
        prompts=(PROMPT, NEXT),
        act=cancel_while_it_waits,
    ),
    _scenario(
        "a cancel, and then the caller leaves as well",
        (Calls(("c1", "long_job", {"x": 1}), ("c2", "ping", {})), Says("Second.")),
        logged_among("long_job left"),
        answered("Second.", turn=1),
        effect("c1", "unknown", turn=1),
        tools=("long_job", "ping"),
        prompts=(PROMPT, NEXT),
        act=cancel_then_leave,
    ),
]

SCENARIOS = [*_BATCHES, *_FAULTS, *_STEERED]
