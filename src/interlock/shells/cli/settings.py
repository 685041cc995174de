"""The settings: one schema for flags, environment, project file and user file, strongest first.

A value is checked where it is read, so that whoever wrote it is told: the file and line, the variable, or the flag.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote, unquote

from ...errors import UsageError
from ...records import Limits
from ..finding import LOCAL_SERVERS
from .places import default_journal, project_file, user_file

__all__ = ["SCHEMA", "USERS_ONLY", "Found", "Setting", "Settings", "key_named", "seconds"]

Kind = Literal["text", "count", "seconds", "number", "switch", "texts", "hooks"]
Layer = Literal["flag", "environment", "project", "user", "default"]
FILE_BYTES_MAX = 1024 * 1024

_NEEDED: dict[Kind, str] = {
    "text": "text in quotes",
    "count": "a whole number",
    "seconds": "a number of seconds, or text such as '90s', '5m' or '1h'",
    "number": "a number",
    "switch": "true or false",
    "texts": "a list of texts",
    "hooks": "[[hooks]] tables with command (a list of texts), and perhaps tools (a list of patterns) and timeout, in the settings file",
}


class Setting(NamedTuple):
    """One key. flag: the option that sets it for one command. optional: "none" stands for no value."""

    key: str
    kind: Kind
    default: Any
    meaning: str
    flag: str | None = None
    optional: bool = False

    @property
    def variable(self) -> str:
        return "INTERLOCK_" + self.key.upper().replace(".", "_")


class Found(NamedTuple):
    """A value, and where it was found. where: for a person, such as ``interlock.toml:3``."""

    value: Any
    layer: Layer
    where: str


_LIMITS: dict[str, str] = {
    "requests": "Model requests of a run, re-prompts, retries and continuations included; then exit code 12.",
    "tool_calls": "Tool calls of a run.",
    "cost_usd": "Dollars of a run, by the model's price list.",
    "tokens": "Input and output tokens of a run, as far as the provider reports them.",
    "deadline_s": "Wall clock of a run.",
    "repeated_results": "How often the same tool call may give the same result, with nothing new in between.",
    "repeated_failures": "How often the same tool call may fail in the same way, with nothing new in between.",
    "repeated_effects": "How often the same tool call may be executed in a run, for tools that are not safe to repeat.",
    "dropped_calls": "Re-prompts in a row after a call that was announced but not included.",
    "empty_replies": "Re-prompts in a row after nothing at all.",
    "reasoning_only": "Re-prompts in a row after reasoning alone.",
    "malformed_calls": "Further requests in a row after calls of which none could run.",
    "continuations": "Continuations of an answer that a length limit cut.",
    "invalid_outputs": "Re-prompts in a row after an answer that is not of the form asked for.",
    "pauses": "Continuations of a turn that the provider paused.",
    "model_attempts": "Attempts of one model step, the first included.",
    "backoff_s": "Wait before the second attempt; doubled for each further one.",
    "backoff_max_s": "The longest wait between attempts.",
    "retry_after_max_s": "The longest wait that a provider may ask for.",
    "result_bytes": "What the model sees of one tool result.",
    "result_store_bytes": "The largest full copy of a result that is kept.",
    "prompt_bytes": "The largest prompt.",
    "parallel_calls": "Calls that may run at once.",
    "reconcile_s": "How long a tool may take to say, after a crash, what became of a call.",
    "nesting": "How deep a tool may call tools.",
    "drain_s": "How long a cancelled call is waited for.",
    "worker_threads": "Threads for synchronous tools.",
    "worker_wait_s": "How long a call waits for a free thread.",
    "event_buffer": "Events that may wait to be shown.",
    "lease_s": "How long a session stays taken after the last sign of life of its process.",
}


def _limits() -> Iterator[Setting]:
    """Every field of Limits is a key; what the command line sets differently has a flag of its own."""
    flags = {"requests": "--max-requests", "deadline_s": "--deadline"}
    for name, meaning in _LIMITS.items():
        default: Any = 100 if name == "requests" else getattr(Limits(), name)
        kind: Kind = "seconds" if name.endswith("_s") else "number" if name.endswith("_usd") else "count"
        yield Setting(f"limits.{name}", kind, default, meaning, flags.get(name), default is None)


SCHEMA: dict[str, Setting] = {
    setting.key: setting
    for setting in (
        Setting("model", "text", None, "The model: a spec such as openai:NAME, or auto.", "--model"),
        Setting("system", "text", None, "What the model is told before the conversation, in place of Interlock's own words.", "--system"),
        Setting("journal", "text", None, "Where sessions are kept, as a journal URL; SQLite in the user's data directory.", "--journal"),
        Setting("policy", "text", None, "What tools may do: a policy file; one in a project's file adds to the user's.", "--policy", True),
        Setting("tools", "text", "readonly", "The ready-made tools: readonly, or coding (changes files, runs commands).", "--tools"),
        Setting("redact", "switch", True, "Whether keys and passwords are taken out of what is kept, shown and sent to the model."),
        Setting("markdown", "switch", True, "Whether a terminal shows the answer's Markdown formatted."),
        Setting("local_servers", "texts", list(LOCAL_SERVERS), "Where to look for model servers on this machine."),
        Setting("request.temperature", "number", None, "The model's temperature; its provider's default if not set.", None, True),
        Setting("request.max_tokens", "count", None, "Tokens of one model response; its provider's default if not set.", None, True),
        Setting("request.reasoning_effort", "text", None, "How much the model should reason, in the provider's word.", None, True),
        Setting("approvals", "text", None, "Where what was allowed for good is kept; approvals.toml beside the user's settings file."),
        Setting("hooks", "hooks", [], "Programs that decide about each tool call: [[hooks]] tables in the user's settings file."),
        *_limits(),
    )
}
USERS_ONLY = frozenset({"approvals", "hooks", "redact", "tools"})
"""Not for a project's file: it may be somebody else's, and would run a program, allow itself something, or show what was to be hidden,
wherever it is unpacked."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is set where. found: per key, the strongest first; the default is always last. files: those that were read."""

    found: Mapping[str, tuple[Found, ...]]
    files: tuple[Path, ...] = ()

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, *, folder: Path | None = None) -> Settings:
        """Read everything that sets something. flags: by key; None is not set. folder: where the project is looked for.

        Raises UsageError, which names the file and line, the variable or the flag.
        """
        found: dict[str, list[Found]] = {key: [] for key in SCHEMA}
        for key, value in (flags or {}).items():
            if value is not None:
                flag = SCHEMA[key].flag or key
                found[key].append(Found(_checked(SCHEMA[key], value, flag), "flag", flag))
        for key, setting in SCHEMA.items():
            if raw := os.environ.get(setting.variable):
                found[key].append(Found(_checked(setting, _from_text(setting, raw), setting.variable), "environment", setting.variable))
        files: list[Path] = []
        sources: tuple[tuple[Layer, Path | None], ...] = (("project", _project(folder)), ("user", user_file()))
        for layer, path in sources:
            if path is not None and path.is_file():
                files.append(path)
                for key, value, where in _read(path):
                    found[key].append(Found(value, layer, where))
        for key, setting in SCHEMA.items():
            found[key].append(Found(setting.default, "default", "default"))
        settings = cls({key: tuple(values) for key, values in found.items()}, tuple(files))
        settings.limits()
        return settings

    def of(self, key: str) -> Found:
        """The value that counts."""
        return self.found[key][0]

    def text(self, key: str) -> str | None:
        value = self.of(key).value
        return None if value is None else str(value)

    def texts(self, key: str) -> list[str]:
        return list(self.of(key).value)

    def journal(self, *, create: bool = True) -> str:
        """The journal's URL; the default place is created if ``create`` is True. Raises UsageError if it cannot be."""
        return self.text("journal") or default_journal(create=create)

    def approvals(self) -> Path | None:
        """The file of what was allowed for good, which need not exist; None where nobody is at home."""
        if (set_to := self.text("approvals")) is not None:
            return Path(set_to).expanduser()
        users = user_file()
        return users.parent / "approvals.toml" if users is not None else None

    def policies(self) -> tuple[str, ...]:
        """The policy files that hold. A flag or a variable is the person's own word and stands alone; what a project's file names is added
        to what the user's file names, so that no project can take a rule of the user's away."""
        found = self.found["policy"]
        if found[0].layer in ("flag", "environment"):
            return (found[0].value,) if found[0].value is not None else ()
        return tuple(dict.fromkeys(one.value for one in found if one.value is not None))

    def limits(self) -> Limits:
        """Raises UsageError, naming what set the value that does not fit."""
        values: dict[str, Any] = {}
        for name in _LIMITS:
            here = self.of(f"limits.{name}")
            values[name] = here.value
            try:
                Limits(**{name: here.value})
            except UsageError as error:
                said = str(error).split("...): ", 1)[-1]
                raise UsageError(f"{here.where}: limits.{name}: {said}") from None
        return Limits(**values)


