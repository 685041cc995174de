"""Events and records as lines of JSON, for programs. docs/cli.md describes each line."""

from __future__ import annotations

import re
import sys
from typing import Any, get_args

import msgspec

from ...events import Event, RunFinished
from ...messages import Usage
from ...records import Outcome, Row, RunResult
from .exits import OUTCOME_CODES, error_code, sentence

__all__ = ["EVENT_TYPES", "JsonLines", "event_line", "row_object", "usage_object", "write_line"]

EVENT_TYPES: dict[type[Any], str] = {event: re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower() for event in get_args(Event)}
"""``TextDelta`` is ``text_delta``, and so on."""


class JsonLines:
    """Writes the events of one run to stdout, one object per line, each flushed. The last is ``run_finished`` or ``error``."""

    def event(self, event: Event, *, signal_code: int | None = None) -> None:
        """signal_code: the exit code if a signal made the run end CANCELLED."""
        write_line(event_line(event, signal_code=signal_code))

    def failed(self, error: BaseException, *, session_id: str) -> None:
        """The last line of a run that has no result."""
        said = {"type": "error", "error": type(error).__name__, "message": sentence(error)}
        write_line({**said, "session_id": session_id, "exit_code": error_code(error)})


def event_line(event: Event, *, signal_code: int | None = None) -> dict[str, Any]:
    """One event as an object. ``run_finished`` has the result without the transcript, which ``interlock export`` has."""
    name = EVENT_TYPES[type(event)]
    if isinstance(event, RunFinished):
        return {"type": name, "result": _result(event.result, signal_code)}
    return {"type": name, **_builtins(event)}


def _result(result: RunResult, signal_code: int | None) -> dict[str, Any]:
    code = OUTCOME_CODES[result.outcome]
    return {
        "outcome": result.outcome.value,
        "reason": result.reason,
        "text": result.text,
        "session_id": result.session_id,
        "run_id": result.run_id,
        "usage": usage_object(result.usage),
        "questions": _builtins(result.questions),
        "exit_code": signal_code or code if result.outcome is Outcome.CANCELLED else code,
    }


def usage_object(usage: Usage) -> dict[str, int | None]:
    """Every count; null is what the provider did not say."""
    return {name: getattr(usage, name) for name in usage.__struct_fields__}


def row_object(row: Row) -> dict[str, Any]:
    """One record in its envelope."""
    return {"session": row.session, "seq": row.seq, "at": row.at, "v": row.v, "record": _builtins(row.record)}


def write_line(value: Any) -> None:
    """One line of JSON, seen at once by whoever reads."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)
