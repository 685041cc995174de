"""The model of a simulated world: it says what the script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from ...errors import ProviderError
from ...messages import AssistantMessage, StopReason, ToolCall, Usage
from ...model import ModelEvent, ModelRequest, ModelResponse, TextDelta
from ...model import Stop as Stopped
from .script import Reply, Script

if TYPE_CHECKING:
    from .process import SimProcess


class SimModel:
    """A Model that says what the script says, one reply per request, whichever process asks; after the last one it answers."""

    name = "sim"

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        process = self._process
        reply = process.asked(request)
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        await asyncio.sleep(0)
        if reply.kind in _ERRORS:
            raise _ERRORS[reply.kind]()
        process.world.point(process, "after", "request")
        yield TextDelta("let me see")
        await asyncio.sleep(0)
        if reply.kind == "cut":
            return
        if reply.kind == "error_object":
            raise ProviderError("overloaded", retryable=True, kind="error_object")
        yield _said(reply, process.world.script)

    async def aclose(self) -> None:
        """Nothing to close."""


_ERRORS = {
    "retryable": lambda: ProviderError("503", retryable=True, status=503),
    "broken": lambda: ProviderError("401", retryable=False, status=401),
    "wait_long": lambda: ProviderError("429", retryable=True, status=429, retry_after_s=3600.0),
    "wait": lambda: ProviderError("429", retryable=True, status=429, retry_after_s=2.0),
}

_STOPS = {
    "text": StopReason.STOP,
    "empty": StopReason.STOP,
    "reasoning": StopReason.STOP,
    "length": StopReason.LENGTH,
    "length_calls": StopReason.LENGTH,
    "filter": StopReason.CONTENT_FILTER,
    "filter_calls": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
    "pause": StopReason.PAUSE,
    "unknown": StopReason.UNKNOWN,
}
"""The others stop for their calls, also where they have none."""

_CONTENTS = {"empty": " ", "reasoning": "", "calls": "", "dropped": "I will do it now."}


def _said(reply: Reply, script: Script) -> ModelResponse:
    """The response that ends the stream."""
    calls = tuple(
        ToolCall(id=f"c{number}", name=planned.tool, arguments=json.dumps(planned.sent(number)))
        for number in reply.calls
        for planned in [script.call(number)]
    )
    if reply.kind == "malformed":
        calls = tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments[:-1]) for call in calls)
    if reply.kind == "unknown_tool":
        calls = tuple(ToolCall(id=call.id, name="nonsense", arguments=call.arguments) for call in calls)
    if reply.kind == "same_ids":
        calls = tuple(ToolCall(id="c", name=call.name, arguments=call.arguments) for call in calls)
    stop = _STOPS.get(reply.kind, StopReason.TOOL_CALLS)
    return ModelResponse(
        message=AssistantMessage(
            content=_CONTENTS.get(reply.kind, "It is done."),
            tool_calls=calls,
            reasoning="hm" if reply.kind == "reasoning" else "",
        ),
        stop=Stopped(stop, stop.value),
        usage=Usage(input_tokens=10, output_tokens=5),
    )
