"""Writing a chat-completions request: each message encoded once, each request a join of bytes.

The wire form, by one rule per message. System: role ``system`` at its own position, blank ones left out. User: a
string, or parts with images as ``image_url``. Assistant: text and calls, reasoning not sent back; with neither it is
left out. Tool: text only, an image is named in a line of text. Arguments that are no JSON object go as ``{}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import UsageError
from ..messages import (
    AssistantMessage,
    Content,
    ImagePart,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    clean_tree,
    text_of,
)
from ..messages.arguments import wire_arguments
from ..model import ModelRequest, ModelSettings, ToolSpec

__all__ = ["ChatRequestWriter", "EncodedHistory", "encode_message"]

_encode = msgspec.json.Encoder().encode

# What OpenAI accepts as a function's name. A name that a model made up comes back in the history of every later request.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_CHOICES = frozenset({"auto", "none", "required"})


class EncodedHistory:
    """The encoded messages of one conversation. Comparing tuples is by identity first, in C, so a longer history of
    the same messages costs one comparison and its tail; an edit anywhere costs the messages that are new."""

    __slots__ = ("_encoded", "_messages", "_some_left_out")

    def __init__(self) -> None:
        self._messages: tuple[Message, ...] = ()
        self._encoded: list[bytes] = []
        self._some_left_out = False

    def encode(self, messages: tuple[Message, ...], offered: tuple[ToolSpec, ...] = ()) -> bytes:
        """The JSON of ``messages``, without the brackets around it."""
        old, encoded = self._messages, self._encoded
        if messages is not old:
            kept = len(old)
            known: dict[int, bytes] = {}
            if messages[:kept] != old:
                kept = _common_prefix(old, messages)
                known = dict(zip(map(id, old[kept:]), encoded[kept:], strict=True))  # ``old`` is alive, so ids are unique
            tail: list[bytes] = []
            for message in messages[kept:]:
                data = known.get(id(message))
                tail.append(encode_message(message, offered) if data is None else data)
            encoded[kept:] = tail
            self._messages = messages
            self._some_left_out = self._some_left_out or b"" in tail
        return b",".join(filter(None, encoded) if self._some_left_out else encoded)


def _common_prefix(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """How many first messages are equal, by halving: each step compares slices in C."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def encode_message(message: Message, offered: tuple[ToolSpec, ...] = ()) -> bytes:
    """One message as the wire has it; ``b""`` if it has nothing to say. offered: tools whose names are sent as they are."""
    value = _wire(message, offered)
    return b"" if value is None else _json(value)


def _wire(message: Message, offered: tuple[ToolSpec, ...]) -> dict[str, Any] | None:
    match message:
        case SystemMessage():
            return {"role": "system", "content": message.content} if message.content.strip() else None
        case UserMessage():
            return {"role": "user", "content": _user_content(message.content)}
        case AssistantMessage():
            content = message.content if message.content.strip() else None
            if not message.tool_calls:
                return None if content is None else {"role": "assistant", "content": content}
            calls = [_wire_call(call, offered) for call in message.tool_calls]
            return {"role": "assistant", "content": content, "tool_calls": calls}
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": _tool_content(message.content)}


def _wire_call(call: ToolCall, offered: tuple[ToolSpec, ...]) -> dict[str, Any]:
    name = call.name
    if not _NAME.fullmatch(name) and not any(tool.name == name for tool in offered):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown_tool"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": wire_arguments(call.arguments)}}


