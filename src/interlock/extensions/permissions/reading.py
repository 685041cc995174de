"""Reading a policy file: every mistake is named with its place, and a file with one is not used at all."""

from __future__ import annotations

import difflib
import math
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from ...errors import UsageError
from .commands import FEATURES, CommandPattern
from .conditions import ArgumentIs, CommandIs, Comparison, Condition, ExactlyThese, HostIs, PathIs, comparison
from .globs import glob_covers
from .grammar import check_grammar
from .paths import PathPattern
from .places import Places
from .policy import DECISIONS, Decision, Example, Policy, Rule, digest_of
from .shell import read_script

__all__ = ["read_file", "read_text", "read_unchecked", "run_examples"]

BYTES_MAX = 1024 * 1024
_TOP = ("version", "name", "default", "root", "deny", "ask", "allow", "example")
_RULE = ("tool", "name", "reason", "path", "host", "command", "arguments", "exact")
_ONLY: dict[Decision, tuple[str, ...]] = {"deny": (), "ask": ("expires",), "allow": ("redirect", "syntax")}
_EXAMPLE = ("tool", "arguments", "expect", "original")
# A tool's name has only these, so that a pattern with others matches none.
_TOOL = re.compile(r"[A-Za-z0-9_*?-]{1,64}")
_ENTRY = re.compile(r"[A-Za-z0-9_.-]{1,64}(?: [A-Za-z0-9_.-]+)*")


def read_file(file: Path, *, root: str | Path | None) -> Policy:
    """See ``Policy.load``."""
    return _read(_text_of(file), root=root, source=str(file), file=file)


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"{file}: the policy cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: this is not UTF-8 text (byte {error.start})") from error
    if len(data) > BYTES_MAX:
        raise UsageError(f"{file}: a policy has at most {BYTES_MAX:,} bytes")
    return text


def read_text(text: str, *, root: str | Path | None, source: str) -> Policy:
    """See ``Policy.parse``."""
    return _read(text, root=root, source=source, file=None)


def read_unchecked(file: Path) -> Policy:
    """``read_file``, but the examples are not run: ``run_examples`` says which of them come true."""
    text = _text_of(file)
    return _Reader(text, str(file), file).policy(None)


def _read(text: str, *, root: str | Path | None, source: str, file: Path | None) -> Policy:
    policy = _Reader(text, source, file).policy(root)
    failed = [f"{example.where}: {said}" for example, said in run_examples(policy) if said is not None]
    if failed:
        raise UsageError("a policy whose examples do not come true is not used:\n" + "\n".join(failed))
    return policy


def run_examples(policy: Policy) -> list[tuple[Example, str | None]]:
    """Each example with what is wrong; None if it comes true."""
    made: list[tuple[Example, str | None]] = []
    for example in policy.examples:
        try:
            verdict = policy.decide(example.tool, example.arguments, original=example.original)
        except Exception as error:
            made.append((example, f"{example.tool}: the example cannot be decided: {error}"))
            continue
        good = verdict.decision == example.expect
        made.append((example, None if good else f"{example.tool}: expected {example.expect}, and it is {verdict.decision}: {verdict}"))
    return made


