"""Landlock, the kernel's own sandbox for a process without rights: three system calls that no library of Python wraps.

Numbers and structures are those of ``linux/landlock.h``; the numbers of the calls are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

__all__ = ["ABI_MIN", "READ", "WRITE", "abi", "confine", "no_new_privileges", "scope_sockets"]

ABI_MIN = 3
"""Linux 6.2. Before it a file outside could be truncated, and (before 5.19) none moved from one directory to another inside."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1

READ = _EXECUTE | _READ_FILE | _READ_DIR
"""The rights to read below a path, and to run what is there."""
WRITE = (1 << 16) - 1
"""Every right of the file system; those that this kernel does not know are left out."""

_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


def abi() -> int:
    """The version of Landlock that this kernel offers; 0 if there is none, or it was switched off."""
    if sys.platform != "linux":
        return 0
    try:
        return max(0, _syscall(_CREATE_RULESET, None, 0, _VERSION))
    except OSError:
        return 0


def no_new_privileges() -> None:
    """From here on no program that this process runs gains rights by its owner or its capabilities: sudo and su fail at once."""
    if sys.platform == "linux" and _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _failed("prctl")


def confine(rules: list[tuple[str, int]]) -> None:
    """Restrict this process, and all that it will start, to ``rules``: (path, rights) for what may be done below it. For ever.
    ``no_new_privileges`` comes before it, or the kernel refuses.

    A path that is not there is left out. From version 6 on, it can signal nothing outside and connect to no abstract socket
    outside. Raises OSError.
    """
    version = abi()
    if version < ABI_MIN:
        raise OSError(f"Landlock is at version {version}, and {ABI_MIN} is needed")
    handled = WRITE if version >= 5 else WRITE & ~_IOCTL_DEV
    scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= 6 else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)[: 24 if version >= 6 else 8]
    ruleset = _syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & handled)
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def scope_sockets() -> None:
    """Keep this process, and all that it will start, from the abstract sockets of others; nothing, on a kernel that cannot. Unlike
    ``confine`` it leaves the right to mount. ``no_new_privileges`` comes before it. Raises OSError."""
    if abi() < 6:
        return
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKETS)
    ruleset = _syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            rights &= _OF_A_FILE
        _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(_libc().syscall(ctypes.c_long(number), *wide))
    if result < 0:
        raise _failed(f"system call {number}")
    return result


def _failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
