"""The file in which what a person has allowed for good is kept: TOML that a person can review, in the form of a policy."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any, cast

from ..errors import UsageError
from ..messages import reason_of

FILE_BYTES_MAX = 1024 * 1024
_HEADER = """\
# What a person has allowed for good, one rule for each answer: this tool, with exactly these arguments. Rules may be taken out by hand.
# No rule of this file is stronger than a denial of a policy.
version = 1
name = "approvals"
"""
_KNOWN = {"version", "name", "allow"}
_RULE = {"tool", "exact", "reason"}


class ApprovalsFile:
    """``[[allow]]`` rules with ``tool`` and ``exact``. A file that is not there holds no rules; it is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._rules: frozenset[tuple[str, str]] = frozenset()

    def allows(self, tool: str, arguments: dict[str, Any]) -> bool:
        """Whether a rule says so. Raises UsageError, which names the file, for one that cannot be read or is not well formed."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UsageError(f"{self.path}: the approvals cannot be read ({error.strerror})") from error
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            self._rules = _rules(self.path, _text(self.path))
            self._seen = seen
        try:
            return (tool, _canonical(arguments)) in self._rules
        except (TypeError, ValueError, RecursionError):  # a layer has put something there that is no JSON
            return False

    def can_hold(self, arguments: dict[str, Any]) -> bool:
        """Whether a rule can be written for them: TOML has no null."""
        try:
            _toml(arguments)
        except UsageError:
            return False
        return True

    def add(self, tool: str, arguments: dict[str, Any], *, reason: str) -> None:
        """Write a rule, unless it is there. The whole file is there, as it was or with the rule, whenever the process dies; of two
        processes that add at the same time neither loses its rule. Blocks. Raises UsageError, and OSError if the file cannot be written."""
        rule = _rule(tool, arguments, reason)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        path = self.path.resolve()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # the folder, because the file itself is replaced
            text = _text(path) if path.exists() else _HEADER
            if (tool, _canonical(arguments)) in _rules(path, text):
                return
            text = f"{text.rstrip()}\n\n{rule}"
            _rules(path, text)
            _replace(path, text)
            os.fsync(folder)
        finally:
            os.close(folder)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: the approvals cannot be read ({error.strerror})") from error
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: a file of approvals has at most {FILE_BYTES_MAX:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: the approvals are not UTF-8 text (byte {error.start})") from error


def _rules(path: Path, text: str) -> frozenset[tuple[str, str]]:
    """What the text allows. Whatever is not understood is an error: what a person has narrowed by hand must not be read as wider."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: the approvals are not TOML: {error}") from error
    if unknown := tree.keys() - _KNOWN:
        raise UsageError(f"{path}: {sorted(unknown)[0]!r} is nothing that a file of approvals has ({', '.join(sorted(_KNOWN))})")
    if tree.get("version") != 1:
        raise UsageError(f"{path}: version = 1 is needed, not {tree.get('version')!r}")
    rules: Any = tree.get("allow", [])
    if not isinstance(rules, list):
        raise UsageError(f"{path}: allow must be written as [[allow]]")
    return frozenset(_checked(f"{path}: rule {number}", rule) for number, rule in enumerate(cast("list[Any]", rules), 1))


def _checked(where: str, rule: Any) -> tuple[str, str]:
    if not isinstance(rule, dict):
        raise UsageError(f"{where}: a table is needed")
    table = cast("dict[str, Any]", rule)
    if unknown := table.keys() - _RULE:
        raise UsageError(f"{where}: {sorted(unknown)[0]!r} is nothing that a rule of an approval has ({', '.join(sorted(_RULE))})")
    tool, exact = table.get("tool"), table.get("exact")
    if not isinstance(tool, str) or not tool or not isinstance(exact, dict):
        raise UsageError(f"{where}: tool (a name) and exact (a table of all arguments) are needed")
    try:
        return tool, _canonical(cast("dict[str, Any]", exact))
    except TypeError as error:
        raise UsageError(f"{where}: exact holds what no argument can be: {reason_of(error)}") from error


def _canonical(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)


def _rule(tool: str, arguments: dict[str, Any], reason: str) -> str:
    return f"[[allow]]\ntool = {_toml(tool)}\nexact = {_toml(arguments)}\nreason = {_toml(reason)}\n"


def _toml(value: Any) -> str:
    """JSON as TOML, in one line. What cannot be seen is escaped: the file is there to be reviewed."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return '"' + "".join(_escaped(character) for character in value) + '"'
        case list():
            return "[" + ", ".join(_toml(item) for item in cast("list[Any]", value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in cast("dict[str, Any]", value).items()) + "}"
        case _:
            raise UsageError(f"TOML has no form for {value!r}")


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(mode="wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
