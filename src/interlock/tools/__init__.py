"""What runs: tools, made from functions or from JSON schemas.

Importing this loads neither pydantic nor docstring_parser; the first tool that is made from a function does.
"""

from __future__ import annotations

from .arguments import InvalidArguments
from .context import RunContext, current_tool_call_id
from .reconcile import Reconciled, did_not_happen, happened, unknown
from .tool import Bound, Tool, ToolResult, as_tool, tool

__all__ = [
    "Bound",
    "InvalidArguments",
    "Reconciled",
    "RunContext",
    "Tool",
    "ToolResult",
    "as_tool",
    "current_tool_call_id",
    "did_not_happen",
    "happened",
    "tool",
    "unknown",
]
