"""Rules over paths. To allow, a path must be plainly inside, also when its links are followed; to deny, any reading of it counts."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .globs import braces_expanded, glob_regex, path_regex

__all__ = ["PATH_MAX", "PathPattern", "readings_of"]

# No system has longer ones.
PATH_MAX = 4096
_URL = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)


@dataclass(frozen=True)
class PathPattern:
    """A glob of paths. Relative ones are below ``root``, ``~`` is the home directory of whoever runs the agent."""

    text: str
    root: Path

    @cached_property
    def _whole(self) -> str:
        text = self.text
        if text == "~" or text.startswith("~/"):
            text = os.path.expanduser("~") + text[1:]
        whole = text if text.startswith("/") else posixpath.join(str(self.root), text)
        head, rest = _literal_head(whole)
        return posixpath.join(os.path.realpath(head), rest) if rest else os.path.realpath(head)

    @cached_property
    def _given(self) -> re.Pattern[str]:
        text = os.path.expanduser("~") + self.text[1:] if self.text == "~" or self.text.startswith("~/") else self.text
        return path_regex(posixpath.normpath(text) if text.startswith("/") else posixpath.normpath(posixpath.join(str(self.root), text)))

    @cached_property
    def _real(self) -> re.Pattern[str]:
        return path_regex(self._whole)

    @cached_property
    def _folded(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return re.compile(_fold(self._given.pattern), re.DOTALL), re.compile(_fold(self._real.pattern), re.DOTALL)

    def covers(self, path: Any) -> bool:
        """Narrowly: no ``..``, no link that leads out, nothing that a tool may read as something else than a path."""
        if (
            not isinstance(path, str)
            or not path
            or len(path) > PATH_MAX
            or "\0" in path
            or path.startswith("~")
            or _URL.match(path)
            or "\\" in path
        ):
            return False
        if ".." in path.split("/"):
            return False
        whole = posixpath.normpath(posixpath.join(str(self.root), path))
        return _is(self._given, whole) and _is(self._real, os.path.realpath(whole))

    def may_become(self, word: str) -> bool:
        """Whether a shell may make one of these paths of ``word``, which has ``*``, ``?``, ``[...]`` or ``{...}`` in it."""
        texts = braces_expanded(word)
        if texts is None:
            return True
        mine = posixpath.join(str(self.root), os.path.expanduser(self.text)).split("/")
        below = mine[-1] == "**"
        mine = [_fold(part) for part in mine[: len(mine) - below]]
        for text in texts:
            whole = posixpath.normpath(posixpath.join(str(self.root), os.path.expanduser(text)))
            parts = _fold(re.sub(r"\[[^]/]*\]", "?", whole)).split("/")
            if (len(parts) >= len(mine) if below else len(parts) == len(mine)) and all(map(_meet, parts, mine)):
                return True
        return False

    def may_be(self, readings: frozenset[str] | None) -> bool:
        """Widely: whether one of the readings of a path (see ``readings_of``) matches, upper and lower case alike."""
        given, real = self._folded
        return readings is None or any(_is(regex, reading) for regex in (given, real) for reading in readings)


def readings_of(path: Any, root: Path) -> frozenset[str] | None:
    """Every place that a tool may take ``path`` for: as it is written, without ``..``, with its links followed, with ``~`` and variables
    expanded; in lower case. None for what is too long to be read, which may be any. Looks at the file system."""
    if not isinstance(path, str):
        return frozenset()
    if len(path) > PATH_MAX:
        return None
    text = path.replace("\0", "").strip()
    if text[:5].lower() == "file:":
        text = re.sub(r"^file:/*(?=/)|^file:", "", text, flags=re.IGNORECASE)
    expanded = os.path.expanduser(os.path.expandvars(text)) if text[:1] in "~$" else text
    whole = posixpath.join(str(root), expanded.replace("\\", "/"))
    plain = posixpath.normpath(whole)
    return frozenset(map(_fold, (plain, os.path.realpath(whole), os.path.realpath(plain))))


def _is(regex: re.Pattern[str], path: str) -> bool:
    """``src/**`` is ``src`` itself, too."""
    return regex.fullmatch(path) is not None or regex.fullmatch(f"{path}/") is not None


def _literal_head(pattern: str) -> tuple[str, str]:
    """The directories of ``pattern`` before the first wildcard, which may be links themselves, and the rest."""
    parts = pattern.split("/")
    at = next((index for index, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
    return "/".join(parts[:at]) or "/", "/".join(parts[at:])


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _meet(word: str, part: str) -> bool:
    """Whether a shell may make ``part`` of ``word``: a wildcard never stands for the dot that a name begins with."""
    if part[:1] == "." and word[:1] in ("*", "?"):
        return False
    if not set("*?") & set(part):
        return glob_regex(word).fullmatch(part) is not None
    if not set("*?") & set(word):
        return glob_regex(part).fullmatch(word) is not None
    one, other = (re.split(r"[*?]", text)[0] for text in (word, part))
    return one.startswith(other) or other.startswith(one)
