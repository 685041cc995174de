"""OpenAI's chat completions, and every server that speaks them.

The stream is read raw: an SDK's iterator hides the difference between ``[DONE]`` and a connection that broke, and
that difference is what tells an answer from a fragment.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Literal, cast
from urllib.parse import urlsplit

from ..errors import ProviderError, UsageError
from ..model import ModelEvent, ModelRequest, ModelResponse
from ._http import Exchange, HttpClient, Timeouts
from ._sse import SSEReader
from .chat_reply import ChatReply
from .chat_request import ChatRequestWriter

__all__ = ["OpenAIChatModel"]

_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_HOST = "api.openai.com"


class OpenAIChatModel:
    """A model behind an OpenAI-compatible ``/chat/completions``. One instance serves many sessions and event loops.

    name: the model's name, as the server knows it.
    base_url: default ``OPENAI_BASE_URL``, or OpenAI itself. A query (``?api-version=...``) is kept.
    api_key: sent as a bearer token; default: what the environment variable ``key_variable`` holds.
    key_variable: a variable that is named must be set; None means that no key is needed. Default: ``OPENAI_API_KEY``,
        where base_url is OpenAI's or that of ``OPENAI_BASE_URL``: that key is not handed to any other host.
    stream: whether to ask for a stream. Either way, what the server answers with is read as what it is.
    headers: sent with every request; they win over ours.
    max_tokens_field: the name under which ``max_tokens`` is sent. Default ``max_completion_tokens`` for OpenAI itself,
        whose reasoning models refuse the old name, and ``max_tokens`` for all others.
    connect_timeout_s, first_byte_timeout_s, idle_timeout_s, exchange_timeout_s: see ``Timeouts``; None waits for ever.
    response_bytes_max: a larger reply is a ProviderError that is not retryable.
    proxy: an HTTP proxy's URL. trust_env: take proxies and .netrc from the environment.

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
        headers: Mapping[str, str] | None = None,
        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None,
        connect_timeout_s: float | None = 10.0,
        first_byte_timeout_s: float | None = 600.0,
        idle_timeout_s: float | None = 120.0,
        exchange_timeout_s: float | None = 3600.0,
        response_bytes_max: int = 64 * 1024 * 1024,
        proxy: str | None = None,
        trust_env: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"OpenAIChatModel needs a model's name, which is printable text, not {name!r}")
        _check_options(base_url=base_url, api_key=api_key, key_variable=key_variable, proxy=proxy)
        if not isinstance(stream, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"stream must be True or False, not {stream!r}")
        if isinstance(response_bytes_max, bool) or not isinstance(response_bytes_max, int) or response_bytes_max < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"response_bytes_max must be a number of bytes above 0, not {response_bytes_max!r}")
        if max_tokens_field not in (None, "max_tokens", "max_completion_tokens"):
            raise UsageError(f"max_tokens_field must be 'max_tokens' or 'max_completion_tokens', not {max_tokens_field!r}")
        configured = os.environ.get("OPENAI_BASE_URL") or _OPENAI_URL
        self.name = name
        self.base_url = base_url or configured
        own = urlsplit(self.base_url).hostname == _OPENAI_HOST
        if key_variable == "":
            key_variable = "OPENAI_API_KEY" if own or self.base_url == configured else None
            needed = key_variable if own else None
        else:
            needed = key_variable
        key = (api_key or (os.environ.get(key_variable) if key_variable else None) or "").strip()
        self._http = HttpClient(
            base_url=self.base_url,
            headers=_headers(key, headers or {}, needed=needed),
            timeouts=Timeouts(
                connect_s=connect_timeout_s, first_byte_s=first_byte_timeout_s, idle_s=idle_timeout_s, exchange_s=exchange_timeout_s
            ),
            proxy=proxy,
            trust_env=trust_env,
        )
        self._url = self._http.url("/chat/completions")
        self._writer = ChatRequestWriter(
            name, stream=stream, max_tokens_field=max_tokens_field or ("max_completion_tokens" if own else "max_tokens")
        )
        self._response_bytes_max = response_bytes_max

    def __repr__(self) -> str:
        return f"OpenAIChatModel({self.name!r}, base_url={self.base_url!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream one response: deltas as they come, and last exactly one ModelResponse.

        Raises ProviderError if the exchange fails at any point; what was shown before is then no answer. Closing the
        generator, or cancelling its task, closes the connection at once unless the reply was read to its end.
        """
        exchange = await self._http.post(self._url, self._writer.body(request, self))
        reply = ChatReply()
        try:
            reader: SSEReader | None = None
            size = 0
            heard = False
            ending: bool | None = None
            """Only the rest after a finish reason is waited for. False: not so here, for text came after it."""
            while not reply.done and (block := await self._next(exchange, reply, heard)):
                heard = reply.said = False
                size += len(block)
                if size > self._response_bytes_max:
                    raise self._too_large(exchange)
                if reader is None:
                    if not block.strip():
                        continue  # DeepSeek and OpenRouter keep a waiting connection alive with blank lines
                    if _is_json(block):
                        for event in reply.take(await self._whole(exchange, block), last=True):
                            yield event
                        break
                    reader = SSEReader(event_bytes_max=self._response_bytes_max)
                for payload in reader.feed(block):
                    for event in reply.take(payload):
                        heard = True
                        yield event
                    if reply.done:
                        break
                if not ending:
                    heard = heard or reply.said
                    if ending is None and reply.finished and not reply.done:
                        ending = True
                        exchange.ending(True)
                elif heard:
                    ending = False
                    exchange.ending(False)
            if reader is not None and not reply.done:
                for payload in reader.end():
                    for event in reply.take(payload, last=True):
                        yield event
            response = self._response(exchange, reply)
            if exchange.complete:
                exchange.close()
                yield response
            else:
                yield response
                await exchange.finish()
        except ProviderError as error:
            error.usage = reply.usage  # what a failed attempt has cost counts too
            raise
        finally:
            exchange.close()

    async def aclose(self) -> None:
        """Close every connection. Idempotent; the model can be used again afterwards."""
        await self._http.aclose()

    async def _next(self, exchange: Exchange, reply: ChatReply, heard: bool) -> bytes:
        """The next block. After a finish reason the reply is whole, however the connection ends."""
        try:
            return await exchange.read(heard=heard)
        except ProviderError:
            if reply.finished:
                return b""
            raise

    def _response(self, exchange: Exchange, reply: ChatReply) -> ModelResponse:
        if not (reply.finished or reply.done or reply.begun) and exchange.content_type in ("text/html", "text/plain"):
            text = f"{exchange.url} answered with {exchange.content_type} instead of a completion; check base_url"
            raise ProviderError(text, retryable=True, kind="malformed")
        return reply.response()

    async def _whole(self, exchange: Exchange, block: bytes) -> bytes:
        """A reply that is one JSON document, whatever was asked for."""
        blocks, size = [block], len(block)
        while block := await exchange.read(heard=not block.isspace()):
            blocks.append(block)
            size += len(block)
            if size > self._response_bytes_max:
                raise self._too_large(exchange)
        return b"".join(blocks)

    def _too_large(self, exchange: Exchange) -> ProviderError:
        text = f"the reply of {exchange.url} is larger than {self._response_bytes_max:,} bytes"
        return ProviderError(text, kind="malformed", code="response_too_large")


def _is_json(block: bytes) -> bool:
    """Whether a reply is one JSON document rather than events. The content type is often wrong; the first byte never is."""
    return block.lstrip()[:1] in (b"{", b"[")


def _items(headers: object) -> Iterable[tuple[object, object]]:
    if not isinstance(headers, Mapping):
        raise UsageError(f"headers must be a mapping of names to values, not {type(headers).__name__}")
    return cast("Mapping[object, object]", headers).items()


def _check_options(**options: object) -> None:
    for option, value in options.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{option} must be text, not {type(value).__name__}")
        if value and not value.strip().isprintable():
            # Not shown: it may be the key.
            raise UsageError(f"{option} has a character that cannot be sent: a line break, a control character or half a surrogate pair")


def _headers(key: str, extra: Mapping[str, str], *, needed: str | None) -> dict[str, str]:
    for name, value in _items(extra):
        if not isinstance(name, str) or not isinstance(value, str) or not name.isprintable() or not value.replace("\t", " ").isprintable():
            raise UsageError(f"headers: the header {name!r} and its value must be text of one line")
    lower = {name.lower() for name in extra}
    if needed and not key and lower.isdisjoint({"authorization", "api-key"}):
        raise UsageError(f"an API key is needed: set the environment variable {needed} or pass api_key=")
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream, application/json",
        # A compressed stream is held back by some proxies until a block is full.
        "Accept-Encoding": "identity",
        "User-Agent": "interlock",
    }
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return {name: value for name, value in headers.items() if name.lower() not in lower} | dict(extra)
