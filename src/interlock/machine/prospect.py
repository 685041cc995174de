"""What a resume will do, before it does it. Pure: it applies the reopening to a copy and looks."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..messages import ToolCall
from ..records import SessionOpened
from .apply import apply
from .commands import expired
from .decide import is_askable, loops_in
from .state import Call, Phase, Progress, State, traits_of, with_started_children

What = Literal["finished", "not_started", "rerun", "reconcile", "unknown", "waiting", "refused"]


class CallProspect(Struct, frozen=True, kw_only=True):
    """One call of the open batch. what: ``finished`` (its result stands), ``not_started`` (it may start now), ``rerun`` (its handler
    had started, and is started again), ``reconcile`` (the tool is asked what became of it), ``unknown`` (its handler had
    started: the model is told so, and it is never run again), ``waiting`` (for a person), ``refused`` (it is settled
    without running: malformed, denied, expired, redacted, or a loop). attempt: the number of its next start, from 1, if it has one."""

    key: str
    call: ToolCall
    what: What
    attempt: int = 0
    question_id: str = ""


class Prospect(Struct, frozen=True, kw_only=True):
    """What a resume of an open run does. next: after the calls are settled, ``model`` (a request), ``end`` (the run ends, without a
    request), or ``wait`` (for a person). requests: how many the run has made."""

    run_id: str
    turn: int
    requests: int
    calls: tuple[CallProspect, ...]
    next: Literal["model", "end", "wait"]


def prospect(state: State, at: float) -> Prospect | None:
    """What resuming ``state`` in another process does at ``at`` (seconds since 1970); None if no run is open."""
    if state.phase is Phase.IDLE:
        return None
    state = apply(state, SessionOpened(epoch=state.epoch + 1))
    for record in expired(state, at):
        state = apply(state, record)
    touched = with_started_children(state)
    loops = loops_in(state)
    behind = False  # what has not started behind a loop does not start any more
    calls: tuple[CallProspect, ...] = ()
    for call in state.calls.values():
        if call.parent is None:
            behind = behind or call.key in loops
            calls = (*calls, _of(state, call, touched, looped=behind))
    waits = any(call.what == "waiting" for call in calls) and state.ending is None
    ends = state.ending is not None or state.requests >= state.limits.requests or bool(loops)
    return Prospect(
        run_id=state.run_id, turn=state.turn, requests=state.requests, calls=calls, next="wait" if waits else "end" if ends else "model"
    )


def _of(state: State, call: Call, touched: frozenset[str], *, looped: bool) -> CallProspect:
    what, attempt = _what(state, call, touched), 0
    if looped and what == "not_started" and not call.entered:
        what = "refused"
    if what in ("not_started", "rerun"):
        attempt = call.starts + 1
    return CallProspect(key=call.key, call=call.call, what=what, attempt=attempt, question_id=call.question_id if what == "waiting" else "")


def _what(state: State, call: Call, touched: frozenset[str]) -> What:
    started = call.starts > 0 or call.key in touched
    if call.progress is Progress.DONE:
        return "finished"
    if call.progress is Progress.LOST:
        return "reconcile" if is_askable(state, call) else "unknown"
    if call.refused is not None:
        return "refused"
    if state.ending is not None or state.interrupt:
        return "unknown" if started else "refused"
    if call.progress is Progress.WAITING:
        return "waiting"
    return "rerun" if started and traits_of(state, call).on_crash == "rerun" else "not_started"
