"""``interlock sessions | show | log | delete | prune | export``: what is in the journal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from ...errors import JournalCorrupt, ProtocolError, UsageError
from ...journal import Journal, SessionInfo
from ...machine import State, at_rest, fold, is_open
from ...messages import text_of
from ...records import Outcome, Row, RunEnded, RunStarted
from .jsonl import row_object, write_line
from .settings import Settings, seconds
from .store import info_of, named, nothing_yet, place_of, rows_of, with_journal
from .text import columns, console, counted, printable
from .transcript import Format, exported, record_line, shown

__all__ = ["delete", "export", "ids", "listing", "log", "prune", "show"]

_STYLES = {"running": "green", "waiting": "yellow", "stopped": "yellow", "idle": "", "abandoned": "yellow", "damaged": "bold red"}
_HINTS = {
    "waiting": "waiting: somebody must answer; interlock answer ID shows what is asked",
    "stopped": "stopped: its run is open, and nothing drives it; interlock resume ID goes on",
    "abandoned": "abandoned: its process died; interlock resume ID goes on, and --explain says how",
    "damaged": "damaged: it cannot be read or gone on with by this version; interlock doctor says more",
}
_LOOK_BACK = 8


def listing(settings: Settings, *, limit: int, as_json: bool) -> int:
    """The newest sessions, one line each."""

    async def read(journal: Journal) -> list[tuple[SessionInfo, str, str, str]]:
        return [(info, *await _standing(journal, info)) for info in (await journal.sessions())[:limit]]

    every = with_journal(settings, read, nothing=[])
    if as_json:
        for info, state, prompt, damage in every:
            write_line({**msgspec.to_builtins(info), "state": state, "prompt": prompt, **({"damage": damage} if damage else {})})
        return 0
    out, notes = console(), console(stderr=True)
    if not every:
        notes.print(f"no sessions yet in {place_of(settings)}", style="dim")
        return 0
    width = max(len(info.session_id) for info, *_ in every)
    for info, state, prompt, damage in every:
        line = f"{info.session_id:{width}}  {state:9}  {_ago(info.updated_at):>8}  {info.rows:>5} records  {damage or prompt}"
        out.print(columns(line, out.width if out.is_terminal else 400), style=_STYLES[state])
    for state in dict.fromkeys(state for _, state, *_ in every if state in _HINTS):
        notes.print(_HINTS[state], style=_STYLES["damaged"] if state == "damaged" else "dim")
    return 0


async def _standing(journal: Journal, info: SessionInfo) -> tuple[str, str, str]:
    """The session's state, its first prompt, and what is wrong with it if it is ``damaged``.

    The state is what the lease says; if nobody holds it, what the records say. Only of an open session are all of them read.
    """
    prompt = ""
    try:
        prompt = await _first_prompt(journal, info)
        last = [row.record for row in await journal.read(info.session_id, after=max(info.rows - _LOOK_BACK, 0))]
        ends = [isinstance(record, RunEnded) for record in last if isinstance(record, RunStarted | RunEnded)]
        if info.state != "idle" or (ends and ends[-1]):
            return info.state, prompt, ""
        state = fold(row.record for row in await journal.read(info.session_id))
    except (JournalCorrupt, ProtocolError) as error:  # the latter: rows that are whole, and cannot follow one another
        return "damaged", prompt, str(error)
    return _unheld(state), prompt, ""


def _unheld(state: State) -> str:
    """The state of a session that nobody holds, by its records."""
    if not is_open(state):
        return "idle"
    return "waiting" if at_rest(state) is Outcome.WAITING else "stopped"


async def _first_prompt(journal: Journal, info: SessionInfo) -> str:
    """The first prompt of a session, without reading all of it."""
    async with aclosing(journal.tail(info.session_id)) as rows:
        async for row in rows:
            if isinstance(row.record, RunStarted):
                return " ".join(text_of(row.record.prompt.content).split())
            if row.seq >= info.rows:
                break
    return ""


def show(settings: Settings, name: str | None, *, full: bool) -> int:
    """The transcript, readable."""
    info, rows = rows_of(settings, name)
    out = console()
    for text, style in shown(rows, full=full):
        out.print(printable(text), style=style)
    state = info.state
    if state == "idle":
        try:
            state = _unheld(fold(row.record for row in rows))
        except ProtocolError:  # rows that are whole, and cannot follow one another: what can be read was shown
            state = "damaged"
    console(stderr=True).print(f"session {info.session_id}: {state}, {info.rows} records", style="dim")
    return 0


def log(settings: Settings, name: str | None, *, follow: bool, as_json: bool) -> int:
    """The records, in order; with ``follow`` also those that are written from now on, until Ctrl-C."""
    out = console()
    width = out.width if out.is_terminal else 400

    def line(row: Row) -> None:
        if as_json:
            write_line(row_object(row))
        else:
            out.print(columns(record_line(row, width), width))
            sys.stdout.flush()

    if not follow:
        for row in rows_of(settings, name)[1]:
            line(row)
        return 0

    async def tail(journal: Journal) -> Literal[True]:
        info = await named(journal, name)
        async with aclosing(journal.tail(info.session_id)) as rows:
            async for row in rows:
                line(row)
        return True

    if not with_journal(settings, tail, nothing=False):
        nothing_yet(settings)
    return 0


def delete(settings: Settings, name: str, *, yes: bool) -> int:
    """Remove a session for good. Asks on a terminal. Raises UsageError where nobody can be asked, SessionBusy while it runs."""
    info = info_of(settings, name)
    if not yes and not _agreed(f"session {info.session_id}", f"({info.rows} records) "):
        return 1

    async def remove(journal: Journal) -> bool:
        return await journal.delete(info.session_id)

    with_journal(settings, remove, nothing=False)
    console(stderr=True).print(f"deleted {info.session_id}")
    return 0


def prune(settings: Settings, *, older_than: str, keep: Collection[str], dry_run: bool, yes: bool) -> int:
    """Remove the sessions that ended long ago. Lists them on stdout, and asks as ``delete`` does. Raises UsageError for what is no age,
    and for a session to keep that is not there: a typing error must not delete it."""
    try:
        if older_than.strip().replace(".", "").isdigit():  # "30" meant days more often than seconds, and this deletes
            raise ValueError(f"{older_than!r} has no unit: write 30d, 12h or 90s")
        older_than_s = seconds(older_than)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}") from error

    async def find(journal: Journal) -> tuple[list[SessionInfo], list[str]]:
        kept = [(await named(journal, name)).session_id for name in keep]
        return await journal.prune(older_than_s=older_than_s, keep=kept, dry_run=True), kept

    found, kept = with_journal(settings, find, nothing=([], list[str]()))
    out, notes = console(), console(stderr=True)
    width = max((len(info.session_id) for info in found), default=0)
    for info in found:
        out.print(f"{info.session_id:<{width}}  {_ago(info.updated_at):>8}  {info.rows:>5} records")
    if not found:
        notes.print(f"no session ended more than {older_than} ago", style="dim")
        return 0
    if dry_run:
        notes.print(f"{counted(len(found), 'session')} would be deleted", style="dim")
        return 0
    if not yes and not _agreed(counted(len(found), "session")):
        return 1

    async def remove(journal: Journal) -> list[SessionInfo]:
        only = {info.session_id for info in found}  # not one that has become old enough since it was asked about
        others = [info.session_id for info in await journal.sessions() if info.session_id not in only]
        return await journal.prune(older_than_s=older_than_s, keep=(*kept, *others))

    deleted = with_journal(settings, remove, nothing=[])
    notes.print(f"deleted {counted(len(deleted), 'session')}")
    return 0


def _agreed(what: str, more: str = "") -> bool:
    """Whether the person at the terminal wants it deleted. Raises UsageError where nobody is."""
    if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]  # it was closed
        raise UsageError(f"this deletes {what} for good, and nobody is there to ask; add --yes")
    sys.stderr.write(f"Delete {what} {more}for good? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    console(stderr=True).print("nothing was deleted")
    return False


def export(settings: Settings, name: str | None, *, form: Literal["json", "jsonl", "markdown"], output: Path | None) -> int:
    """The session as a document, to stdout or into a new file (mode 0600, for it holds the conversation)."""
    info, rows = rows_of(settings, name)
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


def _ago(at: float) -> str:
    passed = max(time.time() - at, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{passed / size:.0f} {unit}" if passed < 30 * 86400 else datetime.fromtimestamp(at, UTC).date().isoformat()
    return f"{passed:.0f} s"
