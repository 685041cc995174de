"""The simulated disk, and the journal of one process on it: what was appended dies with the process, what is stored never does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from itertools import count
from typing import Protocol

from ...errors import JournalConflict, JournalError, SessionBusy, UsageError
from ...journal.base import SessionInfo, SessionState
from ...journal.leases import Claim, Heartbeat, Lease
from ...journal.retention import check_age, has_open_run
from ...messages import clean
from ...records import Record, Row, codec
from ...records.codec import decode, encode

Stored = tuple[int, float, bytes]
"""(seq, at, body): a row as the disk has it. Only bytes: nothing of a process's memory outlives it."""


class SimDisk:
    """What outlives every process: rows, payloads, leases. dead: owners that are known to be gone."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Stored]] = {}
        self.payloads: dict[str, dict[str, bytes]] = {}
        self.leases: dict[str, Lease] = {}
        self.dead: set[str] = set()
        self.changed: set[asyncio.Event] = set()
        self.names = count(1)

    def holds(self, lease: Lease, *, now: float) -> bool:
        return lease.until > now and lease.owner not in self.dead

    def read(self, session_id: str, after: int = 0) -> list[Row]:
        rows = self.rows.get(session_id, [])
        return [Row(session_id, seq, at, codec.VERSION, decode(body)) for seq, at, body in rows[max(after, 0) :]]


class Hooks(Protocol):
    """Who is told what the journal does, and may strike there: freeze the process, or kill it by raising."""

    def appending(self, log: SimLog, record: Record) -> None:
        """Before the record is buffered."""
        ...

    def appended(self, log: SimLog, record: Record, body: bytes) -> None: ...

    def claimed(self, log: SimLog, rows: list[Row]) -> None: ...

    def flushing(self, log: SimLog) -> None: ...

    def flushed(self, log: SimLog, rows: list[Stored], failure: JournalError | SessionBusy | None) -> None: ...

    @property
    def io_error(self) -> bool:
        """Whether the next flush fails."""
        ...

    @property
    def frozen(self) -> bool:
        """Whether the process stands still from its next ``await`` on."""
        ...


class NoHooks:
    """A disk to which nothing happens."""

    io_error = False
    frozen = False

    def appending(self, log: SimLog, record: Record) -> None: ...

    def appended(self, log: SimLog, record: Record, body: bytes) -> None: ...

    def claimed(self, log: SimLog, rows: list[Row]) -> None: ...

    def flushing(self, log: SimLog) -> None: ...

    def flushed(self, log: SimLog, rows: list[Stored], failure: JournalError | SessionBusy | None) -> None: ...


class SimJournal:
    """A Journal on a SimDisk, as one process has it. clock: seconds since 1970. flush_s: how long a flush takes."""

    def __init__(self, disk: SimDisk, *, clock: Callable[[], float], hooks: Hooks | None = None, flush_s: float = 0.0) -> None:
        self.disk = disk
        self.clock = clock
        self.hooks: Hooks = NoHooks() if hooks is None else hooks
        self.owner = f"sim-{next(disk.names)}"
        self.held: dict[str, SimLog] = {}
        self.epochs = count(1)
        self._dirty: dict[SimLog, None] = {}
        self._flush_s = flush_s
        self._flushing: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(self._renew)
        self._closed = False

    async def open(self) -> None:
        self._check_open()

    def session(self, session_id: str) -> SimLog:
        return SimLog(self, clean(session_id))

    async def read(self, session_id: str, *, after: int = 0) -> list[Row]:
        self._check_open()
        return self.disk.read(clean(session_id), after)

    async def tail(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Row, None]:
        self._check_open()
        changed = asyncio.Event()
        self.disk.changed.add(changed)
        try:
            while True:
                changed.clear()
                for row in self.disk.read(clean(session_id), after):
                    after = row.seq
                    yield row
                await changed.wait()
        finally:
            self.disk.changed.discard(changed)

    async def sessions(self) -> list[SessionInfo]:
        self._check_open()
        now, infos = self.clock(), list[SessionInfo]()
        for session_id, rows in self.disk.rows.items():
            lease = self.disk.leases.get(session_id)
            state: SessionState = "idle" if lease is None else "running" if self.disk.holds(lease, now=now) else "abandoned"
            infos.append(
                SessionInfo(
                    session_id=session_id,
                    rows=len(rows),
                    created_at=rows[0][1],
                    updated_at=rows[-1][1],
                    state=state,
                    owner="" if lease is None else lease.owner,
                )
            )
        return sorted(infos, key=lambda info: info.updated_at, reverse=True)

    async def delete(self, session_id: str) -> bool:
        self._check_open()
        session_id = clean(session_id)
        lease = self.disk.leases.get(session_id)
        if lease is not None and self.disk.holds(lease, now=self.clock()):
            raise _busy(session_id, lease)
        self.disk.leases.pop(session_id, None)
        self.disk.payloads.pop(session_id, None)
        return bool(self.disk.rows.pop(session_id, None))

    async def prune(self, *, older_than_s: float, keep: Collection[str] = (), dry_run: bool = False) -> list[SessionInfo]:
        before, kept = self.clock() - check_age(older_than_s), set(map(clean, keep))
        pruned: list[SessionInfo] = []
        for info in reversed(await self.sessions()):
            rows = self.disk.read(info.session_id)
            old = info.updated_at <= before and info.session_id not in kept
            if old and info.state != "running" and not has_open_run(row.record for row in reversed(rows)):
                pruned.append(info)
        for info in () if dry_run else pruned:
            await self.delete(info.session_id)
        return pruned

    async def aclose(self) -> None:
        if self._closed:
            return
        for log in list(self.held.values()):
            await log.release()
        self.flush()
        self._closed = True
        await self._heartbeat.stop()
        self.disk.dead.add(self.owner)

    # ---- for SimLog --------------------------------------------------------------------------------------

    def mark(self, log: SimLog) -> None:
        self._dirty[log] = None

    def flush(self) -> None:
        """Store what is buffered, of every session."""
        while self._dirty:
            log, _ = self._dirty.popitem()
            log.flush()

    async def flush_soon(self) -> None:
        """Flush, after as long as the disk takes. Who asks meanwhile waits for the same flush; it is not cancelled with its caller."""
        if not self._flush_s:
            self.flush()
            return
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_later())
        await asyncio.shield(self._flushing)

    async def _flush_later(self) -> None:
        await asyncio.sleep(self._flush_s)
        self._flushing = None
        self.flush()

    def take(self, log: SimLog, lease_s: float) -> Claim:
        self._check_open()
        now, lease = self.clock(), self.disk.leases.get(log.session_id)
        if lease is not None and lease.owner != self.owner and self.disk.holds(lease, now=now):
            raise _busy(log.session_id, lease)
        other = self.held.get(log.session_id)
        if other is not None and other is not log and other.failure is None:
            raise SessionBusy(f"session {log.session_id!r} is held by another handle of this journal")
        claim = Claim(next(self.epochs), lease_s)
        self.disk.leases[log.session_id] = Lease(self.owner, claim.epoch, lease_s, now + lease_s)
        self.held[log.session_id] = log
        self._heartbeat.start(lease_s)
        return claim

    def give_up(self, log: SimLog, claim: Claim) -> None:
        if self.held.get(log.session_id) is log:
            del self.held[log.session_id]
            if not self.held:
                self._heartbeat.pause()
        lease = self.disk.leases.get(log.session_id)
        if lease is not None and (lease.owner, lease.epoch) == (self.owner, claim.epoch):
            del self.disk.leases[log.session_id]

    async def _renew(self) -> float | None:
        now, shortest = self.clock(), None
        for session_id, log in list(self.held.items()):
            lease, claim = self.disk.leases.get(session_id), log.held
            if claim is None or lease is None or (lease.owner, lease.epoch) != (self.owner, claim.epoch):
                continue
            self.disk.leases[session_id] = Lease(lease.owner, lease.epoch, lease.lease_s, now + lease.lease_s)
            shortest = min(lease.lease_s, shortest or lease.lease_s)
        return shortest

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this SimJournal is closed; make a new one")


class SimLog:
    """One session's log in a SimJournal."""

    def __init__(self, journal: SimJournal, session_id: str) -> None:
        self.session_id = session_id
        self.journal = journal
        self.held: Claim | None = None
        self.failure: JournalError | SessionBusy | None = None
        self.buffer: list[Stored] = []
        self.base: list[Stored] | None = None
        """The session's rows on the disk, once known: another list is another session."""
        self._payloads: dict[str, bytes] = {}
        self._seq = 0

    @property
    def seq(self) -> int:
        return self._seq

    async def claim(self, *, lease_s: float) -> list[Row]:
        self._check()
        self.journal.flush()
        self._check()
        stored = self.journal.disk.rows.get(self.session_id)
        if self.base is not None and self.base is not stored:
            raise JournalConflict(f"session {self.session_id!r} was deleted; open it anew")
        self.held = self.journal.take(self, lease_s)
        self.base = stored
        rows = self.journal.disk.read(self.session_id, self._seq)
        self._seq += len(rows)
        self.journal.hooks.claimed(self, rows)
        return rows

    def append(self, record: Record, *, at: float) -> int:
        self._check()
        self.journal.hooks.appending(self, record)
        try:
            body = encode(record)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"{type(record).__name__} cannot be written as JSON: {error}") from error
        self._seq += 1
        self.buffer.append((self._seq, at, body))
        self.journal.mark(self)
        self.journal.hooks.appended(self, record, body)
        return self._seq

    async def durable(self, seq: int | None = None) -> None:
        self._check()
        if self.journal.hooks.frozen:
            await asyncio.sleep(0)
        await self.journal.flush_soon()
        if self.journal.hooks.frozen:
            await asyncio.sleep(0)
        self._check()

    async def release(self) -> None:
        poisoned = self.failure is not None
        self.journal.flush()
        claim, self.held = self.held, None
        if claim is not None:
            self.journal.give_up(self, claim)
        if not poisoned:
            self._check()

    def put_payload(self, digest: str, data: bytes) -> None:
        self._check()
        self._payloads[digest] = data
        self.journal.mark(self)

    async def get_payload(self, digest: str) -> bytes | None:
        data = self._payloads.get(digest)
        return data if data is not None else self.journal.disk.payloads.get(self.session_id, {}).get(digest)

    def flush(self) -> None:
        """Move the buffer to the disk, or poison this log. Called by the journal only."""
        hooks = self.journal.hooks
        hooks.flushing(self)
        rows, self.buffer = self.buffer, []
        payloads, self._payloads = self._payloads, {}
        if self.failure is None:
            self.failure = JournalError("the disk is full") if hooks.io_error else self._why_not(rows)
        if self.failure is None:
            self.store(rows)
            if payloads:
                self.journal.disk.payloads.setdefault(self.session_id, {}).update(payloads)
        hooks.flushed(self, rows, self.failure)

    def lose(self, share: float) -> None:
        """The process dies: of its buffered rows the first ``share`` (0 to 1) had reached the disk, if they could."""
        rows, self.buffer = self.buffer[: round(share * len(self.buffer))], []
        if self.failure is None and self._why_not(rows) is None:
            self.store(rows)

    def store(self, rows: list[Stored]) -> None:
        """Put ``rows`` on the disk, whatever else holds."""
        disk = self.journal.disk
        if rows:
            disk.rows.setdefault(self.session_id, []).extend(rows)
            self.base = disk.rows[self.session_id]
        for changed in disk.changed:
            changed.set()

    def _why_not(self, rows: list[Stored]) -> JournalConflict | None:
        """What forbids this log to write: another owner's lease, another session's rows, or rows that are there already."""
        session_id, disk, claim = self.session_id, self.journal.disk, self.held
        lease = disk.leases.get(session_id)
        if claim is None:
            if lease is not None and disk.holds(lease, now=self.journal.clock()):
                return JournalConflict(f"session {session_id!r} is being written by {lease.owner}; open it anew")
        elif lease is None or (lease.owner, lease.epoch) != (self.journal.owner, claim.epoch):
            return JournalConflict(f"session {session_id!r} was taken over; what this handle had buffered is dropped, open it anew")
        stored = disk.rows.get(session_id)
        if self.base is not None and self.base is not stored:
            return JournalConflict(f"session {session_id!r} was deleted; open it anew")
        head = len(stored or ())
        if rows and rows[0][0] != head + 1:
            return JournalConflict(f"session {session_id!r} is at seq {head}, so row {rows[0][0]} cannot be added; open it anew")
        return None

    def _check(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args) from self.failure


def _busy(session_id: str, lease: Lease) -> SessionBusy:
    return SessionBusy(f"session {session_id!r} is being run by {lease.owner}, whose lease lasts until {lease.until:.1f}")
