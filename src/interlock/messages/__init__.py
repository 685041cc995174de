"""What is said: the provider-neutral conversation. Imports nothing of ours.

All are frozen; a changed message is a new one (``msgspec.structs.replace``). Equality is by value, and a
tuple of messages compares by identity first, which is what lets an adapter encode each message once.
"""

from __future__ import annotations

import enum
from typing import Literal

from msgspec import Struct

from .text import clean, clean_tree, reason_of

Effect = Literal["none", "happened", "unknown"]

__all__ = [
    "AssistantMessage",
    "Content",
    "Effect",
    "FilePart",
    "ImagePart",
    "Message",
    "Part",
    "StopReason",
    "SystemMessage",
    "TextPart",
    "ToolCall",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "WireCopy",
    "clean",
    "clean_tree",
    "reason_of",
    "text_of",
]


class StopReason(enum.Enum):
    """Why a model stopped, in one vocabulary. The provider's own word is kept beside it."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    PAUSE = "pause"
    UNKNOWN = "unknown"
    """Terminal evidence that we have no word for: accepted, complete calls run."""


class TextPart(Struct, frozen=True, gc=False, tag="text"):
    """A piece of text."""

    text: str


class ImagePart(Struct, frozen=True, gc=False, kw_only=True, tag="image"):
    """An image: a URL, or base64 ``data`` with its ``media_type`` (``image/png``)."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None


class FilePart(Struct, frozen=True, gc=False, kw_only=True, tag="file"):
    """A document: a URL, or base64 ``data``, with its ``media_type`` (``application/pdf``) and the name that a model is told."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    name: str | None = None


Part = TextPart | ImagePart | FilePart
Content = str | tuple[Part, ...]


class ToolCall(Struct, frozen=True, gc=False, kw_only=True):
    """The model's request: wire id, tool name, and the raw JSON text of the arguments, exactly as it came."""

    id: str
    name: str
    arguments: str = "{}"


class SystemMessage(Struct, frozen=True, gc=False, kw_only=True, tag="system"):
    """What the operator says. It may stand anywhere; each adapter documents the one rule by which it reaches the provider."""

    content: str


class UserMessage(Struct, frozen=True, gc=False, kw_only=True, tag="user"):
    """What the user says: text, or parts."""

    content: Content


class WireCopy(Struct, frozen=True, gc=False, kw_only=True):
    """A message in the provider's own form, for what ours cannot hold: signed thinking, encrypted reasoning, hosted tools.

    api: whose form it is (``anthropic``, ``responses``, ``gemini``, ...). model: which model said it. body: JSON, ASCII only, exactly as
    it came. An adapter sends it back to the same api as long as it says what the message says; otherwise it is left out.
    Where a provider pauses in the middle of a message, a body that is an array holds one entry per part.
    """

    api: str
    model: str
    body: str

    def joined(self, rest: WireCopy | None) -> WireCopy | None:
        """The form of a message that this began and ``rest`` went on with; this alone if the rest has none of its own.

        None if they cannot be joined: the forms of two APIs, or bodies that are no arrays.
        """
        if rest is None:
            return self
        if rest.api != self.api or not (self.body.startswith("[") and rest.body.startswith("[")):
            return None
        parts = filter(None, (self.body[1:-1], rest.body[1:-1]))
        return WireCopy(api=self.api, model=rest.model, body=f"[{','.join(parts)}]")


class AssistantMessage(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="assistant"):
    """One model response. ``incomplete`` marks text that must not be taken for an answer. wire: the provider's own form of it."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    incomplete: bool = False
    wire: WireCopy | None = None


class ToolMessage(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="tool"):
    """The only answer to one tool call, as the transcript keeps it."""

    tool_call_id: str
    name: str
    content: Content
    failed: bool = False
    effect: Effect = "none"


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class Usage(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Tokens and counts. ``None`` means that the provider did not say; it is never turned into 0.

    input_tokens: all of them; cached_input_tokens of these were read from the provider's cache, cache_write_tokens were written to it.
    output_tokens: all of them; reasoning_tokens of these are reasoning.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    requests: int = 0
    tool_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        if self == _NO_USAGE:  # of most runs the first sum
            return other
        return Usage(
            input_tokens=_sum(self.input_tokens, other.input_tokens),
            output_tokens=_sum(self.output_tokens, other.output_tokens),
            cached_input_tokens=_sum(self.cached_input_tokens, other.cached_input_tokens),
            cache_write_tokens=_sum(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens=_sum(self.reasoning_tokens, other.reasoning_tokens),
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
        )


_NO_USAGE = Usage()


def _sum(a: int | None, b: int | None) -> int | None:
    if a is None:
        return b
    return a if b is None else a + b


def text_of(content: Content) -> str:
    """The text of a message's content; parts that are not text are left out."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextPart))
