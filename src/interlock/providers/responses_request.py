"""Writing a request of OpenAI's Responses API: each message encoded once, each request a join of bytes.

The wire form, by one rule per message. System: an input message of role ``system`` at its own position, blank ones left
out. User: a string, or parts (``input_text``, ``input_image``, ``input_file``). Assistant: the items that the model itself
sent, as they came, if it sent anything that text and calls cannot say; otherwise its text and its calls. Tool: a
``function_call_output``, images and files in it as parts. Arguments that are no JSON object go as ``{}``.

The server keeps nothing (``store: false``), so the whole conversation goes with each request. A reasoning item goes with
what it led to, in the same message, or not at all: alone it is refused ("... of type 'reasoning' was provided without its
required following item"), and so is what it led to without it, as long as that has the id that binds the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw

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
    WireCopy,
    text_of,
)
from ..messages.arguments import wire_arguments
from ..model import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from .common import carried, data_url, json_bytes, merged, named_choice, wire_name
from .history import Sessions
from .parameters import root_object
from .responses_items import arguments_of, text_of_item

__all__ = ["API", "ResponsesRequestWriter"]

API = "responses"
"""This wire's name in ``WireCopy.api``."""

# What "call_id" may be long at most (the API's own message: "string too long. Expected a string with maximum length 64").
# An id from another provider can be longer.
_ID_MAX = 64

_decode_items = msgspec.json.Decoder(list[Raw]).decode


class ResponsesRequestWriter:
    """Writes the request bodies of one model. What belongs to a session is cached in ``request.scratch``.

    hosted_tools: the provider's own tools, as the API has them. reasoning_summary: which summaries of its reasoning to ask
    for. encrypted: whether to ask for reasoning in the form that can be sent back. store: whether the server keeps responses.
    """

    def __init__(
        self,
        name: str,
        *,
        stream: bool,
        hosted_tools: Sequence[Mapping[str, Any]] = (),
        reasoning_summary: str | None = None,
        encrypted: bool = True,
        store: bool = False,
    ) -> None:
        self._name = name
        self._stream = stream
        self._hosted = [dict(tool) for tool in hosted_tools]
        self._summary = reasoning_summary
        self._encrypted = encrypted
        self._store = store
        self._sessions = Sessions(self._head)

    def path(self, request: ModelRequest) -> str:
        """Where the request goes, below the base URL."""
        return "/responses"

    def body(self, request: ModelRequest, owner: object) -> bytes:
        """The whole body. owner: the key in ``request.scratch``, so that two models of a session do not mix.

        Raises UsageError for a setting that this API does not have.
        """
        session = self._sessions.of(request, owner, self.encode)
        return b'%b,"input":[%b]}' % (session.head, session.history.encode(request.messages, request.tools))

    def _head(self, settings: ModelSettings, tools: tuple[ToolSpec, ...], output: OutputSpec | None) -> bytes:
        """Everything but the messages, as a JSON object without its closing brace."""
        for name in ("stop", "seed"):
            if getattr(settings, name) is not None:
                raise UsageError(f"the Responses API has no {name!r}: leave it out, or use OpenAIChatModel")
        fields: dict[str, Any] = {"model": self._name, "stream": self._stream, "store": self._store}
        if self._encrypted:
            fields["include"] = ["reasoning.encrypted_content"]
        for name, field in (("temperature", "temperature"), ("top_p", "top_p"), ("max_tokens", "max_output_tokens")):
            value = getattr(settings, name)
            if value is not None:
                fields[field] = value
        reasoning = {"effort": settings.reasoning_effort, "summary": self._summary}
        if any(reasoning.values()):
            fields["reasoning"] = {key: value for key, value in reasoning.items() if value is not None}
        if tools or self._hosted:
            fields["tools"] = [*map(_tool, tools), *self._hosted]
            if settings.tool_choice is not None:
                fields["tool_choice"] = _tool_choice(settings.tool_choice, tools)
            if settings.parallel_tool_calls is not None:
                fields["parallel_tool_calls"] = settings.parallel_tool_calls
        if output is not None:
            # Not "strict": that forbids schemas that say more than OpenAI's subset; what comes is validated here all the same.
            fields["text"] = {"format": {"type": "json_schema", "name": output.name, "schema": output.schema, "strict": False}}
        return merged(fields, settings.extra, reserved=("input", "previous_response_id", "conversation"))

    def encode(self, message: Message, offered: tuple[ToolSpec, ...] = ()) -> bytes:
        """One message as items with commas between them; ``b""`` if it has nothing to say."""
        match message:
            case SystemMessage():
                return json_bytes({"role": "system", "content": message.content}) if message.content.strip() else b""
            case UserMessage():
                return json_bytes({"role": "user", "content": _user_content(message.content)})
            case ToolMessage():
                output = {"type": "function_call_output", "call_id": _call_id(message.tool_call_id), "output": _output(message.content)}
                return json_bytes(output)
            case AssistantMessage():
                items = self._own_items(message, offered)
                return b",".join(_built(message, offered) if items is None else items)

    def _own_items(self, message: AssistantMessage, offered: tuple[ToolSpec, ...]) -> list[bytes] | None:
        """The items that the model sent, if they can go back and still say what the message says; otherwise None."""
        copy = message.wire
        # Encrypted reasoning is for the model that wrote it.
        if copy is None or copy.api != API or copy.model != self._name:
            return None
        items = _items(copy)
        if items is None:
            return None
        while items and items[-1][1].get("type") == "reasoning":
            items.pop()
        if not self._store and any(_forgotten(value) for _, value in items):
            return None
        if "".join(text_of_item(value) for _, value in items) != message.content:
            return None
        calls = [place for place, (_, value) in enumerate(items) if value.get("type") == "function_call"]
        if len(calls) != len(message.tool_calls):
            return None
        made = [raw for raw, _ in items]
        for place, call in zip(calls, message.tool_calls, strict=True):
            value = items[place][1]
            own, arguments = arguments_of(value), wire_arguments(call.arguments)
            if value.get("name") != wire_name(call, offered) or wire_arguments(own) != arguments:
                return None
            # The runtime may have given a call another id; and what is no JSON object is sent as an empty one.
            mended = {"call_id": _call_id(call.id), "arguments": own if own.strip() == arguments else arguments}
            if any(value.get(name) != mended[name] for name in mended):
                made[place] = json_bytes({**value, **mended})
        return made


