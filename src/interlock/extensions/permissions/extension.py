"""``Permissions``: the layer that holds a policy against every call."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from ...errors import ToolFailure, UsageError
from ...tools import Tool
from ..approvals import Approvals, ask
from ..base import AgentExtension, CallNext, RunContext, ToolInvocation
from .policy import Policy, Verdict

__all__ = ["Denied", "Permissions", "defaults_of"]

logger = logging.getLogger("interlock.permissions")


class Denied(ToolFailure):
    """A policy does not allow the call. Nothing was started.

    policy: its name. verdict: what it said; None if the call could not be checked.
    """

    def __init__(self, message: str, *, policy: str, verdict: Verdict | None = None) -> None:
        super().__init__(message, effect="none")
        self.policy = policy
        self.verdict = verdict


class Permissions(AgentExtension):
    """Holds ``policy`` against every tool call, on the arguments that will run and on those that the model asked for.

    What it does not allow is vetoed with ``Denied``; what it asks about waits for a person. Whatever goes wrong while a call is checked
    is a denial. The arguments are copied before they are checked, and the copy is what runs. Several may stand in one onion: each must
    allow a call.

    policy: a Policy, or its file. grants: handed on to ``approvals.ask``. Raises UsageError for a policy that cannot be used.
    """

    priority = 900

    def __init__(self, policy: Policy | str | Path, *, grants: Any = None) -> None:
        found = cast("object", policy)
        if isinstance(found, str | Path):
            found = Policy.load(found)
        if not isinstance(found, Policy):
            raise UsageError(f"Permissions(policy): a Policy or its file is needed, not {type(found).__name__}")
        self.policy = found
        self.name = f"{type(self).__name__}({found.name})"
        self._grants = grants

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        name = self.policy.name
        try:
            # What is checked is what runs, whatever others do to the arguments in the meantime.
            call.seal()
            arguments = call.arguments
            approvals = context.find(Approvals)
            own = (approvals.file.path,) if approvals is not None and approvals.file is not None else ()
            original, defaults = dict(call.original_arguments), defaults_of(call.tool)
            verdict = self.policy.decide(call.name, arguments, original=original, defaults=defaults, own=own)
        except Exception as error:
            said = f"policy {name!r}: the call could not be checked, and is denied ({type(error).__name__}: {error})"
            raise Denied(said, policy=name) from error
        if verdict.decision == "deny":
            raise Denied(f"policy {name!r} denies this call by {verdict}", policy=name, verdict=verdict)
        if verdict.decision == "ask":
            asked = self._ask(context, call, verdict)
            if asked is not None:
                return asked
        return await call_next()

    def _ask(self, context: RunContext, call: ToolInvocation, verdict: Verdict) -> Any:
        name = self.policy.name
        question = f"{call.name} {call.arguments_text()}: allow it? (policy {name!r}, {verdict})"
        try:
            return ask(context, call, question=question, expires_s=verdict.expires_s, grants=self._grants)
        except ToolFailure:
            raise
        except Exception as error:
            said = f"policy {name!r}: nobody could be asked, and the call is denied ({type(error).__name__}: {error})"
            raise Denied(said, policy=name, verdict=verdict) from error

    def announce(self, tools: Iterable[str]) -> None:
        """Say which policy holds, and which of its rules are about no tool of the agent. Called once, when the agent is created."""
        known = tuple(tools)
        logger.info("%s holds for every tool call", self.policy)
        for rule in (*self.policy.deny, *self.policy.ask):
            if not any(rule.is_for(tool) for tool in known):
                logger.warning("policy %r: %s is about no tool of this agent (%s)", self.policy.name, rule, ", ".join(rule.tools))


def defaults_of(tool: Tool) -> dict[str, Any]:
    """What arguments that are not given are, by the tool's schema."""
    properties = cast("dict[str, Any]", tool.parameters.get("properties") or {})
    return {name: schema["default"] for name, schema in properties.items() if isinstance(schema, dict) and "default" in schema}
