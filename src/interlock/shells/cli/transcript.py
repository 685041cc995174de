"""A session for reading: as a conversation, as lines of records, as a document."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ... import __version__
from ...journal import SessionInfo
from ...journal.transcript import Transcript
from ...journal.usage import usage_of
from ...messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, text_of
from ...records import (
    ExtensionNoted,
    HandlerStarted,
    MessagesImported,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    Outcome,
    QuestionAnswered,
    ReconcileEnded,
    ReconcileStarted,
    Record,
    Row,
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
)
from .jsonl import row_object, usage_object
from .text import outcome_words

__all__ = ["Format", "exported", "record_line", "shown"]

# A tool's result that is longer is shown by its beginning; --full shows it all.
LINES_SHOWN = 12


class Format(enum.Enum):
    """What ``interlock export`` writes."""

    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


def shown(rows: Sequence[Row], *, full: bool) -> Iterator[tuple[str, str]]:
    """Each paragraph of the conversation with its style."""
    for said in _in_order(rows):
        match said:
            case SystemMessage():
                yield f"system: {said.content}\n", "dim"
            case UserMessage():
                yield f"> {text_of(said.content)}\n", "bold"
            case AssistantMessage():
                if said.content.strip():
                    yield said.content.strip() + (" (incomplete: this is no answer)" if said.incomplete else "") + "\n", ""
                for call in said.tool_calls:
                    yield f"→ {call.name} {call.arguments}", "cyan"
            case ToolMessage():
                sign = f"✗ (effect: {said.effect})" if said.failed else "✓"
                yield f"{sign} {said.name}: {_beginning(text_of(said.content), full=full)}\n", "red" if said.failed else "green"
            case RunEnded():
                yield f"{outcome_words(said.outcome.value, said.reason)}\n", "bold red"


def record_line(row: Row, width: int = 400) -> str:
    """One record on one line: its number, its time, its kind, and what it says in short. The day is left out where ``width`` is small."""
    at, kind = datetime.fromtimestamp(row.at, UTC), type(row.record).__name__
    said = " ".join(_said(row.record).split())
    if width < 60:  # the day and the milliseconds would leave no place for the kind
        return f"{row.seq:>5}  {at:%H:%M:%S}  {kind}  {said}"
    return f"{row.seq:>5}  {at.strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]}  {kind:17}  {said}"


def exported(info: SessionInfo, rows: Sequence[Row], *, form: Format) -> str:
    """The whole session as a document that ends with a line break."""
    match form:
        case Format.JSONL:
            return "".join(msgspec.json.encode(row_object(row), enc_hook=str).decode() + "\n" for row in rows)
        case Format.JSON:
            return json.dumps(_document(info, rows), indent=2, ensure_ascii=False) + "\n"
        case Format.MARKDOWN:
            return _markdown(info, rows)


def _document(info: SessionInfo, rows: Sequence[Row]) -> dict[str, Any]:
    ended = [row.record for row in rows if isinstance(row.record, RunEnded)]
    return {
        "interlock": __version__,
        "session": {"id": info.session_id, "state": info.state, "created_at": info.created_at, "updated_at": info.updated_at},
        "messages": msgspec.to_builtins(_messages(rows), enc_hook=str),
        "runs": [{"run_id": run.run_id, "outcome": run.outcome.value, "reason": run.reason} for run in ended],
        "usage": usage_object(usage_of(rows)),
    }


def _markdown(info: SessionInfo, rows: Sequence[Row]) -> str:
    parts = [f"# Session {info.session_id}", f"{datetime.fromtimestamp(info.created_at, UTC):%Y-%m-%d %H:%M} UTC, {info.rows} records."]
    for said in _in_order(rows):
        match said:
            case SystemMessage():
                parts += ["## System", said.content]
            case UserMessage():
                parts += ["## User", text_of(said.content)]
            case AssistantMessage():
                parts.append("## Assistant (incomplete: this is no answer)" if said.incomplete else "## Assistant")
                if said.content.strip():
                    parts.append(said.content.strip())
                parts += [f"Calls `{call.name}`:\n\n{_fenced(call.arguments, 'json')}" for call in said.tool_calls]
            case ToolMessage():
                failed = f" (failed, effect: {said.effect})" if said.failed else ""
                parts += [f"### {said.name}{failed}", _fenced(text_of(said.content))]
            case RunEnded():
                parts.append(f"*The run ended here: {' '.join(outcome_words(said.outcome.value, said.reason).split())}.*")
    return "\n\n".join(parts) + "\n"


def _fenced(text: str, language: str = "") -> str:
    """``text`` in a fence that nothing in it can close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _in_order(rows: Sequence[Row]) -> Iterator[Message | RunEnded]:
    """What was said, and between it the end of each run that gave no answer."""
    transcript, seen = Transcript(), 0
    for row in rows:
        transcript.add(row.record)
        if isinstance(row.record, RunEnded):
            yield from transcript.messages[seen:]
            seen = len(transcript.messages)
            if row.record.outcome is not Outcome.COMPLETED:
                yield row.record
    yield from transcript.snapshot()[seen:]


def _messages(rows: Sequence[Row]) -> tuple[Message, ...]:
    return Transcript(row.record for row in rows).snapshot()


def _beginning(text: str, *, full: bool) -> str:
    lines = text.splitlines()
    if full or len(lines) <= LINES_SHOWN:
        return text
    return "\n".join([*lines[:LINES_SHOWN], f"  ... {len(lines) - LINES_SHOWN} more lines (--full)"])


def _said(record: Record) -> str:
    # A record of a later version is shown by its name alone.
    return _SAID.get(type(record), lambda _: "")(record)


def _model_said(record: ModelStepEnded) -> str:
    calls = ", ".join(f"{call.name} {call.arguments}" for call in record.message.tool_calls)
    code = f" ({record.code})" if record.code else ""
    return f"{record.verdict.value}{code}: {calls or record.message.content}"


def _tool_said(record: ToolStepEnded) -> str:
    said = text_of(record.message.content)
    return f"{record.key} {record.message.name} {record.code} by {record.decided_by}, effect {record.effect}: {said}"


_SAID: dict[type[Any], Callable[[Any], str]] = {
    SessionOpened: lambda record: f"epoch {record.epoch}",
    MessagesImported: lambda record: f"{len(record.messages)} messages",
    RunStarted: lambda record: f"{record.run_id}: {text_of(record.prompt.content)}",
    ModelStepStarted: lambda record: f"turn {record.turn}, attempt {record.attempt}",
    ModelStepEnded: _model_said,
    ModelStepFailed: lambda record: f"{record.kind}: {record.message}",
    ToolStepStarted: lambda record: record.key,
    HandlerStarted: lambda record: f"{record.key} {record.arguments}",
    ToolStepEnded: _tool_said,
    ToolStepSuspended: lambda record: f"{record.key}: {record.question}",
    QuestionAnswered: lambda record: f"{record.key}: {record.verdict} {record.answer!r}",
    ReconcileStarted: lambda record: record.key,
    ReconcileEnded: lambda record: f"{record.key}: {record.found} {record.reason}",
    ToolLateResult: lambda record: f"{record.key}: {record.content}",
    SteeringReceived: lambda record: text_of(record.message.content),
    ExtensionNoted: lambda record: f"{record.extension}: {record.data!r}",
    RunCancelled: lambda record: outcome_words(record.outcome.value, record.reason),
    RunEnded: lambda record: outcome_words(record.outcome.value, record.reason),
    SessionForked: lambda record: f"from {record.source} at {record.seq}",
}