def _items(copy: WireCopy) -> list[tuple[bytes, dict[str, Any]]] | None:
    """Each item as it came, and read. None if the copy is not what we wrote."""
    try:
        raws = [bytes(raw) for raw in _decode_items(copy.body)]
        values = [msgspec.json.decode(raw) for raw in raws]
    except msgspec.DecodeError:
        return None  # half a surrogate pair, which no provider takes back
    if not all(isinstance(value, dict) for value in values):
        return None
    return list(zip(raws, cast("list[dict[str, Any]]", values), strict=True))


def _forgotten(item: dict[str, Any]) -> bool:
    """Whether this is reasoning that only a server which stores it could know: ``Item with id 'rs_...' not found``."""
    return item.get("type") == "reasoning" and not item.get("encrypted_content") and not item.get("content")


def _built(message: AssistantMessage, offered: tuple[ToolSpec, ...]) -> list[bytes]:
    """A message from its text and its calls: without ids, so without anything that would have to stand before them."""
    said = [json_bytes({"role": "assistant", "content": message.content})] if message.content.strip() else []
    return [*said, *(json_bytes(_built_call(call, offered)) for call in message.tool_calls)]


def _built_call(call: ToolCall, offered: tuple[ToolSpec, ...]) -> dict[str, Any]:
    arguments = wire_arguments(call.arguments)
    return {"type": "function_call", "call_id": _call_id(call.id), "name": wire_name(call, offered), "arguments": arguments}


def _call_id(id: str) -> str:
    """An id as this API takes it; the same for a call and its result."""
    return id if len(id) <= _ID_MAX else "call_" + hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:32]


def _user_content(content: Content) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else _parts(content) or text_of(content)


def _output(content: Content) -> str | list[dict[str, Any]]:
    content = carried(content, lambda part: data_url(part, ""))
    if isinstance(content, str):
        return content
    if all(isinstance(part, TextPart) for part in content):
        return "\n".join(part.text for part in content if isinstance(part, TextPart))
    return _parts(content)


def _parts(content: tuple[TextPart | ImagePart | FilePart, ...]) -> list[dict[str, Any]]:
    """Blank text beside other parts is left out."""
    parts: list[dict[str, Any]] = []
    for part in content:
        match part:
            case ImagePart():
                parts.append({"type": "input_image", "image_url": data_url(part, "image/png"), "detail": "auto"})
            case FilePart() if part.url is not None:
                parts.append({"type": "input_file", "file_url": part.url})
            case FilePart():
                parts.append({"type": "input_file", "filename": part.name or "file", "file_data": data_url(part, "application/pdf")})
            case TextPart() if part.text.strip():
                parts.append({"type": "input_text", "text": part.text})
            case TextPart():
                pass
    return parts


def _tool(tool: ToolSpec) -> dict[str, Any]:
    # Here "strict" is the default, other than in chat completions: the schema would be rewritten, and optional arguments required.
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": root_object(tool.parameters),
        "strict": False,
    }


def _tool_choice(choice: str, tools: tuple[ToolSpec, ...]) -> str | dict[str, Any]:
    name = named_choice(choice, tools)
    return choice if name is None else {"type": "function", "name": name}
