"""models, doctor, onion, and `--model auto`: what can be used from here. Keys are never shown, and nothing waits long."""

from __future__ import annotations

import json

import pytest

from commands import NOWHERE, Commands
from interlock.errors import UsageError
from interlock.shells.finding import auto_model, find_servers
from interlock.testing import call, calls, text

SECRET = "sk-very-secret-1234567890"


@pytest.mark.parametrize("command", [["models"], ["models", "--json"], ["doctor"], ["doctor", "--json"], ["config", "show"]])
def test_a_key_is_said_to_be_set_and_never_shown(commands: Commands, command: list[str]) -> None:
    commands.environment.setenv("OPENAI_API_KEY", SECRET)
    commands.environment.setenv("OPENAI_BASE_URL", f"{NOWHERE}/v1")
    said = commands(*command)
    assert SECRET not in said.stdout + said.stderr
    if "show" not in command and "--json" not in command:
        assert "OPENAI_API_KEY is set" in said.stdout
        assert "DEEPSEEK_API_KEY is not set" in said.stdout


def test_a_local_server_is_found_with_its_models(commands: Commands) -> None:
    with commands.model([]) as server:
        url = server.base_url.removesuffix("/v1")
        commands.environment.setenv("INTERLOCK_LOCAL_SERVERS", f"{NOWHERE},{url}")
        assert f"{url}  scripted" in commands("models").stdout
        found = json.loads(commands("models", "--json").stdout)["local_servers"]
        assert [(one["url"], one["answers"], one["models"]) for one in found] == [(NOWHERE, False, []), (url, True, ["scripted"])]


def test_auto_takes_a_key_before_a_local_server_and_says_what_it_found(commands: Commands) -> None:
    with commands.model([text("Done.")]) as server:
        url = server.base_url.removesuffix("/v1")
        commands.environment.setenv("INTERLOCK_LOCAL_SERVERS", url)
        done = commands("run", "--model", "auto", "Go.")
        assert done.stdout == "Done.\n"
        assert f"model openai-compatible:scripted@{url}/v1 (found: server at {url})" in done.stderr
        commands.environment.setenv("OPENAI_API_KEY", SECRET)
        spec, where = auto_model(servers=[url])
        assert (spec.split(":")[0], where) == ("openai", "OPENAI_API_KEY")


@pytest.mark.parametrize("command", [["run", "--model", "auto", "Go."], ["demo", "--model", "auto"]])
def test_auto_that_finds_nothing_says_what_to_set(commands: Commands, command: list[str]) -> None:
    said = commands(*command, code=2).stderr
    assert "OPENAI_API_KEY" in said
    assert NOWHERE in said
    assert "openai-compatible:NAME@http://host/v1" in said
    with pytest.raises(UsageError, match="local_servers is empty"):
        auto_model(servers=[])


def test_a_url_that_makes_no_sense_is_a_server_that_is_not_there() -> None:
    assert [server.works for server in find_servers(["nonsense", "http://127.0.0.1:99999", "http://"])] == [False] * 3


def test_doctor_finds_nothing_broken_and_shows_the_onion_in_order(commands: Commands) -> None:
    with commands.model([text("Done.")]):
        commands("run", "hello")
        said = commands("doctor").stdout
    assert "integrity_check ok, 1 sessions" in said
    assert "reachable (HTTP 200)" in said
    order = [
        said.index(name)
        for name in ("1. RedactSecrets", "2. CoerceArguments", "3. ToolLog", "4. Approvals", "5. RuntimeTools", "6. UrlGuard")
    ]
    assert order == sorted(order)
    assert "nothing is broken" in said


def test_doctor_names_what_is_broken_and_exits_with_1(commands: Commands) -> None:
    (commands.cwd / "broken.db").write_bytes(b"this is no database, " * 100)
    commands.environment.setenv("INTERLOCK_JOURNAL", "sqlite:///broken.db")
    commands.environment.setenv("INTERLOCK_MODEL", f"openai-compatible:x@{NOWHERE}/v1")
    checks = [json.loads(line) for line in commands("doctor", "--json", code=1).stdout.splitlines()]
    broken = {check["topic"]: check["what"] for check in checks if check["state"] == "broken"}
    assert set(broken) == {"endpoints", "journal"}
    assert "not reachable" in broken["endpoints"]
    assert "broken.db" in broken["journal"]


@pytest.mark.parametrize("model", ["openai:x", "nonsense", "auto"])
def test_doctor_says_that_a_model_cannot_be_used(commands: Commands, model: str) -> None:
    commands.environment.setenv("INTERLOCK_MODEL", model)
    assert "✗ " + model in commands("doctor", code=1).stdout


def test_doctor_sees_through_broken_settings(commands: Commands) -> None:
    (commands.cwd / "interlock.toml").write_text("modle = 'x'\n")
    said = commands("doctor", code=1).stdout
    assert "interlock.toml:1" in said
    assert "which layers there are depends on the settings" in said


def test_doctor_finds_a_damaged_page(commands: Commands) -> None:
    with commands.model([text("word " * 20_000)]):
        commands("run", "hello", "--journal", "sqlite:///here.db")
    path = commands.cwd / "here.db"
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 2 + 64] = b"\xff" * 64
    path.write_bytes(data)
    commands.environment.delenv("INTERLOCK_MODEL")
    commands.environment.setenv("INTERLOCK_JOURNAL", "sqlite:///here.db")
    said = commands("doctor", code=1).stdout
    assert "here.db" in next(line for line in said.splitlines() if "✗" in line)


def test_a_project_that_chooses_the_model_is_said(commands: Commands) -> None:
    with commands.model([text("Done.")]) as server:
        commands.environment.delenv("INTERLOCK_MODEL")
        path = commands.cwd / "interlock.toml"
        path.write_text(f'model = "openai-compatible:scripted@{server.base_url}"\nsystem = "Be brief."\n')
        done = commands("run", "hello")
        assert f"(set by {path}:1)" in done.stderr
        assert server.requests[0].body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_the_onion_is_the_agents(commands: Commands) -> None:
    layers = [json.loads(line) for line in commands("onion", "--json").stdout.splitlines()]
    assert [layer["name"] for layer in layers] == ["RedactSecrets", "CoerceArguments", "ToolLog", "Approvals", "RuntimeTools", "UrlGuard"]
    assert layers[-1]["hooks"] == ["on_tool_call"]


@pytest.mark.parametrize("redact", [None, "false"])
def test_keys_in_files_reach_neither_the_model_nor_the_journal(commands: Commands, redact: str | None) -> None:
    own, held = "sk-" + "a1B2" * 12, "this-is-what-the-provider-gave"
    commands.environment.setenv("DEEPSEEK_API_KEY", held)
    if redact is not None:
        commands.environment.setenv("INTERLOCK_REDACT", redact)
    (commands.cwd / ".env").write_text(f"A={own}\nB={held}\nC=plain\n")
    with commands.model([calls(call("c1", "read_file", {"path": ".env"})), text(f"One is {own}.")]) as server:
        done = commands("run", "--session", "s", "What is in .env?")
        heard = server.requests[-1].body["messages"][-1]["content"]
    kept = commands("export", "s", "--format", "jsonl").stdout
    assert "C=plain" in heard
    for everywhere in (heard, done.stdout, done.stderr, kept):
        shown = (own in everywhere, held in everywhere)
        assert shown == (False, False) or redact is not None
    assert (own in heard, held in heard) == ((True, True) if redact is not None else (False, False))


def test_doctor_sends_each_vendor_its_key_as_that_vendor_takes_it(commands: Commands) -> None:
    from interlock.agent.models import vendors
    from interlock.shells.cli.doctor import _endpoint  # pyright: ignore[reportPrivateUsage]

    for name in ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"):
        commands.environment.delenv(name, raising=False)
    commands.environment.setenv("GOOGLE_API_KEY", "k1")
    google = next(vendor for vendor in vendors() if vendor.name == "google")
    assert google.key_variable == "GOOGLE_API_KEY"
    assert _endpoint(google, "") == ("https://generativelanguage.googleapis.com", {"x-goog-api-key": "k1"})
