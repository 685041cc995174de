"""The command's own process, from the fork to the program: what it inherits, and what it may not do."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import sys
from typing import Any, NoReturn

from .landlock import confine, no_new_privileges, scope_sockets

__all__ = ["child", "subreaper"]

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 24, 36
# What root keeps: the rights over files and owners, CAP_KILL, CAP_SETGID, CAP_SETUID, and CAP_NET_BIND_SERVICE. With the others it
# could raise its own limits, and (by CAP_PERFMON, which Landlock does not see) read the environment of any process.
_KEPT = {0, 1, 3, 4, 5, 6, 7, 10}
# Python ignores these for itself; a program expects them as they were.
_AS_THEY_WERE = ("SIGPIPE", "SIGXFSZ", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGCHLD")


def subreaper() -> None:
    """Become the parent of every process below this one that loses its own. Only Linux knows this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _drop_capabilities() -> None:
    """Leave root, whom everyone else cannot become here, only ``_KEPT`` from the next program on."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for number in range(64):
        if number not in _KEPT and prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            if ctypes.get_errno() != errno.EINVAL:  # the last number that this kernel knows is behind us, or:
                raise OSError(ctypes.get_errno(), "a capability cannot be dropped")
            return


def child(settings: dict[str, Any], output: int, failure: int, ready: int) -> NoReturn:
    """Become the command. What goes wrong before its program has taken over is written to ``failure``. ready: where a program that
    isolates says what became of that."""
    try:
        _become(settings, output, ready)
    except BaseException as error:
        os.write(failure, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:2000] or b"?")
    finally:
        os._exit(127)


def _become(settings: dict[str, Any], output: int, ready: int) -> None:
    # A process group of its own, in the keeper's session: only a session's leader can take a terminal, and that is the keeper.
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for name in _AS_THEY_WERE:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(settings["cwd"])
    for name, most in settings["rlimits"].items():
        _limit(getattr(resource, name), most)
    if settings["reduced"]:
        _drop_capabilities()
        no_new_privileges()
    if settings["rules"] is not None:
        confine([(path, rights) for path, rights in settings["rules"]])
    if settings["scoped"]:
        no_new_privileges()
        scope_sockets()
    argv, env = settings["argv"], settings["env"]
    if settings["says_when_ready"]:
        os.set_inheritable(ready, True)
        argv = [*argv[:2], "--json-status-fd", str(ready), *argv[2:]]
    os.execvpe(argv[0], argv, env)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))
