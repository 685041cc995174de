"""resume and answer: going on with what another process has left open."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from commands import Commands
from interlock import Agent, AgentRunConfig, RunContext, Suspended, extension
from interlock.shells.cli.settings import Settings
from interlock.testing import ScriptedModel, call, calls, error, hold, text
from threaded import serving

INTERLOCK = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())"]


def states(commands: Commands) -> dict[str, str]:
    listed = [json.loads(line) for line in commands("sessions", "--json").stdout.splitlines()]
    return {one["session_id"]: one["state"] for one in listed}


def test_a_provider_that_failed_leaves_a_session_that_resume_goes_on_with(commands: Commands) -> None:
    with commands.model([error(401, "no such key")]):
        failed = commands("run", "--session", "chat-42", "What is here?", code=4)
    assert "interlock resume chat-42" in failed.stderr
    assert states(commands) == {"chat-42": "stopped"}
    assert "stopped: " in commands("sessions").stderr
    with commands.model([text("Nothing much.")]):
        plan = commands("resume", "chat", "--explain").stdout
        assert "Run run-" in plan
        assert plan.endswith("Then the model is asked.\n")
        assert states(commands) == {"chat-42": "stopped"}
        assert commands("resume", "chat-42").stdout == "Nothing much.\n"
    assert states(commands) == {"chat-42": "idle"}
    with commands.model([]):
        assert "no open run" in commands("resume", "chat-42", code=3).stderr
        assert "no open run" in commands("resume", "chat-42", "--explain", code=3).stderr


@pytest.mark.parametrize("wanted", [["--allow"], ["--text", "go ahead"]])
def test_a_question_is_shown_and_answered_from_another_process(commands: Commands, wanted: list[str]) -> None:
    id = commands.waits("chat-42")
    (commands.cwd / "notes.txt").touch()
    assert states(commands) == {"chat-42": "waiting"}
    shown = commands("answer", "chat-42").stdout
    assert "May I list_files?" in shown
    assert f"interlock answer chat-42 --question {id} --allow" in shown
    assert json.loads(commands("answer", "chat-42", "--json").stdout)["id"] == id
    with commands.model([text("One file.")]):
        done = commands("answer", "chat-42", *wanted)
        assert done.stdout == "One file.\n"
        assert "✓ list_files" in done.stderr
        assert "asks nothing" in commands("answer", "chat-42", *wanted, code=3).stderr


def test_a_denial_reaches_the_model_and_nothing_runs(commands: Commands) -> None:
    commands.waits("chat-42")
    with commands.model([text("Then not.")]) as server:
        done = commands("answer", "chat-42", "--deny", "not on a Monday")
        (request,) = server.requests
    assert done.stdout == "Then not.\n"
    assert "denied: not on a Monday" in request.body["messages"][-1]["content"]
    assert "✗ list_files" in done.stderr


def test_an_edit_runs_with_the_edited_arguments(commands: Commands) -> None:
    (commands.cwd / "deep").mkdir()
    (commands.cwd / "deep" / "down.txt").touch()
    commands.waits("chat-42")
    with commands.model([text("Deep.")]) as server:
        done = commands("answer", "chat-42", "--edit", '{"path": "deep"}')  # the command line has no layer that asks again
        assert '→ list_files (edited) {"path":"deep"}' in done.stderr
        assert "down.txt" in server.requests[0].body["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--allow", "--deny", "no"], "one answer"),
        (["--edit", "[1]"], "JSON object"),
        (["--edit", "{"], "JSON object"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none_and_the_question_stays_open(commands: Commands, arguments: list[str], message: str) -> None:
    commands.waits("chat-42")
    with commands.model([]):
        assert message in commands("answer", "chat-42", *arguments, code=2).stderr
        assert "no open question" in commands("answer", "chat-42", "--question", "nope", "--allow", code=3).stderr
    assert states(commands) == {"chat-42": "waiting"}


def test_an_expired_question_is_a_denial_that_resume_delivers(commands: Commands) -> None:
    commands.waits("chat-42", expires_s=0.0)
    with commands.model([text("Nobody was there.")]):
        assert "expired" in commands("answer", "chat-42", "--allow", code=3).stderr
        assert commands("resume", "chat-42").stdout == "Nobody was there.\n"


def test_a_killed_run_is_abandoned_and_explained_and_goes_on(commands: Commands) -> None:
    gate = asyncio.Event()
    with serving([calls(call("c1", "list_files")), hold(gate)]) as server:
        environment = {**os.environ, "INTERLOCK_MODEL": f"openai-compatible:scripted@{server.base_url}"}
        arguments = [*INTERLOCK, "run", "--json", "--session", "chat-42", "What is here?"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if json.loads(line).get("turn") == 1:  # the result is stored, and the second request is under way
                    break
            assert states(commands)["chat-42"] == "running"
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert states(commands) == {"chat-42": "abandoned"}
    assert "abandoned: " in commands("sessions").stderr
    with commands.model([text("An empty folder.")]) as server:
        assert "Then the model is asked." in commands("resume", "chat-42", "--explain").stdout
        assert commands("resume", "chat-42").stdout == "An empty folder.\n"
        assert [message["role"] for message in server.requests[0].body["messages"]] == ["system", "user", "assistant", "tool"]


def test_a_question_of_a_program_with_tools_of_its_own_is_shown_and_left_to_that_program(commands: Commands) -> None:
    def pay(euros: int) -> str:
        """Pay somebody."""
        raise AssertionError

    @extension
    async def ask(context: RunContext, call: Any, call_next: Any) -> Any:
        return Suspended("Pay?")

    async def program() -> str:
        model, config = ScriptedModel([calls(call("c1", "pay", {"euros": 5}))]), AgentRunConfig(session_id="desk")
        async with await Agent.create(model, config=config, tools=[pay], extensions=[ask], journal=Settings.load().journal()) as agent:
            return (await agent.run("Pay.")).questions[0].id

    id = asyncio.run(program())
    shown = commands("answer", "desk").stdout
    assert '? pay: Pay? (asked by ask)\n  {\n    "euros": 5\n  }\n' in shown
    assert f"interlock answer desk --agent MODULE:FUNCTION --question {id} --allow" in shown
    assert f"in the program that has pay: await agent.answer('{id}', True)" in shown
    with commands.model([]):
        assert "in the program that has them; or begin a new run" in commands("answer", "desk", "--allow", code=3).stderr


def test_a_question_that_is_not_open_is_not_answered_with_another_one(commands: Commands) -> None:
    id = commands.waits("chat-42")
    assert "May I list_files?" in commands("answer", "chat-42", "--question", id).stdout
    assert "does not ask 'nope'" in commands("answer", "chat-42", "--question", "nope", code=3).stderr
