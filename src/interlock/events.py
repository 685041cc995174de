"""What a consumer of ``agent.stream()`` sees: one frozen class per event, matched with ``match``.

A delta is a fragment that was shown; it is never stored. Whatever was shown and is then withdrawn is
withdrawn by an explicit ``StreamRestarted``: a consumer that clears its text there never shows text twice.
The model port uses the same delta classes.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .messages import AssistantMessage, Effect, ToolCall, ToolMessage, Usage
from .records import RunResult

__all__ = [
    "Event",
    "ModelFinished",
    "ModelStarted",
    "ReasoningDelta",
    "RecoveryStarted",
    "RunFinished",
    "RunStarted",
    "SteeringLanded",
    "StreamRestarted",
    "TextDelta",
    "ToolCallDelta",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "ToolSuspended",
]


class TextDelta(Struct, frozen=True, gc=False):
    """A fragment of the text that the model is writing."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A fragment of the model's reasoning. Never part of an answer."""

    text: str


class ToolCallDelta(Struct, frozen=True, gc=False):
    """A fragment of a call that the model is writing. For display only: nothing runs before the response ended.

    index: the call's place in the response. id and name: as far as they are known. arguments: the new fragment.
    """

    index: int
    id: str
    name: str
    arguments: str


class RunStarted(Struct, frozen=True, kw_only=True):
    """The prompt was accepted and journaled."""

    session_id: str
    run_id: str


class ModelStarted(Struct, frozen=True, kw_only=True):
    """A request is about to be sent. turn and attempt count from 0."""

    turn: int
    attempt: int


class ModelFinished(Struct, frozen=True, kw_only=True):
    """A model response ended with terminal evidence. verdict: what the machine made of it (a stable code)."""

    message: AssistantMessage
    verdict: str
    usage: Usage | None


class StreamRestarted(Struct, frozen=True, kw_only=True):
    """Text shown since the last model step began is withdrawn; what stands of it follows anew as a ``TextDelta``.

    reason: a stable code (``cut``, ``dropped_tool_call``, ...; ``retry`` if a layer asked again).
    """

    reason: str


class RecoveryStarted(Struct, frozen=True, kw_only=True):
    """The runtime is recovering from a fault of the model's side: recovery ``count`` of at most ``bound`` in a row.

    code: ``dropped_tool_call``, ``empty_reply``, ``reasoning_only``, ``malformed_tool_call``, ``length``,
    ``pause`` or ``model_failed``. delay_s: how long it waits before the next request. detail: the failure's
    text, when there was one.
    """

    code: str
    count: int
    bound: int
    delay_s: float = 0.0
    detail: str = ""


class ToolStarted(Struct, frozen=True, kw_only=True):
    """A call entered the onion. ``call.id`` is the id that every layer and the handler see.

    edited: the arguments that a person gave instead of the model's, as JSON text.
    """

    call: ToolCall
    key: str
    edited: str | None = None


class ToolProgress(Struct, frozen=True, kw_only=True):
    """Something that a handler or a layer reported while a call ran."""

    call_id: str
    data: Any


class ToolFinished(Struct, frozen=True, kw_only=True):
    """A call was settled; also calls that never entered the onion. decided_by: ``handler``, a layer's name, or ``runtime``."""

    call: ToolCall
    key: str
    message: ToolMessage
    effect: Effect
    decided_by: str
    code: str


class ToolSuspended(Struct, frozen=True, kw_only=True):
    """A call waits for a person. question_id: what ``answer`` takes."""

    call: ToolCall
    key: str
    question: str
    question_id: str


class SteeringLanded(Struct, frozen=True, kw_only=True):
    """New input from outside joined the conversation."""

    text: str


class RunFinished(Struct, frozen=True, kw_only=True):
    """The last event of every stream that ends by itself."""

    result: RunResult


Event = (
    TextDelta
    | ReasoningDelta
    | ToolCallDelta
    | RunStarted
    | ModelStarted
    | ModelFinished
    | StreamRestarted
    | RecoveryStarted
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | ToolSuspended
    | SteeringLanded
    | RunFinished
)
