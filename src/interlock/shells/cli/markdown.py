"""Markdown on a terminal, while it is being written: finished blocks stay, the one in progress is drawn anew until it is finished."""

from __future__ import annotations

import asyncio
import re
import time
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment

__all__ = ["MarkdownStream"]

# A drawing costs about a millisecond per screen; a person sees no difference beyond this.
FRAMES_PER_SECOND = 12
_FENCE = re.compile(r"^ {0,3}(```+|~~~+)", re.MULTILINE)


class MarkdownStream:
    """Takes text in fragments. Only the block in progress is redrawn, so the screen's history holds every finished one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""
        self._live: Live | None = None
        self._drawn_at = 0.0
        self._gap = False
        self._timer: asyncio.TimerHandle | None = None

    def write(self, text: str) -> None:
        """Show one more fragment."""
        self._text += text
        cut = _finished(self._text)
        if cut:
            done, self._text = self._text[:cut], self._text[cut:]
            self.pause()
            self._part_from_last()
            self._console.print(_Lines(done), soft_wrap=False)
            self._gap = True
        if self._text.strip() and self._timer is None:
            wait_s = self._drawn_at + 1 / FRAMES_PER_SECOND - time.monotonic()
            if wait_s <= 0:
                self._draw()
            else:  # what has come is seen even if nothing follows
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._draw)

    def end(self) -> None:
        """The text is whole: show what is left of it for good."""
        self.pause()
        if self._text.strip():
            self._part_from_last()
            self._console.print(_Lines(self._text), soft_wrap=False)
        self._text, self._gap = "", False

    def pause(self) -> None:
        """Leave the terminal as other output needs it: cursor shown, at the beginning of a line."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        self._timer = None
        self._drawn_at = time.monotonic()
        if self._live is None:
            self._part_from_last()
            # Without its thread: a frame is drawn when a fragment has come.
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        self._live.update(_Lines(self._text, live=True), refresh=True)

    def _part_from_last(self) -> None:
        """A blank line between two blocks, once the second one is there."""
        if self._gap:
            self._console.print()
            self._gap = False


class _LeftHeading(Heading):
    """A heading that stands where it is looked for."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}


class _Lines:
    """Markdown without blank lines around it.

    live: only what fits on the screen, for a block may be higher, and the cursor stays in its last line.
    """

    def __init__(self, text: str, *, live: bool = False) -> None:
        self._text = text
        self._live = live

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(_Markdown(self._text, hyperlinks=False), options.update(height=None), pad=False)
        while lines and not _shows(lines[-1]):
            lines.pop()
        begin = next((place for place, line in enumerate(lines) if _shows(line)), 0)
        begin = max(begin, len(lines) - max(console.height - 2, 1) if self._live else 0)
        for place, line in enumerate(lines[begin:]):
            if place:
                yield Segment.line()
            yield from line
        if not self._live:  # Live counts on the cursor being in the last line
            yield Segment.line()


def _shows(line: list[Segment]) -> bool:
    return any(segment.text.strip() for segment in line)


def _finished(text: str) -> int:
    """How much of ``text`` is whole blocks: up to its last blank line that is not inside a code fence."""
    cut = text.rfind("\n\n")
    while cut > 0:
        if len(_FENCE.findall(text, 0, cut + 1)) % 2 == 0:
            return cut + 2
        cut = text.rfind("\n\n", 0, cut)
    return 0
