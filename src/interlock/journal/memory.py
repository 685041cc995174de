"""A journal in this process's memory: the same promises as a stored one, except that it ends with the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from itertools import count
from typing import cast
from weakref import WeakValueDictionary

from ..errors import JournalConflict, JournalError, UsageError
from ..messages import clean
from ..records import Record, Row, codec
from .base import SessionInfo
from .leases import Claim, Heartbeat, Lease, busy, busy_here, holds, state_of
from .owner import describe, new_owner, retire
from .retention import check_age, has_open_run

__all__ = ["MemoryJournal", "MemoryLog", "MemoryStore"]

# Row(...) in half the time: append is on the path of every step.
_row = cast("Callable[[type[Row], tuple[str, int, float, int, Record]], Row]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]


class MemoryStore:
    """What several MemoryJournals of one process may share: what a file is to the stored ones. Ask it nothing directly."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.payloads: dict[str, dict[str, bytes]] = {}
        self.leases: dict[str, Lease] = {}
        self.changed: dict[str, set[asyncio.Event]] = {}


class MemoryJournal:
    """Sessions in memory.

    store: give two journals the same one, and each is another writer of the same sessions. clock: seconds since 1970,
    for leases. Records are frozen, so they are kept as they are, without being encoded.
    """

    def __init__(self, store: MemoryStore | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._store = MemoryStore() if store is None else store
        self._shared = store is not None
        self._clock = clock
        self._owner = new_owner()
        self._epochs = count(1)
        self.dirty: dict[MemoryLog, None] = {}
        self._held: WeakValueDictionary[str, MemoryLog] = WeakValueDictionary()
        self._heartbeat = Heartbeat(self._renew)
        self._closed = False

    async def open(self) -> None:
        self._check_open()

    def session(self, session_id: str) -> MemoryLog:
        return MemoryLog(self, clean(session_id))

    async def read(self, session_id: str, *, after: int = 0) -> list[Row]:
        self._check_open()
        return self._store.rows.get(clean(session_id), [])[max(after, 0) :]

    async def tail(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Row, None]:
        self._check_open()
        session_id = clean(session_id)
        changed = asyncio.Event()
        watchers = self._store.changed.setdefault(session_id, set())
        watchers.add(changed)
        try:
            while True:
                changed.clear()
                for row in self._store.rows.get(session_id, [])[max(after, 0) :]:
                    after = row.seq
                    yield row
                await changed.wait()
        finally:
            watchers.discard(changed)
            if not watchers and self._store.changed.get(session_id) is watchers:
                del self._store.changed[session_id]

    async def sessions(self) -> list[SessionInfo]:
        self._check_open()
        now = self._clock()
        infos = [
            SessionInfo(
                session_id=session_id,
                rows=len(rows),
                created_at=rows[0].at,
                updated_at=rows[-1].at,
                state=state_of(lease := self._store.leases.get(session_id), now=now),
                owner="" if lease is None else lease.owner,
            )
            for session_id, rows in self._store.rows.items()
            if rows
        ]
        return sorted(infos, key=lambda info: info.updated_at, reverse=True)

    async def delete(self, session_id: str) -> bool:
        self._check_open()
        session_id, now = clean(session_id), self._clock()
        lease = self._store.leases.get(session_id)
        if lease is not None and holds(lease, now=now):
            raise busy(session_id, lease, now=now)
        self._store.leases.pop(session_id, None)
        self._store.payloads.pop(session_id, None)
        return bool(self._store.rows.pop(session_id, None))

    async def prune(self, *, older_than_s: float, keep: Collection[str] = (), dry_run: bool = False) -> list[SessionInfo]:
        before, kept = self._clock() - check_age(older_than_s), set(map(clean, keep))
        pruned: list[SessionInfo] = []
        for info in reversed(await self.sessions()):
            rows = self._store.rows[info.session_id]
            old = info.updated_at <= before and info.session_id not in kept
            if old and info.state != "running" and not has_open_run(row.record for row in reversed(rows)):
                pruned.append(info)
        if not dry_run:
            for info in pruned:
                await self.delete(info.session_id)
        return pruned

    async def aclose(self) -> None:
        if self._closed:
            return
        for log in list(self._held.values()):
            await log.release()
        self.flush()
        self._closed = True
        await self._heartbeat.stop()
        retire(self._owner)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this MemoryJournal is closed; make a new one")

    def flush(self) -> None:
        """Store what is buffered, of every session. A log that must not write is poisoned; the others are not touched."""
        while self.dirty:
            self.dirty.popitem()[0].flush()

    # For MemoryLog.

    def take(self, log: MemoryLog, lease_s: float) -> tuple[Claim, list[Row] | None]:
        """A claim for ``log``, its lease written at once, and the session's rows. Raises SessionBusy, JournalConflict."""
        self._check_open()
        now = self._clock()
        lease = self._store.leases.get(log.session_id)
        if lease is not None and lease.owner != self._owner.name and holds(lease, now=now):
            raise busy(log.session_id, lease, now=now)
        other = self._held.get(log.session_id)
        if other is not None and other is not log and other.failure is None:  # it shares our lease, and is alive
            raise busy_here(log.session_id)
        stored = self._store.rows.get(log.session_id)
        if log.rows is not None and log.rows is not stored:
            raise JournalConflict(f"session {log.session_id!r} was deleted; open it anew")
        claim = Claim(next(self._epochs), lease_s, written=True)
        self._store.leases[log.session_id] = Lease(self._owner.name, claim.epoch, lease_s, now + lease_s)
        self._held[log.session_id] = log
        if self._shared:  # nobody else can take a session of a private store
            self._heartbeat.start(lease_s)
        return claim, stored

    def why_not(self, log: MemoryLog, first: int | None) -> JournalConflict | None:
        """What forbids ``log`` to write a row with seq ``first`` now: the lease, or the rows that are there."""
        session_id, claim, store = log.session_id, log.claimed, self._store
        lease = store.leases.get(session_id)
        if claim is None:
            if lease is not None and holds(lease, now=self._clock()):
                return JournalConflict(f"session {session_id!r} is being written by {describe(lease.owner)}; open it anew")
        elif lease is None or lease.epoch != claim.epoch or lease.owner != self._owner.name:
            taker = "deleted" if lease is None else f"taken over by {describe(lease.owner)}"
            return JournalConflict(f"session {session_id!r} was {taker}; what this handle had buffered is dropped, open it anew")
        stored, known = store.rows.get(session_id), log.rows
        if known is not None and known is not stored:
            return JournalConflict(f"session {session_id!r} was deleted; what this handle had buffered is dropped, open it anew")
        head = len(stored) if stored is not None else 0
        if first is not None and first != head + 1:
            return JournalConflict(f"session {session_id!r} is at seq {head}, so row {first} cannot be added; open it anew")
        return None

    def put(self, session_id: str, rows: list[Row], payloads: dict[str, bytes]) -> list[Row] | None:
        """Store them; the session's rows as they are now, if it has any."""
        store = self._store
        stored = store.rows.get(session_id)
        if payloads:
            store.payloads.setdefault(session_id, {}).update(payloads)
        if stored is not None:
            stored += rows
        elif rows:
            stored = store.rows[session_id] = rows
        if store.changed:
            for changed in store.changed.get(session_id, ()):
                changed.set()
        return stored

    def payload(self, session_id: str, digest: str) -> bytes | None:
        return self._store.payloads.get(session_id, {}).get(digest)

    def give_up(self, log: MemoryLog, claim: Claim) -> None:
        """Remove the lease if it is still that of ``claim``."""
        if self._held.get(log.session_id) is log:
            del self._held[log.session_id]
            if not self._held:
                self._heartbeat.rest()
        lease = self._store.leases.get(log.session_id)
        if lease is not None and (lease.owner, lease.epoch) == (self._owner.name, claim.epoch):
            del self._store.leases[log.session_id]

    async def _renew(self) -> float | None:
        now, shortest = self._clock(), None
        for session_id, log in list(self._held.items()):
            lease, claim = self._store.leases.get(session_id), log.claimed
            if claim is None or lease is None or (lease.owner, lease.epoch) != (self._owner.name, claim.epoch):
                continue
            self._store.leases[session_id] = Lease(lease.owner, lease.epoch, lease.lease_s, now + lease.lease_s)
            shortest = min(lease.lease_s, shortest or lease.lease_s)
        return shortest


class MemoryLog:
    """One session's log in a MemoryJournal."""

    __slots__ = ("__weakref__", "_buffer", "_dirty", "_failure", "_journal", "_payloads", "_seq", "claimed", "rows", "session_id")

    def __init__(self, journal: MemoryJournal, session_id: str) -> None:
        self.session_id = session_id
        self.claimed: Claim | None = None
        self.rows: list[Row] | None = None
        """The session's list in the store, once known: another list is another session."""
        self._journal = journal
        self._dirty = journal.dirty
        self._seq = 0
        self._buffer: list[Row] = []
        self._payloads: dict[str, bytes] = {}
        self._failure: JournalError | None = None

    @property
    def seq(self) -> int:
        return self._seq

    @property
    def failure(self) -> JournalError | None:
        """Why this log is poisoned, if it is."""
        return self._failure

    async def claim(self, *, lease_s: float) -> list[Row]:
        self._check()
        if self._dirty:
            self._journal.flush()
            self._check()
        claim, stored = self._journal.take(self, lease_s)
        self.claimed, self.rows = claim, stored
        rows = [] if stored is None else stored[self._seq :]
        self._seq += len(rows)
        return rows

    def append(self, record: Record, *, at: float) -> int:
        if self._failure is not None:
            self._check()
        buffer = self._buffer
        if not buffer:
            self._dirty[self] = None
        self._seq = seq = self._seq + 1
        buffer.append(_row(Row, (self.session_id, seq, at, codec.VERSION, record)))
        return seq

    async def durable(self, seq: int | None = None) -> None:
        if self._dirty:
            self._journal.flush()
        if self._failure is not None:
            self._check()

    async def release(self) -> None:
        if self._dirty:
            self._journal.flush()
        claim, self.claimed = self.claimed, None
        if claim is not None:
            self._journal.give_up(self, claim)

    def put_payload(self, digest: str, data: bytes) -> None:
        self._check()
        self._dirty[self] = None
        self._payloads[digest] = data

    async def get_payload(self, digest: str) -> bytes | None:
        data = self._payloads.get(digest)
        return self._journal.payload(self.session_id, digest) if data is None else data

    def flush(self) -> None:
        """Move the buffer into the store, or poison this log. Called by the journal only."""
        rows, self._buffer = self._buffer, []
        payloads = self._payloads
        if payloads:
            self._payloads = {}
        if self._failure is None:
            self._failure = self._journal.why_not(self, rows[0].seq if rows else None)
        if self._failure is None:
            self.rows = self._journal.put(self.session_id, rows, payloads)

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure
