"""The fine print of the journals: handles that lost their session, and flushes that overlap."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from interlock.errors import JournalConflict, JournalError
from interlock.journal.leases import Heartbeat
from interlock.journal.memory import MemoryJournal, MemoryStore
from interlock.journal.sqlite import SQLiteJournal
from interlock.journal.sqlite_store import ROWS_MAX
from interlock.journal.transcript import Transcript
from interlock.testing.journal_bench import Clock
from journal.journal_help import append, data_of, note, raw
from machine_facts import Story, model_failed, model_started, prompt, steering


def test_of_a_memory_journal_too_a_poisoned_handle_holds_nothing_though_it_was_not_released() -> None:
    async def check() -> None:
        clock, store = Clock(), MemoryStore()
        first, second = MemoryJournal(store, clock=clock), MemoryJournal(store, clock=clock)
        stale, other = first.session("s"), second.session("s")
        await stale.claim(lease_s=1000)
        clock.now += 2000
        await other.claim(lease_s=1000)
        append(other, "a")
        await other.release()
        append(stale, "lost")
        with pytest.raises(JournalConflict):
            await stale.durable()
        anew = first.session("s")
        assert data_of(await anew.claim(lease_s=1000)) == ["a"]
        append(anew, "b")
        await anew.release()
        assert data_of(await first.read("s")) == ["a", "b"]
        await first.aclose()
        await second.aclose()

    asyncio.run(check())


def test_the_shortest_lease_says_when_the_leases_are_renewed_again() -> None:
    async def check() -> None:
        journal = MemoryJournal(MemoryStore())
        logs = [(journal.session(str(lease_s)), lease_s) for lease_s in (300.0, 30.0, 3000.0)]
        for log, lease_s in logs:
            await log.claim(lease_s=lease_s)
        assert await journal._renew() == 30.0
        await journal.aclose()

    asyncio.run(check())


def test_a_handle_whose_lease_was_another_ones_meanwhile_has_to_claim_the_session_anew_and_can(tmp_path: Path) -> None:
    async def check() -> None:
        clock = Clock()
        first, second = SQLiteJournal(tmp_path / "agent.db", clock=clock), SQLiteJournal(tmp_path / "agent.db", clock=clock)
        log, other = first.session("s"), second.session("s")
        await log.claim(lease_s=1000)
        append(log, "a")
        await log.durable()
        clock.now += 2000
        await other.claim(lease_s=1000)
        append(other, "b")
        await other.release()
        assert [info.state for info in await second.sessions()] == ["idle"]  # taken over and given up in one flush
        assert data_of(await log.claim(lease_s=1000)) == ["b"]
        append(log, "c")
        await log.durable()
        assert data_of(await second.read("s")) == ["a", "b", "c"]
        await first.aclose()
        await second.aclose()

    asyncio.run(check())


def test_a_row_that_came_during_a_flush_is_not_said_to_be_stored_by_it(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        journal = SQLiteJournal(path)
        log = journal.session("s")
        append(log, "a")
        await log.durable()
        with raw(path) as other:
            other.execute("BEGIN IMMEDIATE")  # the flush has to wait in its thread
            second = append(log, "b")
            flush = asyncio.create_task(log.durable(second))
            for _ in range(5):
                await asyncio.sleep(0)
            third = append(log, "c")
            other.execute("ROLLBACK")
            await flush
            await log.durable(third)
            assert other.execute("SELECT count(*) FROM log").fetchone() == (3,)
        await journal.aclose()

    asyncio.run(check(tmp_path / "agent.db"))


def test_a_payload_can_be_read_from_the_moment_it_was_put(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        journal = SQLiteJournal(path)
        log = journal.session("s")
        append(log, "a")
        await log.durable()
        with raw(path) as other:
            other.execute("BEGIN IMMEDIATE")
            log.put_payload("d", b"data")
            append(log, "b")
            assert await log.get_payload("d") == b"data"
            flush = asyncio.create_task(log.durable())
            for _ in range(5):
                await asyncio.sleep(0)
            assert await log.get_payload("d") == b"data"
            other.execute("ROLLBACK")
            await flush
            assert await log.get_payload("d") == b"data"
        await journal.aclose()

    asyncio.run(check(tmp_path / "agent.db"))


def test_nothing_of_a_deleted_session_stays_in_the_file(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        journal = SQLiteJournal(path)
        log = journal.session("s")
        log.put_payload("d", b"data")
        append(log, "a")
        await log.durable()
        assert await journal.delete("s")
        with raw(path) as file:
            for table in ("log", "payloads"):
                assert file.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
            # Its number is kept from being given again, and nothing else.
            assert file.execute("SELECT * FROM sessions").fetchall() == [(1, None, "", 0, 0.0, 0.0, 0, 0, None)]
        await journal.aclose()

    asyncio.run(check(tmp_path / "agent.db"))


def test_of_rows_that_are_refused_together_not_even_the_first_is_stored(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        journal = SQLiteJournal(path)
        log, neighbour = journal.session("s"), journal.session("t")
        append(neighbour, "fine")
        append(log, *range(ROWS_MAX * 2))
        log.append(note("b"), at=float("nan"))
        with pytest.raises(JournalError):
            await log.durable()
        await neighbour.durable()
        assert (await journal.read("s"), data_of(await journal.read("t"))) == ([], ["fine"])
        with raw(path) as file:
            assert file.execute("SELECT count(*) FROM log").fetchone() == (1,)
        await journal.aclose()

    asyncio.run(check(tmp_path / "agent.db"))


def test_a_writer_that_lost_its_session_does_not_prolong_the_lease_of_the_one_that_has_it(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        clock = Clock()
        first, second = SQLiteJournal(path, clock=clock), SQLiteJournal(path, clock=clock)
        stale, other = first.session("s"), second.session("s")
        await stale.claim(lease_s=9000)
        await stale.durable()
        clock.now += 10_000
        await other.claim(lease_s=1000)
        await other.durable()
        taken = clock.now
        clock.now += 10
        await first._renew()
        with raw(path) as file:
            assert file.execute("SELECT until FROM sessions").fetchone() == (taken + 1000,)
        with contextlib.suppress(JournalConflict):  # it learns of its loss at the latest here
            await first.aclose()
        await second.aclose()

    asyncio.run(check(tmp_path / "agent.db"))


def test_a_shorter_lease_is_renewed_in_its_own_time_although_a_longer_one_was_there_first() -> None:
    async def check() -> None:
        loop, ahead = asyncio.get_running_loop(), 0.0
        now = loop.time
        loop.time = lambda: now() + ahead  # type: ignore[method-assign]
        beats: list[float] = []

        async def renew() -> None:
            beats.append(ahead)

        heartbeat = Heartbeat(renew)
        heartbeat.start(3000.0)
        heartbeat.start(300.0)
        heartbeat.start(3000.0)
        ahead = 110.0
        for _ in range(5):
            await asyncio.sleep(0)
        await heartbeat.stop()
        assert beats == [110.0]

    asyncio.run(check())


def test_what_is_said_during_a_failed_attempt_is_kept_aside_until_the_next_turn() -> None:
    story = Story()
    story.add(model_started(story.state), steering("Wait."), model_failed())
    story.add(model_started(story.state))
    transcript = Transcript(story.records)
    assert (transcript.messages, transcript.pending_input) == ((prompt(),), (prompt("Wait."),))
