"""Whether commands that a test ran are gone: by a mark in their environment, and by the processes that keep them."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interlock.sandbox import LEVELS, Level, end_background, unavailable
from interlock.sandbox.tree import below, marked, send, shown

MARK = "INTERLOCK_TEST_MARK"
PATIENCE_S = 15.0


def levels() -> list[object]:
    """Every level as a parameter; those that are not there are skipped, with the reason."""
    return [pytest.param(level, marks=_skipped(level)) for level in LEVELS]


def needs(level: Level) -> pytest.MarkDecorator:
    """Skip a test, with the reason, where ``level`` is not there."""
    return pytest.mark.skipif(bool(unavailable(level)), reason=unavailable(level) or "there")


def _skipped(level: Level) -> list[pytest.MarkDecorator]:
    return [needs(level)] if unavailable(level) else []


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@contextmanager
def none_left() -> Iterator[str]:
    """Gives NAME=value for the commands' environment. Fails if, at the end, one of them or a keeper lives on."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    try:
        yield mark
    finally:
        end_background()
    until = time.monotonic() + PATIENCE_S
    while living := left(mark):
        if time.monotonic() > until:
            for seen in marked(mark):  # a test that fails leaves nothing either
                send(seen, signal.SIGKILL)
            raise AssertionError(f"left running: {living}")
        time.sleep(0.02)


def left(mark: str) -> list[str]:
    """The commands that carry ``mark``, and the keepers of this process."""
    keepers = [process for seen in below(os.getpid()) if "interlock.sandbox.keeper" in (process := shown(seen)).command]
    return [f"{process.pid} {process.command}" for process in (*keepers, *map(shown, marked(mark)))]
