"""One daemon thread that runs jobs in order, so that waiting for a disk or a lock never stops the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar
from weakref import finalize

T = TypeVar("T")
_Jobs = SimpleQueue[Callable[[], None] | None]


class Worker:
    """The thread starts with the first job, and ends after ``stop`` or when this object is garbage."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: _Jobs = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._end = finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job``, which must not raise, after those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    async def call(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises, run in the thread. If cancelled, ``work`` still runs; its result is dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                finish = partial(_succeed, future, work())
            except BaseException as error:  # carried to the caller, whatever it is
                finish = partial(_fail, future, error)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile; nobody waits any more
                loop.call_soon_threadsafe(finish)

        self.submit(job)
        return await future

    def stop(self) -> None:
        """End after the jobs given so far."""
        self._end()


def _run(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or the thread would keep what the last job refers to alive while it waits


def _succeed(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
