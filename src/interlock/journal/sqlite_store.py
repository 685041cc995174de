"""What a SQLite journal writes to its database. Blocking, without asyncio."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from msgspec import Struct

from ..errors import InterlockError, JournalConflict, JournalCorrupt, JournalError, SessionBusy
from ..records import Row
from .leases import busy, holds
from .owner import describe
from .retention import has_open_run
from .sqlite_rows import STEP, Place, find, read_back

_Move = tuple[int, int, float | None, int, str, int, int]
"""A session's new number of rows, its last id, its first row's time; and its number, owner, epoch, and number of rows before."""

COLUMNS = 7
"""What a row has in ``Part.values``: the id of the session's row before it (0: the id before its own), the session's number, seq,
at, v, body, and the checksum of the last four."""


class Part(Struct, eq=False, gc=False):
    """What one log wants stored in one transaction.

    number: of the session, 0 if the log does not know it; filled in when stored. base: the seq before the first of its rows.
    count: how many rows. values: their columns, one row after the other; the writer fills in the first two. last: the id of the row
    ``base``; of the last row, once stored. epoch: of the log's claim, 0 without one. take: the lease is to be written. leave: it is
    to be removed. only_leave: of a poisoned log, nothing but its lease is touched. size: of all bodies and payloads, in bytes.
    """

    session: str
    number: int
    base: int
    count: int
    values: list[Any]
    payloads: dict[str, bytes]
    last: int = 0
    epoch: int = 0
    lease_s: float = 0.0
    take: bool = False
    leave: bool = False
    only_leave: bool = False
    size: int = 0


class Writer:
    """A connection that writes.

    A session's entry says how many rows it has and which is the last, and changes together with them, if the lease is still the
    writer's and the rows are still those that it knows. That one statement is the fence.
    """

    def __init__(self, connection: sqlite3.Connection, owner: str) -> None:
        self.connection = connection
        self._owner = owner
        self._cursor = connection.cursor()  # one for all statements: making one takes as long as a small statement

    def close(self) -> None:
        """Or the connection would stay open, for the cursor's last statement."""
        self._cursor.close()

    def write(self, parts: list[Part], *, now: float) -> dict[Part, InterlockError]:
        """Store ``parts`` in one transaction. Returns those that were refused, and why; the others are stored.

        Raises sqlite3.Error if nothing was stored.
        """
        execute = self._cursor.execute
        refused: dict[Part, InterlockError] = {}
        try:
            execute("BEGIN IMMEDIATE")  # in here: Ctrl-C is heard when it returns, and an open transaction would lock the file for good
            try:
                one = parts[0]
                if len(parts) == 1 and 0 < one.count <= _FEW and one.number and one.epoch and not (one.take or one.payloads):
                    stored = self._store_one(one)
                else:
                    stored = self._store(parts, now)
            except _REFUSALS:
                execute("ROLLBACK")
                execute("BEGIN IMMEDIATE")
                stored = self._store_each(parts, now, refused)
            execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:  # a full disk rolls back by itself
                self.connection.rollback()
            raise
        for part, number, last in stored:
            part.number, part.last = number, last
        return refused

    def delete(self, session: str, *, now: float) -> bool | SessionBusy:
        """Remove all of a session; whether there was a row, or why it may not be."""
        with self._alone():
            place = find(self.connection, name=session, damaged_too=True)
            if place is None:
                return False
            if place.lease is not None and holds(place.lease, now=now):
                return busy(session, place.lease, now=now)
            return self._delete(place)

    def delete_ended(self, session: str, *, now: float, before: float, dry_run: bool) -> bool:
        """Remove a session whose last record is not younger than ``before``, unless it is held, damaged or in the middle of a run;
        whether it was removed, or would be."""
        with self._alone():
            try:
                place = find(self.connection, name=session)
                if place is None or (place.lease is not None and holds(place.lease, now=now)) or not self._ended(place, session, before):
                    return False
            except JournalCorrupt:
                return False  # a person should look at it first
            return dry_run or self._delete(place)

    def _ended(self, place: Place, session: str, before: float) -> bool:
        newest_first = self._newest_first(place, session)
        newest = next(newest_first, None)
        return newest is not None and newest.at <= before and not has_open_run(row.record for row in chain((newest,), newest_first))

    def _newest_first(self, place: Place, session: str) -> Iterator[Row]:
        while place.rows:
            rows, place = read_back(self.connection, session, place, 0)
            yield from reversed(rows)

    def _delete(self, place: Place) -> bool:
        """A row of the table of sessions stays, without its name, if it is the last: so that its number is not given again, and
        whoever still has it writes to none."""
        execute, number = self.connection.execute, place.number
        there = execute(_DELETE, (place.last, number, number)).rowcount
        if there != place.rows:  # damaged: what is left is looked for
            there += execute("DELETE FROM log WHERE session = ?", (number,)).rowcount
        execute("DELETE FROM payloads WHERE session = ?", (number,))
        execute("DELETE FROM sessions WHERE name IS NULL AND id < ?", (number,))
        execute("DELETE FROM sessions WHERE id = ? AND id < (SELECT max(id) FROM sessions)", (number,))
        execute(
            "UPDATE sessions SET name = NULL, owner = '', epoch = 0, lease_s = 0, until = 0, rows = 0, last = 0, created_at = NULL "
            "WHERE id = ?",
            (number,),
        )
        return there > 0

    @contextmanager
    def _alone(self) -> Generator[None]:
        """A transaction in which nobody else writes."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.rollback()
            raise

    def _store_one(self, part: Part) -> list[tuple[Part, int, int]]:
        """The same as ``_store`` for what there is most often: rows of one session that is ours, in half the time."""
        execute, rows, number, base = self._cursor.execute, part.values, part.number, part.base
        count = part.count
        rows[0] = part.last
        rows[1::COLUMNS] = [number] * count
        last = execute(_ADD[count], rows).lastrowid or 0
        move = (base + count, last, rows[3], number, self._owner, part.epoch, base)
        if execute(_MOVE_LEAVE if part.leave else _MOVE, move).rowcount != 1:
            raise _Moved
        return [(part, number, last)]

    def _store(self, parts: list[Part], now: float) -> list[tuple[Part, int, int]]:
        """Each part with its session's number and the id of its last row. Raises one of _REFUSALS if any part is refused."""
        values: list[Any] = []
        stored: list[tuple[Part, int, int]] = []
        for part in parts:
            number, last = part.number, part.last
            if part.take or part.payloads or not part.epoch or not number:
                number, last = self._prepare(part, now)
            if rows := part.values:
                rows[0] = last
                if rows[1] != number:
                    rows[1::COLUMNS] = [number] * part.count
                values += rows
            stored.append((part, number, last))
        top = self._insert(values) - len(values) // COLUMNS
        moves: list[_Move] = []
        for place, (part, number, last) in enumerate(stored):
            if count := part.count:
                top += count
                last = top
                stored[place] = part, number, last
            base = part.base
            move = (base + count, last, part.values[3] if count else None, number, self._owner, part.epoch, base)
            if part.leave or not part.epoch:
                self._move_last(part, move)
            else:
                moves.append(move)
        if len(moves) == 1:
            moved = self._cursor.execute(_MOVE, moves[0]).rowcount
        else:
            moved = self._cursor.executemany(_MOVE, moves).rowcount if moves else 0
        if moved != len(moves):
            raise _Moved
        return stored

    def _move_last(self, part: Part, move: _Move) -> None:
        """The entry of a session whose lease goes, or that has none."""
        execute, number = self._cursor.execute, move[3]
        if part.only_leave:
            execute(_LEAVE, (number, self._owner, part.epoch))
        elif part.epoch:
            if execute(_MOVE_LEAVE, move).rowcount != 1:
                raise _Moved
        elif part.values and execute(_MOVE_FREE, (*move[:4], part.base)).rowcount != 1:
            raise _Moved

    def _store_each(self, parts: list[Part], now: float, refused: dict[Part, InterlockError]) -> list[tuple[Part, int, int]]:
        execute = self._cursor.execute
        stored: list[tuple[Part, int, int]] = []
        for part in parts:
            execute("SAVEPOINT part")
            try:
                if part.number and not part.only_leave:
                    _check(part, find(self.connection, number=part.number), self._owner, now)
                stored += self._store([part], now)
            except _REFUSALS as cause:
                execute("ROLLBACK TO part")
                refused[part] = cause if isinstance(cause, InterlockError) else _refusal(part, cause)
            execute("RELEASE part")
        return stored

    def _prepare(self, part: Part, now: float) -> tuple[int, int]:
        """Store all but the rows; returns the session's number and the id of its last row. Raises JournalConflict, SessionBusy."""
        number, last, execute = part.number, part.last, self._cursor.execute
        if part.take or not part.epoch or not number:
            added = 0 if number else self._add_session(part, now)
            if added:
                number = added
            else:
                place = find(self.connection, number=number) if number else find(self.connection, name=part.session)
                place = _check(part, place, self._owner, now)
                number, last = place.number, place.last
                if part.take:
                    execute(_TAKE, (self._owner, part.epoch, part.lease_s, now + part.lease_s, number))
        if part.payloads:
            payloads = [(number, digest, data) for digest, data in part.payloads.items()]
            self._cursor.executemany("INSERT OR IGNORE INTO payloads VALUES (?, ?, ?)", payloads)
        return number, last

    def _add_session(self, part: Part, now: float) -> int:
        """The number of a session that is new; 0 if it is not."""
        lease = (self._owner, part.epoch, part.lease_s, now + part.lease_s) if part.take else ("", 0, 0.0, 0.0)
        added = self._cursor.execute(_ADD_SESSION, (part.session, *lease))
        return added.lastrowid or 0 if added.rowcount == 1 else 0

    def _insert(self, values: list[Any]) -> int:
        """Add the rows, whose ids follow one another. Returns the last one's."""
        last = start = 0
        while rest := (len(values) - start) // COLUMNS:
            rows = ROWS_MAX if rest >= ROWS_MAX else min(rest, _FEW)
            end = start + rows * COLUMNS
            last = self._cursor.execute(_ADD[rows], values[start:end]).lastrowid or 0
            start = end
        return last


