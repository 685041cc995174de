"""Messages as the content blocks of Anthropic's Messages API, one message at a time. No I/O here.

Sources: the API reference (platform.claude.com/docs/en/api/messages) and the request types of Anthropic's own SDK.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
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
)
from ..messages.arguments import wire_arguments
from ..model import ToolSpec
from .anthropic_copy import parts_of
from .common import carried, described, json_bytes, wire_name

__all__ = ["blocks_of", "system_block"]

# What the API accepts as the id of a call (API reference: tool_use.id), which may come from another provider.
_ID = re.compile(r"[A-Za-z0-9_-]+")


def blocks_of(message: Message, offered: tuple[ToolSpec, ...] = ()) -> bytes:
    """The blocks of ``message`` as JSON, without the brackets around them; ``b""`` if it has nothing to say.

    offered: tools whose names are sent as they are. Raises UsageError for a file that this API does not take.
    """
    match message:
        case SystemMessage():
            blocks = _text(f"<system>\n{message.content}\n</system>") if message.content.strip() else []
        case ToolMessage():
            blocks = [_result(message)]
        case AssistantMessage():
            blocks = _assistant(message, offered)
        case _:
            blocks = _parts(message.content)
    return json_bytes(blocks)[1:-1]


def system_block(message: SystemMessage) -> dict[str, Any]:
    """An entry of the top-level ``system``."""
    return {"type": "text", "text": message.content}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []  # a blank text block is refused


def _parts(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return _text(content)
    blocks: list[dict[str, Any]] = []
    for part in content:
        match part:
            case TextPart():
                blocks += _text(part.text)
            case ImagePart() | FilePart():
                blocks.append(_medium(part))
    return blocks


def _result(message: ToolMessage) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id)}
    if content := _parts(carried(message.content, _medium)):
        block["content"] = content
    if message.failed:
        block["is_error"] = True
    return block


def _medium(part: ImagePart | FilePart) -> dict[str, Any]:
    """Raises UsageError for what this API does not take."""
    return _image(part) if isinstance(part, ImagePart) else _file(part)


def _image(part: ImagePart | FilePart) -> dict[str, Any]:
    if part.data is not None:
        return {"type": "image", "source": {"type": "base64", "media_type": part.media_type or "image/png", "data": part.data}}
    return {"type": "image", "source": {"type": "url", "url": _address(part)}}


def _file(part: FilePart) -> dict[str, Any]:
    """A PDF by its bytes or its address, a plain text by its bytes; no other documents are taken (DocumentBlockParam)."""
    kind = (part.media_type or "application/pdf").partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return _image(part)
    source: dict[str, Any]
    if part.data is None:
        if kind != "application/pdf":
            return {"type": "text", "text": described(part)}  # for a model that can fetch it
        source = {"type": "url", "url": _address(part)}
    elif kind == "application/pdf":
        source = {"type": "base64", "media_type": kind, "data": part.data}
    elif kind.startswith("text/") or kind == "application/json":
        source = {"type": "text", "media_type": "text/plain", "data": _plain(part.data)}
    else:
        raise UsageError(f"Anthropic takes images, PDF and text files, not {kind}; convert the file {part.name or ''!r} first")
    return {"type": "document", "source": source, **({"title": part.name} if part.name else {})}


def _address(part: ImagePart | FilePart) -> str:
    if part.url is None:
        raise UsageError(f"an {type(part).__name__} needs a url or data")
    return part.url


def _plain(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"the data of a text file is not base64: {error}") from None


def _assistant(message: AssistantMessage, offered: tuple[ToolSpec, ...]) -> list[dict[str, Any]]:
    """The provider's own blocks as long as they are the beginning of what the message says, then the rest of it."""
    calls = [_call(call, offered) for call in message.tool_calls]
    own = _own_blocks(message, calls)
    if own is None:
        return [*_text(message.content), *calls]
    blocks, said, made = own
    return [*blocks, *_text(message.content[said:]), *calls[made:]]


def _call(call: ToolCall, offered: tuple[ToolSpec, ...]) -> dict[str, Any]:
    arguments = msgspec.Raw(wire_arguments(call.arguments).encode("utf-8", "replace"))
    return {"type": "tool_use", "id": _id(call.id), "name": wire_name(call, offered), "input": arguments}


def _own_blocks(message: AssistantMessage, calls: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int, int] | None:
    """The blocks of the wire copy, how much of the text they say, and how many of the calls. None if they say anything else.

    A call's id and arguments are the message's own: the runtime may have replaced an id, and a copy does not repeat them.
    """
    parts = parts_of(message)
    if parts is None or message.incomplete:  # what was given up may hold a hosted call without its result
        return None
    blocks: list[dict[str, Any]] = []
    said = made = 0
    for part in parts:
        for block in cast("list[dict[str, Any]]", part.get("content", [])):
            match block.get("type"):
                case "text":
                    text: str = block["text"]
                    if not message.content.startswith(text, said):
                        return None
                    said += len(text)
                    if text.strip():
                        blocks.append(block)
                case "tool_use":
                    if made >= len(calls) or message.tool_calls[made].name != block["name"]:
                        return None
                    blocks.append({**block, **calls[made]})
                    made += 1
                case _:
                    blocks.append(block)
    return blocks, said, made


def _id(id: str) -> str:
    """A call's id as the API accepts it; two that differ stay different."""
    if _ID.fullmatch(id):
        return id
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', id)}_{zlib.crc32(id.encode('utf-8', 'replace')):08x}"
