"""What a person sees of a run: the text on stdout, everything else on stderr."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from rich.text import Text

from ...events import (
    Event,
    ModelFinished,
    RecoveryStarted,
    RunFinished,
    SteeringLanded,
    StreamRestarted,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    ToolSuspended,
)
from ...messages import text_of
from ...records import Outcome, RunResult
from .asking import question_lines
from .markdown import MarkdownStream
from .text import console, one_line, outcome_words, printable, visible

__all__ = ["Display"]

WIDTH_MAX = 160


class Display:
    """Shows the events of one run.

    On a terminal text appears as it is written, its Markdown formatted unless ``markdown`` is False or the terminal is a
    dumb one. A pipe gets the answer alone, at the end, because text that was shown and then withdrawn cannot be taken back
    there; text that is no answer goes to stderr.
    """

    def __init__(self, *, markdown: bool = True) -> None:
        self._live = sys.stdout.isatty()
        self._console = console(stderr=True)
        dumb = os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
        self._markdown = MarkdownStream(console()) if self._live and markdown and not dumb else None
        self._mid_line = False
        self._notices: logging.Handler | None = None
        self._began: dict[str, float] = {}
        self._asked: set[str] = set()
        # Cut to the line only where somebody looks at lines.
        self._width = min(self._console.width, WIDTH_MAX) if self._console.is_terminal else WIDTH_MAX

    def event(self, event: Event) -> None:
        """Show one event. Raises BrokenPipeError when nobody reads stdout any more."""
        match event:
            case TextDelta(text):
                self._text(printable(text))
            case ModelFinished() if event.verdict != "retry":
                self._end_text()
            case ToolStarted():
                self._began[event.key] = time.monotonic()
                given = event.call.arguments if event.edited is None else f"(edited) {event.edited}"
                self._tool("→", event.call.name, visible(" ".join(given.split())), style="cyan")
            case ToolFinished():
                self._finished(event)
            case ToolProgress():
                self._tool(" ", "", _progress(event.data), style="dim")
            case ToolSuspended():
                for line, style in question_lines(event.call.name, event.question):
                    self.notice(line, style=style)
                self.asked(event.question_id)
            case StreamRestarted():
                self._withdrawn(event.reason)
            case RecoveryStarted():
                detail = f": {event.detail}" if event.detail else ""
                self._tool("~", f"recovering from {event.code} ({event.count} of {event.bound}){detail}", "", style="yellow")
            case SteeringLanded():
                self._tool(">", "", event.text, style="dim")
            case RunFinished():
                self._result(event.result)
            case _:
                pass

    def notice(self, text: str, *, style: str = "") -> None:
        """A line on stderr, on a line of its own."""
        if self._markdown is not None:
            self._markdown.pause()
        if self._mid_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._mid_line = False
        self._console.print(Text(printable(text), style=style))

    def show_warnings(self) -> None:
        """Show what the runtime logs as a warning, such as a veto, among the notices."""
        self._notices = _Notices(self)
        logging.getLogger("interlock").addHandler(self._notices)

    def asked(self, question_id: str) -> None:
        """The question was shown: what is said of it later is short."""
        self._asked.add(question_id)

    def close(self) -> None:
        """Leave the terminal and the logger in order, whatever happened."""
        if self._notices is not None:
            logging.getLogger("interlock").removeHandler(self._notices)
        if self._markdown is not None:
            self._markdown.pause()

    def _tool(self, sign: str, name: str, rest: str, *, style: str) -> None:
        self.notice(f"{sign} {one_line(f'{name} {rest}', width=self._width - 2)}", style=style)

    def _text(self, text: str) -> None:
        if self._markdown is not None:
            self._markdown.write(text)
        elif self._live and text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._mid_line = not text.endswith("\n")

    def _end_text(self) -> None:
        if self._markdown is not None:
            self._markdown.end()

    def _withdrawn(self, reason: str) -> None:
        if self._live:
            if self._markdown is not None:
                self._markdown.end()  # what was seen stays to be seen, marked by the next line
            self.notice(f"~ the text above is withdrawn ({reason})", style="yellow")

    def _finished(self, event: ToolFinished) -> None:
        began = self._began.pop(event.key, None)
        took = f"{time.monotonic() - began:.2f} s " if began is not None else ""
        line = took + text_of(event.message.content)
        if event.message.failed:
            self._tool("✗", event.call.name, line, style="red")
        else:
            self._tool("✓", event.call.name, line, style="green")

    def _result(self, result: RunResult) -> None:
        if result.outcome is Outcome.COMPLETED:
            if self._markdown is not None:
                self._markdown.end()
                return
            if not self._live:
                sys.stdout.write(printable(result.text))
            sys.stdout.write("" if result.text.endswith("\n") else "\n")
            sys.stdout.flush()
            self._mid_line = False
            return
        self._end_text()
        self.notice(f"{outcome_words(result.outcome.value, result.reason)}: there is no answer", style="bold red")
        for question in result.questions:
            lines = list(question_lines(question.call.name, question.text, by=question.asked_by))
            for line, style in lines[:1] if question.id in self._asked else lines:
                self.notice(line, style=style)
        if result.text and not self._live:
            self.notice(result.text)


def _progress(data: Any) -> str:
    """How it goes: of a command that runs, the last line that it has printed; of anything else, what its tool reports."""
    match data:
        case {"seconds": float() | int() as seconds, "newest": str(newest)} if newest.strip():
            return f"{seconds:.0f} s  {newest.strip().splitlines()[-1]}"
        case _:
            return str(data)


class _Notices(logging.Handler):
    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        # A veto says what the call was about: a person must see all of it.
        self._display.notice("! " + "\n".join(map(visible, record.getMessage().splitlines())), style="yellow")
