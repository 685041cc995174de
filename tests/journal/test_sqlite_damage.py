"""A damaged journal is read as far as it is whole, and what is not is named, never skipped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interlock.errors import JournalCorrupt
from interlock.journal.sqlite import SQLiteJournal
from interlock.journal.sqlite_store import CHUNK_ROWS
from journal.journal_help import append, data_of, fill, raw

DAMAGE = {
    "a torn body": ("UPDATE log SET body = substr(body, 1, length(body) - 1) WHERE seq = 2", "seq 2: the row is not a record"),
    "an empty body": ("UPDATE log SET body = x'' WHERE seq = 2", "seq 2: the row is not a record"),
    "a body padded with NUL": ("UPDATE log SET body = CAST(body || char(0) AS BLOB) WHERE seq = 2", "seq 2: the row is not a record"),
    "a body of text": ("UPDATE log SET body = CAST(body AS TEXT) WHERE seq = 2", "seq 2: .* other types"),
    "bytes that are no UTF-8": (
        "UPDATE log SET body = CAST(replace(body, 'bb', CAST(x'ff' AS TEXT)) AS BLOB) WHERE seq = 2",
        "seq 2: the row is not a record",
    ),
    "another record type": ("UPDATE log SET body = replace(body, 'Extension', 'Expansion') WHERE seq = 2", "seq 2: .* other types"),
    "a newer record": ("UPDATE log SET v = 99 WHERE seq = 2", "seq 2: written by a newer version"),
    "a version that is no number": ("UPDATE log SET v = 'x' WHERE seq = 2", "seq 2: .* other types"),
    "a missing row": ("DELETE FROM log WHERE seq = 2", "seq 2: the row is missing"),
    "a missing first row": ("DELETE FROM log WHERE seq = 1", "seq 1: the row is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_row_is_named_and_never_skipped(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "agent.db"
    statement, message = DAMAGE[damage]

    async def check() -> None:
        await fill(path, "aa", "bb", "cc")
        with raw(path) as other:
            assert other.execute(statement).rowcount == 1
        journal = SQLiteJournal(path)
        for attempt in (journal.read("s"), journal.session("s").claim(lease_s=15), anext(journal.tail("s"))):
            with pytest.raises(JournalCorrupt, match=f"session 's', {message}"):
                await attempt
        if "first" not in damage:
            assert data_of(await journal.read("s", after=2)) == ["cc"]
        await journal.aclose()

    asyncio.run(check())


def test_a_gap_beyond_the_first_chunk_is_found(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        await fill(path, *range(CHUNK_ROWS * 2))
        with raw(path) as other:
            other.execute("DELETE FROM log WHERE seq = ?", (CHUNK_ROWS + 1,))
        journal = SQLiteJournal(path)
        with pytest.raises(JournalCorrupt, match=f"seq {CHUNK_ROWS + 1}"):
            await journal.read("s")
        await journal.aclose()

    asyncio.run(check())


def test_damaged_pages_are_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        await fill(path, *("x" * 500 for _ in range(200)))
        content = bytearray(path.read_bytes())
        middle = len(content) // 2 // 4096 * 4096
        content[middle : middle + 8 * 4096] = b"\xa5" * (8 * 4096)
        path.write_bytes(content)
        journal = SQLiteJournal(path)
        with pytest.raises(JournalCorrupt, match=r"agent\.db.*damaged"):
            await journal.read("s")
        await journal.aclose()

    asyncio.run(check())


def test_a_log_that_was_cut_anywhere_keeps_its_whole_rows_and_takes_new_ones(tmp_path: Path) -> None:
    """What a power cut may leave: the end of the write-ahead log is missing, in the middle of a page or of a frame's header."""

    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        for n in range(8):
            append(log, n)
            await log.durable()
        wal = (tmp_path / "agent.db-wal").read_bytes()
        database = (tmp_path / "agent.db").read_bytes()
        await journal.aclose()
        lengths: set[int] = set()
        for number, cut in enumerate(range(0, len(wal) + 1, 4127)):
            path = tmp_path / f"cut-{number}.db"
            path.write_bytes(database)
            path.with_name(f"{path.name}-wal").write_bytes(wal[:cut])
            reopened = SQLiteJournal(path)
            log = reopened.session("s")
            whole = data_of(await log.claim(lease_s=15))
            assert whole == list(range(len(whole)))
            lengths.add(len(whole))
            append(log, "new")
            await log.release()
            await reopened.aclose()
            again = SQLiteJournal(path)
            assert data_of(await again.read("s")) == [*whole, "new"]
            await again.aclose()
        assert len(lengths) > 5

    asyncio.run(check())
