"""A script from one integer. What happens by itself only now and then is made to happen often enough to be counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .script import BEHAVIOURS, HANDLERS, Act, Call, Reply, Script

_TOOLS = ("pay", "move", "look", "count", "wait", "book", "sync")
_FAULTS = (
    *("cut", "error_object", "retryable", "wait", "length", "dropped", "empty", "reasoning", "malformed", "unknown_tool", "same_ids"),
    *("length_calls", "filter_calls", "filter", "refusal", "pause", "unknown", "broken", "wait_long"),
)
_LAYER_FAULTS = ("pass", "pass", "retry", "again", "drop", "raise", "raise_after")

_RECORDS = (
    *("SessionOpened", "RunStarted", "ModelStepStarted", "ModelStepEnded", "ToolStepStarted", "HandlerStarted", "ToolStepEnded"),
    *("RunEnded", "ModelStepFailed", "ToolStepSuspended", "QuestionAnswered", "ToolLateResult", "SteeringReceived", "ExtensionNoted"),
    *("RunCancelled", "MessagesImported", "ReconcileStarted", "ReconcileEnded"),
)

CRASH_POINTS: tuple[tuple[str, str], ...] = (
    *((when, what) for what in (*_RECORDS, "flush") for when in ("before", "after")),
    *(("after", "effect"), ("after", "request")),
)
"""Where a process can be killed: around the append of each record type, around a flush, after a handler's effect, in a response."""

_UNSURE = frozenset({"ModelStepFailed", "RunCancelled", "SteeringReceived", "ExtensionNoted", "ToolLateResult"})
"""What may not come to pass, because the run has ended before."""

Theme = Callable[[random.Random, Script], Script]


def script_of(seed: int) -> Script:
    """The script of ``seed``; always the same one."""
    dice = random.Random(seed)
    script = _base(dice)
    theme: Theme = dice.choices([theme for theme, _ in _THEMES], [weight for _, weight in _THEMES])[0]
    script = theme(dice, script)
    if dice.random() < 0.12:
        script = _also(script, _act_anywhere(dice))
    if dice.random() < 0.03:
        script = replace(script, moves=(*script.moves, "fork"))
    if script.redacts:
        nested = {call.nested for call in script.calls}
        calls = (replace(call, secret=number not in nested and dice.random() < 0.6) for number, call in enumerate(script.calls))
        script = replace(script, calls=tuple(calls))
    return script


def _base(dice: random.Random) -> Script:
    """A session in which little goes wrong by itself: some rounds of calls, and what the layers and the handlers do with them."""
    layers = dice.choice((0, 1, 1, 1, 2, 2))
    replies: list[Reply] = []
    calls: list[Call] = []
    for _ in range(dice.choice((1, 1, 1, 2))):
        first, count = len(calls), dice.choice((1, 1, 2, 2, 3))
        calls += [_call(dice, layers) for _ in range(count)]
        replies.append(Reply("calls", tuple(range(first, first + count)), layer=_layer(dice)))
    for number, call in enumerate(list(calls)):
        if call.does in ("nest", "nest_left") or "nest" in call.layers:
            calls.append(replace(_call(dice, layers), does=dice.choice(("ok", "ok", "slow", "raise", "fail"))))
            if "nest" in calls[-1].layers:
                calls[-1] = replace(calls[-1], layers=())
            calls[number] = replace(call, nested=len(calls) - 1)
    if dice.random() < 0.25:
        replies.insert(dice.randrange(len(replies) + 1), _fault(dice, calls, layers))
    return Script(
        seed=dice.randrange(1 << 30) if dice.random() < 0.7 else None,
        calls=tuple(calls),
        replies=tuple(replies),
        answers=dice.choice(((True,), (True,), (False,), (True, False), ("deny",), ("edit", True))),
        expires_s=dice.choice((None, None, 30.0)),
        layers=layers,
        model_layer=dice.random() < 0.2,
        redacts=dice.random() < 0.12,
        flush_s=dice.choice((0.0, 0.0, 0.01)),
        same_machine=dice.random() < 0.7,
        limits={"result_bytes": 1024} if any(call.does == "big" for call in calls) else {},
    )


def _call(dice: random.Random, layers: int) -> Call:
    behaviours = ["pass"] * layers
    if layers:
        behaviours[dice.randrange(layers)] = dice.choice(BEHAVIOURS)
    does = dice.choice(HANDLERS) if dice.random() < 0.3 else dice.choice(("ok", "ok", "slow"))
    return Call(dice.choice(_TOOLS), tuple(behaviours), does)


def _layer(dice: random.Random) -> str:
    return dice.choice(_LAYER_FAULTS) if dice.random() < 0.5 else "pass"


