"""The bridge for scripts: one event loop in one daemon thread per agent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import UsageError

T = TypeVar("T")

INTERRUPT_S = 5.0
"""How long Ctrl-C waits for the run to be drained and recorded."""


class LoopThread:
    """An event loop in a thread of its own. ``call`` runs a coroutine there and waits for it, from any other thread."""

    def __init__(self, what: str) -> None:
        _refuse_inside_a_loop(what, None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="interlock-loop", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. If the waiting thread is interrupted, the coroutine is cancelled and waited for first."""
        _refuse_inside_a_loop("the sync interface", coroutine)
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[None]] = []

        async def body() -> None:
            try:
                done.set_result(await coroutine)
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(lambda: tasks.append(self._loop.create_task(body())))
        try:
            return done.result()
        except KeyboardInterrupt:
            # Not run_coroutine_threadsafe: its future is done as soon as it is cancelled, long before the coroutine is.
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            concurrent.futures.wait([done], timeout=INTERRUPT_S)
            raise

    def close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        self._loop.close()


def _refuse_inside_a_loop(what: str, coroutine: Coroutine[Any, Any, Any] | None) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if coroutine is not None:
        coroutine.close()
    raise UsageError(f"{what} blocks, and an event loop is running in this thread: await the async method instead")
