"""``durability="power"`` is asserted on the fsync calls that the kernel gets, and on what happens when one fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from journal.journal_help import program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sync calls are seen by seccomp, which only Linux has")


def test_every_acknowledged_row_is_synced_first_and_in_process_mode_none_is(tmp_path: Path) -> None:
    body = """
    from journal.sync_calls import SyncCalls
    calls = SyncCalls()

    async def synced(durability):
        journal = SQLiteJournal(f"{path}-{durability}", durability=durability)
        log, found = journal.session("s"), []
        await log.claim(lease_s=15)
        for n in range(20):
            log.append(note(n), at=1.0)
            calls.files.clear()
            await log.durable()
            found.append(list(calls.files))
        await journal.aclose()
        return found

    power, process = asyncio.run(synced("power")), asyncio.run(synced("process"))
    assert all(files[-1] == f"{path}-power-wal" for files in power), power
    assert process[1:] == [[]] * 19, process
    """
    with program(body, tmp_path / "agent.db") as other:
        other.end()


def test_a_failing_sync_is_an_error_of_whoever_waits_and_no_acknowledged_row_is_lost(tmp_path: Path) -> None:
    body = """
    from journal.sync_calls import SyncCalls
    calls = SyncCalls()

    async def main():
        journal = SQLiteJournal(path, durability="power")
        log, other = journal.session("s"), journal.session("t")
        for n in range(3):
            log.append(note(n), at=1.0)
            other.append(note(n), at=1.0)
            await log.durable()
        log.append(note("unsynced"), at=1.0)
        other.append(note("unsynced, too"), at=1.0)
        calls.failing = True
        for waiting in (log, other):
            try:
                await waiting.durable()
            except JournalError as error:
                assert "the disk failed; check it, then resume" in str(error), error
                assert not isinstance(error, JournalCorrupt)
            else:
                raise AssertionError("it was acknowledged")
        calls.failing = False
        for late in (log, other):
            try:
                late.append(note("late"), at=1.0)
            except JournalError:
                pass
            else:
                raise AssertionError("a log that lost rows went on")
        anew = journal.session("s")
        assert [row.record.data for row in await anew.claim(lease_s=15)] == [0, 1, 2]
        anew.append(note("anew"), at=1.0)
        calls.files.clear()
        await anew.durable()
        assert f"{path}-wal" in calls.files
        await journal.aclose()
        journal = SQLiteJournal(path)
        assert [row.record.data for row in await journal.read("s")] == [0, 1, 2, "anew"]
        assert [row.record.data for row in await journal.read("t")] == [0, 1, 2]
        await journal.aclose()

    asyncio.run(main())
    """
    with program(body, tmp_path / "agent.db") as other:
        other.end()


def test_no_handler_runs_whose_start_could_not_be_synced(tmp_path: Path) -> None:
    body = """
    from interlock import Agent, AgentRunConfig
    from interlock.records import HandlerStarted, SessionOpened
    from interlock.testing import ScriptedModel, call, calls, text
    from journal.sync_calls import SyncCalls

    syncs, paid = SyncCalls(), []

    def pay(invoice: str) -> str:
        paid.append((invoice, syncs.files[-1]))
        return "paid"

    def breaking(body):
        syncs.failing = True
        return calls(call("c1", "pay", {"invoice": "A"}))

    def agent(model):
        journal = f"sqlite:///{path}?durability=power"
        return Agent.create(model, tools=[pay], config=AgentRunConfig(session_id="s"), journal=journal)

    async def main():
        opened = await agent(ScriptedModel(breaking))
        try:
            await opened.run("Pay.")
        except JournalError as error:
            assert "the disk failed" in str(error), error
        else:
            raise AssertionError("the run went on")
        assert paid == []
        syncs.failing = False
        await opened.aclose()
        async with await agent(ScriptedModel([calls(call("c1", "pay", {"invoice": "A"})), text("Paid.")])) as again:
            assert (await again.resume()).text == "Paid."
            records = [row.record for row in await again.session("s").records()]
        assert paid == [("A", f"{path}-wal")], paid
        assert sum(isinstance(record, HandlerStarted) for record in records) == 1

    asyncio.run(main())
    """
    with program(body, tmp_path / "agent.db") as other:
        other.end()
