"""``ToolLog``: one line and one entry per tool call, those that never reached a layer included."""

from __future__ import annotations

import logging
from collections import deque

from msgspec import Struct

from ..messages import Effect
from ..records import Record, RunEnded, SessionOpened, ToolStepEnded, ToolStepStarted
from .base import AgentExtension, RunContext, told_of

_log = logging.getLogger("interlock.tools")

ENTRIES_MAX = 10_000


class ToolLogEntry(Struct, frozen=True, kw_only=True):
    """How one call was settled. started_at: seconds since 1970. duration_s: 0 for a call that never started."""

    session_id: str
    run_id: str
    key: str
    call_id: str
    tool: str
    code: str
    failed: bool
    effect: Effect
    decided_by: str
    started_at: float
    duration_s: float


class ToolLog(AgentExtension):
    """Keeps the last 10,000 calls in ``entries`` and logs each at INFO on ``interlock.tools``.

    It reads records, not the onion: a call that was vetoed, malformed, of an unknown tool or superseded is there too.
    """

    def __init__(self, *, entries_max: int = ENTRIES_MAX) -> None:
        self.entries: deque[ToolLogEntry] = deque(maxlen=entries_max)
        self._started: dict[str, dict[str, float]] = {}  # session -> key -> when

    @told_of(ToolStepStarted, ToolStepEnded, RunEnded, SessionOpened)
    def on_record(self, context: RunContext, record: Record) -> None:
        if isinstance(record, ToolStepStarted):
            self._started.setdefault(context.session_id, {})[record.key] = context.clock()
        elif isinstance(record, ToolStepEnded):
            self._end(context, record)
        elif isinstance(record, (RunEnded, SessionOpened)):
            # What is still open belongs to a call that waits for a person or to a process that died: not timed.
            self._started.pop(context.session_id, None)

    def _end(self, context: RunContext, record: ToolStepEnded) -> None:
        now = context.clock()
        started_at = self._started.get(context.session_id, {}).pop(record.key, now)
        message = record.message
        entry = ToolLogEntry(
            session_id=context.session_id,
            run_id=context.run_id,
            key=record.key,
            call_id=message.tool_call_id,
            tool=message.name,
            code=record.code,
            failed=message.failed,
            effect=record.effect,
            decided_by=record.decided_by,
            started_at=started_at,
            duration_s=max(0.0, now - started_at),
        )
        self.entries.append(entry)
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "tool %s (call %s) %s in %.3f s, effect %s, decided by %s",
                *(_one_line(entry.tool), _one_line(entry.call_id), entry.code),
                *(entry.duration_s, entry.effect, _one_line(entry.decided_by)),
            )


def _one_line(text: str) -> str:
    """Names come from the model: one with a line break must not look like another line of the log."""
    return text if text.isprintable() else repr(text)
