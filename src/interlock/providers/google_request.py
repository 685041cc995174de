"""Writing a Gemini request: each message encoded once, each request a join of bytes.

The wire form (https://ai.google.dev/api/generate-content), by one rule per message. System: those before everything else are the
``systemInstruction``; a later one is said at its own position as the user's text, between ``<system>`` tags, for the wire has no
other place for it. User: text and ``inlineData``/``fileData``. Assistant: the parts as Gemini sent them, if the message still says the
same, otherwise text and calls; thoughts without a signature are never sent. Tool: a ``functionResponse``, its text
under ``output`` or ``error``. Neighbours of one role share one content, so that roles alternate, parallel calls are in one
content, and so are their results. A call and its result carry the message's id, also where Gemini gave none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, cast

import msgspec

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
    clean,
)
from ..messages.arguments import wire_arguments
from ..model import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from .common import ascii_json, carried, described, json_bytes, merged, named_choice, wire_name
from .google_chunk import FunctionCall, arguments_of, call_name, decode_parts
from .google_reply import GEMINI
from .history import Sessions

__all__ = ["GoogleRequestWriter"]

# Between the contents of neighbours. JSON text holds no control characters, so these are found and removed in one pass each.
_USER, _USER_END = b'\x02{"role":"user","parts":[', b"]}\x01"
_MODEL, _MODEL_END = b'\x04{"role":"model","parts":[', b"]}\x03"
_SEAMS = (_USER_END + b"," + _USER, _MODEL_END + b"," + _MODEL)

_UNSIGNED = b"\x00"
"""In the first call of a message, if it has no signature."""

# "You can set the following dummy signatures of either "context_engineering_is_the_way_to_go" or
# "skip_thought_signature_validator"" for calls that Gemini did not make (https://ai.google.dev/gemini-api/docs/thought-signatures,
# FAQ). The second is also Vertex AI's.
_PLACEHOLDER = b',"thoughtSignature":"skip_thought_signature_validator"'

_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}

# How OpenAI's words are taken by Gemini (https://ai.google.dev/gemini-api/docs/openai, "Thinking"): a budget of tokens up to 2.5,
# where 0 turns thinking off; a level from 3 on, where it cannot be turned off.
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}

_GENERATION = re.compile(r"gemini-(\d+)")


class GoogleRequestWriter:
    """Writes the requests of one model. What belongs to a session is cached in ``request.scratch``.

    version: what stands between the base URL and the model (``/v1beta``, or nothing). thoughts: whether to ask for summaries of
    what the model thought.
    """

    def __init__(self, name: str, *, stream: bool, version: str = "", thoughts: bool = False) -> None:
        where = f"{version}/{name}" if "/" in name else f"{version}/models/{name}"
        self._path = f"{where}:streamGenerateContent?alt=sse" if stream else f"{where}:generateContent"
        self._name = name
        self._thoughts = thoughts
        found = _GENERATION.search(name)
        self._generation = int(found[1]) if found else 3
        self._sessions = Sessions(self._head)
        self._system: tuple[list[str], bytes] = ([], b"")
        """The newest system instruction: it is the same for all sessions of an agent."""

    @property
    def native_output(self) -> bool:
        """Whether the model can be held to a schema while tools are offered, which is so from Gemini 3 on
        (https://ai.google.dev/gemini-api/docs/structured-output, "Structured outputs with tools")."""
        return self._generation >= 3 and _GENERATION.search(self._name) is not None

    def path(self, request: ModelRequest) -> str:
        """Where the request goes, below the base URL."""
        return self._path

    def body(self, request: ModelRequest, owner: object) -> bytes:
        """The whole body. owner: the key in ``request.scratch``, so that two models of a session do not mix."""
        session = self._sessions.of(request, owner, self._message)
        messages = request.messages
        said = [message.content for message in takewhile(_is_system, messages) if isinstance(message, SystemMessage)]
        encoded = session.history.each(messages, request.tools)[len(said) :]
        contents = b",".join(filter(None, encoded))
        if not contents:
            raise UsageError("Gemini needs at least one message that is not a system message")
        if self._generation >= 3 and _UNSIGNED in contents:
            start = _turn_start(messages) - len(said)
            signed = (content.replace(_UNSIGNED, _PLACEHOLDER) for content in encoded[start:] if content)
            contents = b",".join([*filter(None, encoded[:start]), *signed])
        for seam in _SEAMS:
            contents = contents.replace(seam, b",")
        contents = contents.translate(None, b"\x00\x01\x02\x03\x04")
        return b'%b%b%b"contents":[%b]}' % (session.head, b"," if len(session.head) > 1 else b"", self._instruction(said), contents)

    def _instruction(self, said: list[str]) -> bytes:
        if self._system[0] != said:
            parts = [{"text": text} for text in said if text.strip()]
            data = json_bytes({"role": "user", "parts": parts}) if parts else b""
            self._system = (said, b'"systemInstruction":%b,' % data if data else b"")
        return self._system[1]

    def _message(self, message: Message, offered: tuple[ToolSpec, ...]) -> bytes:
        """One message as a content of its own; ``b""`` if it has nothing to say."""
        match message:
            case AssistantMessage():
                return _content(_MODEL, _said(message, offered), _MODEL_END)
            case SystemMessage():
                parts = [{"text": f"<system>\n{message.content}\n</system>"}] if message.content.strip() else []
            case UserMessage():
                parts = _user_parts(message.content)
            case ToolMessage():
                parts = [self._result(message, offered)]
        return _content(_USER, [json_bytes(part) for part in parts], _USER_END)

    def _result(self, message: ToolMessage, offered: tuple[ToolSpec, ...]) -> dict[str, Any]:
        """The keys ``output`` and ``error`` are the documented ones (FunctionResponse.response). Media of a result have a place from
        Gemini 3 on (https://ai.google.dev/gemini-api/docs/function-calling, "Multimodal function responses"), if
        their bytes are given; everything else is named in a line of text."""
        content: Content = carried(message.content, _inline)
        if isinstance(content, str):
            content = (TextPart(content),)
        lines: list[str] = []
        media: list[dict[str, Any]] = []
        for part in content:
            if isinstance(part, TextPart):
                lines.append(part.text)
            elif self._generation >= 3 and (blob := _inline(part)) is not None:
                media.append(blob)
            else:
                lines.append(described(part))
        name = wire_name(ToolCall(id=message.tool_call_id, name=message.name), offered)
        response = {"error" if message.failed else "output": "\n".join(lines)}
        result: dict[str, Any] = {"id": message.tool_call_id, "name": name, "response": response}
        return {"functionResponse": {**result, "parts": media} if media else result}

    def _head(self, settings: ModelSettings, tools: tuple[ToolSpec, ...], output: OutputSpec | None) -> bytes:
        """Everything but the conversation, as a JSON object without its closing brace."""
        if settings.parallel_tool_calls is False:
            raise UsageError(
                "Gemini has no switch against parallel tool calls; @tool(parallel=False) runs a tool's calls one after another"
            )
        config = self._generation_config(settings)
        if output is not None:
            config |= {"responseMimeType": "application/json", "responseJsonSchema": output.schema}
        fields: dict[str, Any] = {"generationConfig": config} if config else {}
        if tools:
            declarations = [{"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters} for tool in tools]
            fields["tools"] = [{"functionDeclarations": declarations}]
            if settings.tool_choice is not None:
                fields["toolConfig"] = {"functionCallingConfig": _calling(settings.tool_choice, tools)}
        return merged(fields, _joined(fields, settings.extra), reserved=("contents", "systemInstruction"))

    def _generation_config(self, settings: ModelSettings) -> dict[str, Any]:
        given = {
            "temperature": settings.temperature,
            "topP": settings.top_p,
            "maxOutputTokens": settings.max_tokens,
            "stopSequences": settings.stop,
            "seed": settings.seed,
        }
        config = {name: value for name, value in given.items() if value is not None}
        thinking: dict[str, Any] = {"includeThoughts": True} if self._thoughts else {}
        if settings.reasoning_effort is not None:
            thinking |= self._thinking(settings.reasoning_effort)
        return {**config, "thinkingConfig": thinking} if thinking else config

    def _thinking(self, effort: str) -> dict[str, Any]:
        known: Mapping[str, int | str] = _BUDGETS if self._generation < 3 else _LEVELS
        value = known.get(effort)
        if value is None:
            raise UsageError(f"reasoning_effort={effort!r} is not one that {self._name} knows: {', '.join(known)}")
        if value == "MINIMAL" and "-pro" in self._name:
            value = "LOW"  # the least that Pro has, and what the table gives for it
        return {"thinkingBudget" if self._generation < 3 else "thinkingLevel": value}


def _is_system(message: Message) -> bool:
    return isinstance(message, SystemMessage)


def _content(opening: bytes, parts: list[bytes], closing: bytes) -> bytes:
    return opening + b",".join(parts) + closing if parts else b""


def _turn_start(messages: tuple[Message, ...]) -> int:
    """Where the current turn begins, for which alone Gemini 3 asks for signatures: "the most recent User message that contains
    standard text", which "will not be a functionResponse". Text that shares a content with results begins none."""
    for place in range(len(messages) - 1, 0, -1):
        if isinstance(messages[place], (UserMessage, SystemMessage)) and not isinstance(messages[place - 1], ToolMessage):
            return place
    return 0


def _user_parts(content: Content) -> list[dict[str, Any]]:
    """Blank text is left out: the wire refuses it. A file's name has no field that a model sees, so it is said before it."""
    if isinstance(content, str):
        content = (TextPart(content),)
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, TextPart):
            if part.text.strip():
                parts.append({"text": part.text})
            continue
        if isinstance(part, FilePart) and part.name:
            parts.append({"text": f"[file: {part.name}]"})
        parts.append(_inline(part) or _address(part))
    return parts


def _inline(part: ImagePart | FilePart) -> dict[str, Any] | None:
    """A part's bytes, also from a ``data:`` URL; None if it has an address instead."""
    data, kind = part.data, part.media_type
    if part.url is not None and part.url.startswith("data:"):
        head, _, data = part.url[5:].partition(";base64,")
        kind = head or kind
    elif part.url is not None:
        return None
    if data is None:
        raise UsageError(f"an {type(part).__name__} needs a url or data")
    default = "image/png" if isinstance(part, ImagePart) else "application/pdf"
    return {"inlineData": {"mimeType": kind or default, "data": data}}


def _address(part: ImagePart | FilePart) -> dict[str, Any]:
    """A file of Google's Files API or storage, or an address that Google can fetch. Without a media type it finds out itself."""
    return {"fileData": {"mimeType": part.media_type, "fileUri": part.url} if part.media_type else {"fileUri": part.url}}


def _said(message: AssistantMessage, offered: tuple[ToolSpec, ...]) -> list[bytes]:
    """The parts of an assistant message: Gemini's own if there are any that still say the same."""
    parts = _own(message, offered)
    if parts is not None:
        return parts
    parts = [json_bytes({"text": message.content})] if message.content.strip() else []
    for place, call in enumerate(message.tool_calls):
        fields = {"name": wire_name(call, offered), "args": msgspec.Raw(wire_arguments(call.arguments).encode()), "id": call.id}
        parts.append(_marked(json_bytes({"functionCall": fields}), signed=place > 0))
    return parts


def _own(message: AssistantMessage, offered: tuple[ToolSpec, ...]) -> list[bytes] | None:
    """The parts as Gemini sent them, with the names and ids of the message's calls; None if they say something else by now."""
    wire = message.wire
    if wire is None or wire.api != GEMINI:
        return None
    try:
        parts = decode_parts(wire.body)
        raw = msgspec.json.decode(wire.body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if clean("".join(part.text for part in parts if part.text and not part.thought)) != message.content:
        return None
    calls = [part.functionCall for part in parts if part.functionCall is not None]
    if len(calls) != len(message.tool_calls) or not all(map(_same, calls, message.tool_calls)):
        return None
    sent: list[bytes] = []
    place = 0
    for part, data in zip(parts, raw, strict=True):
        if part.functionCall is None:
            sent.append(bytes(data))
            continue
        sent.append(
            _marked(_named(bytes(data), part.functionCall, message.tool_calls[place], offered), bool(part.thoughtSignature) or place > 0)
        )
        place += 1
    return sent


def _same(sent: FunctionCall, call: ToolCall) -> bool:
    return call_name(sent) == call.name and arguments_of(sent) == ascii_json(call.arguments)


def _named(data: bytes, sent: FunctionCall, call: ToolCall, offered: tuple[ToolSpec, ...]) -> bytes:
    """The part of a call with the id and the name under which its result will be sent; everything else stays byte-equal."""
    name = wire_name(call, offered)
    if sent.id == call.id and sent.name == name:
        return data
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    inner = msgspec.json.decode(fields["functionCall"], type=dict[str, msgspec.Raw])
    changed = {**inner, "name": msgspec.Raw(json_bytes(name)), "id": msgspec.Raw(json_bytes(call.id))}
    return msgspec.json.encode({**fields, "functionCall": changed})


def _marked(part: bytes, signed: bool) -> bytes:
    """Only "the first functionCall part" of a step needs a signature, also where several are parallel."""
    return part if signed else part[:-1] + _UNSIGNED + b"}"


def _calling(choice: str, tools: tuple[ToolSpec, ...]) -> dict[str, Any]:
    name = named_choice(choice, tools)
    return {"mode": _MODES[choice]} if name is None else {"mode": "ANY", "allowedFunctionNames": [name]}


def _joined(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """``extra`` with what is ours beside it: objects field by field, and Google's own tools before the functions, as in the SDK."""
    joined = dict(extra)
    for name, value in extra.items():
        ours = fields.get(name)
        if isinstance(ours, dict) and isinstance(value, Mapping):
            joined[name] = {**ours, **_joined(cast("dict[str, Any]", ours), cast("Mapping[str, Any]", value))}
        elif name == "tools" and isinstance(ours, list) and isinstance(value, (list, tuple)):
            joined[name] = [*cast("list[Any]", value), *cast("list[Any]", ours)]
    return joined