def _user_content(content: Content) -> str | list[dict[str, Any]]:
    """Blank text beside other parts is left out: several vendors refuse a blank part."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, ImagePart):
            parts.append({"type": "image_url", "image_url": {"url": _image_url(part)}})
        elif part.text.strip():
            parts.append({"type": "text", "text": part.text})
    return parts or text_of(content)


def _tool_content(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_described(part) if isinstance(part, ImagePart) else part.text for part in content)


def _image_url(part: ImagePart) -> str:
    if part.url is not None:
        return part.url
    if part.data is None:
        raise UsageError("an ImagePart needs a url or data")
    return f"data:{part.media_type or 'image/png'};base64,{part.data}"


def _described(part: ImagePart) -> str:
    return f"[image: {part.url or part.media_type or 'no description'}]"


def _json(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # Text is mended where it enters; a layer may still have put a lone surrogate into a message.
        return _encode(clean_tree(value))


class ChatRequestWriter:
    """Writes the request bodies of one model. What belongs to a session is cached in ``request.scratch``."""

    def __init__(self, name: str, *, stream: bool, max_tokens_field: str) -> None:
        self._name = name
        self._stream = stream
        self._max_tokens_field = max_tokens_field
        self._last: tuple[tuple[ToolSpec, ...], ModelSettings, bytes] | None = None
        """The newest head: a new session of the same agent has the same."""

    def body(self, request: ModelRequest, owner: object) -> bytes:
        """The whole body. owner: the key in ``request.scratch``, so that two models of a session do not mix."""
        cache = request.scratch.get(owner)
        if not isinstance(cache, _Session):
            cache = request.scratch[owner] = _Session()
        tools, settings = request.tools, request.settings
        same = (cache.tools is tools and cache.settings is settings) or (cache.tools == tools and cache.settings == settings)
        if cache.head is None or not same:
            # Equal, not the same: each session has a tuple of its own, of the same specs, which compare by identity first.
            if self._last is None or self._last[0] != tools or self._last[1] != settings:
                self._last = (tools, settings, self._head(settings, tools))
            cache.tools, cache.settings, cache.head = self._last
        return b'%b,"messages":[%b]}' % (cache.head, cache.history.encode(request.messages, tools))

    def _head(self, settings: ModelSettings, tools: tuple[ToolSpec, ...]) -> bytes:
        """Everything but the messages, as a JSON object without its closing brace."""
        fields: dict[str, Any] = {"model": self._name, "stream": self._stream}
        if self._stream:
            fields["stream_options"] = {"include_usage": True}
        for name in ("temperature", "top_p", "stop", "seed", "reasoning_effort"):
            value = getattr(settings, name)
            if value is not None:
                fields[name] = value
        if settings.max_tokens is not None:
            fields[self._max_tokens_field] = settings.max_tokens
        if tools:
            fields["tools"] = [
                {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}
                for tool in tools
            ]
            if settings.tool_choice is not None:
                fields["tool_choice"] = _tool_choice(settings.tool_choice, tools)
            if settings.parallel_tool_calls is not None:
                fields["parallel_tool_calls"] = settings.parallel_tool_calls
        return _merged(fields, settings.extra)


class _Session:
    """What one model has encoded of one session."""

    __slots__ = ("head", "history", "settings", "tools")

    def __init__(self) -> None:
        self.head: bytes | None = None
        self.tools: tuple[ToolSpec, ...] = ()
        self.settings = ModelSettings()
        self.history = EncodedHistory()


def _tool_choice(choice: str, tools: tuple[ToolSpec, ...]) -> str | dict[str, Any]:
    """``auto``, ``none``, ``required``, or the name of one offered tool. A tool may not hide behind those three words."""
    if choice in _CHOICES:
        return choice
    if all(tool.name != choice for tool in tools):
        names = ", ".join(tool.name for tool in tools)
        raise UsageError(f"tool_choice={choice!r} is neither auto, none or required nor an offered tool ({names})")
    return {"type": "function", "function": {"name": choice}}


def _merged(fields: dict[str, Any], extra: Mapping[str, Any]) -> bytes:
    if "messages" in extra:
        raise UsageError("ModelSettings.extra cannot hold 'messages': the conversation is the request's own")
    try:
        return _json({**fields, **extra})[:-1]
    except TypeError as error:
        raise UsageError(f"a tool's schema or ModelSettings.extra is not JSON: {error}") from error
