"""What a fact changes: one table. A missing (phase, record) key is the error, and the diagram in the docs is drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import ProtocolError
from ..messages import ToolCall
from ..records import (
    Ending,
    ExtensionNoted,
    HandlerStarted,
    MessagesImported,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    QuestionAnswered,
    ReconcileEnded,
    ReconcileStarted,
    Record,
    RefusedCall,
    RunCancelled,
    RunEnded,
    RunStarted,
    SessionForked,
    SessionOpened,
    SteeringReceived,
    ToolLateResult,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
    Verdict,
)
from .loops import guards, remembered, sameness
from .recoveries import PAUSE
from .state import UNDER_WAY, Call, Phase, Progress, State, traits_of, with_grant, with_started_children
from .texts import REDACTED_REASON


def apply(state: State, record: Record) -> State:
    """The state after ``record``. Raises ProtocolError if it cannot follow; ``state`` is never changed."""
    row = TRANSITIONS.get((state.phase, type(record)))
    if row is None:
        raise ProtocolError(f"{type(record).__name__} cannot follow phase {state.phase.value!r}")
    handler, targets = row
    after: State = handler(state, record)
    if after.phase not in targets:
        raise ProtocolError(f"{type(record).__name__} led from {state.phase.value!r} to {after.phase.value!r}")
    return after


def fold(records: Iterable[Record], state: State | None = None) -> State:
    """The state after all of ``records``. Resume, replay and fork are this fold over a different list."""
    state = state if state is not None else State()
    for record in records:
        state = apply(state, record)
    return state


# ---- the session and the run ---------------------------------------------------------------------


def _keep(state: State, record: Record) -> State:
    return state


def _reopen(state: State, record: SessionOpened) -> State:
    """The process that was running things is gone: what it left open becomes what can honestly be said of it."""
    state = replace(state, epoch=record.epoch)
    match state.phase:
        case Phase.MODEL_RUNNING:
            return replace(state, phase=Phase.ENDING if state.ending is not None else Phase.MODEL_DUE)
        case Phase.STALLED:
            return replace(state, phase=Phase.MODEL_DUE, failures=0, retry_after_s=None)
        case Phase.TOOLS:
            touched = with_started_children(state)
            return replace(state, **_counts({key: _reopened(state, call, key in touched) for key, call in state.calls.items()}))
        case Phase.IDLE | Phase.MODEL_DUE | Phase.ENDING:
            return state


def _reopened(state: State, call: Call, touched: bool) -> Call:
    if call.redacted and call.progress is not Progress.DONE:
        call = replace(call, forgotten=True)
    if call.progress not in UNDER_WAY:
        return _withheld(call) if call.progress is Progress.PENDING else call
    traits = traits_of(state, call)
    if call.parent is not None:  # nobody waits for a nested call any more: the call that made it is gone too
        return replace(call, progress=Progress.LOST)
    if call.starts and traits.on_crash == "rerun" and not traits.reconcile and not call.forgotten:
        return _startable_again(call)
    if call.starts or touched:
        return replace(call, progress=Progress.LOST)
    return _withheld(replace(call, progress=Progress.PENDING))


def _withheld(call: Call) -> Call:
    """A call that may start now, unless nobody knows its arguments any more: what is stored of them must never run."""
    if not call.forgotten or call.refused is not None:
        return call
    if call.starts:
        return replace(call, progress=Progress.LOST)
    return replace(call, refused=RefusedCall(_ordinal(call), "arguments_redacted", REDACTED_REASON))


def _ordinal(call: Call) -> int:
    return int(call.key.rpartition("/")[2])


def _startable_again(call: Call) -> Call:
    return replace(call, progress=Progress.PENDING, may_start=call.starts + 1)


def _start_run(state: State, record: RunStarted) -> State:
    return State(
        phase=Phase.MODEL_DUE,
        epoch=state.epoch,
        run_id=record.run_id,
        limits=record.limits,
        traits=record.traits,
        fingerprint=record.fingerprint,
        granted=state.granted,
    )


def _cancel(state: State, record: RunCancelled) -> State:
    if state.ending is None:
        state = replace(state, ending=Ending(record.outcome, record.reason))
    return replace(state, phase=Phase.ENDING) if state.phase in (Phase.MODEL_DUE, Phase.STALLED) else state


def _end_run(state: State, record: RunEnded) -> State:
    return State(epoch=state.epoch, granted=state.granted)


def _steer(state: State, record: SteeringReceived) -> State:
    return replace(state, pending_input=state.pending_input + 1, interrupt=state.interrupt or record.interrupt)


# ---- the model step ------------------------------------------------------------------------------


def _start_model(state: State, record: ModelStepStarted) -> State:
    if (record.turn, record.attempt) != (state.turn, state.attempt):
        raise ProtocolError(f"ModelStepStarted: turn {record.turn}, attempt {record.attempt} is not the next one")
    landed = {"pending_input": 0, "interrupt": False} if state.attempt == 0 else {}
    return replace(state, phase=Phase.MODEL_RUNNING, attempt=record.attempt + 1, requests=state.requests + 1, **landed)


def _end_model(state: State, record: ModelStepEnded) -> State:
    over: dict[str, Any] = {**_spent(state, record), "failures": 0, "retry_after_s": None, "fault": "", "partial": "", "paused": None}
    match record.verdict:
        case Verdict.RETRY:
            over["partial"] = record.message.content if record.continued else ""
            over["paused"] = record.message.wire if record.code == PAUSE else None
            return replace(state, phase=Phase.MODEL_DUE, streaks=_counted(state, record.code), **over)
        case Verdict.TOOLS:
            refused = {refusal.ordinal: refusal for refusal in record.refused}
            keys = (f"{state.run_id}/{state.turn}/{ordinal}" for ordinal in range(len(record.message.tool_calls)))
            same = sameness if guards(state.limits) else _unwatched
            calls = {
                key: Call(key=key, call=call, refused=refused.get(ordinal), same=same(call), redacted=ordinal in record.redacted)
                for ordinal, (key, call) in enumerate(zip(keys, record.message.tool_calls, strict=True))
            }
            streaks = _counted(state, record.code) if record.code else state.streaks
            ending = record.ending if state.ending is None and not state.pending_input else state.ending
            return replace(state, phase=Phase.TOOLS, streaks=streaks, ending=ending, **_counts(calls), **over)
        case Verdict.ANSWER | Verdict.END if state.pending_input and state.ending is None:
            return replace(state, streaks={}, **_next_turn(state), **over)  # the person has said more: the run goes on
        case Verdict.ANSWER:
            return replace(state, phase=Phase.ENDING, streaks={}, ending=record.ending, **over)
        case Verdict.END:
            return replace(state, phase=Phase.ENDING, ending=state.ending or record.ending, **over)


def _unwatched(call: ToolCall) -> str:
    return ""


def _fail_model(state: State, record: ModelStepFailed) -> State:
    state = replace(state, failures=state.failures + 1, retry_after_s=record.retry_after_s, **_spent(state, record))
    limits = state.limits
    if state.ending is not None:
        return replace(state, phase=Phase.ENDING)
    if record.kind == "limit":
        return replace(state, phase=Phase.MODEL_DUE)
    too_long = record.retry_after_s is not None and record.retry_after_s > limits.retry_after_max_s
    if record.retryable and not too_long and state.failures < limits.model_attempts:
        return replace(state, phase=Phase.MODEL_DUE)
    return replace(state, phase=Phase.STALLED, fault="layer_error" if record.kind == "layer" else "provider_error")


def _spent(state: State, record: ModelStepEnded | ModelStepFailed) -> dict[str, Any]:
    """What of the state an attempt changes by what it has cost."""
    usage, cost = record.usage, record.cost_usd
    if usage is None:
        return {}
    spent: dict[str, Any] = {"usage": state.usage + usage, "tokens": (usage.input_tokens or 0) + (usage.output_tokens or 0)}
    if cost is not None:
        spent["cost_usd"], spent["last_cost_usd"] = state.cost_usd + cost, cost
    return spent


def _counted(state: State, code: str) -> dict[str, int]:
    return {**state.streaks, code: state.streaks.get(code, 0) + 1}


def _next_turn(state: State) -> dict[str, Any]:
    return {"phase": Phase.MODEL_DUE, "turn": state.turn + 1, "attempt": 0}


# ---- the tool step -------------------------------------------------------------------------------


def _start_tool(state: State, record: ToolStepStarted) -> State:
    if record.parent is not None:
        return _start_nested(state, record)
    call = _call(state, record.key, record, Progress.PENDING)
    if call.refused is not None:
        raise ProtocolError(f"ToolStepStarted: the call {record.key} was refused")
    running = replace(call, progress=Progress.RUNNING, entered=True)
    return _with_call(state, running, unstarted=-1, streaks={}, tool_calls=state.tool_calls + (not call.entered))


def _start_nested(state: State, record: ToolStepStarted) -> State:
    parent = state.calls.get(record.parent or "")
    if parent is None or parent.progress is not Progress.RUNNING or record.call is None or record.key in state.calls:
        raise ProtocolError(f"ToolStepStarted: {record.key} is no nested call of a running call")
    call = Call(key=record.key, call=record.call, parent=record.parent, progress=Progress.RUNNING, entered=True)
    return _with_call(state, call, unsettled=1, tool_calls=state.tool_calls + 1)


def _start_handler(state: State, record: HandlerStarted) -> State:
    """The one lock of the whole runtime: a handler that may have started does not start again."""
    call = _call(state, record.key, record, Progress.RUNNING)
    if call.starts >= call.may_start or record.attempt != call.starts:
        raise ProtocolError(f"HandlerStarted: the handler of {record.key} has already started")
    started_with = "" if record.redacted else record.arguments
    return _with_call(state, replace(call, starts=call.starts + 1, started_with=started_with, found=""))


def _end_tool(state: State, record: ToolStepEnded) -> State:
    call = state.calls.get(record.key)
    if call is None or call.progress is Progress.DONE:
        raise ProtocolError(f"ToolStepEnded: {record.key} is not open")
    if record.message.tool_call_id != call.call.id:
        raise ProtocolError(f"ToolStepEnded: the result of {record.key} names another call")
    changed: dict[str, Any] = {"ending": state.ending or record.ending, "unrunnable": state.unrunnable - _is_unrunnable(call)}
    if call.same and (call.entered or call.refused is not None):
        changed["loops"] = remembered(state.loops, call.same, record, traits_of(state, call))
    if state.unsettled > 1:
        under_way = call.progress in UNDER_WAY
        return _with_call(state, replace(call, progress=Progress.DONE), unstarted=-(not under_way), unsettled=-1, **changed)
    closing = {"phase": Phase.ENDING} if changed["ending"] is not None else _next_turn(state)
    return replace(state, calls={}, interrupt=False, unstarted=0, unsettled=0, **changed, **closing)


# ---- a call whose process died ------------------------------------------------------------------


def _start_reconcile(state: State, record: ReconcileStarted) -> State:
    call = _call(state, record.key, record, Progress.LOST)
    if call.found or call.parent is not None or not traits_of(state, call).reconcile:
        raise ProtocolError(f"ReconcileStarted: there is nothing to ask about {record.key}")
    return _recounted(state, replace(call, progress=Progress.RECONCILING))


def _end_reconcile(state: State, record: ReconcileEnded) -> State:
    """Only a tool with ``on_crash="rerun"`` is started again; of any other the model is told, and decides."""
    call = _call(state, record.key, record, Progress.RECONCILING)
    found = replace(call, progress=Progress.LOST, found=record.found, found_reason=record.reason)
    again = traits_of(state, call).on_crash == "rerun" and not call.forgotten
    return _recounted(state, _startable_again(found) if again else found)


# ---- a person ------------------------------------------------------------------------------------


def _suspend_tool(state: State, record: ToolStepSuspended) -> State:
    call = _call(state, record.key, record, Progress.RUNNING)
    if call.starts >= call.may_start or call.parent is not None:
        raise ProtocolError(f"ToolStepSuspended: the handler of {record.key} has already started, or it is a nested call")
    waiting = replace(
        call,
        progress=Progress.WAITING,
        asked=call.asked + 1,
        question_id=record.question_id,
        digest=record.digest,
        expires_at=record.expires_at,
        scopes=record.scopes,
        asked_by=record.asked_by,
        answer=None,
        scope="",
    )
    return _with_call(state, waiting, unstarted=1)


def _answer(state: State, record: QuestionAnswered) -> State:
    call = _call(state, record.key, record, Progress.WAITING)
    if call.question_id != record.question_id:
        raise ProtocolError(f"QuestionAnswered: {record.question_id!r} is not the open question of {record.key}")
    call = replace(call, progress=Progress.PENDING)
    match record.verdict:
        case "answer":
            answered = replace(call, answer=record.answer, scope=record.scope, redacted=call.redacted or record.redacted)
            return _recounted(with_grant(state, call, record), _withheld(answered))
        case "edit":  # whole arguments, which do not depend on what was forgotten
            edited = msgspec.json.encode(record.answer).decode()
            return _with_call(state, replace(call, edited=edited, digest="", redacted=record.redacted, forgotten=False))
        case "deny" | "expire":
            code, words = ("denied", "denied") if record.verdict == "deny" else ("expired", "denied: nobody answered in time")
            reason = f"{words}: {record.answer}" if record.answer else words
            return _recounted(state, replace(call, refused=RefusedCall(_ordinal(call), code, reason)))


def _with_call(state: State, call: Call, *, unstarted: int = 0, unsettled: int = 0, **changed: Any) -> State:
    """``state`` with ``call`` as it is now, by how much that changes the two counts, and what else has changed."""
    calls = {**state.calls, call.key: call}
    return replace(state, calls=calls, unstarted=state.unstarted + unstarted, unsettled=state.unsettled + unsettled, **changed)


def _is_unrunnable(call: Call) -> bool:
    return call.refused is not None or call.progress is Progress.LOST


def _counts(calls: dict[str, Call]) -> dict[str, Any]:
    """``calls``, and what is counted of them."""
    unsettled = [call for call in calls.values() if call.progress is not Progress.DONE]
    unstarted = sum(call.progress not in UNDER_WAY for call in unsettled)
    return {"calls": calls, "unstarted": unstarted, "unsettled": len(unsettled), "unrunnable": sum(map(_is_unrunnable, unsettled))}


def _recounted(state: State, call: Call) -> State:
    return replace(state, **_counts({**state.calls, call.key: call}))


def _call(state: State, key: str, record: Record, want: Progress) -> Call:
    call = state.calls.get(key)
    if call is None or call.progress is not want:
        found = "no open call" if call is None else f"a call that is {call.progress.value}"
        raise ProtocolError(f"{type(record).__name__}: {key} is {found}, not one that is {want.value}")
    return call


Handler = Callable[[State, Any], State]
_P = Phase


def _to(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


TRANSITIONS: dict[tuple[Phase, type[Any]], tuple[Handler, frozenset[Phase]]] = {
    (_P.IDLE, SessionOpened): (_reopen, _to(_P.IDLE)),
    (_P.IDLE, MessagesImported): (_keep, _to(_P.IDLE)),
    (_P.IDLE, RunStarted): (_start_run, _to(_P.MODEL_DUE)),
    (_P.MODEL_DUE, SessionOpened): (_reopen, _to(_P.MODEL_DUE)),
    (_P.MODEL_DUE, ModelStepStarted): (_start_model, _to(_P.MODEL_RUNNING)),
    (_P.MODEL_DUE, SteeringReceived): (_steer, _to(_P.MODEL_DUE)),
    (_P.MODEL_DUE, RunCancelled): (_cancel, _to(_P.ENDING)),
    (_P.MODEL_DUE, RunEnded): (_end_run, _to(_P.IDLE)),
    (_P.MODEL_RUNNING, SessionOpened): (_reopen, _to(_P.MODEL_DUE, _P.ENDING)),
    (_P.MODEL_RUNNING, ModelStepStarted): (_start_model, _to(_P.MODEL_RUNNING)),
    (_P.MODEL_RUNNING, ModelStepEnded): (_end_model, _to(_P.TOOLS, _P.MODEL_DUE, _P.ENDING)),
    (_P.MODEL_RUNNING, ModelStepFailed): (_fail_model, _to(_P.MODEL_DUE, _P.STALLED, _P.ENDING)),
    (_P.MODEL_RUNNING, SteeringReceived): (_steer, _to(_P.MODEL_RUNNING)),
    (_P.MODEL_RUNNING, RunCancelled): (_cancel, _to(_P.MODEL_RUNNING)),
    (_P.TOOLS, SessionOpened): (_reopen, _to(_P.TOOLS)),
    (_P.TOOLS, ToolStepStarted): (_start_tool, _to(_P.TOOLS)),
    (_P.TOOLS, HandlerStarted): (_start_handler, _to(_P.TOOLS)),
    (_P.TOOLS, ToolStepEnded): (_end_tool, _to(_P.TOOLS, _P.MODEL_DUE, _P.ENDING)),
    (_P.TOOLS, ReconcileStarted): (_start_reconcile, _to(_P.TOOLS)),
    (_P.TOOLS, ReconcileEnded): (_end_reconcile, _to(_P.TOOLS)),
    (_P.TOOLS, ToolStepSuspended): (_suspend_tool, _to(_P.TOOLS)),
    (_P.TOOLS, QuestionAnswered): (_answer, _to(_P.TOOLS)),
    (_P.TOOLS, SteeringReceived): (_steer, _to(_P.TOOLS)),
    (_P.TOOLS, RunCancelled): (_cancel, _to(_P.TOOLS)),
    (_P.ENDING, SessionOpened): (_reopen, _to(_P.ENDING)),
    (_P.ENDING, RunCancelled): (_cancel, _to(_P.ENDING)),
    (_P.ENDING, RunEnded): (_end_run, _to(_P.IDLE)),
    (_P.STALLED, SessionOpened): (_reopen, _to(_P.MODEL_DUE)),
    (_P.STALLED, SteeringReceived): (_steer, _to(_P.STALLED)),
    (_P.STALLED, RunCancelled): (_cancel, _to(_P.ENDING)),
    **{(phase, kind): (_keep, _to(phase)) for phase in Phase for kind in (ExtensionNoted, ToolLateResult)},
    **{(phase, SessionForked): (lambda state, _: replace(state, granted={}), _to(phase)) for phase in Phase},
}
