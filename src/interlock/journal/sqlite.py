"""A journal in one SQLite file, shared by any number of processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import count
from typing import TypeVar, cast
from weakref import WeakValueDictionary, finalize

from ..errors import InterlockError, SessionBusy, UsageError
from ..messages import clean
from ..records import Row
from . import sqlite_rows as stored
from . import sqlite_store as store
from .base import SessionInfo
from .leases import Claim, Heartbeat, busy, busy_here, holds
from .owner import Owner, new_owner, retire
from .retention import check_age
from .sqlite_file import Connections, Durability, check_there, connect, explain, is_busy, scrub
from .sqlite_flush import Buffered, Flusher
from .sqlite_log import SQLiteLog
from .worker import Worker

__all__ = ["SQLiteJournal", "SQLiteLog"]

T = TypeVar("T")


def _file_name(path: object) -> str:
    name: object = os.fspath(cast("os.PathLike[str]", path)) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str) or not name or "\0" in name or clean(name) != name:
        raise UsageError(f"journal={name!r}: a file name is needed: text without NUL characters and half surrogate pairs")
    return name


_pid = os.getpid()
"""This process: to ask for it at every flush would be a system call each."""


def _forked() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class SQLiteJournal:
    """Sessions in the SQLite database at ``path``, which is created (mode 0600) if there is none; its directory is not.

    durability: ``process`` survives the end of the process, however it comes (no commit waits for the disk); ``power``
    survives a power cut, too (every commit does, in a thread). busy_s: how long a flush waits for another process's lock
    before it fails. poll_s: how often ``tail`` looks for rows of other processes. clock: seconds since 1970, for leases.
    pragmas: further SQLite settings, for each connection.

    The object belongs to the process that opened it: after a fork the child must make its own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        busy_s: float = 5.0,
        poll_s: float = 0.1,
        clock: Callable[[], float] = time.time,
        pragmas: Mapping[str, str | int] | None = None,
    ) -> None:
        if durability not in ("process", "power"):
            raise UsageError(f"SQLiteJournal(durability={durability!r}): use 'process' or 'power'")
        self.path: str = os.path.abspath(_file_name(path))
        self.durability: Durability = durability
        self.dirty: dict[Buffered, None] = {}
        self._busy_s = busy_s
        self._poll_s = poll_s
        self._clock = clock
        self._pragmas = dict(pragmas or {})
        self._worker = Worker("interlock-journal")
        self._heartbeat = Heartbeat(self._renew)
        self._held: WeakValueDictionary[str, SQLiteLog] = WeakValueDictionary()
        self._epochs = count(1)
        self._changed: dict[str, set[asyncio.Event]] = {}
        self._pid = 0
        self._owner: Owner | None = None
        self._connections: Connections | None = None
        self._flusher: Flusher | None = None
        self._closed = False

    async def open(self) -> None:
        await self.ready()

    def session(self, session_id: str) -> SQLiteLog:
        return SQLiteLog(self, clean(session_id))

    async def read(self, session_id: str, *, after: int = 0) -> list[Row]:
        session_id = clean(session_id)
        return await self._read(session_id, await self._query(partial(stored.find, name=session_id)), max(after, 0))

    async def tail(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Row, None]:
        session_id, after = clean(session_id), max(after, 0)
        changed = asyncio.Event()
        watchers = self._changed.setdefault(session_id, set())
        watchers.add(changed)
        try:
            while True:
                changed.clear()
                rows = await self.read(session_id, after=after)
                for row in rows:
                    after = row.seq
                    yield row
                if not rows:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._poll_s):
                            await changed.wait()
        finally:
            watchers.discard(changed)
            if not watchers and self._changed.get(session_id) is watchers:
                del self._changed[session_id]

    async def sessions(self) -> list[SessionInfo]:
        return await self._in_worker(partial(stored.list_sessions, now=self._clock()), "read")

    async def delete(self, session_id: str) -> bool:
        session_id = clean(session_id)
        if session_id in self._held:
            raise SessionBusy(f"session {session_id!r} is being run by this journal object; release it first")
        writer = (await self.ready()).there
        done = await self._in_worker(lambda _: writer.delete(session_id, now=self._clock()), "written")
        if isinstance(done, SessionBusy):
            raise done
        await self._in_worker(partial(scrub, path=self.path), "written")
        return done

    async def prune(self, *, older_than_s: float, keep: Collection[str] = (), dry_run: bool = False) -> list[SessionInfo]:
        before, kept = self._clock() - check_age(older_than_s), set(map(clean, keep))
        writer = (await self.ready()).there
        pruned: list[SessionInfo] = []
        for info in reversed(await self.sessions()):
            name = info.session_id
            if info.updated_at > before or info.state == "running" or name in kept or name in self._held:
                continue
            # Asked again where it is deleted: whoever took the session up meanwhile keeps it.
            ask = partial(writer.delete_ended, name, now=self._clock(), before=before, dry_run=dry_run)
            if await self._in_worker(lambda _, ask=ask: ask(), "written"):
                pruned.append(info)
        if pruned and not dry_run:
            await self._in_worker(partial(scrub, path=self.path), "written")
        return pruned

    async def aclose(self) -> None:
        if self._closed:
            return
        self._check_pid()
        failures: list[InterlockError] = []
        await self._heartbeat.stop()
        if self.dirty or self._held:
            flusher = await self.ready()
            for log in list(self._held.values()):
                try:
                    await log.release()
                except InterlockError as error:
                    failures.append(error)
            rest = [log for log in self.dirty if isinstance(log, SQLiteLog)]
            await flusher.idle()
            failures += [log.failure for log in rest if log.failure is not None]
        if self._flusher is not None:
            await self._flusher.idle()
            self._flusher.close()
        self._closed = True
        if self._connections is not None:
            await self._worker.call(self._connections.close)
        self._worker.stop()
        if self._owner is not None:
            retire(self._owner)
        if failures:
            raise failures[0]

    # For SQLiteLog.

    @property
    def owner_name(self) -> str:
        """What this object writes into a lease."""
        return "" if self._owner is None else self._owner.name

    @property
    def flusher(self) -> Flusher | None:
        """The way to the store, if it may be used: None before ``ready``, after ``aclose``, and in a forked child."""
        return self._flusher if self._pid == _pid and not self._closed else None

    async def ready(self) -> Flusher:
        """Open, if that has not happened. Raises UsageError in another process than the one that opened it."""
        if self._closed:
            raise UsageError(f"journal {self.path}: it is closed; make a new SQLiteJournal")
        self._check_pid()
        if self._flusher is None:
            self._pid = os.getpid()
            connections = await self._worker.call(self._connect)
            if self._flusher is None:
                self._owner = new_owner()
                self._flusher = Flusher(
                    self.dirty,
                    connections,
                    self._worker,
                    path=self.path,
                    owner=self._owner.name,
                    durability=self.durability,
                    clock=self._clock,
                    held=self._held,
                    on_stored=self._notify,
                )
        return self._flusher

    async def look(self, session_id: str, *, after: int) -> tuple[stored.Place | None, list[Row]]:
        """The session's number, lease and rows after ``after``. Raises SessionBusy if the lease keeps us out."""
        place = await self._query(partial(stored.find, name=session_id))
        if self._connections is not None:
            check_there(self.path, self._connections)
        if place is None:
            return None, []
        if place.lease is not None and place.lease.owner != self.owner_name:
            now = self._clock()
            if holds(place.lease, now=now):
                raise busy(session_id, place.lease, now=now)
        return place, await self._read(session_id, place, after)

    def new_claim(self, log: SQLiteLog, lease_s: float) -> Claim:
        """A claim whose lease is still to be written. Raises SessionBusy if another handle of this object has the session."""
        other = self._held.get(log.session_id)
        if other is not None and other is not log and other.failure is None:  # it shares our lease, and is alive
            raise busy_here(log.session_id)
        self._held[log.session_id] = log
        self._heartbeat.start(lease_s)
        return Claim(next(self._epochs), lease_s)

    def left(self, log: SQLiteLog) -> None:
        if self._held.get(log.session_id) is log:
            del self._held[log.session_id]
            if not self._held:
                self._heartbeat.rest()

    async def payload(self, session_id: str, digest: str) -> bytes | None:
        return await self._query(partial(stored.find_payload, session=session_id, digest=digest))

    # Inside.

    async def _read(self, session_id: str, place: stored.Place | None, after: int) -> list[Row]:
        """The rows of ``place`` after ``after``, from the last on in chunks."""
        chunks: list[list[Row]] = []
        while place is not None and place.rows > after:
            if chunks:
                await asyncio.sleep(0)
            rows, place = await self._query(partial(stored.read_back, session=session_id, place=place, after=after))
            if not rows:  # deleted meanwhile
                return []
            chunks.append(rows)
        return chunks[0] if len(chunks) == 1 else [row for rows in reversed(chunks) for row in rows]

    def _check_pid(self) -> None:
        if self._pid and self._pid != os.getpid():
            raise UsageError(
                f"journal {self.path}: it was opened by process {self._pid} and this is process {os.getpid()}; "
                "after a fork make a new SQLiteJournal"
            )

    def _connect(self) -> Connections:
        """In the worker, which makes two calls at once one after the other."""
        if self._connections is None:
            self._connections = connect(self.path, durability=self.durability, busy_s=self._busy_s, pragmas=self._pragmas)
            finalize(self, self._connections.close).atexit = False
        return self._connections

    async def _query(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read on this thread: a reader of a WAL waits for nobody. Should it be locked all the same, in the worker."""
        if self.flusher is None:
            await self.ready()
        assert self._connections is not None
        try:
            return work(self._connections.loop)
        except sqlite3.Error as error:
            if not is_busy(error):
                raise explain(error, self.path, "read") from error
        return await self._in_worker(work, "read")

    async def _in_worker(self, work: Callable[[sqlite3.Connection], T], what: str) -> T:
        await self.ready()
        assert self._connections is not None
        try:
            return await self._worker.call(partial(work, self._connections.thread))
        except sqlite3.Error as error:
            raise explain(error, self.path, what) from error

    def _notify(self, parts: Iterable[store.Part]) -> None:
        if self._changed:
            for part in parts:
                for changed in self._changed.get(part.session, ()) if part.values else ():
                    changed.set()

    async def _renew(self) -> float | None:
        claims = [(log.number, log.claimed) for log in list(self._held.values()) if log.claimed is not None]
        written = [(number, claim.epoch, claim.lease_s) for number, claim in claims if claim.written]
        if written:
            await self._in_worker(partial(store.renew, claims=written, owner=self.owner_name, now=self._clock()), "written")
        return min((claim.lease_s for _, claim in claims), default=None)
