"""Text for a terminal: nothing in it is obeyed, and lines are shortened by what they take up on the screen."""

from __future__ import annotations

import re
import sys
from typing import NoReturn, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from ...messages import clean

__all__ = ["columns", "console", "counted", "one_line", "outcome_words", "printable", "visible"]

# Control characters, C1 ones too: a model's text must not move the cursor or rename the window.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """``text`` with everything that a terminal would obey, other than line breaks and tabs, made visible."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", clean(text).replace("\r\n", "\n"))


def visible(text: str) -> str:
    """``text`` on one line, with everything that cannot be seen or that changes how the rest is seen (control characters, line breaks,
    what turns the direction of writing, what has no width) written as an escape: for what a person decides about."""
    return "".join(character if character.isprintable() else _escape(character) for character in clean(text))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_line(text: str, *, width: int) -> str:
    """``text`` on one line of at most ``width`` cells: a wide character takes two."""
    return columns(" ".join(printable(text).split()), width)


def columns(text: str, width: int) -> str:
    """``text`` on one line of at most ``width`` cells, its own spaces kept."""
    line = printable(text).replace("\n", " ")
    return line if cell_len(line) <= width else set_cell_size(line, max(width - 3, 1)).rstrip() + "..."


def counted(number: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def outcome_words(outcome: str, reason: str) -> str:
    """``limit (requests)``; ``cancelled``, where the reason says no more than the outcome."""
    return outcome if outcome == reason else f"{outcome} ({reason})"


def console(*, stderr: bool = False) -> Console:
    """A console that shows what it is given, without a markup of its own. Obeys NO_COLOR, TERM and COLUMNS."""
    file: TextIO = sys.stderr if stderr else sys.stdout
    return _Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        # rich would exit with 1; ``guarded`` has a code for a reader that has left.
        raise BrokenPipeError
