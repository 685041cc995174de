"""Writing a request of Anthropic's Messages API: each message encoded once, each request a join of bytes.

The wire form, by one rule per message. System: those at the head of the conversation are the top-level ``system``; a later
one is a text block ``<system>...</system>`` of the user's turn at its position. User and tool messages that follow each
other are one user turn, all results first. Assistant: the provider's own blocks as they came, with signed thinking and
hosted tools, where the message still says the same; otherwise text and calls. Thinking that is not signed is never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError
from ..messages import AssistantMessage, Message, SystemMessage, ToolMessage
from ..model import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from .anthropic_blocks import blocks_of, system_block
from .anthropic_copy import container_of
from .common import CHOICES, json_bytes, merged
from .history import Sessions
from .parameters import root_object

__all__ = ["AnthropicRequestWriter"]

_MARK = b',"cache_control":{"type":"ephemeral"}'

# The words of output_config.effort (API reference); "none" turns thinking off.
_EFFORTS = ("low", "medium", "high", "xhigh", "max")

# From this version on the API refuses sampling parameters (platform.claude.com/docs/en/api/migration-2026-10-21).
_WITHOUT_SAMPLING = "2026-10-21"


class AnthropicRequestWriter:
    """Writes the request bodies of one model. What belongs to a session is cached in ``request.scratch``."""

    def __init__(
        self,
        name: str,
        *,
        path: str,
        stream: bool,
        max_tokens: int,
        version: str,
        cache: bool,
        thinking: Mapping[str, Any] | None,
        hosted_tools: Sequence[Mapping[str, Any]],
    ) -> None:
        self._name = name
        self._path = path
        self._stream = stream
        self._max_tokens = max_tokens
        self._version = version
        self._cache = cache
        self._thinking = None if thinking is None else dict(thinking)
        self._hosted = [dict(tool) for tool in hosted_tools]
        self._sessions = Sessions(self._head)

    def path(self, request: ModelRequest) -> str:
        """The same for every request."""
        return self._path

    def body(self, request: ModelRequest, owner: object) -> bytes:
        """The whole body. owner: the key in ``request.scratch``, so that two models of a session do not mix."""
        cache = self._sessions.of(request, owner, blocks_of)
        head = cache.head
        turns = request.scratch.get(self)
        if not isinstance(turns, _Turns):
            turns = request.scratch[self] = _Turns(marked=self._cache)
        system, messages = turns.encode(request.messages, cache.history.each(request.messages, request.tools))
        if not messages:
            raise UsageError("Anthropic needs at least one message beside the system prompt")
        container = turns.container
        named = b"" if container is None or b'"container":' in head else b',"container":' + json_bytes(container)
        return b'%b%b%b,"messages":[%b]}' % (head, named, system, messages)

    def _head(self, settings: ModelSettings, tools: tuple[ToolSpec, ...], output: OutputSpec | None) -> bytes:
        """Everything but system and messages, as a JSON object without its closing brace."""
        if settings.seed is not None:
            raise UsageError("Anthropic has no seed: leave ModelSettings.seed out")
        fields: dict[str, Any] = {"model": self._name, "max_tokens": settings.max_tokens, "stream": self._stream}
        for name in ("temperature", "top_p"):
            value = getattr(settings, name)
            if value is not None and self._version >= _WITHOUT_SAMPLING:
                raise UsageError(f"Anthropic's API version {self._version} has no {name}: leave it out, or use version='2023-06-01'")
            if value is not None:
                fields[name] = value
        if settings.stop:
            fields["stop_sequences"] = settings.stop
        if self._thinking is not None:
            fields["thinking"] = self._thinking
        self._effort(settings, fields)
        if output is not None:
            fields.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": output.schema}
        if settings.max_tokens is None:
            fields["max_tokens"] = self._default_max_tokens({**fields, **settings.extra})
        if every := self._tools(tools):
            fields["tools"] = every
            if (choice := _choice(settings, every)) is not None:
                fields["tool_choice"] = choice
        return merged(fields, _with_config(fields, settings.extra), reserved=("messages", "system"))

    def _effort(self, settings: ModelSettings, fields: dict[str, Any]) -> None:
        effort = settings.reasoning_effort
        if effort == "none":
            fields["thinking"] = {"type": "disabled"}
        elif effort in _EFFORTS:
            fields["output_config"] = {"effort": effort}
        elif effort is not None:
            raise UsageError(f"reasoning_effort={effort!r}: Anthropic knows none, {', '.join(_EFFORTS)}")

    def _default_max_tokens(self, fields: Mapping[str, Any]) -> int:
        """The default, beside the budget for thinking, which is a part of max_tokens and must be smaller."""
        thinking = fields.get("thinking")
        budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return self._max_tokens + (budget if isinstance(budget, int) else 0)

    def _tools(self, tools: tuple[ToolSpec, ...]) -> list[dict[str, Any]]:
        """Hosted tools first: they stay the same while ours may change from turn to turn."""
        every = [
            *map(dict[str, Any], self._hosted),
            *({"name": tool.name, "description": tool.description, "input_schema": root_object(tool.parameters)} for tool in tools),
        ]
        # A tool that is only loaded later is no part of the prefix, and may not be marked (tool search tool).
        last = next((tool for tool in reversed(every) if not tool.get("defer_loading")), None)
        if self._cache and last is not None:
            last.setdefault("cache_control", {"type": "ephemeral"})
        return every


def _choice(settings: ModelSettings, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    choice = settings.tool_choice
    fields: dict[str, Any]
    if choice is None or choice in CHOICES:
        fields = {"type": {"required": "any", None: "auto"}.get(choice, choice)}
    elif any(tool.get("name") == choice for tool in tools):
        fields = {"type": "tool", "name": choice}
    else:
        names = ", ".join(str(tool.get("name")) for tool in tools)
        raise UsageError(f"tool_choice={choice!r} is neither auto, none or required nor an offered tool ({names})")
    if settings.parallel_tool_calls is False and choice != "none":
        fields["disable_parallel_tool_use"] = True
    elif choice is None:
        return None
    return fields


def _with_config(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """``extra``, with its ``output_config`` laid over ours: one of them may hold the effort and the other a format."""
    ours, theirs = fields.get("output_config"), extra.get("output_config")
    return {**extra, "output_config": {**ours, **theirs}} if isinstance(ours, dict) and isinstance(theirs, dict) else extra


class _Turns:
    """The turns of one conversation, made of its encoded messages. A longer history of the same messages costs one comparison,
    by identity, and its last turn and tail.

    container: the container of hosted tools that are still at work.
    """

    __slots__ = ("_marked", "_messages", "_roles", "_starts", "_system", "_system_of", "_turns", "container")

    def __init__(self, *, marked: bool) -> None:
        self._marked = marked
        self._system_of: tuple[Message, ...] = ()
        self._system = b""
        self._messages: tuple[Message, ...] = ()
        self._turns: list[bytes] = []
        self._roles: list[bool] = []
        """Whether each turn is the user's."""
        self._starts: list[int] = []
        """Where in the messages each turn begins."""
        self.container: str | None = None

    def encode(self, messages: tuple[Message, ...], blocks: Sequence[bytes]) -> tuple[bytes, bytes]:
        """The ``system`` field, and the entries of ``messages`` without the brackets around them. blocks: of each message."""
        head = 0
        while head < len(messages) and isinstance(messages[head], SystemMessage):
            head += 1
        if messages[:head] != self._system_of:
            self._system_of, self._system = messages[:head], self._encode_system(messages[:head])
            self._truncate(0)
            self._messages = ()
        if messages is not self._messages:
            start = self._truncate(self._same(messages))
            self._messages = messages
            self._group(blocks, head if start is None else start)
            self.container = self._open_container()
        return self._system, self._joined()

    def _encode_system(self, messages: tuple[Message, ...]) -> bytes:
        blocks = [system_block(message) for message in messages if isinstance(message, SystemMessage) and message.content.strip()]
        if not blocks:
            return b""
        data = json_bytes(blocks)
        return b',"system":%b' % (data[:-2] + _MARK + b"}]" if self._marked else data)

    def _same(self, messages: tuple[Message, ...]) -> int:
        """How many first messages are those of the turns that there are, by halving."""
        old = self._messages
        if messages[: len(old)] == old:
            return len(old)
        ends = [*self._starts, len(old)]
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if messages[: ends[middle]] == old[: ends[middle]]:
                low = middle
            else:
                high = middle - 1
        return ends[low]

    def _truncate(self, kept: int) -> int | None:
        """Forget the turns from the one in which message ``kept`` is, or which it may go on with. Where that began, if it did."""
        start = None
        while self._starts and (start is None or start >= kept):
            start = self._starts.pop()
            self._roles.pop()
            self._turns.pop()
        return start

    def _group(self, blocks: Sequence[bytes], start: int) -> None:
        """Make the turns from message ``start`` on."""
        messages = self._messages
        results: list[bytes] = []
        others: list[bytes] = []
        user = True
        for place in range(start, len(messages)):
            data = blocks[place]
            if not data:
                continue
            by_user = not isinstance(messages[place], AssistantMessage)
            if (results or others) and by_user is not user:
                self._add(start, user, results + others)
                results, others, start = [], [], place
            user = by_user
            (results if isinstance(messages[place], ToolMessage) else others).append(data)
        if results or others:
            self._add(start, user, results + others)

    def _add(self, start: int, user: bool, blocks: list[bytes]) -> None:
        self._starts.append(start)
        self._roles.append(user)
        self._turns.append(b'{"role":"%b","content":[%b]}' % (b"user" if user else b"assistant", b",".join(blocks)))

    def _joined(self) -> bytes:
        """The last two user turns are marked: one for the next request to find, one where the request before this one wrote,
        which may be more blocks back than the API looks (20)."""
        if not self._marked:
            return b",".join(self._turns)
        turns = self._turns
        first = len(turns)
        marks = 2
        while first and marks:
            first -= 1
            marks -= self._roles[first]
        ends = [
            turn[:-3] + _MARK + b"}]}" if user and turn.endswith(b"}]}") else turn
            for turn, user in zip(turns[first:], self._roles[first:], strict=True)
        ]
        return b",".join([*turns[:first], *ends])

    def _open_container(self) -> str | None:
        """A container is named while a turn goes on that has used it: after a pause, and with the results of its calls."""
        for message in reversed(self._messages):
            if isinstance(message, AssistantMessage):
                return container_of(message)
            if not isinstance(message, ToolMessage | SystemMessage):
                return None
        return None
