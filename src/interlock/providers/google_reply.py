"""Reading a Gemini reply, streamed or not: responses in, what to show out, and one ModelResponse at the end.

A stream is a row of ``GenerateContentResponse`` objects and ends with its HTTP body: there is no ``[DONE]``. Terminal evidence is a
``finishReason``, or a ``promptFeedback.blockReason`` where there is no candidate at all. No I/O here.

What a message of ours cannot hold (thought signatures, the parts of Google's own tools) is kept part by part, as it came:
"Don't merge a part with a signature with another" (https://ai.google.dev/gemini-api/docs/thought-signatures). Thoughts
without a signature are shown as reasoning and kept nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ..errors import ProviderError
from ..messages import AssistantMessage, StopReason, Usage, WireCopy, clean
from ..model import ModelResponse, ReasoningDelta, Stop, TextDelta, ToolCallDelta
from ..model.accumulator import ToolCalls
from .common import ascii_json
from .faults import error_object
from .google_chunk import Candidate, Chunk, Part, UsageMetadata, arguments_of, call_name, decode, mended, raw_parts
from .lenient import parse
from .ports import Delta
from .stops import FAILURE, gravity_of, stop_reason

__all__ = ["GEMINI", "GoogleReply"]

GEMINI = "gemini"
"""The name of this wire in ``WireCopy.api``."""

_BLOCKED = FAILURE + 2
"""The gravity of a blocked prompt, above every finish reason's."""

# No exchange has a trillion tokens; such a count is no count.
_TOKENS_MAX = 10**12


