"""A directory that cannot be left: every path is walked from its descriptor, one component at a time, without following links."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from ..errors import ToolFailure, UsageError
from ..messages import clean

__all__ = ["Directory", "Entry", "reason_of_error", "refused", "shown_path"]

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
    errno.EISDIR: "it is a directory",
    errno.ENOSPC: "there is no space left",
    errno.EROFS: "this file system cannot be written",
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
        # A file can grow once its size was asked for, and those of /proc claim to be empty: what counts is what is read.
        with self.file(path) as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise refused(path, f"it is larger than {bytes_max:,} bytes")
        return data

    @contextmanager
    def file(self, path: str) -> Generator[BinaryIO]:
        """A regular file, open for reading. Raises ToolFailure."""
        with self._opened(path, _FILE, regular=True) as fd:
            _check_regular(os.fstat(fd), path)
            with os.fdopen(os.dup(fd), "rb") as file:
                yield file

    @contextmanager
    def descriptor(self, path: str) -> Generator[int]:
        """The descriptor of a directory, valid inside the block. Raises ToolFailure."""
        with self._opened(path, _STEP) as fd:
            yield fd

    @contextmanager
    def parent(self, path: str, *, create: bool = False) -> Generator[tuple[int, str]]:
        """The descriptor of the directory that ``path`` names something in, valid inside the block, and the name.

        create: make the directories that are missing; if the block raises, those that were made, and are still empty, are gone again.
        Raises ToolFailure.
        """
        if not self._close.alive:
            raise UsageError("this Directory was closed")
        *parents, last = [".", *_components(path, "write")]
        if not parents:
            raise refused(path, "it is a directory", "write")
        made: list[tuple[int, str]] = []
        fd = os.dup(self._fd)
        try:
            for name in parents:
                if create and _make(fd, name, path):
                    made.append((os.dup(fd), name))
                fd = _step(fd, name, _STEP, path, "write")
            yield fd, last
        except BaseException:
            for above, name in reversed(made):
                _remove(above, name)
            raise
        finally:
            for above, _ in made:
                os.close(above)
            os.close(fd)

    def entries(self, path: str) -> list[Entry]:
        """What a directory holds, sorted by name. Raises ToolFailure."""
        prefix = "/".join(_components(path))
        with self._opened(path, _STEP) as fd:
            try:
                with os.scandir(fd) as scan:
                    found = [_entry(f"{prefix}/{item.name}" if prefix else item.name, item) for item in scan]
            except OSError as error:
                raise refused(path, reason_of_error(error)) from error
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
    def _opened(self, path: str, flags: int, *, regular: bool = False) -> Generator[int]:
        if not self._close.alive:
            raise UsageError("this Directory was closed")
        *parents, last = [".", *_components(path)]
        fd = os.dup(self._fd)
        try:
            for name in parents:
                fd = _step(fd, name, _STEP, path)
            if regular:  # looked at first: to open a pipe or a device is to act on it, and wakes up who waits at its other end
                try:
                    _check_regular(os.stat(last, dir_fd=fd, follow_symlinks=False), path)
                except (OSError, UnicodeEncodeError) as error:
                    raise refused(path, reason_of_error(error)) from error
            fd = _step(fd, last, flags, path)
            yield fd
        finally:
            os.close(fd)


def _step(fd: int, name: str, flags: int, path: str, verb: str = "read") -> int:
    """Open ``name`` below ``fd`` and close ``fd``, which stays open if that fails."""
    try:
        inner = os.open(name, flags, dir_fd=fd)
    except (OSError, UnicodeEncodeError) as error:
        raise refused(path, reason_of_error(error), verb) from error
    os.close(fd)
    return inner


def _check_regular(status: os.stat_result, path: str) -> None:
    """Raises ToolFailure for what is no regular file. A link passes: to open it fails, and says why."""
    if stat.S_ISDIR(status.st_mode):
        raise refused(path, "it is a directory")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        raise refused(path, "it is not a regular file")


def _make(fd: int, name: str, path: str) -> bool:
    """Make the directory, if there is nothing of that name. Whether it was made."""
    try:
        os.mkdir(name, dir_fd=fd)
    except FileExistsError:
        return False
    except (OSError, UnicodeEncodeError) as error:
        raise refused(path, reason_of_error(error), "write") from error
    return True


def _remove(fd: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=fd)
    except OSError:  # somebody has put something there
        pass


def _components(path: str, verb: str = "read") -> list[str]:
    if "\0" in path:
        raise refused(path, "a path holds no NUL character", verb)
    if path.startswith("/"):
        raise refused(path, "give a path relative to the working directory", verb)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise refused(path, "'..' is not allowed", verb)
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


def reason_of_error(error: Exception) -> str:
    """What an error of the operating system means for whoever gave the path."""
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, error.strerror or type(error).__name__)
    return "the name cannot be a file name here"


def shown_path(path: str) -> str:
    """A path on one line, as it is or, if something in it could be taken for another line or is not seen, quoted with escapes."""
    cleaned = clean(path)
    return cleaned if cleaned.isprintable() else repr(cleaned)


def refused(path: str, reason: str, verb: str = "read") -> ToolFailure:
    """A refusal before anything was done, with a path of any length."""
    shown = (path or ".") if len(path) <= 200 else path[:200] + "..."
    return ToolFailure(f"cannot {verb} {shown!r}: {reason}", effect="none")
