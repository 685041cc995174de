"""The levels of isolation, what each needs to be there, and a sandbox: one level with what may be read and written in it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from ..errors import SandboxUnavailable, UsageError
from . import landlock
from .places import DEVICES, SETTINGS, SYSTEM, managers, programs

__all__ = ["LEVELS", "Level", "Rlimits", "Sandbox", "unavailable"]

Level = Literal["none", "rlimits", "landlock", "bubblewrap"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the weakest to the strongest; each holds what the one before it holds, but for what the documentation says of signals."""

# Not PATH: the virtual environment of a project is often on it, and a command may put there what it likes, which would then run outside.
BUBBLEWRAP_PLACES = (
    *("/usr/bin", "/bin", "/usr/local/bin"),
    *("/run/wrappers/bin", "/run/current-system/sw/bin", "/nix/var/nix/profiles/default/bin"),
)
_PROBE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Rlimits:
    """What one process of a command may take; None is as much as the runtime's own process may.

    memory_bytes: data and stack, not reserved addresses. file_bytes: the largest file it can write. cpu_s: of a processor.
    processes: counted over everything of the same user, and not at all for root, as the system does.
    """

    cpu_s: int | None = None
    memory_bytes: int | None = 8 * 1024**3
    file_bytes: int | None = 4 * 1024**3
    open_files: int | None = 4096
    processes: int | None = 16_384

    def by_name(self) -> dict[str, int]:
        """The limits by the names that ``resource`` has for them."""
        named = {
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_DATA": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
        }
        return {name: most for name, most in named.items() if most is not None}


def unavailable(level: Level, *, network: bool = True) -> str:
    """Why ``level`` cannot be had here, with the network as wanted, as a sentence; "" if it can."""
    if not network and level != "bubblewrap":
        return f"{level!r} cannot cut the network off; 'bubblewrap' can"
    if level == "landlock":
        version = landlock.abi()
        if version < landlock.ABI_MIN:
            return (
                f"'landlock' needs Linux 6.2 with Landlock switched on (version {landlock.ABI_MIN}); this kernel offers version {version}"
            )
    if level == "bubblewrap":
        program = _bubblewrap()
        if program is None:
            return f"'bubblewrap' needs the program bwrap in one of {', '.join(BUBBLEWRAP_PLACES)}"
        return _bubblewrap_fault(program, network)
    return ""


def _bubblewrap() -> str | None:
    return shutil.which("bwrap", path=os.pathsep.join(BUBBLEWRAP_PLACES))


