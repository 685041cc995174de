"""Why a reply ended: one table from every vendor's documented words, whatever its wire, to ``StopReason``.

One table serves all wires, because gateways pass the words of one vendor on in the format of another. No I/O here.
"""

from __future__ import annotations

from ..messages import StopReason

__all__ = ["FAILED", "FAILURE", "GOES_ON", "STOP_REASONS", "gravity_of", "stop_reason", "stop_word"]

STOP_REASONS: dict[str, StopReason] = {
    # OpenAI
    "stop": StopReason.STOP,
    "tool_calls": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "length": StopReason.LENGTH,
    "content_filter": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
    # OpenAI Responses: the status, and why it is incomplete (developers.openai.com, the Response object; Assistants has two more).
    # Incomplete for a reason we have no word for is cut off all the same: it must not pass for an answer.
    "completed": StopReason.STOP,
    "incomplete": StopReason.LENGTH,
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
    "compaction": StopReason.PAUSE,  # beta: pause_after_compaction; the reply is to be sent back, as after pause_turn
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
    "escalation": StopReason.CONTENT_FILTER,  # "filtered by an escalation rule" (google-genai, FinishReason)
    # The limit of one request was reached, and the rest would need a token that only Google's SDK asks for.
    "continuation": StopReason.LENGTH,
    # A call was meant, and Gemini threw it away: the same as one that was announced and is missing.
    "malformed_function_call": StopReason.TOOL_CALLS,
    "unexpected_tool_call": StopReason.TOOL_CALLS,
    "too_many_tool_calls": StopReason.TOOL_CALLS,
}
"""Vendors' words for the end of a reply, in lower case, ``_`` for ``-``. Any other is UNKNOWN, which is terminal evidence too."""

FAILED = frozenset({
    "error",  # OpenRouter, Mistral, Cohere, watsonx, vLLM
    "network_error",  # Z.AI
    "insufficient_system_resource",  # DeepSeek
    "failed",  # OpenAI Responses: the status
    "abort",  # vLLM, SGLang
    "repetition",  # vLLM: the model was in a loop (vllm/v1/engine, FINISH_REASON_STRINGS)
    "cancelled",  # watsonx, TensorRT-LLM: by somebody else, as we have not gone
    "user_cancel",  # Cohere
    "malformed_model_output",  # Amazon Bedrock
    "malformed_response",  # Gemini
    "missing_thought_signature",  # Gemini
    "pup_limited_disabled",  # Gemini: the account is limited or disabled
})  # fmt: skip
"""Words that say that the provider failed."""

GOES_ON = frozenset({"not_finished", "null", "none"})
"""They say that the reply goes on: watsonx, and servers that write the null of a chunk as text."""

FAILURE = 3
"""The gravity of a word of ``FAILED``."""

_GRAVITY = {StopReason.CONTENT_FILTER: 4, StopReason.REFUSAL: 4, StopReason.LENGTH: 2, StopReason.PAUSE: 1}


def stop_word(raw: str) -> str:
    """A vendor's word as the tables have it: ``MAX_TOKENS`` and ``max-tokens`` are ``max_tokens``."""
    return raw.lower().replace("-", "_")


def stop_reason(raw: str) -> StopReason:
    """Our word for a vendor's."""
    return STOP_REASONS.get(stop_word(raw), StopReason.UNKNOWN)


def gravity_of(raw: str) -> int:
    """Of several words in one reply the gravest counts, and of equal ones (0: all others) the first: a ``stop`` that some
    gateways send at the end of everything does not complete what was cut off or filtered."""
    word = stop_word(raw)
    return FAILURE if word in FAILED else _GRAVITY.get(STOP_REASONS.get(word, StopReason.UNKNOWN), 0)
