"""The fsync calls of this process, as the kernel gets them: seen one by one, and failed on demand. Linux, without privileges.

A seccomp filter hands each fsync and fdatasync of the thread that installs it, and of all threads that it starts later, to a supervisor:
a thread that was started before. It is not undone: use it in a process of its own.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
import threading

_SYSCALLS = {"x86_64": (317, 74, 75), "aarch64": (277, 82, 83)}
"""By machine: the numbers of seccomp, fsync and fdatasync."""

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_ALLOW, _USER_NOTIF = 0x7FFF0000, 0x7FC00000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTICE = struct.Struct("=QIIiIQ6Q")
"""seccomp_notif: id, pid, flags, then the call: number, machine, where from, arguments."""
_ANSWER = struct.Struct("=QqiI")
"""seccomp_notif_resp: id, value, error, flags."""


class SyncCalls:
    """From now on, every sync of a file by this thread and by those that it starts. files: their names, in order.

    failing: whether the calls fail with EIO instead of being made. Raises OSError where the kernel cannot do this (before 5.5).
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.failing = False
        self._listener = -1
        self._installed = threading.Event()
        threading.Thread(target=self._supervise, daemon=True).start()  # before the filter is, so that it is not under it
        try:
            self._listener = _install()
        finally:
            self._installed.set()

    def _supervise(self) -> None:
        self._installed.wait()
        while self._listener >= 0:
            notice = bytearray(_NOTICE.size)
            fcntl.ioctl(self._listener, _RECEIVE, notice)
            id, _, _, _, _, _, file, *_ = _NOTICE.unpack(notice)
            failing = self.failing
            self.files.append(os.readlink(f"/proc/self/fd/{file}"))
            fcntl.ioctl(self._listener, _SEND, bytearray(_ANSWER.pack(id, 0, -errno.EIO if failing else 0, 0 if failing else _CONTINUE)))


def _install() -> int:
    seccomp, fsync, fdatasync = _SYSCALLS[platform.machine()]
    steps = [
        (_LOAD_WORD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 1, 0, fsync),
        (_JUMP_IF_EQUAL, 0, 1, fdatasync),
        (_RETURN, 0, 0, _USER_NOTIF),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    listener: int = libc.syscall(ctypes.c_long(seccomp), ctypes.c_long(_SET_MODE_FILTER), ctypes.c_long(_NEW_LISTENER), program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp with a listener")
    return listener
