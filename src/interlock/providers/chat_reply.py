"""Reading a chat-completions reply, streamed or not: chunks in, what to show out, and one ModelResponse at the end.

Each chunk is decoded by one typed decoder that knows only the fields needed. A chunk whose types are unusual is read
again by hand (``lenient``) instead of failing the stream; only what is no JSON at all is ``malformed``. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from ..errors import ProviderError
from ..messages import AssistantMessage, StopReason, Usage, clean
from ..model import ModelResponse, ReasoningDelta, Stop, TextDelta, ToolCallDelta
from ..model.accumulator import ToolCalls
from .chat_chunk import Call, Choice, Chunk, Function, Groq, TokenCounts, decode, decode_plain, details_text, lenient
from .chat_chunk import Message as ChunkMessage
from .chat_details import Details, copy_of
from .faults import error_object
from .lenient import parse
from .ports import Delta
from .stops import FAILURE, GOES_ON, gravity_of, stop_reason, stop_word

__all__ = ["ChatReply"]

# No exchange has a trillion tokens; such a count is no count.
_TOKENS_MAX = 10**12

MISSES_MAX = 3


class ChatReply:
    """What one reply amounts to so far. ``take`` each chunk in order; ``response`` once there is terminal evidence.

    api, model: given if the reasoning blocks of a reply are kept, to be sent back to where they came from.
    """

    __slots__ = (
        *("_api", "_calls", "_details", "_gravity", "_half", "_misses", "_model", "_plain", "_raw", "_reasoning", "_refused"),
        *("_text", "_usage"),
        *("done", "finished", "said"),
    )

    def __init__(self, api: str = "", model: str = "") -> None:
        self._api = api
        self._model = model
        self._details: Details | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCalls()
        self._raw: str | None = None
        self._gravity = -1
        self._refused = False
        self._usage: Usage | None = None
        self._plain = True
        """Whether the next chunk is likely to have text or pieces of calls, and nothing else."""
        self._misses = 0
        """How often that was wrong, which costs what two chunks cost: beyond a few times it is not tried again."""
        self._half: dict[Callable[[str], Delta], str] = {}
        """The first half of a surrogate pair that was cut between two chunks, by the class of its delta."""
        self.finished = False
        """A finish reason was seen."""
        self.said = False
        """Something was said that is not shown: a message, if only an empty one, a finish reason or token counts. The reader of a
        stream resets it; a keep-alive never sets it."""
        self.done = False
        """``[DONE]`` was seen: nothing follows."""

    @property
    def usage(self) -> Usage | None:
        """The tokens that were reported so far."""
        return self._usage

    @property
    def begun(self) -> bool:
        """Whether anything at all of a message was read."""
        return bool(self._text or self._reasoning or self._calls or self._usage)

    def take(self, payload: bytes, *, last: bool = False) -> Sequence[Delta]:
        """Take the data of one event (or a whole JSON reply) and return what there is to show of it.

        last: the stream ended without this event's blank line, so it may be a fragment: no JSON is then a cut, or nothing
            after a finish reason.
        Raises ProviderError: ``error_object`` for an error inside the reply, ``malformed`` for what is no JSON.
        """
        if self._plain:
            try:
                plain = decode_plain(payload).choices[0].delta
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                self._plain = False
                self._misses += 1
            else:
                text = plain.content
                if plain.tool_calls is None and text:
                    self._text.append(text)
                    return (TextDelta(text),)
                return self._plainly(text, plain.tool_calls)
        try:
            chunk = decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self._unusual(payload, last)
        choices = chunk.choices
        if not choices or chunk.usage is not None or chunk.error or chunk.x_groq is not None:
            self._outside(chunk, payload)
            if not choices:
                return ()
        choice = choices[0]
        message = choice.delta
        if message is None or choice.index or choice.finish_reason or choice.error:
            message = self._message(_first(choices))
            if message is None:
                return ()
        text, calls = message.content, message.tool_calls
        rare = message.reasoning_content or message.reasoning or message.refusal or message.function_call or message.reasoning_details
        if not rare and not self._half:
            self._plain = self._misses <= MISSES_MAX
            return self._plainly(text, calls)
        return self._mixed(message)

    def _plainly(self, text: str | None, calls: list[Call] | None) -> Sequence[Delta]:
        """A message that has nothing but text or pieces of calls. No half of a pair waits for text."""
        if calls and (text or len(calls) > 1):
            return self._mixed(ChunkMessage(content=text, tool_calls=calls))
        delta: Delta | None = None
        if calls:
            call = calls[0]
            function = call.function
            if function is None:
                delta = self._calls.add(call.index, call.id)
            else:
                delta = self._calls.add(call.index, call.id, function.name, function.arguments)
        elif text:
            self._text.append(text)
            delta = TextDelta(text)
        if delta is None:
            self.said = True
            return ()
        return (delta,)

    def _message(self, choice: Choice | None) -> ChunkMessage | None:
        """What a choice says, its end noted first."""
        if choice is None:
            return None
        if choice.finish_reason or choice.error:
            self._finish(choice)
        if choice.delta is not None:
            return choice.delta
        message = choice.message
        if message is not None:
            for place, call in enumerate(message.tool_calls or ()):
                if call.index is None:
                    call.index = place  # a whole message has whole calls: its list tells them apart, whatever their ids are
        return message

    def _mixed(self, message: ChunkMessage) -> list[Delta]:
        """A message with several things in it, in the order in which a model produces them."""
        self.said = True
        shown: list[Delta] = []
        reasoning = message.reasoning_content or message.reasoning or details_text(message.reasoning_details)
        self._say(reasoning, self._reasoning, ReasoningDelta, shown)
        if self._api and message.reasoning_details:
            self._details = self._details or Details()
            self._details.add(msgspec.json.decode(message.reasoning_details))
        self._say(message.content, self._text, TextDelta, shown)
        self._say(message.refusal, self._text, TextDelta, shown)
        self._refused = self._refused or bool(message.refusal)
        calls = list(message.tool_calls or ())
        if message.function_call is not None:
            calls.append(Call(index=0, function=message.function_call))
        for call in calls:
            function = call.function or Function()
            delta = self._calls.add(call.index, call.id, function.name, function.arguments)
            if delta is not None:
                shown.append(ToolCallDelta(delta.index, clean(delta.id), clean(delta.name), clean(delta.arguments)))
        return shown

    def _say(self, text: str | None, parts: list[str], delta: Callable[[str], Delta], shown: list[Delta]) -> None:
        """Keep ``text`` and show it; half a surrogate pair is shown with its other half, in the next chunk."""
        if not text:
            return
        parts.append(text)
        text = self._half.pop(delta, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._half[delta] = text[-1]
            text = text[:-1]
        if text:
            shown.append(delta(clean(text)))

    def _finish(self, choice: Choice) -> None:
        if choice.error and (error := msgspec.json.decode(choice.error)):
            raise error_object(error)
        reason = choice.finish_reason
        if not reason:
            return
        if stop_word(reason) in GOES_ON:
            return
        self.finished = self.said = True
        gravity = gravity_of(reason)
        if gravity > self._gravity:
            self._raw, self._gravity = reason, gravity

    def _outside(self, chunk: Chunk, payload: bytes) -> None:
        """What stands beside the choices. The last usage wins: some vendors repeat a running total on every chunk."""
        groq = chunk.x_groq or Groq()
        for raw in (chunk.error, groq.error):
            if raw and (error := msgspec.json.decode(raw)):
                raise error_object(error)
        for usage in (groq.usage, chunk.usage):
            counted = None if usage is None else _usage(usage)
            if counted is not None:
                self._usage, self.said = counted, True
        if not chunk.choices and chunk.usage is None and not self.finished:
            _refuse_bare_error(payload)

    def _unusual(self, payload: bytes, last: bool) -> Sequence[Delta]:
        """What the typed decoder does not take: ``[DONE]``, nothing, odd types, lone surrogates, several documents."""
        text = payload.strip()
        if not text:
            return ()
        if text == b"[DONE]":
            self.done = True
            return ()
        documents = [text] if b"\n" not in text or parse(text) is not None else text.splitlines()
        shown: list[Delta] = []
        for document in documents:
            if document.strip() == b"[DONE]":
                self.done = True
                break
            value = parse(document)
            if isinstance(value, list):
                raise error_object(cast("list[Any]", value))  # Google's endpoint wraps an error into an array
            if not isinstance(value, dict):
                if last and self.finished:
                    break
                raise _no_json(document, last)
            chunk = lenient(cast("dict[str, Any]", value))
            self._outside(chunk, document)
            message = self._message(_first(chunk.choices or []))
            if message is not None:
                shown += self._mixed(message)
        return shown

    def response(self) -> ModelResponse:
        """The whole reply. Only after terminal evidence: ``finished`` or ``done``.

        Raises ProviderError: ``cut`` without that evidence, ``error_object`` if the finish reason says that the provider failed.
        """
        if not (self.finished or self.done):
            raise self.cut()
        if self._gravity == FAILURE and not self._refused:
            raise error_object({"message": f"the provider ended the reply with finish reason {self._raw!r}"})
        calls = self._calls.finish()
        message = AssistantMessage(content=clean("".join(self._text)), tool_calls=calls, reasoning=clean("".join(self._reasoning)))
        if self._details is not None:
            message = replace(message, wire=copy_of(self._details, message, self._api, self._model))
        if self._refused:
            reason = StopReason.REFUSAL
        elif self._raw is None:
            reason = StopReason.TOOL_CALLS if calls else StopReason.STOP
        else:
            reason = stop_reason(self._raw)
        return ModelResponse(message=message, stop=Stop(reason, self._raw), usage=self._usage)

    def cut(self) -> ProviderError:
        """The error for a reply that ended without terminal evidence."""
        characters = sum(map(len, self._text))
        so_far = f"after {characters} characters of text" + (" and a part of a tool call" if self._calls else "")
        return ProviderError(f"the reply ended without a finish reason or [DONE], {so_far}", retryable=True, kind="cut")


def _first(choices: list[Choice]) -> Choice | None:
    """Choice 0; further choices are not asked for and not read."""
    return next((choice for choice in choices if not choice.index), None)


def _usage(usage: TokenCounts) -> Usage | None:
    """None for counts that count nothing."""
    given, made = _count(usage.prompt_tokens), _count(usage.completion_tokens)
    if given is None and made is None:
        return None
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_input_tokens=None if prompt is None else _count(prompt.cached_tokens),
        reasoning_tokens=None if completion is None else _count(completion.reasoning_tokens),
    )


def _count(tokens: int | None) -> int | None:
    """A number of tokens, if it can be one: a negative one would give a budget back."""
    return tokens if tokens is not None and 0 <= tokens <= _TOKENS_MAX else None


def _refuse_bare_error(payload: bytes) -> None:
    """Errors that are not under ``error``: ``{"object": "error", "message": ...}`` (vLLM), ``{"detail": ...}`` (FastAPI)."""
    value = parse(payload)
    if isinstance(value, dict):
        error = cast("dict[str, Any]", value)
        if error.get("object") == "error" or error.get("detail") or (error.get("message") and "choices" not in error):
            raise error_object(error)


def _no_json(document: bytes, last: bool) -> ProviderError:
    if last:
        return ProviderError("the reply was cut in the middle of an event", retryable=True, kind="cut")
    shown = document[:200].decode("utf-8", "replace")
    return ProviderError(f"the provider sent something that is not a JSON object: {shown!r}", retryable=True, kind="malformed")
