"""Who may take a session over: what a lease of a living, a dead and an unknown owner is worth."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from interlock.errors import JournalConflict, JournalError, SessionBusy
from interlock.journal import owner as owners
from interlock.journal.leases import Heartbeat
from interlock.journal.memory import MemoryJournal, MemoryStore
from interlock.journal.owner import describe, is_dead, new_owner, retire
from interlock.journal.sqlite import SQLiteJournal
from journal.journal_help import WAIT_S, append, data_of, note, program

HOLDER = """
async def main():
    journal = SQLiteJournal(path)
    log = journal.session("s")
    await log.claim(lease_s=1000)
    log.append(note("a"), at=1.0)
    await log.durable()
    say("holding")
    await asyncio.to_thread(hear)
    log.append(note("late"), at=1.0)
    try:
        await log.durable()
    except JournalConflict:
        say("conflict")
    else:
        say("stored")
    await journal.aclose()
asyncio.run(main())
"""


def test_a_session_that_another_process_runs_is_busy_and_its_owner_is_named(tmp_path: Path) -> None:
    async def attempt(path: Path) -> str:
        journal = SQLiteJournal(path)
        with pytest.raises(SessionBusy) as caught:
            await journal.session("s").claim(lease_s=15)
        (info,) = await journal.sessions()
        assert info.state == "running"
        await journal.aclose()
        return str(caught.value)

    with program(HOLDER, tmp_path / "agent.db") as other:
        assert other.hear() == "holding"
        message = asyncio.run(attempt(tmp_path / "agent.db"))
        other.say()
        assert other.hear() == "stored"
        other.end()
    assert "session 's' is being run by process " + str(other.process.pid) in message
    assert re.search(r"or for its lease to expire in \d+\.\d s", message)


@pytest.mark.parametrize("reaped", [True, False])
def test_the_lease_of_a_killed_process_is_void_at_once(tmp_path: Path, reaped: bool) -> None:
    async def reopen(path: Path) -> None:
        journal = SQLiteJournal(path)
        assert [info.state for info in await journal.sessions()] == ["abandoned"]
        log = journal.session("s")
        assert data_of(await log.claim(lease_s=15)) == ["a"]
        append(log, "b")
        await log.durable()
        await journal.aclose()

    with program(HOLDER, tmp_path / "agent.db") as other:
        assert other.hear() == "holding"
        other.process.send_signal(signal.SIGKILL)
        if reaped:
            other.process.wait(WAIT_S)
        else:
            os.waitid(os.P_PID, other.process.pid, os.WEXITED | os.WNOWAIT)
        asyncio.run(reopen(tmp_path / "agent.db"))


def test_a_process_that_slept_through_its_lease_cannot_write(tmp_path: Path) -> None:
    async def take_over(path: Path) -> None:
        later = SQLiteJournal(path, clock=lambda: 1e12)
        log = later.session("s")
        assert data_of(await log.claim(lease_s=15)) == ["a"]
        await log.durable()
        await later.aclose()

    with program(HOLDER, tmp_path / "agent.db") as other:
        assert other.hear() == "holding"
        asyncio.run(take_over(tmp_path / "agent.db"))
        other.say()
        assert other.hear() == "conflict"
        other.end()


def test_of_two_sessions_that_are_stored_together_only_the_one_that_was_taken_over_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        first, later = SQLiteJournal(tmp_path / "agent.db"), SQLiteJournal(tmp_path / "agent.db", clock=lambda: 1e12)
        kept, lost = first.session("kept"), first.session("lost")
        for text in ("a", "b"):  # the second time it is known whose leases these are
            for log in (kept, lost):
                if text == "a":
                    await log.claim(lease_s=15)
                append(log, text)
            await kept.durable()
        taken = later.session("lost")
        assert data_of(await taken.claim(lease_s=15)) == ["a", "b"]
        await taken.durable()  # no row: the rows alone would let the first writer go on
        append(kept, "c")
        append(lost, "c")
        await kept.durable()
        with pytest.raises(JournalConflict, match="taken over"):
            await lost.durable()
        await lost.release()  # it has nothing to give up any more
        third = SQLiteJournal(tmp_path / "agent.db", clock=lambda: 1e12)
        with pytest.raises(SessionBusy):
            await third.session("lost").claim(lease_s=15)
        await third.aclose()
        assert data_of(await later.read("kept")) == ["a", "b", "c"]
        assert data_of(await later.read("lost")) == ["a", "b"]
        await later.aclose()
        await first.aclose()

    asyncio.run(check())


def test_of_two_processes_that_claim_at_once_exactly_one_wins(tmp_path: Path) -> None:
    body = """
    async def main():
        journal = SQLiteJournal(path, busy_s=30)
        log = journal.session("s")
        await journal.open()
        say("ready"); hear()
        try:
            await log.claim(lease_s=1000)
            log.append(note(os.getpid()), at=1.0)
            await log.durable()
            say("won")
        except (SessionBusy, JournalConflict):
            say("lost")
        hear()
        await journal.aclose()
    asyncio.run(main())
    """
    with program(body, tmp_path / "agent.db") as one, program(body, tmp_path / "agent.db") as two:
        assert (one.hear(), two.hear()) == ("ready", "ready")
        one.say()
        two.say()
        assert sorted([one.hear(), two.hear()]) == ["lost", "won"]
        one.say()
        two.say()
        one.end()
        two.end()


def test_two_journal_objects_of_one_process_are_two_owners(tmp_path: Path) -> None:
    async def check() -> None:
        first, second = SQLiteJournal(tmp_path / "agent.db"), SQLiteJournal(tmp_path / "agent.db")
        log = first.session("s")
        await log.claim(lease_s=15)
        append(log, "a")
        await log.durable()
        with pytest.raises(SessionBusy, match="another journal object of this process"):
            await second.session("s").claim(lease_s=15)
        await first.aclose()
        await second.session("s").claim(lease_s=15)
        await second.aclose()

    asyncio.run(check())


def test_of_two_handles_of_one_journal_object_the_first_holds_the_session_while_it_lives(tmp_path: Path) -> None:
    async def check(journal: SQLiteJournal | MemoryJournal) -> None:
        first, second = journal.session("s"), journal.session("s")
        await first.claim(lease_s=15)
        append(first, "a")
        with pytest.raises(SessionBusy, match="on the same journal object"):
            await second.claim(lease_s=15)
        await first.release()
        assert data_of(await second.claim(lease_s=15)) == ["a"]
        append(second, "b")
        await second.durable()
        del second  # nobody can release it any more
        gc.collect()
        await first.claim(lease_s=15)
        append(first, "c")
        await first.release()
        assert data_of(await journal.read("s")) == ["a", "b", "c"]
        await journal.aclose()

    asyncio.run(check(SQLiteJournal(tmp_path / "agent.db")))
    asyncio.run(check(MemoryJournal()))


def test_a_poisoned_handle_holds_nothing_though_it_was_not_released(tmp_path: Path) -> None:
    async def check() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        log = journal.session("s")
        await log.claim(lease_s=15)
        log.append(note("a"), at=float("nan"))
        with pytest.raises(JournalError):
            await log.durable()
        anew = journal.session("s")
        assert await anew.claim(lease_s=15) == []
        append(anew, "b")
        await anew.durable()
        await log.release()
        append(anew, "c")
        await anew.release()
        assert data_of(await journal.read("s")) == ["b", "c"]
        await journal.aclose()

    asyncio.run(check())


# ---- the heartbeat -------------------------------------------------------------------------------


class Ticks:
    """A clock that can be waited for: ``seen`` is set whenever somebody asks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.seen = asyncio.Event()

    def __call__(self) -> float:
        self.seen.set()
        return self.now


