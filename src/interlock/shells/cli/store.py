"""Opening the journal to look at it: nothing is created, and a session may be named by the beginning of its id."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

from ...errors import UsageError
from ...journal import Journal, SessionInfo, SQLiteJournal, open_journal
from ...records import Row
from ..interrupts import run_interruptible
from .settings import Settings

__all__ = ["info_of", "named", "nothing_yet", "place_of", "rows_of", "with_journal"]

T = TypeVar("T")


def with_journal(settings: Settings, work: Callable[[Journal], Awaitable[T]], *, nothing: T) -> T:
    """What ``work`` makes of the opened journal; ``nothing`` if there is none yet. Raises JournalError, and what ``work`` raises."""
    journal = open_journal(settings.journal(create=False))

    async def main() -> T:
        async with _opened(journal):
            return await work(journal)

    if isinstance(journal, SQLiteJournal) and not os.path.exists(journal.path):
        return nothing
    return run_interruptible(main())


def place_of(settings: Settings) -> str:
    """Where the journal is, for a person."""
    journal = open_journal(settings.journal(create=False))
    return journal.path if isinstance(journal, SQLiteJournal) else "memory: nothing outlives a command"


async def named(journal: Journal, name: str | None) -> SessionInfo:
    """The session whose id is ``name`` or begins so; the newest for None. Raises UsageError if there is none, or several."""
    every = await journal.sessions()
    if not every:
        raise UsageError("there are no sessions yet; interlock run makes one")
    if name is None:
        return every[0]
    fitting = [info for info in every if info.session_id == name] or [info for info in every if info.session_id.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"several sessions begin with {name!r}: {', '.join(info.session_id for info in fitting[:5])}; give more of the id")
    raise UsageError(f"there is no session {name!r}; interlock sessions lists them")


def info_of(settings: Settings, name: str | None) -> SessionInfo:
    """What the journal says of that session. Raises as ``named`` does, and where there is no journal."""
    return with_journal(settings, lambda journal: named(journal, name), nothing=None) or nothing_yet(settings)


def rows_of(settings: Settings, name: str | None) -> tuple[SessionInfo, list[Row]]:
    """The same, and all of its records."""

    async def read(journal: Journal) -> tuple[SessionInfo, list[Row]]:
        info = await named(journal, name)
        return info, await journal.read(info.session_id)

    return with_journal(settings, read, nothing=None) or nothing_yet(settings)


def nothing_yet(settings: Settings) -> NoReturn:
    """Raises UsageError: there is no journal to look into."""
    raise UsageError(f"there are no sessions yet in {place_of(settings)}")


@asynccontextmanager
async def _opened(journal: Journal) -> AsyncGenerator[None]:
    await journal.open()
    try:
        yield
    finally:
        await journal.aclose()
