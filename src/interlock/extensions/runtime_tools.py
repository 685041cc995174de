"""``RuntimeTools``: tools that only the runtime can answer. ``read_result`` reads on in a result that was capped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from ..errors import ToolFailure
from ..records import Limits, Payload, Record, RunStarted, ToolStepEnded
from ..tools import InvalidArguments, Tool
from ..tools.result import READ_BYTES, boundary
from .base import AgentExtension, CallNext, RunContext, ToolInvocation, told_of

# However much is asked for: half of what a result may have by default, so that no answer is capped itself.
READ_BYTES_MAX = 32 * 1024
# What an answer may have besides the text that was asked for.
HEADER_BYTES = 256
NAMED_MAX = 20


class Memory(NamedTuple):
    """What the session's records say. results: the capped ones by call id. limit: what a result may have now."""

    results: dict[str, Payload] = {}
    limit: int = Limits().result_bytes


def _offered(context: RunContext) -> bool:
    return isinstance(context.memory, Memory) and bool(context.memory.results)


READ_RESULT = Tool.from_schema(
    name="read_result",
    description="Read more of a tool result that was too large to be shown whole. Sizes and offsets are in bytes.",
    parameters={
        "type": "object",
        "properties": {
            "call_id": {"type": "string", "description": "The id of the call whose result was cut, as its notice gives it."},
            "offset": {"type": "integer", "default": 0, "description": "Where to begin."},
            "limit": {"type": "integer", "default": READ_BYTES, "description": f"How much to read, at most {READ_BYTES_MAX}."},
        },
        "required": ["call_id"],
        "additionalProperties": False,
    },
    available=_offered,
)


class RuntimeTools(AgentExtension):
    """Offers ``read_result`` once a result of the session was capped, and answers it from the full copy."""

    priority = 950

    def tools(self) -> Sequence[Tool]:
        return (READ_RESULT,)

    @told_of(RunStarted, ToolStepEnded)
    def fold(self, memory: Any, record: Record) -> Any:
        if not isinstance(record, RunStarted | ToolStepEnded):
            return memory
        known = memory if isinstance(memory, Memory) else Memory()
        if isinstance(record, ToolStepEnded) and record.payload is not None:
            return known._replace(results={**known.results, record.message.tool_call_id: record.payload})
        if isinstance(record, RunStarted) and record.limits.result_bytes != known.limit:
            return known._replace(limit=record.limits.result_bytes)
        return known

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.tool is not READ_RESULT:
            return await call_next()
        try:
            call.tool.bind(call.arguments)
        except InvalidArguments as failure:
            return failure  # an answer, not a veto
        return await _read(context, call.arguments)


async def _read(context: RunContext, arguments: dict[str, Any]) -> str | ToolFailure:
    memory = cast("Memory", context.memory or Memory())
    call_id = arguments["call_id"]
    payload = memory.results.get(call_id)
    if payload is None:
        return ToolFailure(f"no result of a call {call_id!r} was cut; {_known(memory)}", effect="none")
    data = await context.read_payload(payload.digest)
    if data is None:
        return ToolFailure(f"the full result of call {call_id!r} is no longer stored", effect="none")
    most = max(HEADER_BYTES, min(READ_BYTES_MAX, memory.limit - HEADER_BYTES))
    start = boundary(data, max(0, arguments.get("offset", 0)))
    # At least one character (of up to four bytes), or reading on would stand still.
    end = boundary(data, start + min(most, max(4, arguments.get("limit", READ_BYTES))))
    if start >= len(data):
        return f"[The result has {len(data)} bytes; there is nothing at offset {start}.]"
    rest = f"next offset {end}" if end < len(data) else "the end"
    return f"[bytes {start} to {end} of {len(data)}; {rest}]\n{data[start:end].decode('utf-8', 'replace')}"


def _known(memory: Memory) -> str:
    ids = list(memory.results)
    if not ids:
        return "no result of this session was"
    more = f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else ""
    return f"those that were: {', '.join(ids[-NAMED_MAX:])}{more}"
