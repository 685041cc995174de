"""`interlock run --json`: one object per line, in the documented shape, and a last line that says how it ended."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import NOWHERE, Commands
from interlock.shells.cli.jsonl import EVENT_TYPES
from interlock.testing import Step, call, calls, cut, error, hold, repeat, text

INTERLOCK = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())"]
DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def lines(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def documented() -> dict[str, set[str]]:
    """The fields of each type of line, as docs/cli.md has them."""
    content = DOCS.read_text(encoding="utf-8").split("<!-- json events -->")[1].split("<!-- end of json events -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", content, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", cells)) for name, cells in rows}


def test_the_documented_events_are_those_of_the_library() -> None:
    real = {name: set(event.__struct_fields__) for event, name in EVENT_TYPES.items()}
    real["run_finished"] = {"result"}
    real["error"] = {"error", "message", "session_id", "exit_code"}
    assert documented() == real


def test_every_line_has_the_documented_fields(commands: Commands) -> None:
    steps = [calls(call("c1", "list_files"), before="I look."), cut(after="It is"), text("I will.", finish="tool_calls"), text("Done.")]
    commands.environment.setenv("INTERLOCK_LIMITS_BACKOFF_S", "0.01")
    with commands.model(steps):
        done = commands("run", "--json", "Go.")
    fields = documented()
    made = lines(done.stdout)
    assert done.stderr == ""
    assert all(set(line) - {"type"} == fields[line["type"]] for line in made)
    kinds = [line["type"] for line in made]
    assert kinds[0] == "run_started"
    assert {"tool_call_delta", "tool_started", "tool_finished", "stream_restarted", "recovery_started", "model_finished"} <= set(kinds)
    result = made[-1]["result"]
    assert (kinds[-1], result["outcome"], result["text"], result["exit_code"]) == ("run_finished", "completed", "Done.", 0)
    assert result["usage"]["requests"] == 4


@pytest.mark.parametrize(
    ("steps", "arguments", "outcome", "code"),
    [
        ([repeat(text("I will read the file now.", finish="tool_calls"))], [], "incomplete", 10),
        ([text("That is", finish="content_filter")], [], "refused", 11),
        ([calls(call("c1", "list_files"))], ["--max-requests", "1"], "limit", 12),
        ([hold(asyncio.Event())], ["--deadline", "0.1"], "limit", 12),
    ],
)
def test_what_is_no_answer_has_its_outcome_and_code(
    commands: Commands, steps: list[Step], arguments: list[str], outcome: str, code: int
) -> None:
    with commands.model(steps):
        result = lines(commands("run", "--json", "Go.", *arguments, code=code).stdout)[-1]["result"]
    assert (result["outcome"], result["exit_code"]) == (outcome, code)


def test_an_error_is_the_last_line_too(commands: Commands) -> None:
    with commands.model([error(401, "no such key")]):
        done = commands("run", "--json", "--session", "s", "Go.", code=4)
    last = lines(done.stdout)[-1]
    assert (last["type"], last["error"], last["session_id"], last["exit_code"]) == ("error", "ProviderError", "s", 4)
    assert "no such key" in done.stderr
    commands.environment.delenv("INTERLOCK_MODEL")
    assert lines(commands("run", "--json", "Go.", code=2).stdout)[-1]["error"] == "UsageError"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_cancels_keeps_the_session_and_has_its_code(commands: Commands, number: signal.Signals, code: int) -> None:
    with commands.model([hold(asyncio.Event(), after="Thinking about it"), text("I am back.")]):
        process = subprocess.Popen(
            [*INTERLOCK, "run", "--json", "--session", "s", "Think."], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        while b"text_delta" not in process.stdout.readline():
            pass
        process.send_signal(number)
        rest, _ = process.communicate(timeout=20)
        assert process.returncode == code
        result = lines(rest.decode())[-1]["result"]
        assert (result["outcome"], result["reason"], result["exit_code"]) == ("cancelled", "cancelled", code)
        assert commands("run", "--session", "s", "Go on.").stdout == "I am back.\n"


def test_ctrl_c_works_while_stdin_is_still_open(commands: Commands) -> None:
    process = subprocess.Popen(
        [*INTERLOCK, "run", "--model", f"openai-compatible:x@{NOWHERE}/v1", "Go."],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"x" * 200_000)  # more than a pipe holds: once it is written, somebody is reading
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
