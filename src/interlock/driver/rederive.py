"""The strict half of a replay, for any journal and without an agent: what the machine decided follows from the rows before it.

Every request, every entered call, every settlement, every verdict and every end of a run must be what the machine makes of the state
at that row. Layers and tools are not needed, and are not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..errors import Diverged
from ..journal.transcript import Transcript
from ..machine import CallModel, EndRun, Phase, Progress, Reconcile, RunTool, SettleTool, State, apply, decide, is_open, judge
from ..messages import Message, Usage
from ..records import (
    ModelStepEnded,
    ModelStepStarted,
    ReconcileStarted,
    Record,
    Row,
    RunEnded,
    RunResult,
    SessionForked,
    SessionOpened,
    ToolStepEnded,
    ToolStepStarted,
)
from .likeness import described
from .replay import Replay
from .stand_ins import response_of

_SETTLED_ELSEWHERE = frozenset({"reconciled", "cancelled", "unknown_tool"})


def rederive(session_id: str, rows: Sequence[Row]) -> Replay:
    """Go through ``rows``. Raises Diverged at the first action or verdict that does not follow; ProtocolError for a row that cannot."""
    state, transcript, results, forked = State(), Transcript(), list[RunResult](), False
    for row in rows:
        record = row.record
        forked = isinstance(record, SessionForked) or (forked and not isinstance(record, SessionOpened))
        found = None if forked else _other(state, transcript, record)
        if found is not None:
            expected = described(record)
            raise Diverged(
                f"session {session_id!r}, seq {row.seq}: the journal holds {expected}; the machine decides {found}",
                seq=row.seq,
                expected=expected,
                found=found,
            )
        usage = replace(state.usage, requests=state.requests, tool_calls=state.tool_calls)
        state = apply(state, record)
        transcript.add(record)
        if isinstance(record, RunEnded):
            results.append(_result(session_id, record, transcript, usage))
    messages: tuple[Message, ...] = transcript.snapshot()
    return Replay(session_id=session_id, rows=len(rows), results=tuple(results), messages=messages, open=is_open(state))


def _other(state: State, transcript: Transcript, record: Record) -> str | None:
    """What the machine decides instead of ``record``; None if it decides that."""
    match record:
        case ModelStepStarted() if state.phase is Phase.MODEL_RUNNING:
            return None  # a layer's further request
        case ModelStepStarted():
            wanted = any(isinstance(a, CallModel) and (a.turn, a.attempt) == (record.turn, record.attempt) for a in decide(state))
        case ModelStepEnded():
            return _other_verdict(state, transcript, record)
        case ToolStepStarted(parent=None):
            wanted = any(isinstance(a, RunTool) and a.call.key == record.key for a in decide(state))
        case ReconcileStarted():
            wanted = any(isinstance(a, Reconcile) and a.call.key == record.key for a in decide(state))
        case ToolStepEnded() if _is_settled(state, record):
            wanted = any(isinstance(a, SettleTool) and _likens(a.record, record) for a in decide(state))
        case RunEnded():
            wanted = any(isinstance(a, EndRun) and a.record == record for a in decide(state))
        case _:
            return None
    return None if wanted else _actions(state)


def _is_settled(state: State, record: ToolStepEnded) -> bool:
    """Whether the machine gave the call its result, and not a step that ran."""
    call = state.calls.get(record.key)
    resting = call is not None and call.progress in (Progress.PENDING, Progress.WAITING, Progress.LOST)
    return resting and record.decided_by == "runtime" and record.code not in _SETTLED_ELSEWHERE


def _likens(decided: ToolStepEnded, record: ToolStepEnded) -> bool:
    # Several are settled at once, so the end of the run is said with each of them, and decided with the first.
    return (decided.key, decided.code, decided.effect) == (record.key, record.code, record.effect)


def _other_verdict(state: State, transcript: Transcript, record: ModelStepEnded) -> str | None:
    response = response_of(replace(record, received=None), state)
    refused = {refusal.ordinal: refusal for refusal in record.refused}
    gone = {call.name for n, call in enumerate(record.message.tool_calls) if n in refused and refused[n].code == "not_offered"}
    judged = judge(
        state,
        response.message,
        record.stop,
        offered=[name for name in state.traits if name not in gone],
        known_ids=transcript.ids,
        stop_raw=record.stop_raw,
        usage=record.usage,
    )
    # The reasons name the tools that were offered, which only the request knew.
    same = _without_reasons(judged) == _without_reasons(record)
    return None if same else described(judged)


def _without_reasons(record: ModelStepEnded) -> ModelStepEnded:
    refused = tuple(replace(refusal, reason="") for refusal in record.refused)
    return replace(record, received=None, redacted=(), refused=refused)


def _actions(state: State) -> str:
    return ", ".join(_words(action) for action in decide(state)) or "nothing"


def _words(action: Any) -> str:
    match action:
        case CallModel():
            return f"a request (turn {action.turn}, attempt {action.attempt})"
        case RunTool():
            return f"to run {action.call.key}"
        case Reconcile():
            return f"to ask about {action.call.key}"
        case _:
            return described(action.record)


def _result(session_id: str, record: RunEnded, transcript: Transcript, usage: Usage) -> RunResult:
    return RunResult(
        outcome=record.outcome,
        reason=record.reason,
        text=record.text,
        session_id=session_id,
        run_id=record.run_id,
        message=transcript.last,
        messages=transcript.messages,
        usage=usage,
    )