ROWS_MAX = 64
"""Rows in one statement, which lets go of the interpreter once, and not once for each row."""

# OR FAIL: a statement that fails in the middle leaves its first rows, which a rollback takes away with all else, and SQLite keeps no copy
# of each page for the case.
_FEW = 16
_ROW = f"({', '.join('?' * COLUMNS)})"
_ADD = {
    rows: f"INSERT OR FAIL INTO log (before, session, seq, at, v, body, crc) VALUES {', '.join([_ROW] * rows)}"
    for rows in (*range(1, _FEW + 1), ROWS_MAX)
}
_ADD_SESSION = "INSERT OR IGNORE INTO sessions (name, owner, epoch, lease_s, until) VALUES (?, ?, ?, ?, ?)"
_TAKE = "UPDATE sessions SET owner = ?, epoch = ?, lease_s = ?, until = ? WHERE id = ?"
_OURS = "WHERE id = ? AND owner = ? AND epoch = ?"
_LEAVE = f"UPDATE sessions SET owner = '', until = 0 {_OURS}"
_MOVE = f"UPDATE sessions SET rows = ?, last = ?, created_at = ifnull(created_at, ?) {_OURS} AND rows = ?"
_MOVE_LEAVE = f"UPDATE sessions SET rows = ?, last = ?, created_at = ifnull(created_at, ?), owner = '', until = 0 {_OURS} AND rows = ?"
_MOVE_FREE = "UPDATE sessions SET rows = ?, last = ?, created_at = ifnull(created_at, ?) WHERE id = ? AND rows = ?"


_DELETE = f"""DELETE FROM log WHERE id IN (
    WITH RECURSIVE back (id, before) AS (
        SELECT id, before FROM log WHERE id = ? AND session = ?
        UNION ALL
        SELECT log.id, log.before FROM back JOIN log ON {STEP} AND log.session = ?
    )
    SELECT id FROM back
)"""


class _Moved(Exception):
    """A session's entry is not what its writer thinks."""


_REFUSALS = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
    *(OverflowError, TypeError, ValueError, InterlockError, _Moved),
)
"""What a part, rather than the database, can be the reason of."""


def _check(part: Part, place: Place | None, owner: str, now: float) -> Place:
    """``place``; raises if ``part`` must not be written there."""
    session = part.session
    if place is None:
        raise JournalConflict(f"session {session!r} was deleted; what this handle had buffered is dropped, open it anew")
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
    if place.rows != part.base and (part.epoch or part.values):
        raise JournalConflict(f"session {session!r}: another writer has added rows after seq {part.base}; open it anew")
    return place


def _refusal(part: Part, cause: Exception) -> JournalError:
    return JournalError(f"session {part.session!r}: the rows after seq {part.base} cannot be stored ({cause})")


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
