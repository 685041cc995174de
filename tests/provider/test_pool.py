"""A request goes out the same whether aiohttp's session sends it or one write of our own, and through the session wherever it must."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import FunctionType
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from interlock.errors import ProviderError, UsageError
from interlock.providers import _pool
from interlock.providers._http import HttpClient, Timeouts

from .conftest import Run

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Keeps what each connection sent, head and body, and answers every request with the next of its answers (the last for ever)."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers) or [OK]
        self.connections: list[list[bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.base_url = ""

    @property
    def requests(self) -> list[bytes]:
        return [request for connection in self.connections for request in connection]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[bytes] = []
        self.connections.append(mine)
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                mine.append(head + await reader.readexactly(size))
                writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(server: Server, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server, None]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server.base_url = f"https://localhost:{port}/v1" if tls else f"http://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        listener.close()


@asynccontextmanager
async def client_of(base_url: str, headers: dict[str, str] | None = None, **options: Any) -> AsyncGenerator[HttpClient, None]:
    client = HttpClient(base_url=base_url, headers=headers or {}, timeouts=Timeouts(), **options)
    try:
        yield client
    finally:
        await client.aclose()


async def ask(client: HttpClient, body: bytes = b'{"a":1}', path: str = "/chat") -> bytes:
    exchange = await client.post(client.url(path), body)
    try:
        return await exchange.read_some(1000)
    finally:
        await exchange.finish()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each request went: "session" or "direct"."""
    ways: list[str] = []
    directly = _pool._Line.post

    async def post(self: Any, body: bytes) -> Any:
        ways.append("direct")
        return await directly(self, body)

    def through_the_session(self: Any, *args: Any, **options: Any) -> Any:
        ways.append("session")
        return _pool._POST(self, *args, **options)

    # What post sees of aiohttp stays aiohttp's own, so that being counted is no reason to go another way.
    monkeypatch.setattr(_pool._Line, "post", post)
    monkeypatch.setattr(aiohttp.ClientSession, "post", through_the_session)
    monkeypatch.setattr(_pool, "_is_unwatched", lambda: aiohttp.ClientSession._request is _pool._REQUEST)
    return ways


Check = Callable[[Server], Awaitable[None]]


def against(run: Run, check: Check, *answers: bytes) -> Server:
    server = Server(*answers)

    async def main() -> None:
        async with serving(server):
            await check(server)

    run(main())
    return server


