"""A policy in words, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .commands import commands_in
from .conditions import ArgumentIs, CommandIs, Condition, ExactlyThese, HostIs, PathIs
from .facts import Facts
from .policy import Policy, Rule, named_arguments

__all__ = ["commands_of", "rule_lines"]


def rule_lines(rule: Rule) -> list[str]:
    """What ``rule`` is about: its tools, then each condition, then its own words."""
    said = [", ".join(rule.tools), *(line for condition in rule.conditions for line in _condition(condition))]
    return [*said, *([rule.reason] if rule.reason else [])]


def _condition(condition: Condition) -> Iterator[str]:
    match condition:
        case PathIs():
            yield f"{condition.argument or 'path'} in {', '.join(pattern.text for pattern in condition.patterns)}"
        case HostIs():
            yield f"host {', '.join(condition.entries)}"
        case CommandIs():
            yield f"{condition.argument or 'command'} {', '.join(f'`{pattern.text}`' for pattern in condition.patterns)}"
            if condition.features:
                yield f"with {', '.join(sorted(condition.features))}"
            if condition.redirects:
                yield f"redirecting to {', '.join(pattern.text for pattern in condition.redirects)}"
        case ArgumentIs():
            yield f"{condition.name} {'not given' if condition.absent else ' and '.join(test.words for test in condition.tests)}"
        case ExactlyThese():
            yield f"exactly {condition.arguments}"
        case _:
            yield type(condition).__name__


def commands_of(policy: Policy, tool: str, arguments: dict[str, Any]) -> list[str]:
    """Every command that is read in a call, those inside other commands too, and what cannot be read, a line each."""
    facts = Facts(tool, arguments, root=policy.root)
    scripts = [*facts.scripts(), *(s for name in named_arguments(policy, tool, CommandIs) for s in facts.scripts(name))]
    lines: dict[str, None] = {}
    for script in scripts:
        for simple in commands_in(script):
            words = " ".join(str(word) for word in simple.words)
            extra = [*sorted(simple.features), *(f"sets {name}" for name, _ in simple.assignments)]
            extra += [f"{redirect.operator} {redirect.target}" for redirect in simple.redirects if redirect.target is not None]
            shown = f"  [{', '.join(extra)}]" if extra else ""
            lines[f"{words or '(none)'}{shown}"] = None
        for problem in script.problems:
            lines[f"not read: {problem}"] = None
    return list(lines)
