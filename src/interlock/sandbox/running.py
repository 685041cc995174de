"""Run a command under a sandbox, from the runtime's side: one process in between keeps it (see ``keeper``)."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import SandboxUnavailable
from .keeper import BOOT, STOP
from .levels import Sandbox
from .tree import Process, marked, send

__all__ = ["Background", "Finished", "end_background", "run"]

MARK = "INTERLOCK_COMMAND"
"""The environment variable by which the processes of a command are found if their keeper was killed."""
HEAD_BYTES = 2 * 1024 * 1024
TAIL_BYTES = 2 * 1024 * 1024
GRACE_S = 1.0

# What a Python that is built so needs to be started at all. Its own environment is empty otherwise: a command can read it.
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# How much later than it should the keeper may report before it is given up: its own wait for SIGKILL, and a busy machine.
_LATE_S = 20.0
_RECEIVED_BYTES = 256 * 1024
# How often in a row nothing is found, and how long is looked at most, before what a killed keeper has left is taken to be gone.
_QUIET = 4
_SOUGHT_S = 1.0


class Finished(NamedTuple):
    """What became of a command.

    reason: ``exited``; ``timeout`` or ``stopped``, when all of its processes were ended; ``lost`` if its keeper was killed: what could
    still be found was killed too. code: the exit code, minus the number of the signal that ended it, or None if there is none.
    head, tail, total: the output, all of it if their lengths add up to ``total`` (bytes). remaining: processes that live on.
    background: the handle to those, None if there are none. peak_bytes: the most memory that keeping the output took.
    """

    reason: Literal["exited", "timeout", "stopped", "lost"]
    code: int | None
    duration_s: float
    head: bytes
    tail: bytes
    total: int
    remaining: tuple[Process, ...]
    background: Background | None
    peak_bytes: int


class Background:
    """What a command left running. It ends by ``end``, or with this process, however that ends."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self._process = process
        self._link = link
        self._lock = threading.Lock()
        self._owner = os.getpid()

    @property
    def alive(self) -> bool:
        """Whether any of it still runs."""
        with self._lock:
            if self._process.poll() is None:
                return True
            self._link.close()
            _kept.discard(self)
            return False

    def tell(self) -> None:
        """Have it ended, without waiting for that. In a process that was forked from the one that ran it, nothing happens."""
        if os.getpid() != self._owner:
            return
        try:
            self._link.send(STOP)
        except OSError:  # it has ended already
            pass

    def end(self, timeout_s: float = GRACE_S + _LATE_S) -> bool:
        """End all of it: SIGTERM, then SIGKILL. Returns whether it has ended; blocks meanwhile, at most ``timeout_s``."""
        self.tell()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return not self.alive


_kept: set[Background] = set()


def end_background() -> None:
    """End everything that commands of this process left running. Also done when the process ends."""
    every = list(_kept)
    for background in every:
        background.tell()
    for background in every:
        background.end()


