"""``interlock sessions | show | log | delete | export``: what is in the journal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from ...errors import UsageError
from ...journal import Journal, SessionInfo
from ...machine import at_rest, fold, is_open
from ...messages import text_of
from ...records import Outcome, Row, RunEnded, RunStarted
from .jsonl import row_object, write_line
from .settings import Settings
from .store import named, place_of, with_journal
from .text import columns, console, printable
from .transcript import Format, exported, record_line, shown

__all__ = ["delete", "export", "ids", "listing", "log", "show"]

_STYLES = {"running": "green", "waiting": "yellow", "stopped": "yellow", "idle": "", "abandoned": "yellow"}
_HINTS = {
    "waiting": "waiting: somebody must answer; interlock answer ID shows what is asked",
    "stopped": "stopped: its run is open, and nothing drives it; interlock resume ID goes on",
    "abandoned": "abandoned: its process died; interlock resume ID goes on, and --explain says how",
}
_LOOK_BACK = 8


def listing(settings: Settings, *, limit: int, as_json: bool) -> int:
    """The newest sessions, one line each."""

    async def read(journal: Journal) -> list[tuple[SessionInfo, str, str]]:
        newest = (await journal.sessions())[:limit]
        return [(info, await _standing(journal, info), await _first_prompt(journal, info)) for info in newest]

    every = with_journal(settings, read, nothing=[])
    if as_json:
        for info, state, prompt in every:
            write_line({**msgspec.to_builtins(info), "state": state, "prompt": prompt})
        return 0
    out, notes = console(), console(stderr=True)
    if not every:
        notes.print(f"no sessions yet in {place_of(settings)}", style="dim")
        return 0
    width = max(len(info.session_id) for info, *_ in every)
    for info, state, prompt in every:
        line = f"{info.session_id:{width}}  {state:9}  {_ago(info.updated_at):>8}  {info.rows:>5} records  {prompt}"
        out.print(columns(line, out.width if out.is_terminal else 400), style=_STYLES[state])
    for state in dict.fromkeys(state for _, state, _ in every if state in _HINTS):
        notes.print(_HINTS[state], style="dim")
    return 0


async def _standing(journal: Journal, info: SessionInfo) -> str:
    """What the lease says of the session; if nobody holds it, what its records say."""
    if info.state != "idle":
        return info.state
    last = [row.record for row in await journal.read(info.session_id, after=max(info.rows - _LOOK_BACK, 0))]
    ends = [isinstance(record, RunEnded) for record in last if isinstance(record, RunStarted | RunEnded)]
    if ends and ends[-1]:
        return "idle"
    state = fold(row.record for row in await journal.read(info.session_id))
    if not is_open(state):
        return "idle"
    return "waiting" if at_rest(state) is Outcome.WAITING else "stopped"


def show(settings: Settings, name: str | None, *, full: bool) -> int:
    """The transcript, readable."""
    info, rows = _read(settings, name)
    out = console()
    for text, style in shown(rows, full=full):
        out.print(printable(text), style=style)
    console(stderr=True).print(f"session {info.session_id}: {info.state}, {info.rows} records", style="dim")
    return 0


def log(settings: Settings, name: str | None, *, follow: bool, as_json: bool) -> int:
    """The records, in order; with ``follow`` also those that are written from now on, until Ctrl-C."""
    out = console()
    width = out.width if out.is_terminal else 400

    def line(row: Row) -> None:
        if as_json:
            write_line(row_object(row))
        else:
            out.print(columns(record_line(row), width))
            sys.stdout.flush()

    if not follow:
        for row in _read(settings, name)[1]:
            line(row)
        return 0

    async def tail(journal: Journal) -> Literal[True]:
        info = await named(journal, name)
        async with aclosing(journal.tail(info.session_id)) as rows:
            async for row in rows:
                line(row)
        return True

    if not with_journal(settings, tail, nothing=False):
        _nothing(settings)
    return 0


def delete(settings: Settings, name: str, *, yes: bool) -> int:
    """Remove a session for good. Asks on a terminal. Raises UsageError where nobody can be asked, SessionBusy while it runs."""
    info, _ = _read(settings, name, rows=False)
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]  # it was closed
            raise UsageError(f"this deletes session {info.session_id} for good, and nobody is there to ask; add --yes")
        sys.stderr.write(f"Delete session {info.session_id} ({info.rows} records) for good? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            console(stderr=True).print("nothing was deleted")
            return 1

    async def remove(journal: Journal) -> bool:
        return await journal.delete(info.session_id)

    with_journal(settings, remove, nothing=False)
    console(stderr=True).print(f"deleted {info.session_id}")
    return 0


def export(settings: Settings, name: str | None, *, form: Literal["json", "jsonl", "markdown"], output: Path | None) -> int:
    """The session as a document, to stdout or into a new file (mode 0600, for it holds the conversation)."""
    info, rows = _read(settings, name)
    text = exported(info, rows, form=Format(form))
    if output is None:
        sys.stdout.write(text)
        return 0
    try:
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{output} exists; name a new file") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from error
    console(stderr=True).print(f"wrote {printable(str(output))}")
    return 0


def ids(settings: Settings) -> Iterable[str]:
    """Every session's id, newest first, for shell completion."""

    async def read(journal: Journal) -> list[str]:
        return [info.session_id for info in await journal.sessions()]

    return with_journal(settings, read, nothing=[])


def _read(settings: Settings, name: str | None, *, rows: bool = True) -> tuple[SessionInfo, list[Row]]:
    async def read(journal: Journal) -> tuple[SessionInfo, list[Row]]:
        info = await named(journal, name)
        return info, await journal.read(info.session_id) if rows else []

    return with_journal(settings, read, nothing=None) or _nothing(settings)


def _nothing(settings: Settings) -> NoReturn:
    raise UsageError(f"there are no sessions yet in {place_of(settings)}")


async def _first_prompt(journal: Journal, info: SessionInfo) -> str:
    """The first prompt of a session, without reading all of it."""
    async with aclosing(journal.tail(info.session_id)) as rows:
        async for row in rows:
            if isinstance(row.record, RunStarted):
                return " ".join(text_of(row.record.prompt.content).split())
            if row.seq >= info.rows:
                break
    return ""


def _ago(at: float) -> str:
    passed = max(time.time() - at, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{passed / size:.0f} {unit}" if passed < 30 * 86400 else datetime.fromtimestamp(at, UTC).date().isoformat()
    return f"{passed:.0f} s"
