"""What goes wrong with a file is said with its name, whose fault it is and what to do, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from interlock.errors import JournalConflict, JournalError, UsageError
from interlock.journal.sqlite import SQLiteJournal
from interlock.journal.sqlite_store import Part, Writer
from journal.journal_help import append, data_of, fill, note, raw
from rights import drop, unprivileged

both = pytest.mark.parametrize("durability", ["process", "power"])
Durability = Literal["process", "power"]


# ---- opening -------------------------------------------------------------------------------------


def refusal(path: Path | str) -> str:
    async def attempt() -> str:
        journal = SQLiteJournal(path)
        with pytest.raises(JournalError) as caught:
            await journal.open()
        await journal.aclose()
        return str(caught.value)

    return asyncio.run(attempt())


def test_a_missing_directory_is_named_and_not_created(tmp_path: Path) -> None:
    assert f"the directory {tmp_path}/no does not exist; create it" in refusal(tmp_path / "no" / "agent.db")
    assert not (tmp_path / "no").exists()


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert f"journal {tmp_path}: this is a directory" in refusal(tmp_path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a directory" in refusal(tmp_path / "file" / "agent.db")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system that lets nobody create files")
def test_a_file_that_cannot_be_created_is_refused() -> None:
    assert "it cannot be created" in refusal("/proc/agent.db")


def test_a_read_only_file_is_refused_when_it_is_opened() -> None:
    with unprivileged() as directory:
        path = directory / "agent.db"
        asyncio.run(fill(path, "a"))
        path.chmod(0o444)
        drop()
        assert f"journal {path}: the file is read-only for this user" in refusal(path)


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 500)
    assert "no SQLite database" in refusal(path)
    assert path.read_text() == "not a database\n" * 500


def test_the_database_of_another_application_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with raw(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    assert "another application" in refusal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("version", "said"), [(3, "newer version of Interlock (schema 3, this one knows 2); upgrade"), (1, "older")])
def test_another_schema_is_refused(tmp_path: Path, version: int, said: str) -> None:
    path = tmp_path / "agent.db"
    asyncio.run(fill(path, "a"))
    with raw(path) as other:
        other.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    assert f"written by a{'n' if version == 1 else ''} {said}" in refusal(path)
    assert path.read_bytes() == before


def test_a_file_that_stays_locked_is_refused_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with raw(path) as other:
        other.execute("BEGIN EXCLUSIVE")

        async def attempt() -> None:
            journal = SQLiteJournal(path, busy_s=0.05)
            with pytest.raises(JournalError, match="another process keeps it locked"):
                await journal.open()
            other.execute("ROLLBACK")
            await journal.open()
            await journal.aclose()

        asyncio.run(attempt())


def test_the_file_is_for_its_owner_alone_under_any_umask(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        journal = SQLiteJournal(path)
        log = journal.session("s")
        append(log, "a")
        await log.durable()
        for suffix in ("", "-wal", "-shm"):
            assert stat.S_IMODE(os.stat(f"{path}{suffix}").st_mode) == 0o600
        await journal.aclose()

    before = os.umask(0)
    try:
        asyncio.run(check())
    finally:
        os.umask(before)


# ---- writing -------------------------------------------------------------------------------------


@both
def test_a_full_disk_poisons_every_log_with_buffered_rows_and_loses_nothing_stored(tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        journal = SQLiteJournal(path, durability=durability, pragmas={"max_page_count": 40})
        first, second, idle = journal.session("first"), journal.session("second"), journal.session("idle")
        await first.claim(lease_s=15)
        append(first, "a")
        append(idle, "i")
        await first.durable()
        append(first, "x" * 400_000)
        append(second, "b")
        with pytest.raises(JournalError, match=r"agent\.db.*the disk \(or the quota\) is full; free some space"):
            await first.durable()
        for log in (first, second):
            with pytest.raises(JournalError):
                append(log, "c")
            with pytest.raises(JournalError):
                await log.durable()
        await first.release()
        append(idle, "j")
        await idle.durable()
        anew = journal.session("first")
        assert data_of(await anew.claim(lease_s=15)) == ["a"]
        append(anew, "c")
        await anew.release()
        assert data_of(await journal.read("first")) == ["a", "c"]
        assert data_of(await journal.read("second")) == []
        assert data_of(await journal.read("idle")) == ["i", "j"]
        await journal.aclose()

    asyncio.run(check())


@both
def test_a_database_that_became_read_only_is_said_to_be(tmp_path: Path, durability: Durability) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db", durability=durability, pragmas={"query_only": 1})
        log = journal.session("s")
        append(log, "a")
        with pytest.raises(JournalError, match=r"agent\.db: it could not be written: the file or its directory is read-only"):
            await log.durable()
        await journal.aclose()

    asyncio.run(check())


def test_rows_that_cannot_be_stored_at_aclose_are_not_dropped_in_silence(tmp_path: Path) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db", pragmas={"query_only": 1})
        append(journal.session("s"), "a")
        with pytest.raises(JournalError, match="read-only"):
            await journal.aclose()
        await journal.aclose()

    asyncio.run(check())


@both
def test_a_lock_of_another_process_is_waited_for_within_its_bound(tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        journal = SQLiteJournal(path, durability=durability, busy_s=0.05)
        log = journal.session("s")
        append(log, "a")
        await log.durable()
        with raw(path) as other:
            other.execute("BEGIN IMMEDIATE")
            append(log, "b")
            with pytest.raises(JournalError, match=r"agent\.db.*another process keeps it locked"):
                await log.durable()
        assert data_of(await journal.read("s")) == ["a"]
        await journal.aclose()

    asyncio.run(check())


@both
def test_while_a_lock_is_waited_for_the_loop_goes_on_and_order_is_kept(tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        journal = SQLiteJournal(path, durability=durability, busy_s=20)
        log, other_log = journal.session("s"), journal.session("t")
        append(log, "a")
        await log.durable()
        with raw(path) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting: list[asyncio.Task[None]] = []
            for n in range(20):
                append(log, n)
                append(other_log, n)
                waiting.append(asyncio.create_task(log.durable()))
                await asyncio.sleep(0)
            assert data_of(await journal.read("s")) == ["a"]
            waiting[0].cancel()
            other.execute("ROLLBACK")
            await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[0].cancelled()
        assert data_of(await journal.read("s")) == ["a", *range(20)]
        assert data_of(await journal.read("t")) == [*range(20)]
        await journal.aclose()

    asyncio.run(check())


def test_a_reader_that_holds_a_snapshot_stops_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def check() -> None:
        journal = SQLiteJournal(path, busy_s=0)
        log = journal.session("s")
        append(log, "a")
        await log.durable()
        with raw(path) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
            append(log, "b")
            await log.durable()
            assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
        await journal.aclose()

    asyncio.run(check())


def test_a_record_that_is_no_json_is_refused_before_it_has_a_seq(tmp_path: Path) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        for bad in (object(), {"lone": "\ud835"}, {1j: 2}):
            with pytest.raises(UsageError, match="it is not JSON"):
                append(log, bad)
        assert append(log, "fine") == 1
        await journal.aclose()

    asyncio.run(check())


@both
def test_a_row_that_the_database_refuses_is_no_fault_of_the_other_sessions(tmp_path: Path, durability: Durability) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db", durability=durability)
        bad, good, late = journal.session("bad"), journal.session("good"), journal.session("late")
        append(late, "a")
        await late.durable()
        bad.append(note(), at=float("nan"))  # which SQLite takes for NULL
        append(good, "a")
        append(late, "b")
        await good.durable()
        with pytest.raises(JournalError, match=r"'bad'.*cannot be stored") as caught:
            await bad.durable()
        assert not isinstance(caught.value, JournalConflict)
        assert data_of(await journal.read("good")) == ["a"]
        assert data_of(await journal.read("late")) == ["a", "b"]
        await journal.aclose()

    asyncio.run(check())


def test_an_interrupted_flush_stores_all_or_nothing_and_says_so(tmp_path: Path) -> None:
    interrupted = False

    def clock() -> float:
        if interrupted:
            raise KeyboardInterrupt
        return 1.0

    async def check() -> None:
        nonlocal interrupted
        journal = SQLiteJournal(tmp_path / "agent.db", clock=clock)
        log = journal.session("s")
        append(log, "a")
        await log.durable()
        await asyncio.sleep(0)  # or the next flush would wait for the end of this turn of the loop
        append(log, "b")
        interrupted = True
        with pytest.raises(KeyboardInterrupt):
            await log.durable()
        interrupted = False
        with pytest.raises(JournalError, match="interrupted"):
            await log.durable()
        assert data_of(await journal.read("s")) == ["a"]
        await journal.aclose()

    asyncio.run(check())


class _Interrupted(sqlite3.Cursor):
    """Ctrl-C comes while a transaction is begun, and Python hears it when that is done."""

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        super().execute(sql, parameters)
        if sql.startswith("BEGIN"):
            raise KeyboardInterrupt
        return self


class _Interrupting(sqlite3.Connection):
    def cursor(self, factory: Any = _Interrupted) -> Any:
        return super().cursor(factory)


def test_a_flush_that_is_interrupted_as_it_begins_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    asyncio.run(fill(path, "a"))
    with closing(sqlite3.connect(path, isolation_level=None, factory=_Interrupting)) as connection:
        writer = Writer(connection, "me")
        with pytest.raises(KeyboardInterrupt):
            writer.write([Part("s", 0, 0, 0, [], {})], now=1.0)
        assert not connection.in_transaction
        writer.close()


# ---- a file that is taken away -------------------------------------------------------------------


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


@both
@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "replaced"])
def test_nothing_is_acknowledged_by_a_journal_whose_file_was_taken_away(anew: bool, durability: Durability, tmp_path: Path) -> None:
    """SQLite goes on with a file that has no name: nobody would find the rows, and another process could run the same session."""

    async def main() -> None:
        path = tmp_path / "agent.db"
        journal = SQLiteJournal(path, durability=durability)
        log = journal.session("s")
        await log.claim(lease_s=60)
        append(log, 1, 2)
        await log.durable()
        remove(path)
        if anew:
            other = SQLiteJournal(path)
            await other.session("s").claim(lease_s=60)
            await other.aclose()
        append(log, 3)
        with pytest.raises(JournalError, match="replaced by another one" if anew else "deleted or moved"):
            await log.durable()
        with pytest.raises(JournalError, match="while it was open"):
            await journal.session("t").claim(lease_s=60)
        await journal.aclose()
        again = SQLiteJournal(path)
        assert await again.read("s") == []
        await again.aclose()

    asyncio.run(main())