def key_named(name: str) -> Setting:
    """The setting called ``name``. Raises UsageError, with the nearest names, if there is none."""
    if name in SCHEMA:
        return SCHEMA[name]
    raise UsageError(f"there is no setting {name!r}{_nearest(name)} (`interlock config show` lists them all)")


def seconds(text: str) -> float:
    """``90``, ``90s``, ``5m``, ``1h30m``, ``30d`` as seconds. Raises ValueError."""
    whole = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    if not whole or not any(whole.groups()):
        raise ValueError(f"{text!r} is no duration: write 90, 90s, 5m, 1h or 30d")
    days, hours, minutes, rest = (float(part or 0) for part in whole.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + rest


def _project(folder: Path | None) -> Path | None:
    try:
        return project_file(folder or Path.cwd())
    except OSError:  # the working directory is gone
        return None


def _read(path: Path) -> list[tuple[str, Any, str]]:
    """(key, value, where) of everything that a file sets."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: the settings cannot be read ({error.strerror})") from error
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: a settings file has at most {FILE_BYTES_MAX:,} bytes")
    try:
        text = data.decode()
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: this is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: this is not TOML: {error}") from error
    made: list[tuple[str, Any, str]] = []
    for key, value in _flat(tree, path, text):
        setting, where = SCHEMA[key], _where(path, text, key)
        if key in USERS_ONLY and path != user_file():
            raise UsageError(f"{where}: {key} is not taken from a project's file, which may be somebody else's: write it in {user_file()}")
        value = _checked(setting, value, f"{where}: {key}")
        made.append((key, _BESIDE[key](value, path) if key in _BESIDE and value is not None else value, where))
    return made


def _flat(tree: Mapping[str, Any], path: Path, text: str, above: str = "") -> Iterator[tuple[str, Any]]:
    tables = {key.split(".")[0] for key in SCHEMA if "." in key}
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and not above and key in tables:
            yield from _flat(cast("dict[str, Any]", value), path, text, f"{key}.")
        elif key in SCHEMA:
            yield key, value
        elif key in tables:
            raise UsageError(f"{_where(path, text, key)}: {key} is a table: write [{key}], and its keys below it")
        else:
            raise UsageError(f"{_where(path, text, key)}: there is no setting {key!r}{_nearest(key)}")


def _where(path: Path, text: str, key: str) -> str:
    """``path:line`` of ``key``, or the path alone if its line cannot be told."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if header := re.match(r"\[\s*([^\[\]]+?)\s*\]", bare):
            table = re.sub(r"[\s\"']", "", header[1]) + "."
            if table == f"{key}.":
                return f"{path}:{number}"
        elif assigned := re.match(r"([\w\s.\"'-]+?)\s*=", bare):
            name = table + re.sub(r"[\s\"']", "", assigned[1])
            if name == key or name.startswith(f"{key}."):
                return f"{path}:{number}"
            inline = re.match(r"[^=]*=\s*\{(.*)", bare)
            if inline and key.startswith(f"{name}.") and re.search(rf"\b{re.escape(key[len(name) + 1 :])}\b", inline[1]):
                return f"{path}:{number}"
    return str(path)


def _nearest(key: str) -> str:
    close = difflib.get_close_matches(key, SCHEMA, n=1, cutoff=0.5) or [known for known in SCHEMA if known.endswith(f".{key}")][:1]
    return f"; did you mean {close[0]}?" if close else ""


def _beside(url: str, path: Path) -> str:
    """A relative file in a settings file lies beside that file, wherever the command is started."""
    head, _, query = url.partition("?")
    name = head.removeprefix("sqlite:///")
    if name == head or not name or name.startswith("/"):
        return url
    return f"sqlite:///{quote(str(path.parent.absolute() / unquote(name)))}" + (f"?{query}" if query else "")


def _file_beside(name: str, path: Path) -> str:
    return str(path.parent.absolute() / Path(name).expanduser())


_BESIDE: dict[str, Callable[[str, Path], str]] = {"journal": _beside, "policy": _file_beside}


def _from_text(setting: Setting, raw: str) -> Any:
    """What a variable's text stands for; as it is where it stands for nothing, and then the check says so."""
    match setting.kind:
        case "texts":
            return [part.strip() for part in raw.split(",") if part.strip()]
        case "switch":
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(raw.lower(), raw)
        case "count" | "number":
            try:
                return int(raw) if setting.kind == "count" else float(raw)
            except ValueError:
                return raw
        case _:
            return raw


def _is_hook(value: Any) -> bool:
    known: dict[str, Kind] = {"command": "texts", "tools": "texts", "timeout": "seconds"}
    if not isinstance(value, dict) or "command" not in value or not known.keys() >= value.keys():  # pyright: ignore[reportUnknownMemberType]
        return False
    try:
        for key, part in cast("dict[str, Any]", value).items():
            _checked(Setting(key, known[key], None, ""), part, key)
    except UsageError:
        return False
    return True


def _checked(setting: Setting, value: Any, where: str) -> Any:
    """``value`` as its kind wants it. Raises UsageError that begins with ``where``."""
    if value == "none" and setting.optional:
        return None
    good = False
    match setting.kind:
        case "text":
            good = isinstance(value, str) and bool(value.strip())
        case "count":
            good = isinstance(value, int) and not isinstance(value, bool)
        case "number":
            good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "switch":
            good = isinstance(value, bool)
        case "texts":
            good = isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value))
        case "hooks":
            good = isinstance(value, list) and all(_is_hook(item) for item in cast("list[Any]", value))
        case "seconds":
            if isinstance(value, str):
                try:
                    return seconds(value)
                except ValueError:
                    good = False
            else:
                good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good:
        raise UsageError(f"{where}: {_NEEDED[setting.kind]} is needed, not {value!r}")
    return cast("Any", value)
