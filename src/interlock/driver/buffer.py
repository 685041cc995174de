"""The events between a run and its consumer: a bounded buffer that slows the producer down."""

from __future__ import annotations

import asyncio
from collections import deque

from ..events import Event


class EventBuffer:
    """Filled by the run's tasks, drained by one consumer, on one event loop.

    A burst of events wakes the consumer once: a queue with a future per item costs more than all the rest of a chunk.
    """

    __slots__ = ("_reader", "_writers", "bound", "closed", "items", "loop", "waiting")

    def __init__(self, bound: int) -> None:
        self.items: deque[Event] = deque()
        self.closed = False
        self.waiting = False
        """Whether the consumer has taken everything and waits."""
        self.bound = bound
        self.loop: asyncio.AbstractEventLoop | None = None
        """The run's, once there is one: in Python 3.11 to ask for it is a system call."""
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    def put(self, event: Event) -> None:
        """Add an event. Never waits: who produces many events does what is done here itself, and awaits ``room`` when it is full."""
        self.items.append(event)
        if self.waiting:
            self.wake()

    def wake(self) -> None:
        """The consumer waits, and there is something for it."""
        self.waiting = False
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    @property
    def full(self) -> bool:
        return len(self.items) >= self.bound

    async def room(self) -> None:
        """Wait until the consumer has taken what there was."""
        while len(self.items) >= self.bound and not self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._writers.append(waiter)
            await waiter

    async def wait(self) -> None:
        """The consumer took everything: let producers go on, and wait for more, or for the end."""
        if self._writers:
            self._release()
        if self.items or self.closed:
            return
        self._reader = (self.loop or asyncio.get_running_loop()).create_future()
        self.waiting = True
        try:
            await self._reader
        finally:
            self.waiting = False

    def close(self) -> None:
        """Nothing follows. What is buffered can still be taken."""
        self.closed = True
        self._release()
        self.wake()

    def _release(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)
        self._writers.clear()
