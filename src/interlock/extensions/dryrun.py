"""``DryRun``: everything happens but the handlers."""

from __future__ import annotations

from typing import Any

from ..tools import InvalidArguments
from .base import AgentExtension, CallNext, RunContext, ToolInvocation


class DryRun(AgentExtension):
    """Lies further in than every other layer, and answers each call instead of its handler: every guard is asked, and nothing is done.

    The answer says so, to the model and to the person, with the arguments that would have run, after strict validation; effect
    ``none``, decided by ``DryRun``. What a layer does itself, instead of leaving it to a handler, is done all the same. A run
    that was begun with it is not gone on with by an agent that does not have it.
    """

    priority = 10_000

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            bound = call.tool.bind(call.arguments)
        except InvalidArguments as failure:
            return failure  # what the door would say
        return f"Dry run: {call.name} was not executed, and nothing was done. It would have been called with {bound.json}"
