"""The fields of a Responses event that matter, decoded strictly and fast, or leniently by hand.

The classes are not tracked by the garbage collector (``gc=False``): they live for one event and hold no cycles.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from .lenient import parse

__all__ = ["Body", "Event", "Piece", "body_of", "decode", "decode_piece", "lenient", "read"]


class Piece(Struct, gc=False):
    """The usual event: a piece of text or of arguments, and nothing else that matters."""

    type: str = ""
    delta: str | None = None
    output_index: int | None = None


class Event(Struct, gc=False):
    """One event of the stream; or, without a type, a whole response (``object``), or an error."""

    type: str = ""
    delta: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item: Raw = Raw(b"")  # a union with None would refuse objects
    response: Raw = Raw(b"")
    error: Raw = Raw(b"")
    object: str | None = None


class Body(Struct, gc=False):
    """A whole response. output: each item as it came."""

    status: str | None = None
    output: list[Raw] | None = None
    usage: Raw = Raw(b"")
    error: Raw = Raw(b"")
    incomplete_details: Raw = Raw(b"")


decode_piece = msgspec.json.Decoder(Piece).decode

decode = msgspec.json.Decoder(Event).decode

_decode_body = msgspec.json.Decoder(Body).decode


def read(raw: bytes | Raw) -> Any:
    """The JSON value, as leniently as it can be read. None if it is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return parse(bytes(raw))


def body_of(raw: bytes | Raw) -> Body:
    """A whole response; whatever has another type is left out."""
    try:
        return _decode_body(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = parse(bytes(raw))
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    output = fields.get("output")
    return Body(
        status=_text(fields, "status"),
        output=[Raw(json.dumps(item).encode()) for item in cast("list[Any]", output)] if isinstance(output, list) else None,
        usage=_raw(fields, "usage"),
        error=_raw(fields, "error"),
        incomplete_details=_raw(fields, "incomplete_details"),
    )


def lenient(value: dict[str, Any]) -> Event:
    """The same fields as the typed decoder's, with whatever has another type left out."""
    return Event(
        type=_text(value, "type") or "",
        delta=_text(value, "delta"),
        output_index=_number(value, "output_index"),
        content_index=_number(value, "content_index"),
        summary_index=_number(value, "summary_index"),
        item=_raw(value, "item"),
        response=_raw(value, "response"),
        error=_raw(value, "error"),
        object=_text(value, "object"),
    )


def _text(value: dict[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _number(value: dict[str, Any], name: str) -> int | None:
    found = value.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _raw(value: dict[str, Any], name: str) -> Raw:
    found = cast("Any", value.get(name))
    return Raw(json.dumps(found).encode()) if found else Raw(b"")
