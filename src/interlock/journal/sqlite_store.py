"""What a SQLite journal asks of its database. Blocking, without asyncio; every function takes the connection to use."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import chain
from struct import Struct as Layout
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct

from ..errors import InterlockError, JournalConflict, JournalCorrupt, JournalError, SessionBusy
from ..records import Record, Row
from ..records.codec import decode
from .base import SessionInfo
from .leases import Lease, busy, holds, state_of
from .owner import describe
from .retention import has_open_run

RowTuple = tuple[int, int, float, int, bytes, int]
"""The session's number (0 while the log does not know it), seq, at, v, body, and the checksum of the last four."""

CHUNK_ROWS = 256
"""Rows read at a time: about 1 ms of work, so that a long session does not stop the event loop."""


class Part(Struct, eq=False, gc=False):
    """What one log wants stored in one transaction.

    number: of the session, 0 if the log does not know it; filled in when stored. base: the seq before the first of
    ``rows``. epoch: of the log's claim, 0 without one. take: the lease is to be written. leave: it is to be removed.
    only_leave: of a poisoned log, nothing but its lease is touched. size: of all bodies and payloads, in bytes.
    """

    session: str
    number: int
    base: int
    rows: list[RowTuple]
    payloads: dict[str, bytes]
    epoch: int = 0
    lease_s: float = 0.0
    take: bool = False
    leave: bool = False
    only_leave: bool = False
    size: int = 0


