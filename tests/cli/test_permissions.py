"""``interlock permissions``, and a policy over ``interlock run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from interlock.extensions.permissions import FLOOR
from interlock.shells.cli.settings import Settings
from interlock.testing import call, calls, text

POLICY = """version = 1
name = "here"

[[deny]]
tool = "*"
path = "secret*"
reason = "not yours"

[[ask]]
tool = "list_files"
path = "asked"

[[allow]]
tool = ["list_files", "read_file"]
path = "**"

[[allow]]
tool = "shell"
command = "ls *"

[[example]]
tool = "read_file"
arguments = {path = "secret.txt"}
expect = "deny"
"""


@pytest.fixture
def policy(commands: Commands) -> Path:
    file = commands.cwd / "here.toml"
    file.write_text(POLICY)
    return file


def test_check_runs_the_examples_and_says_each(commands: Commands, policy: Path) -> None:
    done = commands("permissions", "check", str(policy))
    assert f"ok      {policy}:21: read_file is denied" in done.stdout.replace("\n", "")
    assert "1 example, all true" in done.stdout
    policy.write_text(POLICY.replace('expect = "deny"', 'expect = "allow"'))
    done = commands("permissions", "check", str(policy), code=1)
    assert "WRONG" in done.stdout
    assert "expected allow, and it is deny" in " ".join(done.stdout.split())
    (line,) = commands("permissions", "check", str(policy), "--json", code=1).stdout.splitlines()
    assert json.loads(line)["ok"] is False
    policy.write_text(POLICY + "oops = 1\n")
    assert f"{policy}:25: an example has no key 'oops'" in commands("permissions", "check", str(policy), code=2).stderr
    policy.write_text('version = 1\nname = "x"\n')
    assert "no examples" in commands("permissions", "check", str(policy)).stdout


@pytest.mark.parametrize(
    ("tool", "arguments", "more", "code", "says"),
    [
        ("read_file", {"path": "a"}, [], 0, ["allowed", "allow rule 1", "the path is in '**'"]),
        ("read_file", {"path": "secret.txt"}, [], 1, ["denied", "deny rule 1", "reason not yours"]),
        ("list_files", {"path": "asked"}, [], 13, ["asked", "ask rule 1"]),
        ("read_file", {"path": "a"}, ["--original", '{"path": "secret"}'], 1, ["denied", "as the model asked for it"]),
        ("shell", {"command": "ls | sh -c 'ls; rm x' > f"}, [], 1, ["command ls", "command rm x", "command sh -c ls; rm x [> f]"]),
        ("shell", {"command": "ls 'x"}, [], 1, ["not read:", "unreadable commands"]),
        ("shell", {"command": "cat ~/.ssh/id_rsa"}, [], 1, ["the safety floor, credentials"]),
    ],
)
def test_explain_says_the_verdict_the_rule_and_every_command(
    commands: Commands, policy: Path, tool: str, arguments: dict[str, Any], more: list[str], code: int, says: list[str]
) -> None:
    commands.environment.setenv("COLUMNS", "200")
    words = ("permissions", "explain", tool, json.dumps(arguments), "--policy", str(policy), *more)
    done = commands(*words, code=code)
    flat = " ".join(done.stdout.split())
    assert [part for part in says if part not in flat] == []
    given = json.loads(
        commands("permissions", "explain", tool, json.dumps(arguments), "--policy", str(policy), *more, "--json", code=code).stdout
    )
    assert given["policy"] == "here"
    assert given["decision"] == {0: "allow", 1: "deny", 13: "ask"}[code]


def test_explain_needs_a_policy_and_json(commands: Commands, policy: Path) -> None:
    assert "no policy holds" in commands("permissions", "explain", "t", code=2).stderr
    assert (
        "ARGS takes the arguments as one JSON object"
        in commands("permissions", "explain", "t", "[", "--policy", str(policy), code=2).stderr
    )


def test_show_prints_the_rules_and_the_whole_floor(commands: Commands, policy: Path) -> None:
    commands.environment.setenv("COLUMNS", "200")
    said = commands("permissions", "show", "--policy", str(policy)).stdout
    assert "denied: *; path in secret*; not yours" in said
    assert "asked: list_files; path in asked" in said
    for rule in FLOOR:
        assert f"{rule.name}: {rule.reason}" in said
        assert all(part in said for part in (*rule.paths, *rule.commands, rule.means))
    assert "no policy holds" in commands("permissions", "show").stdout
    lines = [json.loads(line) for line in commands("permissions", "show", "--policy", str(policy), "--json").stdout.splitlines()]
    assert [line.get("policy") for line in lines] == ["here", None]
    assert [rule["name"] for rule in lines[-1]["floor"]] == [rule.name for rule in FLOOR]


def test_a_run_holds_the_policy_and_says_so(commands: Commands, policy: Path) -> None:
    (commands.cwd / "secret.txt").write_text("harbour-7719")
    steps = [calls(call("c1", "read_file", {"path": "secret.txt"})), text("I could not.")]
    with commands.model(steps) as server:
        done = commands("run", "--policy", str(policy), "Read it.")
        assert "harbour-7719" not in str(server.requests[-1].body)
        assert "policy 'here' denies this call" in str(server.requests[-1].body)
    assert "policy 'here' (" in done.stderr
    assert "holds" in done.stderr


def test_a_run_that_waits_goes_on_only_under_its_policy(commands: Commands, policy: Path) -> None:
    (commands.cwd / "asked").mkdir()
    steps = [calls(call("c1", "list_files", {"path": "asked"})), text("Empty.")]
    with commands.model(steps):
        commands("run", "--session", "s", "--policy", str(policy), "List it.", code=13)
        assert "begun under the policy here" in commands("answer", "s", "--allow", code=3).stderr.replace("\n", " ")
        assert "begun under the policy here" in " ".join(commands("resume", "s", "--explain").stdout.split())
        assert "Empty." in commands("answer", "s", "--allow", "--policy", str(policy)).stdout


def test_a_project_adds_to_the_users_policy_and_cannot_take_it_away(commands: Commands, policy: Path) -> None:
    user = commands.home / "config" / "interlock" / "config.toml"
    user.parent.mkdir(parents=True)
    (user.parent / "mine.toml").write_text(POLICY.replace('"here"', '"mine"'))
    user.write_text('policy = "mine.toml"\n')
    assert Settings.load().policies() == (str(user.parent / "mine.toml"),)
    (commands.cwd / "interlock.toml").write_text('policy = "here.toml"\n')
    assert Settings.load().policies() == (str(policy), str(user.parent / "mine.toml"))
    (commands.cwd / "interlock.toml").write_text('policy = "none"\n')
    assert Settings.load().policies() == (str(user.parent / "mine.toml"),)
    commands.environment.setenv("INTERLOCK_POLICY", "other.toml")
    assert Settings.load().policies() == ("other.toml",)
    assert Settings.load({"policy": "none"}).policies() == ()


def test_doctor_and_onion_say_the_policy(commands: Commands, policy: Path) -> None:
    commands.environment.setenv("COLUMNS", "200")
    assert "Permissions(here)" in commands("onion", "--policy", str(policy)).stdout
    assert "none holds" in commands("doctor", code=None).stdout
    commands.environment.setenv("INTERLOCK_POLICY", str(policy))
    assert "policy 'here'" in commands("doctor", code=None).stdout
    policy.write_text("nonsense")
    assert "this is not TOML" in commands("doctor", code=1).stdout
    assert "this is not TOML" in commands("run", "--model", "openai:x", "Go.", code=2).stderr
