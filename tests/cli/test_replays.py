"""``interlock replay``, as a person and a script see it."""

from __future__ import annotations

import asyncio
import json

from msgspec.structs import replace

from commands import Commands
from interlock.journal import SQLiteJournal
from interlock.records import RunEnded
from interlock.testing import call, calls, text


def test_replay_says_that_nothing_differs_and_asks_nobody(commands: Commands) -> None:
    with commands.model([calls(call("a", "list_files")), text("Nothing.")]) as server:
        commands("run", "--session", "chat-42", "What is here?")
        asked = len(server.requests)
        said = commands("replay", "chat-42").stdout
        assert "nothing differs in 10 records; 1 run ended (completed)" in said
        found = json.loads(commands("replay", "chat-42", "--json").stdout)
        assert found == {"session": "chat-42", "same": True, "records": 10, "runs": ["completed"], "open": False}
        assert len(server.requests) == asked == 2


def test_replay_names_the_record_that_does_not_follow(commands: Commands) -> None:
    with commands.model([text("Hi.")]):
        commands("run", "--session", "chat-42", "hello")
    (path,) = commands.home.rglob("*.db")

    async def change() -> None:
        journal = SQLiteJournal(path)
        log = journal.session("changed")
        for row in await journal.read("chat-42"):
            record = replace(row.record, text="Ho.") if isinstance(row.record, RunEnded) else row.record
            log.append(record, at=row.at)
        await log.durable()
        await journal.aclose()

    asyncio.run(change())
    done = commands("replay", "changed", code=1)
    assert "seq 5: the journal holds RunEnded" in " ".join(done.stderr.split())
    found = json.loads(commands("replay", "changed", "--json", code=1).stdout)
    assert (found["same"], found["seq"]) == (False, 5)
    assert "no session 'nobody'" in commands("replay", "nobody", code=2).stderr
