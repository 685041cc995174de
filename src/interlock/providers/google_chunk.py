"""The fields of a Gemini ``GenerateContentResponse`` that matter, decoded strictly and fast, or mended by hand.

Source: https://ai.google.dev/api/generate-content and https://ai.google.dev/api/caching#Content (the classes below have the
names and the fields of the reference). A stream is a row of such responses; a plain reply is one.

The classes are not tracked by the garbage collector (``gc=False``): they live for one chunk and hold no cycles.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from ..messages import clean, clean_tree
from .lenient import as_dict, as_int, as_str

__all__ = [
    "Candidate",
    "Chunk",
    "Content",
    "FunctionCall",
    "Part",
    "PromptFeedback",
    "UsageMetadata",
    "arguments_of",
    "call_name",
    "decode",
    "decode_parts",
    "mended",
    "raw_parts",
]


class FunctionCall(Struct, gc=False):
    name: str | None = None
    id: str | None = None
    args: Raw = Raw(b"")  # a union with None would refuse objects
    # Arguments in pieces (Vertex AI, ``streamFunctionCallArguments``), which nobody asks for here.
    partialArgs: Raw = Raw(b"")
    willContinue: bool | None = None


class Part(Struct, gc=False):
    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None
    functionCall: FunctionCall | None = None
    # What only Google's own tools and the image models say. It is kept as it came and sent back.
    executableCode: Raw = Raw(b"")
    codeExecutionResult: Raw = Raw(b"")
    toolCall: Raw = Raw(b"")
    toolResponse: Raw = Raw(b"")
    inlineData: Raw = Raw(b"")
    fileData: Raw = Raw(b"")

    @property
    def hosted(self) -> bool:
        """Whether it holds what a message of ours has no place for."""
        return bool(
            self.executableCode or self.codeExecutionResult or self.toolCall or self.toolResponse or self.inlineData or self.fileData
        )


class Content(Struct, gc=False):
    parts: list[Part] | None = None


class Candidate(Struct, gc=False):
    content: Content | None = None
    finishReason: str | None = None
    finishMessage: str | None = None
    index: int | None = None


class PromptFeedback(Struct, gc=False):
    blockReason: str | None = None


class UsageMetadata(Struct, gc=False):
    promptTokenCount: int | None = None
    candidatesTokenCount: int | None = None
    thoughtsTokenCount: int | None = None
    toolUsePromptTokenCount: int | None = None
    cachedContentTokenCount: int | None = None


class Chunk(Struct, gc=False):
    candidates: list[Candidate] | None = None
    usageMetadata: UsageMetadata | None = None
    promptFeedback: PromptFeedback | None = None
    error: Raw = Raw(b"")


decode = msgspec.json.Decoder(Chunk).decode
decode_parts = msgspec.json.Decoder(list[Part]).decode


class _RawContent(Struct, gc=False):
    parts: list[Raw] | None = None


class _RawCandidate(Struct, gc=False):
    content: _RawContent | None = None
    index: int | None = None


class _RawChunk(Struct, gc=False):
    candidates: list[_RawCandidate] | None = None


_decode_raw = msgspec.json.Decoder(_RawChunk).decode


def raw_parts(payload: bytes) -> list[bytes]:
    """The parts of the first candidate as they came, white space between the tokens left out."""
    for candidate in _decode_raw(payload).candidates or ():
        if not candidate.index and candidate.content is not None:
            return [_compact(part) for part in candidate.content.parts or ()]
    return []


def arguments_of(call: FunctionCall) -> str:
    """The JSON text of a call's arguments; missing and null are ``{}``. Numbers and strings stay as they were written."""
    args = bytes(call.args)
    return "{}" if args in (b"", b"null") else _compact(call.args).decode("utf-8", "replace")


def call_name(call: FunctionCall) -> str:
    """The tool that is called; a call without a name is of a tool that does not exist."""
    return clean(call.name or "") or "unknown_tool"


def _compact(raw: Raw) -> bytes:
    return msgspec.json.format(bytes(raw), indent=-1)


def mended(value: dict[str, Any]) -> bytes:
    """The same response as JSON that ``decode`` takes: what has another type than documented is mended or left out."""
    feedback, usage = as_dict(value.get("promptFeedback")), as_dict(value.get("usageMetadata"))
    fields: dict[str, Any] = {
        "candidates": [_candidate(candidate) for candidate in _dicts(value.get("candidates"))],
        "promptFeedback": {"blockReason": as_str(feedback.get("blockReason"))},
        "usageMetadata": {name: as_int(usage.get(name)) for name in UsageMetadata.__struct_fields__},
    }
    if value.get("error"):
        fields["error"] = value["error"]
    return json.dumps(clean_tree(fields), ensure_ascii=False).encode()


def _candidate(value: dict[str, Any]) -> dict[str, Any]:
    parts = as_dict(value.get("content")).get("parts")
    mended_candidate: dict[str, Any] = {name: as_str(value.get(name)) for name in ("finishReason", "finishMessage")}
    return {**mended_candidate, "index": as_int(value.get("index")), "content": {"parts": [_part(part) for part in _dicts(parts)]}}


def _part(value: dict[str, Any]) -> dict[str, Any]:
    part = {**value, "text": as_str(value.get("text")), "thought": value.get("thought") is True}
    if "thoughtSignature" in value:
        part["thoughtSignature"] = as_str(value["thoughtSignature"])
    call = value.get("functionCall")
    if isinstance(call, dict):
        fields = cast("dict[str, Any]", call)
        part["functionCall"] = {**fields, "name": as_str(fields.get("name")), "id": as_str(fields.get("id"))}
        part["functionCall"]["willContinue"] = bool(fields.get("willContinue"))
    elif "functionCall" in part:
        del part["functionCall"]
    return {name: field for name, field in part.items() if field is not None and field is not False}


def _dicts(value: Any) -> list[dict[str, Any]]:
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [{"text": item} if isinstance(item, str) else cast("dict[str, Any]", item) for item in values if isinstance(item, (dict, str))]