class _Reader:
    """One file. place: where the table that is read just now stands."""

    def __init__(self, text: str, source: str, file: Path | None) -> None:
        self.text = text
        self.file = file
        try:
            self.tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{source}: this is not TOML: {error}") from error
        self.places = Places(text, source)
        self.where = source
        self.root = Path()

    def fail(self, what: str, key: str = "") -> UsageError:
        return UsageError(f"{self.places.of_key(self.where, key) if key else self.where}: {what}")

    def policy(self, root: str | Path | None) -> Policy:
        tree = self.tree
        self._known(tree, _TOP, "a policy")
        if tree.get("version") != 1 or isinstance(tree.get("version"), bool):
            raise self.fail("version = 1 is needed: it says how the rules are to be read", "version")
        name = self._text(tree, "name", needed=True)
        if not _ENTRY.fullmatch(name):
            raise self.fail(f"name {name!r}: letters, digits, '_', '-' and '.', at most 64", "name")
        default = tree.get("default", "deny")
        if default not in DECISIONS:
            raise self.fail(f"default must be deny, ask or allow, not {default!r}", "default")
        self.root = self._root(root)
        top = self.where
        rules: dict[Decision, tuple[Rule, ...]] = {decision: tuple(self._rules(decision)) for decision in DECISIONS}
        self._names([rule for found in rules.values() for rule in found])
        self._reachable(rules)
        examples = tuple(self._examples())
        self.where = top
        if any(rule.command is not None for found in rules.values() for rule in found):
            check_grammar()
        return Policy(
            name,
            default,
            self.root,
            rules["deny"],
            rules["ask"],
            rules["allow"],
            examples=examples,
            digest=digest_of(self.text),
            file=self.file,
        )

    def _root(self, root: str | Path | None) -> Path:
        said = self._text(self.tree, "root") if "root" in self.tree else None
        if root is not None:
            found = Path(root)
        elif said is None:
            found = Path.cwd()
        else:
            found = Path(said).expanduser()
            if not found.is_absolute():
                found = (self.file.parent if self.file is not None else Path.cwd()) / found
        found = found.absolute()
        if not found.is_dir():
            raise self.fail(f"root: {str(found)!r} is not a directory", "root")
        return found.resolve()

    # ---- rules ---------------------------------------------------------------------------------------

    def _tables(self, key: str) -> list[dict[str, Any]]:
        value = self.tree.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[Any]", value)):
            raise self.fail(f"{key} is a list of tables: write [[{key}]]", key)
        return cast("list[dict[str, Any]]", value)

    def _rules(self, decision: Decision) -> Iterable[Rule]:
        for number, table in enumerate(self._tables(decision), 1):
            self.where = self.places.of_table(decision, number)
            self._known(table, (*_RULE, *_ONLY[decision]), f"{_a(decision)} rule", elsewhere=("expires", "redirect", "syntax"))
            tools = self._texts(table, "tool", needed=True)
            for tool in tools:
                if not _TOOL.fullmatch(tool):
                    raise self.fail(f"tool {tool!r} can never match: a tool's name has only letters, digits, '_' and '-'", "tool")
            yield Rule(
                decision,
                number,
                self.where,
                tools,
                tuple(self._conditions(table)),
                name=self._text(table, "name"),
                reason=self._text(table, "reason"),
                expires_s=self._expires(table),
            )

    def _conditions(self, table: dict[str, Any]) -> Iterable[Condition]:
        if "exact" in table and (more := [key for key in ("path", "host", "command", "arguments") if key in table]):
            raise self.fail(f"exact is the whole arguments: it goes with no {more[0]}", "exact")
        for key in ("redirect", "syntax"):
            if key in table and "command" not in table:
                raise self.fail(f"{key} belongs to command, and there is none", key)
        if "path" in table:
            yield from self._by_argument(table, "path", lambda texts, name: PathIs(self._paths(texts, "path"), name))
        if "host" in table:
            try:
                yield HostIs(self._texts(table, "host", needed=True))
            except UsageError as error:
                raise self.fail(str(error), "host") from None
        if "command" in table:
            features = frozenset(self._texts(table, "syntax", needed=True)) if "syntax" in table else frozenset[str]()
            if unknown := features - FEATURES:
                raise self.fail(f"syntax {min(unknown)!r}: there are {', '.join(sorted(FEATURES))}", "syntax")
            redirects = self._paths(self._texts(table, "redirect", needed=True), "redirect") if "redirect" in table else ()
            made = list(
                self._by_argument(table, "command", lambda texts, name: CommandIs(self._commands(texts), name, features, redirects))
            )
            if len(made) > 1:
                raise self.fail("command names more than one argument: write a rule for each", "command")
            yield from made
        if "arguments" in table:
            yield from self._arguments(table["arguments"])
        if "exact" in table:
            if not isinstance(table["exact"], dict):
                raise self.fail(f"exact is a table of arguments, not {table['exact']!r}", "exact")
            yield ExactlyThese(self._plain(table["exact"], "exact"))

    def _by_argument(
        self, table: dict[str, Any], key: str, make: Callable[[tuple[str, ...], str | None], Condition]
    ) -> Iterable[Condition]:
        """``key = patterns`` is about every argument that is such by its name, ``key = {argument = patterns}`` about those."""
        value = table[key]
        if not isinstance(value, dict):
            yield make(self._texts(table, key, needed=True), None)
            return
        if not value:
            raise self.fail(f"{key} is empty", key)
        for argument in cast("dict[str, Any]", value):
            yield make(self._texts(cast("dict[str, Any]", value), argument, needed=True, of=key), argument)

    def _paths(self, texts: tuple[str, ...], key: str) -> tuple[PathPattern, ...]:
        for text in texts:
            if ".." in text.split("/"):
                raise self.fail(f"{key} {text!r} can never match: a path with '..' is never inside", key)
            if re.match(r"[a-z][a-z0-9+.-]+://", text, re.IGNORECASE):
                raise self.fail(f"{key} {text!r} is a URL: use host", key)
        return tuple(PathPattern(text, self.root) for text in texts)

    def _commands(self, texts: tuple[str, ...]) -> tuple[CommandPattern, ...]:
        check_grammar()
        for text in texts:
            try:
                words = shlex.split(text)
            except ValueError as error:
                raise self.fail(f"command {text!r}: {error}", "command") from None
            if not words or not words[0]:
                raise self.fail(f"command {text!r} names no command", "command")
            script = read_script(text)
            if len(script.commands) != 1 or script.problems or script.commands[0].redirects or script.commands[0].assignments:
                raise self.fail(
                    f"command {text!r} can never match: a pattern is one command of plain words; each command of a call is matched alone",
                    "command",
                )
        return tuple(CommandPattern(text) for text in texts)

    def _arguments(self, value: Any) -> Iterable[Condition]:
        if not isinstance(value, dict) or not value:
            raise self.fail(f"arguments is a table of what each must be, not {value!r}", "arguments")
        for name, wanted in cast("dict[str, Any]", value).items():
            try:
                yield self._argument(name, wanted)
            except UsageError as error:
                raise self.fail(f"arguments: {name}: {error}", name) from None

    def _argument(self, name: str, wanted: Any) -> Condition:
        if isinstance(wanted, str):
            return ArgumentIs(name, (comparison("like", wanted),))
        if isinstance(wanted, list):
            return ArgumentIs(name, (comparison("in", self._plain(wanted, name)),))
        if not isinstance(wanted, dict):
            return ArgumentIs(name, (comparison("equals", self._plain(wanted, name)),))
        tests = cast("dict[str, Any]", wanted)
        if not tests:
            raise UsageError("an empty comparison")
        if "absent" in tests:
            if tests != {"absent": True}:
                raise UsageError("absent = true stands alone")
            return ArgumentIs(name, (), absent=True)
        made: list[Comparison] = [comparison(key, self._plain(value, name)) for key, value in tests.items()]
        low = max((tests[key] for key in ("min", "above") if key in tests), default=-math.inf)
        high = min((tests[key] for key in ("max", "below") if key in tests), default=math.inf)
        if low > high or (low == high and ("above" in tests or "below" in tests)):
            raise UsageError(f"no number is both {made[0].words} and {made[1].words}: the rule can never match")
        return ArgumentIs(name, tuple(made))

    def _expires(self, table: dict[str, Any]) -> float | None:
        value = table.get("expires")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.fail(f"expires is a number of seconds above 0, not {value!r}", "expires")
        return float(value)

    # ---- examples --------------------------------------------------------------------------------------

    def _examples(self) -> Iterable[Example]:
        for number, table in enumerate(self._tables("example"), 1):
            self.where = self.places.of_table("example", number)
            self._known(table, _EXAMPLE, "an example")
            expect = table.get("expect")
            if expect not in DECISIONS:
                raise self.fail(f"expect must be deny, ask or allow, not {expect!r}", "expect")
            given: dict[str, Any] = {}
            for key in ("arguments", "original"):
                value = table.get(key, {} if key == "arguments" else None)
                if value is not None and not isinstance(value, dict):
                    raise self.fail(f"{key} is a table, not {value!r}", key)
                given[key] = value if value is None else self._plain(value, key)
            yield Example(self._text(table, "tool", needed=True), given["arguments"], expect, self.where, given["original"])

    # ---- what is wrong between rules ---------------------------------------------------------------------

    def _names(self, rules: list[Rule]) -> None:
        seen: dict[str, Rule] = {}
        for rule in rules:
            if rule.name and rule.name in seen:
                raise UsageError(f"{rule.where}: the name {rule.name!r} is that of {seen[rule.name]} already")
            seen[rule.name] = rule

    def _reachable(self, rules: dict[Decision, tuple[Rule, ...]]) -> None:
        """Refuse a rule that never decides anything, because a stronger or an earlier one without conditions decides it all."""
        before: list[Rule] = []
        for rule in (rule for decision in DECISIONS for rule in rules[decision]):
            for other in before:
                every = all(any(glob_covers(wide, tool) for wide in other.tools) for tool in rule.tools)
                same = other.decision == rule.decision and other.conditions == rule.conditions
                if every and (not other.conditions or same):
                    raise UsageError(
                        f"{rule.where}: this {rule.decision} rule can never match: {other} decides every call of its tools before"
                    )
            before.append(rule)

    # ---- values ------------------------------------------------------------------------------------------

    def _known(self, table: dict[str, Any], known: tuple[str, ...], what: str, elsewhere: tuple[str, ...] = ()) -> None:
        for key in table:
            if key in known:
                continue
            if key in elsewhere:
                raise self.fail(f"{key} is not for {what}", key)
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            raise self.fail(f"{what} has no key {key!r}{f'; did you mean {near[0]}?' if near else ''} (there are {', '.join(known)})", key)

    def _text(self, table: dict[str, Any], key: str, *, needed: bool = False) -> str:
        value = table.get(key)
        if value is None and not needed:
            return ""
        if not isinstance(value, str) or not value.strip():
            raise self.fail(f"{key} is needed, as text that is not empty" + ("" if value is None else f", not {value!r}"), key)
        return value

    def _texts(self, table: dict[str, Any], key: str, *, needed: bool, of: str = "") -> tuple[str, ...]:
        """One text, or a list of them; none of them empty."""
        value = table.get(key)
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        label = f"{of}: {key}" if of else key
        if not items or not all(isinstance(item, str) for item in items):
            raise self.fail(
                f"{label} is needed, as a pattern or a list of patterns" + ("" if value is None else f", not {value!r}"), of or key
            )
        texts = cast("list[str]", items)
        if any(not text.strip() for text in texts):
            raise self.fail(f"{label} has an empty pattern", of or key)
        if len(set(texts)) != len(texts):
            raise self.fail(f"{label} names something twice", of or key)
        return tuple(texts)

    def _plain(self, value: Any, key: str) -> Any:
        """A value that JSON has: what a call's arguments can be equal to."""
        if isinstance(value, dict):
            return {name: self._plain(item, key) for name, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self._plain(item, key) for item in cast("list[Any]", value)]
        if isinstance(value, float) and not math.isfinite(value):
            raise self.fail(f"{key}: {value} is no number that JSON has", key)
        if not isinstance(value, str | int | float | bool):
            raise self.fail(f"{key}: a {type(value).__name__} is nothing that JSON has; write it as text", key)
        return value


def _a(decision: str) -> str:
    return f"an {decision}" if decision[0] == "a" else f"a {decision}"
