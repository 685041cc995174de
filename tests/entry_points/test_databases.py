"""A database that cannot be used: a typed error that says what to do, before any handler runs; what was stored stays."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock import Agent, AgentRunConfig, JournalCorrupt, JournalError, Outcome, SessionBusy, UsageError
from interlock.journal import SQLiteJournal
from interlock.testing import ScriptedModel, Step, call, calls, text
from rights import drop, unprivileged

from .saying import refused

SESSION = AgentRunConfig(session_id="s")
ONE_CALL = (calls(call("c1", "pay", {})), text("Paid."))


class Till:
    """A tool that counts."""

    def __init__(self) -> None:
        self.paid = 0

    async def pay(self) -> str:
        self.paid += 1
        return "paid"


async def agent_on(path: Path | str | SQLiteJournal, *steps: Step, till: Till | None = None, model: Any = None, **options: Any) -> Agent:
    journal = path if isinstance(path, SQLiteJournal) else f"sqlite:///{path}"
    return await Agent.create(model or ScriptedModel(steps), tools=[(till or Till()).pay], config=SESSION, journal=journal, **options)


def make_one_run(path: Path) -> None:
    """A database with one finished run in session ``s``."""

    async def main() -> None:
        async with await agent_on(path, *ONE_CALL) as agent:
            (await agent.run("Pay.")).require()

    asyncio.run(main())


def never_opens(path: Path | str, *words: str, kind: type[JournalError] = JournalError) -> None:
    async def main() -> None:
        till, model = Till(), ScriptedModel([])
        with refused(*words, kind=kind):
            async with await agent_on(path, till=till, model=model) as agent:
                await agent.run("Pay.")
        assert till.paid == 0
        assert model.requests == []

    asyncio.run(main())


def sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


# ---- files that are no journal ---------------------------------------------------------------------


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    never_opens(tmp_path, "directory", str(tmp_path))


def test_a_directory_that_is_missing_is_named_and_not_made(tmp_path: Path) -> None:
    never_opens(tmp_path / "no" / "such" / "j.db", "does not exist", "create it", str(tmp_path / "no" / "such"))
    assert not (tmp_path / "no").exists()


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    never_opens(tmp_path / "file" / "j.db", "directory")


def test_a_text_file_is_no_journal_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes, " * 1000)
    never_opens(path, "no SQLite database", "another file", str(path))
    assert path.read_text() == "my notes, " * 1000


def test_the_database_of_another_application_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "browser.db"
    sql(path, "CREATE TABLE history (url)", "INSERT INTO history VALUES ('http://x')")
    before = path.read_bytes()
    never_opens(path, "another application", "another file")
    assert path.read_bytes() == before


def test_a_journal_of_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)
    sql(path, "PRAGMA user_version=99")
    never_opens(path, "newer version", "upgrade", "99")


def test_a_record_of_a_newer_schema_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)
    sql(path, "UPDATE log SET v = 99 WHERE seq = 3")
    never_opens(path, "newer version", "99", "3", kind=JournalCorrupt)


# ---- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    ["UPDATE log SET body = 'banana' WHERE seq = 4", "DELETE FROM log WHERE seq = 4", "UPDATE log SET body = x'ff00' WHERE seq = 4"],
)
def test_a_damaged_row_is_named_and_nothing_is_started(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)
    sql(path, statement)
    never_opens(path, "'s'", "4", kind=JournalCorrupt)


def test_damaged_pages_are_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x99" * (len(data) - 4096)
    path.write_bytes(data)
    never_opens(path, str(path), "damaged", kind=JournalCorrupt)


def test_one_damaged_session_does_not_harm_another(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)
    sql(path, "UPDATE log SET body = 'banana' WHERE seq = 4")

    async def main() -> None:
        async with await agent_on(path, text("Fine.")) as agent:
            with refused(kind=JournalCorrupt):
                await agent.run("x")
            result = await agent.run("y", config=AgentRunConfig(session_id="another"))
            assert result.text == "Fine."

    asyncio.run(main())


# ---- rights, locks and space -------------------------------------------------------------------------


def test_a_read_only_directory_says_whose_rights_are_missing(tmp_path: Path) -> None:
    make_one_run(tmp_path / "other.db")  # what is imported on the way is read while there are rights
    with unprivileged() as directory:
        directory.chmod(0o555)
        drop()
        never_opens(directory / "j.db", "may write")


def test_a_read_only_database_says_so_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)

    async def main() -> None:
        till, model = Till(), ScriptedModel([])
        journal = SQLiteJournal(path, pragmas={"query_only": 1}, busy_s=0.1)  # what a read-only file system does
        with refused("read-only", str(path), kind=JournalError):
            async with await agent_on(journal, till=till, model=model) as agent:
                await agent.run("Pay.")
        assert (till.paid, model.requests) == (0, [])
        try:
            await journal.aclose()
        except JournalError:
            pass  # it says once more that something could not be written

    asyncio.run(main())


def test_a_lock_that_stays_is_an_error_that_says_so_and_the_session_goes_on_later(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)
    holder = sqlite3.connect(path, isolation_level=None)

    async def main() -> None:
        till = Till()
        journal = SQLiteJournal(path, busy_s=0.2)
        agent = await agent_on(journal, *ONE_CALL, till=till)
        holder.execute("BEGIN IMMEDIATE")
        with refused("lock", kind=JournalError):
            await agent.run("Pay.")
        assert till.paid == 0
        holder.execute("ROLLBACK")
        assert (await agent.run("Pay.")).outcome is Outcome.COMPLETED
        assert till.paid == 1
        await agent.aclose()
        await journal.aclose()

    try:
        asyncio.run(main())
    finally:
        holder.close()


def test_a_full_disk_in_the_middle_starts_no_handler_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    make_one_run(path)
    pages = path.stat().st_size // 4096

    async def main() -> None:
        till = Till()
        journal = SQLiteJournal(path, pragmas={"max_page_count": pages + 30})
        filler = text("x" * 60_000)
        agent = await agent_on(journal, filler, filler, filler, filler, *ONE_CALL, till=till)
        with refused("full", "free some space", kind=JournalError):
            for _ in range(4):
                await agent.run("Fill.")
            await agent.run("Pay.")
        assert till.paid == 0
        stored = await agent.messages("s")
        try:
            await agent.aclose()
        finally:
            try:
                await journal.aclose()
            except JournalError:
                pass
        async with await agent_on(path, text("Space again.")) as later:
            result = await later.run("And now?")
            assert result.text == "Space again."
            assert result.messages[: len(stored)] == stored

    asyncio.run(main())


# ---- several at once -----------------------------------------------------------------------------------


def held(gate: asyncio.Event, running: asyncio.Event) -> Callable[[], Any]:
    async def pay() -> str:
        running.set()
        await gate.wait()
        return "paid"

    return pay


@pytest.mark.parametrize("shared", [True, False], ids=["one journal object", "one file"])
def test_two_agents_on_one_journal_never_run_one_session_at_once(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "j.db"

    async def main() -> None:
        gate, running = asyncio.Event(), asyncio.Event()
        one = SQLiteJournal(path)
        other = one if shared else SQLiteJournal(path)
        first = await Agent.create(ScriptedModel([*ONE_CALL, text("Third.")]), tools=[held(gate, running)], config=SESSION, journal=one)
        second = await Agent.create(ScriptedModel([text("Second.")]), config=SESSION, journal=other)
        task = asyncio.create_task(first.run("Pay."))
        await running.wait()
        with refused("'s'", kind=SessionBusy):
            await second.run("Me too.")
        beside = await second.run("Me too.", config=AgentRunConfig(session_id="t"))
        assert beside.text == "Second."
        gate.set()
        assert (await task).text == "Paid."
        assert (await first.run("Again.")).text == "Third."
        for agent in (first, second):
            await agent.aclose()
        for journal in {one, other}:
            await journal.aclose()

    asyncio.run(main())


def test_two_agents_on_one_file_take_turns_in_one_session(tmp_path: Path) -> None:
    async def main() -> None:
        steps = [text(f"answer {n}") for n in range(4)]
        agents = [await agent_on(tmp_path / "j.db", *steps) for _ in range(2)]
        for n in range(8):
            result = await agents[n % 2].run(f"prompt {n}")
            assert len(result.messages) == 2 * (n + 1)
        for agent in agents:
            await agent.aclose()

    asyncio.run(main())


def test_a_closed_journal_says_that_it_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        journal = SQLiteJournal(tmp_path / "j.db")
        await journal.open()
        await journal.aclose()
        with refused("closed", kind=UsageError):
            await agent_on(journal)

    asyncio.run(main())
