"""What the journal checks stand on: a store with several writers, a clock moved by hand, and a few words."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from ..errors import CommandRefused, JournalError
from ..journal import Journal, SessionLog
from ..records import ExtensionNoted, Record, Row

WAIT_S = 20.0
"""How long a check waits for a row that must come; far beyond what a slow machine needs."""


class Clock:
    """Seconds since 1970, moved by hand."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


Factory = Callable[[str, Clock], Journal]
"""Makes a journal that is not open yet. Two of the same place share a store; another place is another store."""

Check = Callable[["Bench"], Awaitable[None]]


class Bench:
    """One store for one check, and as many writers of it as the check needs. place: where ``make`` puts it."""

    def __init__(self, make: Factory, place: str = "check") -> None:
        self._make = make
        self._place = place
        self.clock = Clock()

    @asynccontextmanager
    async def journal(self) -> AsyncGenerator[Journal, None]:
        """One more writer, opened, and closed at the end."""
        journal = self._make(self._place, self.clock)
        await journal.open()
        try:
            yield journal
        finally:
            await journal.aclose()


class Checks(dict[str, Check]):
    """Checks by their names, each of which is the sentence that it proves."""

    def add(self, check: Check) -> Check:
        self[check.__name__] = check
        return check


def note(data: Any = None) -> Record:
    return ExtensionNoted(extension="kit", version=1, data=data)


def append(log: SessionLog, *data: Any) -> int:
    for item in data:
        log.append(note(item), at=1.5)
    return log.seq


def data(rows: list[Row]) -> list[Any]:
    assert [row.seq for row in rows] == list(range(rows[0].seq, rows[0].seq + len(rows))) if rows else True, "the seqs have a gap"
    return [row.record.data for row in rows if isinstance(row.record, ExtensionNoted)]


async def fails(attempt: Awaitable[object], *kinds: type[Exception]) -> Exception:
    try:
        await attempt
    except kinds as error:
        return error
    raise AssertionError(f"{' or '.join(kind.__name__ for kind in kinds)} was not raised")


def refuses(log: SessionLog) -> None:
    try:
        log.append(note(), at=1.5)
    except (JournalError, CommandRefused):
        return
    raise AssertionError("a poisoned log still takes rows")