def _fault(dice: random.Random, calls: list[Call], layers: int) -> Reply:
    kind = dice.choice(_FAULTS)
    numbers: tuple[int, ...] = ()
    if kind in ("malformed", "unknown_tool", "same_ids", "length_calls", "filter_calls"):
        numbers = tuple(range(len(calls), len(calls) + 2))
        calls += [_call(dice, layers), Call()]
    return Reply(kind, numbers, layer=_layer(dice))


def _also(script: Script, *acts: Act) -> Script:
    return replace(script, acts=(*script.acts, *acts))


def _nth(dice: random.Random) -> int:
    return dice.choice((1, 1, 1, 2, 2, 3))


def _share(dice: random.Random) -> float:
    return dice.choice((0.0, 0.5, 1.0, 1.0))


# ---- what a script is about --------------------------------------------------------------------------------


def _crash(dice: random.Random, script: Script) -> Script:
    """The process is killed at one point, each as often as any other."""
    when, what = dice.choices(CRASH_POINTS, _CRASH_WEIGHTS)[0]
    script = _with(dice, _layered(dice, script), what)
    nth = _nth(dice)
    if what in _RARE:
        nth = 1
    elif what in _TWICE:  # these come once per run, or once per opening
        nth = dice.choice((1, 2))
        script = replace(script, moves=(*script.moves, *_TWICE[what])) if nth == 2 else script
    if what in _LOSES and nth == 1:  # the reply may be lost with the process: let it be one that has no calls
        script = replace(script, replies=(Reply("text"), *script.replies))
    script = _also(script, Act("crash", when, what, nth, _share(dice)))
    if dice.random() < 0.15:
        script = _also(script, Act("crash", *dice.choice(CRASH_POINTS), _nth(dice), _share(dice)))
    # A kill before the run was stored leaves nothing to resume: another run does what it would have done.
    return replace(
        script, moves=(*script.moves, *dice.choice((("resume", "run"), ("resume", "run"), ("run",), ("resume",), ("resume", "resume"))))
    )


_CRASH_WEIGHTS = [1.5 if what in _UNSURE else 1.0 for _, what in CRASH_POINTS]
_LOSES = frozenset({"ModelStepEnded", "request"})
_TWICE: dict[str, tuple[str, ...]] = {"SessionOpened": ("switch", "run"), "RunStarted": ("run",), "RunEnded": ("run",)}


def _layered(dice: random.Random, script: Script) -> Script:
    """``script`` with further calls, to each of which two layers do something. Those that may end the run come last."""
    calls = tuple(replace(call, layers=("pass", *call.layers)) if len(call.layers) < 2 else call for call in script.calls)
    script = replace(script, calls=calls, layers=2)
    for _ in range(dice.choice((2, 3, 4))):
        does, layers = dice.choice(("ok", "ok", "slow", "raise")), (dice.choice(BEHAVIOURS), dice.choice(BEHAVIOURS))
        if "fatal" in layers or "stop" in layers:
            last = Reply("calls", (len(script.calls),))
            script = replace(script, calls=(*script.calls, Call(dice.choice(_TOOLS), layers, does)), replies=(*script.replies, last))
        else:
            script = _with_call(dice, script, dice.choice(_TOOLS), layers, does)
    return script


_RARE = frozenset(
    {
        "ToolLateResult",
        "MessagesImported",
        "SteeringReceived",
        "RunCancelled",
        "QuestionAnswered",
        "ToolStepSuspended",
        "ReconcileStarted",
        "ReconcileEnded",
    }
)


def _with(dice: random.Random, script: Script, what: str) -> Script:
    """``script``, in which ``what`` happens."""
    match what:
        case "ModelStepFailed":
            kind = dice.choice(("cut", "retryable", "error_object", "broken"))
            first = dice.randrange(2)  # a batch may end the run: then what follows it never happens
            return replace(script, replies=(*script.replies[:first], Reply(kind), *script.replies[first:]))
        case "ToolStepSuspended" | "QuestionAnswered":
            if dice.random() < 0.7:
                return _alone(script, "pay", "suspend", "ok")
            return _with_call(dice, script, "pay", dice.choice((("suspend",), ("change", "suspend"))), "ok")
        case "ReconcileStarted" | "ReconcileEnded":
            acted = what == "ReconcileStarted" and dice.random() < 0.5
            asked = Call(
                dice.choice(("book", "sync")), ("pass",) * script.layers, dice.choice(("ok", "fail", "raise") if not acted else ("ok",))
            )
            replies = (Reply("calls", (len(script.calls),)), *script.replies)
            killed = Act("crash", "after", "effect" if acted else "HandlerStarted", 1, 1.0)
            script = replace(script, calls=(*script.calls, asked), replies=replies, same_machine=True)
            return replace(_also(script, killed), moves=(*script.moves, "resume"))
        case "ToolLateResult":
            late = (
                _alone(script, "wait", "pass", "stubborn")
                if dice.random() < 0.7
                else _with_call(dice, script, "wait", ("pass",), "stubborn")
            )
            return replace(late, moves=(*script.moves, "wait"))
        case "SteeringReceived":
            return _also(script, Act(dice.choice(("steer", "interrupt")), "after", dice.choice(("ModelStepStarted", "ToolStepStarted"))))
        case "ExtensionNoted":
            return replace(script, noted=(dice.choice(_RECORDS[:8]), dice.choice(_RECORDS[:8])))
        case "RunCancelled":
            return _also(script, Act("cancel", "after", dice.choice(("ModelStepStarted", "ToolStepStarted", "HandlerStarted"))))
        case "MessagesImported":
            return replace(script, moves=("import", *script.moves))
        case _:
            return script


