"""Patterns over names, texts and paths."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["braces_expanded", "glob_covers", "glob_regex", "path_regex"]


BRACES_MAX = 100
_BRACES = re.compile(r"\{([^{}]*)\}")


@cache
def glob_regex(pattern: str) -> re.Pattern[str]:
    """``*`` is any text, none included, ``?`` one character; everything else is itself."""
    first, *others = ("".join("." if char == "?" else re.escape(char) for char in piece) for piece in re.split(r"\*+", pattern))
    if not others:
        return re.compile(first, re.DOTALL)
    # Each piece is found at its first place and never looked for again: no text makes this slow.
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in others[:-1]) + f".*{others[-1]}", re.DOTALL)


@cache
def path_regex(pattern: str) -> re.Pattern[str]:
    """A path: ``*`` and ``?`` stay within one component, ``**`` is any number of components, none included."""
    made: list[str] = []
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            made.append(".*" if last else "(?:[^/]+/)*")
            continue
        made.append("".join({"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char) for char in part))
        if not last:
            made.append("/")
    return re.compile("".join(made), re.DOTALL)


def glob_covers(wide: str, narrow: str) -> bool:
    """Whether everything that ``narrow`` matches is certainly matched by ``wide``, too."""
    if wide == "*" or wide == narrow:
        return True
    if "*" not in narrow and "?" not in narrow:
        return glob_regex(wide).fullmatch(narrow) is not None
    return wide.endswith("*") and not set("*?") & set(wide[:-1]) and re.split(r"[*?]", narrow)[0].startswith(wide[:-1])


def braces_expanded(word: str) -> list[str] | None:
    """The words that a shell makes of ``{a,b}``; a row such as ``{1..9}`` becomes ``*``. None for more than ``BRACES_MAX``."""
    done, open_ = list[str](), [word]
    while open_:
        text = open_.pop()
        found = _BRACES.search(text)
        if found is None:
            done.append(text)
        elif "," in found[1]:
            open_ += [text[: found.start()] + each + text[found.end() :] for each in found[1].split(",")]
        else:
            open_.append(text[: found.start()] + ("*" if ".." in found[1] else found[1]) + text[found.end() :])
        if len(done) + len(open_) > BRACES_MAX:
            return None
    return done
