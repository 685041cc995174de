"""Reading a reply of OpenAI's Responses API, streamed or not: events in, what to show out, and one ModelResponse at the end.

A reply is a row of output items. Each is announced, told in deltas, and repeated whole when it is done; the last event
repeats all of them. What is whole counts; what came only in deltas counts where nothing whole followed, and whatever was
told only as a whole is shown then. ``response.completed`` and ``response.incomplete`` are the terminal evidence; without
one of them a reply is a cut. No I/O here.

Source: the API reference at developers.openai.com (Responses, Streaming events), and recorded traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ..errors import ProviderError
from ..messages import AssistantMessage, StopReason, Usage, WireCopy, clean
from ..model import ModelResponse, ReasoningDelta, Stop, TextDelta, ToolCallDelta
from ..model.accumulator import ToolCalls
from .common import Speech, ascii_json
from .faults import error_object
from .lenient import parse
from .ports import Delta
from .responses_event import Body, Event, body_of, decode, decode_piece, lenient, read
from .responses_items import arguments_of, has_refusal, id_of, is_plain, is_unanswered, reasoning_of, text_of_item
from .responses_request import API
from .stops import FAILED, stop_reason, stop_word

__all__ = ["ResponsesReply"]

# No exchange has a trillion tokens; such a count is no count.
_TOKENS_MAX = 10**12

_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})

_REASONING = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})


class _Item:
    """One output item, as far as it was told."""

    __slots__ = ("call", "kind", "raw", "refused", "said", "thought", "value", "where")

    def __init__(self, place: int, kind: str) -> None:
        self.kind = kind
        self.said = Speech()
        """The text of a message that was shown, or the arguments of a call."""
        self.thought = Speech()
        self.where: tuple[str, int | None] | None = None
        """The part of the reasoning that was told last."""
        self.call = ToolCallDelta(place, "", "", "")
        self.refused = False
        self.value: dict[str, Any] | None = None
        """The whole item, once it was told."""
        self.raw = b""


class ResponsesReply:
    """What one reply amounts to so far. ``take`` each event in order; ``response`` once there is terminal evidence.

    model: which model is asked; what only it can read again is kept for it.
    """

    __slots__ = ("_items", "_last", "_model", "_raw", "_status", "_thought", "_usage", "done", "finished", "said")

    def __init__(self, model: str) -> None:
        self._model = model
        self._items: dict[int, _Item] = {}
        self._last: tuple[int | None, _Item] | None = None
        """The item that was told last, and its place in the output as the events name it."""
        self._status = ""
        self._raw: str | None = None
        self._usage: Usage | None = None
        self._thought = False
        self.finished = False
        """The last event was seen."""
        self.said = False
        """Something was said that is not shown. The reader of a stream resets it; a keep-alive never sets it."""
        self.done = False
        """Nothing follows."""

    @property
    def usage(self) -> Usage | None:
        """The tokens that were reported so far."""
        return self._usage

    @property
    def begun(self) -> bool:
        """Whether anything at all of a message was read."""
        return bool(self._items or self._usage)

    def take(self, payload: bytes, *, last: bool = False) -> Sequence[Delta]:
        """Take the data of one event (or a whole JSON reply) and return what there is to show of it.

        last: the stream ended without this event's blank line, so it may be a fragment.
        Raises ProviderError: ``error_object`` for a failure inside the reply, ``malformed`` for what is no JSON.
        """
        try:
            piece = decode_piece(payload)
            delta, last_told = piece.delta, self._last
            # The common event, first: more of the item that was told last.
            if delta and last_told is not None and piece.output_index == last_told[0]:
                kind, item = piece.type, last_told[1]
                said = item.said
                if kind == "response.output_text.delta":
                    if not said.half:
                        said.pieces.append(delta)
                        return (TextDelta(delta),)
                elif kind == "response.function_call_arguments.delta" and not said.half:
                    said.pieces.append(delta)
                    call = item.call
                    return (ToolCallDelta(call.index, call.id, call.name, delta),)
            event = decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            unusual = self._unusual(payload, last)
            if unusual is None:
                return ()
            event = unusual
        return self._told_in_pieces(event, payload) if event.delta else self._other(event, payload)

    def _told_in_pieces(self, event: Event, payload: bytes) -> Sequence[Delta]:
        kind, delta = event.type, event.delta or ""
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            item = self._item(event.output_index, "message")
            item.refused = item.refused or kind == "response.refusal.delta"
            text = item.said.add(delta)
            return (TextDelta(text),) if text else ()
        if kind == "response.function_call_arguments.delta":
            item = self._item(event.output_index, "function_call")
            text, call = item.said.add(delta), item.call
            return (ToolCallDelta(call.index, call.id, call.name, text),) if text else ()
        if kind in _REASONING:
            return self._think(event, delta)
        return self._other(event, payload)

    def _other(self, event: Event, payload: bytes) -> Sequence[Delta]:
        kind = event.type
        if event.object == "response":
            return self._end(body_of(payload), "")
        if event.error and (error := read(event.error)):
            raise error_object(error)
        if kind in ("response.output_item.added", "response.output_item.done"):
            self.said = True
            value = read(event.item)
            if not isinstance(value, dict):
                return ()
            item = self._item(event.output_index)
            return self._told(item, cast("dict[str, Any]", value), bytes(event.item) if kind.endswith("done") else b"")
        if kind in _TERMINAL:
            return self._end(body_of(event.response or b"{}"), kind.removeprefix("response."))
        if kind == "error" or (not kind and _is_error(read(payload))):
            raise error_object(read(payload))
        # "keepalive" and the like say nothing; everything else of a response is a sign of life.
        self.said = self.said or kind.startswith("response.")
        return ()

    def _item(self, place: int | None, kind: str = "") -> _Item:
        """The item at ``place``; without a place, the one told last. kind: what it must be, if nobody said so before."""
        last = self._last
        if last is not None and (place == last[0] or place is None):
            return last[1]
        if place is None:
            place = len(self._items)
        item = self._items.get(place)
        if item is None:
            item = self._items[place] = _Item(len(self._items), kind)
        self._last = (place, item)
        return item

    def _think(self, event: Event, delta: str) -> Sequence[Delta]:
        item = self._item(event.output_index, "reasoning")
        where = (event.type, event.summary_index if "summary" in event.type else event.content_index)
        text = item.thought.add(("\n\n" if self._parted(item, where) else "") + delta)
        item.where, self._thought = where, True
        return (ReasoningDelta(text),) if text else ()

    def _parted(self, item: _Item, where: tuple[str, int | None]) -> bool:
        """Whether a part of reasoning begins after another."""
        return item.where != where if item.where is not None else self._thought

    def _told(self, item: _Item, value: dict[str, Any], raw: bytes) -> list[Delta]:
        """An item was announced, or told whole (``raw``): show what was not shown before."""
        shown: list[Delta] = []
        item.kind = str(value.get("type"))
        if item.kind == "function_call":
            named = ToolCallDelta(item.call.index, clean(id_of(value)), clean(str(value.get("name") or "")), "")
            rest = _rest(item.said, arguments_of(value))
            if rest or item.call != named:
                item.call = named
                shown.append(ToolCallDelta(named.index, named.id, named.name, item.said.add(rest) if rest else ""))
        elif item.kind == "message" and (rest := _rest(item.said, text_of_item(value))):
            shown.append(TextDelta(item.said.add(rest)))
        elif item.kind == "reasoning" and not item.thought.pieces and (thought := "\n\n".join(reasoning_of(value))):
            text = item.thought.add(("\n\n" if self._thought else "") + thought)
            self._thought = True
            shown.append(ReasoningDelta(text))
        if raw:
            item.value, item.raw = value, raw
        return shown

    def _end(self, body: Body, kind: str) -> Sequence[Delta]:
        """The whole response: all its items, why it ended, and what it cost. kind: its status, as the event's type names it."""
        self.said = True
        self._usage = _usage(read(body.usage)) or self._usage
        if error := read(body.error):
            raise error_object(error)
        status = body.status or kind
        if stop_word(status) in FAILED:
            raise error_object({"message": f"the provider ended the reply with status {status!r}"})
        if status in ("queued", "in_progress"):
            raise ProviderError(f"the provider answers later (status {status!r}), which is not waited for", kind="malformed")
        details = read(body.incomplete_details)
        reason = cast("dict[str, Any]", details).get("reason") if isinstance(details, dict) else None
        self._status, self._raw = status, reason if isinstance(reason, str) and reason else status
        shown: list[Delta] = []
        output = body.output or []
        if len(output) >= len(self._items):  # otherwise it leaves something out that was told before
            for place, raw in enumerate(output):
                item, value = self._item(place), read(raw)
                if isinstance(value, dict):
                    shown += self._told(item, cast("dict[str, Any]", value), bytes(raw))
        self.finished, self.done = bool(status), True
        return shown

    def _unusual(self, payload: bytes, last: bool) -> Event | None:
        """What the typed decoder does not take: ``[DONE]``, nothing, odd types, lone surrogates."""
        text = payload.strip()
        if not text:
            return None
        if text == b"[DONE]":
            self.done = True  # some gateways send it; it is no evidence here
            return None
        value = parse(text)
        if isinstance(value, list):
            raise error_object(cast("list[Any]", value))
        if isinstance(value, dict):
            return lenient(cast("dict[str, Any]", value))
        if last:
            raise ProviderError("the reply was cut in the middle of an event", retryable=True, kind="cut")
        shown = text[:200].decode("utf-8", "replace")
        raise ProviderError(f"the provider sent something that is not a JSON object: {shown!r}", retryable=True, kind="malformed")

    def response(self) -> ModelResponse:
        """The whole reply. Only after terminal evidence. Raises ProviderError ``cut`` without it."""
        if not self.finished:
            raise self._cut()
        items = [self._items[place] for place in sorted(self._items)]
        calls = ToolCalls()
        for place, item in enumerate(items):
            if item.kind == "function_call":
                calls.add(place, item.call.id, item.call.name, item.said.text())
        made = calls.finish()
        message = AssistantMessage(
            content="".join(item.said.text() for item in items if item.kind == "message"),
            tool_calls=made,
            reasoning="".join(item.thought.text() for item in items),
            wire=self._copy(items),
        )
        if any(item.refused or (item.value and has_refusal(item.value)) for item in items):
            reason = StopReason.REFUSAL
        else:
            reason = stop_reason(self._raw or self._status)
            if self._status == "incomplete" and reason in (StopReason.STOP, StopReason.UNKNOWN, StopReason.TOOL_CALLS):
                reason = StopReason.LENGTH  # cut off, whatever the word for it is
            elif reason is StopReason.STOP and made:
                reason = StopReason.TOOL_CALLS
        return ModelResponse(message=message, stop=Stop(reason, self._raw), usage=self._usage)

    def _copy(self, items: list[_Item]) -> WireCopy | None:
        """The items as they came, if text and calls do not say all of it, and the reply is one that can be gone on from."""
        values = [item.value for item in items if item.value is not None]
        if self._status != "completed" or len(values) < len(items) or all(map(is_plain, values)) or any(map(is_unanswered, values)):
            return None
        body = b"[%b]" % b",".join(item.raw for item in items)
        return WireCopy(api=API, model=self._model, body=ascii_json(body.decode("utf-8", "replace")))

    def _cut(self) -> ProviderError:
        characters = sum(len(item.said.text()) for item in self._items.values() if item.kind == "message")
        calls = any(item.kind == "function_call" for item in self._items.values())
        so_far = f"after {characters} characters of text" + (" and a part of a tool call" if calls else "")
        return ProviderError(f"the reply ended without response.completed, {so_far}", retryable=True, kind="cut")


def _rest(said: Speech, whole: str) -> str:
    """What ``whole`` says beyond what was told before; nothing if it says something else, which is then what counts."""
    before = "".join(said.pieces)
    if whole.startswith(before):
        return whole[len(before) :]
    if whole.strip():
        said.pieces[:] = [whole]
    return ""


def _is_error(value: Any) -> bool:
    """Errors that are not under ``error``: ``{"object": "error", "message": ...}`` (vLLM), ``{"detail": ...}`` (FastAPI)."""
    return isinstance(value, dict) and bool({"detail", "message"} & cast("dict[str, Any]", value).keys())


def _usage(value: Any) -> Usage | None:
    """None for counts that count nothing."""
    usage = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    given, made = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    if given is None and made is None:
        return None
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_input_tokens=_count(usage.get("input_tokens_details"), "cached_tokens"),
        cache_write_tokens=_count(usage.get("input_tokens_details"), "cache_write_tokens"),
        reasoning_tokens=_count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )


def _count(fields: Any, name: str) -> int | None:
    found = cast("dict[str, Any]", fields).get(name) if isinstance(fields, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _TOKENS_MAX else None
