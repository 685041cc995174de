"""Reading a chat-completions reply, streamed or not: chunks in, what to show out, and one ModelResponse at the end.

Each chunk is decoded by one typed decoder that knows only the fields needed. A chunk whose types are unusual is read
again by hand (``lenient``) instead of failing the stream; only what is no JSON at all is ``malformed``. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from ..errors import ProviderError
from ..messages import AssistantMessage, StopReason, Usage, clean
from ..model import ModelResponse, ReasoningDelta, Stop, TextDelta, ToolCallDelta
from ..model.accumulator import ToolCalls
from .chat_chunk import Call, Choice, Chunk, Function, Groq, TokenCounts, decode, details_text, lenient, parse
from .chat_chunk import Message as ChunkMessage
from .faults import error_object

__all__ = ["STOP_REASONS", "ChatReply", "Delta"]

Delta = TextDelta | ReasoningDelta | ToolCallDelta

STOP_REASONS: dict[str, StopReason] = {
    # OpenAI
    "stop": StopReason.STOP,
    "tool_calls": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "length": StopReason.LENGTH,
    "content_filter": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
    # OpenAI's words for an incomplete response or run in its other APIs (Responses, Assistants: incomplete_details.reason)
    "max_output_tokens": StopReason.LENGTH,
    "max_completion_tokens": StopReason.LENGTH,
    "max_prompt_tokens": StopReason.LENGTH,
    # Text Generation Inference (Hugging Face), Together
    "eos": StopReason.STOP,
    "eos_token": StopReason.STOP,
    "stop_sequence": StopReason.STOP,
    # Anthropic's words, passed on by gateways
    "end_turn": StopReason.STOP,
    "tool_use": StopReason.TOOL_CALLS,
    "max_tokens": StopReason.LENGTH,
    "pause_turn": StopReason.PAUSE,
    "model_context_window_exceeded": StopReason.LENGTH,
    # Amazon Bedrock (API_runtime_MessageStopEvent: stopReason)
    "content_filtered": StopReason.CONTENT_FILTER,
    "guardrail_intervened": StopReason.CONTENT_FILTER,
    "malformed_tool_use": StopReason.TOOL_CALLS,
    # Mistral
    "model_length": StopReason.LENGTH,
    # Cohere (also Oracle's CohereChatResponse.FinishReasonEnum)
    "complete": StopReason.STOP,
    "tool_call": StopReason.TOOL_CALLS,
    "error_toxic": StopReason.CONTENT_FILTER,
    "error_limit": StopReason.LENGTH,
    # IBM watsonx (TextGenResult.StopReason, TextChatResultChoice.FinishReason); TensorRT-LLM (CompletionOutput.finish_reason).
    # Out of time is cut off, as out of tokens is.
    "token_limit": StopReason.LENGTH,
    "time_limit": StopReason.LENGTH,
    "timeout": StopReason.LENGTH,
    # Z.AI
    "sensitive": StopReason.CONTENT_FILTER,
    # Gemini's words, passed on by gateways (googleapis.github.io/js-genai, FinishReason; MODEL_ARMOR: Vertex AI)
    "safety": StopReason.CONTENT_FILTER,
    "recitation": StopReason.CONTENT_FILTER,
    "blocklist": StopReason.CONTENT_FILTER,
    "prohibited_content": StopReason.CONTENT_FILTER,
    "spii": StopReason.CONTENT_FILTER,
    "language": StopReason.CONTENT_FILTER,
    "model_armor": StopReason.CONTENT_FILTER,
    "image_safety": StopReason.CONTENT_FILTER,
    "image_prohibited_content": StopReason.CONTENT_FILTER,
    "image_recitation": StopReason.CONTENT_FILTER,
    # A call was meant, and Gemini threw it away: the same as one that was announced and is missing.
    "malformed_function_call": StopReason.TOOL_CALLS,
    "unexpected_tool_call": StopReason.TOOL_CALLS,
    "too_many_tool_calls": StopReason.TOOL_CALLS,
}
"""Vendors' words for the end of a reply, in lower case, ``_`` for ``-``. Any other is UNKNOWN, which is terminal evidence too."""

