"""A small internet on 127.0.0.1: a DNS server, a web server with and without TLS, and a network that leads every address to it."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import struct
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import trustme

from interlock import Tool
from interlock.toolbox.web import web_tools

Answer = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Zone = Mapping[str, Sequence[Sequence[str]]]
"""name -> the addresses of each answer in turn; the last one is repeated."""

TLS_PORTS = frozenset({443, 8443})
TLS_NAMES = ("example.com", "*.example.com", "xn--bcher-kva.example", "8.8.8.8", "2606:4700::1111")


def page(body: str | bytes, *, type: str = "text/plain; charset=utf-8", status: str = "200 OK", headers: Sequence[str] = ()) -> bytes:
    """A whole response."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", *([f"Content-Type: {type}"] if type else []), *headers]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + data


def moved(location: str, *, status: str = "302 Found") -> bytes:
    return page("", status=status, headers=[f"Location: {location}"])


class World:
    """requests: the head of each request that arrived. dialled: each address and port that was to be connected to."""

    def __init__(self, zone: Zone) -> None:
        self.zone = {name: deque(answers) for name, answers in zone.items()}
        self.pages: dict[str, Answer] = {}
        self.otherwise: Answer = page("hello")
        self.requests: list[str] = []
        self.dialled: list[tuple[str, int]] = []
        self.asked: list[str] = []
        self.open = 0
        self.dns_port = self.plain_port = self.tls_port = 0

    def tools(self, **options: Any) -> tuple[Tool, ...]:
        given = {"resolve": self.resolve, "connect": self.connect, "tls": client_tls(), **options}
        return web_tools(**given)

    async def fetch(self, url: str, *, raw: bool = False, **options: Any) -> str:
        (fetch_url,) = self.tools(**options)
        return await fetch_url(url, raw)

    def connect(self, address: str, port: int) -> tuple[str, int]:
        self.dialled.append((address, port))
        return "127.0.0.1", self.tls_port if port in TLS_PORTS else self.plain_port

    async def resolve(self, host: str) -> Sequence[str]:
        """Ask the DNS server of this world, over a socket, for both kinds of addresses."""
        four, six = await _query(host, 1, self.dns_port), await _query(host, 28, self.dns_port)
        if not four and not six:
            raise OSError("no such host")
        return [*four, *six]

    def answer(self, query: bytes) -> bytes:
        """The DNS server: the next answer of the zone for a question of kind A, and what of the same answer is IPv6 for AAAA."""
        name, end = _name(query, 12)
        (kind,) = struct.unpack_from("!H", query, end)
        answers = self.zone.get(name, deque([()]))
        found = [ipaddress.ip_address(text) for text in answers[0]]
        if kind == 28:  # asked second
            self.asked.append(name)
            if len(answers) > 1:
                answers.popleft()
        records = [one.packed for one in found if (one.version == 6) is (kind == 28)]
        body = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(data)) + data for data in records)
        return query[:2] + struct.pack("!HHHHH", 0x8180, 1, len(records), 0, 0) + query[12 : end + 4] + body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.requests.append(head)
            answer = self.pages.get(head.split(" ")[1], self.otherwise)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except (ConnectionError, ssl.SSLError):
                pass
            self.open -= 1


@asynccontextmanager
async def world(zone: Zone | None = None) -> AsyncGenerator[World]:
    made = World(zone or {})

    class Dns(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.transport.sendto(made.answer(data), addr)

    dns, _ = await asyncio.get_running_loop().create_datagram_endpoint(Dns, local_addr=("127.0.0.1", 0))
    plain = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    secure = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=_server_tls())
    made.dns_port = dns.get_extra_info("sockname")[1]
    made.plain_port, made.tls_port = (server.sockets[0].getsockname()[1] for server in (plain, secure))
    try:
        yield made
    finally:
        dns.close()
        for server in (plain, secure):
            server.close()
        async with asyncio.timeout(5):
            while made.open:
                await asyncio.sleep(0.001)


class _Reply(asyncio.DatagramProtocol):
    def __init__(self, future: asyncio.Future[bytes]) -> None:
        self.future = future

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if not self.future.done():
            self.future.set_result(data)


async def _query(host: str, kind: int, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Reply(future), remote_addr=("127.0.0.1", port))
    labels = b"".join(bytes([len(label)]) + label for label in host.encode().split(b"."))
    try:
        transport.sendto(struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1))
        reply = await future
    finally:
        transport.close()
    _, at = _name(reply, 12)
    at += 4
    found: list[str] = []
    for _ in range(struct.unpack_from("!H", reply, 6)[0]):
        (length,) = struct.unpack_from("!H", reply, at + 10)
        found.append(str(ipaddress.ip_address(reply[at + 12 : at + 12 + length])))
        at += 12 + length
    return found


def _name(data: bytes, at: int) -> tuple[str, int]:
    labels: list[str] = []
    while length := data[at]:
        labels.append(data[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1


@cache
def _authority() -> trustme.CA:
    return trustme.CA()


@cache
def _server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _authority().issue_cert(*TLS_NAMES).configure_cert(context)
    return context


@cache
def client_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    _authority().configure_trust(context)
    return context
