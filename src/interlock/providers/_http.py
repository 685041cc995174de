"""HTTP for the adapters: one POST, its body as blocks, and every failure as ProviderError.

One ``HttpClient`` serves every event loop it is used from, with a connection pool of its own for each. Nothing is
retried, no redirect is followed, and no proxy is taken from the environment unless asked.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from ..errors import ProviderError, UsageError
from ._body import eased, join_pieces
from ._pool import DirectReply, Pool
from .faults import http_error, retryable_status

__all__ = ["KEY_HEADERS", "Exchange", "HttpClient", "Timeouts", "shown"]

KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})
"""The headers in which vendors take a key (Azure the second, Anthropic the third, Google the last), in lower case."""

# An error body beyond this says nothing more.
_ERROR_BODY_BYTES_MAX = 64 * 1024

# How long a finished reply waits for the end of its HTTP body. It is nearly always there already; a new TLS
# connection costs about as much as this, so waiting longer for the old one gains nothing.
_DRAIN_S = 0.1

# How long a reply with a finish reason waits for what may still follow it: the token counts and [DONE], which servers send in
# the same moment (one round trip later at most), and some never do. Nothing of the answer itself can be missing by then.
_AFTER_FINISH_S = 1.0

# What aiohttp's reader raises for a connection that broke; RuntimeError is its "Connection closed.", HttpProcessingError comes from its
# parser in Python.
_BROKEN = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError, RuntimeError)

# These say the whole URL, in which some servers take the key: they are in no traceback.
_WITH_THE_URL = (aiohttp.ConnectionTimeoutError, aiohttp.ClientResponseError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds, each more than 0; None waits for ever.

    connect_s: name, TCP and TLS. first_byte_s: from the request to the first part of the reply that says something; a
    reply that is not streamed comes whole at its end. idle_s: between two such parts, counted only while one is waited
    for. exchange_s: from the request to the end of the reply, whatever comes meanwhile and whoever is slow.

    Keep-alives (blank lines, comments, chunks without a message) say nothing: a request may be queued behind them for
    first_byte_s (DeepSeek gives a queued request up after 10 minutes), and a reply may pause behind them for idle_s.
    """

    connect_s: float | None = 10.0
    # The value that the official SDKs use; long answers that are not streamed need minutes.
    first_byte_s: float | None = 600.0
    idle_s: float | None = 120.0
    # A bound for what never ends, not a pace: the longest single answers take about half of it.
    exchange_s: float | None = 3600.0
    first_look_s: float = field(init=False, repr=False)
    """After which one of them may have passed for the first time."""

    def __post_init__(self) -> None:
        for name in ("connect_s", "first_byte_s", "idle_s", "exchange_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise UsageError(f"{name.removesuffix('_s')}_timeout_s: a number of seconds above 0 is needed, not {value!r}")
        first = min(limit_s or math.inf for limit_s in (self.first_byte_s, self.idle_s, self.exchange_s))
        object.__setattr__(self, "first_look_s", first)


class HttpClient:
    """POSTs to one base URL. Cheap until first used."""

    def __init__(
        self, *, base_url: str, headers: Mapping[str, str], timeouts: Timeouts, proxy: str | None = None, trust_env: bool = False
    ) -> None:
        url = _checked(base_url)
        self.base_url = shown(url)
        """For messages."""
        self._base = url
        self._urls: dict[str, URL] = {}
        """By path: a model has one or two."""
        self.headers = dict(headers)
        self._timeouts = timeouts
        self._proxy = proxy
        self._trust_env = trust_env
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    def url(self, path: str) -> URL:
        """``path`` below the base URL, whose query (``?api-version=...``) is kept; one of the path's own is added to it."""
        known = self._urls.get(path)
        if known is None:
            below, _, query = path.partition("?")
            # The base's path stays as it was written: %2F is no slash.
            url = self._base.with_path(self._base.raw_path.rstrip("/") + URL.build(path=below).raw_path, encoded=True, keep_query=True)
            known = self._urls[path] = url.extend_query(query) if query else url
        return known

    async def post(self, url: URL, body: bytes) -> Exchange:
        """Send ``body`` and return the open reply, whose status is 2xx. The caller must ``close()`` it.

        Raises ProviderError, UsageError for a header that HTTP does not allow. Cancelled, it leaves no connection.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = await self._open()
        watch = _Watch(self._timeouts, self.base_url, loop)
        try:
            response = await pool.post(url, body)
        except BaseException as error:
            watch.stop()
            if watch.expired_by(error) and watch.failure is not None:
                raise watch.failure from error
            if isinstance(error, (aiohttp.ClientError, OSError, ValueError)):  # OSError: TimeoutError is one
                raise self._unsent(error) from (error.__cause__ if isinstance(error, _WITH_THE_URL) else error)
            raise
        exchange = Exchange(response, watch, url)
        if 200 <= response.status < 300:
            return exchange
        try:
            body = await exchange.read_some(_ERROR_BODY_BYTES_MAX)
        finally:
            exchange.close()
        raise http_error(
            response.status, response.headers, body, url=exchange.url, keyless=KEY_HEADERS.isdisjoint(map(str.lower, self.headers))
        )

    async def aclose(self) -> None:
        """Close every connection, of every event loop. Idempotent; a later ``post`` opens anew."""
        pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            if loop is asyncio.get_running_loop():
                await pool.aclose()
            elif not loop.is_closed():
                asyncio.run_coroutine_threadsafe(pool.aclose(), loop)

    async def _open(self) -> Pool:
        for loop in [loop for loop in list(self._pools) if loop.is_closed()]:
            self._pools.pop(loop, None)  # another thread may do the same
        pool = Pool(self.headers, connect_s=self._timeouts.connect_s, proxy=self._proxy, trust_env=self._trust_env)
        self._pools[asyncio.get_running_loop()] = pool
        await pool.open()
        return pool

    def _unsent(self, error: Exception) -> ProviderError | UsageError:
        """Why no reply came. The URL and what to check are in the message; headers never are."""
        check = "check base_url, the network, and that the server is running"
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            text = f"no connection to {self.base_url} within {self._timeouts.connect_s} s; {check}"
            return ProviderError(text, retryable=True, kind="timeout", code="connect_timeout")
        if isinstance(error, aiohttp.ClientConnectorError):
            return ProviderError(f"cannot connect to {self.base_url}: {error}; {check}", retryable=True, kind="connect")
        if isinstance(error, aiohttp.ClientHttpProxyError):
            text = (
                f"the proxy made no connection to {self.base_url}: HTTP {error.status} {error.message}; check the proxy and what it allows"
            )
            return ProviderError(text, retryable=retryable_status(error.status), kind="connect")
        if isinstance(error, aiohttp.ClientResponseError):
            text = f"{self.base_url} did not answer in HTTP: {error.message}; check base_url"
            return ProviderError(text, retryable=True, kind="malformed")
        if isinstance(error, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError)):
            text = f"{self.base_url} closed the connection before it answered ({type(error).__name__})"
            return ProviderError(text, retryable=True, kind="cut")
        return UsageError(f"this request to {self.base_url} is not possible: {type(error).__name__}: {error}")


class _Watch:
    """The timer of one exchange: cheaper than one around every wait, and after the head it cancels nobody's task.

    It fires at the shortest limit, or earlier where one is due, and looks: what is awaited may have changed meanwhile.
    """

    __slots__ = (
        "_cancelling",
        "_deadline",
        "_ending",
        "_loop",
        "_task",
        "_timeouts",
        "_timer",
        "_url",
        "began",
        "content",
        "failure",
        "waiting_since",
    )

    def __init__(self, timeouts: Timeouts, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._timeouts = timeouts
        self._url = url
        self._loop = loop
        self._task = asyncio.current_task(loop)
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False
        self.failure: ProviderError | None = None
        """Why this timer ended the exchange."""
        self.content: aiohttp.StreamReader | None = None
        """The body, once there is one. Before, the waiting task is cancelled, because there is nothing else to wake."""
        self.began = False
        """A first part of the reply was there that said something."""
        now = self._loop.time()
        self.waiting_since: float | None = now
        """None while nobody waits: a slow consumer is no idle provider."""
        self._deadline = now + (timeouts.exchange_s or math.inf)
        if timeouts.first_look_s < math.inf:
            self._timer = self._loop.call_at(now + timeouts.first_look_s, self._look)

    def wait(self) -> None:
        """Somebody waits for the provider from now on."""
        self.waiting_since = self._loop.time()

    def ending(self, ending: bool) -> None:
        """Whether only what may follow a finish reason is waited for."""
        self._ending = ending
        self.stop()
        self._look()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expired_by(self, error: BaseException) -> bool:
        """Whether ``error`` is this timer's cancellation and nobody else's (as in ``asyncio.timeout``)."""
        if self.failure is None or self._task is None:
            return False
        ours_alone = self._task.uncancel() <= self._cancelling
        return ours_alone and isinstance(error, asyncio.CancelledError)

    def _look(self) -> None:
        first_s, idle_s = self._timeouts.first_byte_s or math.inf, self._timeouts.idle_s or math.inf
        if self._ending:
            idle_s = min(idle_s, _AFTER_FINISH_S)
        limit_s = idle_s if self.began else first_s
        now = self._loop.time()
        since = now if self.waiting_since is None else self.waiting_since
        self._timer = None
        if now - since >= limit_s:
            nothing, code = ("nothing more", "idle_timeout") if self.began else ("nothing", "first_byte_timeout")
            self._expire(f"{self._url} sent {nothing} of an answer within {limit_s} s", code)
        elif now >= self._deadline:
            self._expire(f"the reply of {self._url} did not end within {self._timeouts.exchange_s} s", "exchange_timeout")
        else:
            next_at = min(since + limit_s, now + min(first_s, idle_s), self._deadline)
            self._timer = self._loop.call_at(next_at, self._look) if next_at < math.inf else None

    def _expire(self, text: str, code: str) -> None:
        self.failure = ProviderError(text, retryable=True, kind="timeout", code=code)
        if self.content is not None:
            self.content.set_exception(self.failure)
        elif self._task is not None:
            self._task.cancel()


class Exchange:
    """The reply to one POST, open until ``close``. Not to be read by two tasks at once."""

    __slots__ = ("_broken", "_content", "_response", "_since", "_url", "_watch")

    def __init__(self, response: aiohttp.ClientResponse | DirectReply, watch: _Watch, url: URL) -> None:
        self._url = url
        self._response = response
        self._content = watch.content = eased(response.content)
        self._watch = watch
        self._since = watch.waiting_since
        """Since when the last block was waited for."""
        self._broken: Exception | None = None

    @property
    def url(self) -> str:
        """Where the request went, for messages."""
        return shown(self._url)

    @property
    def content_type(self) -> str:
        """The media type of the body, in lower case."""
        return self._response.content_type

    def ending(self, ending: bool) -> None:
        """Whether a finish reason was read, after which there is little to wait for: then the idle time is short."""
        self._watch.ending(ending)

    async def read(self, *, heard: bool) -> bytes:
        """The next block of the body, at least one byte; ``b""`` at its end.

        heard: what was read last said something. Otherwise (and at first) the waiting for that goes on.
        Raises ProviderError of kind ``cut`` when the connection broke, ``timeout`` when nothing came in time.
        """
        if self._broken is not None:
            raise self._cut(self._broken)
        watch = self._watch
        if heard:
            watch.began = True
            watch.wait()
        else:
            watch.waiting_since = self._since
        join_pieces(self._content)
        try:
            block = await self._content.readany()
        except _BROKEN as error:
            return self._rest(error)
        self._since, watch.waiting_since = watch.waiting_since, None
        return block

    async def read_some(self, bytes_max: int) -> bytes:
        """The body up to about ``bytes_max`` bytes, or as much as came before it broke. Does not raise ProviderError."""
        blocks: list[bytes] = []
        size = 0
        try:
            while size < bytes_max and (block := await self.read(heard=bool(blocks))):
                blocks.append(block)
                size += len(block)
        except ProviderError:
            pass
        return b"".join(blocks)

    @property
    def complete(self) -> bool:
        """Whether the end of the body is here, so that closing gives the connection back."""
        return self._content.at_eof()

    async def finish(self) -> None:
        """The caller has all it needs: let the connection be used again if the body's end is there, or comes at once."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                while not self._content.at_eof() and await self._content.readany():
                    pass
        except (*_BROKEN, ProviderError):
            pass  # it will be closed instead
        self.close()

    def close(self) -> None:
        """Close the connection at once unless the body was read to its end; then it is free already. Idempotent."""
        self._watch.stop()
        response = self._response
        if response.closed:  # read to its end, or closed before
            return
        connection = response.connection
        if connection is not None and connection.transport is not None:
            # Not close(): over TLS that waits for the peer's goodbye, and before it for what is still to be sent.
            connection.transport.abort()
        response.close()

    def _rest(self, error: Exception) -> bytes:
        """What had arrived before the connection broke: it may hold the end of the reply. The break is kept for later."""
        self._broken = error
        self._content.set_exception(cast("Any", None))  # the reader refuses its buffer while it has an exception
        rest = self._content.read_nowait()
        if not rest:
            raise self._cut(error)
        return rest

    def _cut(self, error: Exception) -> ProviderError:
        text = f"the connection to {self.url} broke before the reply was complete ({type(error).__name__})"
        return ProviderError(text, retryable=True, kind="cut")


def shown(url: URL) -> str:
    """``url`` as messages, logs and journals may have it: some servers take the key in the query, or in front of the host."""
    return str(url.with_query(None).with_user(None))


def _checked(base_url: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError as error:
        raise UsageError(f"base_url {base_url!r} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"base_url {base_url!r} must start with http:// or https:// and name a host")
    return url
