"""``interlock permissions``: what a policy file says, of itself and of one call."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from ...errors import UsageError
from ...extensions.permissions import FLOOR, Permissions, Policy, Rule, Verdict
from ...extensions.permissions.reading import read_unchecked, run_examples
from ...extensions.permissions.words import commands_of, rule_lines
from ...records import Outcome
from .exits import OUTCOME_CODES
from .jsonl import write_line
from .settings import Settings
from .text import console, counted, printable

__all__ = ["check", "explain", "guards", "policies", "show"]

DENIED = 1
CODES = {"allow": 0, "deny": DENIED, "ask": OUTCOME_CODES[Outcome.WAITING]}


def guards(settings: Settings) -> list[Permissions]:
    """A layer for every policy that the settings name. Raises UsageError for one that cannot be used."""
    return [Permissions(policy) for policy in policies(settings)]


def policies(settings: Settings) -> list[Policy]:
    """Paths in them are relative to the policy's own root, or else to the working directory."""
    return [Policy.load(file) for file in settings.policies()]


def check(file: str, *, as_json: bool) -> int:
    """Each example, and whether it comes true."""
    policy = read_unchecked(Path(file))
    results = run_examples(policy)
    wrong = [problem for _, problem in results if problem is not None]
    for example, problem in results:
        if as_json:
            write_line({"where": example.where, "tool": example.tool, "expect": example.expect, "ok": problem is None, "problem": problem})
        elif problem is None:
            _line(f"ok      {example.where}: {example.tool} is {_is(example.expect)}", style="dim")
        else:
            _line(f"WRONG   {example.where}: {problem}")
    if not as_json:
        _line(str(policy))
        said = f"{len(wrong)} of {counted(len(results), 'example')} do not come true: the policy is not used" if wrong else ""
        _line(said or (f"{counted(len(results), 'example')}, all true" if results else "no examples: nothing says what it should do"))
    return DENIED if wrong else 0


def _line(text: str, *, style: str | None = None) -> None:
    console().print(printable(text), highlight=False, markup=False, style=style)


def explain(settings: Settings, tool: str, arguments: str, original: str | None, *, as_json: bool) -> int:
    """The verdict of every policy that holds; the strictest one is the exit code."""
    given = _arguments(arguments, "ARGS")
    asked = None if original is None else _arguments(original, "--original")
    held = policies(settings)
    if not held:
        raise UsageError("no policy holds: name one with --policy FILE, INTERLOCK_POLICY, or policy in interlock.toml")
    verdicts = [(policy, _verdict(policy, tool, given, asked)) for policy in held]
    for policy, verdict in verdicts:
        seen = commands_of(policy, tool, given)
        if as_json:
            write_line({"policy": policy.name, **msgspec.to_builtins(verdict), "commands": seen})
            continue
        _line(f"{_is(verdict.decision)}  {tool} {msgspec.json.encode(given).decode()}", style="bold")
        lines = [f"policy  {policy.name}", f"by      {verdict.rule}", f"why     {verdict.why}"]
        lines += [f"reason  {verdict.reason}"] if verdict.reason else []
        for line in (*lines, *(f"command {line}" for line in seen)):
            _line(f"  {line}")
    return max((CODES[verdict.decision] for _, verdict in verdicts), key=lambda code: (code == DENIED, code))


def _verdict(policy: Policy, tool: str, given: dict[str, Any], asked: dict[str, Any] | None) -> Verdict:
    try:
        return policy.decide(tool, given, original=asked)
    except Exception as error:
        return Verdict("deny", f"policy {policy.name!r}", f"the call could not be checked ({type(error).__name__}: {error})")


def show(settings: Settings, *, as_json: bool) -> int:
    """Every rule in words, strongest first."""
    held = policies(settings)
    if as_json:
        for policy in held:
            rules = [{"decision": rule.decision, "where": rule.where, "says": _said(rule)} for rule in policy.rules()]
            about = {"policy": policy.name, "digest": policy.digest, "default": policy.default, "root": str(policy.root)}
            write_line({**about, "rules": rules})
        write_line({"floor": [dataclasses.asdict(rule) for rule in FLOOR]})
        return 0
    lines = ["no policy holds: every tool call runs unless a layer of yours says otherwise"] if not held else []
    for policy in held:
        lines += [str(policy), f"  paths are relative to {policy.root}"]
        lines += [f"  {_said(rule)}" for rule in policy.deny]
        lines += ["  then the safety floor, below"]
        lines += [f"  {_said(rule)}" for rule in (*policy.ask, *policy.allow)]
        lines += [f"  {_is(policy.default)}: everything else", ""]
    lines += ["The safety floor: denied by every policy, whatever its ask and allow rules say"]
    for rule in FLOOR:
        lines += [f"  {rule.name}: {rule.reason}"]
        lines += [f"    {part}" for part in (*rule.paths, *rule.commands, *((rule.means,) if rule.means else ()))]
    for line in lines:
        _line(line)
    return 0


def _said(rule: Rule) -> str:
    return f"{_is(rule.decision)}: {'; '.join(rule_lines(rule))}  ({rule.where})"


def _is(decision: str) -> str:
    return {"allow": "allowed", "ask": "asked", "deny": "denied"}[decision]


def _arguments(text: str, what: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"{what} takes the arguments as one JSON object: {error}") from error
