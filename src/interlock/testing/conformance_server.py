"""A server that answers every POST with the same bytes, in the blocks it is told, and then ends, breaks off or waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

from ..errors import UsageError

__all__ = ["Reply", "ReplyServer"]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

# How many turns of the event loop a block gets before the next one is sent, so that a client of the same loop has read it: one for the
# socket to be seen, one for the data to be received, one for whoever waits for it.
_TURNS = 3


@dataclass(frozen=True)
class Reply:
    """blocks: of the body, each a chunk of HTTP. torn: the connection breaks after them. waits: it stays open, and nothing more comes."""

    blocks: Sequence[bytes]
    content_type: str = "text/event-stream"
    torn: bool = False
    waits: bool = False


class ReplyServer:
    """Use it with ``async with``. reply: what the next request is answered with. left: set when the client of the newest request
    closed before the end."""

    def __init__(self) -> None:
        self.reply = Reply([])
        self.left = asyncio.Event()
        self.latest: _Connection | None = None
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT/v1``"""
        if self._server is None:
            raise UsageError("the server is not running: use it with 'async with'")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            tasks = [connection.task for connection in self.connections if connection.task is not None]
            for connection in list(self.connections):
                connection.transport.abort()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(self, server: ReplyServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self.transport: asyncio.Transport
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self.task is not None and not self.task.done():
            self.task.cancel()
            if self._server.latest is self:
                self._server.left.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        match = _LENGTH.search(self._buffer[:end]) if end >= 0 else None
        if end < 0 or len(self._buffer) < end + 4 + (int(match[1]) if match else 0):
            return
        self._buffer.clear()  # a client that waits for the reply has sent no more than one request
        self._server.latest = self
        self._server.left.clear()
        self.task = asyncio.get_running_loop().create_task(self._answer(self._server.reply))

    async def _answer(self, reply: Reply) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {reply.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(head.encode())
        for block in reply.blocks:
            if block:
                self.transport.write(b"%x\r\n%b\r\n" % (len(block), block))
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
        if reply.waits:
            await asyncio.Event().wait()
        if reply.torn:
            self.transport.close()
        else:
            self.transport.write(b"0\r\n\r\n")
