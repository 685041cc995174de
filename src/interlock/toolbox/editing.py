"""Exact replacement in a text, and failures from which the right text can be learned."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..errors import ToolFailure
from ..messages import clean
from .text_files import lines_of, newline_of, with_newlines

__all__ = ["Edit", "edited"]

PLACES_NAMED_MAX = 10
LINES_SHOWN_MAX = 12
# A search for what was meant takes a step per line of the file, and is not worth more than that.
LINES_SOUGHT_MAX = 200_000
LINES_COMPARED_MAX = 2_000_000


class Edit(NamedTuple):
    """Replace ``old`` by ``new``. every: each occurrence, instead of the only one."""

    old: str
    new: str
    every: bool = False


def edited(path: str, text: str, edit: Edit) -> str:
    r"""``text`` after the edit. Raises ToolFailure, effect ``none``.

    Line ends follow the file: ``\n`` in the edit stands for what ends the file's lines; where a file has several kinds, ``\n`` is
    tried as it is, and then as ``\r\n``.
    """
    if not edit.old:
        raise ToolFailure("old is empty: give the text to replace, or write the whole file with write_file", effect="none")
    style = newline_of(text)
    for end in (style,) if style is not None else (None, "\r\n"):
        old, new = with_newlines(edit.old, end), with_newlines(clean(edit.new), end)
        places = _places(text, old)
        if places:
            break
    else:
        raise ToolFailure(f"old was not found in {path!r}; nothing was changed. {_hint(text, edit.old)}", effect="none")
    if old == new:
        raise ToolFailure("old and new are the same; nothing was changed", effect="none")
    if len(places) > 1 and not edit.every:
        lines = ", ".join(str(len(lines_of(f"{text[:at]}."))) for at in places[:PLACES_NAMED_MAX])
        times = f"{len(places)}" if len(places) <= PLACES_NAMED_MAX else f"more than {PLACES_NAMED_MAX}"
        raise ToolFailure(
            f"old occurs {times} times in {path!r} (on lines {lines}); nothing was changed. "
            "Give more of what stands around the right one, or every=true to replace each",
            effect="none",
        )
    return text.replace(old, new)


def _places(text: str, old: str) -> list[int]:
    """Where it begins first, each beginning counted: of "aa" in "aaa" nobody can say which is meant."""
    places: list[int] = []
    at = text.find(old)
    while at >= 0 and len(places) <= PLACES_NAMED_MAX:
        places.append(at)
        at = text.find(old, at + 1)
    return places


def _hint(text: str, old: str) -> str:
    """What the model probably meant: the same lines with other white space, or where its first line stands."""
    lines = lines_of(text)
    wanted = [line.split() for line in lines_of(old)]
    while len(wanted) > 1 and not wanted[-1]:
        wanted.pop()
    if len(lines) > LINES_SOUGHT_MAX or not any(wanted):
        return "Read the file again and copy the text exactly."
    found = [line.split() for line in lines]
    beginnings = (at for at in range(len(found) - len(wanted) + 1) if found[at] == wanted[0])
    for at in itertools.islice(beginnings, LINES_COMPARED_MAX // len(wanted)):
        if found[at : at + len(wanted)] == wanted:
            return f"The same words stand there with other white space:{_shown(lines, at, len(wanted))}"
    first = next(line for line in wanted if line)
    at = next((at for at, line in enumerate(found) if line == first), None)
    if at is None:
        return "Not even its first line stands there: read the file again and copy the text exactly."
    return f"Its first line stands there, with something else below it:{_shown(lines, at, len(wanted))}"


def _shown(lines: list[str], at: int, count: int) -> str:
    shown = [line.rstrip("\r\n")[:300] for line in lines[at : at + min(count, LINES_SHOWN_MAX)]]
    return clean(f" line {at + 1} on:\n" + "\n".join(shown))
