"""The provider's own form of a message: made of the blocks of a reply, and read back for the next request. No I/O here.

The body of the ``WireCopy`` is a JSON array with one ``{"content": [blocks], "container": id}`` per response that the message
was made of: more than one after a pause. Blocks are as they came, signatures and encrypted content byte for byte. Only what
the message itself holds is not repeated: the id and the input of a call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ..messages import AssistantMessage, Message, StopReason, WireCopy, clean, clean_tree
from .lenient import parse

__all__ = ["API", "Block", "container_of", "copy_of", "parts_of"]

API = "anthropic"
"""Whose form a ``WireCopy`` of this wire is."""

_decode = msgspec.json.Decoder().decode


class Block:
    """A block as it is read. fields: as it began. parts: the text, the thinking or the input that was added to it."""

    __slots__ = ("citations", "fields", "kind", "parts", "signature")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.kind: str = fields["type"]
        self.parts: list[str] = []
        citations = fields.get("citations")
        self.citations = list(cast("list[Any]", citations)) if isinstance(citations, list) else []
        self.signature = ""

    def merge(self, payload: bytes) -> None:
        """Take a delta that we do not know, by the rule of those that we do: text is appended, anything else set."""
        value = parse(payload)
        delta = cast("dict[str, Any]", value).get("delta") if isinstance(value, dict) else None
        for name, said in cast("dict[str, Any]", delta).items() if isinstance(delta, dict) else ():
            if name != "type":
                before = self.fields.get(name)
                self.fields[name] = before + said if isinstance(before, str) and isinstance(said, str) else said


def copy_of(blocks: Sequence[Block], reason: StopReason, *, model: str, container: str | None) -> WireCopy | None:
    """A reply's own blocks, if they hold more than a message of ours does, or if the rest is still to come."""
    more = reason is StopReason.PAUSE
    content: list[dict[str, Any]] = []
    for block in blocks:
        fields = _own_form(block)
        if fields is None:
            continue
        more = more or _holds_more(block)
        content.append(fields)
    if not more or not content:
        return None
    if reason not in (StopReason.PAUSE, StopReason.TOOL_CALLS) and _waits(content):
        return None  # a hosted call whose result will never come is refused in every later request
    part: dict[str, Any] = {"content": content}
    if container is not None:
        part["container"] = container
    return WireCopy(api=API, model=clean(model), body=json.dumps(clean_tree([part])))


def parts_of(message: AssistantMessage) -> list[dict[str, Any]] | None:
    """What the message's wire copy holds: one ``{"content": [...], "container": "..."}`` per response that it was made of."""
    wire = message.wire
    if wire is None or wire.api != API:
        return None
    try:
        value = _decode(wire.body)
    except msgspec.DecodeError:
        return None
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else None


def container_of(message: Message) -> str | None:
    """The container in which the hosted tools of this message worked, if it has to be named for them to go on."""
    if not isinstance(message, AssistantMessage) or (parts := parts_of(message)) is None:
        return None
    ids = [part["container"] for part in parts if part.get("container")]
    return ids[-1] if ids else None


def _own_form(block: Block) -> dict[str, Any] | None:
    """A block as it is to be sent back. None: thinking that is not signed, which the API refuses.

    A call's id and input are left out: they are the message's own.
    """
    fields: dict[str, Any] = dict(block.fields)
    joined = "".join(block.parts)
    match block.kind:
        case "thinking":
            return {"type": "thinking", "thinking": joined, "signature": block.signature} if block.signature else None
        case "text":
            fields = {"type": "text", "text": joined}
            if block.citations:
                fields["citations"] = block.citations
        case "tool_use":
            fields = {name: value for name, value in fields.items() if name not in ("id", "input")}
            fields.setdefault("name", "")
        case _:
            if joined:
                value = parse(joined.encode("utf-8", "surrogatepass"))
                fields["input"] = value if isinstance(value, dict) else {}
    return fields


def _holds_more(block: Block) -> bool:
    """Whether a block says what text, and calls by name and arguments, do not."""
    if block.kind == "tool_use":
        caller = block.fields.get("caller")  # of a call that a hosted program made
        return isinstance(caller, dict) and cast("dict[str, Any]", caller).get("type") != "direct"
    return block.kind != "text" or bool(block.citations)


def _waits(content: Sequence[dict[str, Any]]) -> bool:
    """Whether a hosted tool was called (server_tool_use, mcp_tool_use) and its result is not there."""
    called = [block.get("id") for block in content if block["type"].endswith("tool_use") and block["type"] != "tool_use"]
    answered = [block.get("tool_use_id") for block in content]
    return any(id not in answered for id in called)