class GoogleReply:
    """What one reply amounts to so far. ``take`` each response in order; ``response`` once there is terminal evidence.

    model: whose reply it is, noted beside the parts that are kept in the provider's form.
    """

    __slots__ = (
        "_blocked",
        "_calls",
        "_gravity",
        "_kept",
        "_model",
        "_raw",
        "_reasoning",
        "_seen",
        "_text",
        "_tokens",
        "_why",
        "done",
        "finished",
        "said",
    )

    def __init__(self, model: str) -> None:
        self._model = model
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCalls()
        self._seen: list[tuple[str, str, str]] = []
        """Each call so far: id, name, arguments."""
        self._kept: list[tuple[int, int, bytes, bool]] = []
        """Parts kept as they came: how many pieces of text were there before and after, the part, and whether it must be sent back."""
        self._raw: str | None = None
        self._gravity = -1
        self._why = ""
        self._blocked = False
        self._tokens: UsageMetadata | None = None
        self.finished = False
        self.said = False
        self.done = False

    @property
    def usage(self) -> Usage | None:
        """The tokens that were reported so far. Each report is a running total, so the last one counts."""
        return None if self._tokens is None else _usage(self._tokens)

    @property
    def begun(self) -> bool:
        """Whether anything at all of a message was read."""
        return bool(self._text or self._reasoning or self._calls or self._tokens)

    def take(self, payload: bytes, *, last: bool = False) -> Sequence[Delta]:
        """Take one response and return what there is to show of it.

        last: this is the whole reply, or the stream ended without this event's blank line, so that it may be a fragment.
        Raises ProviderError: ``error_object`` for an error inside the reply, ``malformed`` for what is no JSON, ``cut``.
        """
        try:
            chunk = decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self._unusual(payload, last)
        return self._take(chunk, payload)

    def _take(self, chunk: Chunk, payload: bytes) -> Sequence[Delta]:
        if chunk.usageMetadata is not None:
            self._count(chunk.usageMetadata)
        if chunk.error or chunk.promptFeedback is not None:
            self._outside(chunk)
        candidates = chunk.candidates
        if not candidates:
            return ()
        candidate = candidates[0]
        if len(candidates) > 1 or candidate.index:
            candidate = next((one for one in candidates if not one.index), None)
            if candidate is None:
                return ()
        if candidate.finishReason:
            self._finish(candidate)
        parts = None if candidate.content is None else candidate.content.parts
        if not parts:
            return ()
        if len(parts) == 1:
            part = parts[0]
            text = part.text
            # "A Part can only contain one of the accepted types", so that text is no part of a hosted tool.
            if text and part.thoughtSignature is None and part.functionCall is None:
                if part.thought:
                    self._reasoning.append(text)
                    return (ReasoningDelta(text),)
                self._text.append(text)
                return (TextDelta(text),)
        return self._mixed(parts, payload)

    def _mixed(self, parts: list[Part], payload: bytes) -> list[Delta]:
        """Several parts, or one that is not plain text."""
        shown: list[Delta] = []
        raw: list[bytes] | None = None
        for place, part in enumerate(parts):
            before = len(self._text)
            if part.text:
                if part.thought:
                    self._reasoning.append(part.text)
                    shown.append(ReasoningDelta(part.text))
                else:
                    self._text.append(part.text)
                    shown.append(TextDelta(part.text))
            if part.functionCall is not None:
                delta = self._call(part)
                if delta is None:
                    continue
                shown.append(delta)
            signed = bool(part.thoughtSignature) or part.hosted
            if signed or part.functionCall is not None:
                raw = raw_parts(payload) if raw is None else raw
                self._kept.append((before, len(self._text), raw[place], signed))
        if not shown:
            self.said = True
        return shown

    def _call(self, part: Part) -> ToolCallDelta | None:
        """A call is always whole here. None for one that was sent twice, which some streams do with the same id."""
        call = part.functionCall
        assert call is not None
        if call.willContinue or call.partialArgs:
            raise ProviderError("the provider sent a call's arguments in pieces, which was not asked for", kind="malformed")
        made = (clean(call.id or ""), call_name(call), clean(arguments_of(call)))
        if made[0] and made in self._seen:
            return None
        self._seen.append(made)
        return self._calls.add(len(self._seen) - 1, *made)

    def _finish(self, candidate: Candidate) -> None:
        """Some models give a reason with every chunk, so text may still follow."""
        self.finished = self.said = True
        reason = candidate.finishReason or ""
        gravity = gravity_of(reason)
        if gravity > self._gravity:
            self._raw, self._gravity, self._why = reason, gravity, candidate.finishMessage or ""

    def _count(self, tokens: UsageMetadata) -> None:
        """The last total counts; a field that it leaves out keeps its value."""
        before = self._tokens
        if before is not None:
            if tokens.promptTokenCount is None:
                tokens.promptTokenCount = before.promptTokenCount
            if tokens.candidatesTokenCount is None:
                tokens.candidatesTokenCount = before.candidatesTokenCount
            if tokens.thoughtsTokenCount is None:
                tokens.thoughtsTokenCount = before.thoughtsTokenCount
            if tokens.toolUsePromptTokenCount is None:
                tokens.toolUsePromptTokenCount = before.toolUsePromptTokenCount
            if tokens.cachedContentTokenCount is None:
                tokens.cachedContentTokenCount = before.cachedContentTokenCount
        self._tokens = tokens
        self.said = True

    def _outside(self, chunk: Chunk) -> None:
        """What stands beside the candidates. A blocked prompt has no candidate: the refusal is the whole reply."""
        if chunk.error and (error := msgspec.json.decode(chunk.error)):
            raise error_object({"error": error})
        if chunk.promptFeedback is not None and chunk.promptFeedback.blockReason:
            self._blocked = self.finished = self.said = True
            self._raw, self._gravity = chunk.promptFeedback.blockReason, _BLOCKED

    def _unusual(self, payload: bytes, last: bool) -> Sequence[Delta]:
        """What the typed decoder does not take: nothing, ``[DONE]`` (some gateways), odd types, an array of responses.

        An array is what the endpoint sends without ``alt=sse``; an error may be wrapped into one as well.
        """
        text = payload.strip()
        if not text:
            return ()
        if text == b"[DONE]":
            self.done = True
            return ()
        value = parse(text)
        if not isinstance(value, (dict, list)):
            if last and self.finished:
                return ()
            raise _no_json(text, last)
        shown: list[Delta] = []
        for one in cast("list[Any]", value if isinstance(value, list) else [value]):
            if not isinstance(one, dict):
                raise _no_json(text, last)
            document = mended(cast("dict[str, Any]", one))
            shown += self._take(decode(document), document)
        return shown

    def response(self) -> ModelResponse:
        """The whole reply. Raises ProviderError: ``cut`` without terminal evidence, ``error_object`` if the provider failed."""
        if not self.finished:
            raise self._cut()
        if self._gravity == FAILURE:
            message = f"the provider ended the reply with finish reason {self._raw!r}" + (f": {self._why}" if self._why else "")
            raise error_object({"message": message})
        reason = StopReason.CONTENT_FILTER if self._blocked else stop_reason(self._raw or "")
        message = AssistantMessage(
            content=clean("".join(self._text)),
            tool_calls=self._calls.finish(),
            reasoning=clean("".join(self._reasoning)),
            wire=self._copy(),
        )
        return ModelResponse(message=message, stop=Stop(reason, self._raw), usage=self.usage)

    def _copy(self) -> WireCopy | None:
        """The parts as they came, unsigned text between them joined; None if the message itself says all of it."""
        if not any(signed for *_, signed in self._kept):
            return None
        parts: list[bytes] = []
        place = 0
        for before, after, part, _ in self._kept:
            self._plain(place, before, parts)
            parts.append(part)
            place = after
        self._plain(place, len(self._text), parts)
        body = ascii_json((b"[%b]" % b",".join(parts)).decode("utf-8", "replace"))
        return WireCopy(api=GEMINI, model=self._model, body=body)

    def _plain(self, start: int, end: int, parts: list[bytes]) -> None:
        text = clean("".join(self._text[start:end]))
        if text:
            parts.append(msgspec.json.encode({"text": text}))

    def _cut(self) -> ProviderError:
        characters = sum(map(len, self._text))
        so_far = f"after {characters} characters of text" + (" and a tool call" if self._calls else "")
        return ProviderError(f"the reply ended without a finish reason, {so_far}", retryable=True, kind="cut")


def _usage(tokens: UsageMetadata) -> Usage | None:
    """None for counts that count nothing.

    The total is "the sum of prompt, candidates, tool_use_prompt and thoughts" (google-genai, GenerateContentResponseUsageMetadata):
    what Google's own tools brought in is input, thoughts are output, and cached tokens are a part of the prompt.
    """
    prompt, hosted = _number(tokens.promptTokenCount), _number(tokens.toolUsePromptTokenCount)
    made, thoughts = _number(tokens.candidatesTokenCount), _number(tokens.thoughtsTokenCount)
    given = _sum(prompt, hosted)
    output = _sum(made, thoughts)
    if given is None and output is None:
        return None
    return Usage(
        input_tokens=given,
        output_tokens=output,
        cached_input_tokens=_number(tokens.cachedContentTokenCount),
        reasoning_tokens=thoughts,
    )


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a + (b or 0)


def _number(tokens: int | None) -> int | None:
    """A number of tokens, if it can be one: a negative one would give a budget back."""
    return tokens if tokens is not None and 0 <= tokens <= _TOKENS_MAX else None


def _no_json(document: bytes, last: bool) -> ProviderError:
    if last:
        return ProviderError("the reply was cut in the middle of an event", retryable=True, kind="cut")
    shown = document[:200].decode("utf-8", "replace")
    return ProviderError(f"the provider sent something that is not a JSON object: {shown!r}", retryable=True, kind="malformed")