class Writer:
    """A connection that writes, and what it knows to be so until somebody else writes, too.

    Each part needs a look at its session's lease, inside the transaction. While nobody else has committed anything
    (``data_version``: one question for the whole transaction) the answer can only be the one that was found before.
    """

    _KNOWN_MAX = 10_000

    def __init__(self, connection: sqlite3.Connection, owner: str) -> None:
        self.connection = connection
        self._owner = owner
        self._version = -1
        self._known: dict[int, int] = {}
        """By session number: the epoch that may write, 0 if anyone may."""

    def write(self, parts: list[Part], *, now: float) -> dict[Part, InterlockError]:
        """Store ``parts`` in one transaction. Returns those that were refused, and why; the others are stored.

        Raises sqlite3.Error if nothing was stored.
        """
        if len(parts) == 1 and self._write_usual(parts[0], now):
            return {}
        try:
            return self._write(parts, now, savepoints=False)
        except _OneRefused:
            return self._write(parts, now, savepoints=True)

    def delete(self, session: str, *, now: float) -> bool | SessionBusy:
        """Remove all of a session; whether there was a row, or why it may not be."""
        with self._alone():
            place = find(self.connection, name=session)
            if place is None:
                return False
            if place.lease is not None and holds(place.lease, now=now):
                return busy(session, place.lease, now=now)
            return self._delete(place.number)

    def delete_ended(self, session: str, *, now: float, before: float, dry_run: bool) -> bool:
        """Remove a session whose last record is not younger than ``before``, unless it is held, damaged or in the middle of a run;
        whether it was removed, or would be."""
        with self._alone():
            place = find(self.connection, name=session)
            if place is None or (place.lease is not None and holds(place.lease, now=now)) or not self._ended(place.number, session, before):
                return False
            return dry_run or self._delete(place.number)

    def _ended(self, number: int, session: str, before: float) -> bool:
        query = "SELECT seq, at, v, body, crc FROM log WHERE session = ? ORDER BY seq DESC"
        try:
            rows = self.connection.execute(query, (number,))
            newest = next(rows, None)
            if newest is None or newest[1] > before:
                return False
            newest_first = (_record(seq, at, v, body, crc, session) for seq, at, v, body, crc in chain((newest,), rows))
            return not has_open_run(newest_first)
        except JournalCorrupt:
            return False  # a person should look at it first

    def _delete(self, number: int) -> bool:
        execute = self.connection.execute
        there = execute("DELETE FROM log WHERE session = ?", (number,)).rowcount > 0
        execute("DELETE FROM payloads WHERE session = ?", (number,))
        execute("DELETE FROM sessions WHERE id = ?", (number,))
        return there

    @contextmanager
    def _alone(self) -> Generator[None]:
        """A transaction in which nobody else writes."""
        self._known.clear()
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.rollback()
            raise

    def _write_usual(self, part: Part, now: float) -> bool:
        """Rows of one session that is new, or whose lease is ours and may end with them, in as few statements as can be: each
        looks at the lease itself. False, with nothing stored, for anything else."""
        rows, number, count = part.rows, part.number, len(part.rows)
        if not 0 < count < len(_ADD_IF_OURS) or not part.epoch or part.payloads:
            return False
        execute, ours = self.connection.execute, (number, self._owner, part.epoch)
        try:
            if part.take:
                if number or part.leave:
                    return False
                execute("BEGIN IMMEDIATE")
                taken = execute(_TAKE, (part.session, self._owner, part.epoch, part.lease_s, now + part.lease_s))
                number = taken.lastrowid or 0 if taken.rowcount == 1 else 0
            elif rows[0][0] != number:
                return False
            elif not part.leave:
                values = [value for row in rows for value in (*row, *ours)]
                return execute(_ADD_IF_OURS[count], values).rowcount == count
            else:
                execute("BEGIN IMMEDIATE")
                number = number if execute(_LEAVE, ours).rowcount == 1 else 0
            if number:
                self.connection.executemany(_ADD, _numbered(rows, number))
            execute("COMMIT" if number else "ROLLBACK")
        except BaseException as error:
            if self.connection.in_transaction:  # a full disk rolls back by itself
                self.connection.rollback()
            if isinstance(error, _REFUSALS):
                return False
            raise
        self._known.pop(number, None)
        part.number = part.number or number
        return number > 0

    def _write(self, parts: list[Part], now: float, *, savepoints: bool) -> dict[Part, InterlockError]:
        refused: dict[Part, InterlockError] = {}
        numbers: list[int] = []
        rows: list[RowTuple] = []
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            self._see()
            for part in parts:
                if savepoints:
                    execute("SAVEPOINT part")
                try:
                    number = self._put(part, now)
                    rows += _numbered(part.rows, number)
                    if savepoints:
                        self._insert(rows)
                        rows.clear()
                except InterlockError as error:
                    refused[part] = error
                    number = 0
                except _REFUSALS as cause:
                    if not savepoints:
                        raise _OneRefused from cause
                    execute("ROLLBACK TO part")
                    rows.clear()
                    self._known.clear()
                    refused[part] = _refusal(part, cause)
                    number = 0
                numbers.append(number)
                if savepoints:
                    execute("RELEASE part")
            try:
                self._insert(rows)
            except _REFUSALS as cause:
                raise _OneRefused from cause
            execute("COMMIT")
        except BaseException:
            self._known.clear()
            if self.connection.in_transaction:  # a full disk rolls back by itself
                self.connection.rollback()
            raise
        for part, number in zip(parts, numbers, strict=True):
            part.number = number
        return refused

    def _see(self) -> None:
        version = self.connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._known) > self._KNOWN_MAX:
            self._known.clear()
            self._version = version

    def _put(self, part: Part, now: float) -> int:
        """Store all but the rows; returns the session's number. Raises JournalConflict, SessionBusy before it writes."""
        number, owner, execute = part.number, self._owner, self.connection.execute
        place: Place | None = None
        lease = (owner, part.epoch, part.lease_s, now + part.lease_s) if part.take and not part.leave else None
        if part.take or (self._known.get(number) != part.epoch and not part.only_leave):
            place = find(self.connection, number=number) if number else find(self.connection, name=part.session)
            _check(part, place, owner, now)
            if place is None:
                number, lease = _add_session(self.connection, part.session, lease), None
            else:
                number = place.number
            self._known[number] = part.epoch
        if part.payloads:
            payloads = [(number, digest, data) for digest, data in part.payloads.items()]
            self.connection.executemany("INSERT OR IGNORE INTO payloads VALUES (?, ?, ?)", payloads)
        if lease is not None:
            execute("UPDATE sessions SET owner = ?, epoch = ?, lease_s = ?, until = ? WHERE id = ?", (*lease, number))
        elif part.leave:
            self._known.pop(number, None)
            if not part.take:
                execute(_LEAVE, (number, owner, part.epoch))
            elif place is not None and place.lease is not None:  # taken over and given up at once: the void lease must go all the same
                execute("UPDATE sessions SET owner = '', until = 0 WHERE id = ?", (number,))
        return number

    def _insert(self, rows: list[RowTuple]) -> None:
        if rows:
            self.connection.executemany(_ADD, rows)


_ADD = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)"
_LEAVE = "UPDATE sessions SET owner = '', until = 0 WHERE id = ? AND owner = ? AND epoch = ?"
_TAKE = "INSERT OR IGNORE INTO sessions (name, owner, epoch, lease_s, until) VALUES (?, ?, ?, ?, ?)"
_ONE = "SELECT ?, ?, ?, ?, ?, ? FROM sessions WHERE id = ? AND owner = ? AND epoch = ?"
_ADD_IF_OURS = ["", *(f"INSERT INTO log {' UNION ALL '.join([_ONE] * rows)}" for rows in range(1, 9))]
"""By the number of rows: add them if the lease is ours, in a transaction of its own."""


class _OneRefused(Exception):
    """A row broke a constraint: the transaction has to be done again with a savepoint for each part."""


_REFUSALS = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
    *(OverflowError, TypeError, ValueError),
)
"""What a row, rather than the database, can be the reason of."""


def _numbered(rows: list[RowTuple], number: int) -> list[RowTuple]:
    if not rows or rows[0][0] == number:
        return rows
    return [(number, *rest) for _, *rest in rows]  # pyright: ignore[reportReturnType]


