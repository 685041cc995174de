"""The connections of one event loop, and the two ways in which a POST goes over them.

aiohttp's session works headers, cookies, proxies, redirects and timeouts out anew for each request, and before Python 3.12 sends the
body from a task of its own, which waits for its turn: a sixth of what a run with one tool costs. One request to a model differs from
the next in nothing but its body. So what goes before the body is written once for each URL, and a request is one write.
Connections (names, TLS, keep-alive) and the reading of replies stay aiohttp's, but for two faults of either way, mended here.

Through the session goes what needs it (a proxy, the environment's settings, a name and password in the URL, headers that change how a
body is sent), what is too large for one write, and everything as soon as somebody watches or replaces aiohttp's requests: tools
that trace or record do, and must see each. So it is, too, with a version of aiohttp that does not have the words used here.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import re
import select
import weakref
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import aiohttp
from aiohttp import client as aiohttp_client
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

__all__ = ["DirectReply", "Pool"]

# aiohttp warns (ResourceWarning) about larger bodies given as bytes; from a BytesIO it sends them in pieces.
_BYTES_BODY_MAX = 512 * 1024

# Headers by which a body is sent in another way, or waits for a word of the server.
_OF_THE_BODY = frozenset({"content-encoding", "content-length", "expect", "transfer-encoding"})

_NOT_IN_A_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Pool:
    """Cheap to use, not to make. Belongs to the event loop that runs when it is opened."""

    def __init__(self, headers: Mapping[str, str], *, connect_s: float | None, proxy: str | None, trust_env: bool) -> None:
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
            trust_env=trust_env,
        )
        self._proxy = proxy
        # Tools that trace give each session more than it was asked to have; so may others.
        altered = not _is_aiohttps_own(aiohttp.ClientSession.__init__)
        unusual = proxy is not None or trust_env or altered or not _OF_THE_BODY.isdisjoint(map(str.lower, headers))
        self._plain = not unusual
        self._lines: dict[URL, _Line | None] = {}
        self._keeper = _keep(self._session)

    async def open(self) -> None:
        """From here on the event loop closes what ``aclose`` did not."""
        await anext(self._keeper)

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        await self._keeper.aclose()

    async def post(self, url: URL, body: bytes) -> aiohttp.ClientResponse | DirectReply:
        """The reply to ``body``, of whatever status, as soon as its head is there. The caller must close it.

        Raises aiohttp.ClientError, OSError, ValueError. Cancelled, it leaves no connection.
        """
        size = len(body)
        if self._plain and size <= _BYTES_BODY_MAX and _is_unwatched():
            try:
                line = self._lines[url]
            except KeyError:
                line = self._lines[url] = _line(self._session, url)
            if line is not None:
                return await line.post(body)
        data = body if size <= _BYTES_BODY_MAX else io.BytesIO(body)
        return await self._session.post(url, data=data, allow_redirects=False, proxy=self._proxy)


class _Connector(aiohttp.TCPConnector):
    """Hands a connection out again only if its server has been silent since the last reply.

    What came meanwhile belongs to no request: aiohttp would take a whole reply for that to the next one, and from then on give each
    request the reply of another. The end of the connection, when the event loop has not seen it yet, would cost the request.
    """

    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit)  # pyright: ignore[reportUnknownMemberType]
        self._used: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()
        self._factory = partial(_Protocol, loop=self._loop)

    async def connect(self, *args: Any, **options: Any) -> Connection:
        while True:
            connection = await super().connect(*args, **options)
            protocol = connection.protocol
            assert protocol is not None
            if protocol not in self._used:  # a new one may have something to read: TLS sends its tickets after the handshake
                self._used.add(protocol)
                return connection
            if not protocol.should_close and not _has_come(connection.transport):
                return connection
            if connection.transport is not None:
                connection.transport.abort()
            connection.close()


class _Protocol(ResponseHandler):
    """Whose end is told to who waits for a body even if its last bytes were no HTTP: then aiohttp's parser in C forgets them."""

    def connection_lost(self, exc: BaseException | None) -> None:
        body = self._payload
        super().connection_lost(exc)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("what came of the body is no HTTP"))


