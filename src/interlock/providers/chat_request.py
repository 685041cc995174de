"""Writing a chat-completions request: each message encoded once, each request a join of bytes.

The wire form, by one rule per message. System: role ``system`` at its own position, blank ones left out. User: a
string, or parts with images as ``image_url``. Assistant: text and calls, reasoning sent back only where the endpoint's
profile says so; with neither it is left out. Tool: text only, an image is named in a line of text. Arguments that are no
JSON object go as ``{}``.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ..errors import UsageError
from ..messages import (
    AssistantMessage,
    Content,
    FilePart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    text_of,
)
from ..messages.arguments import wire_arguments
from ..model import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from .chat_details import details_of
from .common import data_url, described, json_bytes, merged, named_choice, wire_name
from .history import EncodedHistory, Sessions
from .parameters import root_object
from .profiles import GENERIC, Profile

__all__ = ["ChatRequestWriter", "encode_message"]


def encode_message(
    message: Message, offered: tuple[ToolSpec, ...] = (), profile: Profile = GENERIC, model: str = "", *, thought: bool = False
) -> bytes:
    """One message as the wire has it; ``b""`` if it has nothing to say. offered: tools whose names are sent as they are.

    model: whose own reasoning goes back to it. thought: whether the message's reasoning is sent, where the profile wants it.
    """
    match message:
        case SystemMessage():
            value = {"role": "system", "content": message.content} if message.content.strip() else None
        case UserMessage():
            value = {"role": "user", "content": _user_content(message.content)}
        case AssistantMessage():
            value = _assistant(message, offered, profile, model, thought=thought)
        case ToolMessage():
            value = {"role": "tool", "tool_call_id": _id(message.tool_call_id, profile), "content": _tool_content(message.content)}
    return b"" if value is None else json_bytes(value)


def _assistant(
    message: AssistantMessage, offered: tuple[ToolSpec, ...], profile: Profile, model: str, *, thought: bool
) -> dict[str, Any] | None:
    content = message.content if message.content.strip() else None
    if content is None and not message.tool_calls:
        return None
    value: dict[str, Any] = {"role": "assistant", "content": content}
    if message.tool_calls:
        value["tool_calls"] = [_wire_call(call, offered, profile) for call in message.tool_calls]
    if thought and profile.replay == "reasoning_content" and (message.reasoning or message.tool_calls):
        foreign = message.wire is not None and message.wire.api != profile.name  # what another vendor's model thought
        value["reasoning_content"] = "" if foreign else message.reasoning  # of a call it must be there, if only empty
    if profile.replay == "reasoning_details" and (details := details_of(message, profile.name, model)):
        value["reasoning_details"] = details
    return value


def _wire_call(call: ToolCall, offered: tuple[ToolSpec, ...], profile: Profile) -> dict[str, Any]:
    function = {"name": wire_name(call, offered), "arguments": wire_arguments(call.arguments)}
    return {"id": _id(call.id, profile), "type": "function", "function": function}


def _id(id: str, profile: Profile) -> str:
    """A call's id as the endpoint takes it; the same for the call and its result."""
    length = profile.id_length
    if not length or (len(id) == length and id.isalnum() and id.isascii()):
        return id
    return hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:length]


def _user_content(content: Content) -> str | list[dict[str, Any]]:
    """Blank text beside other parts is left out: several vendors refuse a blank part."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        match part:
            case ImagePart():
                parts.append({"type": "image_url", "image_url": {"url": data_url(part, "image/png")}})
            case FilePart():
                parts.append(_file(part))
            case TextPart() if part.text.strip():
                parts.append({"type": "text", "text": part.text})
            case TextPart():
                pass
    return parts or text_of(content)


def _tool_content(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else described(part) for part in content)


def _file(part: FilePart) -> dict[str, Any]:
    """Chat completions take a file's bytes, and no address of one: that goes as text, for a model that can fetch."""
    if part.data is None:
        return {"type": "text", "text": described(part)}
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": data_url(part, "application/pdf")}}


