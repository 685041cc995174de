"""What several wires share: JSON, names, the choice of a tool, images and files, text in pieces. No I/O here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from ..errors import UsageError
from ..messages import Content, FilePart, ImagePart, TextPart, ToolCall, clean, clean_tree
from ..model import ToolSpec

__all__ = ["CHOICES", "Speech", "ascii_json", "carried", "data_url", "described", "json_bytes", "merged", "named_choice", "wire_name"]

_encode = msgspec.json.Encoder().encode

# What OpenAI accepts as a function's name, and Anthropic and Google nearly so. A name that a model made up comes back in
# the history of every later request.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

CHOICES = frozenset({"auto", "none", "required"})
"""The words of ``ModelSettings.tool_choice``; anything else is a tool's name."""


def json_bytes(value: Any) -> bytes:
    """``value`` as JSON. Raises TypeError for what JSON cannot hold."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # Text is mended where it enters; a layer may still have put a lone surrogate into a message.
        return _encode(clean_tree(value))


def merged(fields: dict[str, Any], extra: Mapping[str, Any], *, reserved: Collection[str]) -> bytes:
    """A body's fields with ``ModelSettings.extra`` over them, as a JSON object without its closing brace.

    reserved: what only the request itself may say. Raises UsageError for such a field, and for what is not JSON.
    """
    for name in reserved:
        if name in extra:
            raise UsageError(f"ModelSettings.extra cannot hold {name!r}: the conversation is the request's own")
    try:
        return json_bytes({**fields, **extra})[:-1]
    except TypeError as error:
        raise UsageError(f"a tool's schema or ModelSettings.extra is not JSON: {error}") from error


def named_choice(choice: str, tools: tuple[ToolSpec, ...]) -> str | None:
    """The tool that ``tool_choice`` names, or None for one of ``CHOICES``, behind which a tool may not hide.

    Raises UsageError if it is neither.
    """
    if choice in CHOICES:
        return None
    if all(tool.name != choice for tool in tools):
        names = ", ".join(tool.name for tool in tools)
        raise UsageError(f"tool_choice={choice!r} is neither auto, none or required nor an offered tool ({names})")
    return choice


def wire_name(call: ToolCall, offered: tuple[ToolSpec, ...]) -> str:
    """A call's name as a provider accepts it; that of an offered tool as it is."""
    name = call.name
    if not _NAME.fullmatch(name) and not any(tool.name == name for tool in offered):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown_tool"
    return name


def data_url(part: ImagePart | FilePart, kind: str) -> str:
    """A part's address: its own, or its bytes as a ``data:`` URL. kind: the media type if it names none."""
    if part.url is not None:
        return part.url
    if part.data is None:
        raise UsageError(f"an {type(part).__name__} needs a url or data")
    return f"data:{part.media_type or kind};base64,{part.data}"


def described(part: ImagePart | FilePart) -> str:
    """A line of text in place of a part that a wire cannot carry."""
    if isinstance(part, ImagePart):
        return f"[image: {part.url or part.media_type or 'no description'}]"
    return f"[file: {part.name or part.url or part.media_type or 'no description'}]"


def carried(content: Content, carry: Callable[[ImagePart | FilePart], object]) -> Content:
    """``content`` with a line of text in place of each part for which ``carry`` raises UsageError.

    What was said or returned is in the conversation for good: no later request may fail over it.
    """
    if isinstance(content, str):
        return content
    parts: list[TextPart | ImagePart | FilePart] = []
    for part in content:
        if isinstance(part, TextPart):
            parts.append(part)
            continue
        try:
            carry(part)
            parts.append(part)
        except UsageError:
            parts.append(TextPart(described(part)))
    return tuple(parts)


def ascii_json(text: str) -> str:
    """A JSON document with each character beyond ASCII escaped, and nothing else changed: what a ``WireCopy`` holds."""
    # Such a character can only stand inside a string, where its escape means the same.
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class Speech:
    """Text that comes in pieces. Half a surrogate pair is shown with its other half, which comes in the next piece."""

    __slots__ = ("half", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.half = ""

    def add(self, piece: str) -> str:
        """Keep ``piece``, and return what there is to show now; ``""`` if that is nothing."""
        self.pieces.append(piece)
        if piece.isascii() and not self.half:
            return piece
        shown = self.half + piece
        self.half = ""
        if shown and "\ud800" <= shown[-1] <= "\udbff":
            self.half = shown[-1]
            shown = shown[:-1]
        return clean(shown)

    def text(self) -> str:
        """All of it."""
        return clean("".join(self.pieces))
