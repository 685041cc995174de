"""A trace, as a view over the rows: a span is a Started record and the Ended one that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from ..messages import ToolCall
from ..records import (
    HandlerStarted,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    QuestionAnswered,
    ReconcileEnded,
    ReconcileStarted,
    Row,
    RunEnded,
    RunStarted,
    SessionForked,
    SessionOpened,
    ToolLateResult,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
    Verdict,
)

SpanKind = Literal["run", "model", "tool"]

_ToolRecord = (
    ToolStepStarted
    | HandlerStarted
    | ToolStepEnded
    | ToolLateResult
    | ToolStepSuspended
    | QuestionAnswered
    | ReconcileStarted
    | ReconcileEnded
)


class Span(Struct, kw_only=True):
    """Something that took time.

    name: ``run``, ``model``, or the tool's. key: unique in the session; a run's is its run_id, a tool call's the
    runtime's own identity of it. parent: the key of the enclosing span: a run's steps, and a call that another made.
    start, end: seconds since 1970; end is None while it is open, and of what a dead process left behind for ever.
    status: ``open``; ``lost``, if its process died; a run's outcome; ``ok``, or ``failed``.
    """

    kind: SpanKind
    name: str
    key: str
    start: float
    end: float | None = None
    status: str = "open"
    parent: str | None = None
    attributes: dict[str, Any] = {}

    @property
    def duration_s(self) -> float | None:
        return None if self.end is None else self.end - self.start


def spans(rows: Iterable[Row]) -> list[Span]:
    """The spans of a session, in the order in which they started. A call that was settled without running is one of no length."""
    fold = _Fold()
    for row in rows:
        fold.add(row)
    return fold.found


class _Fold:
    def __init__(self) -> None:
        self.found: list[Span] = []
        self._run: Span | None = None
        self._model: Span | None = None
        self._tools: dict[str, Span] = {}
        self._calls: dict[str, ToolCall] = {}

    def add(self, row: Row) -> None:
        at = row.at
        match record := row.record:
            case SessionOpened() | SessionForked():
                self._lose()
            case RunStarted():
                self._run = self._open(Span(kind="run", name="run", key=record.run_id, start=at))
                if record.parent_session_id is not None:
                    self._run.attributes["parent_session_id"] = record.parent_session_id
            case ModelStepStarted():
                key = f"{self._run_id}/{record.turn}/model/{record.attempt}"
                self._model = self._open(Span(kind="model", name="model", key=key, start=at, parent=self._run_id))
                self._model.attributes = {"turn": record.turn, "attempt": record.attempt}
            case ModelStepEnded():
                self._end_model(record, at)
            case ModelStepFailed():
                self._fail_model(record, at)
            case ToolStepStarted() | HandlerStarted() | ToolStepEnded() | ToolLateResult():
                self._add_tool(record, at)
            case ToolStepSuspended() | QuestionAnswered() | ReconcileStarted() | ReconcileEnded():
                self._add_tool(record, at)
            case RunEnded() if self._run is not None:
                _close(self._run, at, record.outcome.value, reason=record.reason)
                self._run = None
            case _:
                pass

    @property
    def _run_id(self) -> str:
        return "" if self._run is None else self._run.key

    def _open(self, span: Span) -> Span:
        self.found.append(span)
        return span

    def _lose(self) -> None:
        """The process died: its model step came to nothing. Its calls are still to be settled, and then they say so."""
        if self._model is not None:
            self._model.status, self._model = "lost", None

    def _end_model(self, record: ModelStepEnded, at: float) -> None:
        model, self._model = self._model, None
        if model is None:
            return
        _close(model, at, "ok", stop=record.stop.value, verdict=record.verdict.value)
        if record.code:
            model.attributes["code"] = record.code
        if record.usage is not None:
            model.attributes["input_tokens"] = record.usage.input_tokens
            model.attributes["output_tokens"] = record.usage.output_tokens
        if record.verdict is Verdict.TOOLS:
            turn = model.attributes["turn"]
            self._calls = {f"{self._run_id}/{turn}/{n}": call for n, call in enumerate(record.message.tool_calls)}

    def _fail_model(self, record: ModelStepFailed, at: float) -> None:
        model, self._model = self._model, None
        if model is not None:
            _close(model, at, "failed", error=record.kind, message=record.message)

    def _add_tool(self, record: _ToolRecord, at: float) -> None:
        span = self._tools.get(record.key) or self._open_tool(record, at)
        match record:
            case HandlerStarted():
                span.attributes["handler_started"] = at
                span.attributes["attempts"] = span.attributes.get("attempts", 0) + 1
            case ToolStepSuspended():
                span.attributes["question"] = record.question
                span.attributes["asked"] = at
            case QuestionAnswered():
                span.attributes["answered"] = at
            case ReconcileStarted():
                span.attributes["reconcile_started"] = at
            case ReconcileEnded():
                span.attributes["reconcile_ended"] = at
                span.attributes["found"] = record.found
            case ToolLateResult():
                span.attributes["late_result"] = at
            case ToolStepEnded():
                span.name = record.message.name
                ok = "failed" if record.message.failed else "ok"
                _close(span, at, ok, code=record.code, effect=record.effect, decided_by=record.decided_by)
            case ToolStepStarted():
                pass

    def _open_tool(self, record: Any, at: float) -> Span:
        call: ToolCall | None = getattr(record, "call", None) or self._calls.get(record.key)
        span = Span(
            kind="tool",
            name=call.name if call is not None else "",
            key=record.key,
            start=at,
            parent=getattr(record, "parent", None) or self._run_id or None,
            attributes={} if call is None else {"call_id": call.id},
        )
        self._tools[record.key] = span
        return self._open(span)


def _close(span: Span, at: float, status: str, **attributes: Any) -> None:
    span.end, span.status = at, status
    span.attributes.update(attributes)
