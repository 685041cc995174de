"""What a SQLite journal reads from its database. Blocking, without asyncio; every function takes the connection to use.

A session is read from its last row back, each row naming the one before it, and checked on the way: nothing is left out in silence.
"""

from __future__ import annotations

import sqlite3
from struct import Struct as Layout
from typing import NamedTuple
from zlib import crc32

from ..errors import JournalCorrupt
from ..records import Record, Row
from ..records.codec import decode
from .base import SessionInfo
from .leases import Lease, state_of

CHUNK_ROWS = 256
"""Rows read at a time: about 1 ms of work, so that a long session does not stop the event loop."""


class Place(NamedTuple):
    """A session's number, the lease on it if there is one, how many rows it has, and the id of the last one."""

    number: int
    lease: Lease | None
    rows: int
    last: int


_FIND = "SELECT id, name, rows, last, owner, epoch, lease_s, until FROM sessions WHERE"
_BY_NUMBER, _BY_NAME = f"{_FIND} id = ? AND name IS NOT NULL", f"{_FIND} name = ?"


def find(connection: sqlite3.Connection, *, name: str = "", number: int = 0, damaged_too: bool = False) -> Place | None:
    """The session with this number, or else with this name. Raises JournalCorrupt.

    damaged_too: to remove it, rows and last need not be what they can be. Who holds it must be known all the same.
    """
    found = connection.execute(_BY_NUMBER if number else _BY_NAME, (number or name,)).fetchone()
    if found is None:
        return None
    number, name, rows, last, *lease = found
    whole = type(rows) is int and type(last) is int and (rows > 0 if last else not rows)
    if not (whole or damaged_too) or not _is_lease(*lease):
        raise JournalCorrupt(f"session {name!r}: its entry in the table of sessions is damaged; restore a copy")
    return Place(number, Lease(*lease) if lease[0] else None, rows, last)


def _is_lease(owner: object, epoch: object, lease_s: object, until: object) -> bool:
    return type(owner) is str and type(epoch) is int and type(lease_s) is float and type(until) is float


envelope = Layout("<qdq").pack
"""What is checked of a row besides its body: seq, at, v."""


def checksum(seq: int, at: float, v: int, body: bytes) -> int:
    """What tells a row that a disk, or somebody, has changed since it was written: SQLite itself has no checksums (0.5 us)."""
    return crc32(body, crc32(envelope(seq, at, v)))


STEP = "log.id = CASE back.before WHEN 0 THEN back.id - 1 ELSE back.before END AND log.id < back.id"
"""From a row to the one before it, which is older: even a damaged file leads to an end."""

_BACK = f"""
WITH RECURSIVE back AS (
    SELECT 1 AS n, * FROM log WHERE id = ?
    UNION ALL
    SELECT n + 1, log.* FROM back JOIN log ON {STEP} WHERE n < ?
)
SELECT id, before, session, seq, at, v, body, crc FROM back
"""


def read_back(connection: sqlite3.Connection, session: str, place: Place, after: int) -> tuple[list[Row], Place]:
    """The last rows of ``place`` that come after ``after``, in order and at most CHUNK_ROWS, and the place before them.

    No rows, and a place without any, if the session has been deleted meanwhile. Raises JournalCorrupt.
    """
    wanted = min(CHUNK_ROWS, place.rows - after)
    found = connection.execute(_BACK, (place.last, wanted)).fetchall()
    seq = place.rows
    for _, _, number, *rest in found:
        if number != place.number or rest[0] != seq:
            break
        seq -= 1
    if seq > place.rows - wanted:
        if find(connection, number=place.number) is None:
            return [], Place(place.number, None, 0, 0)
        raise _missing(session, seq)
    found.reverse()
    rows = [Row(session, seq, at, v, _record(seq, at, v, body, crc, session)) for _, _, _, seq, at, v, body, crc in found]
    before = found[0][1] or found[0][0] - 1
    return rows, Place(place.number, None, seq, before)


def read(connection: sqlite3.Connection, session: str, after: int = 0) -> list[Row]:
    """The rows after ``after``, all at once. Raises JournalCorrupt."""
    chunks: list[list[Row]] = []
    place = find(connection, name=session)
    while place is not None and place.rows > after:
        rows, place = read_back(connection, session, place, after)
        if not rows:  # deleted meanwhile
            return []
        chunks.append(rows)
    return [row for rows in reversed(chunks) for row in rows]


def check(connection: sqlite3.Connection, session: str) -> None:
    """Raises JournalCorrupt for the first row of a session that is not what was written. Looks through the whole file for it."""
    place = first = find(connection, name=session)
    try:
        while place is not None and place.rows:
            _, place = read_back(connection, session, place, 0)
    except JournalCorrupt:
        assert first is not None
        seq = 0
        query = "SELECT seq, at, v, body, crc FROM log WHERE session = ? ORDER BY seq"
        for found, at, v, body, crc in connection.execute(query, (first.number,)):
            seq += 1
            if found != seq:
                raise _missing(session, seq) from None
            _record(seq, at, v, body, crc, session)
        if seq < first.rows:
            raise _missing(session, seq + 1) from None
        raise  # it is all there, but one row does not lead to the next


def _missing(session: str, seq: int) -> JournalCorrupt:
    return JournalCorrupt(f"session {session!r}, seq {seq}: the row is missing; restore a copy")


def _record(seq: int, at: float, v: int, body: bytes, crc: int, session: str) -> Record:
    """Raises JournalCorrupt, naming the row: of a newer version, not a record, or not what was written."""
    if type(body) is not bytes or type(v) is not int or type(at) is not float:
        raise JournalCorrupt(f"session {session!r}, seq {seq}: the row is not a record (its columns have other types)")
    try:
        record = decode(body, v=v)
    except JournalCorrupt:
        record = decode(body, v=v, where=f"session {session!r}, seq {seq}")  # raises again, with its place
    if crc != checksum(seq, at, v, body):
        raise JournalCorrupt(f"session {session!r}, seq {seq}: the row was changed after it was written (its checksum is another)")
    return record


def find_payload(connection: sqlite3.Connection, session: str, digest: str) -> bytes | None:
    query = "SELECT data FROM payloads WHERE session = (SELECT id FROM sessions WHERE name = ?) AND digest = ?"
    found = connection.execute(query, (session, digest)).fetchone()
    return None if found is None else found[0]


_SESSIONS = """
SELECT name, rows, ifnull(created_at, 0.0), ifnull(log.at, ifnull(created_at, 0.0)) AS updated_at, owner, epoch, lease_s, until
FROM sessions LEFT JOIN log ON log.id = last AND log.session = sessions.id
WHERE name IS NOT NULL AND (rows != 0 OR last != 0) ORDER BY updated_at DESC
"""


def list_sessions(connection: sqlite3.Connection, *, now: float) -> list[SessionInfo]:
    """Those that have rows. A damaged one is listed, too, as far as it can be told; whoever reads it is told what is wrong."""
    infos: list[SessionInfo] = []
    for name, rows, created_at, updated_at, *lease in connection.execute(_SESSIONS):
        known = _is_lease(*lease)
        info = SessionInfo(
            session_id=name,
            rows=rows if type(rows) is int and rows > 0 else 0,
            created_at=created_at if type(created_at) is float else 0.0,
            updated_at=updated_at if type(updated_at) is float else 0.0,
            state=state_of(Lease(*lease) if lease[0] else None, now=now) if known else "abandoned",
            owner=lease[0] if known else "",
        )
        infos.append(info)
    return infos
