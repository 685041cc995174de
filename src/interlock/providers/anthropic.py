"""Anthropic's Messages API, and every server that speaks it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast
from urllib.parse import urlsplit

from ..errors import UsageError
from ._wire import Endpoint, WireModel, WireOptions, base_url_of, check_stream
from .anthropic_reply import AnthropicReply
from .anthropic_request import AnthropicRequestWriter

__all__ = ["AnthropicModel"]

_URL = "https://api.anthropic.com"

# Every model that the API serves writes at least as much, and it is little enough for a reply that is not streamed: the
# official SDK refuses to wait for more than 21,333 tokens. A longer answer is continued.
_MAX_TOKENS = 16_384

# The version that has every parameter: 2026-10-21 takes away temperature and top_p (platform.claude.com/docs/en/api/versioning).
_VERSION = "2023-06-01"


class AnthropicModel(WireModel):
    """A model behind Anthropic's ``/v1/messages``. One instance serves many sessions and event loops.

    name: the model's name, as the server knows it.
    base_url: default ``ANTHROPIC_BASE_URL``, or Anthropic itself; with or without ``/v1`` at its end.
    api_key: sent as ``x-api-key``; default: what the environment variable ``key_variable`` holds.
    key_variable: a variable that is named must be set; None means that no key is needed. Default: ``ANTHROPIC_API_KEY``,
        where base_url is Anthropic's or that of ``ANTHROPIC_BASE_URL``: that key is not handed to any other host.
    stream: whether to ask for a stream. Either way, what the server answers with is read as what it is.
    max_tokens: what is sent where the settings name none, for this API demands one. A budget for thinking is added to it.
    thinking: the request's ``thinking``, as Anthropic documents it: ``{"type": "adaptive"}``, or
        ``{"type": "enabled", "budget_tokens": 4096}``. ``reasoning_effort`` becomes ``output_config.effort``, and ``"none"`` turns
        thinking off.
    hosted_tools: definitions of tools that Anthropic runs itself (``{"type": "web_search_20250305", "name": "web_search"}``), as
        they are. They run inside the model step: no layer's ``on_tool_call`` sees them, and no journal entry is theirs.
    cache: whether to mark what the provider may keep: the last tool, the system prompt and the last two turns of the user. That
        is all of the four marks that a request may have; False leaves them to ``extra`` and ``hosted_tools``.
    version: the ``anthropic-version``. From 2026-10-21 on, temperature and top_p are a UsageError.
    beta: names for the header ``anthropic-beta``.
    native_output: whether an agent's ``output=`` goes as ``output_config.format``, which newer models hold themselves to, for schemas
        within Anthropic's subset (every object with ``additionalProperties: false``, no recursion, no bounds). False asks with a tool.
    options: headers, timeouts and the like, see ``WireOptions``.

    A SystemMessage at the head of the conversation is the system prompt; a later one reaches the model at its own position, as
    text ``<system>...</system>`` of the user's turn. Thinking is sent back as it came, signature and all, while the message that
    holds it says what it said; unsigned thinking never is.

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
        max_tokens: int = _MAX_TOKENS,
        thinking: Mapping[str, Any] | None = None,
        hosted_tools: Sequence[Mapping[str, Any]] = (),
        cache: bool = True,
        version: str = _VERSION,
        beta: Sequence[str] = (),
        native_output: bool = False,
        **options: Unpack[WireOptions],
    ) -> None:
        check_stream(stream)
        self.native_output = native_output
        _check(
            max_tokens=max_tokens,
            thinking=thinking,
            hosted_tools=hosted_tools,
            cache=cache,
            version=version,
            beta=beta,
            native_output=native_output,
        )
        endpoint = Endpoint(
            url=_URL,
            url_variable="ANTHROPIC_BASE_URL",
            key_variables=("ANTHROPIC_API_KEY",),
            key_header="x-api-key",
            key_prefix="",
            headers={"anthropic-version": version, **({"anthropic-beta": ",".join(beta)} if beta else {})},
        )
        super().__init__(
            name,
            endpoint=endpoint,
            writer=AnthropicRequestWriter(
                name,
                path=_path(base_url_of(endpoint, base_url)[0]),
                stream=stream,
                max_tokens=max_tokens,
                version=version,
                cache=cache,
                thinking=thinking,
                hosted_tools=hosted_tools,
            ),
            reply=AnthropicReply,
            base_url=base_url,
            api_key=api_key,
            key_variable=key_variable,
            **options,
        )


def _path(base_url: str) -> str:
    try:
        path = urlsplit(base_url).path
    except ValueError:
        path = ""  # it is no URL at all, which HttpClient says
    return "/messages" if path.rstrip("/").endswith("/v1") else "/v1/messages"


def _check(
    *, max_tokens: object, thinking: object, hosted_tools: object, cache: object, version: object, beta: object, native_output: object
) -> None:
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise UsageError(f"max_tokens must be a number of tokens above 0, not {max_tokens!r}")
    if thinking is not None and not isinstance(thinking, Mapping):
        raise UsageError(f"thinking must be a mapping such as {{'type': 'adaptive'}}, not {thinking!r}")
    for option, value in (("cache", cache), ("native_output", native_output)):
        if not isinstance(value, bool):
            raise UsageError(f"{option} must be True or False, not {value!r}")
    if not isinstance(version, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", version):
        raise UsageError(f"version must be a date such as '2023-06-01', not {version!r}")
    for tool in _items("hosted_tools", hosted_tools):
        if not isinstance(tool, Mapping) or not isinstance(cast("Mapping[str, object]", tool).get("type"), str):
            raise UsageError(f"hosted_tools: a definition with a 'type' is needed, not {tool!r}")
    for name in _items("beta", beta):
        if not isinstance(name, str) or not name.isascii() or not name.isprintable():
            raise UsageError(f"beta: a feature's name is needed, not {name!r}")


def _items(option: str, value: object) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UsageError(f"{option} must be a list, not {value!r}")
    return cast("Sequence[object]", value)
