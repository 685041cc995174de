"""A handler starts at most once, whatever the layers do; a veto holds; a layer's word counts."""

from __future__ import annotations

from typing import Any

from interlock import Outcome

from .checks import (
    answered,
    effect,
    ended,
    logged,
    logged_among,
    not_in_result,
    ran,
    requests,
    result_of,
    roles,
    same_exception_everywhere,
    used,
)
from .play import Scenario
from .rounds import Calls, Says
from .stage import (
    DROPS,
    PASSES,
    RACES,
    RETRIES,
    TRACES,
    TWICE,
    answers,
    edits,
    logs,
    raises_after,
    replaces_errors,
    sees_errors,
    stops,
    swallows,
    vetoes,
    wraps,
)

DONE = Says("All done.")
CHARGE = Calls(("c1", "charge", {"amount": 5}))
BOOM = Calls(("c1", "boom", {"x": 1}))
SYNC_BOOM = Calls(("c1", "sync_boom", {"x": 1}))
CHARGED = (ran("charge", {"amount": 5}), answered("All done."))
NEVER_CHARGED = (ran("charge"), result_of("c1"), effect("c1", "none"), answered("All done."))


def _scenario(name: str, *checks: Any, rounds: Any = (CHARGE, DONE), **rest: Any) -> Scenario:
    return Scenario(name=name, rounds=rounds, checks=(*checks, requests(len(rounds))), **rest)


_RAISING = [
    _scenario(
        f"a handler raises under {depth} layers",
        ran("boom", {"x": 1}),
        result_of("c1", "BOOM-42", "unknown"),
        effect("c1", "unknown"),
        answered("All done."),
        *([same_exception_everywhere] if depth else []),
        rounds=(BOOM, DONE),
        tools=("boom",),
        layers=[sees_errors()] * min(depth, 1) + [PASSES] * (depth - 1),
    )
    for depth in (0, 1, 2, 4, 8)
]

_ONCE = [
    _scenario(
        "a handler in a thread raises under four layers",
        ran("sync_boom", {"x": 1}),
        result_of("c1", "BOOM-42"),
        answered("All done."),
        rounds=(SYNC_BOOM, DONE),
        tools=("sync_boom",),
        layers=[PASSES] * 4,
    ),
    _scenario(
        "each layer sees the same exception object",
        ran("boom", {"x": 1}),
        same_exception_everywhere,
        rounds=(BOOM, DONE),
        tools=("boom",),
        layers=[sees_errors(), PASSES, sees_errors(), sees_errors()],
    ),
    _scenario(
        "a layer raises after it delegated",
        *CHARGED,
        result_of("c1", "LAYER-BUG-99", "happened"),
        effect("c1", "happened"),
        not_in_result("c1", "vetoed"),
        layers=[raises_after()],
    ),
    _scenario(
        "the outermost of three raises after it delegated",
        *CHARGED,
        result_of("c1", "LAYER-BUG-99"),
        effect("c1", "happened"),
        layers=[raises_after(), PASSES, PASSES],
    ),
    _scenario(
        "a layer replaces the handler's exception",
        ran("boom", {"x": 1}),
        result_of("c1", "LAYER-BUG-98"),
        effect("c1", "unknown"),
        rounds=(BOOM, DONE),
        tools=("boom",),
        layers=[PASSES, replaces_errors()],
    ),
    _scenario(
        "a layer answers in place of the handler's exception",
        ran("boom", {"x": 1}),
        result_of("c1", text="FALLBACK-55"),
        not_in_result("c1", "BOOM-42"),
        answered("All done."),
        rounds=(BOOM, DONE),
        tools=("boom",),
        layers=[swallows()],
    ),
    _scenario(
        "a layer edits the arguments",
        ran("charge", {"amount": 7}),
        result_of("c1", "charged 7"),
        answered("All done."),
        layers=[PASSES, edits({"amount": 7})],
    ),
    _scenario("a layer transforms the result", *CHARGED, result_of("c1", "TRANSFORMED<charged 5>"), layers=[PASSES, wraps()]),
    _scenario(
        "three layers are an onion",
        logged("before a", "before b", "before c", "run ping", "after c", "after b", "after a"),
        answered("All done."),
        rounds=(Calls(("c1", "ping", {})), DONE),
        tools=("ping",),
        layers=[logs("a"), logs("b"), logs("c")],
    ),
    _scenario("a layer calls call_next twice", *CHARGED, logged("run charge", "second call refused"), layers=[TWICE]),
    _scenario("a layer races call_next", *CHARGED, logged_among("1 refused"), layers=[PASSES, RACES, PASSES]),
    _scenario("all of eight layers call call_next twice", *CHARGED, layers=[TWICE] * 8),
    _scenario(
        "a layer retries what failed",
        ran("boom", {"x": 1}),
        result_of("c1", "call_next was already awaited"),
        effect("c1", "unknown"),
        rounds=(BOOM, DONE),
        tools=("boom",),
        layers=[RETRIES],
    ),
    _scenario(
        "a layer leaves before its call has ended",
        ran("long_job", {"x": 1}),
        result_of("c1", "left early"),
        logged_among("long_job left"),
        effect("c1", "unknown"),
        rounds=(Calls(("c1", "long_job", {"x": 1})), DONE),
        tools=("long_job",),
        layers=[DROPS],
    ),
    _scenario("a call succeeds under nine layers", *CHARGED, result_of("c1", "charged 5"), effect("c1", "happened"), layers=[PASSES] * 9),
    _scenario(
        "a layer ends the run",
        ran("charge", {"amount": 5}),
        ended(Outcome.COMPLETED, "stop", "That will do."),
        rounds=(CHARGE,),
        layers=[swallows(), wraps(), stops("That will do.")],
    ),
]

