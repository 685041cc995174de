"""An event loop with virtual time: it never waits, its order follows from a seed, and a process on it can freeze or die.

Every callback belongs to the process in whose context it was made. A frozen process runs nothing until it thaws, and what
a dead one still had to do is never done: not even a ``finally``.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

process_here: ContextVar[int] = ContextVar("interlock_sim_process", default=0)
"""The process that the present code belongs to. 0 is the world outside, which never freezes."""


class Stuck(Exception):
    """Nothing is ready, no timer is set, and the simulation has not ended: or it goes on without end."""


class _Timer(asyncio.TimerHandle):
    """A timer that is cancelled is left out when its time comes; the loop need not be told."""

    def cancel(self) -> None:
        asyncio.Handle.cancel(self)


class SimLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as a program without sockets, threads and signals needs. ``time()`` is virtual, in seconds.

    seed: the order in which callbacks that are ready together run; None keeps the order in which they became ready.
    steps_max: callbacks; beyond it the run is called endless.
    """

    def __init__(self, seed: int | None = None, *, steps_max: int = 200_000) -> None:
        self.now = 0.0
        self.steps = 0
        self.problems: list[str] = []
        """What would have gone to the log of a real loop: exceptions that nobody looked at."""
        self.dead: set[int] = set()
        self._steps_max = steps_max
        self._dice = None if seed is None else random.Random(seed)
        self._ready: deque[tuple[int, asyncio.Handle]] = deque()
        self._timers: list[tuple[float, int, int, asyncio.TimerHandle]] = []
        self._number = count()
        self._frozen: dict[int, list[asyncio.Handle]] = {}
        self._stopping = False
        self._running = False
        self._closed = False

    # ---- time and processes ------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def freeze(self, process: int) -> None:
        """Nothing of ``process`` runs until ``thaw``; its timers that pass meanwhile wait."""
        self._frozen.setdefault(process, [])

    def thaw(self, process: int) -> None:
        if process in self.dead:
            return
        for handle in self._frozen.pop(process, []):
            self._ready.append((process, handle))

    def is_frozen(self, process: int) -> bool:
        return process in self._frozen

    def kill(self, process: int) -> None:
        """Nothing of ``process`` runs again before ``bury``."""
        self.dead.add(process)
        self._frozen.setdefault(process, [])

    def bury(self) -> None:
        """At the very end: let the tasks of dead processes be cleaned up, where nobody can see it."""
        self.dead.clear()
        for process in list(self._frozen):
            self.thaw(process)

    # ---- running -------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run until ``future`` is done. Raises Stuck if that can never be."""
        made = asyncio.ensure_future(future, loop=self)
        made.add_done_callback(self._done)
        try:
            self.run_forever()
        finally:
            made.remove_done_callback(self._done)
        if not made.done():
            made.cancel()
            raise Stuck("the loop stopped before it was done")
        return made.result()

    def _done(self, future: asyncio.Future[Any]) -> None:
        self.stop()

    def run_forever(self) -> None:
        """Run until ``stop``. Raises Stuck when nothing can run any more, or after ``steps_max`` callbacks."""
        self._stopping, self._running = False, True
        old_loop, old_hooks = events._get_running_loop(), sys.get_asyncgen_hooks()  # pyright: ignore[reportPrivateUsage]
        sys.set_asyncgen_hooks(finalizer=self._dropped)
        events._set_running_loop(self)  # pyright: ignore[reportPrivateUsage]
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._running = False
            events._set_running_loop(old_loop)  # pyright: ignore[reportPrivateUsage]
            sys.set_asyncgen_hooks(*old_hooks)

    def _turn(self) -> None:
        """Run what is ready now; if that is nothing, go to the next timer."""
        self._take_timers()
        if not self._ready:
            self._advance()
        batch = self._ready
        self._ready = deque()
        if self._dice is not None and len(batch) > 1:
            shuffled = list(batch)
            self._dice.shuffle(shuffled)
            batch = deque(shuffled)
        while batch:
            process, handle = batch.popleft()
            if handle.cancelled():
                continue
            if process in self._frozen:
                self._frozen[process].append(handle)
                continue
            self.steps += 1
            handle._run()  # pyright: ignore[reportPrivateUsage]
            if self._stopping:
                self._ready.extendleft(reversed(batch))
                return
        if self.steps > self._steps_max:
            raise Stuck(f"it went on for more than {self._steps_max} callbacks")

    def _take_timers(self) -> None:
        timers = self._timers
        while timers and (timers[0][0] <= self.now or timers[0][3].cancelled()):
            _, _, process, handle = heapq.heappop(timers)
            if not handle.cancelled():
                self._ready.append((process, handle))

    def _advance(self) -> None:
        """Jump to the next timer."""
        while not self._ready:
            if not self._timers:
                raise Stuck("nothing is ready and no timer is set")
            self.now = max(self.now, self._timers[0][0])
            self._take_timers()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # ---- what asyncio asks of a loop -------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((context.get(process_here, 0), handle))
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._number), context.get(process_here, 0), timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None) -> asyncio.Task[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return asyncio.Task(coro, loop=self, context=context)

    def get_debug(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An async generator that nobody holds any more is closed, as on a real loop."""
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())
