"""Writing a file in a Directory: whole or not at all, and only over what was looked at."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from typing import NamedTuple

from ..errors import ToolFailure
from .directory import Directory, reason_of_error, refused

__all__ = ["Rewritten", "rewrite"]

_LOOK = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Make = Callable[["bytes | None"], bytes]


class Rewritten(NamedTuple):
    """What a file held before, None if it was not there, and what it holds now."""

    before: bytes | None
    after: bytes


class _Found(NamedTuple):
    data: bytes
    status: os.stat_result


def rewrite(directory: Directory, path: str, make: Make, *, bytes_max: int, create: bool) -> Rewritten:
    """Give ``path`` the content that ``make`` makes of its present one (None: there is no such file).

    It is written beside the file and renamed over it, both on disk before this returns: a reader, a crash and a failure see the old
    content or the new, never a part. Permission bits stay (but for set-uid and set-gid); owner and group stay if this process may give
    them. A link is never followed, a file that changed while ``make`` worked is not overwritten, and one that this process may not
    write is refused although a rename could replace it.
    create: whether a missing file, and missing directories above it, are made. What ``make`` raises passes through.
    Raises ToolFailure with effect ``none``: nothing was changed.
    """
    with directory.parent(path, create=create) as (fd, name):
        found = _look(fd, name, path, bytes_max)
        if found is None and not create:
            raise refused(path, "there is no such file", "write")
        data = make(None if found is None else found.data)
        if found is None or found.data != data:
            _replace(fd, name, path, found, data)
        return Rewritten(None if found is None else found.data, data)


def _look(fd: int, name: str, path: str, bytes_max: int) -> _Found | None:
    """The file as it is; None if there is nothing of that name. Raises ToolFailure for anything that is no regular, writable file."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise refused(path, "it is a symbolic link, and links are not followed", "write")
        if stat.S_ISDIR(status.st_mode):
            raise refused(path, "it is a directory", "write")
        if not stat.S_ISREG(status.st_mode):
            raise refused(path, "it is not a regular file", "write")
        with os.fdopen(os.open(name, _LOOK, dir_fd=fd), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise refused(path, "it is not a regular file", "write")
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeEncodeError) as error:
        raise refused(path, reason_of_error(error), "write") from error
    if len(data) > bytes_max:
        raise refused(path, f"it is larger than {bytes_max:,} bytes", "write")
    return _Found(data, status)


def _replace(fd: int, name: str, path: str, found: _Found | None, data: bytes) -> None:
    beside = f".interlock-{secrets.token_hex(8)}.tmp"
    made = False
    try:
        # A new file gets the mode that the process's umask leaves; one that replaces another is nobody's to read until it has its mode.
        inner = os.open(beside, _NEW, 0o666 if found is None else 0o600, dir_fd=fd)
        made = True
        with os.fdopen(inner, "wb") as file:
            file.write(data)
            file.flush()
            if found is not None:
                _keep(file.fileno(), found.status)
            os.fsync(file.fileno())
        if found is None:
            made = _place_new(fd, beside, name)
        elif _unchanged(fd, name, found.status):
            os.rename(beside, name, src_dir_fd=fd, dst_dir_fd=fd)
            made = False
        else:
            raise ToolFailure(f"{path!r} was changed by somebody else just now, and was not overwritten: read it again", effect="none")
    except FileExistsError as error:
        raise ToolFailure(f"{path!r} was made by somebody else just now, and was not overwritten: read it", effect="none") from error
    except (OSError, UnicodeEncodeError) as error:
        raise refused(path, reason_of_error(error), "write") from error
    finally:
        if made:
            _discard(fd, beside)
    try:
        os.fsync(fd)
    except OSError:  # not every file system can say it of a directory; the file itself is written
        pass


def _discard(fd: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except OSError:  # somebody has taken the whole directory away; what is to be said is said already
        pass


def _keep(fd: int, status: os.stat_result) -> None:
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        try:
            os.fchown(fd, status.st_uid, status.st_gid)
        except PermissionError:  # only root may; the file is then this process's
            pass
    # As a write in place would, take the bits that lend somebody's rights away.
    os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))


def _place_new(fd: int, beside: str, name: str) -> bool:
    """Give the new file its name, only if nothing has it. Returns whether the other name is still there."""
    try:
        os.link(beside, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):  # no hard links here: an empty file takes the name, so that nobody else can, and is renamed over
        os.close(os.open(name, _NEW, 0o600, dir_fd=fd))
        try:
            os.rename(beside, name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError:
            _discard(fd, name)
            raise
        return False
    return True


def _unchanged(fd: int, name: str, before: os.stat_result) -> bool:
    now = os.stat(name, dir_fd=fd, follow_symlinks=False)
    return all(getattr(now, part) == getattr(before, part) for part in ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"))
