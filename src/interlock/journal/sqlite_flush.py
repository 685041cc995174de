"""Group commit: one ordered buffer of all sessions, stored in one transaction by whoever waits first.

In process mode a flush runs on the event-loop thread: 0.05 ms, where a hand-over to a thread costs 0.2 ms. Whoever comes
later in the same turn of the loop is served at its end, all together. If somebody else has the write lock a flush is
handed over all the same, and waits for the lock there. In power mode every flush
syncs the disk, so every one runs in the worker; those that come to wait meanwhile are served together by the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sized
from typing import Protocol

from ..errors import InterlockError, JournalError
from . import sqlite_store as store
from .sqlite_file import Connections, Durability, check_there, explain, is_busy
from .worker import Worker

CHECKPOINT_PAGES = 1000
"""Pages after which the WAL is copied into the database; SQLite's own default."""

ALONE_ROWS_MAX = 3
"""Rows that a session with one call at a time flushes at most: the reply of the model, the step, and the start of the handler."""

_Result = dict[store.Part, InterlockError] | Exception
_Batch = dict["Buffered", store.Part]


class Buffered(Protocol):
    """What a flush asks of a log."""

    def take(self) -> store.Part | None:
        """Everything that is buffered, as one part, if anything is; the log is clean afterwards."""
        ...

    def settle(self, part: store.Part, error: InterlockError | None) -> None:
        """``part`` is stored, or refused for ``error``."""
        ...


