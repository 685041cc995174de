"""Whether a replay came to what the journal holds, and both in words."""

from __future__ import annotations

from msgspec.structs import replace

from ..messages import text_of
from ..records import (
    HandlerStarted,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    ReconcileEnded,
    Record,
    RunCancelled,
    RunEnded,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
)


def same(known: Record, found: Record) -> bool:
    """Whether ``found`` says what ``known`` does. How a cancelled step came to stop depends on the moment, and is not compared."""
    match known, found:
        case ModelStepStarted(), ModelStepStarted():
            return (known.turn, known.attempt) == (found.turn, found.attempt)
        case ModelStepEnded(), ModelStepEnded():
            return replace(found, received=known.received, usage=known.usage, redacted=known.redacted) == known
        case ModelStepFailed(), ModelStepFailed():
            return known.kind == found.kind and (known.kind in ("cancelled", "limit") or known.message == found.message)
        case ToolStepEnded(), ToolStepEnded():
            return _same_result(known, found)
        case ToolStepStarted(), ToolStepStarted():
            return (known.key, known.call, known.parent) == (found.key, found.call, found.parent)
        case HandlerStarted(), HandlerStarted():
            return (known.attempt, known.arguments) == (found.attempt, found.arguments)
        case ToolStepSuspended(), ToolStepSuspended():
            return (known.question, known.arguments) == (found.question, found.arguments)
        case _:
            return known == found


def _same_result(known: ToolStepEnded, found: ToolStepEnded) -> bool:
    if (known.code, known.key) != (found.code, found.key):
        return False
    if known.code == "cancelled":
        return True
    if (known.effect, known.ending, known.decided_by) != (found.effect, found.ending, found.decided_by):
        return False
    if known.payload is not None and known.payload == found.payload:
        return True  # of a result beyond limits.result_store_bytes only the beginning is there, so its size is said differently
    return known.code == "unserializable" or known.message == found.message  # that message names a class that only the handler knows


def described(record: Record) -> str:
    """A record in words, for whoever has to find the difference."""
    name = type(record).__name__
    match record:
        case ModelStepStarted():
            return f"{name}: turn {record.turn}, attempt {record.attempt}"
        case ModelStepEnded():
            calls = ", ".join(f"{call.name} {call.arguments}" for call in record.message.tool_calls)
            refused = "".join(f", refused {refusal.code}" for refusal in record.refused)
            return _short(
                f"{name}: {record.verdict.value}{f' ({record.code})' if record.code else ''}{refused}: {calls or record.message.content!r}"
            )
        case ModelStepFailed():
            return _short(f"{name}: {record.kind}: {record.message}")
        case ToolStepStarted():
            made = f" {record.call.name} {record.call.arguments}" if record.call is not None else ""
            return _short(f"{name} of {record.key}{made}")
        case HandlerStarted():
            return _short(f"{name} of {record.key} with {record.arguments}")
        case ToolStepEnded():
            said = text_of(record.message.content)
            return _short(
                f"{name} of {record.key} ({record.message.name}): {record.code} by {record.decided_by}, effect {record.effect}: {said!r}"
            )
        case ToolStepSuspended():
            return _short(f"{name} of {record.key}: {record.question!r}")
        case ReconcileEnded():
            return _short(f"{name} of {record.key}: {record.found}")
        case RunEnded():
            return _short(f"{name}: {record.outcome.value} ({record.reason}): {record.text!r}")
        case RunCancelled():
            return f"{name}: {record.outcome.value} ({record.reason})"
        case _:
            return name


def _short(text: str) -> str:
    return text if len(text) <= 400 else text[:399] + "…"
