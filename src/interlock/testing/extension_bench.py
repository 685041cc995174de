"""What the checks of an extension are made with: a context, a call, and what lies further in; each remembers what was done with it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from ..errors import AlreadyDelegated, UsageError
from ..events import ReasoningDelta, TextDelta, ToolCallDelta
from ..extensions.base import AgentExtension, ToolInvocation
from ..messages import AssistantMessage, StopReason, ToolCall, Usage, UserMessage
from ..model import ModelEvent, ModelRequest, ModelResponse, Stop
from ..records import ExtensionNoted, Scope
from ..tools import as_tool
from .extension_records import sample_records

T = TypeVar("T")

NOW = 1_700_000_000.0


def probe(text: str, number: int = 1) -> str:
    """Do something that shows whether it was done."""
    raise AssertionError("what lies further in answers in the place of this tool")


CALLS: tuple[tuple[Any, dict[str, Any]], ...] = ((probe, {"text": "one", "number": 1}), (probe, {"text": "two"}))
"""What is asked for unless the caller says something else."""


class Context:
    """A RunContext of one session and one extension. emitted, nested: what was shown, and which calls it made itself."""

    def __init__(self, extension: AgentExtension, session_id: str, deps: Any) -> None:
        self._extension = extension
        self.session_id = session_id
        self.run_id = f"run-of-{session_id}"
        self.deps = deps
        self.answer: Any = None
        self.asked = False
        self.granted: tuple[Scope, ...] = ()
        self.memory: Any = None
        self.usage = Usage()
        self.epoch = 1
        self.emitted: list[Any] = []
        self.nested: list[tuple[str, Any]] = []
        for record in sample_records(self.run_id, extension.name)[:7]:
            self.memory = extension.fold(self.memory, record)

    def find(self, kind: type[T]) -> T | None:
        return self._extension if isinstance(self._extension, kind) else None

    def clock(self) -> float:
        return NOW

    def idempotency_key(self) -> str:
        return "0" * 32

    def note(self, data: Any) -> None:
        try:
            data = msgspec.json.decode(msgspec.json.encode(data))
        except (TypeError, ValueError) as error:
            raise UsageError(f"context.note takes JSON-able data: {error}") from error
        record = ExtensionNoted(extension=self._extension.name, version=self._extension.version, data=data)
        self.memory = self._extension.fold(self.memory, record)

    def emit(self, data: Any) -> None:
        self.emitted.append(data)

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        self.nested.append((name, arguments))
        await asyncio.sleep(0)
        return f"result of {name}"

    async def read_payload(self, digest: str) -> bytes | None:
        return None


@dataclass
class Inside:
    """What lies further in than the layer, for one call. It ``gives`` a value, ``raises``, or ``hangs`` until it is cancelled.

    turns: of the event loop, that it takes. entered: how often it was awaited. arguments: as they were then. over: the layer has ended.
    late: it was awaited after that.
    """

    call: ToolInvocation
    gives: Any = "done"
    raises: BaseException | None = None
    hangs: bool = False
    turns: int = 1
    entered: int = 0
    arguments: Any = None
    over: bool = False
    late: bool = False
    running: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def call_next(self) -> Any:
        if self.over:
            self.late = True
            raise AlreadyDelegated("its call has ended")
        self.entered += 1
        if self.entered > 1:
            raise AlreadyDelegated("call_next was already awaited")
        self.arguments = copy.deepcopy(self.call.arguments)
        self.begun.set()
        self.running += 1
        try:
            for _ in range(self.turns):
                await asyncio.sleep(0)
            if self.hangs:
                await asyncio.get_running_loop().create_future()
            if self.raises is not None:
                raise self.raises
            return self.gives
        finally:
            self.running -= 1


@dataclass
class Came:
    """What came out of a layer."""

    value: Any = None
    error: BaseException | None = None

    def said(self) -> str:
        return f"raised {type(self.error).__name__}: {self.error}" if self.error is not None else f"returned {self.value!r}"


def invocation(number: int, asked: tuple[Any, dict[str, Any]], context: Context) -> ToolInvocation:
    """The call ``number`` of the first turn."""
    tool = as_tool(asked[0])
    text = msgspec.json.encode(asked[1]).decode()
    return ToolInvocation(ToolCall(id=f"call-{number}", name=tool.name, arguments=text), key=f"{context.run_id}/0/{number}", tool=tool)


async def entered(extension: AgentExtension, context: Context, inside: Inside) -> Came:
    """Go through the layer. What it raises is returned, a cancellation too."""
    came = Came()
    try:
        came.value = await extension.on_tool_call(context, inside.call, inside.call_next)
    except BaseException as error:
        came.error = error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
    inside.over = True
    return came


REQUEST = ModelRequest(messages=(UserMessage(content="Good morning."),), session_id="one", run_id="run-of-one")
EVENTS: tuple[ModelEvent, ...] = (
    ReasoningDelta("A greeting."),
    TextDelta("Good "),
    TextDelta("morning, "),
    TextDelta("harbour."),
    ToolCallDelta(index=0, id="call-0", name="probe", arguments='{"text":'),
    ToolCallDelta(index=0, id="call-0", name="probe", arguments='"one"}'),
    ModelResponse(
        message=AssistantMessage(
            content="Good morning, harbour.",
            reasoning="A greeting.",
            tool_calls=(ToolCall(id="call-0", name="probe", arguments='{"text":"one"}'),),
        ),
        stop=Stop(StopReason.TOOL_CALLS, "tool_calls"),
        usage=Usage(input_tokens=3, output_tokens=4),
    ),
)


class Source:
    """What a provider streams. asked: the requests. open: how many streams are open. given: how many events. hangs_after: so many."""

    def __init__(self, events: Sequence[ModelEvent] = EVENTS, *, hangs_after: int | None = None) -> None:
        self.asked: list[Any] = []
        self.open = 0
        self.given = 0
        self._events = events
        self._hangs_after = hangs_after

    async def stream(self, request: Any) -> AsyncGenerator[ModelEvent, None]:
        self.asked.append(request)
        self.open += 1
        try:
            for number, event in enumerate(self._events):
                await asyncio.sleep(0)
                if number == self._hangs_after:
                    await asyncio.get_running_loop().create_future()
                self.given += 1
                yield event
        finally:
            self.open -= 1


def streamed(extension: AgentExtension, context: Context, source: Source) -> AsyncGenerator[Any, None]:
    """The layer's stream."""
    hook = cast("Callable[..., AsyncGenerator[Any, None]]", extension.on_model_request)
    return hook(context, REQUEST, source.stream)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same as far as can be told: equal, or of the same kind with the same inside."""
    try:
        if bool(one == other):
            return True
    except Exception:  # an __eq__ of somebody else's
        return False
    if type(one) is not type(other) or not hasattr(one, "__dict__"):
        return False
    return alike(vars(one), vars(other))
