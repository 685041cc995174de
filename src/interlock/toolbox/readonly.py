"""Tools that look at one directory and change nothing: list_files, read_file, search_text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ToolFailure
from ..messages import clean
from ..tools import Tool, tool
from .directory import Directory, Entry

__all__ = ["readonly_tools"]

ENTRIES_MAX = 1000
# A page of source code or log is rarely longer; the rest is one more call away.
LINES_MAX = 2000
FILE_BYTES_MAX = 10 * 1024 * 1024
SEARCHED_FILE_BYTES_MAX = 2 * 1024 * 1024
SEARCHED_BYTES_MAX = 64 * 1024 * 1024
SEARCHED_FILES_MAX = 20_000
MATCHES_MAX = 200
MATCH_CHARACTERS_MAX = 300
# Directories that are listed but not entered when everything below a directory is asked for: large, and written by tools.
_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def readonly_tools(root: str | Path = ".") -> tuple[Tool, ...]:
    """list_files, read_file and search_text, confined to ``root`` (see Directory). Safe to start again after a crash.

    Raises UsageError if ``root`` is not a readable directory.
    """
    directory = Directory(root)

    def list_files(path: str = ".", recursive: bool = False) -> str:
        """List the files in a directory.

        Args:
            path: The directory, relative to the working directory.
            recursive: Also list everything below it.
        """
        found = directory.walk(path, skip=_SKIPPED) if recursive else iter(directory.entries(path))
        lines: list[str] = []
        for entry in found:
            if len(lines) == ENTRIES_MAX:
                lines.append(f"[only the first {ENTRIES_MAX} entries are shown; list a directory further down]")
                break
            lines.append(_listed(entry))
        return "\n".join(lines) or "[the directory is empty]"

    def read_file(path: str, first_line: int = 1, lines: int = LINES_MAX) -> str:
        """Read a text file.

        Args:
            path: The file, relative to the working directory.
            first_line: Where to start; the first line of the file is 1.
            lines: How many lines to read, at most 2000.
        """
        text = _text(path, directory.read(path, bytes_max=FILE_BYTES_MAX))
        every = text.splitlines(keepends=True)
        first = max(first_line, 1)
        shown = every[first - 1 : first - 1 + min(max(lines, 1), LINES_MAX)]
        if len(shown) == len(every):
            return text
        if not shown:
            raise ToolFailure(f"{path!r} has only {len(every)} lines", effect="none")
        return "".join(shown) + f"\n[lines {first} to {first + len(shown) - 1} of {len(every)}]"

    def search_text(text: str, path: str = ".", ignore_case: bool = False) -> str:
        """Search text files for an exact text, line by line.

        Args:
            text: What to look for. Not a pattern.
            path: A file, or a directory which is searched with everything below it.
            ignore_case: Whether upper and lower case are the same.
        """
        if not text or "\n" in text:
            raise ToolFailure("search for a non-empty text without line breaks", effect="none")
        return _search(directory, text, path, ignore_case=ignore_case)

    traits: dict[str, Any] = {"on_crash": "rerun"}
    return (tool(**traits)(list_files), tool(**traits)(read_file), tool(**traits)(search_text))


def _listed(entry: Entry) -> str:
    path = clean(entry.path)
    match entry.kind:
        case "directory":
            return f"{path}/"
        case "file":
            return f"{path} ({entry.size:,} bytes)"
        case "link":
            return f"{path} (a link; not followed)"
        case "other":
            return f"{path} (not a regular file)"


def _text(path: str, data: bytes) -> str:
    if b"\0" in data[:8192]:
        raise ToolFailure(f"{path!r} is not a text file ({len(data):,} bytes)", effect="none")
    return data.decode("utf-8", "replace")


def _search(directory: Directory, text: str, path: str, *, ignore_case: bool) -> str:
    wanted = text.casefold() if ignore_case else text
    lines: list[str] = []
    budget = SEARCHED_BYTES_MAX
    for count, name in enumerate(_files(directory, path)):
        if budget <= 0 or count == SEARCHED_FILES_MAX:
            lines.append("[stopped early: there is too much to search; name a directory further down]")
            break
        try:
            data = directory.read(name, bytes_max=SEARCHED_FILE_BYTES_MAX)
            content = _text(name, data)
        except ToolFailure:
            if name == path:  # asked for by name: say why not
                raise
            continue
        budget -= len(data)
        for number, line in enumerate(content.splitlines(), 1):
            if wanted in (line.casefold() if ignore_case else line):
                lines.append(f"{clean(name)}:{number}: {line.strip()[:MATCH_CHARACTERS_MAX]}")
                if len(lines) == MATCHES_MAX:
                    return "\n".join(lines) + f"\n[only the first {MATCHES_MAX} matches are shown]"
    return "\n".join(lines) or f"[no line contains {text!r}]"


def _files(directory: Directory, path: str) -> Iterator[str]:
    try:
        yield from (entry.path for entry in directory.walk(path, skip=_SKIPPED) if entry.kind == "file")
    except ToolFailure:  # a file, or nothing that can be read: reading it says which
        yield path
