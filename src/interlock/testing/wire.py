"""A scripted model on a real socket, for tests and demonstrations: one script, said on the wire of whoever asks.

::

    async with WireServer([calls(call("c1", "add", {"left": 1, "right": 2})), text("3")]) as server:
        model = OpenAIChatModel("scripted", base_url=server.base_url, api_key="k")

The script is strict: leaving the block raises AssertionError for a request that was not expected, an expectation
that failed, or a step that was never asked for. Nothing here sleeps: gates are events, and so is a disconnect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

from ..errors import UsageError
from .script import Handler, Script, Step
from .wire_render import EventWriter, Wire, paths, wire_of

__all__ = ["WireRequest", "WireServer"]

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class WireRequest:
    """One request as it came. Times are those of the event loop's clock.

    connection: the number of the connection it came on; equal numbers mean that the connection was used again.
    disconnected: set when the client closed the connection before the reply was complete. finished: set when it was.
    """

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]
    at: float
    connection: int
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    disconnected_at: float | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class WireServer:
    """Serves a script on 127.0.0.1, streamed or plain, as each request asks. Use it with ``async with``.

    steps: a row of steps (see ``interlock.testing.script``), or a function from a request's body to a step.
    """

    def __init__(self, steps: Iterable[Step] | Handler) -> None:
        self._hub = _Hub(Script(steps))
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT/v1``"""
        if self._server is None:
            raise UsageError("the server is not running: use it with 'async with'")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    @property
    def requests(self) -> list[WireRequest]:
        """Every request so far, in order of arrival."""
        return self._hub.requests

    @property
    def connections(self) -> int:
        """How many connections were made."""
        return self._hub.made

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._hub.connections)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self._hub), "127.0.0.1", 0, backlog=1024)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()
        if error is None:
            self.assert_done()

    async def aclose(self) -> None:
        """Stop serving: every connection is torn. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = [connection.task for connection in self._hub.connections if connection.task is not None]
        for connection in list(self._hub.connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    def assert_done(self) -> None:
        """Raise AssertionError unless every step was asked for and nothing else was."""
        self._hub.script.assert_done()


class _Hub:
    """What the connections of one server share."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[WireRequest] = []
        self.connections: set[_Connection] = set()
        self.made = 0


async def _play(step: Step, wire: Wire, reply: _Connection) -> None:
    if step.status != 200:
        for frame in step.frames:
            if isinstance(frame, asyncio.Event):
                await frame.wait()
        body = step.body if isinstance(step.body, bytes) else json.dumps(wire.failure(step.status, step.body)).encode()
        reply.send_whole(step.status, body, step.headers)
    elif wire.streamed:
        await _play_stream(step, wire.writer(), reply)
    else:
        await _play_whole(step, wire, reply)


async def _play_stream(step: Step, writer: EventWriter, reply: _Connection) -> None:
    for frame in step.frames:
        if isinstance(frame, asyncio.Event):
            await frame.wait()
        else:
            reply.send_chunk(frame if isinstance(frame, bytes) else writer.chunk(frame))
            await reply.drained()
    if last := writer.end(step.ends):
        reply.send_chunk(last)
    if step.ends == "cut":
        reply.tear()
    else:
        reply.send_end()


async def _play_whole(step: Step, wire: Wire, reply: _Connection) -> None:
    chunks: list[dict[str, Any]] = []
    sent_as_is = b""
    for frame in step.frames:
        if isinstance(frame, asyncio.Event):
            await frame.wait()
        elif isinstance(frame, bytes):
            sent_as_is += frame
        else:
            chunks.append(frame)
    body = sent_as_is or json.dumps(wire.whole(chunks, step.ends)).encode()
    if step.ends == "cut":
        reply.send_head(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        reply.write(body[: len(body) // 2])
        reply.tear()
    else:
        reply.send_whole(200, body, {})


class _Connection(asyncio.Protocol):
    """One connection: requests in, one at a time; a reply that the client abandons is cancelled."""

    def __init__(self, hub: _Hub) -> None:
        self._hub = hub
        self._buffer = bytearray()
        self._request: WireRequest | None = None
        self._head_sent = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._hub.connections.add(self)
        self._hub.made += 1
        self._number = self._hub.made

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.connections.discard(self)
        if self._request is not None and not self._request.finished.is_set():
            self._request.disconnected_at = asyncio.get_running_loop().time()
            self._request.disconnected.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _begin(self) -> None:
        """Start to answer the next request, if it is whole and the one before is answered."""
        if self.task is not None:
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        match = _CONTENT_LENGTH.search(head)
        length = int(match[1]) if match else 0
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        # Not loop.create_task: a factory that starts tasks eagerly could end the answer before it is known here.
        self.task = asyncio.Task(self._answer(head, body), loop=asyncio.get_running_loop())

    async def _answer(self, head: bytes, body: bytes) -> None:
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (entry.partition(":") for entry in fields)}
        path = line.split(" ")[1]
        self._head_sent = False
        try:
            parsed: dict[str, Any] = json.loads(body) if body else {}
            now = asyncio.get_running_loop().time()
            self._request = WireRequest(path=path, headers=headers, body=parsed, at=now, connection=self._number)
            where = path.partition("?")[0]
            if (wire := wire_of(where, parsed)) is not None:
                self._hub.requests.append(self._request)
                await _play(await self._hub.script.step(parsed), wire, self)
            elif where.endswith("/models"):
                self.send_whole(200, b'{"object": "list", "data": [{"id": "scripted", "object": "model"}]}', {})
            else:
                said = {"error": {"message": f"this server only has {paths()} and /models"}}
                self.send_whole(404, json.dumps(said).encode(), {})
            self._request.finished.set()
        except Exception as error:  # a request that is no JSON, a frame that is none: seen when the script is judged
            self._hub.script.fail(f"{type(error).__name__}: {error}")
            self.abort()
        finally:
            self.task = None
        self._begin()

    # What a step may do with its connection.

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Let the client read, and wait while it does not."""
        await asyncio.sleep(0)
        await self._writable.wait()

    def send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._head_sent = True
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.write(f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode("latin-1"))

    def send_whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_head(status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers})
        self.write(body)

    def send_chunk(self, data: bytes) -> None:
        if not self._head_sent:
            self.send_head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        if data:
            self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def send_end(self) -> None:
        self.send_chunk(b"")
        self.write(b"0\r\n\r\n")

    def tear(self) -> None:
        """Close the connection in the middle of the reply, after what was sent has left, so that the client has read it."""
        if self._request is not None:
            self._request.finished.set()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
