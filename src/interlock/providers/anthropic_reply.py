"""Reading a reply of Anthropic's Messages API, streamed or not: events in, what to show out, and one ModelResponse at the end.

Terminal evidence is the stop reason, which comes after the last block; message_stop says that nothing follows. A block of
a hosted tool is no call of ours: it is kept in the message's wire copy, and nothing else is made of it. No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from ..errors import ProviderError
from ..messages import AssistantMessage, Usage, clean
from ..model import ModelResponse, ReasoningDelta, Stop, TextDelta, ToolCallDelta
from ..model.accumulator import ToolCalls
from .anthropic_copy import Block, copy_of
from .anthropic_event import Delta as BlockDelta
from .anthropic_event import Event, Reply, TokenCounts, decode, lenient, whole
from .faults import error_object
from .lenient import parse
from .ports import Delta
from .stops import FAILURE, GOES_ON, gravity_of, stop_reason, stop_word

__all__ = ["AnthropicReply"]

# No exchange has a trillion tokens; such a count is no count.
_TOKENS_MAX = 10**12

_KINDS = {"text_delta": "text", "input_json_delta": "tool_use", "thinking_delta": "thinking", "signature_delta": "thinking"}
"""The block that a delta belongs to, if none was begun at its index."""


class AnthropicReply:
    """What one reply amounts to so far. ``take`` each event in order; ``response`` once there is a stop reason."""

    __slots__ = (
        "_at",
        "_blocks",
        "_calls",
        "_container",
        "_counts",
        "_current",
        "_gravity",
        "_half",
        "_index",
        "_model",
        "_raw",
        "_reasoning",
        "_text",
        "done",
        "finished",
        "said",
    )

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCalls()
        self._blocks: list[Block] = []
        self._at: dict[int | None, Block] = {}
        """The latest block of each index."""
        self._current: Block | None = None
        self._index: int | None = None
        self._model = ""
        self._container: str | None = None
        self._raw: str | None = None
        self._gravity = -1
        self._counts = TokenCounts()
        self._half: dict[Callable[[str], Delta], str] = {}
        """The first half of a surrogate pair that was cut between two events, by the class of its delta."""
        self.finished = False
        """A stop reason was seen."""
        self.said = False
        """Something was said that is not shown; a ping never is."""
        self.done = False
        """message_stop was seen: nothing follows."""

    @property
    def usage(self) -> Usage | None:
        """The tokens that were reported so far. What was read from a cache or written to it is no part of Anthropic's own
        ``input_tokens``: the total is the sum of the three (API reference, usage)."""
        counts = self._counts
        parts = (_count(counts.input_tokens), _count(counts.cache_read_input_tokens), _count(counts.cache_creation_input_tokens))
        made = _count(counts.output_tokens)
        if parts[0] is None and made is None:
            return None
        return Usage(
            input_tokens=None if parts[0] is None else sum(part or 0 for part in parts),
            output_tokens=made,
            cached_input_tokens=parts[1],
            cache_write_tokens=parts[2],
            reasoning_tokens=_count(counts.output_tokens_details.thinking_tokens) if counts.output_tokens_details else None,
        )

    @property
    def begun(self) -> bool:
        """Whether anything at all of a message was read."""
        return bool(self._blocks or self._model or self.usage)

    def take(self, payload: bytes, *, last: bool = False) -> Sequence[Delta]:
        """Take the data of one event (or a whole JSON reply) and return what there is to show of it.

        last: the stream ended without this event's blank line, so it may be a fragment: no JSON is then a cut, or nothing
            after a stop reason.
        Raises ProviderError: ``error_object`` for an error inside the reply, ``malformed`` for what is no JSON.
        """
        try:
            event = decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self._unusual(payload, last)
        if event.type == "content_block_delta" and (delta := event.delta) is not None:
            block = self._current
            if block is None or event.index != self._index:
                block = self._find(event.index, delta)
            if delta.type == "text_delta" and delta.text and not self._half:
                block.parts.append(delta.text)
                self._text.append(delta.text)
                return (TextDelta(delta.text),)
            if delta.type == "input_json_delta" and delta.partial_json and block.kind == "tool_use":
                block.parts.append(delta.partial_json)
                shown = self._calls.add(event.index, None, None, delta.partial_json)
                return () if shown is None else (shown,)
        return self._other(event, payload)

    def _other(self, event: Event, payload: bytes) -> Sequence[Delta]:
        """Everything but the usual deltas."""
        match event.type:
            case "ping":
                return ()
            case "content_block_delta":
                return self._delta(event, payload)
            case "content_block_start":
                return self._start(event.index, event.content_block or {})
            case "content_block_stop":
                return self._stop(event.index)
            case "message_start":
                if isinstance(event.message, Reply):
                    return self._whole(event.message)
            case "message_delta":
                if event.delta is not None:
                    self._finish(event.delta.stop_reason, event.delta.container)
                self._count(event.usage)
            case "message_stop":
                self.said = self.done = True
            case _:
                return self._unknown(event, payload)
        return ()

    def _unknown(self, event: Event, payload: bytes) -> Sequence[Delta]:
        """A whole message, an error, or an event that was added since: those are to be ignored."""
        if event.error:
            raise error_object(event.error)
        value = parse(payload)
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if event.type == "message" or (not event.type and "content" in fields):
            shown = self._whole(whole(fields))
            self.done = True
            return shown
        if event.type == "error" or (not event.type and (fields.get("detail") or fields.get("message"))):
            raise error_object(fields)
        return ()

    def _unusual(self, payload: bytes, last: bool) -> Sequence[Delta]:
        """What the typed decoder does not take: nothing, odd types, lone surrogates, no JSON."""
        text = payload.strip()
        if not text:
            return ()
        if text == b"[DONE]":  # gateways that speak several wires end all of them so
            self.said = self.done = True
            return ()
        value = parse(text)
        if not isinstance(value, dict):
            if last and self.finished:
                return ()
            if last:
                raise ProviderError("the reply was cut in the middle of an event", retryable=True, kind="cut")
            shown = text[:200].decode("utf-8", "replace")
            raise ProviderError(f"the provider sent something that is not a JSON object: {shown!r}", retryable=True, kind="malformed")
        return self._other(lenient(cast("dict[str, Any]", value)), text)

    # ---- blocks ------------------------------------------------------------------------------------

    def _start(self, index: int | None, fields: dict[str, Any]) -> list[Delta]:
        """A block begins. Some servers put all of it here, or its beginning."""
        self.said = True
        kind = fields.get("type")
        if not isinstance(kind, str):
            return []
        block = self._begin(index, {**fields, "type": kind})
        shown: list[Delta] = []
        match kind:
            case "text":
                self._say(block, _text(fields, "text"), self._text, TextDelta, shown)
            case "thinking":
                self._say(block, _text(fields, "thinking"), self._reasoning, ReasoningDelta, shown)
                block.signature = _text(fields, "signature")
            case "tool_use":
                delta = self._calls.add(index, _text(fields, "id") or None, _text(fields, "name"))
                if delta is not None:
                    shown.append(ToolCallDelta(delta.index, clean(delta.id), clean(delta.name), ""))
            case _:
                pass
        return shown

    def _begin(self, index: int | None, fields: dict[str, Any]) -> Block:
        block = Block(fields)
        self._blocks.append(block)
        self._at[index] = self._current = block
        self._index = index
        return block

    def _find(self, index: int | None, delta: BlockDelta) -> Block:
        block = self._at.get(index)
        if block is None:
            return self._begin(index, {"type": _KINDS.get(delta.type, delta.type)})
        self._current, self._index = block, index
        return block

    def _delta(self, event: Event, payload: bytes) -> list[Delta]:
        self.said = True
        shown: list[Delta] = []
        delta = event.delta
        if delta is None:
            return shown
        block = self._find(event.index, delta)
        match delta.type:
            case "text_delta":
                self._say(block, delta.text, self._text, TextDelta, shown)
            case "thinking_delta":
                self._say(block, delta.thinking, self._reasoning, ReasoningDelta, shown)
            case "signature_delta":
                if delta.signature != block.signature:  # one event holds all of it; a gateway may cut it, or say it twice
                    block.signature += delta.signature or ""
            case "citations_delta":
                block.citations.append(delta.citation)
            case "input_json_delta":
                if delta.partial_json:
                    block.parts.append(delta.partial_json)
                    made = self._calls.add(event.index, None, None, delta.partial_json) if block.kind == "tool_use" else None
                    if made is not None:
                        shown.append(ToolCallDelta(made.index, clean(made.id), clean(made.name), clean(made.arguments)))
            case _:
                block.merge(payload)
        return shown

    def _stop(self, index: int | None) -> list[Delta]:
        """A block has ended. The input of a call that came without deltas is the one that it began with."""
        self.said = True
        block = self._at.get(index)
        given = None if block is None or block.kind != "tool_use" or block.parts else block.fields.get("input")
        if block is None or given in (None, "", {}):  # no arguments; an empty list is none of them, and no object
            return []
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        block.parts.append(arguments)
        delta = self._calls.add(index, None, None, arguments)
        return [] if delta is None else [ToolCallDelta(delta.index, clean(delta.id), clean(delta.name), clean(delta.arguments))]

    def _say(self, block: Block, text: str | None, parts: list[str], delta: Callable[[str], Delta], shown: list[Delta]) -> None:
        """Keep ``text`` and show it; half a surrogate pair is shown with its other half, in the next event."""
        if not text:
            return
        block.parts.append(text)
        parts.append(text)
        text = self._half.pop(delta, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._half[delta] = text[-1]
            text = text[:-1]
        if text:
            shown.append(delta(clean(text)))

    # ---- the message -------------------------------------------------------------------------------

    def _whole(self, message: Reply) -> list[Delta]:
        """A message, or the beginning of one, which has no blocks and no stop reason yet."""
        self.said = True
        self._model = message.model or self._model
        shown: list[Delta] = []
        for index, fields in enumerate(message.content or ()):
            shown += self._start(index, fields)
            shown += self._stop(index)
        self._finish(message.stop_reason, message.container)
        self._count(message.usage)
        return shown

    def _finish(self, reason: str | None, container: Any) -> None:
        self.said = True
        if isinstance(container, dict):
            self._container = _text(cast("dict[str, Any]", container), "id") or self._container
        if not reason or stop_word(reason) in GOES_ON:
            return
        self.finished = True
        gravity = gravity_of(reason)
        if gravity > self._gravity:
            self._raw, self._gravity = reason, gravity

    def _count(self, counts: TokenCounts | None) -> None:
        """Every count is of the whole reply so far: the last wins (RawMessageDeltaEvent: "cumulative")."""
        if counts is None:
            return
        for name in TokenCounts.__struct_fields__:
            value = getattr(counts, name)
            if value is not None:
                setattr(self._counts, name, value)

    def response(self) -> ModelResponse:
        """The whole reply. Only after a stop reason.

        Raises ProviderError: ``cut`` without one, ``error_object`` if it says that the provider failed.
        """
        if self._raw is None:
            raise self.cut()
        if self._gravity == FAILURE:
            raise error_object({"message": f"the provider ended the reply with stop reason {self._raw!r}"})
        reason = stop_reason(self._raw)
        message = AssistantMessage(
            content=clean("".join(self._text)),
            tool_calls=self._calls.finish(),
            reasoning=clean("".join(self._reasoning)),
            wire=copy_of(self._blocks, reason, model=self._model, container=self._container),
        )
        return ModelResponse(message=message, stop=Stop(reason, self._raw), usage=self.usage)

    def cut(self) -> ProviderError:
        """The error for a reply that ended without a stop reason."""
        characters = sum(map(len, self._text))
        so_far = f"after {characters} characters of text" + (" and a part of a tool call" if self._calls else "")
        return ProviderError(f"the reply ended without a stop reason, {so_far}", retryable=True, kind="cut")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _count(tokens: int | None) -> int | None:
    """A number of tokens, if it can be one: a negative one would give a budget back."""
    return tokens if tokens is not None and 0 <= tokens <= _TOKENS_MAX else None
