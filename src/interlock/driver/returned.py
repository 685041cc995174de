"""What the handler and the provider themselves gave, where a layer made something else of it: what a replay needs to run the layers
again. The common case, text that came out as it was, needs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..errors import ToolFailure
from ..extensions.base import Stop, Suspended
from ..messages import AssistantMessage, ToolCall, clean, reason_of
from ..model import ModelResponse, is_well_formed
from ..records import Received, Returned, ToolStepEnded
from ..tools.result import ResultNotSerializable, to_content

if TYPE_CHECKING:
    from .run import Run

Gave = tuple[Any, BaseException | None]
"""A handler's value, or what it raised."""

NO_TEXT = "ResultNotSerializable"
"""The ``error`` of a handler that returned something that has no text."""


def with_returned(run: Run, record: ToolStepEnded, gave: Gave | None) -> ToolStepEnded:
    """``record`` with what its handler gave, if that is something else than the result.

    Not where an extension redacts: what its hook does not look into must not be written.
    """
    if gave is None or run.parts.redactors or (returned := _returned(gave, record)) is None:
        return record
    return replace(record, returned=returned)


def _returned(gave: Gave, record: ToolStepEnded) -> Returned | None:
    value, error = gave
    own, message = record.decided_by == "handler", record.message
    if error is None and isinstance(value, ToolFailure):
        error = value
    if error is not None:
        return Returned(error=class_name(type(error)), content=None if own else clean(reason_of(error)))
    if isinstance(value, Suspended):  # which a handler may not say
        return Returned(error="Suspended")
    if isinstance(value, Stop):
        value = value.result
    if own and not message.failed:  # the result is what it returned, as text
        return Returned(json=True) if isinstance(message.content, str) and not isinstance(value, str) else None
    try:
        content = to_content(value)
    except ResultNotSerializable:
        return Returned(error=NO_TEXT)
    return Returned(content=content, json=isinstance(content, str) and not isinstance(value, str))


def class_name(kind: type[BaseException]) -> str:
    """``module:qualified.name``; the name alone of Python's own."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}:{kind.__qualname__}"


def received_of(received: ModelResponse, response: ModelResponse) -> Received | None:
    """None if a layer left the provider's answer as it was."""
    if received.message == response.message and received.stop.reason is response.stop.reason:
        return None
    return dismissed_of(received)


def dismissed_of(received: ModelResponse | None) -> Received | None:
    """The provider's answer as a record has it; None for one that is not well formed."""
    if received is None or not is_well_formed(received):
        return None
    message = received.message
    calls = tuple(ToolCall(id=clean(call.id), name=clean(call.name), arguments=clean(call.arguments)) for call in message.tool_calls)
    said = AssistantMessage(content=clean(message.content), tool_calls=calls, reasoning=clean(message.reasoning))
    return Received(said, received.stop.reason)
