"""The process between the runtime and a command: it starts it, drains and bounds its output, and ends all of it when it must.

It is the command's parent and the adoptive parent of what the command leaves behind, so that nothing below it is lost; and it
holds one end of a socket, so that everything ends with the process at the other end, however that ended.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

from .confine import child, subreaper
from .kept import HeadAndTail
from .tree import below, children, send, shown

__all__ = ["BOOT", "STOP", "Keeper", "frame", "main"]

BOOT = "import sys; sys.path.append(sys.argv[1]); from interlock.sandbox.keeper import main; main()"
"""What ``python -I -S -c`` runs. Arguments: the directory that holds the package, and the number of the socket."""
STOP = b"s"
"""What ends the command; the end of the stream does too."""

_ADOPTS = sys.platform == "linux"
_READ_BYTES = 1024 * 1024
_PROGRESS_S = 0.5
_PROGRESS_BYTES = 2048
# What ends together with the shell (the rest of a pipeline, what it has just killed) is not called left behind.
_SETTLE_S = 0.1
# How long processes that were sent SIGKILL are waited for: those in an uninterruptible call may take for ever.
_KILL_S = 5.0
_REMAINING_MAX = 20
# In how many rounds what forks all the time is followed before everything is looked at again: a hundredth of a second or two.
_CHASES = 200


def frame(kind: bytes, body: bytes) -> bytes:
    """One message to the runtime: a letter, the length in four bytes, the body.

    S: the command is about to start. P: progress. E: the report, followed by two O, the head and the tail of the output.
    """
    return kind + len(body).to_bytes(4, "big") + body


def main() -> None:
    """Read the settings from standard input, keep the command, and exit once nothing is left of it."""
    settings = json.loads(sys.stdin.buffer.read())
    link = socket.socket(fileno=int(sys.argv[2]))
    link.set_inheritable(False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        Keeper(settings, link).keep()
    except ConnectionError:  # the runtime is gone, and so is all that was kept
        pass
    os._exit(0)


def _noticed(_number: int, _frame: object) -> None:
    """A signal with a handler of ours is written to the wake-up pipe, which is all that is wanted."""


class Keeper:
    """One command, from its start to its end and that of everything it started."""

    def __init__(self, settings: dict[str, Any], link: socket.socket) -> None:
        self._settings = settings
        self._link = link
        self._told = False
        self._ready = -1
        self._main = 0
        self._status: int | None = None
        self._childless = False
        self._kept = HeadAndTail(settings["head_bytes"], settings["tail_bytes"])
        self._began = time.monotonic()
        self._shown = self._began
        self._progress_at: int = 0
        self._poll = select.poll()
        self._wake, wake_write = os.pipe()
        self._output, self._output_write = os.pipe()
        for fd in (self._wake, wake_write, self._output):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noticed)
        self._runtime = _watched(settings["runtime"])
        for fd in (self._wake, self._output, link.fileno(), *([] if self._runtime is None else [self._runtime])):
            self._poll.register(fd, select.POLLIN)

    def keep(self) -> None:
        """Start the command and stay until nothing is left of it. However this ends, a runtime that does not listen any more
        included, what is left is ended first."""
        try:
            self._keep()
        finally:
            if self._main and self._alive():
                self._end()

    def _keep(self) -> None:
        reason = self._foreground()
        if reason == "exited":
            self._settle()
            reason = self._isolated()
        else:
            self._end()
        duration_s = time.monotonic() - self._began
        self._report(reason, duration_s)
        self._kept = HeadAndTail(0, 0)
        while self._alive() and not self._told:
            self._step(None)

    def _foreground(self) -> str:
        """Until the command ends, its time is over, or the runtime says stop. Returns which."""
        subreaper()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            try:
                fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _READ_BYTES)
            except OSError:  # the user's share of pipe memory is used up
                pass
        failure, failure_write = os.pipe()
        self._ready, ready_write = os.pipe()
        self._link.sendall(frame(b"S", b""))
        try:
            self._main = os.fork()
        except OSError as error:
            self._settings["failed"] = f"{type(error).__name__}: {error}"
            return "failed"
        if self._main == 0:
            child(self._settings, self._output_write, failure_write, ready_write)
        for fd in (self._output_write, failure_write, ready_write):
            os.close(fd)
        with os.fdopen(failure, "rb") as file:
            failed = file.read().decode("utf-8", "replace")  # ends when the command's program has taken over
        if failed:
            self._settings["failed"] = failed
            return "failed"
        self._began = time.monotonic()
        deadline = self._began + self._settings["timeout_s"]
        while self._status is None:
            left = deadline - time.monotonic()
            if self._told:
                return "stopped"
            if left <= 0:
                return "timeout"
            self._step(min(left, self._until_progress()))
            self._progress()
        return "exited"

    def _isolated(self) -> str:
        """``exited``; or ``failed``, if it was the program that isolates, which never came to start the command. That one says how the
        command ended, and says nothing if there was none."""
        if not self._settings["says_when_ready"] or self._status is None or os.waitstatus_to_exitcode(self._status) <= 0:
            return "exited"
        os.set_blocking(self._ready, False)
        try:
            said = os.read(self._ready, 64 * 1024)
        except BlockingIOError:
            said = b""
        if b'"exit-code"' in said:
            return "exited"
        self._settings["failed"] = "SandboxUnavailable: " + self._kept.parts()[0][:2000].decode("utf-8", "replace").strip()
        return "failed"

    def _settle(self) -> None:
        """What is in the pipe already, and what ends with the command."""
        until = time.monotonic() + _SETTLE_S
        while (self._alive() or self._output >= 0) and (left := until - time.monotonic()) > 0 and not self._told:
            self._step(left)

    def _end(self) -> None:
        """Ask everything to end, and then end it."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        self._wait(self._settings["grace_s"])
        until = time.monotonic() + _KILL_S
        while self._alive() and time.monotonic() < until:
            # Stopped first: what is stopped starts nothing while the rest is looked for.
            self._signal(signal.SIGSTOP)
            self._signal(signal.SIGKILL)
            self._chase()
            self._wait(0.02)

    def _chase(self) -> None:
        """Kill what changes its number faster than the list of all processes is read: its parents have ended, so it is our child,
        and no number of a child is given away before we have asked for its end."""
        for _ in range(_CHASES):
            for pid in children():
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:  # it has taken another owner
                    pass
            self._reap()
            if not self._alive():
                return

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._alive() and (left := until - time.monotonic()) > 0:
            self._step(left)

    def _signal(self, number: signal.Signals) -> None:
        if self._main and (self._status is None or not _ADOPTS):
            try:
                os.killpg(self._main, number)
            except OSError:  # gone, or it has taken another owner
                pass
        for seen in below(os.getpid()):
            send(seen, number)

    def _alive(self) -> bool:
        """Whether anything that the command started lives: whatever loses its parent becomes our child."""
        if self._childless and not _ADOPTS:
            try:  # the process group is what there is
                os.killpg(self._main, 0)
            except OSError:
                return False
            return True
        return not self._childless

    def _step(self, timeout_s: float | None) -> None:
        """Wait until something happens, and take it in."""
        for fd, _ in self._poll.poll(None if timeout_s is None else max(1, int(timeout_s * 1000))):
            if fd == self._output:
                self._drain()
            elif fd == self._wake:
                os.read(self._wake, 4096)
                self._reap()
            elif fd == self._runtime or self._heard() in (STOP, b""):
                self._told = True
                self._poll.unregister(fd)

    def _heard(self) -> bytes:
        try:
            return self._link.recv(4096)[:1]
        except ConnectionError:  # it ended with something unread
            return b""

    def _drain(self) -> None:
        try:
            chunk = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._kept.add(chunk)
        else:
            self._poll.unregister(self._output)
            os.close(self._output)
            self._output = -1

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._main:
                self._status = status

    def _until_progress(self) -> float:
        """Seconds until new output is to be shown, also if nothing follows it: what waits for something has just said for what."""
        return math.inf if self._kept.total == self._progress_at else max(0.0, self._shown + _PROGRESS_S - time.monotonic())

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._shown < _PROGRESS_S or self._kept.total == self._progress_at:
            return
        self._shown, self._progress_at = now, self._kept.total
        if not select.select([], [self._link], [], 0)[1]:
            return
        newest = self._kept.newest(_PROGRESS_BYTES).decode("utf-8", "replace")
        body = {"bytes": self._kept.total, "seconds": now - self._began, "newest": newest}
        self._link.sendall(frame(b"P", json.dumps(body).encode()))

    def _report(self, reason: str, duration_s: float) -> None:
        head, tail = self._kept.parts()
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        remaining = [shown(seen) for seen in below(os.getpid())] if self._alive() else []
        wrapper = self._settings["wrapper"]
        body = {
            "reason": reason,
            "failed": self._settings.get("failed", ""),
            "code": code,
            "duration_s": duration_s,
            "total": self._kept.total,
            "alive": self._alive(),
            "remaining": [one for one in remaining if not wrapper or not one.command.startswith(wrapper)][:_REMAINING_MAX],
            "peak_bytes": _peak_bytes(),
        }
        self._link.sendall(frame(b"E", json.dumps(body).encode()) + frame(b"O", head) + frame(b"O", tail))


def _watched(runtime: int) -> int | None:
    """A descriptor that can be read once the runtime has ended, where there is such a thing: a process that it has forked may hold
    the other end of the socket for longer."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        watched = os.pidfd_open(runtime)
    except ProcessLookupError:
        os._exit(0)
    except OSError:  # an old kernel, or one that was told to refuse it
        return None
    if os.getppid() == runtime:
        return watched
    os.close(watched)  # it ended while we began, or a wrapper of Python's stands between: the number may be another's
    return None


def _peak_bytes() -> int:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # no Linux. There ru_maxrss would hold what the process had been before its program.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
