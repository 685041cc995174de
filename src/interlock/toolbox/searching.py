"""Searching the text of files, line by line, within bounds."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..errors import ToolFailure
from ..messages import clean
from .directory import Entry, shown_path
from .patterns import name_matcher
from .ripgrep import candidates, found_ripgrep
from .roots import Roots
from .text_files import as_text, lines_of

__all__ = ["SKIPPED", "Search", "search"]

SEARCHED_FILE_BYTES_MAX = 2 * 1024 * 1024
SEARCHED_BYTES_MAX = 64 * 1024 * 1024
SEARCHED_FILES_MAX = 20_000
SEARCH_S = 30.0
MATCHES_MAX = 200
MATCH_CHARACTERS_MAX = 300
PATTERN_CHARACTERS_MAX = 1000
# Directories that are listed but not entered when everything below a directory is asked for: large, and written by tools.
SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})

Find = Callable[[str], int]
"""Where in a line it is found first; -1 if it is not."""


class Search(NamedTuple):
    """What to look for. files: a pattern for the paths of the files to look into; None is every file."""

    text: str
    ignore_case: bool = False
    is_pattern: bool = False
    files: str | None = None


def search(roots: Roots, wanted: Search, path: str) -> str:
    """``path:line: text`` of each line that matches, in the order of a walk. Raises ToolFailure, also for a pattern that is none.

    A file that is asked for by name says why it cannot be searched; below a directory, what is no text is passed over, and what is larger
    than 2 MiB is counted.
    """
    if not wanted.text or "\n" in wanted.text or "\r" in wanted.text:
        raise ToolFailure("search for a non-empty text without line breaks", effect="none")
    find = _pattern(wanted) if wanted.is_pattern else _literal(wanted)
    matches = name_matcher(wanted.files) if wanted.files else None
    exact = not (wanted.is_pattern or wanted.ignore_case)
    lines: list[str] = []
    budget, until, above, large, count = SEARCHED_BYTES_MAX, time.monotonic() + SEARCH_S, roots.above(path), 0, 0
    hinted = _hinted(roots, path, wanted)
    for entry, named in _entries(roots, path):
        if budget <= 0 or count == SEARCHED_FILES_MAX or time.monotonic() > until:
            lines.append("[stopped early: there is too much to search; name a directory further down]")
            break
        if entry.kind != "file" or (matches is not None and not matches(entry.path.removeprefix(above))):
            continue
        if entry.size > SEARCHED_FILE_BYTES_MAX:
            large += 1
            continue
        if hinted is not None and entry.path not in hinted:
            continue
        count += 1
        try:
            place = roots.at(entry.path)
            data = place.directory.read(place.path, bytes_max=SEARCHED_FILE_BYTES_MAX)
            content = as_text(entry.path, data).text
        except ToolFailure:
            if named:  # by the model: say why not
                raise
            continue
        budget -= len(data)
        if exact and wanted.text not in content:
            continue
        for number, line in enumerate(lines_of(content), 1):
            at = find(line)
            if at >= 0:
                lines.append(clean(f"{shown_path(entry.path)}:{number}: {_around(line, at)}"))
                if len(lines) == MATCHES_MAX:
                    return "\n".join(lines) + f"\n[only the first {MATCHES_MAX} matches are shown]"
    if not lines:
        lines.append(f"[no line {'matches' if wanted.is_pattern else 'contains'} {clean(wanted.text)!r}]")
    if large:
        lines.append(f"[{large:,} {'file' if large == 1 else 'files'} of more than {SEARCHED_FILE_BYTES_MAX:,} bytes not searched]")
    return "\n".join(lines)


def _entries(roots: Roots, path: str) -> Iterator[tuple[Entry, bool]]:
    """Every entry below ``path``, and whether it was named itself: what is no directory is the only one, and reading it says what it is."""
    try:
        for entry in roots.walk(path, skip=SKIPPED):
            yield entry, False
    except ToolFailure:
        yield Entry(path, "file", 0), True


def _hinted(roots: Roots, path: str, wanted: Search) -> set[str] | None:
    """The files in which ripgrep has seen the text; None if it was not asked, and every file must be looked into.

    It is asked only for what it cannot see otherwise than we do: the same bytes stand for an ASCII text in each of our encodings.
    """
    program = found_ripgrep(roots.real)
    if program is None or wanted.is_pattern or not wanted.text.isascii():
        return None
    hinted: set[str] = set()
    try:
        for place in roots.searched(path):
            with place.directory.descriptor(place.path) as fd:
                found = candidates(
                    program, fd, wanted.text, ignore_case=wanted.ignore_case, skip=SKIPPED, file_bytes_max=SEARCHED_FILE_BYTES_MAX
                )
            if found is None:
                return None
            above = roots.above(place.shown)
            hinted.update(f"{above}{name}" for name in found)
    except ToolFailure:  # no directory; the walk says so
        return None
    return hinted


def _literal(wanted: Search) -> Find:
    if not wanted.ignore_case:
        return lambda line: line.find(wanted.text)
    # Of an ASCII text only ASCII letters are the same in both cases: a Kelvin sign is no "k".
    flags = re.IGNORECASE | (re.ASCII if wanted.text.isascii() else 0)
    expression = re.compile(re.escape(wanted.text), flags)
    return lambda line: _start(expression.search(line))


def _pattern(wanted: Search) -> Find:
    """RE2: its time is linear in the text, whatever the pattern. Python's own could take for ever, and hold every other thread up."""
    try:
        library: Any = importlib.import_module("re2")  # an extra, and 5 ms; it has no types
    except ImportError:
        raise ToolFailure(
            "patterns need the library google-re2, which is not installed here (pip install 'interlock[tools]'): search for an exact text",
            effect="none",
        ) from None
    if len(wanted.text) > PATTERN_CHARACTERS_MAX:
        raise ToolFailure(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters", effect="none")
    options = library.Options()
    options.case_sensitive = not wanted.ignore_case
    options.log_errors = False
    try:
        expression = library.compile(clean(wanted.text), options)
    except library.error as error:
        said = error.args[0] if error.args else error
        reason = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise ToolFailure(f"{wanted.text!r} is no pattern that RE2 knows: {reason}", effect="none") from error
    # Its text is UTF-8, in which a lone surrogate has no place.
    return lambda line: _start(expression.search(clean(line).rstrip("\r\n")))


def _start(match: Any) -> int:
    return -1 if match is None else match.start()


def _around(line: str, at: int) -> str:
    """The part of a line that shows the match."""
    bare = line.strip()
    if len(bare) <= MATCH_CHARACTERS_MAX or at < MATCH_CHARACTERS_MAX - 100:
        return bare[:MATCH_CHARACTERS_MAX]
    return f"...{line[at - 100 :].rstrip()[:MATCH_CHARACTERS_MAX]}"