class Flusher:
    """The buffer's way into the store. Used on the event-loop thread, and on any loop, one after the other."""

    def __init__(
        self,
        dirty: dict[Buffered, None],
        connections: Connections,
        worker: Worker,
        *,
        path: str,
        owner: str,
        durability: Durability,
        clock: Callable[[], float],
        held: Sized,
        on_stored: Callable[[Iterable[store.Part]], None],
    ) -> None:
        self.dirty = dirty
        self._here = store.Writer(connections.loop, owner)
        self.there = store.Writer(connections.thread, owner)
        self._worker = worker
        self._connections = connections
        self._path = path
        self._in_thread = durability == "power"
        self._clock = clock
        self._on_stored = on_stored
        self._running: _Batch | None = None
        self._outcomes: deque[_Result] = deque()
        self._current: list[asyncio.Future[None]] = []
        self._next: list[asyncio.Future[None]] = []
        self._wanted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled_on: asyncio.AbstractEventLoop | None = None
        self._held = held
        self._crowded = False
        """Whether more may be asked for in the turn of the last flush: it had more than one call alone has."""
        self._turn_of: asyncio.AbstractEventLoop | None = None
        """The loop in whose present turn a flush has run on this thread."""
        self._pages = connections.wal_pages
        self._new_wal = False

    def flush_now(self) -> bool:
        """Store what is buffered on this thread, if that needs no waiting; whether it did (or refused it)."""
        if self._in_thread:
            return False
        if self._running is not None:
            self._loop = asyncio.get_running_loop()
            self._collect()
        if self._running is not None:
            return False
        batch = self._take()
        self._crowded = len(batch) > 1 or any(part.count > ALONE_ROWS_MAX for part in batch.values())
        if batch and self._new_wal:
            self._launch(batch)
            return False
        try:
            if batch:
                check_there(self._path, self._connections)
            refused = self._here.write(list(batch.values()), now=self._clock()) if batch else {}
        except JournalError as error:
            self._settle(batch, error)
        except sqlite3.Error as error:
            if is_busy(error):
                self._launch(batch)
                return False
            self._settle(batch, explain(error, self._path, "written"))
        except BaseException:
            self._settle(batch, JournalError(f"journal {self._path}: a flush was interrupted; open the session anew"))
            self._wake(self._next)
            raise
        else:
            self._settle(batch, refused)
        if self._next:
            self._wake(self._next)
        if self._pages >= CHECKPOINT_PAGES:
            self._launch({})
        return True

    def begin(self, log: Buffered) -> asyncio.Future[None] | None:
        """Store what ``log`` has buffered by now, with all the rest: the future to wait for, or None if that is done.

        Whoever waits looks at its log then. Nobody has to: the rows are stored all the same.
        """
        turn_of = self._turn_of
        if not self._in_thread and (turn_of is None or turn_of is not asyncio.get_running_loop()) and self.flush_now():
            if self._crowded or len(self._held) != 1:
                # Of 32 parallel calls one commit is for 31. To know when the turn has ended is a turn more, 5 us.
                self._turn_of = loop = asyncio.get_running_loop()
                loop.call_soon(self._turn_ends)
            return None
        self._loop = loop = asyncio.get_running_loop()
        if self._outcomes:
            self._collect()
        if log in self.dirty:
            waiters = self._next
            self._want(loop)
        elif self._running is not None and log in self._running:
            waiters = self._current
        else:
            return None
        future: asyncio.Future[None] = asyncio.Future(loop=loop)
        waiters.append(future)
        return future

    def close(self) -> None:
        """Nothing is stored any more. To be called when it is idle, before the connections are closed."""
        self._here.close()
        self.there.close()

    def _turn_ends(self) -> None:
        self._turn_of = None

    async def idle(self) -> None:
        """Return when nothing is buffered or being stored."""
        while True:
            self._loop = loop = asyncio.get_running_loop()
            self._collect()
            if self.dirty:
                self._want(loop)
            elif self._running is None:
                return
            future = loop.create_future()
            (self._next if self.dirty else self._current).append(future)
            await future

    def _want(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wanted = True
        if self._running is None and self._scheduled_on is not loop:
            # Not at once: whoever becomes ready in this turn of the loop joins the same flush.
            self._scheduled_on = loop
            loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled_on = None
        self._collect()
        if self._running is not None or not self._wanted:
            return
        if not self._in_thread:
            self.flush_now()
        else:
            self._launch(self._take())

    def _take(self) -> _Batch:
        self._wanted = False
        batch: _Batch = {}
        dirty = self.dirty
        logs = list(dirty)
        dirty.clear()
        for log in logs:
            part = log.take()
            if part is not None:
                batch[log] = part
        return batch

    def _launch(self, batch: _Batch) -> None:
        """Store ``batch`` in the worker, and checkpoint if it is time; nothing else is stored meanwhile."""
        parts, now, checkpoint = list(batch.values()), self._clock(), self._pages >= CHECKPOINT_PAGES
        self._running = batch
        self._current, self._next = self._next, []
        writer = self.there

        def job() -> None:
            try:
                if parts:
                    check_there(self._path, self._connections)
                result: _Result = writer.write(parts, now=now) if parts else {}
            except Exception as error:  # carried to those who wait
                result = error
            if parts:
                self._report(result)
            if checkpoint:
                with contextlib.suppress(sqlite3.Error):  # the WAL only stays longer
                    writer.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if not parts:
                self._report(result)

        # The first flush into a WAL that begins anew syncs its header, so in process mode it goes to the worker, too.
        self._new_wal = checkpoint
        if checkpoint:
            self._pages = 0
        self._worker.submit(job)

    def _report(self, result: _Result) -> None:
        """In the worker: hand the outcome over."""
        self._outcomes.append(result)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed: the next loop that waits collects it
                loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        """Settle what the worker has finished, wake those who waited for it, and go on with what came meanwhile."""
        while self._outcomes:
            result, batch = self._outcomes.popleft(), self._running
            self._running = None
            if isinstance(result, sqlite3.Error):
                result = explain(result, self._path, "written")
            elif isinstance(result, Exception) and not isinstance(result, JournalError):
                result = JournalError(f"journal {self._path}: a flush failed ({result!r}); open the session anew")
            self._settle(batch or {}, result)
            self._wake(self._current)
            if self._wanted and self._loop is not None:
                self._want(self._loop)

    def _settle(self, batch: _Batch, result: dict[store.Part, InterlockError] | JournalError) -> None:
        size = 0
        for log, part in batch.items():
            if not result:
                log.settle(part, None)
            else:
                log.settle(part, result if isinstance(result, JournalError) else result.get(part))
            size += part.size
        # An estimate: the rows, the end of the table, and entries of sessions that do not all stand on one page.
        self._pages += 2 + size // 4096 + len(batch) // 4
        if batch:
            self._on_stored(batch.values())

    def _wake(self, waiters: list[asyncio.Future[None]]) -> None:
        for future in waiters:
            if not future.done():
                with contextlib.suppress(RuntimeError):  # its loop was closed while it waited; the others go on
                    future.set_result(None)
        waiters.clear()
