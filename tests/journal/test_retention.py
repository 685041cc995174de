"""What was deleted is gone from the files, and what is in use, or in the middle of something, is not deleted."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, limits
from interlock import Agent, AgentExtension, AgentRunConfig, Outcome, ProviderError, RunContext
from interlock.extensions.base import CallNext, Suspended, ToolInvocation
from interlock.journal import MemoryJournal, SQLiteJournal
from interlock.journal.memory import MemoryStore
from interlock.messages import UserMessage
from interlock.records import RunEnded, RunStarted
from interlock.testing import ScriptedModel, call, calls, error, text
from journal.journal_help import data_of, note, program

YEAR = 366 * 86400.0


def holding(folder: Path, words: bytes) -> list[str]:
    return [path.name for path in sorted(folder.iterdir()) if words in path.read_bytes()]


async def fill_interleaved(journal: SQLiteJournal, *, sizes: tuple[int, ...], rounds: int = 40) -> None:
    """Rows of a session that will go, and of some that stay, side by side on the same pages, and payloads of both."""
    chance = random.Random(1)
    logs = {name: journal.session(name) for name in ("secret", "a", "b", "c")}
    for log in logs.values():
        await log.claim(lease_s=15)
        log.append(RunStarted(run_id="r", prompt=UserMessage(content="Hi.")), at=1.0)
    for number in range(rounds):
        for name, log in logs.items():
            word = "S3CRET" if name == "secret" else "public"
            log.append(note(f"{word}-{number}-" + f"{word} " * (chance.choice(sizes) // 7)), at=1.0)
            log.put_payload(f"{number}", f"{word} ".encode() * (chance.choice(sizes) // 7))
            if chance.random() < 0.3:
                await log.durable()
    for log in logs.values():
        log.append(RunEnded(run_id="r", outcome=Outcome.COMPLETED, reason="answer"), at=1.0)
        await log.release()


@pytest.mark.parametrize("how", ["delete", "prune"])
@pytest.mark.parametrize("sizes", [(70,), (1400, 700), (30_000, 100), (70, 700, 7000, 70_000)], ids=str)
def test_no_byte_of_a_deleted_session_stays_in_the_database_or_its_log(how: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = SQLiteJournal(tmp_path / "agent.db")
        await fill_interleaved(journal, sizes=sizes)
        assert holding(tmp_path, b"S3CRET") != []
        if how == "delete":
            assert await journal.delete("secret")
        else:
            assert [info.session_id for info in await journal.prune(older_than_s=YEAR, keep=("a", "b", "c"))] == ["secret"]
        assert holding(tmp_path, b"S3CRET") == []
        assert holding(tmp_path, b"public") == ["agent.db"]
        log = journal.session("a")
        await log.claim(lease_s=15)
        log.append(note("S3CRET again"), at=1.0)
        await log.release()
        assert len(await journal.read("a")) == 43
        await journal.aclose()

    asyncio.run(scenario())
    connection = sqlite3.connect(tmp_path / "agent.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_while_another_process_reads_the_deleted_bytes_stay_in_the_log_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agent.db"

    async def scenario() -> None:
        journal = SQLiteJournal(path, busy_s=0.01)
        await fill_interleaved(journal, sizes=(700,))
        body = """
        import sqlite3
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM log").fetchone()
        say("reading")
        hear()
        connection.execute("COMMIT")
        connection.close()
        """
        with program(body, path) as reader:
            assert reader.hear() == "reading"
            assert await journal.delete("secret")
            assert await journal.read("secret") == []
            said = [record.getMessage() for record in caplog.records if record.name == "interlock.journal"]
            assert len(said) == 1
            assert "another process is reading it" in said[0]
            assert holding(tmp_path, b"S3CRET") != []
            reader.say()
            reader.end()
        await journal.aclose()  # the last one to leave empties the log
        assert holding(tmp_path, b"S3CRET") == []

    asyncio.run(scenario())


class Ask(AgentExtension):
    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return await call_next() if context.answer is not None else Suspended("Really?")


async def pay(invoice: str) -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_only_what_has_ended_is_pruned_by_a_real_agents_word(store: str, tmp_path: Path) -> None:
    """One session ended, one waits for a person, one failed at the model's side; all of them a year ago."""
    shared = MemoryStore()

    def journal() -> Any:
        return MemoryJournal(shared) if store == "memory" else SQLiteJournal(tmp_path / "agent.db")

    async def scenario() -> None:
        def steps(body: dict[str, Any]) -> Any:
            prompt = body["messages"][0]["content"]
            if prompt == "fail":
                return error(400)
            return calls(call("", "pay", {"invoice": "A"})) if prompt == "ask" and len(body["messages"]) == 1 else text("Done.")

        made = journal()
        options: dict[str, Any] = {"journal": made, "tools": [pay], "extensions": [Ask()], "clock": lambda: 1000.0, "limits": limits()}
        async with await Agent.create(ScriptedModel(steps), **options) as agent:
            waiting = await agent.run("ask", config=AgentRunConfig(session_id="asked"))
            await agent.run("go", config=AgentRunConfig(session_id="ended"))
            with pytest.raises(ProviderError):
                await agent.run("fail", config=AgentRunConfig(session_id="failed"))
            assert [info.session_id for info in await made.prune(older_than_s=YEAR, dry_run=True)] == ["ended"]
            assert [info.session_id for info in await made.prune(older_than_s=YEAR)] == ["ended"]
            # What was waiting is answered, and old enough to go then.
            result = await agent.session("asked").answer(waiting.questions[0].id)
            assert result.outcome is Outcome.COMPLETED
            assert [info.session_id for info in await made.prune(older_than_s=YEAR)] == ["asked"]
            # The agent had the session in its hands: it begins anew.
            assert (await agent.run("go", config=AgentRunConfig(session_id="new"))).text == "Done."
        assert {info.session_id for info in await made.sessions()} == {"failed", "new"}
        await made.aclose()

    asyncio.run(scenario())


