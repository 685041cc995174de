"""The SQLite store and the way to it: spec strings, processes, group commit, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import JournalConflict, UsageError
from interlock.journal import open_journal
from interlock.journal.memory import MemoryJournal
from interlock.journal.sqlite import SQLiteJournal
from interlock.journal.sqlite_flush import CHECKPOINT_PAGES
from interlock.journal.sqlite_store import Part, Writer
from journal.journal_help import WAIT_S, append, data_of, program, raw

# ---- spec strings --------------------------------------------------------------------------------


def test_a_spec_names_a_store_as_in_sqlalchemy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_journal(None), MemoryJournal)
    assert isinstance(open_journal("memory:"), MemoryJournal)
    for spec, path, durability in [
        ("sqlite:///agent.db", tmp_path / "agent.db", "process"),
        (f"sqlite:///{tmp_path}/agent.db", tmp_path / "agent.db", "process"),
        ("sqlite:////var/agent.db?durability=power", Path("/var/agent.db"), "power"),
        ("sqlite:///a%3Fb%25.db?durability=process", tmp_path / "a?b%.db", "process"),
    ]:
        journal = open_journal(spec)
        assert isinstance(journal, SQLiteJournal)
        assert (journal.path, journal.durability) == (str(path), durability)
    journal = MemoryJournal()
    assert open_journal(journal) is journal


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown"),
        ("agent.db", "unknown"),
        ("mysql://x", "unknown"),
        ("memory", "unknown"),
        ("memory:x", "nothing after the colon"),
        ("sqlite:agent.db", "no file is named"),
        ("sqlite://agent.db", "no file is named"),
        ("sqlite:///", "no file is named"),
        ("sqlite:///:memory:", "no file is named"),
        ("sqlite:///a.db?durability=none", "durability=process"),
        ("sqlite:///a.db?mode=ro", "durability=process"),
        ("postgresql://user:secret@host/db", "not available in this version"),
        ("postgresql+asyncpg://user:secret@host/db", "not available in this version"),
        (7, "not a journal"),
    ],
)
def test_any_other_spec_is_a_usage_error_that_says_what_would_do(spec: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        open_journal(spec)
    assert "memory:" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "a\0b", "\ud835.db", 7, None, b"agent.db"])
def test_what_cannot_name_a_file_is_a_usage_error(path: Any) -> None:
    with pytest.raises(UsageError, match="a file name is needed"):
        SQLiteJournal(path)


def test_the_room_does_not_load_sqlite_before_it_is_needed() -> None:
    check = "import sys, interlock.journal as j; j.open_journal('memory:'); sys.exit('sqlite3' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=WAIT_S)


def test_a_file_name_may_hold_any_letters(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20é🦜.db"

    async def check() -> None:
        journal = SQLiteJournal(path)
        append(journal.session("s"), "a")
        await journal.aclose()

    asyncio.run(check())
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


# ---- processes -----------------------------------------------------------------------------------


def test_after_a_fork_the_child_is_told_to_make_its_own(tmp_path: Path) -> None:
    body = """
    import warnings
    warnings.simplefilter("ignore")
    journal = SQLiteJournal(path)
    log = journal.session("s")
    async def fill():
        log.append(note(1), at=1.0)
        await log.durable()
    async def in_child():
        log.append(note(2), at=1.0)
        for attempt in (log.durable(), log.claim(lease_s=15), journal.read("s"), journal.open(), journal.aclose()):
            try:
                await attempt
            except UsageError as error:
                assert "after a fork" in str(error), error
            else:
                raise AssertionError("it was not refused")
    asyncio.run(fill())
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(in_child())
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    asyncio.run(fill())
    asyncio.run(journal.aclose())
    """
    with program(body, tmp_path / "agent.db") as other:
        other.end()


# ---- group commit --------------------------------------------------------------------------------


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each transaction wrote."""
    written: list[int] = []
    write = Writer.write

    def counted(self: Writer, parts: list[Part], *, now: float) -> Any:
        written.append(sum(part.count for part in parts))
        return write(self, parts, now=now)

    monkeypatch.setattr(Writer, "write", counted)
    return written


@pytest.mark.parametrize("durability", ["process", "power"])
def test_waiters_of_one_moment_share_one_transaction(tmp_path: Path, batches: list[int], durability: Any) -> None:
    async def produce(journal: SQLiteJournal, name: str) -> None:
        log = journal.session(name)
        for n in range(5):
            append(log, n)
            await log.durable()

    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db", durability=durability)
        await journal.open()
        await asyncio.gather(*(produce(journal, f"s{n}") for n in range(64)))
        await journal.aclose()

    asyncio.run(check())
    assert sum(batches) == 320
    assert len(batches) <= 10


