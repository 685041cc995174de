"""Rows of an earlier schema are read by one pure step per version; those of a later one are refused, loudly, and left alone."""

from __future__ import annotations

import asyncio
import copy
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commands import Commands
from helpers import limits, play
from interlock import Agent, AgentRunConfig, Outcome
from interlock.errors import JournalCorrupt
from interlock.journal import MemoryJournal, SQLiteJournal
from interlock.journal.health import health
from interlock.journal.memory import MemoryStore
from interlock.journal.sqlite_rows import checksum
from interlock.journal.transcript import Transcript
from interlock.machine import fold
from interlock.records import Row, codec
from interlock.records.codec import decode, encode
from interlock.records.upcasters import UPCASTERS, upcast
from interlock.testing import ScriptedModel, call, calls, text

# Two versions that never were. In the first a run's id was called `run`, and a result's effect was a flag; in the second
# a prompt was its bare text. The present one, here, is the third.


def one_to_two(value: dict[str, Any]) -> dict[str, Any]:
    value = dict(value)
    if "run" in value:
        value["run_id"] = value.pop("run")
    if value["type"] == "ToolStepEnded":
        value["effect"] = "happened" if value.pop("done") else "none"
    return value


def two_to_three(value: dict[str, Any]) -> dict[str, Any]:
    prompt = value.get("prompt")
    return {**value, "prompt": {"type": "user", "content": prompt}} if isinstance(prompt, str) else value


def as_two(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "prompt": value["prompt"]["content"]} if "prompt" in value else value


def as_one(value: dict[str, Any]) -> dict[str, Any]:
    value = as_two(value)
    if "run_id" in value:
        value["run"] = value.pop("run_id")
    if value["type"] == "ToolStepEnded":
        value["done"] = value.pop("effect", "none") == "happened"
    return value


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "VERSION", 3)
    monkeypatch.setitem(UPCASTERS, 1, one_to_two)
    monkeypatch.setitem(UPCASTERS, 2, two_to_three)


async def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing at {place}"


def conversation() -> list[Row]:
    steps = [calls(call("a", "look", {"place": "sea"}), call("b", "nowhere")), text("Nothing."), text("Bye.")]

    async def scenario() -> list[Row]:
        journal = MemoryJournal()
        await play(steps, tools=[look], prompts=("Look.", "Good bye."), journal=journal)
        return await journal.read("s")

    return asyncio.run(scenario())


def stored(rows: list[Row], old: Callable[[dict[str, Any]], dict[str, Any]], v: int) -> list[tuple[int, float, int, bytes]]:
    """The rows as that version stored them."""
    return [(row.seq, row.at, v, msgspec.json.encode(old(msgspec.json.decode(encode(row.record))))) for row in rows]


async def write(path: Path, rows: list[tuple[int, float, int, bytes]]) -> None:
    """A database as that version left it."""
    await (made := SQLiteJournal(path)).open()
    await made.aclose()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO sessions (id, name, rows, last) VALUES (1, 's', ?, ?)", (len(rows), len(rows)))
    sql = "INSERT INTO log (before, session, seq, at, v, body, crc) VALUES (0, 1, ?, ?, ?, ?, ?)"
    connection.executemany(sql, [(*row, checksum(*row)) for row in rows])
    connection.commit()
    connection.close()


OLD = {"first": (as_one, 1), "second": (as_two, 2)}


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize("old", OLD)
def test_a_database_of_an_earlier_version_is_read_and_gone_on_with(old: str, tmp_path: Path) -> None:
    rows, path = conversation(), tmp_path / "agent.db"
    then = stored(rows, *OLD[old])
    assert [row[3] for row in then] != [encode(row.record) for row in rows]

    async def scenario() -> None:
        await write(path, then)
        journal = SQLiteJournal(path)
        read = await journal.read("s")
        assert [row.record for row in read] == [row.record for row in rows]
        assert {row.v for row in read} == {OLD[old][1]}
        async with await Agent.create(ScriptedModel([text("Yes.")]), tools=[look], journal=journal, limits=limits()) as agent:
            assert (await agent.run("Still there?", config=AgentRunConfig(session_id="s"))).text == "Yes."
        after = await journal.read("s")
        assert [row.v for row in after] == [OLD[old][1]] * len(rows) + [3] * (len(after) - len(rows))
        assert fold(row.record for row in after) is not None
        assert len(Transcript(row.record for row in after).messages) == len(Transcript(row.record for row in rows).messages) + 2
        await journal.aclose()
        connection = sqlite3.connect(path)
        kept = connection.execute("SELECT seq, at, v, body FROM log WHERE seq <= ? ORDER BY seq", (len(rows),)).fetchall()
        connection.close()
        assert kept == then  # a stored row is never rewritten

    asyncio.run(scenario())
    assert [finding.state for finding in health(str(path))] == ["ok"]


