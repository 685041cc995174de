"""What every adapter over HTTP shares: its options and its key, and the one loop that reads a reply, streamed or not.

What differs from wire to wire is a *writer*, which makes requests, and a *reply*, which reads them. Neither does I/O.

The stream is read raw: an SDK's iterator hides the difference between a reply's own end and a connection that broke,
and that difference is what tells an answer from a fragment.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, cast
from urllib.parse import urlsplit

from ..errors import ProviderError, UsageError
from ..model import ModelEvent, ModelRequest, ModelResponse
from ._http import KEY_HEADERS, Exchange, HttpClient, Timeouts
from ._sse import SSEReader
from .ports import WireReply, WireWriter

__all__ = ["Endpoint", "WireModel", "WireOptions", "base_url_of", "check_stream"]

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a vendor listens, and how it wants its key.

    url_variable: the environment variable with another base URL. key_variables: the first that is set holds the key.
    key_header, key_prefix: how the key is sent. headers: what every request carries besides. hosts: further hosts of the vendor's,
    or what they end with.
    """

    url: str
    url_variable: str | None = None
    key_variables: tuple[str, ...] = ()
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    hosts: tuple[str, ...] = ()

    def owns(self, url: str) -> bool:
        """Whether ``url`` is at one of the vendor's own hosts, and as well protected on the way as the vendor's own is."""
        try:
            at, own = urlsplit(url), urlsplit(self.url)
            if at.scheme not in ("https", own.scheme):
                return False
            host = at.hostname
            known = (own.hostname, *self.hosts)
        except ValueError:
            return False  # it is no URL at all, which HttpClient says
        return host is not None and any(host == name or ((name or "").startswith(".") and host.endswith(name or "")) for name in known)


class WireOptions(TypedDict, total=False):
    """The options of every adapter over HTTP.

    headers: sent with every request; they win over ours.
    connect_timeout_s (10), first_byte_timeout_s (600), idle_timeout_s (120), exchange_timeout_s (3600): see ``Timeouts``;
        None waits for ever.
    response_bytes_max (64 MiB): a larger reply is a ProviderError that is not retryable.
    proxy: an HTTP proxy's URL. trust_env (False): take proxies and .netrc from the environment.
    """

    headers: Mapping[str, str] | None
    connect_timeout_s: float | None
    first_byte_timeout_s: float | None
    idle_timeout_s: float | None
    exchange_timeout_s: float | None
    response_bytes_max: int
    proxy: str | None
    trust_env: bool


class WireModel:
    """The base of the adapters: one instance serves many sessions and event loops.

    name: the model's name, as the provider knows it. base_url, api_key, key_variable: see the adapters. writer, reply: the wire.

    Raises UsageError if a key is needed and missing, or a value makes no sense.
    """

    def __init__(
        self,
        name: str,
        *,
        endpoint: Endpoint,
        writer: WireWriter,
        reply: Callable[[], WireReply],
        base_url: str | None = None,
        api_key: str | None = None,
        key_variable: str | None = "",
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float | None = 10.0,
        first_byte_timeout_s: float | None = 600.0,
        idle_timeout_s: float | None = 120.0,
        exchange_timeout_s: float | None = 3600.0,
        response_bytes_max: int = 64 * 1024 * 1024,
        proxy: str | None = None,
        trust_env: bool = False,
    ) -> None:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{type(self).__name__} needs a model's name, which is printable text, not {name!r}")
        _check_options(api_key=api_key, key_variable=key_variable, proxy=proxy)
        if isinstance(response_bytes_max, bool) or not isinstance(response_bytes_max, int) or response_bytes_max < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"response_bytes_max must be a number of bytes above 0, not {response_bytes_max!r}")
        self.name = name
        self.base_url, own = base_url_of(endpoint, base_url)
        key, needed = _key(endpoint, api_key, key_variable, own=own, configured=self.base_url == base_url_of(endpoint, None)[0])
        self._http = HttpClient(
            base_url=self.base_url,
            headers=_headers(endpoint, key, headers or {}, needed=needed),
            timeouts=Timeouts(
                connect_s=connect_timeout_s, first_byte_s=first_byte_timeout_s, idle_s=idle_timeout_s, exchange_s=exchange_timeout_s
            ),
            proxy=proxy,
            trust_env=trust_env,
        )
        self._writer = writer
        self._reply = reply
        self._response_bytes_max = response_bytes_max

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self._http.base_url!r})"

    @property
    def key_headers(self) -> dict[str, str]:
        """The headers that carry a key, as every request does; none if there is no key."""
        return {name: value for name, value in self._http.headers.items() if name.lower() in KEY_HEADERS}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream one response: deltas as they come, and last exactly one ModelResponse.

        Raises ProviderError if the exchange fails at any point; what was shown before is then no answer. Closing the
        generator, or cancelling its task, closes the connection at once unless the reply was read to its end.
        """
        body = self._writer.body(request, self)
        exchange = await self._http.post(self._http.url(self._writer.path(request)), body)
        reply = self._reply()
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

    async def _next(self, exchange: Exchange, reply: WireReply, heard: bool) -> bytes:
        """The next block. After a finish reason the reply is whole, however the connection ends."""
        try:
            return await exchange.read(heard=heard)
        except ProviderError:
            if reply.finished:
                return b""
            raise

    def _response(self, exchange: Exchange, reply: WireReply) -> ModelResponse:
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


def check_stream(stream: object) -> None:
    """Raise UsageError unless ``stream`` is a bool."""
    if not isinstance(stream, bool):
        raise UsageError(f"stream must be True or False, not {stream!r}")


def base_url_of(endpoint: Endpoint, base_url: str | None) -> tuple[str, bool]:
    """The base URL that counts, and whether it is the vendor's own host."""
    _check_options(base_url=base_url)
    configured = os.environ.get(endpoint.url_variable, "") if endpoint.url_variable else ""
    url = base_url or configured or endpoint.url
    return url, endpoint.owns(url)


def _key(endpoint: Endpoint, api_key: str | None, variable: str | None, *, own: bool, configured: bool) -> tuple[str, str | None]:
    """The key, and the variable that must hold one, if one must."""
    if variable == "":
        # A vendor's key goes to the vendor, or where the environment that holds it says; never to any other host.
        variables = endpoint.key_variables if own or configured else ()
        needed = " or ".join(variables) if own else None
    else:
        variables = (variable,) if variable else ()
        needed = variable
    found = api_key or next((value for name in variables if (value := os.environ.get(name))), "")
    return found.strip(), needed


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


def _headers(endpoint: Endpoint, key: str, extra: Mapping[str, str], *, needed: str | None) -> dict[str, str]:
    for name, value in _items(extra):
        if not isinstance(name, str) or not isinstance(value, str) or not name.isprintable() or not value.replace("\t", " ").isprintable():
            raise UsageError(f"headers: the header {name!r} and its value must be text of one line")
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError(f"headers: {name!r} is no name of a header: ASCII letters, digits and !#$%&'*+-.^_`|~ alone make one")
    lower = {name.lower() for name in extra}
    if needed and not key and lower.isdisjoint(KEY_HEADERS):
        raise UsageError(f"an API key is needed: set the environment variable {needed} or pass api_key=")
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream, application/json",
        # A compressed stream is held back by some proxies until a block is full.
        "Accept-Encoding": "identity",
        "User-Agent": "interlock",
        **endpoint.headers,
    }
    if key:
        headers[endpoint.key_header] = endpoint.key_prefix + key
    return {name: value for name, value in headers.items() if name.lower() not in lower} | dict(extra)