def _check(part: Part, place: Place | None, owner: str, now: float) -> None:
    """Raise if ``part`` must not be written. That its rows follow the stored ones the primary key sees to.

    (Rows are only ever added, and a number is never given again: what a log knew of its session is still there.)
    """
    session = part.session
    if place is None:
        if part.number:
            raise JournalConflict(f"session {session!r} was deleted; what this handle had buffered is dropped, open it anew")
        return
    lease = place.lease
    if part.epoch and not part.take:
        if lease is None or lease.epoch != part.epoch or lease.owner != owner:
            taker = "another process" if lease is None else describe(lease.owner)
            raise JournalConflict(f"session {session!r} was taken over by {taker}; what this handle had buffered is dropped, open it anew")
    elif lease is not None and holds(lease, now=now):
        if not part.epoch:
            raise JournalConflict(f"session {session!r} is being written by {describe(lease.owner)}; claim it first")
        if lease.owner != owner:
            raise busy(session, lease, now=now)


def _refusal(part: Part, cause: Exception) -> JournalError:
    if getattr(cause, "sqlite_errorcode", 0) in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE):
        return JournalConflict(f"session {part.session!r}: another writer has added rows after seq {part.base}; open it anew")
    return JournalError(f"session {part.session!r}: the rows after seq {part.base} cannot be stored ({cause})")


class Place(NamedTuple):
    """A session's number, and the lease on it if there is one."""

    number: int
    lease: Lease | None


_BY_NUMBER, _BY_NAME = (f"SELECT id, owner, epoch, lease_s, until FROM sessions WHERE {what} = ?" for what in ("id", "name"))


def find(connection: sqlite3.Connection, *, name: str = "", number: int = 0) -> Place | None:
    """The session with this number, or else with this name."""
    found = connection.execute(_BY_NUMBER if number else _BY_NAME, (number or name,)).fetchone()
    if found is None:
        return None
    return Place(found[0], Lease(*found[1:]) if found[1] else None)


def _add_session(connection: sqlite3.Connection, name: str, lease: tuple[str, int, float, float] | None) -> int:
    insert = "INSERT INTO sessions (name, owner, epoch, lease_s, until) VALUES (?, ?, ?, ?, ?)"
    number = connection.execute(insert, (name, *(lease or ("", 0, 0.0, 0.0)))).lastrowid
    assert number is not None
    return number


_envelope = Layout("<qdq").pack


def checksum(seq: int, at: float, v: int, body: bytes) -> int:
    """What tells a row that a disk, or somebody, has changed since it was written: SQLite itself has no checksums (0.5 us)."""
    return crc32(body, crc32(_envelope(seq, at, v)))


def read(connection: sqlite3.Connection, session: str, after: int) -> list[Row]:
    """The next rows after ``after``, at most CHUNK_ROWS. Raises JournalCorrupt."""
    query = """
        SELECT seq, at, v, body, crc FROM log WHERE session = (SELECT id FROM sessions WHERE name = ?) AND seq > ? ORDER BY seq LIMIT ?
    """
    rows: list[Row] = []
    for seq, at, v, body, crc in connection.execute(query, (session, after, CHUNK_ROWS)):
        after += 1
        if seq != after:
            raise JournalCorrupt(f"session {session!r}, seq {after}: the row is missing (the next one there is {seq}); restore a copy")
        rows.append(Row(session, seq, at, v, _record(seq, at, v, body, crc, session)))
    return rows


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


# The subqueries jump in the index; a GROUP BY would walk through every row.
_SESSIONS = """
WITH ends AS (
    SELECT id, name, owner, epoch, lease_s, until,
        (SELECT min(seq) FROM log WHERE session = id) AS first, (SELECT max(seq) FROM log WHERE session = id) AS last
    FROM sessions
)
SELECT name, last, a.at, b.at, owner, epoch, lease_s, until
FROM ends JOIN log a ON a.session = id AND a.seq = first JOIN log b ON b.session = id AND b.seq = last
ORDER BY b.at DESC
"""


def list_sessions(connection: sqlite3.Connection, *, now: float) -> list[SessionInfo]:
    infos: list[SessionInfo] = []
    for session, rows, created_at, updated_at, owner, epoch, lease_s, until in connection.execute(_SESSIONS):
        state = state_of(Lease(owner, epoch, lease_s, until) if owner else None, now=now)
        info = SessionInfo(session_id=session, rows=rows, created_at=created_at, updated_at=updated_at, state=state, owner=owner)
        infos.append(info)
    return infos


def renew(connection: sqlite3.Connection, claims: Iterable[tuple[int, int, float]], *, owner: str, now: float) -> None:
    """Prolong the leases that are still ours: (number, epoch, lease_s) each."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany(
            "UPDATE sessions SET until = ? WHERE id = ? AND owner = ? AND epoch = ?",
            [(now + lease_s, number, owner, epoch) for number, epoch, lease_s in claims],
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise
