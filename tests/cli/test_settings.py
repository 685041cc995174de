"""Settings: one schema, flag over environment over project over user over default, and errors that name file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import fields

from commands import Commands
from interlock.errors import UsageError
from interlock.records import Limits
from interlock.shells.cli.settings import SCHEMA, Settings, seconds


def user_file(commands: Commands, text: str) -> Path:
    path = commands.home / "config" / "interlock" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_flag_over_environment_over_project_over_user_over_default(commands: Commands) -> None:
    key = "limits.requests"
    assert Settings.load().of(key) == (100, "default", "default")
    user = user_file(commands, "[limits]\nrequests = 10\n")
    assert Settings.load().of(key) == (10, "user", f"{user}:2")
    project = commands.cwd / "interlock.toml"
    project.write_text("# ours\n[limits]\nrequests = 20\n")
    assert Settings.load().of(key) == (20, "project", f"{project}:3")
    commands.environment.setenv("INTERLOCK_LIMITS_REQUESTS", "30")
    assert Settings.load().of(key) == (30, "environment", "INTERLOCK_LIMITS_REQUESTS")
    settings = Settings.load({key: 40})
    assert settings.of(key) == (40, "flag", "--max-requests")
    assert [found.value for found in settings.found[key]] == [40, 30, 20, 10, 100]
    assert settings.limits().requests == 40
    assert settings.files == (project, user)


def test_the_project_file_is_found_upwards_and_its_journal_lies_beside_it(commands: Commands) -> None:
    (commands.cwd / "interlock.toml").write_text('journal = "sqlite:///kept here.db?durability=power"\n')
    (commands.cwd / "a" / "b").mkdir(parents=True)
    commands.environment.chdir(commands.cwd / "a" / "b")
    assert Settings.load().journal() == f"sqlite:///{commands.cwd}/kept%20here.db?durability=power"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('\nmodle = "openai:x"\n', 2, "'modle'; did you mean model?"),
        ('[limits]\nrequests = "many"\n', 2, "limits.requests: a whole number is needed, not 'many'"),
        ("limits.requests = true\n", 1, "a whole number is needed, not True"),
        ("limits = {requests = 0}\n", 1, "at least 1 is needed"),
        ("limits = 3\n", 1, "limits is a table"),
        ("requests = 3\n", 1, "did you mean limits.requests?"),
        ("[limits]\ndeadline_s = 'soon'\n", 2, "a number of seconds"),
        ("[limits]\n\nreqests = 4\n", 3, "did you mean limits.requests?"),
        ("[server]\nport = 4\n", 1, "there is no setting 'server'"),
        ("markdown = 'yes'\n", 1, "true or false is needed"),
        ("local_servers = 'http://127.0.0.1:1'\n", 1, "a list of texts is needed"),
        ('model = ""\n', 1, "text in quotes is needed"),
    ],
)
def test_what_does_not_fit_is_named_with_file_and_line(commands: Commands, text: str, line: int, says: str) -> None:
    path = commands.cwd / "interlock.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        Settings.load()
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert says in str(error.value)
    done = commands("sessions", code=2)
    assert done.stderr.splitlines() == [f"interlock: {error.value}"]


@pytest.mark.parametrize(("data", "says"), [(b"model = \n", "line 1"), (b"\xff", "UTF-8"), (b" " * (1024 * 1024 + 1), "1,048,576")])
def test_a_file_that_is_no_toml_is_one_sentence(commands: Commands, data: bytes, says: str) -> None:
    path = commands.cwd / "interlock.toml"
    path.write_bytes(data)
    done = commands("config", "show", code=2)
    assert str(path) in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("INTERLOCK_LIMITS_REQUESTS", "many", "a whole number"),
        ("INTERLOCK_LIMITS_DEADLINE_S", "never", "a number of seconds"),
        ("INTERLOCK_MARKDOWN", "perhaps", "true or false"),
    ],
)
def test_a_variable_that_does_not_fit_is_named(commands: Commands, variable: str, value: str, says: str) -> None:
    commands.environment.setenv(variable, value)
    with pytest.raises(UsageError, match=f"^{variable}: {says}"):
        Settings.load()


def test_variables_are_text_and_are_read_as_what_their_key_is(commands: Commands) -> None:
    for variable, value in {
        "INTERLOCK_LIMITS_TOKENS": "none",
        "INTERLOCK_LIMITS_DEADLINE_S": "1h30m",
        "INTERLOCK_MARKDOWN": "false",
        "INTERLOCK_REQUEST_TEMPERATURE": "0.5",
        "INTERLOCK_LOCAL_SERVERS": "http://a:1, http://b:2",
        "INTERLOCK_SYSTEM": "",
    }.items():
        commands.environment.setenv(variable, value)
    settings = Settings.load()
    assert settings.limits().tokens is None
    assert settings.limits().deadline_s == 5400
    assert settings.of("markdown").value is False
    assert settings.of("request.temperature").value == 0.5
    assert settings.texts("local_servers") == ["http://a:1", "http://b:2"]
    assert settings.text("system") is None


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("1.5s", 1.5), ("5m", 300), ("1h", 3600), ("1h1m1s", 3661)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "5 m", "-1", "1w", "m5", "nan"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        seconds(text)


def test_every_limit_is_a_setting_with_the_runtimes_default() -> None:
    assert {key for key in SCHEMA if key.startswith("limits.")} == {f"limits.{field.name}" for field in fields(Limits)}
    differing = {key for key, setting in SCHEMA.items() if key.startswith("limits.") and setting.default != getattr(Limits(), key[7:])}
    assert differing == {"limits.requests"}


def test_explain_says_value_source_meaning_what_else_and_how(commands: Commands) -> None:
    user_file(commands, "[limits]\nrequests = 10\n")
    commands.environment.setenv("INTERLOCK_LIMITS_REQUESTS", "30")
    said = commands("config", "explain", "limits.requests").stdout
    assert "limits.requests = 30" in said
    assert "from       INTERLOCK_LIMITS_REQUESTS" in said
    assert "Model requests of a run" in said
    assert "config.toml:2 (user), 10" in said
    assert "the default is 100" in said
    assert "--max-requests" in said
    explained = json.loads(commands("config", "explain", "limits.requests", "--json").stdout)
    assert [source["value"] for source in explained["sources"]] == [30, 10, 100]
    assert "did you mean model?" in commands("config", "explain", "modle", code=2).stderr


def test_show_has_every_key(commands: Commands) -> None:
    shown = commands("config", "show").stdout
    assert [line.split()[0] for line in shown.splitlines()] == list(SCHEMA)
    assert list(json.loads(commands("config", "show", "--json").stdout)) == list(SCHEMA)


def test_a_limit_of_dollars_may_be_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_LIMITS_COST_USD", "0.25")
    monkeypatch.setenv("INTERLOCK_LIMITS_REPEATED_EFFECTS", "3")
    limits = Settings.load({}).limits()
    assert (limits.cost_usd, limits.repeated_effects, limits.repeated_results) == (0.25, 3, None)
