"""``interlock replay``: whether a session's records follow from one another."""

from __future__ import annotations

from ...driver.rederive import rederive
from ...driver.replay import Replay
from ...errors import Diverged
from ...journal import Journal
from .jsonl import write_line
from .settings import Settings
from .store import named, nothing_yet, with_journal
from .text import console, counted, printable

__all__ = ["DIVERGED", "replay"]

DIVERGED = 1


def replay(settings: Settings, name: str | None, *, as_json: bool) -> int:
    """Say that nothing differs, or what differs first."""

    async def work(journal: Journal) -> tuple[str, Replay | Diverged]:
        info = await named(journal, name)
        try:
            return info.session_id, rederive(info.session_id, await journal.read(info.session_id))
        except Diverged as error:
            return info.session_id, error

    session, found = with_journal(settings, work, nothing=None) or nothing_yet(settings)
    if isinstance(found, Diverged):
        if as_json:
            write_line({"session": session, "same": False, "seq": found.seq, "expected": found.expected, "found": found.found})
        else:
            console(stderr=True).print(printable(f"it differs: {found}"), style="bold red")
        return DIVERGED
    outcomes = [result.outcome.value for result in found.results]
    if as_json:
        write_line({"session": session, "same": True, "records": found.rows, "runs": outcomes, "open": found.open})
        return 0
    ended = f"{counted(len(outcomes), 'run')} ended ({', '.join(outcomes)})" if outcomes else "no run ended"
    rest = ", one is open" if found.open else ""
    print(f"{session}: nothing differs in {found.rows} records; {ended}{rest}. No request was made, and no tool was called.")
    return 0