_FAILED = frozenset({
    "error",  # OpenRouter, Mistral, Cohere, watsonx, vLLM
    "network_error",  # Z.AI
    "insufficient_system_resource",  # DeepSeek
    "abort",  # vLLM, SGLang
    "repetition",  # vLLM: the model was in a loop (vllm/v1/engine, FINISH_REASON_STRINGS)
    "cancelled",  # watsonx, TensorRT-LLM: by somebody else, as we have not gone
    "user_cancel",  # Cohere
    "malformed_model_output",  # Amazon Bedrock
    "malformed_response",  # Gemini
    "missing_thought_signature",  # Gemini
})  # fmt: skip
"""Finish reasons that say that the provider failed."""

# They say that the reply goes on: watsonx, and servers that write the null of a chunk as text.
_GOES_ON = frozenset({"not_finished", "null", "none"})

_FAILURE = 3
_GRAVITY = {StopReason.CONTENT_FILTER: 4, StopReason.REFUSAL: 4, StopReason.LENGTH: 2, StopReason.PAUSE: 1}
"""Of several finish reasons the gravest counts, and of equal ones (0: all others) the first: a ``stop`` that some gateways send
at the end of everything does not complete what was cut off or filtered."""

# No exchange has a trillion tokens; such a count is no count.
_TOKENS_MAX = 10**12


class ChatReply:
    """What one reply amounts to so far. ``take`` each chunk in order; ``response`` once there is terminal evidence."""

    __slots__ = ("_calls", "_gravity", "_half", "_raw", "_reasoning", "_refused", "_text", "_usage", "done", "finished", "said")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = ToolCalls()
        self._raw: str | None = None
        self._gravity = -1
        self._refused = False
        self._usage: Usage | None = None
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
        try:
            chunk = decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self._unusual(payload, last)
        choices = chunk.choices
        if chunk.usage is not None or chunk.error or chunk.x_groq is not None or not choices:
            self._outside(chunk, payload)
        if not choices:
            return ()
        choice = choices[0]
        if len(choices) > 1 or choice.index:
            choice = _first(choices)
        message = self._message(choice)
        if message is None:
            return ()
        text, calls = message.content, message.tool_calls
        if not (message.reasoning_content or message.reasoning or message.refusal or message.function_call or message.reasoning_details):
            if not calls:
                if not text:
                    self.said = True
                    return ()
                if not self._half:
                    self._text.append(text)
                    return (TextDelta(text),)
            elif not text and len(calls) == 1:
                call = calls[0]
                function = call.function
                delta = (
                    self._calls.add(call.index, call.id)
                    if function is None
                    else self._calls.add(call.index, call.id, function.name, function.arguments)
                )
                if delta is None:
                    self.said = True
                    return ()
                return (delta,)
        return self._mixed(message)

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
        word = _word(reason)
        if word in _GOES_ON:
            return
        self.finished = self.said = True
        gravity = _FAILURE if word in _FAILED else _GRAVITY.get(STOP_REASONS.get(word, StopReason.UNKNOWN), 0)
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
        if self._gravity == _FAILURE and not self._refused:
            raise error_object({"message": f"the provider ended the reply with finish reason {self._raw!r}"})
        calls = self._calls.finish()
        message = AssistantMessage(content=clean("".join(self._text)), tool_calls=calls, reasoning=clean("".join(self._reasoning)))
        if self._refused:
            reason = StopReason.REFUSAL
        elif self._raw is None:
            reason = StopReason.TOOL_CALLS if calls else StopReason.STOP
        else:
            reason = STOP_REASONS.get(_word(self._raw), StopReason.UNKNOWN)
        return ModelResponse(message=message, stop=Stop(reason, self._raw), usage=self._usage)

    def cut(self) -> ProviderError:
        """The error for a reply that ended without terminal evidence."""
        characters = sum(map(len, self._text))
        so_far = f"after {characters} characters of text" + (" and a part of a tool call" if self._calls else "")
        return ProviderError(f"the reply ended without a finish reason or [DONE], {so_far}", retryable=True, kind="cut")


def _first(choices: list[Choice]) -> Choice | None:
    """Choice 0; further choices are not asked for and not read."""
    return next((choice for choice in choices if not choice.index), None)


def _word(reason: str) -> str:
    return reason.lower().replace("-", "_")


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
