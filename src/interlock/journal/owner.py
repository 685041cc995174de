"""Who writes: the name of a journal object that outlives its process, and whether that process still lives.

A lease names its owner. An owner whose process is provably gone holds nothing, so reopening after ``kill -9``
waits for no clock. Proof needs the same kernel (boot id) and the same pid namespace; without it a lease has to expire.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from weakref import WeakValueDictionary

from msgspec import Struct

_here: WeakValueDictionary[str, Owner] = WeakValueDictionary()
"""The owners of this process that still exist, by name."""


class Owner(Struct, frozen=True, weakref=True):
    """A journal object. name: host, boot id, pid namespace, pid, start time and a random token, joined by ``/``."""

    name: str


def new_owner() -> Owner:
    """A name for one journal object of this process. It lives until the object is garbage or ``retire`` is called."""
    owner = Owner("/".join((*_machine(), str(os.getpid()), _start_time(os.getpid()) or "", os.urandom(8).hex())))
    _here[owner.name] = owner
    return owner


def retire(owner: Owner) -> None:
    """Whatever ``owner`` still holds is void from now on."""
    _here.pop(owner.name, None)


def is_dead(name: str) -> bool:
    """Whether the owner called ``name`` can never write again. False when that cannot be known from here."""
    parts = name.split("/")
    if len(parts) != 6 or not parts[3].isdigit():
        return False
    host, boot, namespace, pid, start, _token = parts
    if (host, boot, namespace) != _machine():
        return False
    if int(pid) == os.getpid() and start in ("", _start_time(os.getpid())):
        return name not in _here
    return not _lives(int(pid), start)


def describe(name: str) -> str:
    """``name`` for a person: which process, on which machine."""
    parts = name.split("/")
    if len(parts) != 6:
        return repr(name)
    if parts[3] == str(os.getpid()) and tuple(parts[:3]) == _machine():
        return f"another journal object of this process (pid {parts[3]})"
    return f"process {parts[3]} on {parts[0] or 'an unnamed machine'}"


@cache
def _machine() -> tuple[str, str, str]:
    host = socket.gethostname().replace("/", "-")
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return host, "", ""
    return host, boot, namespace


def _start_time(pid: int) -> str | None:
    """Clock ticks from boot to the start of ``pid``; "" where that is not known; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except FileNotFoundError:
        return None if os.path.exists("/proc/self/stat") else ""
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    # The second field is the command in parentheses and may hold anything, so the fields are counted after the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _lives(pid: int, start: str) -> bool:
    now = _start_time(pid)
    if now is None:
        return False
    if now or start:
        return now == start or not now
    if sys.platform == "win32":  # os.kill(pid, 0) is no question there; it ends the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