_VETO = [
    _scenario("a layer raises before it delegates", *NEVER_CHARGED, result_of("c1", text="VETO-77 denied by policy"), layers=[vetoes()]),
    _scenario("a layer answers without delegating", *NEVER_CHARGED, result_of("c1", text="VETO-77 denied by policy"), layers=[answers()]),
    _scenario("the outermost of four vetoes", *NEVER_CHARGED, logged(), layers=[vetoes(), logs("b"), logs("c"), logs("d")]),
    _scenario(
        "the innermost of four vetoes",
        *NEVER_CHARGED,
        logged("before a", "before b", "after b", "after a"),
        layers=[logs("a"), logs("b"), PASSES, vetoes()],
    ),
    _scenario(
        "a veto is swallowed by an outer layer",
        ran("charge"),
        result_of("c1", text="FALLBACK-55"),
        effect("c1", "none"),
        answered("All done."),
        layers=[swallows(), vetoes()],
    ),
    _scenario(
        "one of two parallel calls is answered by a layer",
        ran("charge"),
        ran("add", {"a": 2, "b": 3}),
        result_of("c1", text="VETO-77 denied by policy"),
        result_of("c2", "sum=5"),
        answered("All done."),
        rounds=(Calls(("c1", "charge", {"amount": 5}), ("c2", "add", {"a": 2, "b": 3})), DONE),
        tools=("charge", "add"),
        layers=[answers(only="charge")],
    ),
    _scenario(
        "one of two parallel calls is vetoed",
        ran("charge"),
        ran("add", {"a": 2, "b": 3}),
        result_of("c1", text="VETO-77 denied by policy"),
        effect("c1", "none"),
        effect("c2", "happened"),
        rounds=(Calls(("c2", "add", {"a": 2, "b": 3}), ("c1", "charge", {"amount": 5})), DONE),
        tools=("charge", "add"),
        layers=[PASSES, vetoes(only="charge")],
    ),
    _scenario(
        "a retry around a veto does not turn it",
        ran("charge"),
        effect("c1", "none"),
        answered("All done."),
        layers=[RETRIES, vetoes()],
    ),
]

_MODEL = [
    _scenario("a layer adds a system message to every request", *CHARGED, roles(1, "us"), roles(2, "uats"), used(30, 12), layers=[TRACES]),
]

SCENARIOS = [*_RAISING, *_ONCE, *_VETO, *_MODEL]