@pytest.mark.usefixtures("third")
def test_sessions_of_every_version_are_gone_on_with_in_memory_too() -> None:
    rows = conversation()
    mixed = [*stored(rows[:3], as_one, 1), *stored(rows[3:6], as_two, 2), *stored(rows[6:], lambda value: value, 3)]

    async def scenario() -> None:
        store = MemoryStore()
        store.rows["s"] = [Row("s", seq, at, v, decode(body, v=v)) for seq, at, v, body in mixed]
        journal = MemoryJournal(store)
        async with await Agent.create(ScriptedModel([text("Yes.")]), tools=[look], journal=journal, limits=limits()) as agent:
            assert (await agent.run("Still there?", config=AgentRunConfig(session_id="s"))).text == "Yes."
        after = await journal.read("s")
        assert [row.record for row in after[: len(rows)]] == [row.record for row in rows]
        assert {row.v for row in after[len(rows) :]} == {3}
        await journal.aclose()

    asyncio.run(scenario())


@pytest.mark.usefixtures("third")
def test_each_step_is_applied_once_in_order_and_changes_nothing_that_it_was_given() -> None:
    first = {"type": "RunStarted", "run": "r", "prompt": "Hi."}
    before = copy.deepcopy(first)
    assert upcast(first, v=1, to=3) == {"type": "RunStarted", "run_id": "r", "prompt": {"type": "user", "content": "Hi."}}
    assert upcast(first, v=1, to=2) == {"type": "RunStarted", "run_id": "r", "prompt": "Hi."}
    assert upcast(first, v=3, to=3) == first == before


def test_there_is_a_step_from_every_earlier_version_of_the_schema() -> None:
    assert sorted(UPCASTERS) == list(range(1, codec.VERSION))


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize(
    ("body", "v", "said"),
    [
        (b'{"type":"ToolStepEnded","key":"k"}', 1, "not a record.*KeyError: 'done'"),
        (b'{"type":"RunStarted","run":5,"prompt":"Hi."}', 1, "not a record.*run_id"),
        (b'["RunStarted"]', 2, "not a record.*Expected `object`"),
        (b'{"type":"RunStar', 2, "not a record.*truncated"),
        (b"{}", 2, "not a record"),
        (b"{}", 4, r"newer version of Interlock \(schema 4, this one reads up to 3\); upgrade Interlock"),
        (b"not read at all", 99, "newer version"),
        (b"{}", 0, "no version of Interlock wrote schema 0.*damaged"),
        (b"{}", -1, "no version of Interlock wrote schema -1"),
    ],
)
def test_what_no_step_can_read_is_named(body: bytes, v: int, said: str) -> None:
    with pytest.raises(JournalCorrupt, match=f"here: .*{said}"):
        decode(body, v=v, where="here")


def test_a_row_of_a_newer_version_is_refused_everywhere_and_the_session_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(tmp_path, monkeypatch)
    path = commands.cwd / "agent.db"
    commands.environment.setenv("INTERLOCK_JOURNAL", f"sqlite:///{path}")

    async def fill() -> None:
        for session in ("old", "new"):
            await play([text("Yes.")], prompts=(f"Hello, {session}.",), session_id=session, journal=f"sqlite:///{path}")

    async def go_on(session: str) -> str:
        async with await Agent.create(ScriptedModel([text("Yes.")]), journal=f"sqlite:///{path}") as agent:
            result = await agent.run("Again.", config=AgentRunConfig(session_id=session))
            assert result.outcome is Outcome.COMPLETED
            return result.text

    asyncio.run(fill())
    connection = sqlite3.connect(path, isolation_level=None)
    sql = "UPDATE log SET v = 2, body = ? WHERE session = (SELECT id FROM sessions WHERE name = 'new') AND seq = 5"
    assert connection.execute(sql, (b"a newer record",)).rowcount == 1
    before = connection.execute("SELECT * FROM log").fetchall()
    with pytest.raises(JournalCorrupt, match=r"session 'new', seq 5: written by a newer version of Interlock .*upgrade Interlock"):
        asyncio.run(go_on("new"))
    assert connection.execute("SELECT * FROM log").fetchall() == before
    connection.close()

    listed = commands("sessions")
    lines = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert "idle" in lines["old"]
    assert lines["old"].endswith("Hello, old.")
    assert "damaged" in lines["new"]
    assert "seq 5: written by a newer version of Interlock (schema 2" in lines["new"]
    assert "interlock doctor" in listed.stderr
    said = [json.loads(line) for line in commands("sessions", "--json").stdout.splitlines()]
    assert {line["session_id"]: ("damage" in line, line["prompt"]) for line in said} == {
        "old": (False, "Hello, old."),
        "new": (True, ""),
    }
    told = commands("doctor", code=1).stdout
    assert "session 'new', seq 5: written by a newer version of Interlock" in told
    assert "upgrade Interlock" in told
    for command in ("show", "log", "export"):
        assert "newer version" in commands(command, "new", code=5).stderr
        commands(command, "old")
    assert asyncio.run(go_on("old")) == "Yes."
