"""The decision: deny, then the safety floor, then ask, then allow, then the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .commands import Grant, uncovered
from .conditions import CommandIs, same_value
from .facts import Facts
from .floor import floor
from .policy import Policy, Rule, Verdict

__all__ = ["decide"]


def decide(
    policy: Policy,
    tool: str,
    arguments: dict[str, Any],
    *,
    original: dict[str, Any] | None = None,
    defaults: dict[str, Any] | None = None,
    own: tuple[Path, ...] = (),
) -> Verdict:
    """See ``Policy.decide``."""
    edited = Facts(tool, arguments, root=policy.root, defaults=defaults)
    sides = [(edited, "")]
    if original is not None and not same_value(original, arguments):
        sides.append((Facts(tool, original, root=policy.root, defaults=defaults), ", as the model asked for it"))
    for rule in policy.deny:
        for facts, which in sides:
            if (why := _may_match(rule, facts)) is not None:
                return Verdict("deny", str(rule), f"{why}{which}", rule.reason)
    for facts, which in sides:
        if (broken := floor(policy, facts, own)) is not None:
            return Verdict("deny", f"the safety floor, {broken.name}", f"{broken.why}{which}", broken.reason)
    allowed, why_not = _allowed(policy, edited)
    for rule in policy.ask:
        for facts, which in sides:
            if (why := _may_match(rule, facts)) is not None:
                return _asked(policy, rule, f"{why}{which}", edited, allowed=allowed is not None)
    if allowed is not None:
        return Verdict("allow", str(allowed), why_not, allowed.reason)
    return Verdict(policy.default, f"the default of policy {policy.name!r}", why_not or f"no rule allows {tool}")


def _asked(policy: Policy, rule: Rule, why: str, edited: Facts, *, allowed: bool) -> Verdict:
    """An ask rule matched. What it asks about may be one command of several: the others must be known too, or the default holds."""
    if policy.default == "deny" and not allowed and rule.command is not None and (rest := _unasked(policy, edited)) is not None:
        return Verdict("deny", f"the default of policy {policy.name!r}", f"{rest}, and no rule asks about it")
    return Verdict("ask", str(rule), why, rule.reason, rule.expires_s)


def _may_match(rule: Rule, facts: Facts) -> str | None:
    if not rule.is_for(facts.tool):
        return None
    reasons: list[str] = []
    for condition in rule.conditions:
        if (why := condition.may_hold(facts)) is None:
            return None
        reasons.append(why)
    return ", ".join(reasons) or f"it is a call of {facts.tool}"


def _others_hold(rule: Rule, facts: Facts) -> list[str] | None:
    """Whether every condition but that on commands holds, for certain."""
    reasons: list[str] = []
    for condition in rule.conditions:
        if isinstance(condition, CommandIs):
            continue
        if (why := condition.holds(facts)) is None:
            return None
        reasons.append(why)
    return reasons


def _allowed(policy: Policy, facts: Facts) -> tuple[Rule | None, str]:
    """The rule that allows the call, and why; or None, and why not."""
    grants: dict[str | None, list[tuple[Rule, Grant]]] = {}
    for rule in policy.allow:
        if not rule.is_for(facts.tool) or (reasons := _others_hold(rule, facts)) is None:
            continue
        command = rule.command
        if command is None:
            return rule, ", ".join(reasons) or f"it is a call of {facts.tool}"
        grants.setdefault(command.argument, []).append((rule, command.grant))
    why_not = ""
    for argument, given in grants.items():
        scripts = facts.scripts(argument)
        reasons = [uncovered(script, tuple(grant for _, grant in given)) for script in scripts]
        if scripts and not any(reasons):
            return given[0][0], "every command in it is allowed"
        why_not = next((reason for reason in reasons if reason), why_not)
    return None, why_not


def _unasked(policy: Policy, facts: Facts) -> str | None:
    """The command in a call that no ask rule and no allow rule is about; None if there is none."""
    asks = [rule.command for rule in policy.ask if rule.is_for(facts.tool) and rule.command is not None]
    grants = [
        rule.command.grant
        for rule in policy.allow
        if rule.is_for(facts.tool) and rule.command is not None and _others_hold(rule, facts) is not None
    ]
    patterns = tuple(pattern for command in asks for pattern in command.patterns)
    arguments = dict.fromkeys(command.argument for command in asks)
    for script in (script for argument in arguments for script in facts.scripts(argument)):
        if (why := uncovered(script, tuple(grants), patterns)) is not None:
            return why
    return None
