"""Names by pattern: ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}``, without a pattern that could take for ever."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from ..errors import ToolFailure

__all__ = ["name_matcher"]

PATTERN_CHARACTERS_MAX = 500
ALTERNATIVES_MAX = 64


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a relative path matches ``pattern``; one without ``/`` is about the last name alone, wherever it stands.

    ``*`` and ``?`` stop at ``/``; ``**`` is any number of directories; ``{a,b}`` is either. Names that begin with a dot match like
    others. Upper and lower case differ. Raises ToolFailure for what is no such pattern.
    """
    if not pattern.strip() or len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ToolFailure(f"a pattern has 1 to {PATTERN_CHARACTERS_MAX} characters, such as '*.py' or 'src/**/test_*'", effect="none")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ToolFailure(f"{pattern!r}: a pattern is relative to the directory that is searched, and has no '..'", effect="none")
    matchers = [_Path(one) for one in _alternatives(pattern)]
    return lambda path: any(matcher.matches(path) for matcher in matchers)


class _Path:
    """One pattern without braces. Each part is tried once per name: the time is their product, and never exponential."""

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if "/" not in pattern:
            parts.insert(0, "**")
        self._parts = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in parts]

    def matches(self, path: str) -> bool:
        at = self._skipping({0})
        for name in path.split("/"):
            following: set[int] = set()
            for place in at:
                if place < len(self._parts):
                    part = self._parts[place]
                    if part is None:
                        following.add(place)
                    elif part.match(name):
                        following.add(place + 1)
            at = self._skipping(following)
        return len(self._parts) in at

    def _skipping(self, places: set[int]) -> set[int]:
        """With the places that a ``**`` which stands for nothing leads to."""
        reached = set(places)
        for place in places:
            while place < len(self._parts) and self._parts[place] is None:
                place += 1
                reached.add(place)
        return reached


def _alternatives(pattern: str) -> list[str]:
    done: list[str] = []
    pending = [pattern]
    while pending:
        one = pending.pop(0)
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", one)
        if braces is None:
            done.append(one)
        else:
            pending += [one[: braces.start()] + part + one[braces.end() :] for part in braces[1].split(",")]
        if len(done) + len(pending) > ALTERNATIVES_MAX:
            raise ToolFailure(f"{pattern!r}: more than {ALTERNATIVES_MAX} alternatives in braces", effect="none")
    return done
