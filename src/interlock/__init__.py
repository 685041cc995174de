"""Interlock: a runtime for tool-calling agents in which a tool call runs at most once.

Names are loaded when they are first used; importing this package costs about as much as importing nothing.
"""

from __future__ import annotations

# Type checkers take this name for the one in typing, which alone would cost more than all the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent import Agent, AgentRunConfig, Allow, Deny, Edit, Session
    from .agent.plan import ResumePlan
    from .errors import (
        AlreadyDelegated,
        CommandRefused,
        Diverged,
        Fatal,
        InterlockError,
        JournalConflict,
        JournalCorrupt,
        JournalError,
        NothingToResume,
        ProtocolError,
        ProviderError,
        RunNotCompleted,
        SandboxUnavailable,
        SessionBusy,
        ToolFailure,
        ToolTimeout,
        UsageError,
    )
    from .extensions.base import AgentExtension, RunContext, Stop, Suspended, extension
    from .providers.fallback import FallbackModel
    from .records import Limits, Outcome, RunResult
    from .tools import Tool, did_not_happen, happened, tool, unknown
    from .tools.context import current_tool_call_id

__version__ = "0.1.0"

_HOME = {
    ".agent": ("Agent", "AgentRunConfig", "Session"),
    ".agent.answers": ("Allow", "Deny", "Edit"),
    ".agent.plan": ("ResumePlan",),
    ".errors": (
        "AlreadyDelegated",
        "CommandRefused",
        "Diverged",
        "Fatal",
        "InterlockError",
        "JournalConflict",
        "JournalCorrupt",
        "JournalError",
        "NothingToResume",
        "ProtocolError",
        "ProviderError",
        "RunNotCompleted",
        "SandboxUnavailable",
        "SessionBusy",
        "ToolFailure",
        "ToolTimeout",
        "UsageError",
    ),
    ".extensions.base": ("AgentExtension", "RunContext", "Stop", "Suspended", "extension"),
    ".providers.fallback": ("FallbackModel",),
    ".records": ("Limits", "Outcome", "RunResult"),
    ".tools": ("Tool", "did_not_happen", "happened", "tool", "unknown"),
    ".tools.context": ("current_tool_call_id",),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Agent",
    "AgentExtension",
    "AgentRunConfig",
    "Allow",
    "AlreadyDelegated",
    "CommandRefused",
    "Deny",
    "Diverged",
    "Edit",
    "FallbackModel",
    "Fatal",
    "InterlockError",
    "JournalConflict",
    "JournalCorrupt",
    "JournalError",
    "Limits",
    "NothingToResume",
    "Outcome",
    "ProtocolError",
    "ProviderError",
    "ResumePlan",
    "RunContext",
    "RunNotCompleted",
    "RunResult",
    "SandboxUnavailable",
    "Session",
    "SessionBusy",
    "Stop",
    "Suspended",
    "Tool",
    "ToolFailure",
    "ToolTimeout",
    "UsageError",
    "current_tool_call_id",
    "did_not_happen",
    "extension",
    "happened",
    "tool",
    "unknown",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _WHERE.get(name)
    if home is None:
        raise AttributeError(f"module 'interlock' has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
