"""The fields of a chat-completions chunk that matter, decoded strictly and fast, or leniently by hand.

``decode`` takes what the documentation describes. ``lenient`` takes the same fields from whatever JSON a server sent:
odd types are mended or left out, lone surrogates and NaN are read.

The classes are not tracked by the garbage collector (``gc=False``): they live for one chunk and hold no cycles.
"""

from __future__ import annotations

import json
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from .lenient import as_dict, as_int, as_str

__all__ = [
    "Call",
    "Choice",
    "Chunk",
    "CompletionDetails",
    "Function",
    "Groq",
    "Message",
    "PlainChoice",
    "PlainChunk",
    "PlainMessage",
    "PromptDetails",
    "TokenCounts",
    "decode",
    "decode_plain",
    "details_text",
    "lenient",
]


class Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class Call(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Message(Struct, gc=False):
    """A delta of a stream, or the message of a whole reply."""

    content: str | None = None
    tool_calls: list[Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: Function | None = None
    reasoning_details: Raw = Raw(b"")  # a union with None would refuse objects


class Choice(Struct, gc=False):
    index: int | None = None
    delta: Message | None = None
    finish_reason: str | None = None
    message: Message | None = None
    error: Raw = Raw(b"")


class PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None


class CompletionDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class TokenCounts(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Groq(Struct, gc=False):
    usage: TokenCounts | None = None
    error: Raw = Raw(b"")


class Chunk(Struct, gc=False):
    choices: list[Choice] | None = None
    usage: TokenCounts | None = None
    error: Raw = Raw(b"")
    x_groq: Groq | None = None


decode = msgspec.json.Decoder(Chunk).decode


class PlainMessage(Struct, gc=False):
    content: str | None = None
    tool_calls: list[Call] | None = None
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    function_call: None = None
    reasoning_details: None = None


class PlainChoice(Struct, gc=False):
    delta: PlainMessage
    index: Literal[0] | None = None
    finish_reason: None = None
    message: None = None
    error: None = None


class PlainChunk(Struct, gc=False):
    """A chunk that can hold nothing but text or pieces of calls: what else could be in it is absent or null, or it is not decoded.
    Most chunks are so, and there is nothing more to be asked of one."""

    choices: tuple[PlainChoice]
    usage: None = None
    error: None = None
    x_groq: None = None


decode_plain = msgspec.json.Decoder(PlainChunk).decode


def details_text(raw: Raw) -> str:
    """OpenRouter's ``reasoning_details``, for models that give their reasoning nowhere else."""
    details = msgspec.json.decode(raw) if raw else None
    if not isinstance(details, list):
        return ""
    parts = [cast("dict[str, Any]", part) for part in cast("list[Any]", details) if isinstance(part, dict)]
    return "".join(text for part in parts if isinstance(text := part.get("text") or part.get("summary"), str))


def lenient(value: dict[str, Any]) -> Chunk:
    """The same fields as the typed decoder's, with whatever has another type mended or left out."""
    choices = [_choice(choice) for choice in _dicts(value.get("choices"))]
    groq = as_dict(value.get("x_groq"))
    return Chunk(
        choices=choices,
        usage=_lenient_usage(value.get("usage")),
        error=_raw(value.get("error")),
        x_groq=Groq(usage=_lenient_usage(groq.get("usage")), error=_raw(groq.get("error"))),
    )


def _choice(value: dict[str, Any]) -> Choice:
    delta, message = value.get("delta"), value.get("message")
    return Choice(
        index=as_int(value.get("index")),
        delta=_message(cast("dict[str, Any]", delta)) if isinstance(delta, dict) else None,
        message=_message(cast("dict[str, Any]", message)) if isinstance(message, dict) else None,
        finish_reason=as_str(value.get("finish_reason")),
        error=_raw(value.get("error")),
    )


def _message(value: dict[str, Any]) -> Message:
    text, thought = _content(value.get("content"))
    calls = [
        Call(index=as_int(call.get("index")), id=as_str(call.get("id")), function=_function(call.get("function") or call))
        for call in _dicts(value.get("tool_calls"))
    ]
    legacy = value.get("function_call")
    return Message(
        content=text,
        tool_calls=calls or None,
        reasoning_content=as_str(value.get("reasoning_content")) or thought,
        reasoning=as_str(value.get("reasoning")),
        refusal=as_str(value.get("refusal")),
        function_call=_function(legacy) if isinstance(legacy, dict) else None,
        reasoning_details=_raw(value.get("reasoning_details")),
    )


def _content(value: Any) -> tuple[str, str]:
    """Text and reasoning of a content that is a string or a list of parts (Mistral: ``text`` and ``thinking``)."""
    if not isinstance(value, list):
        return as_str(value) or "", ""
    text, thought = "", ""
    for part in cast("list[Any]", value):
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            thinking = fields.get("thinking")
            thought += _content(thinking)[0] if thinking else ""
            text += as_str(fields.get("text")) or ""
    return text, thought


def _function(value: Any) -> Function:
    fields = as_dict(value)
    arguments = fields.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        # An object where JSON text belongs.
        arguments = json.dumps(arguments, ensure_ascii=False)
    return Function(name=as_str(fields.get("name")), arguments=arguments)


def _lenient_usage(value: Any) -> TokenCounts | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    prompt, completion = as_dict(fields.get("prompt_tokens_details")), as_dict(fields.get("completion_tokens_details"))
    return TokenCounts(
        prompt_tokens=as_int(fields.get("prompt_tokens")),
        completion_tokens=as_int(fields.get("completion_tokens")),
        prompt_tokens_details=PromptDetails(as_int(prompt.get("cached_tokens"))),
        completion_tokens_details=CompletionDetails(as_int(completion.get("reasoning_tokens"))),
    )


def _raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode()) if value else Raw(b"")


def _dicts(value: Any) -> list[dict[str, Any]]:
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [cast("dict[str, Any]", item) for item in values if isinstance(item, dict)]
