"""A directory that cannot be left: every path is walked from its descriptor, one component at a time, without following links."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import ToolFailure, UsageError

__all__ = ["Directory", "Entry"]

Kind = Literal["file", "directory", "link", "other"]

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, so that a named pipe in place of a file cannot hang the reader; regular files ignore it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_REASONS = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of it is not a directory, or is a symbolic link, and links are not followed",
    errno.ELOOP: "it is a symbolic link, and links are not followed",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENXIO: "it is not a regular file",
}


class Entry(NamedTuple):
    """One name in a directory. path: relative to the root, with ``/``. size: in bytes, 0 unless a file."""

    path: str
    kind: Kind
    size: int


class Directory:
    """A root that its readers cannot leave: not by ``..``, an absolute path, a NUL, a link, or a link swapped in meanwhile.

    The root's descriptor is held from the start, so that renaming or replacing the root changes nothing. What it
    cannot see is a hard link or a mount below the root: whoever can make those already has the file.
    Every refusal is a ToolFailure with effect ``none``. Usable from many threads at once.
    """

    def __init__(self, root: str | Path) -> None:
        """Raises UsageError if ``root`` is not a readable directory."""
        try:
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise UsageError(f"{str(root)!r} is not a directory that can be read: {error}") from error
        self._close = weakref.finalize(self, os.close, self._fd)

    def close(self) -> None:
        """Give the descriptor back. Idempotent; also done when the object is collected."""
        self._close()

    def read(self, path: str, *, bytes_max: int) -> bytes:
        """The content of a regular file. Raises ToolFailure, also if it is larger than ``bytes_max``."""
        with self._opened(path, _FILE) as fd:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise _refused(path, "it is a directory")
            if not stat.S_ISREG(status.st_mode):
                raise _refused(path, "it is not a regular file")
            # A file can grow between the two calls, and those of /proc claim to be empty: what counts is what is read.
            with os.fdopen(os.dup(fd), "rb") as file:
                data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise _refused(path, f"it is larger than {bytes_max:,} bytes")
        return data

    def entries(self, path: str) -> list[Entry]:
        """What a directory holds, sorted by name. Raises ToolFailure."""
        prefix = "/".join(_components(path))
        with self._opened(path, _STEP) as fd:
            try:
                with os.scandir(fd) as scan:
                    found = [_entry(f"{prefix}/{item.name}" if prefix else item.name, item) for item in scan]
            except OSError as error:
                raise _refused(path, _reason(error)) from error
        return sorted(found)

    def walk(self, path: str, *, skip: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Every entry below a directory, each directory before what it holds; directories named in ``skip`` are not entered.

        Raises ToolFailure for ``path`` itself; a directory further down that cannot be read is passed over.
        """
        pending = list(reversed(self.entries(path)))
        while pending:
            entry = pending.pop()
            yield entry
            if entry.kind == "directory" and entry.path.rsplit("/", 1)[-1] not in skip:
                try:
                    pending += reversed(self.entries(entry.path))
                except ToolFailure:  # removed, replaced by a link, or forbidden meanwhile
                    continue

    @contextmanager
    def _opened(self, path: str, flags: int) -> Generator[int]:
        if not self._close.alive:
            raise UsageError("this Directory was closed")
        *parents, last = [".", *_components(path)]
        fd = os.dup(self._fd)
        try:
            for name in parents:
                fd = _step(fd, name, _STEP, path)
            fd = _step(fd, last, flags, path)
            yield fd
        finally:
            os.close(fd)


def _step(fd: int, name: str, flags: int, path: str) -> int:
    """Open ``name`` below ``fd`` and close ``fd``, which stays open if that fails."""
    try:
        inner = os.open(name, flags, dir_fd=fd)
    except (OSError, UnicodeEncodeError) as error:
        raise _refused(path, _reason(error)) from error
    os.close(fd)
    return inner


def _components(path: str) -> list[str]:
    if "\0" in path:
        raise _refused(path, "a path holds no NUL character")
    if path.startswith("/"):
        raise _refused(path, "give a path relative to the working directory")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _refused(path, "'..' is not allowed")
    return parts


def _entry(path: str, item: os.DirEntry[str]) -> Entry:
    try:
        if item.is_symlink():
            return Entry(path, "link", 0)
        if item.is_dir(follow_symlinks=False):
            return Entry(path, "directory", 0)
        if item.is_file(follow_symlinks=False):
            return Entry(path, "file", item.stat(follow_symlinks=False).st_size)
    except OSError:  # gone since the directory was read
        pass
    return Entry(path, "other", 0)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, error.strerror or type(error).__name__)
    return "the name cannot be a file name here"


def _refused(path: str, reason: str) -> ToolFailure:
    shown = path if len(path) <= 200 else path[:200] + "..."
    return ToolFailure(f"cannot read {shown!r}: {reason}", effect="none")
