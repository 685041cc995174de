"""What the demo shows, and which guarantee caught what."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rich.text import Text

from ...events import (
    Event,
    ModelFinished,
    ModelStarted,
    RecoveryStarted,
    StreamRestarted,
    TextDelta,
    ToolCallDelta,
    ToolFinished,
    ToolStarted,
)
from ...messages import text_of
from ...messages.arguments import MalformedArguments, parse_arguments
from ...records import RunResult
from ..cli.text import console
from .world import Desk

__all__ = ["Show", "command_name"]

WIDTH = 110
# docs/guarantees.md says what each promises.
CAUGHT = {
    "dropped_tool_call": ("the model announced a call and sent none; it is asked for the call", "G05"),
    "empty_reply": ("the model said nothing; it is asked again", "G05"),
    "reasoning_only": ("the model only thought; it is asked again", "G05"),
    "malformed_tool_call": ("the model sent a call that cannot be read; it is told so", "G05"),
    "length": ("the answer was cut by a limit; it is continued", "G06"),
    "pause": ("the provider paused the turn; it is continued", "G06"),
    "model_failed": ("the request failed; it is sent again", "G13"),
}


class Show:
    """Prints to stdout. pause_s: after each step, so that a person can follow."""

    def __init__(self, *, pause_s: float) -> None:
        self._console = console()
        self._pause_s = pause_s
        self._text = ""
        self._wire_ids: dict[int, str] = {}
        self._warnings: list[tuple[str, str]] = []
        self._tally: Counter[tuple[str, str]] = Counter()

    def line(self, text: str = "", *, style: str = "") -> None:
        self._console.print(Text(text, style=style))

    @contextmanager
    def warnings(self) -> Generator[None]:
        """While it lasts, what the runtime logs as a warning, such as a veto, is kept, and shown where it belongs."""
        handler = _Warnings(self._warnings)
        logger = logging.getLogger("interlock")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            while self._warnings:
                self._warned()

    def desk(self, desk: Desk) -> None:
        """What lies on the desk before the work begins."""
        self.line(f"The desk: {desk.folder}")
        for path in sorted(desk.folder.rglob("*")):
            if path.is_file():
                self.line(f"  {path.relative_to(desk.folder)}", style="dim")
        self.line()

    async def event(self, event: Event) -> None:
        """Show one event of the run."""
        match event:
            case TextDelta(text):
                self._text += text
                return
            case ModelStarted():
                self._wire_ids = {}
                return
            case ToolCallDelta():
                self._wire_ids.setdefault(event.index, event.id)
                return
            case ModelFinished() if event.verdict != "retry":
                self._said()
                self._look_at_ids(event)
            case StreamRestarted():
                self._said(withdrawn=True)
                if event.reason == "cut":
                    self._caught("the stream died in the middle of a sentence; what was shown is withdrawn", "G06")
            case RecoveryStarted():
                self._said(withdrawn=event.code not in ("length", "pause"))
                what, guarantee = CAUGHT.get(event.code, (event.code, "G13"))
                detail = f" [{_short(event.detail)}]" if event.detail else ""
                self._caught(what, guarantee, f" ({event.count} of at most {event.bound}){detail}")
            case ToolStarted():
                self._said()
                self.line(f"  → {event.call.name} {_arguments(event.call.arguments)}", style="cyan")
            case ToolFinished():
                self._said()
                self._finished(event)
            case _:
                return
        await asyncio.sleep(self._pause_s)

    def ending(self, desk: Desk, result: RunResult, *, seed: int) -> None:
        """The answer, the report and the ledger as they lie on the disk, and what to type next."""
        self.line()
        self.line(f"{result.outcome.name}: {result.text}", style="bold green" if result.outcome.name == "COMPLETED" else "bold red")
        self.line()
        for path in (desk.report, desk.ledger):
            self.line(path.name, style="bold")
            self.line("".join(f"  {line}\n" for line in _lines(path)))
        if self._tally:
            self.line("Caught on the way", style="bold")
            for (guarantee, what), count in sorted(self._tally.items()):
                self.line(f"  {guarantee}  {what}{f' ({count} times)' if count > 1 else ''}")
            self.line()
        usage = result.usage
        self.line(f"session {result.session_id}: {usage.requests} requests, {usage.tool_calls} tool calls, journal {desk.journal}")
        self.line("Next:", style="bold")
        command = shlex.quote(command_name())
        url = shlex.quote(f"sqlite:///{quote(str(desk.journal))}")
        self.line(f"  {command} show {result.session_id} --journal {url}   (what was said)")
        self.line(f"  {command} log {result.session_id} --journal {url}   (every record)")
        self.line(f"  {command} demo --seed {seed + 1}   (other invoices, other faults)")
        self.line(f"  {command} demo --model auto   (the same job for a model of yours: a key or a local server)")
        self.line(f"  cd {shlex.quote(str(desk.folder))}")
        self.line(f'  {command} run --model auto "Which invoices are held, and why?"')

    def _warned(self, begins: str = "") -> None:
        """Show the oldest warning that begins so. What is logged is there before its event: it waits for it."""
        found = next((entry for entry in self._warnings if entry[1].startswith(begins)), None)
        if found is not None:
            self._warnings.remove(found)
            self.line(f"  {found[0]}: {found[1]}", style="dim")

    def _said(self, *, withdrawn: bool = False) -> None:
        if text := self._text.strip():
            self.line(f"  “{_short(text)}”" + (" (withdrawn)" if withdrawn else ""), style="dim italic")
        self._text = ""

    def _look_at_ids(self, event: ModelFinished) -> None:
        """An id that the model used twice: the same call again is one call, another call gets an id of its own."""
        wire = list(self._wire_ids.values())
        if len(set(wire)) == len(wire):
            return
        calls = event.message.tool_calls
        if len(calls) < len(wire):
            self._caught("the model sent the same call twice; it is one call", "G01")
        if {call.id for call in calls} - set(wire):
            self._caught("the model gave two calls one id; each has its own now", "G07")

    def _caught(self, what: str, guarantee: str, detail: str = "") -> None:
        self._tally[guarantee, what] += 1
        self.line(f"  ! caught by {guarantee}: {what}{detail}", style="yellow")

    def _finished(self, event: ToolFinished) -> None:
        name, content = event.call.name, _short(text_of(event.message.content))
        if event.code == "vetoed":
            self._warned(f"Middleware {event.decided_by} vetoed tool {name}:")
            self._caught(f"{event.decided_by} vetoed {name}; its handler never started", "G02", f" (effect: {event.effect})")
        elif not event.message.failed:
            self.line(f"  ✓ {name}: {content}", style="green")
        else:
            self.line(f"  ✗ {content}", style="red")
            if event.code == "cut_off":
                self._caught(f"half a {name}, cut off by a limit, did not run", "G06", f" (effect: {event.effect})")
            elif event.decided_by == "handler":
                self._caught(f"{name} raised; the model is told what it changed: {event.effect}", "G04")


class _Warnings(logging.Handler):
    def __init__(self, kept: list[tuple[str, str]]) -> None:
        super().__init__(logging.WARNING)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append((f"{record.levelname} {record.name}", record.getMessage()))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else ["(none)"]


def command_name() -> str:
    """What to type for this program, from any directory."""
    path = Path(sys.argv[0])
    return "interlock" if path.name != "interlock" or shutil.which("interlock") else str(path.absolute())


def _arguments(raw: str) -> str:
    try:
        return _short(" ".join(f"{name}={part!r}" for name, part in parse_arguments(raw).items()))
    except MalformedArguments:
        return _short(raw)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."
