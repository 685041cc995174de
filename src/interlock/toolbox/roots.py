"""One or several directories that cannot be left, under one name space."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from ..errors import ToolFailure, UsageError
from .directory import Directory, Entry

__all__ = ["Place", "Roots", "RootsLike"]

RootsLike = str | Path | Sequence[str | Path] | Mapping[str, str | Path]


class Place(NamedTuple):
    """Where a path of a model's leads: ``path`` in ``directory``. shown: the path in one spelling, which names one place only."""

    directory: Directory
    path: str
    shown: str


class Roots:
    """What a model may reach. Usable from many threads at once.

    A single root is the working directory: its files are named relative to it. Of several, the first part of a path is the root's
    name: the key of a mapping, or the last part of the directory's own path. A path that begins with a root's own absolute path, as it
    was given or as links resolve it, means the same file.
    """

    def __init__(self, roots: RootsLike) -> None:
        """Raises UsageError for no root, one that is no readable directory, and names that are no names or not different."""
        named = _named(roots)
        self.first = Path(next(iter(named.values())))
        """The first root, as it was given: where a command starts."""
        self._directories = {name: Directory(path) for name, path in named.items()}
        self._absolute = [
            (form, name)
            for name, path in named.items()
            for form in dict.fromkeys((_parts(os.path.abspath(path)), _parts(os.path.realpath(path))))
        ]
        self.real = tuple(os.path.realpath(path) for path in named.values())
        """Where the roots were when this was made, without links."""
        # A root inside another one is the nearer one.
        self._absolute.sort(key=lambda pair: -len(pair[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of several roots; empty if there is a single one, which needs none."""
        return tuple(name for name in self._directories if name)

    def at(self, path: str) -> Place:
        """Raises ToolFailure for a path in no root. The rest of it is not looked at here: the Directory does."""
        parts = _parts(path)
        if path.startswith("/"):
            for form, name in self._absolute:
                if parts[: len(form)] == form:
                    return self._place(name, parts[len(form) :])
            raise ToolFailure(f"{_cut(path)} is outside: {self._allowed()}", effect="none")
        if "" in self._directories:
            return self._place("", parts)
        if parts and parts[0] in self._directories:
            return self._place(parts[0], parts[1:])
        raise ToolFailure(f"{_cut(path)} is in none of the directories: {self._allowed()}", effect="none")

    def entries(self, path: str) -> list[Entry]:
        """What a directory holds, sorted by name; above several roots, those. Raises ToolFailure."""
        if self._is_top(path):
            return [Entry(name, "directory", 0) for name in sorted(self.names)]
        place = self.at(path)
        return [_under(place, entry) for entry in place.directory.entries(place.path)]

    def walk(self, path: str, *, skip: frozenset[str]) -> Iterator[Entry]:
        """Every entry below a directory, each directory before what it holds. See ``Directory.walk``."""
        if self._is_top(path):
            for name in sorted(self.names):
                yield Entry(name, "directory", 0)
                yield from self.walk(name, skip=skip)
            return
        place = self.at(path)
        for entry in place.directory.walk(place.path, skip=skip):
            yield _under(place, entry)

    def searched(self, path: str) -> list[Place]:
        """The places that are searched if ``path`` is: of all roots, if it stands above them."""
        return [self._place(name, ()) for name in sorted(self.names)] if self._is_top(path) else [self.at(path)]

    def above(self, path: str) -> str:
        """What stands before the name of everything below a directory: nothing, or its path and ``/``. Raises ToolFailure."""
        if self._is_top(path) or (shown := self.at(path).shown) == ".":
            return ""
        return f"{shown}/"

    def _is_top(self, path: str) -> bool:
        return "" not in self._directories and not path.startswith("/") and not _parts(path)

    def _place(self, name: str, parts: tuple[str, ...]) -> Place:
        inner = "/".join(parts)
        return Place(self._directories[name], inner, "/".join((name, *parts)) if name else inner or ".")

    def _allowed(self) -> str:
        if self.names:
            return f"paths begin with {', '.join(f'{name}/' for name in self.names)}"
        return "give a path relative to the working directory"


def _under(place: Place, entry: Entry) -> Entry:
    top = place.shown.partition("/")[0] if place.shown != (place.path or ".") else ""
    return entry._replace(path=f"{top}/{entry.path}") if top else entry


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _cut(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "...")


def _named(roots: RootsLike) -> dict[str, str | Path]:
    if isinstance(roots, str | Path):
        return {"": roots}
    if isinstance(roots, Mapping):
        named = dict(roots)
    else:
        several = list(roots)
        if len(several) == 1:
            return {"": several[0]}
        named = {os.path.basename(os.path.abspath(path)): path for path in several}
        if len(named) < len(several):
            raise UsageError(f"roots: two of {[str(path) for path in several]} have the same name; give them as a mapping from names")
    if not named:
        raise UsageError("roots: at least one directory is needed")
    for name in named:
        known = cast("object", name)
        if not isinstance(known, str) or not known.isprintable() or "/" in known or known in ("", ".", ".."):
            raise UsageError(f"roots: {known!r} is no name for a directory")
    return named