@cache
def _bubblewrap_fault(program: str, network: bool) -> str:
    argv = [*_wrapping(program, network), *_bound("--ro-bind", _places(SYSTEM)), "--", "true"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"'bubblewrap' does not work here: {error}"
    said = done.stderr.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else f"'bubblewrap' does not work here: {said or f'exit code {done.returncode}'}"


class Sandbox:
    """One level of isolation, with what may be read and written, for any number of commands at once.

    level: ``"best"`` is the strongest that is there. readable and writable: files and directories, besides the system's programs
    and what a command is started with. network: False cuts it off, which only bubblewrap can. limits: from rlimits up.

    From landlock up a command has an empty home and temporary directory of its own (``scratch``), and sees nothing of the user's.
    Raises SandboxUnavailable if what is demanded is not there, UsageError for a level that does not exist.
    """

    def __init__(
        self,
        level: Level | Literal["best"] = "best",
        *,
        readable: Sequence[str | Path] = (),
        writable: Sequence[str | Path] = (),
        network: bool = True,
        limits: Rlimits | None = None,
    ) -> None:
        if level == "best":
            level = next(one for one in reversed(LEVELS) if one == "none" or not unavailable(one, network=network))
        if level not in LEVELS:
            raise UsageError(f"there is no sandbox level {level!r}: 'best', {', '.join(map(repr, LEVELS))}")
        if fault := unavailable(level, network=network):
            raise SandboxUnavailable(fault)
        self.level: Level = level
        self.network = network
        self.scratch = Path(os.path.realpath(tempfile.mkdtemp(prefix="interlock-")))
        self._discard = weakref.finalize(self, shutil.rmtree, self.scratch, ignore_errors=True)
        for name in ("home", "tmp", "code"):
            (self.scratch / name).mkdir()
        self._limits = limits or Rlimits()
        # Resolved now, and never again: later a command may have put a link in the place of what it can write.
        self._readable = _places((*SYSTEM, *programs(), *readable, self.scratch / "code"))
        self._writable = _places((*writable, self.scratch / "home", self.scratch / "tmp"))

    @property
    def isolated(self) -> bool:
        """Whether files are kept from the command."""
        return self.level in ("landlock", "bubblewrap")

    def describe(self) -> str:
        """The level and the network, for a person and for the model."""
        return f"sandbox: {self.level}, network {'on' if self.network else 'off'}"

    @contextmanager
    def scratch_file(self, name: str, text: str) -> Generator[str]:
        """The path of a new file that commands can read, removed at the end of the block. Raises OSError if it cannot be written."""
        with tempfile.TemporaryDirectory(dir=self.scratch / "code", ignore_cleanup_errors=True) as directory:
            path = Path(directory, name)
            path.write_text(text, encoding="utf-8", errors="replace", newline="")
            yield str(path)

    def environment(self) -> dict[str, str]:
        """What a command's environment needs so that it finds its home and its temporary files."""
        if not self.isolated:
            return {}
        return {"HOME": str(self.scratch / "home"), "TMPDIR": str(self.scratch / "tmp"), **managers()}

    def command(self, argv: Sequence[str], *, cwd: str, writable: Sequence[str | Path]) -> list[str]:
        """``argv`` as it is really started: wrapped, if a program does the isolating."""
        if self.level != "bubblewrap":
            return list(argv)
        readable, written = self._paths(writable)
        tmp = str(self.scratch / "tmp")
        return [
            *_wrapping(_bubblewrap() or "bwrap", self.network),
            *(("--bind", tmp, "/tmp") if tmp in written else ()),
            *_bound("--ro-bind", readable),
            *_bound("--bind", [_Place(path, path) for path in written]),
            *("--chdir", cwd, "--", *argv),
        ]

    def restrictions(self, writable: Sequence[str | Path]) -> dict[str, object]:
        """What the command's own process takes on itself before its program starts, as JSON-able data for the keeper."""
        rules: list[tuple[str, int]] | None = None
        if self.level == "landlock":
            readable, written = self._paths(writable)
            rules = [(path, landlock.READ) for path in (*(place.real for place in readable), "/proc")]
            rules += [(path, landlock.WRITE) for path in (*written, *DEVICES)]
        rlimits = self._limits.by_name() if self.level != "none" else {}
        wrapped = self.level == "bubblewrap"
        return {
            "rules": rules,
            "rlimits": rlimits,
            # Bubblewrap needs its rights until it has given them up itself.
            "reduced": self.level in ("rlimits", "landlock"),
            # With the network it shares the sockets that have a name and no file, if the kernel does not keep it from them.
            "scoped": wrapped and self.network and not _gains_rights(_bubblewrap()),
            "says_when_ready": wrapped,
        }

    def _paths(self, writable: Sequence[str | Path]) -> tuple[list[_Place], list[str]]:
        """What can be read and what can be written. What lies in something writable is left out: it is covered, and a command may have
        put a link to anywhere in its place."""
        every = [*(_Place(str(path), str(path)) for path in writable), *self._writable]
        written = [place.real for place in every if not any(_within(place, other.real) for other in every if other.real != place.real)]
        readable = [place for place in self._readable if not any(_within(place, path) for path in written)]
        return readable, list(dict.fromkeys(written))


class _Place(NamedTuple):
    """A file or directory. named: as it was given, absolute. real: where that led when the sandbox was made."""

    named: str
    real: str


def _places(paths: Sequence[str | Path]) -> tuple[_Place, ...]:
    named = [os.path.abspath(Path(path).expanduser()) for path in paths]
    return tuple(_Place(path, os.path.realpath(path)) for path in dict.fromkeys(named) if os.path.exists(path))


def _within(place: _Place, directory: str) -> bool:
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for path in place)


def _wrapping(program: str, network: bool) -> list[str]:
    """Namespaces of its own for everything but, if wanted, the network. The keeper ends it; it need not watch its parent."""
    spaces = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    # The kernel asks for no capability of root when it writes settings, only for its number, which it keeps in here; and bubblewrap
    # takes what root has no right to for what root cannot write.
    settings = [word for path in SETTINGS if os.path.exists(path) for word in ("--ro-bind", path, path)]
    return [program, *spaces, *([] if network else ["--unshare-net"]), "--proc", "/proc", *settings, "--dev", "/dev"]


def _bound(option: str, places: Sequence[_Place]) -> list[str]:
    """A place inside another one is a link that is there already, and only what it leads to is missing."""
    words: list[str] = []
    for place in places:
        if os.path.exists(place.real):
            inside = any(place.named.startswith(f"{path.rstrip('/')}/") for other in places if other is not place for path in other)
            words += (option, place.real, place.real if inside else place.named)
    return words


def _gains_rights(program: str | None) -> bool:
    """Whether it works by its owner's rights, which it would lose by promising to gain none."""
    return program is not None and bool(os.stat(program).st_mode & (stat.S_ISUID | stat.S_ISGID))