class DirectReply:
    """A reply that no session knows of; what is used of aiohttp's ``ClientResponse`` has the same names here."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(self, connection: Connection, status: int, headers: Mapping[str, str], content: aiohttp.StreamReader) -> None:
        self._connection: Connection | None = connection
        self.status = status
        self.headers = headers
        self.content = content
        content.on_eof(self._ended)

    @property
    def content_type(self) -> str:
        """The media type alone, in lower case."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def connection(self) -> Connection | None:
        """None once the body has ended, or the reply was closed."""
        return self._connection

    @property
    def closed(self) -> bool:
        """Whether the connection was given back, or closed."""
        return self._connection is None

    def close(self) -> None:
        """Close the connection; who still waits for the body is told. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self.content.exception() is None:
                self.content.set_exception(aiohttp.ClientConnectionError("Connection closed"))
            connection.close()

    def _ended(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        transport = connection.transport
        if transport is not None and transport.get_write_buffer_size():  # a server that did not want to hear all of it
            connection.close()
        else:
            connection.release()


class _Line:
    """Requests to one URL that differ in their bodies alone."""

    __slots__ = ("_connector", "_head", "_request", "_timeout")

    def __init__(self, session: aiohttp.ClientSession, request: aiohttp.ClientRequest, head: bytes) -> None:
        connector = session.connector
        assert connector is not None
        self._connector = connector
        self._timeout = session.timeout
        self._request = request
        """Never sent: it tells the pool where to connect to."""
        self._head = head
        """All that goes before the length of the body."""

    async def post(self, body: bytes) -> DirectReply:
        try:
            connection = await self._connector.connect(self._request, traces=[], timeout=self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self._request.url}") from error
        protocol = connection.protocol
        try:
            if protocol is None or (transport := protocol.transport) is None:
                raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
            protocol.set_response_params(read_until_eof=True)
            transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:  # 101 ends what HTTP can say here
                message, content = await protocol.read()
        except BaseException as error:
            if connection.transport is not None:
                connection.transport.abort()  # not close(), which over TLS waits for the peer
            connection.close()
            if isinstance(error, HttpProcessingError):
                raise aiohttp.ClientResponseError(
                    self._request.request_info, (), status=error.code, message=error.message, headers=error.headers
                ) from error
            raise
        return DirectReply(connection, message.code, message.headers, content)


def _line(session: aiohttp.ClientSession, url: URL) -> _Line | None:
    """None for what the session should send. Raises ValueError for a header that HTTP does not allow."""
    if url.raw_user is not None or url.raw_password is not None:
        return None
    try:
        request = aiohttp.ClientRequest("POST", url, headers=session.headers, data=b"{}", loop=asyncio.get_running_loop(), session=session)
        inspect.signature(aiohttp.BaseConnector.connect).bind(session.connector, request, traces=[], timeout=session.timeout)
        inspect.signature(ResponseHandler.set_response_params).bind(None, read_until_eof=True)
    except (AttributeError, TypeError):
        return None
    lines = [f"POST {request.url.raw_path_qs} HTTP/1.1"]
    for name, value in request.headers.items():
        if _NOT_IN_A_HEADER.search(name + value):
            raise ValueError(f"the header {name!r} has a control character in it")
        if name.lower() != "content-length":
            lines.append(f"{name}: {value}")
    return _Line(session, request, "\r\n".join([*lines, "Content-Length: "]).encode())


def _has_come(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the system holds something of the peer, its end too, that the event loop has not read yet."""
    peer = transport.get_extra_info("socket") if transport is not None else None
    if peer is None or (descriptor := peer.fileno()) < 0:
        return True
    if not hasattr(select, "poll"):  # Windows, where select() knows no highest descriptor
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _is_aiohttps_own(function: object) -> bool:
    return type(function) is FunctionType and function.__code__.co_filename == aiohttp_client.__file__


_POST, _REQUEST = aiohttp.ClientSession.post, aiohttp.ClientSession._request  # pyright: ignore[reportPrivateUsage]
_CODE = _REQUEST.__code__ if _is_aiohttps_own(_POST) and _is_aiohttps_own(_REQUEST) else None


def _is_unwatched() -> bool:
    """Whether a request through aiohttp's session would meet aiohttp alone."""
    session = aiohttp.ClientSession
    if session.post is not _POST or session._request is not _REQUEST:  # pyright: ignore[reportPrivateUsage]
        return False
    return _REQUEST.__code__ is _CODE  # some tools leave the function where it is, and give it other code


async def _keep(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Owns the session for its event loop.

    The loop closes its generators when it shuts down, and when nobody refers to them any more: so a client that was
    never closed leaves no connection, and no warning, behind.
    """
    try:
        yield
    finally:
        await session.close()
