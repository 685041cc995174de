"""The processes below a process, and how to signal one without hitting a stranger that has got its number."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

__all__ = ["Process", "Seen", "below", "children", "marked", "send", "shown"]

_COMMAND_CHARACTERS_MAX = 200


class Process(NamedTuple):
    """A process as a person is told of it. command: its arguments, joined and cut."""

    pid: int
    command: str


class Seen(NamedTuple):
    """A process at one moment. started: in clock ticks since the machine's start, which tells two holders of a number apart."""

    pid: int
    parent: int
    started: str
    zombie: bool


def below(root: int) -> list[Seen]:
    """Every living process that descends from ``root``, parents first. Empty where there is no ``/proc``."""
    children: dict[int, list[Seen]] = {}
    for pid in _pids():
        seen = _seen(pid)
        if seen is not None and not seen.zombie:
            children.setdefault(seen.parent, []).append(seen)
    found: list[Seen] = []
    pending = [root]
    while pending:
        for seen in children.pop(pending.pop(), ()):
            found.append(seen)
            pending.append(seen.pid)
    return found


def children() -> list[int]:
    """The numbers of this process's own children, if it has one thread; ended ones too. Read at once, unlike ``below``, but empty on
    a kernel without this list."""
    try:
        with open("/proc/self/task/" + str(os.getpid()) + "/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def marked(mark: str) -> list[Seen]:
    """Every process of ours in whose first environment ``mark`` stands. A process can hide from this; it is the last resort."""
    wanted = os.fsencode(mark)
    found: list[Seen] = []
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted not in file.read().split(b"\0"):
                    continue
        except OSError:
            continue
        seen = _seen(pid)
        if seen is not None and not seen.zombie:
            found.append(seen)
    return found


def send(seen: Seen, number: signal.Signals) -> None:
    """Signal the very process that was seen; nothing happens if it is gone, or is not ours."""
    try:
        handle = os.pidfd_open(seen.pid)
    except OSError:  # gone
        return
    try:
        now = _seen(seen.pid)
        if now is not None and now.started == seen.started:
            signal.pidfd_send_signal(handle, number)
    except OSError:  # gone meanwhile, or it has another owner
        pass
    finally:
        os.close(handle)


def shown(seen: Seen) -> Process:
    """``seen`` for a person."""
    try:
        with open(f"/proc/{seen.pid}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        words = b""
    return Process(seen.pid, words.decode("utf-8", "replace")[:_COMMAND_CHARACTERS_MAX])


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _seen(pid: int) -> Seen | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything; what follows the last one are numbers.
    fields = text.rpartition(")")[2].split()
    return Seen(pid, int(fields[1]), fields[19], fields[0] in "ZX")
