"""What a user writes: an extension, whose hooks are layers of the onion."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct

from ..errors import UsageError
from ..messages import ToolCall
from ..messages.arguments import parse_arguments
from ..model import ModelEvent, ModelRequest
from ..records import SCOPES, Record, Scope
from ..tools import Tool
from ..tools.context import RunContext

__all__ = [
    "AgentExtension",
    "CallNext",
    "MiddlewareHook",
    "ModelNext",
    "RunContext",
    "Stop",
    "Suspended",
    "TextFilter",
    "ToolInvocation",
    "extension",
    "told_of",
]

CallNext = Callable[[], Awaitable[Any]]
"""On tool calls ``call_next`` is one-shot: a second await raises AlreadyDelegated and runs nothing."""
ModelNext = Callable[[ModelRequest], AsyncIterator[ModelEvent]]
"""On model requests ``call_next`` may be called again (retry, fallback); each counts against ``limits.requests``."""


class Suspended(Struct, frozen=True):
    """Returned by a layer before delegating: the run waits for a person. Latched: no outer layer can swallow it.

    The answer is bound to the exact arguments that the layer saw: ``context.answer`` is None for any others, so a layer that goes by
    it asks again. expires_s: seconds after which no answer is a denial; None waits for ever. scopes: how far beyond this once a person may
    allow it (``Allow("session")``: the same arguments for the rest of the session; ``"tool"``: whatever the arguments; ``"always"``: the
    same arguments for good); whoever offers them looks at ``context.granted``. Raises UsageError for what is no finite number of seconds
    (a question whose time cannot be stored would never expire), and for another scope.
    """

    question: str
    expires_s: float | None = None
    scopes: tuple[Scope, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.scopes), tuple) or not all(scope in SCOPES for scope in self.scopes):
            raise UsageError(f"Suspended(scopes=...): a tuple of {', '.join(map(repr, SCOPES))} is needed, not {self.scopes!r}")
        seconds = cast("object", self.expires_s)
        if seconds is None:
            return
        try:
            finite = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
        except OverflowError:
            finite = False
        if not finite:
            said = repr(seconds) if isinstance(seconds, float) else f"such {type(seconds).__name__}"
            raise UsageError(f"Suspended(expires_s=...): a finite number of seconds or None is needed, not {said}")


class Stop(Struct, frozen=True):
    """Returned by a layer: the run ends with ``result`` as its answer, paired, without a further request. Latched."""

    result: Any


class ToolInvocation:
    """One tool call as layers see it.

    ``arguments`` is this call's own dictionary: change it in place or assign a new one, both count.
    ``original_arguments`` is what the model asked for, read-only. ``id`` and ``name`` are fixed.
    """

    __slots__ = ("_arguments", "_id", "_key", "_name", "_sealed", "_text", "_tool")

    def __init__(self, call: ToolCall, *, key: str, tool: Tool, edited: str | None = None) -> None:
        self._id = call.id
        self._name = call.name
        self._text = call.arguments
        self._arguments = parse_arguments(call.arguments if edited is None else edited)
        self._key = key
        self._tool = tool
        self._sealed = False

    @property
    def id(self) -> str:
        """The provider's id of the call, or a fresh one where that was empty or used before; ``current_tool_call_id()`` is the same."""
        return self._id

    @id.setter
    def id(self, value: object) -> None:
        raise UsageError("a tool call's id is fixed; a layer cannot change it")

    @property
    def name(self) -> str:
        """The tool's name. Setting it is a UsageError: return ``await context.call_tool(...)`` to run another tool."""
        return self._name

    @name.setter
    def name(self, value: object) -> None:
        raise UsageError(
            f"a layer cannot turn a call of {self._name!r} into another tool: what outer layers approved would not be what runs. "
            "Use context.call_tool(...), which goes through every layer, and return its result."
        )

    @property
    def key(self) -> str:
        """The runtime's own identity of the call: run, turn, ordinal."""
        return self._key

    @property
    def tool(self) -> Tool:
        """The tool: its schema, its traits."""
        return self._tool

    @property
    def arguments(self) -> dict[str, Any]:
        """This call's own dictionary, as decoded from JSON and edited so far; what the handler gets is validated from it."""
        return copy.deepcopy(self._arguments) if self._sealed else self._arguments

    @arguments.setter
    def arguments(self, value: object) -> None:
        if not isinstance(value, dict):
            raise UsageError(f"call.arguments must be a dict, not {type(value).__name__}")
        if self._sealed:
            raise UsageError(f"the arguments of {self._name} are being checked, or were: they are not changed any more")
        self._arguments = cast("dict[str, Any]", value)

    def seal(self) -> None:
        """From now on nobody changes the arguments, in whatever task and whoever holds a part of them: a policy does so before it checks
        them. ``arguments`` is a copy each time; to assign is a UsageError. Raises what cannot be copied."""
        if not self._sealed:
            self._arguments = copy.deepcopy(self._arguments)
            self._sealed = True

    @property
    def original_arguments(self) -> MappingProxyType[str, Any]:
        """What the model asked for, before any layer; ``{}`` where it sent nothing or null."""
        return MappingProxyType(parse_arguments(self._text))  # made anew each time: what is inside it is nobody else's

    def arguments_text(self) -> str:
        """The arguments as they are now, as JSON with sorted keys: what a person's answer is bound to."""
        try:
            return msgspec.json.encode(self._arguments, order="sorted").decode()
        except (TypeError, ValueError, RecursionError):  # a layer has put something there that the handler will not get either
            return repr(sorted(map(repr, self._arguments.items())))

    def __repr__(self) -> str:
        return f"ToolInvocation(id={self._id!r}, name={self._name!r}, arguments={self._arguments!r})"


