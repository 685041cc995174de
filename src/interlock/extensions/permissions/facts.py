"""What a rule looks at: one call's arguments, with what can be read out of them, each read once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ...toolbox.netcheck import Target, UnsafeUrl, target_of
from ..urlguard import strings, targets
from .paths import readings_of
from .script import Script
from .shell import read_argv, read_script

__all__ = ["COMMAND_LISTS", "COMMAND_NAMES", "HOST_NAMES", "PATH_NAMES", "TEXT_MAX", "Facts"]

PATH_NAMES = re.compile(
    r"(?:.*[_-])?(?:path|paths|file|files|filename|filenames|filepath|filepaths|dir|dirs|directory|directories|folder|folders"
    r"|cwd|workdir|root|src|dst|dest|source|destination|target|output|input|from|to)",
    re.IGNORECASE,
)
"""Arguments with these names hold paths, for a rule whose ``path`` names no argument itself."""
COMMAND_NAMES = re.compile(r"(?:.*[_-])?(?:command|cmd|shell|argv|bash|command[_-]?line|cmd[_-]?line)", re.IGNORECASE)
"""Arguments with these names hold shell commands, for a rule whose ``command`` names no argument, and for the floor."""
COMMAND_LISTS = re.compile(r"(?:.*[_-])?(?:commands|cmds)", re.IGNORECASE)
"""And with these, several."""
HOST_NAMES = re.compile(r"(?:.*[_-])?(?:host|hosts|hostname|domain|domains|server|url|urls|uri|endpoint)", re.IGNORECASE)
"""Arguments with these names hold a host even where no scheme says so."""

# How much text of one call a rule reads for URLs: more is not read, and what is not read is not allowed.
TEXT_MAX = 1_000_000
HOSTS_MAX = 256
# A word is a plain name: no grammar is needed to read it.
_QUIET = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
# oldPath is old_path.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class Facts:
    """One tool's name and arguments. root: what relative paths are relative to. defaults: what arguments that are not given are."""

    def __init__(self, tool: str, arguments: dict[str, Any], *, root: Path, defaults: dict[str, Any] | None = None) -> None:
        self.tool = tool
        self.given = arguments
        self.arguments = {**(defaults or {}), **arguments}
        self.root = root
        self._readings: dict[str, frozenset[str] | None] = {}
        self._scripts: dict[str, tuple[Script, ...]] = {}

    def named(self, names: re.Pattern[str]) -> Iterator[Any]:
        """Every value, at any depth, of an argument whose name is one of ``names``."""
        stack: list[Any] = [self.arguments]
        while stack:
            item = stack.pop()
            if isinstance(item, dict):
                for key, value in cast("dict[Any, Any]", item).items():
                    if isinstance(key, str) and (names.fullmatch(key) or names.fullmatch(_HUMP.sub("_", key))):
                        yield _with_args(item, value) if names is COMMAND_NAMES else value
                    else:
                        stack.append(value)
            elif isinstance(item, list | tuple):
                stack.extend(cast("list[Any]", item))

    def texts(self, value: Any) -> list[Any]:
        """A path or several, as the tool gets them; what is no text stays what it is, so that nothing passes unseen."""
        if isinstance(value, list | tuple):
            return [inner for item in cast("list[Any]", value) for inner in self.texts(item)]
        if isinstance(value, dict):
            return [inner for item in cast("dict[str, Any]", value).values() for inner in self.texts(item)]
        return [] if value is None or isinstance(value, bool) else [value]

    def readings(self, path: Any) -> frozenset[str] | None:
        """See ``paths.readings_of``; each path is looked up once."""
        if not isinstance(path, str):
            return frozenset()
        if path not in self._readings:
            self._readings[path] = readings_of(path, self.root)
        return self._readings[path]

    @cached_property
    def paths(self) -> list[Any]:
        """What the arguments with a path's name hold."""
        return [text for value in self.named(PATH_NAMES) for text in self.texts(value)]

    @cached_property
    def hosts(self) -> tuple[Target, ...]:
        """Where the URLs and hosts in the arguments lead. Raises UnsafeUrl for what clients read in different ways, or too much of it."""
        found: dict[Target, None] = {}
        every = list(strings(self.arguments))
        if sum(map(len, every)) > TEXT_MAX:
            raise UnsafeUrl(f"more than {TEXT_MAX:,} characters of text, which is more than is read for hosts")
        for text in every:
            for target in targets(text, network=True):
                found[target] = None
                if len(found) > HOSTS_MAX:
                    raise UnsafeUrl(f"more than {HOSTS_MAX} different hosts, which is more than are read")
        for value in self.named(HOST_NAMES):
            for text in self.texts(value):
                target = target_of(text) if isinstance(text, str) else None
                if isinstance(text, str) and not text.strip():
                    continue
                if target is None and isinstance(text, str):
                    target = target_of(f"//{text.strip()}")
                if target is None:
                    raise UnsafeUrl(f"{str(text)[:60]!r} is not a host that can be read")
                found[target] = None
        return tuple(found)

    def scripts(self, name: str | None = None) -> tuple[Script, ...]:
        """The shell commands of the argument ``name``, or of every argument with a command's name. Raises GrammarMissing."""
        key = name or ""
        if key not in self._scripts:
            if name is not None:
                values = [_with_args(self.arguments, self.arguments[name])] if name in self.arguments else []
            else:
                values = [*self.named(COMMAND_NAMES), *(text for value in self.named(COMMAND_LISTS) for text in self.texts(value))]
            self._scripts[key] = tuple(script for value in values for script in _read(value))
        return self._scripts[key]


def _with_args(beside: Any, value: Any) -> Any:
    """``{command: "git", args: ["push"]}`` is one command."""
    args = beside.get("args") or beside.get("arguments")
    if not isinstance(value, str) or not args:
        return value
    return [value, *args] if isinstance(args, list) else [value, args]


def _read(value: Any) -> Iterator[Script]:
    if isinstance(value, str):
        yield read_argv([value]) if _PLAIN.fullmatch(value) else read_script(value)
    elif isinstance(value, list) and value and all(isinstance(item, str) for item in cast("list[Any]", value)):
        words = cast("list[str]", value)
        yield read_argv(words)
        # Some tools join such a list and give it to a shell: both readings count.
        if not all(_QUIET.fullmatch(word) for word in words):
            yield read_script(" ".join(words))
    elif value is not None:
        found = cast("object", value)
        why = f"{type(found).__name__}, which is no command"
        yield Script((), (why,), repr(found)[:200], (why,))
