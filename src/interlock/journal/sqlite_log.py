"""One session's log in a SQLite journal: what is buffered, claimed, or poisoned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn
from zlib import crc32

import msgspec

from ..errors import InterlockError, JournalConflict, UsageError
from ..records import Record, Row, codec
from . import sqlite_rows as stored
from . import sqlite_store as store
from .leases import Claim
from .sqlite_rows import envelope

if TYPE_CHECKING:
    from .sqlite import SQLiteJournal


class SQLiteLog:
    """A SessionLog; made by ``SQLiteJournal.session``."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_dirty",
        "_failure",
        "_journal",
        "_last",
        "_payloads",
        "_seq",
        "_size",
        "_stored",
        "_taken",
        "claimed",
        "number",
        "session_id",
    )

    def __init__(self, journal: SQLiteJournal, session_id: str) -> None:
        self.session_id = session_id
        self.claimed: Claim | None = None
        self.number = 0
        """The session's number in the database, once known."""
        self._journal = journal
        self._dirty = journal.dirty
        self._seq = 0
        self._size = 0
        self._stored = 0
        self._last = 0
        self._buffer: list[Any] = []
        self._payloads: dict[str, bytes] = {}
        self._taken: store.Part | None = None
        self._failure: InterlockError | None = None

    @property
    def seq(self) -> int:
        return self._seq

    @property
    def failure(self) -> InterlockError | None:
        """Why this log is poisoned, if it is."""
        return self._failure

    async def claim(self, *, lease_s: float) -> list[Row]:
        await self.durable()
        place, rows = await self._journal.look(self.session_id, after=self._seq)
        if self.number and (place is None or place.number != self.number):
            raise JournalConflict(f"session {self.session_id!r} was deleted; open it anew")
        if not self._still_ours(place):
            self.claimed = self._journal.new_claim(self, lease_s)
            self._dirty[self] = None
        if place is not None:
            self.number, self._last = place.number, place.last
        if rows:
            self._seq = self._stored = rows[-1].seq
        return rows

    def _still_ours(self, place: stored.Place | None) -> bool:
        claim, lease = self.claimed, None if place is None else place.lease
        if claim is None or not claim.written:
            return claim is not None
        return lease is not None and lease.epoch == claim.epoch and lease.owner == self._journal.owner_name

    def append(self, record: Record, *, at: float) -> int:
        if self._failure is not None:
            self._raise()
        try:
            body = codec.encode(record)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise UsageError(f"a {type(record).__name__} cannot be stored: it is not JSON ({error})") from error
        buffer = self._buffer
        if not buffer:
            self._dirty[self] = None
        self._seq = seq = self._seq + 1
        self._size += len(body)
        v = codec.VERSION
        buffer += (0, 0, seq, at, v, body, crc32(body, crc32(envelope(seq, at, v))))  # its checksum, without a call for each row
        return seq

    async def durable(self, seq: int | None = None) -> None:
        if self._failure is not None:
            self._raise()
        if self._stored < seq if seq is not None else self._stored < self._seq or self in self._dirty:
            flusher = self._journal.flusher or await self._journal.ready()
            if future := flusher.begin(self):
                await future
            if self._failure is not None:
                self._raise()

    async def release(self) -> None:
        poisoned, claim = self._failure is not None, self.claimed
        if claim is not None:
            claim.leaving = True
            self._dirty[self] = None
        if claim is not None or self._stored < self._seq:
            flusher = self._journal.flusher or await self._journal.ready()
            if future := flusher.begin(self):
                await future
        if self._failure is not None and not poisoned:
            self._raise()

    def put_payload(self, digest: str, data: bytes) -> None:
        if self._failure is not None:
            self._raise()
        self._dirty[self] = None
        self._payloads[digest] = data
        self._size += len(data)

    async def get_payload(self, digest: str) -> bytes | None:
        for payloads in (self._payloads, {} if self._taken is None else self._taken.payloads):
            if digest in payloads:
                return payloads[digest]
        return await self._journal.payload(self.session_id, digest)

    # For the flusher.

    def take(self) -> store.Part | None:
        values, self._buffer = self._buffer, []
        payloads = self._payloads
        if payloads:
            self._payloads = {}
        count = len(values) // store.COLUMNS
        claim, base = self.claimed, self._seq - count
        if claim is not None and claim.leaving and not claim.written and not values and not payloads:
            self._leave()
            return None
        if self._failure is not None:
            # Only the lease is left to be given up; of a poisoned log nothing more is stored.
            if claim is None or not (claim.leaving and claim.written):
                return None
            count, values, payloads = 0, [], {}
        part = store.Part(self.session_id, self.number, base, count, values, payloads, self._last, size=self._size)
        self._size = 0
        if claim is not None:
            part.epoch, part.lease_s = claim.epoch, claim.lease_s
            part.take, part.leave, part.only_leave = not claim.written, claim.leaving, self._failure is not None
        self._taken = part
        return part

    def settle(self, part: store.Part, error: InterlockError | None) -> None:
        self._taken = None
        if error is not None:
            self._failure = self._failure or error
            self._buffer, self._payloads = [], {}
        elif not part.only_leave:
            self._stored = part.base + part.count
            self.number, self._last = part.number, part.last
        if part.leave:
            self._leave()
        elif part.take and error is None and self.claimed is not None and self.claimed.epoch == part.epoch:
            self.claimed.written = True

    def _leave(self) -> None:
        self.claimed = None
        self._journal.left(self)

    def _raise(self) -> NoReturn:
        # A new exception each time, or its traceback would grow with every caller.
        assert self._failure is not None
        raise type(self._failure)(*self._failure.args) from self._failure
