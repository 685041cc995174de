"""A call that a call makes: the same onion, the same door, journaled with its parent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import Fatal, JournalError, ProtocolError, ToolFailure, UsageError
from ..events import ToolStarted
from ..messages import ToolCall, clean_tree
from ..records import ToolStepStarted
from .tool_step import ToolStep

if TYPE_CHECKING:
    from .run import Run


async def call_nested(run: Run, parent: ToolStep, name: str, arguments: dict[str, Any]) -> Any:
    """Run the tool ``name`` on behalf of ``parent``, in the caller's own task.

    Returns what came out, raw, or raises it, as the same object. Raises UsageError for an unknown tool, arguments that
    are not JSON-able, and calls nested deeper than ``limits.nesting``; ToolFailure past ``limits.tool_calls``.
    """
    tool = run.parts.tools.get(name)
    if tool is None:
        raise UsageError(f"context.call_tool: there is no tool named {name!r}")
    if parent.depth + 1 > run.config.limits.nesting:
        raise UsageError(f"context.call_tool: calls are nested deeper than limits.nesting ({run.config.limits.nesting})")
    try:
        arguments = clean_tree(arguments)
        text = msgspec.json.encode(arguments).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"context.call_tool: the arguments are not JSON-able: {error}") from error
    session = run.session
    if parent.closed or not run.is_open_call(parent.key):
        raise UsageError("context.call_tool: the call that this belongs to has ended")
    limit = session.state.limits.tool_calls
    if limit is not None and session.state.tool_calls >= limit:
        refused = ToolFailure("the limit of tool calls for this run is reached", effect="none")
        parent.inherited = (*parent.inherited, refused)
        raise refused
    number = sum(call.parent == parent.key for call in session.state.calls.values())
    id = f"{parent.call.id}.{number}"
    while id in session.transcript.ids:  # a model may write such an id itself
        id += "_"
    call = ToolCall(id=id, name=name, arguments=text)
    key = f"{parent.key}/{number}"
    task = asyncio.current_task()
    identity = _identity(parent, name, arguments)
    parent.nested.add(task)
    try:
        session.commit(ToolStepStarted(key=key, call=call, parent=parent.key, inside=parent.handling))
        run.emit(ToolStarted(call=session.state.calls[key].call, key=key))
        value, error = await ToolStep(run, session.state.calls[key], tool, depth=parent.depth + 1, identity=identity).enter()
    except (JournalError, ProtocolError) as fault:
        run.fail(fault)
        raise
    finally:
        parent.nested.discard(task)
    if isinstance(error, SystemExit | KeyboardInterrupt | Fatal):
        run.crash(error)  # the calling handler cannot swallow it
    if error is not None:
        parent.inherited = (*parent.inherited, error)
        raise error
    return value


def _identity(parent: ToolStep, name: str, arguments: dict[str, Any]) -> str:
    """The same when the calling handler is started again after a crash and makes the same call, and another for any other call:
    its place among the calls would hide a different one."""
    what = f"{name} {msgspec.json.encode(arguments, order='sorted').decode()}"
    number = parent.made[what] = parent.made.get(what, 0) + 1
    return f"{parent.identity}/{what}/{number}"