def test_a_run_that_is_under_way_is_not_pruned_from_inside() -> None:
    pruned: list[Any] = []

    async def scenario() -> None:
        journal = MemoryJournal()

        async def clean_up() -> str:
            pruned.append(await journal.prune(older_than_s=0))
            return "clean"

        steps = [calls(call("a", "clean_up")), text("Done.")]
        async with agent_playing(steps, tools=[clean_up], journal=journal) as agent:
            assert (await agent.run("Clean up.")).text == "Done."

    asyncio.run(scenario())
    assert pruned == [[]]


@pytest.mark.parametrize("damage", ["UPDATE log SET body = x'00' WHERE seq = 3", "UPDATE log SET v = 99 WHERE seq = 3"])
def test_what_cannot_be_read_is_kept_for_a_person_to_look_at(damage: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "agent.db"
        journal = SQLiteJournal(path)
        log = journal.session("s")
        for record in (RunStarted(run_id="r", prompt=UserMessage(content="Hi.")), note(1), note(2)):
            log.append(record, at=1.0)
        await log.durable()
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute(damage)
        connection.close()
        assert await journal.prune(older_than_s=YEAR) == []
        assert await journal.delete("s")
        await journal.aclose()

    asyncio.run(scenario())


def test_a_session_that_was_taken_up_again_between_the_look_and_the_deletion_is_kept(tmp_path: Path) -> None:
    """The list is a look; whether it may be deleted is asked in the transaction that deletes."""
    path = tmp_path / "agent.db"

    async def scenario() -> None:
        first, second = SQLiteJournal(path), SQLiteJournal(path)
        for name in ("s", "t"):
            log = first.session(name)
            log.append(note("old"), at=1.0 if name == "s" else 2.0)
            await log.durable()
        look = second.sessions

        async def late() -> Any:
            infos = await look()
            log = first.session("s")
            await log.claim(lease_s=15)
            log.append(note("new"), at=3.0)
            await log.durable()
            return infos

        second.sessions = late  # type: ignore[method-assign]
        assert [info.session_id for info in await second.prune(older_than_s=YEAR)] == ["t"]
        assert data_of(await first.read("s")) == ["old", "new"]
        await first.aclose()
        await second.aclose()

    asyncio.run(scenario())