async def run(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    sandbox: Sandbox,
    writable: Sequence[str | Path] = (),
    timeout_s: float,
    grace_s: float = GRACE_S,
    head_bytes: int = HEAD_BYTES,
    tail_bytes: int = TAIL_BYTES,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> Finished:
    """Run ``argv`` with a null standard input, in a session without a terminal; its two outputs are one stream.

    timeout_s: wall clock. Then, and when this is cancelled, everything that the command started is sent SIGTERM and, ``grace_s``
    later, SIGKILL, before this returns or raises; a second cancellation is not waited out, and the processes end all the same.
    What the command leaves running when it exits is reported and not waited for. Of the output the first ``head_bytes`` and the last
    ``tail_bytes`` are kept. on_progress: called about twice a second while there is new output, with ``bytes`` so far, ``seconds``
    and the ``newest`` text.

    Raises SandboxUnavailable if the isolation could not be set up, and OSError if the program cannot be started; nothing ran then.
    """
    mark = f"{MARK}={uuid.uuid4().hex}"
    wrapped = sandbox.command(argv, cwd=str(cwd), writable=writable)
    settings: dict[str, Any] = {
        "argv": wrapped,
        "wrapper": " ".join(wrapped[:2]) if wrapped != list(argv) else "",
        "env": {**env, **sandbox.environment(), MARK: mark.partition("=")[2]},
        "cwd": str(cwd),
        "timeout_s": timeout_s,
        "grace_s": grace_s,
        "runtime": os.getpid(),
        "head_bytes": head_bytes,
        "tail_bytes": tail_bytes,
        **sandbox.restrictions(writable),
    }
    process, link = _started(settings)
    reader = _Reader(link, on_progress)
    try:
        try:
            async with asyncio.timeout(timeout_s + grace_s + _LATE_S):
                await reader.until_end()
        except asyncio.CancelledError:
            await _stopped(link, grace_s)
            raise
        except (TimeoutError, OSError):
            pass
        return _finished(process, link, reader, mark)
    finally:
        if not reader.keep:
            link.close()  # with which the keeper ends whatever there is
            _reap(process, wait=reader.ended is not None)


def _started(settings: dict[str, Any]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    package = str(Path(__file__).resolve().parent.parent.parent)
    ours, theirs = socket.socketpair()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(settings).encode())
            file.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", BOOT, package, str(theirs.fileno())],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={name: os.environ[name] for name in _LOADER if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return process, ours


async def _stopped(link: socket.socket, grace_s: float) -> None:
    """Have everything ended, and wait until the keeper is gone. What it still says is not read as frames: the cancellation may have
    come in the middle of one."""
    loop = asyncio.get_running_loop()
    try:
        link.send(STOP)
        async with asyncio.timeout(grace_s + _LATE_S):
            while await loop.sock_recv(link, _RECEIVED_BYTES):
                pass
    except (TimeoutError, OSError):
        pass


class _Reader:
    """What the keeper says, frame by frame."""

    def __init__(self, link: socket.socket, on_progress: Callable[[dict[str, Any]], None] | None) -> None:
        self._link = link
        self._on_progress = on_progress
        self._buffer = bytearray()
        self.started = False
        self.ended: dict[str, Any] | None = None
        self.output: list[bytes] = []
        self.keep = False

    async def until_end(self) -> None:
        """Until the report and the output are here, and the keeper is gone if it has nothing left to keep."""
        loop = asyncio.get_running_loop()
        while len(self.output) < 2 or not (self.ended or {}).get("alive"):
            data = await loop.sock_recv(self._link, _RECEIVED_BYTES)
            if not data:
                return
            self._buffer += data
            self._take()

    def _take(self) -> None:
        while len(self._buffer) >= 5 and len(self._buffer) >= 5 + (size := int.from_bytes(self._buffer[1:5], "big")):
            kind, body = bytes(self._buffer[:1]), bytes(self._buffer[5 : 5 + size])
            del self._buffer[: 5 + size]
            if kind == b"E":
                self.ended = json.loads(body)
            elif kind == b"O":
                self.output.append(body)
            elif kind == b"S":
                self.started = True
            elif self._on_progress is not None:
                self._on_progress(json.loads(body))


def _finished(process: subprocess.Popen[bytes], link: socket.socket, reader: _Reader, mark: str) -> Finished:
    ended = reader.ended
    if not reader.started:
        raise SandboxUnavailable(f"{sys.executable} could not be started to keep the command")
    if ended is None or len(reader.output) < 2:
        _kill_marked(mark)
        return Finished("lost", None, 0.0, b"", b"", 0, (), None, 0)
    if ended["failed"]:
        kind, _, said = ended["failed"].partition(": ")
        if kind in ("FileNotFoundError", "PermissionError", "NotADirectoryError", "BlockingIOError"):
            raise OSError(said)
        raise SandboxUnavailable(f"the command could not be isolated: {said}")
    background = None
    if ended["alive"]:
        background, reader.keep = Background(process, link), True
        if not _kept:
            atexit.unregister(end_background)
            atexit.register(end_background)
        _kept.add(background)
    return Finished(
        ended["reason"],
        ended["code"],
        ended["duration_s"],
        reader.output[0],
        reader.output[1],
        ended["total"],
        tuple(Process(*one) for one in ended["remaining"]),
        background,
        ended["peak_bytes"],
    )


def _kill_marked(mark: str) -> None:
    """Once is not enough: a process that is just taking over its program shows no environment."""
    until, quiet = time.monotonic() + _SOUGHT_S, 0
    while quiet < _QUIET and time.monotonic() < until:
        found = marked(mark)
        for seen in found:
            send(seen, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        time.sleep(0.005)


def _reap(process: subprocess.Popen[bytes], *, wait: bool) -> None:
    """Take the keeper's exit status. It exits at once after its report; otherwise a thread waits, as it may take its time."""
    if wait:
        try:
            process.wait(1.0)
            return
        except subprocess.TimeoutExpired:
            pass
    threading.Thread(target=process.wait, name="interlock-reaper", daemon=True).start()
