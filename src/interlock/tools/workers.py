"""Threads for synchronous handlers: bounded, daemonic, our own.

``concurrent.futures`` joins its threads when the interpreter exits, so one hanging tool would keep the process alive; and
waiting with a timeout does not end a thread. Here a slot stays occupied until its function has really returned.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ..errors import ToolFailure

# An idle thread costs a stack; starting one costs about 0.1 ms. Most runs make their calls within seconds of each other.
IDLE_S = 10.0

LateCallback = Callable[[Any, BaseException | None], None]


class PoolFull(ToolFailure):
    """Every worker thread is occupied. Nothing was started."""

    def __init__(self, running: int, waited_s: float) -> None:
        super().__init__(
            f"all {running} worker threads are occupied by calls that still run; waited {waited_s:g} s for a free one. "
            "Nothing was started; try again later",
            effect="none",
        )


class WorkerPool:
    """At most ``threads_max`` functions run at once. Usable from several event loops, one after the other or at once."""

    def __init__(self, threads_max: int, *, idle_s: float = IDLE_S) -> None:
        self._threads_max = threads_max
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._occupied = 0
        self._idle: list[_Worker] = []  # The last one that became idle is reused first, so that the others can end.
        self._waiting: deque[_Waiter] = deque()

    @property
    def occupied(self) -> int:
        """Slots in use: functions that run, abandoned ones included, and slots not yet released."""
        return self._occupied

    async def acquire(self, timeout_s: float) -> Slot:
        """A slot, which must be run or released. Raises PoolFull after ``timeout_s``; cancelling it leaks nothing."""
        with self._lock:
            if self._occupied < self._threads_max:
                self._occupied += 1
                return Slot(self)
            loop = asyncio.get_running_loop()
            waiter = _Waiter(loop, loop.create_future())
            self._waiting.append(waiter)
        timer = loop.call_later(timeout_s, self._expire, waiter, timeout_s)
        try:
            return await waiter.future
        except BaseException:
            # Granted and cancelled at the same time: the slot goes to the next one.
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                waiter.future.result().release()
            raise
        finally:
            timer.cancel()
            self._forget(waiter)

    def _expire(self, waiter: _Waiter, timeout_s: float) -> None:
        if not waiter.future.done():
            waiter.future.set_exception(PoolFull(self._occupied, timeout_s))

    def _forget(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def vacate(self, worker: _Worker | None = None) -> None:
        """A slot became free, and with it the worker that ran it. Called from any thread."""
        with self._lock:
            if worker is not None:
                self._idle.append(worker)
            while self._waiting:
                waiter = self._waiting.popleft()
                try:
                    waiter.loop.call_soon_threadsafe(_grant, waiter.future, Slot(self))
                except RuntimeError:
                    continue  # its loop is closed
                return
            self._occupied -= 1

    def start(self, job: _Job) -> None:
        """Run ``job`` on an idle worker, or on a new one."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker(self, self._idle_s)
            worker.thread.start()
        worker.jobs.put(job)

    def retire(self, worker: _Worker) -> bool:
        """Whether ``worker`` may end: not if it was just given a job."""
        with self._lock:
            if worker not in self._idle:
                return False
            self._idle.remove(worker)
            return True


class Slot:
    """The right to run one function."""

    __slots__ = ("_late", "_pool", "_used")

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._used = False
        self._late: LateCallback | None = None

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Run ``fn`` in a thread, under a copy of the current context; the future gets what it returns or raises.

        SystemExit and KeyboardInterrupt are delivered too; StopIteration becomes a RuntimeError. Cancelling the future does
        not stop the function, except before its first line.
        """
        self._take()
        loop = asyncio.get_running_loop()
        job = _Job(contextvars.copy_context(), fn, args, kwargs, loop, loop.create_future(), self)
        try:
            self._pool.start(job)
        except RuntimeError:  # the system has no thread to give
            self._pool.vacate()
            raise
        return job.future

    def release(self) -> None:
        """Give the slot back unused. Without effect if it was run."""
        if not self._used:
            self._take()
            self._pool.vacate()

    def on_late(self, callback: LateCallback) -> None:
        """``callback(value, exception)`` is called on the loop if the function ends after its future was cancelled; set it before
        cancelling. A function that was cancelled before its first line ends with CancelledError. Not called once the loop is closed.
        """
        self._late = callback

    def deliver(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """On the loop: settle the future, or tell whoever waits for late results."""
        if not future.done():
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        elif self._late is not None:
            self._late(value, error)

    def _take(self) -> None:
        if self._used:
            raise RuntimeError("a worker slot is used once")
        self._used = True


class _Waiter(Struct, eq=False):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Slot]


def _grant(future: asyncio.Future[Slot], slot: Slot) -> None:
    if future.done():
        slot.release()
    else:
        future.set_result(slot)


class _Job(Struct, eq=False):
    context: contextvars.Context
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    slot: Slot


class _Worker:
    def __init__(self, pool: WorkerPool, idle_s: float) -> None:
        from queue import Empty, SimpleQueue  # only a tool that is not async needs a worker

        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self._empty = Empty
        self._pool = pool
        self._idle_s = idle_s
        self.thread = threading.Thread(target=self._work, name="interlock-worker", daemon=True)

    def _work(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=self._idle_s)
            except self._empty:
                if self._pool.retire(self):
                    return
                continue
            self._finish(job, *_call(job))
            del job  # An idle thread must not keep the last call's arguments and result alive.

    def _finish(self, job: _Job, value: Any, error: BaseException | None) -> None:
        # The slot first: whoever awaits the future may want the next one at once.
        self._pool.vacate(self)
        try:
            job.loop.call_soon_threadsafe(job.slot.deliver, job.future, value, error)
        except RuntimeError:
            pass  # The loop is closed: nobody is left who could be told.


def _call(job: _Job) -> tuple[Any, BaseException | None]:
    if job.future.cancelled():
        return None, asyncio.CancelledError("cancelled before it started")
    try:
        return job.context.run(job.fn, *job.args, **job.kwargs), None
    except StopIteration as error:  # A future cannot carry it.
        stopped = RuntimeError("the function raised StopIteration")
        stopped.__cause__ = error
        return None, stopped
    except BaseException as error:
        return None, error