def _alone(script: Script, tool: str, layer: str, does: str) -> Script:
    """``script`` with one more call, in a batch of its own before all others."""
    layers = max(script.layers, 1)
    call = Call(tool, ("pass",) * (layers - 1) + (layer,), does)
    return replace(script, calls=(*script.calls, call), layers=layers, replies=(Reply("calls", (len(script.calls),)), *script.replies))


def _with_call(dice: random.Random, script: Script, tool: str, behaviours: tuple[str, ...], does: str) -> Script:
    """``script`` with one more call in its first batch. Layers are added for it if there are none."""
    layers = max(script.layers, len(behaviours))
    call = Call(tool, ("pass",) * (layers - len(behaviours)) + behaviours, does)
    first, *rest = script.replies
    if first.kind != "calls":
        first, rest = Reply("calls"), [first, *rest]
    numbers = (*first.calls, len(script.calls)) if dice.random() < 0.5 else (len(script.calls), *first.calls)
    return replace(script, calls=(*script.calls, call), layers=layers, replies=(replace(first, calls=numbers), *rest))


def _takeover(dice: random.Random, script: Script) -> Script:
    """A process freezes, another takes the session over when the lease has expired, and the first one wakes."""
    when, what = dice.choice(CRASH_POINTS)
    script = _with(dice, script, what)
    act = Act("freeze", when, what, 1 if what in _RARE else _nth(dice), last_s=dice.choice((5.0, 16.5, 17.5, 30.0, 60.0)))
    return replace(_also(script, act), moves=(*script.moves, dice.choice(("resume", "run"))))


def _rival(dice: random.Random, script: Script) -> Script:
    """A second process wants the session."""
    when, what = dice.choice(CRASH_POINTS)
    move = dice.choice(("resume", "run", "steer", "cancel", "answer", "import"))
    return _also(_with(dice, script, what), Act("rival", when, what, 1, last_s=dice.choice((0.0, 0.05, 20.0)), move=move))


def _act_anywhere(dice: random.Random) -> Act:
    when, what = dice.choice(CRASH_POINTS)
    return Act(dice.choice(("steer", "interrupt", "cancel", "leave", "answer", "io_error")), when, what, _nth(dice))


def _commands(dice: random.Random, script: Script) -> Script:
    """Steering, cancelling, leaving and answering while it runs."""
    if dice.random() < 0.2:  # cancelled after the effect of a handler that does not stop, which is then given up
        script = _alone(script, dice.choice(("pay", "look", "move", "book")), "pass", "stubborn")
        return _also(script, Act("cancel", "after", "effect"))
    acts = [_act_anywhere(dice) for _ in range(dice.choice((1, 2)))]
    script = _with(dice, script, acts[0].what)
    return replace(_also(script, *acts), moves=(dice.choice(("run", "run", "stream")), *script.moves[1:]))


def _at_rest(dice: random.Random, script: Script) -> Script:
    """Commands to a session that is open and at rest: stalled, waiting, or left behind by a process that is gone."""
    reached = dice.choice(("stalled", "stalled", "waiting", "model_due", "model_due", "ending", "ending", "tools"))
    if reached == "stalled":
        script = replace(script, replies=(*script.replies[: dice.randrange(2)], Reply("broken"), *script.replies[1:]))
    elif reached == "waiting":
        script = replace(_with_call(dice, script, "pay", ("suspend",), "ok"), moves=("unanswered", *dice.choice(((), ("wait",)))))
    else:
        at = {"model_due": "ModelStepStarted", "ending": "ModelStepEnded", "tools": "ToolStepStarted"}[reached]
        script = script if reached != "ending" else replace(script, replies=())
        script = replace(_also(script, Act("crash", "after", at, 1, 1.0)), same_machine=True)
    then = dice.choices(
        ("steer", "interrupt", "cancel", "run", "resume", "answer", "import", "explain"), (4, 2, 2, 3, 1, 1, 1, 1), k=dice.choice((1, 2))
    )
    if reached == "stalled" and dice.random() < 0.4:
        then = ["fork", *then]
    if reached == "ending" and dice.random() < 0.4:
        then = ["run"]
    moves = (*script.moves, "bare", "resume", "switch") if dice.random() < 0.1 else script.moves
    return replace(script, moves=(*moves, *then))


