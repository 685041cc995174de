"""OpenAI's two APIs, and every server that speaks them: chat completions and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack

from ..errors import UsageError
from ._wire import Endpoint, WireModel, WireOptions, base_url_of, check_stream
from .chat_reply import ChatReply
from .chat_request import ChatRequestWriter
from .profiles import GENERIC, OPENAI, Profile, profile_of
from .responses_reply import ResponsesReply
from .responses_request import ResponsesRequestWriter

__all__ = ["OpenAIChatModel", "OpenAIResponsesModel"]

_OPENAI = Endpoint(url=OPENAI.url, url_variable="OPENAI_BASE_URL", key_variables=OPENAI.key_variables)


class OpenAIChatModel(WireModel):
    """A model behind an OpenAI-compatible ``/chat/completions``. One instance serves many sessions and event loops.

    name: the model's name, as the server knows it.
    base_url: default ``OPENAI_BASE_URL``, or OpenAI itself. A query (``?api-version=...``) is kept.
    api_key: sent as a bearer token; default: what the environment variable ``key_variable`` holds.
    key_variable: a variable that is named must be set; None means that no key is needed. Default: ``OPENAI_API_KEY``,
        where base_url is OpenAI's or that of ``OPENAI_BASE_URL``: that key is not handed to any other host.
    stream: whether to ask for a stream. Either way, what the server answers with is read as what it is.
    profile: what is particular about the endpoint: the name of one in ``interlock.providers.profiles``, or one of your own.
        Default: by base_url's host; a host that is not known gets none.
    max_tokens_field: the name under which ``max_tokens`` is sent. Default: the profile's.
    native_output: whether the server can be held to a JSON schema (``response_format``), for structured output. Default: as the
        profile says, so that only OpenAI itself is; other models are given a tool for the answer.
    options: headers, timeouts and the like, see ``WireOptions``.

    Raises UsageError if a key is needed and missing, or a value makes no sense.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        key_variable: str | None = "",
        stream: bool = True,
        profile: Profile | str | None = None,
        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None,
        native_output: bool | None = None,
        **options: Unpack[WireOptions],
    ) -> None:
        check_stream(stream)
        if max_tokens_field not in (None, "max_tokens", "max_completion_tokens"):
            raise UsageError(f"max_tokens_field must be 'max_tokens' or 'max_completion_tokens', not {max_tokens_field!r}")
        configured = base_url_of(_OPENAI, None)[0]
        chosen = profile_of(profile, base_url_of(_OPENAI, base_url)[0])
        # Where the environment leads, the environment's key for OpenAI goes, whoever is there.
        led = profile is None and base_url in (None, configured)
        self.native_output = chosen.native_output if native_output is None else native_output
        super().__init__(
            name,
            endpoint=_OPENAI if led else _endpoint(chosen),
            writer=ChatRequestWriter(name, stream=stream, max_tokens_field=max_tokens_field or chosen.max_tokens_field, profile=chosen),
            reply=partial(ChatReply, chosen.name, name) if chosen.replay == "reasoning_details" else ChatReply,
            base_url=base_url,
            api_key=api_key,
            key_variable=key_variable,
            **options,
        )


def _endpoint(profile: Profile) -> Endpoint:
    if profile is OPENAI or profile is GENERIC:
        return _OPENAI
    return Endpoint(
        url=profile.url,
        key_variables=profile.key_variables,
        key_header=profile.key_header,
        key_prefix=profile.key_prefix,
        hosts=profile.hosts,
    )


# OpenAI refuses to give these the reasoning that they do not have: 400 "Encrypted content is not supported with this model."
_NO_REASONING = ("gpt-3.5", "gpt-4", "chatgpt-", "gpt-5-chat")


class OpenAIResponsesModel(WireModel):
    """A model behind OpenAI's ``/responses``, or a server that speaks it. One instance serves many sessions and event loops.

    The server keeps nothing: each request carries the whole conversation, and a reasoning model's reasoning goes back to it
    encrypted, together with what it led to. A SystemMessage is an input message of role ``system`` at its own position.

    name, base_url, api_key, key_variable, stream: as for ``OpenAIChatModel``.
    hosted_tools: tools that the provider runs itself, as its API has them (``{"type": "web_search"}``). What they did goes back
        with the conversation; no hook sees them, for nothing of them runs here.
    reasoning_summary: ``auto``, ``concise`` or ``detailed`` for a summary of the reasoning to show; None for none.
    encrypted_reasoning: whether to ask for reasoning that can be sent back. Default: yes, unless the name is that of a model of
        OpenAI's that does not reason, which would refuse.
    store: whether OpenAI may keep the responses, to be looked at there. Nothing here relies on it.
    options: headers, timeouts and the like, see ``WireOptions``.

    ``ModelSettings.stop`` and ``seed`` are a UsageError: this API has neither. Raises UsageError if a key is needed and
    missing, or a value makes no sense.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        key_variable: str | None = "",
        stream: bool = True,
        hosted_tools: Sequence[Mapping[str, Any]] = (),
        reasoning_summary: Literal["auto", "concise", "detailed"] | None = None,
        encrypted_reasoning: bool | None = None,
        store: bool = False,
        **options: Unpack[WireOptions],
    ) -> None:
        check_stream(stream)
        if reasoning_summary not in (None, "auto", "concise", "detailed"):
            raise UsageError(f"reasoning_summary must be 'auto', 'concise' or 'detailed', not {reasoning_summary!r}")
        for tool in hosted_tools:
            if not isinstance(tool, Mapping) or tool.get("type", "function") == "function":  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(
                    f"hosted_tools: {tool!r} is no tool of the provider's own: it needs a 'type', as in {{'type': 'web_search'}}"
                )
        self.native_output = True
        if encrypted_reasoning is None:
            encrypted_reasoning = not str(name).rpartition("/")[2].startswith(_NO_REASONING)
        super().__init__(
            name,
            endpoint=_OPENAI,
            writer=ResponsesRequestWriter(
                name,
                stream=stream,
                hosted_tools=hosted_tools,
                reasoning_summary=reasoning_summary,
                encrypted=encrypted_reasoning,
                store=store,
            ),
            reply=partial(ResponsesReply, name),
            base_url=base_url,
            api_key=api_key,
            key_variable=key_variable,
            **options,
        )
