"""A policy: rules that a person can read, and what they say of one call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .conditions import CommandIs, Condition, PathIs
from .globs import glob_regex

__all__ = ["DECISIONS", "Decision", "Example", "Policy", "Rule", "Verdict", "digest_of", "named_arguments"]

Decision = Literal["allow", "ask", "deny"]
DECISIONS: tuple[Decision, ...] = ("deny", "ask", "allow")


@dataclass(frozen=True)
class Rule:
    """One rule. where: file and line. conditions: all of them must be met. expires_s: of the question that an ask rule puts."""

    decision: Decision
    number: int
    where: str
    tools: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    name: str = ""
    reason: str = ""
    expires_s: float | None = None

    def __str__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"{self.decision} rule {self.number}{named} ({self.where})"

    def is_for(self, tool: str) -> bool:
        return any(glob_regex(pattern).fullmatch(tool) for pattern in self.tools)

    @property
    def command(self) -> CommandIs | None:
        return next((condition for condition in self.conditions if isinstance(condition, CommandIs)), None)


@dataclass(frozen=True)
class Example:
    """A call and what the policy must say of it. original: what the model asked for, where a layer edited it."""

    tool: str
    arguments: dict[str, Any]
    expect: Decision
    where: str
    original: dict[str, Any] | None = None


@dataclass(frozen=True)
class Verdict:
    """What a policy says of one call. rule: who decided, in words. why: what of the call it was. reason: the rule's own words."""

    decision: Decision
    rule: str
    why: str
    reason: str = ""
    expires_s: float | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason or self.why}" + (f" ({self.why})" if self.reason and self.why else "")


@dataclass(frozen=True)
class Policy:
    """Rules with the precedence deny, safety floor, ask, allow; then ``default``.

    Made by ``Policy.load`` or ``Policy.parse``, which refuse a file with a mistake or with an example that does not come true.
    root: what relative paths are relative to. digest: of the text. file: where it was read from, if it was.
    """

    name: str
    default: Decision
    root: Path
    deny: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    allow: tuple[Rule, ...] = ()
    examples: tuple[Example, ...] = ()
    digest: str = ""
    file: Path | None = None

    @classmethod
    def load(cls, file: str | Path, *, root: str | Path | None = None) -> Policy:
        """Read a policy from a TOML file. root: in place of the file's own.

        Raises UsageError that names the file and the place: what cannot be read, a mistake, a rule that can never match, an example
        that does not come true, a missing shell grammar.
        """
        from .reading import read_file

        return read_file(Path(file), root=root)

    @classmethod
    def parse(cls, text: str, *, root: str | Path | None = None, source: str = "policy") -> Policy:
        """``load`` for text. source: what messages call it."""
        from .reading import read_text

        return read_text(text, root=root, source=source)

    def decide(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        original: dict[str, Any] | None = None,
        defaults: dict[str, Any] | None = None,
        own: tuple[Path, ...] = (),
    ) -> Verdict:
        """What the policy says of a call. Looks at links in paths; runs nothing.

        arguments: those that would run. original: what the model asked for, if that was something else. defaults: what arguments that
        are not given are. own: files that no call may name, as the policy's own.
        Raises whatever goes wrong, which is a denial for whoever asks.
        """
        from .engine import decide

        return decide(self, tool, arguments, original=original, defaults=defaults, own=own)

    def rules(self) -> tuple[Rule, ...]:
        """Every rule, strongest first."""
        return (*self.deny, *self.ask, *self.allow)

    def __str__(self) -> str:
        counts = f"{len(self.deny)} deny, {len(self.ask)} ask, {len(self.allow)} allow; otherwise {self.default}"
        return f"policy {self.name!r} ({self.digest}{f', {self.file}' if self.file else ''}): {counts}"


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def named_arguments(policy: Policy, tool: str, kind: type[CommandIs] | type[PathIs]) -> frozenset[str]:
    """The arguments of ``tool`` that rules name as commands, or as paths."""
    return frozenset(
        condition.argument
        for rule in policy.rules()
        if rule.is_for(tool)
        for condition in rule.conditions
        if isinstance(condition, kind) and condition.argument is not None
    )
