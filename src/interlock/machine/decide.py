"""What should be started now? Pure. The driver starts it, after the record that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from ..messages import Effect
from ..records import Ending, Outcome, RunEnded, ToolStepEnded
from .loops import LOOP, Watch, guards
from .state import UNDER_WAY, Call, Phase, Progress, State, traits_of, with_started_children
from .texts import failed_message


class CallModel(Struct, frozen=True, gc=False, kw_only=True):
    """Make one attempt of the model step, after waiting ``delay_s``."""

    turn: int
    attempt: int
    delay_s: float


class RunTool(Struct, frozen=True, gc=False, kw_only=True):
    """Send the call into the onion."""

    call: Call


class Reconcile(Struct, frozen=True, gc=False, kw_only=True):
    """Ask the tool what became of the call, whose handler had started in a process that is gone."""

    call: Call


class SettleTool(Struct, frozen=True, gc=False, kw_only=True):
    """Give the call its result without running it."""

    record: ToolStepEnded


class EndRun(Struct, frozen=True, gc=False, kw_only=True):
    """Close the run."""

    record: RunEnded


Action = CallModel | RunTool | Reconcile | SettleTool | EndRun

_OPEN = frozenset({Progress.PENDING, Progress.WAITING})


def decide(state: State) -> tuple[Action, ...]:
    """What should be started now, in order. Nothing if something runs that must end first, or if no run is open."""
    return _DECIDERS[state.phase](state)


def _decide_model(state: State) -> tuple[Action, ...]:
    if limit := _spent(state):
        return (EndRun(record=RunEnded(run_id=state.run_id, outcome=Outcome.LIMIT, reason=limit)),)
    return (CallModel(turn=state.turn, attempt=state.attempt, delay_s=_delay(state)),)


def _decide_tools(state: State) -> tuple[Action, ...]:
    if not state.unstarted:
        return ()
    limited = state.limits.tool_calls is not None or guards(state.limits)
    if state.unrunnable or state.interrupt or limited or state.ending is not None:
        settled = tuple(_settled(state))
        if settled:
            return settled
    return tuple(RunTool(call=call) for call in _startable(state))


def _decide_end(state: State) -> tuple[Action, ...]:
    ending = state.ending or Ending(Outcome.INCOMPLETE, "unknown")
    return (EndRun(record=RunEnded(run_id=state.run_id, outcome=ending.outcome, reason=ending.reason, text=ending.text)),)


def _nothing(state: State) -> tuple[Action, ...]:
    return ()


_DECIDERS: dict[Phase, Callable[[State], tuple[Action, ...]]] = {
    Phase.IDLE: _nothing,
    Phase.MODEL_DUE: _decide_model,
    Phase.MODEL_RUNNING: _nothing,
    Phase.TOOLS: _decide_tools,
    Phase.ENDING: _decide_end,
    Phase.STALLED: _nothing,
}


def at_rest(state: State) -> Outcome | None:
    """What a run amounts to when nothing runs and nothing can be started: WAITING for a person, or None if it has ended or stalled."""
    return Outcome.WAITING if state.phase is Phase.TOOLS else None


def is_open(state: State) -> bool:
    """Whether a run is open."""
    return state.phase is not Phase.IDLE


def is_stalled(state: State) -> bool:
    """Whether the run stopped at a failed model step, from which it can be resumed."""
    return state.phase is Phase.STALLED


def _spent(state: State) -> str:
    """The name of the limit that forbids another request, or nothing. A conversation grows: the next request takes at least what the
    last one took."""
    limits, usage = state.limits, state.usage
    if state.requests >= limits.requests:
        return "requests"
    if limits.tokens is not None and (usage.input_tokens or 0) + (usage.output_tokens or 0) + max(state.tokens, 1) > limits.tokens:
        return "tokens"
    if limits.cost_usd is not None and state.requests and state.cost_usd + state.last_cost_usd > limits.cost_usd:
        return "cost_usd"
    return ""


def _delay(state: State) -> float:
    if not state.failures:
        return 0.0
    backoff = min(state.limits.backoff_s * 2.0 ** (state.failures - 1), state.limits.backoff_max_s)
    return max(backoff, state.retry_after_s) if state.retry_after_s is not None else backoff


def _settled(state: State) -> Iterable[SettleTool | Reconcile]:
    """The calls that must get their result without running, each with the reason why; asked for first, if the tool can know."""
    left = None if state.limits.tool_calls is None else state.limits.tool_calls - state.tool_calls
    over = state.ending is not None or state.interrupt
    touched = with_started_children(state)
    loops = dict[str, str]() if over else loops_in(state)
    for call in state.calls.values():
        started = call.starts > 0 or call.key in touched
        effect: Effect = "unknown" if started else "none"
        if call.progress is Progress.LOST and is_askable(state, call):
            yield Reconcile(call=call)
        elif call.progress is Progress.LOST or (over and started and call.progress in _OPEN):  # the latter was to be entered again
            yield _interrupted(call, effect)
        elif call.progress not in _OPEN:
            continue
        elif call.key in loops:
            if why := loops[call.key]:
                yield _settle(call, LOOP, why, effect, Ending(Outcome.LIMIT, LOOP))
                return
        elif call.refused is not None:
            yield _settle(call, call.refused.code, call.refused.reason, effect)
        elif state.ending is not None:
            yield _settle(call, *_WHY_NOT.get(state.ending.reason, ("cancelled", "cancelled before it started")), effect)
        elif state.interrupt:
            yield _settle(call, "superseded", "superseded by new input before it started", effect)
        elif left is not None and left <= 0 and not call.entered:
            ending = Ending(Outcome.LIMIT, "tool_calls")
            yield _settle(call, "limit", "the limit of tool calls for this run is reached", effect, ending)


def is_askable(state: State, call: Call) -> bool:
    """Whether a lost call's tool is asked first. Not for a run that is cancelled or out of time: that must end soon. Nor about
    arguments that are not the ones it was started with: those were redacted."""
    if call.found or call.parent is not None or not traits_of(state, call).reconcile or not call.starts or not call.started_with:
        return False
    return state.ending is None or state.ending.outcome not in (Outcome.CANCELLED, Outcome.LIMIT)


def _interrupted(call: Call, effect: Effect) -> SettleTool:
    gone = "interrupted: the process that ran it is gone"
    match call.found:
        case "did_not_happen":
            return _settle(call, "did_not_happen", f"{gone}; the tool has found that nothing was done", "none", ran=True)
        case "unknown":
            return _settle(call, "interrupted", f"{gone}; the tool cannot find out what was done: {call.found_reason}", effect)
        case _:
            return _settle(call, "interrupted", gone, effect)


_WHY_NOT = {
    "superseded": ("superseded", "superseded by a new run before it started"),
    "provider_error": ("superseded", "superseded by a new run before it started"),
    "stop": ("superseded", "the run was stopped before it started"),
    "tool_calls": ("limit", "the limit of tool calls for this run is reached"),
    LOOP: ("limit", "another call of the same reply goes round in a loop, and the run ends"),
    "deadline": ("cancelled", "the run's deadline passed before it started"),
}


def _settle(call: Call, code: str, reason: str, effect: Effect, ending: Ending | None = None, *, ran: bool = False) -> SettleTool:
    message = failed_message(call.call, reason, effect, ran=ran)
    return SettleTool(record=ToolStepEnded(key=call.key, message=message, effect=effect, decided_by="runtime", code=code, ending=ending))


def _watch(state: State) -> Watch:
    entered = (call for call in state.calls.values() if call.entered and call.progress is not Progress.DONE and call.parent is None)
    return Watch(state.limits, state.loops, Counter(call.same for call in entered))


def loops_in(state: State) -> dict[str, str]:
    """The calls that are past a bound of the loop guard, and why. "" before its turn: those ahead of it that may run go first."""
    if not guards(state.limits):
        return {}
    watch, turn, found = _watch(state), True, dict[str, str]()
    for call in state.calls.values():
        if call.progress is Progress.PENDING and call.parent is None and not call.entered:
            verdict = watch.verdict(call.same, traits_of(state, call))
            if verdict not in ("start", "hold"):
                found[call.key] = verdict if turn else ""
            elif call.refused is None:
                turn = False
    return found


def _startable(state: State) -> Iterable[Call]:
    """Parallel calls start together; one that may not run beside others is a barrier in call order, also while it waits."""
    running = state.unsettled - state.unstarted
    room = state.limits.parallel_calls - running
    left = None if state.limits.tool_calls is None else state.limits.tool_calls - state.tool_calls
    alone = running == 0
    if room <= 0:
        return
    watch = _watch(state) if guards(state.limits) else None
    for call in state.calls.values():
        if call.progress is Progress.DONE or call.parent is not None:
            continue
        parallel = traits_of(state, call).parallel
        if call.progress is Progress.PENDING:
            counts = left is not None and not call.entered
            if room <= 0 or not (parallel or alone) or (counts and left is not None and left <= 0):
                return
            if call.entered and not alone and _serial_runs(state):  # it waited for a person, and one behind it has begun meanwhile
                return
            if watch is not None and not call.entered:
                if watch.verdict(call.same, traits_of(state, call)) != "start":
                    return
                watch.started(call.same)
            yield call
            room, alone = room - 1, False
            left = left - 1 if left is not None and counts else left
        if not parallel:
            return


def _serial_runs(state: State) -> bool:
    under_way = (call for call in state.calls.values() if call.progress in UNDER_WAY and call.parent is None)
    return any(not traits_of(state, call).parallel for call in under_way)
