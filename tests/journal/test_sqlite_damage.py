"""A damaged journal is read as far as it is whole, and what is not is named, never skipped."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from interlock.errors import JournalCorrupt, JournalError
from interlock.journal.health import PROBLEMS_MAX, health
from interlock.journal.sqlite import SQLiteJournal
from interlock.journal.sqlite_rows import CHUNK_ROWS
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
    "a changed text": (
        "UPDATE log SET body = CAST(replace(CAST(body AS TEXT), 'bb', 'cc') AS BLOB) WHERE seq = 2",
        "seq 2: the row was changed after it was written",
    ),
    "a changed time": ("UPDATE log SET at = at + 1 WHERE seq = 2", "seq 2: the row was changed after it was written"),
    "a changed checksum": ("UPDATE log SET crc = crc + 1 WHERE seq = 2", "seq 2: the row was changed after it was written"),
    "a checksum that is no number": ("UPDATE log SET crc = 'x' WHERE seq = 2", "seq 2: the row was changed after it was written"),
    "the row of another place": (
        "UPDATE log SET (body, crc) = (SELECT body, crc FROM log WHERE seq = 3) WHERE seq = 2",
        "seq 2: the row was changed after it was written",
    ),
    "two rows in another order": (
        "UPDATE log SET (body, crc) = (SELECT body, crc FROM log AS other WHERE other.seq = 4 - log.seq) WHERE seq IN (1, 3)",
        "seq 1: the row was changed after it was written",
    ),
    "a row that was moved": ("UPDATE log SET seq = 4 WHERE seq = 2", "seq 2: the row is missing"),
    "a version that never was": ("UPDATE log SET v = 0 WHERE seq = 2", "seq 2: no version of Interlock wrote schema 0"),
    "a body of NUL bytes": ("UPDATE log SET body = zeroblob(length(body)) WHERE seq = 2", "seq 2: the row is not a record"),
    "a missing first row": ("DELETE FROM log WHERE seq = 1", "seq 1: the row is missing"),
    "a missing last row": ("DELETE FROM log WHERE seq = 3", "seq 3: the row is missing"),
    "a row that leads past the one before it": ("UPDATE log SET before = 1 WHERE seq = 3", "seq 2: the row is missing"),
    "a row that leads to itself": ("UPDATE log SET before = id WHERE seq = 3", "seq 2: the row is missing"),
    "an entry of more rows": ("UPDATE sessions SET rows = 4", "seq 4: the row is missing"),
    "an entry of fewer rows": ("UPDATE sessions SET rows = 2", "seq 2: the row is missing"),
    "an entry that leads to another row": ("UPDATE sessions SET last = 2", "seq 3: the row is missing"),
    "an entry that is no number": ("UPDATE sessions SET rows = 'x'", "its entry in the table of sessions is damaged"),
    "an entry of no rows": ("UPDATE sessions SET rows = 0", "its entry in the table of sessions is damaged"),
    "an entry of less than no rows": ("UPDATE sessions SET rows = -1", "its entry in the table of sessions is damaged"),
    "an entry that leads nowhere": ("UPDATE sessions SET last = 0", "its entry in the table of sessions is damaged"),
    "a lease until no time": ("UPDATE sessions SET owner = 'x', until = 'x'", "its entry in the table of sessions is damaged"),
    "an owner that is no text": ("UPDATE sessions SET owner = x'00'", "its entry in the table of sessions is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_row_is_named_and_never_skipped(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "agent.db"
    statement, message = DAMAGE[damage]

    async def check() -> None:
        await fill(path, "aa", "bb", "cc")
        with raw(path) as other:
            assert other.execute(statement).rowcount >= 1
        journal = SQLiteJournal(path)
        for attempt in (journal.read("s"), journal.session("s").claim(lease_s=15), anext(journal.tail("s"))):
            with pytest.raises(JournalCorrupt, match=f"session 's'[,:] {message}"):
                await attempt
        if "seq = 2" in statement and damage != "a row that was moved":
            assert data_of(await journal.read("s", after=2)) == ["cc"]
        await journal.aclose()

    asyncio.run(check())
    told = [finding.what for finding in health(str(path)) if finding.state == "broken"]
    assert len(told) == 1
    assert re.search(f"session 's'[,:] {message}", told[0])


ENTRIES = {
    "rows = 0": True,
    "rows = -1": True,
    "rows = 'x'": True,
    "last = 0": True,
    "last = 'x'": True,
    "created_at = 'x', last = 7": True,
    "owner = 'x', until = 'x'": False,
    "owner = x'00'": False,
}
"""What is done to a session's entry, and whether it can be deleted then: not if nobody can tell whether it is held."""