def test_release_needs_no_flush_of_its_own(tmp_path: Path, batches: list[int]) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        for _ in range(3):
            await log.claim(lease_s=15)
            append(log, "a")
            await log.durable()
            append(log, "b", "c")
            await log.release()
        await journal.aclose()

    asyncio.run(check())
    assert batches == [1, 2] * 3


def test_nothing_to_store_is_no_transaction(tmp_path: Path, batches: list[int]) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        await log.durable()
        await log.release()
        append(log, "a")
        await log.durable(1)
        await log.durable(1)
        await log.durable()
        await journal.aclose()

    asyncio.run(check())
    assert batches == [1]


def test_a_deleted_session_is_noticed_by_a_writer_that_nobody_else_disturbed(tmp_path: Path) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db", durability="power")
        log = journal.session("s")
        append(log, "a")
        await log.durable()
        append(log, "b")
        deleted, late = await asyncio.gather(journal.delete("s"), log.durable(), return_exceptions=True)
        assert (deleted, await journal.read("s")) == (True, [])
        append(log, "c") if late is None else None
        with pytest.raises(JournalConflict):
            await log.durable()
        await journal.aclose()

    asyncio.run(check())


@pytest.mark.parametrize("durability", ["process", "power"])
def test_the_write_ahead_log_stays_short(tmp_path: Path, durability: Any) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db", durability=durability)
        log = journal.session("s")
        for _ in range(150):
            append(log, "x" * 160_000)
            await log.durable()
        assert (tmp_path / "agent.db-wal").stat().st_size < 3 * CHECKPOINT_PAGES * 4096
        assert len(await journal.read("s")) == 150
        await journal.aclose()

    asyncio.run(check())


# ---- leaving nothing behind ----------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["process", "power"])
def test_whoever_waited_on_a_loop_that_was_closed_stops_nobody_on_the_next(tmp_path: Path, durability: Any) -> None:
    path = tmp_path / "agent.db"
    journal = SQLiteJournal(path, durability=durability)
    logs = [journal.session("s"), journal.session("t")]
    waiting: list[asyncio.Future[None]] = []

    async def wait_for_the_lock() -> None:
        await journal.open()
        other.execute("BEGIN IMMEDIATE")
        for log in logs:
            append(log, "a")
            waiting.append(asyncio.ensure_future(log.durable()))
        await asyncio.sleep(0.05)

    async def go_on() -> None:
        for log in logs:
            append(log, "b")
            await log.durable()
            assert data_of(await journal.read(log.session_id)) == ["a", "b"]
        await journal.aclose()

    loop = asyncio.new_event_loop()
    with raw(path) as other:
        loop.run_until_complete(wait_for_the_lock())
        other.execute("COMMIT")
    assert not any(task.done() for task in waiting)
    loop.close()
    asyncio.run(asyncio.wait_for(go_on(), WAIT_S))


@pytest.mark.parametrize("durability", ["process", "power"])
def test_one_object_serves_one_event_loop_after_the_other(tmp_path: Path, durability: Any) -> None:
    journal = SQLiteJournal(tmp_path / "agent.db", durability=durability)
    log = journal.session("s")

    async def leave(n: int) -> None:
        await log.claim(lease_s=15)
        append(log, n)
        waiting = asyncio.ensure_future(log.durable())
        await asyncio.sleep(0)
        waiting.cancel()

    for n in range(20):
        asyncio.run(leave(n))
    asyncio.run(log.durable())
    assert data_of(asyncio.run(journal.read("s"))) == list(range(20))
    asyncio.run(journal.aclose())


def test_a_forgotten_journal_ends_its_thread_and_its_connections(tmp_path: Path) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "interlock-journal"]

    async def forget() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        await log.claim(lease_s=15)
        append(log, "a")
        await log.durable()

    before = set(threads())
    asyncio.run(forget())
    for thread in set(threads()) - before:
        for _ in range(100):  # the thread may still be putting its last job down
            if thread.is_alive():
                gc.collect()
                thread.join(0.1)
        assert not thread.is_alive()
    connection = sqlite3.connect(tmp_path / "agent.db")
    assert connection.execute("SELECT session, seq, record FROM readable").fetchall() == [
        ("s", 1, '{"type":"ExtensionNoted","extension":"test","version":1,"data":"a"}')
    ]
    connection.close()


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        await journal.open()
        await journal.aclose()
        append(log, "a")
        for attempt in (journal.open(), log.claim(lease_s=1), journal.read("s"), journal.sessions(), journal.delete("s")):
            with pytest.raises(UsageError, match="closed"):
                await attempt

    asyncio.run(check())