class TextFilter(Protocol):
    """Takes out of text that comes in pieces what must not be shown. Made anew for each stream; what it may still need, it holds back."""

    def feed(self, text: str) -> str:
        """The next piece; returns what can be shown now, "" if nothing can."""
        ...

    def end(self) -> str:
        """There is no more: the rest of what can be shown."""
        ...


F = TypeVar("F", bound=Callable[..., Any])


def told_of(*kinds: type[Any]) -> Callable[[F], F]:
    """Mark an ``on_record`` or a ``fold`` that does nothing with records of other kinds than these: it is not called for them.
    A subclass that overrides the hook is told of all again."""

    def mark(hook: F) -> F:
        vars(hook)["told_of"] = frozenset(kinds)
        return hook

    return mark


class MiddlewareHook:
    """The two wrap points. There are no others."""

    async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: ModelNext) -> AsyncIterator[ModelEvent]:
        """Around one attempt of a model step: an async generator that yields what ``call_next(request)`` yields.

        Entered once per attempt, re-prompts and continuations included. Edit the request with ``dataclasses.replace``.
        ``call_next`` may be called again, to retry or to fall back; each call counts against ``limits.requests``. Raising fails
        the step, without a retry, and reaches the caller of ``run()`` as the same object; the session can go on.
        """
        async for event in call_next(request):
            yield event

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        """Around one tool call. Raise before delegating: a veto. Return without delegating: an answer.

        ``await call_next()`` runs everything further in and returns what the handler returned, raw, or raises what it raised. It may
        be awaited once; a second time raises AlreadyDelegated and runs nothing. If the run is cancelled, CancelledError comes
        out of it: let it pass, and clean up in ``finally``.
        """
        return await call_next()


class AgentExtension(MiddlewareHook):
    """Override the hooks you need; the others cost nothing. ``super().__init__()`` is never needed.

    priority: lower is outer; ties keep registration order; yours stay below 900.

    One instance is entered by many sessions and by parallel calls at once: keep what belongs to a call in local variables,
    and what belongs to a session in ``fold``.
    """

    priority: int = 100
    version: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """How logs and records call this extension: the class's name, unless it was set."""
        return self.__dict__.get("_name") or type(self).__name__

    @name.setter
    def name(self, value: str) -> None:
        self.__dict__["_name"] = value

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """Tools that this extension brings, functions or Tools; ``context.memory`` of their handlers is this extension's. One
        without a handler is answered in ``on_tool_call``."""
        return ()

    def instructions(self, context: RunContext) -> str | None:
        """Text that joins the system prompt of every request. Keep it the same between requests: providers cache by prefix."""
        return None

    def redact(self, record: Record) -> Record:
        """Pure: the record as it may be written, which is all that the journal, the views, the model and a later process ever see of it.

        Called once for each record, the outermost extension first, before it is applied; ``records.redaction.with_texts`` changes every
        text of any record. Only texts, arguments, answers and notes may change; the record's kind, keys, ids, names and codes may not.
        A running call keeps its real arguments in memory. If this raises, nothing is written and the run fails with UsageError.

        What is shown or logged without being a record (the data of a ``ToolProgress``, the reason in a veto's WARNING) comes here as the
        data of an ``ExtensionNoted`` of the extension ``interlock``, which is not written.
        """
        return record

    def redact_deltas(self) -> TextFilter | None:
        """Pure: a filter for the text of one stream of deltas (text, reasoning, the arguments of one call), outermost extension first.

        It is asked for anew for every stream, and again where what was shown is withdrawn. None lets the text pass. If the filter
        raises, nothing more is shown and the model step fails.
        """
        return None

    def on_record(self, context: RunContext, record: Record) -> None:
        """Told of every record of the session, after it was applied and before it is certainly stored. Must not block: it runs on the
        event loop. An exception is logged, never raised."""

    def fold(self, memory: Any, record: Record) -> Any:
        """Pure: this extension's memory of the session after ``record``. Memory starts as None, and is ``context.memory``.

        Called for every record, live and when a session is opened again, so that both give the same memory.
        """
        return memory


def extension(function: Callable[..., Any] | None = None, *, priority: int = 100, name: str | None = None) -> Any:
    """Make an extension of one function: an async function ``(context, call, call_next)`` wraps tool calls, an async generator
    function ``(context, request, call_next)`` wraps model requests.

    Use as ``@extension`` or ``@extension(priority=50)``. Raises UsageError for anything else.
    """

    def make(fn: Callable[..., Any]) -> AgentExtension:
        made = AgentExtension.__new__(_subclass(fn))
        made.priority = priority
        made.name = name or getattr(fn, "__name__", "extension")
        return made

    return make if function is None else make(function)


def _subclass(fn: Callable[..., Any]) -> type[AgentExtension]:
    if inspect.isasyncgenfunction(fn):
        hook = "on_model_request"
    elif inspect.iscoroutinefunction(fn):
        hook = "on_tool_call"
    else:
        raise UsageError(
            "@extension needs an async function (context, call, call_next) or an async generator function (context, request, call_next), "
            f"not {fn!r}"
        )
    return type(getattr(fn, "__name__", "extension"), (AgentExtension,), {hook: staticmethod(fn), "__doc__": fn.__doc__})