@pytest.mark.parametrize("way", ["direct", "session"])
def test_the_bytes_of_a_request_do_not_depend_on_its_way(run: Run, monkeypatch: pytest.MonkeyPatch, sent: list[str], way: str) -> None:
    if way == "session":
        monkeypatch.setattr(_pool, "_is_unwatched", lambda: False)
    headers = {
        "Content-Type": "application/json",
        "Authorization": "Bearer k",
        "X-Grüße": "schön \t es",
        "user-agent": "mine/1",
        "X-Empty": "",
    }

    async def check(server: Server) -> None:
        async with client_of(server.base_url + "/a%20b?version=1&ä=ö", headers) as client:
            for body in (b"{}", '{"ü":1}'.encode(), b"x" * 300_000):
                assert await ask(client, body) == b"ok"

    server = against(run, check)
    assert sent == [way] * 3
    host = server.base_url.split("/")[2]
    head = (
        f"POST /v1/a%20b/chat?version=1&%C3%A4=%C3%B6 HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        "Authorization: Bearer k\r\nX-Grüße: schön \t es\r\nuser-agent: mine/1\r\nX-Empty: \r\nAccept: */*\r\nAccept-Encoding: "
    ).encode()
    for request, body in zip(server.requests, (b"{}", '{"ü":1}'.encode(), b"x" * 300_000), strict=True):
        assert request.startswith(head)
        assert request.endswith(b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert request.count(b"\r\n") == 11
    assert len(server.connections) == 1


def test_a_request_to_a_model_goes_directly_and_its_connection_is_used_again(run: Run, sent: list[str]) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            for _ in range(3):
                assert await ask(client) == b"ok"

    server = against(run, check)
    assert sent == ["direct"] * 3
    assert [len(connection) for connection in server.connections] == [3]


@pytest.mark.parametrize(
    "headers",
    [{"Content-Encoding": "identity"}, {"content-length": "7"}, {"EXPECT": ""}, {"Transfer-encoding": "identity"}],
    ids=lambda headers: next(iter(headers)),
)
def test_a_header_that_changes_how_a_body_is_sent_needs_the_session(run: Run, sent: list[str], headers: dict[str, str]) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url, headers) as client:
            await ask(client)

    against(run, check)
    assert sent == ["session"]


def test_a_body_too_large_for_one_write_needs_the_session(run: Run, sent: list[str]) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            for size in (_pool._BYTES_BODY_MAX, _pool._BYTES_BODY_MAX + 1):
                assert await ask(client, b"x" * size) == b"ok"

    server = against(run, check)
    assert sent == ["direct", "session"]
    assert [len(request.partition(b"\r\n\r\n")[2]) for request in server.requests] == [_pool._BYTES_BODY_MAX, _pool._BYTES_BODY_MAX + 1]


def test_a_name_and_password_in_the_url_need_the_session(run: Run, sent: list[str]) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url.replace("//", "//me:secret@")) as client:
            await ask(client)

    server = against(run, check)
    assert sent == ["session"]
    assert b"Authorization: Basic bWU6c2VjcmV0\r\n" in server.requests[0]


@pytest.mark.parametrize("header", [{"X-A": "b\r\nX-Evil: 1"}, {"X-A\nX-Evil": "1"}, {"X-A": "\0"}, {"X-A": "\x7f"}, {"X-A": "\ud800"}])
def test_a_header_that_http_does_not_allow_is_refused_and_nothing_is_sent(run: Run, header: dict[str, str]) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url, header) as client:
            for _ in range(2):
                with pytest.raises(
                    UsageError, match=r"is not possible: (ValueError: the header .* has a control character|UnicodeEncodeError)"
                ):
                    await ask(client)

    assert against(run, check).requests == []


def test_who_replaces_or_wraps_the_requests_of_aiohttp_sees_each(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    own_request, own_post = aiohttp.ClientSession._request, aiohttp.ClientSession.post

    async def request(self: Any, method: str, url: Any, **options: Any) -> Any:
        seen.append(f"{method} {url.path}")
        return await own_request(self, method, url, **options)

    def post(self: Any, url: Any, **options: Any) -> Any:
        seen.append("post")
        return own_post(self, url, **options)

    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            await ask(client)
            with monkeypatch.context() as patched:
                patched.setattr(aiohttp.ClientSession, "_request", request)
                await ask(client)
            await ask(client)
            with monkeypatch.context() as patched:
                patched.setattr(aiohttp.ClientSession, "post", post)
                await ask(client)
            await ask(client)

    assert len(against(run, check).requests) == 5
    assert seen == ["POST /v1/chat", "post"]


def test_a_function_that_only_says_that_it_is_aiohttps_is_not_taken_for_it() -> None:
    own = aiohttp.ClientSession._request
    assert _pool._is_aiohttps_own(own)

    async def wrapped(*args: Any, **options: Any) -> Any:
        return await own(*args, **options)

    wrapped.__module__, wrapped.__qualname__, wrapped.__wrapped__ = own.__module__, own.__qualname__, own  # type: ignore[attr-defined]
    assert not _pool._is_aiohttps_own(wrapped)

    class Proxy:
        """As the tools that trace make them: everything of the wrapped function, its code included."""

        __class__ = FunctionType
        __code__ = own.__code__

        def __call__(self) -> None: ...

    assert isinstance(Proxy(), FunctionType)
    assert not _pool._is_aiohttps_own(Proxy())


def test_who_gives_aiohttps_own_function_other_code_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    own = aiohttp.ClientSession._request
    assert _pool._is_unwatched()
    with monkeypatch.context() as patched:
        patched.setattr(own, "__code__", own.__code__.replace(co_firstlineno=1))
        assert not _pool._is_unwatched()
    assert _pool._is_unwatched()


@pytest.mark.parametrize("more", ["trace_configs", "request_class"])
def test_who_gives_the_sessions_of_aiohttp_more_than_they_are_asked_for_sees_each_request(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    seen: list[str] = []
    own = aiohttp.ClientSession.__init__
    trace = aiohttp.TraceConfig()

    async def started(session: Any, context: Any, params: Any) -> None:
        seen.append(str(params.url.path))

    trace.on_request_start.append(started)

    class Request(aiohttp.ClientRequest):
        def __init__(self, method: str, url: URL, **options: Any) -> None:
            seen.append(url.path)
            super().__init__(method, url, **options)

    given: Any = {"trace_configs": [trace], "request_class": Request}[more]

    def with_more(self: Any, **options: Any) -> None:
        own(self, **options, **{more: given})

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", with_more)

    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            await ask(client)
            await ask(client)

    against(run, check)
    assert seen == ["/v1/chat"] * 2


def without_until_eof(self: Any, *, timer: Any = None) -> None:
    raise AssertionError("not what it was asked with")


def of_another_request(method: str) -> None:
    raise AssertionError("not made so")


@pytest.mark.parametrize(
    ("owner", "name", "other"),
    [
        (ResponseHandler, "set_response_params", without_until_eof),
        (aiohttp.BaseConnector, "connect", lambda self, request: None),
        (aiohttp, "ClientRequest", of_another_request),
    ],
    ids=["set_response_params", "connect", "ClientRequest"],
)
def test_an_aiohttp_that_lacks_the_words_is_asked_through_its_session(
    run: Run, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, other: Any
) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            url = URL("http://127.0.0.1/chat")
            assert _pool._line(session, url) is not None
            monkeypatch.setattr(owner, name, other)
            assert _pool._line(session, url) is None

    run(main())


@pytest.mark.parametrize("way", ["direct", "session"])
def test_word_of_a_reply_to_come_is_no_reply(run: Run, monkeypatch: pytest.MonkeyPatch, sent: list[str], way: str) -> None:
    if way == "session":
        monkeypatch.setattr(_pool, "_is_unwatched", lambda: False)

    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            assert await ask(client) == b"ok"
            assert await ask(client) == b"ok"

    early = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    server = against(run, check, early + OK)
    assert sent == [way] * 2
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray",
    ],
    ids=["said so", "of HTTP/1.0", "more than was asked for"],
)
def test_a_connection_that_cannot_be_used_again_is_not(run: Run, answer: bytes) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            assert await ask(client) == b"ok"
            assert await ask(client) == b"ok"

    server = against(run, check, answer, OK)
    assert [len(connection) for connection in server.connections] == [1, 1]


@pytest.mark.parametrize("turns", [0, 5], ids=["not read yet", "read"])
@pytest.mark.parametrize("way", ["direct", "session"])
@pytest.mark.parametrize(
    "stray",
    [
        OK.replace(b"ok", b"no"),
        OK[:-1],
        b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=["a reply", "a part of one", "a goodbye", "word of one to come"],
)
def test_what_a_server_says_between_two_requests_is_the_reply_to_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, sent: list[str], stray: bytes, way: str, turns: int
) -> None:
    if way == "session":
        monkeypatch.setattr(_pool, "_is_unwatched", lambda: False)

    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            assert await ask(client) == b"ok"
            server.writers[0].write(stray)
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await ask(client) == b"ok"
            assert await ask(client) == b"ok"

    server = against(run, check)
    assert sent == [way] * 3
    assert [len(connection) for connection in server.connections] == [1, 2]


@pytest.mark.parametrize("way", ["direct", "session"])
def test_a_connection_whose_end_was_not_seen_yet_costs_no_request(run: Run, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A server ends idle connections, and an event loop that is busy sees it late."""
    if way == "session":
        monkeypatch.setattr(_pool, "_is_unwatched", lambda: False)

    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            await asyncio.gather(*(ask(client) for _ in range(3)))
            for writer in server.writers:
                with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as peer:
                    peer.shutdown(socket.SHUT_WR)
            assert await ask(client) == b"ok"

    assert [len(connection) for connection in against(run, check).connections] == [1, 1, 1, 1]


def test_a_body_without_a_length_goes_to_the_end_of_its_connection(run: Run) -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhow long?")
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(closing, "127.0.0.1", 0)
        async with listener, client_of(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}") as client:
            assert await ask(client, b"{}") == b"how long?"

    run(main())


def test_a_cookie_is_not_sent_back(run: Run) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            await ask(client)
            await ask(client)

    server = against(run, check, OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b\r\n\r\n"))
    assert b"ookie" not in server.requests[1]


def test_a_server_that_did_not_want_the_whole_request_gets_no_other_on_that_connection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What of the first was not sent yet would be read as the beginning of the second."""
    connections: list[asyncio.StreamWriter] = []
    made = ResponseHandler.connection_made

    def with_a_small_buffer(self: Any, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(ResponseHandler, "connection_made", with_a_small_buffer)

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        listener = await asyncio.start_server(hasty, "127.0.0.1", 0, limit=1024)
        listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with client_of(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}") as client:
            for _ in range(2):
                with pytest.raises(ProviderError):
                    await ask(client, b"x" * _pool._BYTES_BODY_MAX)
        listener.close()
        for writer in connections:
            writer.close()
        assert len(connections) == 2

    run(main())


def test_over_tls_too_a_request_is_one_write_and_a_reply_that_is_left_closes_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    authority = trustme.CA()
    of_server, of_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(of_server)
    authority.configure_trust(of_client)
    gone = asyncio.Event()

    class Endless(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self.connections) < 1:
                await super().serve(reader, writer)
                return
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
            try:
                await reader.read()
                await reader.read()
            except ConnectionError:
                pass
            gone.set()
            writer.close()

    async def main() -> None:
        async with serving(
            Endless(OK, OK.replace(b"ok", b"no").replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")), tls=of_server
        ) as server:
            async with client_of(server.base_url) as client:
                with pytest.raises(ProviderError, match="cannot connect"):
                    await ask(client)
            monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", of_client)
            server.connections.clear()
            async with client_of(server.base_url) as client:
                assert await ask(client) == b"ok"
                assert await ask(client) == b"no"
                exchange = await client.post(client.url("/chat"), b"{}")
                assert await exchange.read(heard=False) == b"ok"
                exchange.close()
                exchange.close()
                await gone.wait()
        assert [len(connection) for connection in server.connections] == [2]

    run(main())
    assert sent == ["direct"] * 4


def test_who_waits_for_a_reply_that_another_closes_is_told(run: Run) -> None:
    async def check(server: Server) -> None:
        async with client_of(server.base_url) as client:
            exchange = await client.post(client.url("/chat"), b"{}")
            waiting = asyncio.ensure_future(exchange.read(heard=False))
            await asyncio.sleep(0)
            exchange.close()
            with pytest.raises(ProviderError, match="broke"):
                await waiting

    against(run, check, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
