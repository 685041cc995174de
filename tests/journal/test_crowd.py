"""Many processes, a reader that holds on, a lock that is not given up, a disk that is full: nothing is lost, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interlock import Agent, AgentRunConfig
from interlock.errors import JournalError
from interlock.journal.sqlite import SQLiteJournal
from interlock.records import HandlerStarted, RunStarted
from interlock.testing import ScriptedModel, Step, call, calls, text
from journal.journal_help import Program, append, data_of, program, raw

# ---- processes -----------------------------------------------------------------------------------

APPENDING = """
async def main():
    journal = SQLiteJournal(path, busy_s=60)
    await journal.open()
    log = journal.session(f"of {os.getpid()}")
    await log.claim(lease_s=15)
    for n in range(200):
        log.append(note(n), at=1.0)
        await log.durable()
    await log.release()
    await journal.aclose()
say("ready"); hear(); asyncio.run(main())
"""


def at_once(stack: ExitStack, body: str, path: Path) -> list[Program]:
    """Eight processes that begin ``body`` at the same moment."""
    others = [stack.enter_context(program(body, path)) for _ in range(8)]
    for other in others:
        assert other.hear() == "ready"
    for other in others:
        other.say()
    return others


def stored(path: Path) -> list[list[object]]:
    """What is in each session."""

    async def read() -> list[list[object]]:
        journal = SQLiteJournal(path)
        found = [data_of(await journal.read(info.session_id)) for info in await journal.sessions()]
        await journal.aclose()
        return found

    return asyncio.run(read())


def test_eight_processes_that_make_one_new_file_together_lose_no_row(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with ExitStack() as stack:
        for other in at_once(stack, APPENDING, path):
            other.end()
    assert stored(path) == [list(range(200))] * 8


def test_eight_processes_are_not_stopped_by_a_reader_that_holds_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"

    async def begin() -> None:
        journal = SQLiteJournal(path)
        append(journal.session("first"), "a")
        await journal.aclose()

    asyncio.run(begin())
    with raw(path) as reader, ExitStack() as stack:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
        for other in at_once(stack, APPENDING, path):
            other.end()
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (1601,)
    assert sorted(stored(path), key=len) == [["a"], *[list(range(200))] * 8]


# ---- a lock that is not given up -----------------------------------------------------------------


class Desk:
    """An agent whose model asks for one payment, while this test holds the write lock of its journal from a chosen moment on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paid: list[str] = []
        self.requests = 0
        self.lock: sqlite3.Connection | None = None
        """Where the model, asked for the first time, takes the lock."""

    async def agent(self, *, busy_s: float | None) -> Agent:
        def pay(invoice: str) -> str:
            self.paid.append(invoice)
            return "paid"

        def model(body: dict[str, Any]) -> Step:
            self.requests += 1
            if self.requests == 1 and self.lock is not None:
                self.lock.execute("BEGIN IMMEDIATE")
            return text("Paid.") if body["messages"][-1]["role"] == "tool" else calls(call("c1", "pay", {"invoice": "A"}))

        journal = SQLiteJournal(self.path) if busy_s is None else SQLiteJournal(self.path, busy_s=busy_s)
        return await Agent.create(ScriptedModel(model), tools=[pay], config=AgentRunConfig(session_id="s"), journal=journal)


async def refused_in_time(agent: Agent, *, within_s: float) -> float:
    """How long the run took to say that the journal is locked. The event loop went on meanwhile."""
    turns, began = 0, time.monotonic()

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    turning = asyncio.create_task(turn())
    with pytest.raises(JournalError, match="another process keeps it locked; end that process, or give more time with busy_s"):
        await agent.run("Pay.")
    took_s = time.monotonic() - began
    turning.cancel()
    assert took_s < within_s
    assert turns > 5
    return took_s


