"""The model port: what the driver asks of a provider, and what a provider must say.

A ``Model`` streams one response. Deltas are only shown; the last item, exactly one ``ModelResponse``, alone is
the truth. A stream that ends without one is a cut. A failed exchange raises ``ProviderError``. Providers never
retry: who retries is decided by the machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct
from msgspec.structs import astuple

from ..events import ReasoningDelta, StreamRestarted, TextDelta, ToolCallDelta
from ..messages import AssistantMessage, Message, StopReason, ToolCall, Usage, WireCopy

__all__ = [
    "Model",
    "ModelEvent",
    "ModelRequest",
    "ModelResponse",
    "ModelSettings",
    "OutputSpec",
    "ReasoningDelta",
    "Stop",
    "StopReason",
    "StreamRestarted",
    "TextDelta",
    "ToolCallDelta",
    "ToolSpec",
    "Usage",
    "is_well_formed",
]


class Stop(Struct, frozen=True, gc=False):
    """Why the response ended: our word, and the provider's own (None when it ended by ``[DONE]`` alone)."""

    reason: StopReason
    raw: str | None = None


class ModelResponse(Struct, frozen=True, gc=False, kw_only=True):
    """One whole response, with terminal evidence."""

    message: AssistantMessage
    stop: Stop
    usage: Usage | None = None


def is_well_formed(response: ModelResponse) -> bool:
    """Whether every field is of the type it declares, which making a response does not check: a model may be anybody's code, and
    what is recorded must be readable."""
    message, stop, usage = cast("tuple[Any, Any, Any]", (response.message, response.stop, response.usage))
    return (
        type(message) is AssistantMessage
        and type(message.content) is type(message.reasoning) is str
        and type(message.tool_calls) is tuple
        and (not message.tool_calls or all(map(_is_call, message.tool_calls)))
        and (message.wire is None or _is_copy(message.wire))
        and type(stop) is Stop
        and type(stop.reason) is StopReason
        and (stop.raw is None or type(stop.raw) is str)
        and (usage is None or (type(usage) is Usage and _COUNTS.issuperset(map(type, astuple(usage)))))
    )


def _is_call(call: Any) -> bool:
    return type(call) is ToolCall and type(call.id) is str and type(call.name) is str and type(call.arguments) is str


def _is_copy(wire: Any) -> bool:
    return type(wire) is WireCopy and type(wire.api) is str and type(wire.model) is str and type(wire.body) is str and wire.body.isascii()


_COUNTS = frozenset({int, type(None)})


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model is shown it. parameters: a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


class OutputSpec(Struct, frozen=True, kw_only=True):
    """The form that the answer must have. schema: a JSON schema of type object."""

    name: str
    schema: dict[str, Any]


class ModelSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling and the like; None leaves the provider's default. extra: further fields of the request body, as they are."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    extra: dict[str, Any] = {}


_NO_SETTINGS = ModelSettings()


@dataclass(frozen=True, init=False)
class ModelRequest:
    """One request. Frozen: a layer edits it with ``dataclasses.replace``.

    messages: the whole conversation, valid as it stands. tools: what is offered this turn. turn and attempt: count from 0.
    output: the form that the answer must have, for a model whose endpoint can be asked for it (``native_output``).
    metadata: for layers to tell each other something; no adapter sends it.
    scratch: a dictionary of the session's, in which an adapter keeps what it has encoded, keyed by its own instance.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = _NO_SETTINGS
    output: OutputSpec | None = None
    session_id: str = ""
    run_id: str = ""
    turn: int = 0
    attempt: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scratch: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False, compare=False)

    def __init__(
        self,
        messages: tuple[Message, ...],
        tools: tuple[ToolSpec, ...] = (),
        settings: ModelSettings = _NO_SETTINGS,
        output: OutputSpec | None = None,
        session_id: str = "",
        run_id: str = "",
        turn: int = 0,
        attempt: int = 0,
        metadata: Mapping[str, Any] | None = None,
        scratch: dict[Any, Any] | None = None,
    ) -> None:
        # Half the time of the one that a frozen dataclass gets, which sets field by field past its own lock.
        vars(self).update(
            messages=messages,
            tools=tools,
            settings=settings,
            output=output,
            session_id=session_id,
            run_id=run_id,
            turn=turn,
            attempt=attempt,
            metadata={} if metadata is None else metadata,
            scratch={} if scratch is None else scratch,
        )


ModelEvent = TextDelta | ReasoningDelta | ToolCallDelta | StreamRestarted | ModelResponse


@runtime_checkable
class Model(Protocol):
    """A language model. One instance serves many sessions at once.

    One whose endpoint can be held to a JSON schema says so by an attribute ``native_output = True``, and heeds ``request.output``; with
    any other, structured output is asked for by a tool.
    """

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream one response to ``request``.

        Raises ProviderError. Closing the iterator closes the connection at once.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        ...
