"""Leases: a writer's sign of life. Who may take a session over, and what the one who may not is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from ..errors import InterlockError, SessionBusy
from .base import SessionState
from .owner import describe, is_dead

logger = logging.getLogger("interlock.journal")


class Lease(Struct, frozen=True, gc=False):
    """A stored lease. epoch: counts the claims of one owner. until: seconds since 1970."""

    owner: str
    epoch: int
    lease_s: float
    until: float


class Claim(Struct, gc=False):
    """What a log holds of its session. written: the lease is in the store. leaving: it goes with the next flush."""

    epoch: int
    lease_s: float
    written: bool = False
    leaving: bool = False


def holds(lease: Lease, *, now: float) -> bool:
    """Whether the lease keeps others out: neither expired nor of a process that is provably gone."""
    return lease.until > now and not is_dead(lease.owner)


def busy(session_id: str, lease: Lease, *, now: float) -> SessionBusy:
    return SessionBusy(
        f"session {session_id!r} is being run by {describe(lease.owner)}; wait for it to end, or for its lease to expire "
        f"in {max(lease.until - now, 0):.1f} s if it has stopped"
    )


def busy_here(session_id: str) -> SessionBusy:
    return SessionBusy(
        f"session {session_id!r} is being run by another agent of this process, on the same journal object; "
        "wait for it to end, or cancel it"
    )


def state_of(lease: Lease | None, *, now: float) -> SessionState:
    if lease is None:
        return "idle"
    return "running" if holds(lease, now=now) else "abandoned"


class Heartbeat:
    """Renews in the background while something is claimed. A timer, so that between two beats there is no task at all.

    renew: called at a third of the shortest lease; returns that lease's length, or None when nothing is claimed any
    more. It must not block the loop. A failed renewal is logged and tried again: the fence is the store, not the clock.
    """

    def __init__(self, renew: Callable[[], Awaitable[float | None]]) -> None:
        self._renew = renew
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._lease_s = 0.0
        self._resting = False

    def start(self, lease_s: float) -> None:
        """Make sure that it beats at least every ``lease_s / 3``, on the running loop."""
        loop = asyncio.get_running_loop()
        self._resting = False
        if self._timer is not None and self._loop is loop and self._lease_s <= lease_s:
            return
        self.pause()
        self._loop = loop
        self._again(lease_s)

    def rest(self) -> None:
        """Nothing is claimed: the next beat is the last, unless ``start`` comes first. Cheaper than a timer for every run."""
        self._resting = True

    def pause(self) -> None:
        """No further beat, until ``start``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop(self) -> None:
        """No further beat; one that is under way is waited for."""
        self.pause()
        task = self._task
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([task])
        self.pause()

    def _again(self, lease_s: float) -> None:
        assert self._loop is not None
        self._lease_s = lease_s
        self._timer = self._loop.call_later(max(lease_s / 3, 0.01), self._beat)

    def _beat(self) -> None:
        fired = self._timer
        assert fired is not None
        if self._resting:
            self._timer = None
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._renew_once(fired), name="interlock-lease")
        else:
            self._again(self._lease_s)

    async def _renew_once(self, fired: asyncio.TimerHandle) -> None:
        lease_s: float | None = self._lease_s
        try:
            lease_s = await self._renew()
        except InterlockError as error:  # the next beat is the retry, and a flush will say it, too
            logger.warning("a lease could not be renewed: %s", error)
        finally:
            if self._timer is fired:  # otherwise it was paused meanwhile, and perhaps started anew
                self._timer = None
                if lease_s is not None:
                    self._again(lease_s)
