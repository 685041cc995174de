"""Every command's help has examples, and every example does what it says, against a scripted server."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from commands import Commands
from interlock.shells.cli.app import app
from interlock.shells.demo.clerk import Clerk
from interlock.shells.demo.work import SYSTEM_PROMPT
from interlock.testing import Step, call, calls, text

ROOT = Path(__file__).parent.parent.parent
MAIN = "import sys; from interlock.shells.cli import main; sys.exit(main())"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, below in command.commands.items():
        if hasattr(below, "commands"):
            yield from leaves(below, (*path, name))
        else:
            yield (*path, name)


PATHS = [(), *leaves(get_command(app))]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_the_examples_of_every_help_text_run(path: tuple[str, ...], commands: Commands) -> None:
    commands.environment.setenv("COLUMNS", "200")
    examples = re.findall(r"^ +\$ (.*)$", commands(*path, "--help").stdout, re.MULTILINE)
    assert examples
    for policy in ("review.toml", "coding.toml"):
        (commands.cwd / policy).write_text((ROOT / "examples" / "policies" / policy).read_text())
    assert all(f"interlock {' '.join(path)}".strip() in example for example in examples)
    clerk = Clerk(seed=0)

    def model(body: Mapping[str, Any]) -> Step:
        if body["messages"][0]["content"] == SYSTEM_PROMPT:
            return clerk(body)
        return text("Done.") if body["messages"][-1]["role"] == "tool" else calls(call("call-1", "list_files"))

    with commands.model(model) as server:
        commands.environment.setenv("INTERLOCK_LOCAL_SERVERS", server.base_url.removesuffix("/v1"))
        if path == ("resume",):
            commands.waits("chat-42", expires_s=0.0)
        elif path != ("answer",):
            commands("run", "--session", "chat-42", "What is here?")
        for example in examples:
            if path == ("answer",):  # each answers a question of its own
                commands.waits("chat-42")
            program, *arguments = shlex.split(example)
            if program == "interlock":
                commands(*arguments)
                if path == ("answer",):
                    commands("delete", "chat-42", "--yes")
            else:
                in_a_shell(example, commands.cwd)


def in_a_shell(example: str, cwd: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=cwd, check=True, timeout=20)
    (cwd / "bin").mkdir()
    script = cwd / "bin" / "interlock"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{MAIN}" "$@"\n')
    script.chmod(0o700)
    environment = {**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", example], cwd=cwd, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_fits_40_columns(path: tuple[str, ...], commands: Commands) -> None:
    commands.environment.setenv("COLUMNS", "40")
    said = commands(*path, "--help").stdout.partition("Examples:")[0]  # an example is one line, to be copied
    assert [line for line in said.splitlines() if len(line) > 40] == []


def test_help_and_completion_load_nothing_heavy() -> None:
    code = "import sys; sys.argv[1:] = ['--help']; from interlock.shells.cli.app import app\ntry: app()\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint({"rich", "msgspec", "asyncio", "aiohttp", "pydantic", "sqlite3", "http.client"})
    assert not {name for name in loaded if name.startswith("interlock.") and not name.startswith("interlock.shells")}


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("interlock del", {"delete"}), ("interlock config explain limits.requ", {"limits.requests"}), ("interlock show cha", {"chat-42"})],
)
def test_the_shell_completes_commands_keys_and_sessions(commands: Commands, typed: str, completed: set[str]) -> None:
    with commands.model([text("Done.")]):
        commands("run", "--session", "chat-42", "hello")
    commands.environment.setenv("_INTERLOCK_COMPLETE", "complete_bash")
    commands.environment.setenv("COMP_WORDS", typed)
    commands.environment.setenv("COMP_CWORD", str(typed.count(" ")))
    assert set(commands().stdout.split()) == completed


def test_completion_is_silent_where_anything_is_wrong(commands: Commands) -> None:
    (commands.cwd / "interlock.toml").write_text("nonsense")
    commands.environment.setenv("_INTERLOCK_COMPLETE", "complete_bash")
    commands.environment.setenv("COMP_WORDS", "interlock show ")
    commands.environment.setenv("COMP_CWORD", "2")
    done = commands()
    assert (done.stdout.strip(), done.stderr) == ("", "")
