"""``interlock fork``: a new session from the beginning of another one."""

from __future__ import annotations

import time
import uuid

from ...agent.config import check_id
from ...driver.fork import Turn, fork_session, turns_of
from ...journal import Journal
from ...machine import fold, is_open
from .settings import Settings
from .store import named, nothing_yet, with_journal
from .text import columns, console

__all__ = ["fork", "places"]

_SAID = {"prompt": "the prompt, before any request", "results": "the results of", "end": "the run ended"}


def fork(settings: Settings, name: str | None, *, at_seq: int | None, new: str | None) -> int:
    """Fork, and print the new id; what it means, and what can be done next, goes to stderr."""
    new_id = check_id(new, "--as") if new is not None else f"fork-{uuid.uuid4().hex[:12]}"

    async def work(journal: Journal) -> tuple[str, int, bool]:
        info = await named(journal, name)
        made = await fork_session(journal, info.session_id, at_seq=at_seq, new_session_id=new_id, clock=time.time)
        rows = await journal.read(new_id)
        return info.session_id, made.seq, is_open(fold(row.record for row in rows))

    source, seq, run_is_open = with_journal(settings, work, nothing=None) or nothing_yet(settings)
    notes = console(stderr=True)
    notes.print(f"forked {source} at record {seq}. What {source} did is not undone: whatever it sent, paid or wrote stays so.")
    if run_is_open:
        notes.print("Its run is open there; the next prompt ends it.", style="dim")
    print(new_id)
    for command in (f"interlock show {new_id}", f'interlock run --session {new_id} "..."'):
        notes.print(f"  {command}", style="dim")
    return 0


def places(settings: Settings, name: str | None) -> int:
    """The places where a fork is sensible, one line each."""

    async def read(journal: Journal) -> list[Turn]:
        info = await named(journal, name)
        return turns_of(await journal.read(info.session_id))

    turns = with_journal(settings, read, nothing=None)
    if turns is None:
        nothing_yet(settings)
    out = console()
    for turn in turns:
        line = f"{turn.seq:>5}  {_SAID[turn.what]}: {' '.join(turn.text.split())}"
        out.print(columns(line, out.width if out.is_terminal else 400))
    return 0