@pytest.mark.parametrize("when", ["before the prompt is accepted", "before the handler starts"])
def test_a_lock_that_is_held_too_long_is_a_typed_error_before_any_handler_runs(when: str, tmp_path: Path) -> None:
    async def check() -> None:
        desk = Desk(tmp_path / "agent.db")
        agent = await desk.agent(busy_s=0.3)
        accepted = when == "before the handler starts"
        with raw(desk.path) as lock:
            if accepted:
                desk.lock = lock
            else:
                lock.execute("BEGIN IMMEDIATE")
            assert await refused_in_time(agent, within_s=3.0) >= 0.3
            assert (desk.paid, desk.requests) == ([], int(accepted))
            lock.execute("ROLLBACK")
            rows = [row.record for row in await agent.session("s").records()]
            assert not [record for record in rows if isinstance(record, HandlerStarted)]
            if accepted:
                result = await agent.resume()
            else:
                assert not [record for record in rows if isinstance(record, RunStarted)]
                result = await agent.run("Pay.")
            assert (result.text, desk.paid) == ("Paid.", ["A"])
        await agent.aclose()

    asyncio.run(check())


def test_a_lock_of_ten_seconds_is_given_up_on_after_the_five_that_are_the_default(tmp_path: Path) -> None:
    holding = """
    import sqlite3, time
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("locked")
    time.sleep(10)
    """

    async def check() -> None:
        desk = Desk(tmp_path / "agent.db")
        agent = await desk.agent(busy_s=None)
        with program(holding, desk.path) as other:
            assert other.hear() == "locked"
            assert await refused_in_time(agent, within_s=8.0) > 4.5
        assert (desk.paid, desk.requests) == ([], 0)
        await agent.aclose()

    asyncio.run(check())


# ---- a full disk ---------------------------------------------------------------------------------

FILLING = """
async def fill(journal, acknowledged):
    log = journal.session("s")
    await log.claim(lease_s=15)
    try:
        for n in range(10_000):
            log.append(note([n, "x" * 3000]), at=1.0)
            await log.durable()
            acknowledged.append(n)
    except JournalError as error:
        return str(error)
    raise AssertionError("the disk was never full")

async def check(make_room):
    acknowledged, journal = [], SQLiteJournal(path)
    said = await fill(journal, acknowledged)
    assert acknowledged, "nothing was stored at all"
    again = journal.session("t")
    again.append(note("too much" * 200_000), at=1.0)
    try:
        await again.durable()
    except JournalError:
        pass
    else:
        raise AssertionError("there was room all the same")
    before = [row.record.data[0] for row in await journal.read("s")]
    assert before == acknowledged, (before, acknowledged)
    make_room()
    log = journal.session("s")
    assert [row.record.data[0] for row in await log.claim(lease_s=15)] == acknowledged
    log.append(note([-1, ""]), at=1.0)
    await log.durable()
    await journal.aclose()
    journal = SQLiteJournal(path)
    assert [row.record.data[0] for row in await journal.read("s")] == [*acknowledged, -1]
    await journal.aclose()
    say(said)
"""


def test_a_file_that_may_not_grow_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    body = (
        FILLING
        + """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    journal = SQLiteJournal(path)
    await journal.open()  # the tables are there before
    await journal.aclose()
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    await check(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
asyncio.run(main())
"""
    )
    with program(body, tmp_path / "agent.db") as other:
        assert "it could not be written" in other.hear()
        other.end()


def can_mount() -> bool:
    try:
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_mount(), reason="needs a file system of its own, which this user may not mount; the test above needs none")
def test_a_disk_that_is_full_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    body = (
        FILLING
        + """
ballast = path + ".ballast"
with open(ballast, "wb") as file:
    file.write(b"x" * 3_000_000)
asyncio.run(check(lambda: os.unlink(ballast)))
"""
    )
    inside = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=4m none "$0" && exec "$@"', str(mount)]
    with program(body, mount / "agent.db", within=inside) as other:
        assert "the disk (or the quota) is full; free some space, then resume" in other.hear()
        other.end()
