"""Signals for programs that run an event loop: the first one ends the work in good order, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import TypeVar

__all__ = ["HUNG_UP", "INTERRUPTED", "TERMINATED", "Stopped", "run_interruptible"]

INTERRUPTED = 130
"""What a shell reports for a process that Ctrl-C ended."""
TERMINATED = 143
"""The same for SIGTERM."""
HUNG_UP = 129
"""The same for SIGHUP: the terminal was closed."""

_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}

T = TypeVar("T")


class Stopped(KeyboardInterrupt):
    """The work was ended by a signal. code: what the process should exit with."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _take_no_notice(code: int) -> bool:
    return False


def run_interruptible(main: Coroutine[object, object, T], *, on_stop: Callable[[int], bool] = _take_no_notice) -> T:
    """``asyncio.run`` that listens to Ctrl-C, SIGTERM and SIGHUP.

    The first one calls ``on_stop`` with its exit code. If that returns True it has seen to the end of ``main`` itself, whose
    value is returned; otherwise ``main`` is cancelled, and Stopped is raised. A second signal ends the process at once: the
    journal is made for processes that just end, and waiting politely for a second time is not what was asked for.
    """
    stopped: list[int] = []

    async def interruptible() -> T:
        task = asyncio.current_task()

        def stop(code: int) -> None:
            if stopped:
                os._exit(code)
            stopped.append(code)
            if not on_stop(code) and task is not None:
                task.cancel()

        for number, code in _CODES.items():
            asyncio.get_running_loop().add_signal_handler(number, stop, code)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise Stopped(stopped[0] if stopped else INTERRUPTED) from None
