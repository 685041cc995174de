"""sessions, show, log, export, delete: what is in the journal, without changing it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commands import Commands
from interlock.shells.cli.text import counted, outcome_words
from interlock.testing import call, calls, hold, text

INTERLOCK = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())"]


@pytest.fixture
def chat(commands: Commands) -> Commands:
    """One session, chat-42: a question, two calls of which one fails, an answer."""
    wanted = [call("c1", "list_files"), call("c2", "read_file", {"path": "gone.txt"})]
    (commands.cwd / "notes.txt").write_text("six o'clock")
    with commands.model([calls(*wanted, before="Let me look."), text("At **six**, 海の時間.")]):
        commands("run", "--session", "chat-42", "When does the tide turn?")
    return commands


def test_the_list_says_state_age_records_and_the_first_prompt(chat: Commands) -> None:
    (line,) = chat("sessions").stdout.splitlines()
    assert line.split()[:2] == ["chat-42", "idle"]
    assert line.endswith("records  When does the tide turn?")
    listed = json.loads(chat("sessions", "--json").stdout)
    assert (listed["session_id"], listed["state"], listed["prompt"]) == ("chat-42", "idle", "When does the tide turn?")


@pytest.mark.parametrize("command", ["show", "log", "export"])
def test_before_the_first_session_each_says_so_and_creates_nothing(commands: Commands, command: str) -> None:
    assert "no sessions yet" in commands("sessions").stderr
    assert "no sessions yet" in commands(command, code=2).stderr
    assert list(commands.home.iterdir()) == []


def test_show_is_the_conversation(chat: Commands) -> None:
    shown = chat("show").stdout
    for part in (
        "> When does the tide turn?",
        "Let me look.",
        "→ list_files",
        "✓ list_files: notes.txt",
        "✗ (effect: ",
        "At **six**, 海の時間.",
    ):
        assert part in shown


def test_where_a_run_ended_without_an_answer_is_seen_between_what_was_said(commands: Commands) -> None:
    with commands.model([calls(call("c1", "list_files")), text("Nothing here.")]):
        commands("run", "--session", "s", "--max-requests", "1", "What is here?", code=12)
        commands("run", "--session", "s", "And now?")
    shown, document = commands("show").stdout, commands("export", "--format", "markdown").stdout
    for seen, said in ((shown, "limit (requests)"), (document, "*The run ended here: limit (requests).*")):
        assert seen.index("What is here?") < seen.index(said) < seen.index("And now?") < seen.index("Nothing here.")
        assert seen.count("limit (requests)") == 1


def test_show_shortens_long_results_unless_full(commands: Commands) -> None:
    (commands.cwd / "long.txt").write_text("\n".join(f"line {number}" for number in range(40)))
    with commands.model([calls(call("c1", "read_file", {"path": "long.txt"})), text("Long.")]):
        commands("run", "Read it.")
    assert "... 28 more lines (--full)" in commands("show").stdout
    assert "line 39" in commands("show", "--full").stdout


def test_a_session_is_found_by_the_beginning_of_its_id(chat: Commands) -> None:
    with chat.model([text("Good morning.")]):
        chat("run", "--session", "chat-77", "hello")
    assert "Good morning." in chat("show").stdout  # the newest
    assert "tide" in chat("show", "chat-4").stdout
    assert "several sessions begin with 'chat'" in chat("show", "chat", code=2).stderr
    assert "there is no session 'x'" in chat("show", "x", code=2).stderr


def test_the_log_has_every_record(chat: Commands) -> None:
    lines = chat("log").stdout.splitlines()
    rows = [json.loads(line) for line in chat("log", "--json").stdout.splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(lines) + 1))
    assert {"RunStarted", "HandlerStarted", "ToolStepEnded", "RunEnded"} <= {row["record"]["type"] for row in rows}
    assert all(row["record"]["type"] in line for row, line in zip(rows, lines, strict=True))


def test_following_the_log_shows_what_another_process_writes_until_ctrl_c(chat: Commands) -> None:
    process = subprocess.Popen([*INTERLOCK, "log", "chat-42", "--follow", "--json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    before = json.loads(process.stdout.readline())
    with chat.model([text("Good night.")]):
        chat("run", "--session", "chat-42", "Thank you.")
    ended = 0
    while ended < 2:
        ended += json.loads(process.stdout.readline())["record"]["type"] == "RunEnded"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    process.stdout.close()
    assert before["seq"] == 1


def test_export_as_json_has_the_transcript_and_as_jsonl_every_record(chat: Commands) -> None:
    document = json.loads(chat("export", "chat-42").stdout)
    assert [message["type"] for message in document["messages"]] == ["user", "assistant", "tool", "tool", "assistant"]
    assert document["runs"][0]["outcome"] == "completed"
    assert document["usage"]["requests"] == 2
    assert chat("export", "--format", "jsonl").stdout == chat("log", "--json").stdout


def test_export_as_markdown_cannot_be_broken_out_of(commands: Commands) -> None:
    (commands.cwd / "fence.md").write_text("```\n# not a heading\n```")
    with commands.model([calls(call("c1", "read_file", {"path": "fence.md"})), text("I see.")]):
        commands("run", "--session", "s", "Read it.")
    assert "````\n```\n# not a heading\n```\n````" in commands("export", "--format", "markdown").stdout


def test_export_writes_a_new_private_file(chat: Commands) -> None:
    chat("export", "-o", "chat.json")
    path = chat.cwd / "chat.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text(encoding="utf-8"))["session"]["id"] == "chat-42"
    assert "exists" in chat("export", "-o", "chat.json", code=2).stderr
    assert "cannot be written" in chat("export", "-o", "nowhere/chat.json", code=2).stderr


def test_delete_needs_a_yes(chat: Commands) -> None:
    assert "add --yes" in chat("delete", "chat-42", code=2).stderr
    assert "chat-42" in chat("sessions").stdout
    chat("delete", "chat-42", "--yes")
    assert chat("sessions").stdout == ""


@pytest.mark.parametrize(("typed", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_delete_asks_on_a_terminal(chat: Commands, typed: bytes, code: int, left: int) -> None:
    primary, secondary = pty.openpty()
    process = subprocess.Popen([*INTERLOCK, "delete", "chat-42"], stdin=secondary, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(secondary)
    os.write(primary, typed)
    _, said = process.communicate(timeout=20)
    os.close(primary)
    assert process.returncode == code
    assert b"Delete session chat-42" in said
    assert len(chat("sessions").stdout.splitlines()) == left


def test_a_running_session_is_listed_and_not_deleted_and_one_whose_process_died_is_abandoned(commands: Commands) -> None:
    with commands.model([hold(asyncio.Event(), after="Thinking")]):
        process = subprocess.Popen(
            [*INTERLOCK, "run", "--json", "--session", "s", "Think."], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        while b"text_delta" not in process.stdout.readline():
            pass
        assert "running" in commands("sessions").stdout
        assert "is being run by process" in commands("delete", "s", "--yes", code=3).stderr
        process.kill()
        process.wait(20)
        process.stdout.close()
    listed = commands("sessions")
    assert "abandoned" in listed.stdout
    assert "its process died" in listed.stderr


def test_a_damaged_journal_is_one_sentence_and_code_5(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database, " * 100)
    for command in (["sessions"], ["show"], ["log"], ["export"], ["delete", "x", "--yes"]):
        done = commands(*command, "--journal", f"sqlite:///{tmp_path}/broken.db", code=5)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["sessions"], ["show"], ["log"], ["log", "--json"], ["export"], ["onion"], ["config", "show"]])
def test_a_reader_that_has_left_is_code_141(chat: Commands, command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen([*INTERLOCK, *command], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 141
    assert b"Traceback" not in said
    assert b"Exception ignored" not in said


def test_an_age_without_a_unit_is_refused_before_anything_is_deleted(chat: Commands) -> None:
    assert "'30' has no unit: write 30d, 12h or 90s" in chat("prune", "--older-than", "30", "--yes", code=2).stderr
    assert "1 session would be deleted" in chat("prune", "--older-than", "0s", "--dry-run").stderr
    assert len(chat("sessions", "--json").stdout.splitlines()) == 1


def test_a_cancelled_run_is_said_once_and_one_request_is_one() -> None:
    assert (outcome_words("cancelled", "cancelled"), outcome_words("limit", "requests")) == ("cancelled", "limit (requests)")
    assert (counted(0, "request"), counted(1, "request"), counted(2, "request")) == ("0 requests", "1 request", "2 requests")
