"""Looking at files: list, find by name, read, search. Nothing is changed, so a crash makes no difference."""

from __future__ import annotations

import hashlib
import time
from typing import Any, BinaryIO

from ..errors import ToolFailure
from ..messages import clean
from ..tools import Tool, tool
from ..tools.result import boundary
from .directory import Entry, refused, shown_path
from .patterns import name_matcher
from .roots import Place, Roots
from .searching import SKIPPED, Search, search
from .text_files import as_text, is_binary, lines_of

__all__ = ["FILE_BYTES_MAX", "FileText", "digest_of", "reading_tools"]

ENTRIES_MAX = 1000
FIND_S = 30.0
# A page of source code or log is rarely longer; the rest is one more call away.
LINES_MAX = 2000
FILE_BYTES_MAX = 10 * 1024 * 1024
# Of a file that is too large to be read whole: how much of it a page may have, and how long may be looked for its first line.
PAGE_BYTES_MAX = 256 * 1024
PAGE_S = 20.0
CHUNK_BYTES = 1024 * 1024


class FileText(str):
    """What a tool says of one file, which now is known to hold the bytes of ``digest``. path: as ``Place.shown``."""

    __slots__ = ("digest", "path")

    path: str
    digest: str

    @classmethod
    def of(cls, text: str, place: Place, data: bytes) -> FileText:
        made = cls(text)
        made.path, made.digest = place.shown, digest_of(data)
        return made


def digest_of(data: bytes) -> str:
    """What a session remembers of a file's content: 32 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:32]


def reading_tools(roots: Roots) -> tuple[Tool, ...]:
    """list_files, find_files, read_file and search_text. Safe to start again after a crash, and beside one another."""

    def list_files(path: str = ".", recursive: bool = False) -> str:
        """List the files in a directory.

        Args:
            path: The directory, relative to the working directory.
            recursive: Also list everything below it.
        """
        lines: list[str] = []
        for entry in roots.walk(path, skip=SKIPPED) if recursive else roots.entries(path):
            if len(lines) == ENTRIES_MAX:
                lines.append(f"[only the first {ENTRIES_MAX} entries are shown; list a directory further down]")
                break
            lines.append(_listed(entry))
        return "\n".join(lines) or "[the directory is empty]"

    def find_files(pattern: str, path: str = ".") -> str:
        """Find files by their names.

        Args:
            pattern: Such as *.py (a name, anywhere), src/**/test_*.py, or *.{js,ts}. * stops at a slash, ** does not.
            path: The directory that is searched with everything below it; the pattern is relative to it.
        """
        matches, above, until = name_matcher(pattern), roots.above(path), time.monotonic() + FIND_S
        lines: list[str] = []
        for entry in roots.walk(path, skip=SKIPPED):
            if time.monotonic() > until:
                lines.append("[stopped early: there is too much to look through; name a directory further down]")
                break
            if entry.kind != "directory" and matches(entry.path.removeprefix(above)):
                if len(lines) == ENTRIES_MAX:
                    lines.append(f"[only the first {ENTRIES_MAX} files are shown; name a directory further down]")
                    break
                lines.append(_listed(entry))
        return "\n".join(lines) or f"[no file matches {clean(pattern)!r}]"

    def read_file(path: str, first_line: int = 1, lines: int = LINES_MAX) -> str:
        """Read a text file.

        Args:
            path: The file, relative to the working directory.
            first_line: Where to start; the first line of the file is 1.
            lines: How many lines to read, at most 2000.
        """
        place, first, count = roots.at(path), max(first_line, 1), min(max(lines, 1), LINES_MAX)
        with place.directory.file(place.path) as file:
            data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                return _page(path, data, file, first, count)
        return FileText.of(_read(path, data, first, count), place, data)

    def search_text(text: str, path: str = ".", ignore_case: bool = False, is_pattern: bool = False, files: str | None = None) -> str:
        """Search text files, line by line.

        Args:
            text: What to look for: an exact text, or a pattern.
            path: A file, or a directory which is searched with everything below it.
            ignore_case: Whether upper and lower case are the same.
            is_pattern: Whether text is a regular expression, as RE2 has them.
            files: Look only into files whose paths match, such as *.py.
        """
        return search(roots, Search(text, ignore_case, is_pattern, files), path)

    traits: dict[str, Any] = {"on_crash": "rerun"}
    return tuple(tool(**traits)(function) for function in (list_files, find_files, read_file, search_text))


def _listed(entry: Entry) -> str:
    path = shown_path(entry.path)
    match entry.kind:
        case "directory":
            return f"{path}/"
        case "file":
            return f"{path} ({entry.size:,} bytes)"
        case "link":
            return f"{path} (a link; not followed)"
        case "other":
            return f"{path} (not a regular file)"


def _read(path: str, data: bytes, first: int, count: int) -> str:
    """The lines, and what must be said of them below."""
    text = as_text(path, data)
    every = lines_of(text.text)
    shown = every[first - 1 : first - 1 + count]
    if not shown and (every or first > 1):
        raise ToolFailure(f"{path!r} has only {len(every)} lines", effect="none")
    notes = [text.note] if text.note else []
    if len(shown) < len(every):
        notes.insert(0, f"[lines {first} to {first + len(shown) - 1} of {len(every)}]")
    return clean("".join(shown) + "".join(f"\n{note}" for note in notes))


def _page(path: str, head: bytes, file: BinaryIO, first: int, count: int) -> str:
    """Some lines of a file that is too large to be held: it is read past, in constant memory."""
    if is_binary(head):
        raise ToolFailure(f"{path!r} is not a text file (more than {FILE_BYTES_MAX:,} bytes)", effect="none")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise refused(path, f"it is UTF-16 of more than {FILE_BYTES_MAX:,} bytes")
    chunk, passed, until, last = head, 0, time.monotonic() + PAGE_S, b""
    while chunk and passed + (ends := chunk.count(b"\n")) < first - 1:
        passed, last = passed + ends, chunk[-1:]
        if time.monotonic() > until:
            raise refused(path, f"line {first} is too far down: {passed:,} lines were passed in {PAGE_S:g} s")
        chunk = file.read(CHUNK_BYTES)
    at = 0
    for _ in range(first - 1 - passed):
        at = chunk.find(b"\n", at) + 1
    page = chunk[at : at + PAGE_BYTES_MAX]
    while len(page) < PAGE_BYTES_MAX and (more := file.read(PAGE_BYTES_MAX - len(page))):
        page += more
    if not page:
        every = first - 1 if chunk else passed + (last != b"\n")
        raise ToolFailure(f"{path!r} has only {every:,} lines", effect="none")
    lines, full = page.split(b"\n"), len(page) == PAGE_BYTES_MAX
    if len(lines) == 1 and full:  # a line that is longer than a page
        lines = [page[: boundary(page, len(page) - 3)]]
    elif full or not lines[-1]:
        lines.pop()
    shown = lines[:count]
    text = as_text(path, b"\n".join(shown))
    size = f"the file has more than {FILE_BYTES_MAX:,} bytes, so it cannot be edited here, nor searched"
    return clean(f"{text.text}\n[lines {first} to {first + len(shown) - 1}; {size}]" + (f"\n{text.note}" if text.note else ""))
