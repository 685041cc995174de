"""Every store keeps the port's promises: the public kit, run on ours."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.journal import Journal
from interlock.journal.memory import MemoryJournal, MemoryStore
from interlock.journal.sqlite import SQLiteJournal
from interlock.testing.journal_kit import JOURNAL_CHECKS, Bench, Clock, Factory, check_journal


def memory(_: Path) -> Factory:
    stores: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)
    return lambda place, clock: MemoryJournal(stores[place], clock=clock)


def sqlite(directory: Path) -> Factory:
    return lambda place, clock: SQLiteJournal(directory / f"{place}.db", clock=clock, poll_s=0.005)


def sqlite_power(directory: Path) -> Factory:
    return lambda place, clock: SQLiteJournal(directory / f"{place}.db", clock=clock, poll_s=0.005, durability="power")


@pytest.mark.parametrize("name", JOURNAL_CHECKS)
@pytest.mark.parametrize("store", [memory, sqlite, sqlite_power])
def test_the_stores_keep_the_promises_of_the_port(store: Callable[[Path], Factory], name: str, tmp_path: Path) -> None:
    async def check() -> None:
        await JOURNAL_CHECKS[name](Bench(store(tmp_path)))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(check())


class Forgetful(MemoryJournal):
    """Loses what is buffered when it is closed."""

    async def aclose(self) -> None:
        self.dirty.clear()
        await super().aclose()


def test_the_kit_notices_a_store_that_breaks_a_promise() -> None:
    stores: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)

    def make(place: str, clock: Clock) -> Journal:
        return Forgetful(stores[place], clock=clock)

    with pytest.raises(AssertionError) as caught:
        check_journal(make)
    assert caught.value.__notes__ == ["journal check: aclose_stores_what_is_buffered_and_may_be_repeated"]