def _late(dice: random.Random, script: Script, where: str) -> Script:
    """A handler comes back long after it was given up, when the session is in the phase ``where``."""
    script = replace(_with_call(dice, replace(script, model_layer=False), "wait", ("pass",), "stubborn"), same_machine=True)
    batch, after = script.replies[0], tuple(reply for reply in script.replies[1:] if reply.kind == "calls")
    match where:
        case "idle":
            return replace(script, replies=(batch, *after), moves=("run", "wait"))
        case "stalled":
            return replace(script, replies=(batch, Reply("broken")), moves=("run", "wait"))
        case "model_running":
            return replace(script, replies=(batch, Reply(delay_s=50.0), *after))
        case "tools":
            numbers = (len(script.calls), len(script.calls) + 1)
            calls = (*script.calls, Call("pay", ("pass",) * (script.layers - 1) + ("suspend",)), Call("pay"))
            return replace(script, calls=calls, replies=(batch, Reply("calls", numbers)), moves=("unanswered", "wait", "answer"))
        case _:
            # Another process runs meanwhile, and dies in that phase; the first one takes the session to say what came late.
            what = "ModelStepStarted" if where == "model_due" else "ModelStepEnded"
            quick = tuple(replace(call, does="ok", layers=()) for call in script.calls[:-1])
            calm = replace(script, calls=(*quick, script.calls[-1]), replies=(batch,), acts=(Act("crash", "after", what, 3, 1.0),))
            return replace(calm, moves=("run", "switch", "run", "switch", "wait", "resume"))


def _nested(dice: random.Random, script: Script) -> Script:
    """A call makes a call, and the process dies somewhere in the inner one, or just before or after it."""
    layers = max(script.layers, 1)
    number = len(script.calls)
    by_layer = dice.random() < 0.5
    outer = Call(
        dice.choice(_TOOLS),
        ("pass",) * (layers - 1) + ("nest" if by_layer else "pass",),
        "ok" if by_layer else dice.choice(("nest", "nest", "nest_left")),
        number + 1,
    )
    inner = Call(dice.choice(_TOOLS), ("pass",) * layers, dice.choice(("ok", "slow", "fail")))
    replies = (Reply("calls", (number,)), *script.replies)
    points = ("ToolStepStarted", 2), ("HandlerStarted", 1), ("HandlerStarted", 2), ("effect", 1), ("ToolStepEnded", 1), ("flush", 3)
    what, nth = dice.choice(points)
    when = "after" if what == "effect" else dice.choice(("before", "after"))
    script = replace(script, calls=(*script.calls, outer, inner), replies=replies, layers=layers)
    return replace(_also(script, Act("crash", when, what, nth, _share(dice))), moves=("run", dice.choice(("resume", "resume", "run"))))


def _limits(dice: random.Random, script: Script) -> Script:
    """A bound is reached."""
    name, value = dice.choice(
        (("requests", 1), ("requests", 2), ("tool_calls", 1), ("tokens", 20), ("deadline_s", 0.05), ("parallel_calls", 1))
    )
    return replace(script, limits={**script.limits, name: value})


def _notes(dice: random.Random, script: Script) -> Script:
    """An extension takes notes, at records that lead to every phase."""
    last = dice.choice(("ModelStepEnded", "RunEnded", "RunCancelled", "ToolStepEnded", "ModelStepFailed", "ModelStepFailed"))
    script = replace(script, noted=(dice.choice(_RECORDS[:8]), last))
    if last == "ModelStepFailed":
        script = replace(script, replies=(Reply(dice.choice(("broken", "broken", "retryable"))), *script.replies))
    return _with(dice, script, last) if last == "RunCancelled" else script


def _faults(dice: random.Random, script: Script) -> Script:
    """The model misbehaves, more than once."""
    calls, replies = list(script.calls), list(script.replies)
    for _ in range(dice.choice((1, 2, 3))):
        replies.insert(dice.randrange(len(replies) + 1), _fault(dice, calls, script.layers))
    script = replace(script, calls=tuple(calls), replies=tuple(replies), model_layer=dice.random() < 0.5)
    return replace(script, moves=(*script.moves, dice.choice(("resume", "run"))))


_THEMES: tuple[tuple[Theme, float], ...] = (
    (_crash, 60),
    (_takeover, 7),
    (_rival, 5),
    (_commands, 6),
    (_at_rest, 20),
    (_nested, 3),
    (_limits, 9),
    (_notes, 7),
    (_faults, 5),
    (partial(_late, where="idle"), 0.5),
    *((partial(_late, where=where), 3.0) for where in ("stalled", "model_running", "tools", "model_due", "ending")),
)