class ChatRequestWriter:
    """Writes the request bodies of one model. What belongs to a session is cached in ``request.scratch``."""

    def __init__(self, name: str, *, stream: bool, max_tokens_field: str, profile: Profile = GENERIC) -> None:
        self._name = name
        self._stream = stream
        self._max_tokens_field = max_tokens_field
        self._profile = profile
        self._sessions = Sessions(self._head)

    def path(self, request: ModelRequest) -> str:
        """Where the request goes, below the base URL."""
        return "/chat/completions"

    def body(self, request: ModelRequest, owner: object) -> bytes:
        """The whole body. owner: the key in ``request.scratch``, so that two models of a session do not mix."""
        profile = self._profile
        session = self._sessions.of(request, owner, encode_message if profile is GENERIC else self._encode)
        if profile.replay == "reasoning_content":
            thoughtful = self._sessions.of(request, (owner, "thoughtful"), self._encode_thoughtful)
            messages = _thoughtful_turns(request.messages, session.history, thoughtful.history, request.tools)
        else:
            messages = session.history.encode(request.messages, request.tools)
        return b'%b,"messages":[%b]}' % (session.head, messages)

    def _encode(self, message: Message, offered: tuple[ToolSpec, ...]) -> bytes:
        return encode_message(message, offered, self._profile, self._name)

    def _encode_thoughtful(self, message: Message, offered: tuple[ToolSpec, ...]) -> bytes:
        return encode_message(message, offered, self._profile, self._name, thought=True)

    def _head(self, settings: ModelSettings, tools: tuple[ToolSpec, ...], output: OutputSpec | None) -> bytes:
        """Everything but the messages, as a JSON object without its closing brace."""
        fields: dict[str, Any] = {"model": self._name, "stream": self._stream}
        profile = self._profile
        if self._stream and profile.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        for name, field in (("temperature",) * 2, ("top_p",) * 2, ("stop",) * 2, ("seed", profile.seed_field)):
            value = getattr(settings, name)
            if value is not None:
                fields[field] = value
        if settings.reasoning_effort is not None:
            effort = settings.reasoning_effort
            fields[profile.effort] = {"effort": effort} if profile.effort == "reasoning" else effort
        if settings.max_tokens is not None:
            fields[self._max_tokens_field] = settings.max_tokens
        if tools:
            fields["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": root_object(tool.parameters)},
                }
                for tool in tools
            ]
            if settings.tool_choice is not None:
                fields["tool_choice"] = _tool_choice(settings.tool_choice, tools, profile)
            if settings.parallel_tool_calls is not None:
                fields["parallel_tool_calls"] = settings.parallel_tool_calls
        if output is not None:
            # Not "strict": that forbids schemas that say more than OpenAI's subset; what comes is validated here all the same.
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": output.name, "schema": output.schema}}
        return merged(fields, settings.extra, reserved=("messages",))


def _thoughtful_turns(
    messages: tuple[Message, ...], plain: EncodedHistory, thoughtful: EncodedHistory, offered: tuple[ToolSpec, ...]
) -> bytes:
    """The messages, with the reasoning of those turns (from one user message to the next) in which there was a tool call."""
    made = [*plain.each(messages, offered)]
    whole = thoughtful.each(messages, offered)
    start = 0
    for place in range(len(messages) + 1):
        if place == len(messages) or isinstance(messages[place], UserMessage):
            if any(isinstance(message, ToolMessage) for message in messages[start:place]):
                made[start:place] = whole[start:place]
            start = place
    return b",".join(filter(None, made))


def _tool_choice(choice: str, tools: tuple[ToolSpec, ...], profile: Profile) -> str | dict[str, Any]:
    name = named_choice(choice, tools)
    if name is None:
        return choice
    if profile.named_choice:
        return {"type": "function", "function": {"name": name}}
    if len(tools) > 1:
        why = f"{profile.name} cannot be told which tool to call; offer that tool alone, or use 'required'"
        raise UsageError(f"tool_choice={choice!r}: {why}")
    return "required"
