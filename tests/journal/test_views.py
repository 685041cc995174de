"""Spans and usage are folds over the rows."""

from __future__ import annotations

from interlock.journal.spans import Span, spans
from interlock.journal.usage import usage_by_run, usage_of
from interlock.messages import AssistantMessage, StopReason, ToolCall, ToolMessage, Usage, UserMessage
from interlock.records import (
    HandlerStarted,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    Outcome,
    QuestionAnswered,
    Record,
    Row,
    RunEnded,
    RunStarted,
    SessionOpened,
    ToolLateResult,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
    Verdict,
)


def rows(*records: Record) -> list[Row]:
    """One row a second."""
    return [Row("s", n, float(n), 1, record) for n, record in enumerate(records, 1)]


def started(run_id: str = "r", **more: str) -> RunStarted:
    return RunStarted(run_id=run_id, prompt=UserMessage(content="hi"), **more)  # type: ignore[arg-type]


def asked(*names: str, usage: Usage | None = None) -> ModelStepEnded:
    calls = tuple(ToolCall(id=f"id-{name}", name=name) for name in names)
    message = AssistantMessage(tool_calls=calls)
    return ModelStepEnded(message=message, stop=StopReason.TOOL_CALLS, verdict=Verdict.TOOLS, usage=usage)


def answered(usage: Usage | None = None) -> ModelStepEnded:
    return ModelStepEnded(message=AssistantMessage(content="42"), stop=StopReason.STOP, verdict=Verdict.ANSWER, usage=usage)


def settled(key: str, name: str, *, failed: bool = False, code: str = "ok") -> ToolStepEnded:
    message = ToolMessage(tool_call_id=f"id-{name}", name=name, content="x", failed=failed)
    return ToolStepEnded(key=key, message=message, effect="happened", code=code)


def ended(run_id: str = "r") -> RunEnded:
    return RunEnded(run_id=run_id, outcome=Outcome.COMPLETED, reason="answer")


RUN = rows(
    SessionOpened(epoch=1),
    started(),
    ModelStepStarted(turn=0, attempt=0),
    ModelStepFailed(kind="http", message="503", retryable=True, usage=Usage(input_tokens=5)),
    ModelStepStarted(turn=0, attempt=1),
    asked("look", "write", usage=Usage(input_tokens=10, output_tokens=2)),
    ToolStepStarted(key="r/0/0"),
    HandlerStarted(key="r/0/0", attempt=0, arguments="{}"),
    ToolStepStarted(key="r/0/0.1", call=ToolCall(id="n", name="nested"), parent="r/0/0"),
    settled("r/0/0.1", "nested"),
    settled("r/0/0", "look"),
    settled("r/0/1", "write", failed=True, code="superseded"),
    ModelStepStarted(turn=1, attempt=0),
    answered(),
    ended(),
)


def brief(span: Span) -> tuple[str, str, str, float, float | None, str, str | None]:
    return span.kind, span.name, span.key, span.start, span.end, span.status, span.parent


def test_a_span_is_a_started_and_an_ended_record() -> None:
    assert [brief(span) for span in spans(RUN)] == [
        ("run", "run", "r", 2, 15, "completed", None),
        ("model", "model", "r/0/model/0", 3, 4, "failed", "r"),
        ("model", "model", "r/0/model/1", 5, 6, "ok", "r"),
        ("tool", "look", "r/0/0", 7, 11, "ok", "r"),
        ("tool", "nested", "r/0/0.1", 9, 10, "ok", "r/0/0"),
        ("tool", "write", "r/0/1", 12, 12, "failed", "r"),
        ("model", "model", "r/1/model/0", 13, 14, "ok", "r"),
    ]
    by_key = {span.key: span for span in spans(RUN)}
    assert by_key["r"].attributes == {"reason": "answer"}
    assert by_key["r/0/model/0"].attributes == {"turn": 0, "attempt": 0, "error": "http", "message": "503"}
    assert by_key["r/0/model/1"].attributes["input_tokens"] == 10
    assert by_key["r/0/0"].attributes == {
        "call_id": "id-look",
        "handler_started": 8.0,
        "attempts": 1,
        "code": "ok",
        "effect": "happened",
        "decided_by": "handler",
    }
    assert by_key["r/0/0"].duration_s == 4


def test_what_a_dead_process_left_open_is_lost_or_still_open() -> None:
    left = rows(started(), ModelStepStarted(turn=0, attempt=0), SessionOpened(epoch=2), ModelStepStarted(turn=0, attempt=1))
    assert [(span.status, span.end, span.duration_s) for span in spans(left)] == [
        ("open", None, None),
        ("lost", None, None),
        ("open", None, None),
    ]


def test_a_suspended_call_is_one_span_over_both_entries() -> None:
    (_, _, tool) = spans(
        rows(
            started(parent_session_id="up"),
            ModelStepStarted(turn=0, attempt=0),
            asked("pay"),
            ToolStepStarted(key="r/0/0"),
            ToolStepSuspended(key="r/0/0", question_id="q", question="sure?", digest="d"),
            QuestionAnswered(key="r/0/0", question_id="q", answer=True),
            ToolStepStarted(key="r/0/0"),
            HandlerStarted(key="r/0/0", attempt=0, arguments="{}"),
            settled("r/0/0", "pay", failed=True),
            ToolLateResult(key="r/0/0"),
        )
    )
    assert brief(tool) == ("tool", "pay", "r/0/0", 4, 9, "failed", "r")
    assert {name: tool.attributes[name] for name in ("question", "asked", "answered", "handler_started", "late_result")} == {
        "question": "sure?",
        "asked": 5.0,
        "answered": 6.0,
        "handler_started": 8.0,
        "late_result": 10.0,
    }


def test_any_prefix_of_a_session_has_its_spans() -> None:
    for length in range(len(RUN) + 1):
        assert len(spans(RUN[:length])) <= 7


def test_usage_is_summed_per_run_and_for_the_session() -> None:
    second = rows(
        started("r2"),
        ModelStepStarted(turn=0, attempt=0),
        asked("pay", usage=Usage(input_tokens=1)),
        ToolStepStarted(key="r2/0/0"),
        ToolStepStarted(key="r2/0/0"),
        started("r3"),
    )
    assert usage_by_run([*RUN, *second]) == {
        "r": Usage(input_tokens=15, output_tokens=2, requests=3, tool_calls=2),
        "r2": Usage(input_tokens=1, output_tokens=None, requests=1, tool_calls=1),
        "r3": Usage(),
    }
    assert usage_of([*RUN, *second]) == Usage(input_tokens=16, output_tokens=2, requests=4, tool_calls=3)
    assert usage_of([]) == Usage()