def test_a_lease_is_renewed_in_the_background_and_not_after_release(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    def until() -> float:
        with closing(sqlite3.connect(path)) as other:
            return other.execute("SELECT until FROM sessions").fetchone()[0]

    async def check() -> None:
        clock = Ticks()
        journal = SQLiteJournal(path, clock=clock)
        log = journal.session("s")
        await log.claim(lease_s=0.06)
        append(log, "a")
        await log.durable()
        assert until() == 1000.06
        clock.now = 2000.0
        async with asyncio.timeout(WAIT_S):
            while until() != 2000.06:
                clock.seen.clear()
                await clock.seen.wait()
                await journal.sessions()  # runs in the same thread as the renewal, so after it
        await log.release()
        assert until() == 0
        if beating := {task for task in asyncio.all_tasks() if task.get_name() == "interlock-lease"}:
            await asyncio.wait(beating)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await journal.aclose()

    asyncio.run(check())


def test_a_memory_store_that_is_shared_renews_its_leases_too() -> None:
    async def check() -> None:
        clock, store = Ticks(), MemoryStore()
        journal = MemoryJournal(store, clock=clock)
        await journal.session("s").claim(lease_s=0.03)  # the handle is not kept, so it holds nothing for long
        log = journal.session("t")
        await log.claim(lease_s=0.03)
        clock.now = 2000.0
        async with asyncio.timeout(WAIT_S):
            while store.leases["t"].until != 2000.03:
                clock.seen.clear()
                await clock.seen.wait()
                await asyncio.sleep(0)
        assert store.leases["s"].until == 1000.03
        await journal.aclose()

    asyncio.run(check())


def test_a_failed_renewal_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        beats = 0
        over = asyncio.Event()

        async def renew() -> float | None:
            nonlocal beats
            beats += 1
            if beats == 1:
                raise JournalError("the disk is full")
            if beats == 3:
                over.set()
                return None
            return 0.01

        heartbeat = Heartbeat(renew)
        heartbeat.start(0.01)
        async with asyncio.timeout(WAIT_S):
            await over.wait()
        await heartbeat.stop()
        assert beats == 3

    asyncio.run(check())
    assert [record.getMessage() for record in caplog.records] == ["a lease could not be renewed: the disk is full"]


# ---- who is dead ---------------------------------------------------------------------------------


def changed(name: str, place: int, value: str) -> str:
    parts = name.split("/")
    parts[place] = value
    return "/".join(parts)


def test_an_owner_is_dead_only_when_that_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    me = new_owner()
    assert not is_dead(me.name)
    assert is_dead(changed(me.name, 5, "0123456789abcdef")), "an object of this process that is no more"
    parent = changed(changed(me.name, 3, str(os.getppid())), 4, owners._start_time(os.getppid()) or "")
    assert not is_dead(parent)
    assert is_dead(changed(parent, 4, "1")), "its number was given to another process"
    assert is_dead(changed(me.name, 3, "4194399")), "there is no such process"
    for place in (0, 1, 2):
        elsewhere = changed(changed(me.name, 3, "4194399"), place, "elsewhere")
        assert not is_dead(elsewhere), "another machine, boot or pid namespace"
    for junk in ("", "x", "a/b/c/d/e/f", "//////"):
        assert not is_dead(junk)
    retire(me)
    assert is_dead(me.name)


def test_without_proc_only_the_number_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_start_time", lambda _pid: "")
    monkeypatch.setattr(owners, "_machine", lambda: ("mac", "", ""))
    me = new_owner()
    assert not is_dead(me.name)
    assert not is_dead(changed(me.name, 3, str(os.getppid())))
    assert is_dead(changed(me.name, 3, "4194399"))


def test_an_owner_that_is_garbage_holds_nothing() -> None:
    name = new_owner().name
    assert is_dead(name)


def test_an_owner_is_described_for_a_person() -> None:
    me = new_owner()
    assert describe(me.name) == f"another journal object of this process (pid {os.getpid()})"
    assert describe(changed(me.name, 0, "box")) == f"process {os.getpid()} on box"
    assert describe("junk") == "'junk'"
