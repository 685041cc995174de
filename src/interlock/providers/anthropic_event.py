"""The fields of an event of Anthropic's Messages API that matter, decoded strictly and fast, or leniently by hand.

The events and their order: message_start; for each block content_block_start, its deltas, content_block_stop; message_delta
(stop reason, usage); message_stop; ping and error anywhere; others may be added, and are to be ignored
(platform.claude.com/docs/en/build-with-claude/streaming). A reply that is not streamed is one ``message``.

The classes are not tracked by the garbage collector (``gc=False``): they live for one event and hold no cycles.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from .lenient import as_int

__all__ = ["Delta", "Event", "OutputDetails", "Reply", "TokenCounts", "decode", "lenient", "whole"]


class OutputDetails(Struct, gc=False):
    thinking_tokens: int | None = None


class TokenCounts(Struct, gc=False):
    """Each counts all of the reply so far; one that is missing has not changed (RawMessageDeltaEvent of the SDK)."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class Delta(Struct, gc=False):
    """A piece of a block; or, in message_delta, how the message ended."""

    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    citation: Any = None
    stop_reason: str | None = None
    container: Any = None


class Reply(Struct, gc=False):
    """A whole message, or one that begins."""

    model: str | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    usage: TokenCounts | None = None
    container: Any = None


class Event(Struct, gc=False):
    type: str = ""
    index: int | None = None
    delta: Delta | None = None
    content_block: dict[str, Any] | None = None
    message: Reply | str | None = None
    usage: TokenCounts | None = None
    error: Any = None


decode = msgspec.json.Decoder(Event).decode


def lenient(value: dict[str, Any]) -> Event:
    """The same fields, with whatever has another type left out."""
    delta, message, block = value.get("delta"), value.get("message"), value.get("content_block")
    return Event(
        type=_str(value.get("type")) or "",
        index=as_int(value.get("index")),
        delta=_delta(cast("dict[str, Any]", delta)) if isinstance(delta, dict) else None,
        content_block=cast("dict[str, Any]", block) if isinstance(block, dict) else None,
        message=whole(cast("dict[str, Any]", message)) if isinstance(message, dict) else _str(message),
        usage=_usage(value.get("usage")),
        error=value.get("error"),
    )


def whole(value: dict[str, Any]) -> Reply:
    """A message, read in the same way."""
    content = value.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return Reply(
        model=_str(value.get("model")),
        content=[cast("dict[str, Any]", block) for block in blocks if isinstance(block, dict)],
        stop_reason=_str(value.get("stop_reason")),
        usage=_usage(value.get("usage")),
        container=value.get("container"),
    )


def _delta(value: dict[str, Any]) -> Delta:
    return Delta(
        type=_str(value.get("type")) or "",
        text=_str(value.get("text")),
        partial_json=_str(value.get("partial_json")),
        thinking=_str(value.get("thinking")),
        signature=_str(value.get("signature")),
        citation=value.get("citation"),
        stop_reason=_str(value.get("stop_reason")),
        container=value.get("container"),
    )


def _usage(value: Any) -> TokenCounts | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    details = fields.get("output_tokens_details")
    thought = as_int(cast("dict[str, Any]", details).get("thinking_tokens")) if isinstance(details, dict) else None
    return TokenCounts(
        input_tokens=as_int(fields.get("input_tokens")),
        output_tokens=as_int(fields.get("output_tokens")),
        cache_read_input_tokens=as_int(fields.get("cache_read_input_tokens")),
        cache_creation_input_tokens=as_int(fields.get("cache_creation_input_tokens")),
        output_tokens_details=OutputDetails(thought),
    )


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None
