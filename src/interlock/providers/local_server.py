"""A llama.cpp server in a process of its own, so that what goes wrong in native code ends that process and not the agent's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import IO, Any, NamedTuple, cast

from ..errors import ProviderError
from .llama_child import READY

__all__ = ["Listening", "LocalServer"]

# A log line of llama.cpp: its clock, its level, then what it says.
_LOG = re.compile(r"[\d.]+ ([EW]) (.*)")
_NO_MEMORY = re.compile(r"insufficient memory|failed to allocate|out of memory|bad_alloc|cannot allocate", re.IGNORECASE)
_LINES_KEPT = 50


class Listening(NamedTuple):
    """Where a server listens. llguidance: it has that grammar engine, which heeds ``x-guidance``."""

    url: str
    key: str
    llguidance: bool


class LocalServer:
    """One such process, from its start on. It ends with ``stop``, or with the process that started it.

    command: what is run; settings: the line that it is given. Any thread may use it. Raises ProviderError if it cannot be started.
    """

    def __init__(self, settings: Mapping[str, Any], *, command: tuple[str, ...] | None = None) -> None:
        self._starter = os.getpid()
        self._key = secrets.token_hex(16)
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._ready: Future[Listening] = Future()
        self._ended: Future[None] = Future()
        self._stopped = False
        child = __file__.replace("local_server", "llama_child")
        try:
            self._process = subprocess.Popen(
                command or (sys.executable, "-P", "-u", child),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the agent, which may go on after it
            )
        except OSError as error:
            raise ProviderError(f"the model's process cannot be started: {error}", kind="connect", code="not_started") from error
        threading.Thread(target=self._listen, name="interlock-local-model", daemon=True).start()
        try:
            line = json.dumps({**settings, "key": self._key, "path": [*map(str, sys.path)]}) + "\n"
            cast("IO[bytes]", self._process.stdin).write(line.encode())
            cast("IO[bytes]", self._process.stdin).flush()
        except OSError:
            pass  # it has ended already, which the listener says

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._ended.done() and self._process.poll() is None

    async def ready(self, timeout_s: float | None) -> Listening:
        """Wait until the model is loaded. Cancelled, it goes on loading.

        Raises ProviderError: not retryable if the file cannot be loaded, ``timeout`` if it takes too long.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(asyncio.wrap_future(self._ready))
        except TimeoutError:
            self.stop()
            text = f"the model was not loaded within {timeout_s} s; pass a larger start_timeout_s="
            raise ProviderError(text, kind="timeout", code="start_timeout") from None

    def stop(self) -> None:
        """Kill the process: nothing in it is worth saving. Idempotent; does nothing in a fork of the process that started it."""
        if os.getpid() != self._starter:
            return
        self._stopped = True
        self._process.kill()
        try:
            cast("IO[bytes]", self._process.stdin).close()
        except OSError:
            pass  # the line was never read
        self._process.wait()

    async def ended(self, timeout_s: float | None = None) -> bool:
        """Wait until the process is gone, and all that it said was read. False if it is not within timeout_s."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(asyncio.wrap_future(self._ended))
        except TimeoutError:
            return False
        return True

    def fault(self) -> str:
        """Why it ended, or cannot load the model, in a sentence."""
        if self._stopped:
            return "it was stopped"
        code = self._process.poll()
        last = next((line for line in reversed(self._lines) if line.strip()), "it said nothing")
        if code is not None and code < 0:
            return f"signal {-code} ended its process" + (", as a system does that is out of memory" if code == -9 else f": {last}")
        if any(map(_NO_MEMORY.search, self._lines)):
            return "out of memory: " + next(filter(_NO_MEMORY.search, [*self._errors(), *self._lines]))
        return next(iter(self._errors()), f"its process ended with code {code}: {last}")

    def _errors(self) -> list[str]:
        """What its log calls an error, the first of which is the cause of the others."""
        return [found[2] for line in self._lines if (found := _LOG.match(line)) and found[1] == "E"]

    def _listen(self) -> None:
        """Read what the process says until it ends."""
        with cast("IO[bytes]", self._process.stdout) as out:
            for raw in out:
                line = raw.decode("utf-8", "replace").rstrip()
                if line.startswith(READY):
                    said = json.loads(line.removeprefix(READY))
                    self._lines.clear()
                    self._ready.set_result(Listening(said["url"], self._key, said["llguidance"]))
                else:
                    self._lines.append(line)
        self._process.wait()
        if not self._ready.done():
            why = self.fault()
            code = "out_of_memory" if why.startswith("out of memory") else "not_loaded"
            self._ready.set_exception(ProviderError(f"the model cannot be loaded: {why}", kind="connect", code=code))
        self._ended.set_result(None)