@pytest.mark.parametrize("change", ENTRIES)
def test_a_damaged_entry_is_listed_kept_by_prune_and_no_harm_to_the_others(tmp_path: Path, change: str) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        await fill(path, "aa", "bb", "cc")
        await fill(path, "dd", session="other")
        with raw(path) as other:
            other.execute(f"UPDATE sessions SET {change} WHERE name = 's'")
        journal = SQLiteJournal(path)
        listed = {info.session_id: info for info in await journal.sessions()}
        assert set(listed) == {"s", "other"}
        assert [type(value) for value in (listed["s"].rows, listed["s"].updated_at, listed["s"].owner)] == [int, float, str]
        assert [info.session_id for info in await journal.prune(older_than_s=1)] == ["other"]
        if ENTRIES[change]:
            assert await journal.delete("s")
        else:
            with pytest.raises(JournalCorrupt, match="its entry in the table of sessions is damaged"):
                await journal.delete("s")
        await journal.aclose()
        with raw(path) as other:
            assert other.execute("SELECT count(*) FROM log").fetchone()[0] == (0 if ENTRIES[change] else 3)

    asyncio.run(check())


def test_prune_keeps_a_session_whose_last_time_is_no_time(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        await fill(path, "aa", "bb")
        with raw(path) as other:
            other.execute("UPDATE log SET at = 'x' WHERE seq = 2")
        journal = SQLiteJournal(path)
        assert await journal.prune(older_than_s=1) == []
        assert [info.rows for info in await journal.sessions()] == [2]
        await journal.aclose()

    asyncio.run(check())


def test_every_bit_of_a_row_counts(tmp_path: Path) -> None:
    """Each bit of a stored row is flipped, one after the other; each time the row is named."""
    path = tmp_path / "agent.db"

    async def check() -> None:
        await fill(path, "aa", "bb")
        with raw(path) as other:
            body: bytes = other.execute("SELECT body FROM log WHERE seq = 2").fetchone()[0]
            journal = SQLiteJournal(path)
            for place in range(len(body) * 8):
                flipped = bytearray(body)
                flipped[place // 8] ^= 1 << place % 8
                other.execute("UPDATE log SET body = ? WHERE seq = 2", (bytes(flipped),))
                with pytest.raises(JournalCorrupt, match="session 's', seq 2"):
                    await journal.read("s")
            other.execute("UPDATE log SET body = ? WHERE seq = 2", (body,))
            assert data_of(await journal.read("s")) == ["aa", "bb"]
            await journal.aclose()

    asyncio.run(check())


def test_the_doctor_names_every_damaged_session_lost_rows_and_changed_copies(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        for name in ("one", "two", "three", "whole"):
            await fill(path, "aa", "bb", session=name)
        journal = SQLiteJournal(path)
        log = journal.session("whole")
        await log.claim(lease_s=15)
        log.put_payload(hashlib.sha256(b"full").hexdigest(), b"full")
        log.put_payload("a name of somebody's own", b"full")
        append(log, "cc")
        await log.release()
        await journal.aclose()

    asyncio.run(check())
    assert [finding.state for finding in health(str(path))] == ["ok"]
    with raw(path) as other:
        other.execute("UPDATE log SET v = 7 WHERE session = 1 AND seq = 1")
        other.execute("DELETE FROM log WHERE session = 2 AND seq = 1")
        other.execute("DELETE FROM sessions WHERE id = 3")
        other.execute("UPDATE payloads SET data = x'00'")
    told = [finding.what for finding in health(str(path)) if finding.state == "broken"]
    assert len(told) == 4
    for said in ("'one', seq 1: written by a newer", "'two', seq 1: the row is missing", "2 records belong to no session", "full copy"):
        assert sum(said in what for what in told) == 1, said


def test_the_doctor_stops_at_the_first_few_problems_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        for number in range(PROBLEMS_MAX + 3):
            await fill(path, "aa", session=f"s{number}")

    asyncio.run(check())
    with raw(path) as other:
        other.execute("UPDATE log SET v = 7")
    told = [finding.what for finding in health(str(path)) if finding.state == "broken"]
    assert len(told) == PROBLEMS_MAX + 1
    assert "there may be more" in told[-1]


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


def test_a_session_whose_entry_is_of_another_time_than_its_rows_is_found(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    asyncio.run(fill(path, "aa", "bb", "cc"))
    with raw(path) as other:
        other.execute("UPDATE sessions SET rows = 2, last = 2")
    told = [finding.what for finding in health(str(path)) if finding.state == "broken"]
    assert len(told) == 1
    assert "1 records belong to no session" in told[0]


def test_a_session_that_is_deleted_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        await fill(path, *range(CHUNK_ROWS * 2))
        journal = SQLiteJournal(path)
        await journal.open()
        reading = asyncio.create_task(journal.read("s"))
        await asyncio.sleep(0)
        assert not reading.done()
        with raw(path) as other:
            other.execute("BEGIN")
            other.execute("DELETE FROM log")
            other.execute("DELETE FROM sessions")
            other.execute("COMMIT")
        assert await reading == []
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


WHOLE = [f"{n}-" + "x" * 600 for n in range(40)]


async def said_of(path: Path) -> list[Any] | str:
    """What the journal at ``path`` holds, or the error that it is."""
    journal = SQLiteJournal(path, busy_s=0.05)
    try:
        return data_of(await journal.read("s"))
    except JournalError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await journal.aclose()


def test_a_database_that_was_cut_off_anywhere_is_said_to_be_damaged_or_is_whole(tmp_path: Path) -> None:
    """Nothing of it may be missing without a word. (A file of no bytes at all is a new one: nobody can tell.)"""

    async def check() -> None:
        await fill(tmp_path / "agent.db", *WHOLE)
        content = (tmp_path / "agent.db").read_bytes()
        cuts = sorted({1, 15, 99, 100, 101, 511, 512, *range(4096, len(content), 4096), *range(777, len(content), 1999), len(content) - 1})
        said: list[Any] = []
        for cut in cuts:
            path = tmp_path / f"cut-{cut}.db"
            path.write_bytes(content[:cut])
            said.append(found := await said_of(path))
            assert isinstance(found, str) or found == WHOLE, cut
            if isinstance(found, str):
                assert any(finding.state == "broken" for finding in health(str(path))), cut
        assert len(cuts) > 20
        assert sum(isinstance(found, str) for found in said) >= len(cuts) - 2
        assert await said_of(tmp_path / "agent.db") == WHOLE

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(4))
def test_a_database_with_garbage_anywhere_is_said_to_be_damaged_or_is_whole(seed: int, tmp_path: Path) -> None:
    """NUL bytes, random ones, or a flipped bit, at random places: what is read is what was written, or an error."""
    chance = random.Random(seed)

    async def check() -> None:
        await fill(tmp_path / "agent.db", *WHOLE)
        content = (tmp_path / "agent.db").read_bytes()
        errors = 0
        for number in range(40):
            damaged = bytearray(content)
            at = chance.randrange(100, len(damaged))
            match chance.randrange(3):
                case 0:
                    damaged[at] ^= 1 << chance.randrange(8)
                case 1:
                    end = min(at + chance.choice((1, 40, 512, 4096)), len(damaged))
                    damaged[at:end] = bytes(end - at)
                case _:
                    end = min(at + chance.choice((1, 40, 512, 4096)), len(damaged))
                    damaged[at:end] = chance.randbytes(end - at)
            path = tmp_path / f"damaged-{number}.db"
            path.write_bytes(damaged)
            found = await said_of(path)
            errors += isinstance(found, str)
            if not isinstance(found, str) and found != WHOLE:  # an index, which only the doctor compares with its table, or a name
                assert found == WHOLE[: len(found)], (seed, number, at)
                assert any(finding.state == "broken" for finding in health(str(path))) or await names_of(path) != ["s"], (seed, number, at)
        assert errors > 10

    asyncio.run(check())


async def names_of(path: Path) -> list[str]:
    journal = SQLiteJournal(path)
    try:
        return [info.session_id for info in await journal.sessions()]
    except JournalError:
        return []
    finally:
        await journal.aclose()


@pytest.mark.parametrize("seed", range(2))
def test_a_write_ahead_log_with_garbage_keeps_whole_rows_from_the_first_on_and_nothing_else(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)

    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        for word in WHOLE:
            append(log, word)
            await log.durable()
        database, wal = (tmp_path / "agent.db").read_bytes(), (tmp_path / "agent.db-wal").read_bytes()
        await journal.aclose()
        lengths: set[int] = set()
        for number in range(30):
            damaged = bytearray(wal)
            at = chance.randrange(len(damaged))
            end = min(at + chance.choice((1, 24, 4096)), len(damaged))
            damaged[at:end] = bytes(end - at) if number % 2 else bytes(255 - byte for byte in damaged[at:end])
            path = tmp_path / f"damaged-{number}.db"
            path.write_bytes(database)
            path.with_name(f"{path.name}-wal").write_bytes(damaged)
            found = await said_of(path)
            assert not isinstance(found, str), (found, at)
            assert found == WHOLE[: len(found)], at
            lengths.add(len(found))
        assert len(lengths) > 3

    asyncio.run(check())


def test_a_torn_line_of_an_export_is_told_from_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of JSON is one record and ends with a line break: no beginning of it is a line, or JSON."""
    commands = Commands(tmp_path, monkeypatch)
    path = commands.cwd / "agent.db"
    asyncio.run(fill(path, "aa", {"text": "line\nbreak \u2028 } \\"}))
    exported = commands("export", "s", "--format", "jsonl", "--journal", f"sqlite:///{path}").stdout
    lines = exported.splitlines(keepends=True) if "\u2028" not in exported else exported.replace("\n", "\n\0").split("\0")[:-1]
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]
    assert all(line.endswith("}\n") for line in lines)
    for line in lines:
        for cut in range(1, len(line) - 1):
            with pytest.raises(json.JSONDecodeError):
                json.loads(line[:cut])
