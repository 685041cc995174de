"""Fork: a new session from the beginning of another one. What that one did outside is not undone, and is never done again.

A call that is open at the fork's place is settled there with what the source knows of it by now:

- settled in the source, whether before or after the place: the same result;
- started there (or a call that it made was) and not settled: unknown;
- neither: unknown, too, because the source may still run it.

So no call of the fork's rows is ever run by the fork, and none is told as undone that may have been done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..errors import CommandRefused, JournalConflict, UsageError
from ..journal.base import Journal
from ..machine import Call, Phase, Progress, State, apply, failed_message, fold
from ..messages import text_of
from ..records import HandlerStarted, Record, Row, RunEnded, RunStarted, SessionForked, ToolLateResult, ToolStepEnded

# Held for the one flush that writes the fork.
LEASE_S = 15.0

RUNNING = "it was running in the session that this one was forked from, and its result is not known here"
OPEN = "it had not been started when this session was forked; the session that it was forked from may still run it"


class Turn(Struct, frozen=True, gc=False, kw_only=True):
    """A place where a fork is sensible: everything up to ``seq`` is kept. No call is open there.

    what: ``prompt`` (a prompt was accepted, nothing was asked of the model: ``resume()`` of the fork asks anew; ``seq - 1``
    is the moment before the prompt), ``results`` (the calls of a response have their results) or ``end`` (the run is over).
    turn: counts from 0 in each run. text: the prompt, the tools that were called, or the outcome.
    """

    seq: int
    run_id: str
    turn: int
    what: Literal["prompt", "results", "end"]
    text: str


def turns_of(rows: Iterable[Row]) -> list[Turn]:
    """The sensible places of a session, in order."""
    state, found = State(), list[Turn]()
    tools: list[str] = []
    for row in rows:
        before, state = state, apply(state, row.record)
        match row.record:
            case RunStarted() as record:
                found.append(Turn(seq=row.seq, run_id=record.run_id, turn=0, what="prompt", text=text_of(record.prompt.content)))
            case RunEnded() as record:
                text = record.outcome.value + (f" ({record.reason})" if record.reason != record.outcome.value else "")
                found.append(Turn(seq=row.seq, run_id=record.run_id, turn=before.turn, what="end", text=text))
            case _ if before.phase is not Phase.TOOLS and state.phase is Phase.TOOLS:
                tools = [call.call.name for call in state.calls.values()]
            case _ if before.phase is Phase.TOOLS and state.phase is not Phase.TOOLS:
                found.append(Turn(seq=row.seq, run_id=before.run_id, turn=before.turn, what="results", text=", ".join(tools)))
            case _:
                pass
    return found


def appendix(source: str, rows: Sequence[Row], seq: int) -> list[Record]:
    """What follows the first ``seq`` of ``rows`` in the fork: where they are from, and a result for each call that is open there."""
    state = fold(row.record for row in rows[:seq])
    started: set[str] = set()
    ended: dict[str, ToolStepEnded] = {}
    late: dict[str, ToolLateResult] = {}
    for row in rows:
        match row.record:
            case HandlerStarted(key=key):
                started.add(key)
            case ToolStepEnded(key=key) as record:
                ended[key] = record
            case ToolLateResult(key=key) as record:
                late[key] = record
            case _:
                pass
    records: list[Record] = [SessionForked(source=source, seq=seq, known=len(rows))]
    for call in reversed(state.calls.values()):  # a call that was made by another one before that one
        if call.progress is Progress.DONE:
            continue
        records.append(_settled(call, ended.get(call.key), started))
        if call.key in late:
            records.append(late[call.key])
    return records


def _settled(call: Call, known: ToolStepEnded | None, started: set[str]) -> ToolStepEnded:
    if known is not None:  # what the run was to do after it was the source's decision, and is not part of the result
        return replace(known, ending=None)
    touched = any(key == call.key or key.startswith(f"{call.key}/") for key in started)
    if call.refused is not None and not touched:
        message = failed_message(call.call, call.refused.reason, "none")
        return ToolStepEnded(key=call.key, message=message, effect="none", decided_by="runtime", code=call.refused.code)
    code, reason = ("interrupted", RUNNING) if touched else ("superseded", OPEN)
    message = failed_message(call.call, reason, "unknown")
    return ToolStepEnded(key=call.key, message=message, effect="unknown", decided_by="runtime", code=code)


async def fork_session(
    journal: Journal, source: str, *, at_seq: int | None = None, new_session_id: str, clock: Callable[[], float]
) -> SessionForked:
    """Write the fork of ``source`` as ``new_session_id``: all of it in one transaction, or nothing.

    at_seq: the last row to keep; None is all of them. The source is read once, and may be running. Raises UsageError (no
    such session, no such row), CommandRefused (the new id is taken), JournalError.
    """
    if at_seq is not None and (isinstance(at_seq, bool) or not isinstance(at_seq, int)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"fork: at_seq must be the number of a row, not {at_seq!r}")
    rows = await journal.read(source)
    if not rows:
        raise UsageError(f"fork: there is no session {source!r}")
    seq = len(rows) if at_seq is None else at_seq
    if not 1 <= seq <= len(rows):
        raise UsageError(f"fork: session {source!r} has the rows 1 to {len(rows)}; there is no row {seq}")
    made = appendix(source, rows, seq)
    payloads = await _payloads(journal, source, [*(row.record for row in rows[:seq]), *made])
    log = journal.session(new_session_id)
    try:
        taken = await log.claim(lease_s=LEASE_S)
        if not taken:  # from here to the flush nothing is awaited: whoever flushes in between would store a part of it
            for digest, data in payloads.items():
                log.put_payload(digest, data)
            for row in rows[:seq]:
                log.append(row.record, at=row.at)
            for record in made:
                log.append(record, at=clock())
        await log.release()
    except JournalConflict as error:
        raise _taken(new_session_id) from error
    if taken:
        raise _taken(new_session_id)
    assert isinstance(made[0], SessionForked)
    return made[0]


def _taken(session_id: str) -> CommandRefused:
    return CommandRefused(f"fork: there is a session {session_id!r} already; name another one, or leave the name out")


async def _payloads(journal: Journal, source: str, records: Iterable[Record]) -> dict[str, bytes]:
    """The full copies of capped results that ``records`` speak of, as far as they are kept."""
    log, found = journal.session(source), dict[str, bytes]()
    for record in records:
        if isinstance(record, ToolStepEnded) and record.payload is not None and record.payload.digest not in found:
            data = await log.get_payload(record.payload.digest)
            if data is not None:
                found[record.payload.digest] = data
    return found
