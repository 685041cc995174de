"""One streamed chunk over a vendor's own wire: a server that says it, a bare loop that reads it, and our adapter.

As a command it is the server: it prints its port, and answers any POST to ``/WIRE/N/...`` with N chunks of text, written at once.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Wire:
    """said: the events of a reply of N pieces of five letters. bare: reads one event's data with a minimal decoder, and returns the
    text in it. model: makes our adapter for a base URL. named: an ``event:`` line with the type comes before the data."""

    said: Callable[[int], list[dict[str, Any]]]
    bare: Callable[[bytes], str]
    path: str
    model: Callable[[str], Any]
    named: bool = False


def _google_said(pieces: int) -> list[dict[str, Any]]:
    """As recorded from the service: the tokens so far are in every chunk, the finish reason in the last."""

    def event(parts: list[dict[str, Any]], number: int, **more: Any) -> dict[str, Any]:
        candidate = {"content": {"parts": parts, "role": "model"}, **more, "index": 0}
        details = [{"modality": "TEXT", "tokenCount": 50}]
        tokens = {"promptTokenCount": 50, "candidatesTokenCount": number, "totalTokenCount": 50 + number, "promptTokensDetails": details}
        return {"candidates": [candidate], "usageMetadata": tokens, "modelVersion": "gemini-3-pro", "responseId": "beHBaJfEMIi-qtsP3769-Q8"}

    return [*(event([{"text": f" tok{i % 10}"}], i) for i in range(pieces)), event([{"text": ""}], pieces, finishReason="STOP")]


class GooglePart(Struct):
    text: str | None = None
    functionCall: Raw = Raw(b"")


class GoogleContent(Struct):
    parts: list[GooglePart] = []


class GoogleCandidate(Struct):
    content: GoogleContent | None = None
    finishReason: str | None = None


class GoogleTokens(Struct):
    promptTokenCount: int | None = None
    candidatesTokenCount: int | None = None


class GoogleChunk(Struct):
    candidates: list[GoogleCandidate] = []
    usageMetadata: GoogleTokens | None = None


_google_decode = msgspec.json.Decoder(GoogleChunk).decode


def _google_bare(data: bytes) -> str:
    for candidate in _google_decode(data).candidates:
        if candidate.content is not None:
            for part in candidate.content.parts:
                return part.text or ""
    return ""


def _google_model(base_url: str) -> Any:
    from interlock.providers.google import GoogleModel

    return GoogleModel("gemini-3-pro", base_url=base_url, api_key="k")


def _responses_said(pieces: int) -> list[dict[str, Any]]:
    """As recorded from the service: each delta with its item, its places, its number and its padding; the whole text at the end."""
    item = {"id": "msg_0fabc13af1ee0049006a691e008ed881a19fb315ceb267e808", "type": "message", "role": "assistant"}
    where = {"content_index": 0, "item_id": item["id"], "output_index": 0}
    deltas = [
        {
            "type": "response.output_text.delta",
            **where,
            "delta": f" tok{i % 10}",
            "logprobs": [],
            "obfuscation": "Ui6T7ZRgUUHBz",
            "sequence_number": i,
        }
        for i in range(pieces)
    ]
    text = "".join(delta["delta"] for delta in deltas)
    whole = {**item, "status": "completed", "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": text}]}
    usage = {"input_tokens": 50, "output_tokens": pieces, "total_tokens": 50 + pieces}
    response = {"id": "resp_1", "object": "response", "status": "completed", "error": None, "output": [whole], "usage": usage}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *deltas,
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": response},
    ]


class ResponsesEvent(Struct):
    type: str = ""
    delta: str | None = None
    output_index: int | None = None


_responses_decode = msgspec.json.Decoder(ResponsesEvent).decode


def _responses_bare(data: bytes) -> str:
    event = _responses_decode(data)
    return event.delta or "" if event.type == "response.output_text.delta" else ""


def _responses_model(base_url: str) -> Any:
    from interlock.providers.openai import OpenAIResponsesModel

    return OpenAIResponsesModel("gpt-5", base_url=base_url, api_key="k")


def _anthropic_said(pieces: int) -> list[dict[str, Any]]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "stop_reason": None}
    deltas = ({"type": "text_delta", "text": f" tok{i % 10}"} for i in range(pieces))
    return [
        {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": {"input_tokens": 50, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": pieces}},
        {"type": "message_stop"},
    ]


class AnthropicDelta(Struct):
    text: str | None = None
    partial_json: str | None = None


class AnthropicEvent(Struct):
    type: str
    index: int = 0
    delta: AnthropicDelta | None = None


_anthropic_decode = msgspec.json.Decoder(AnthropicEvent).decode


def _anthropic_bare(data: bytes) -> str:
    event = _anthropic_decode(data)
    return event.delta.text or "" if event.delta is not None else ""


def _anthropic_model(base_url: str) -> Any:
    from interlock.providers.anthropic import AnthropicModel

    return AnthropicModel("claude", base_url=base_url, api_key="k")


WIRES = {
    "google": Wire(_google_said, _google_bare, "/models/gemini-3-pro:streamGenerateContent?alt=sse", _google_model),
    "responses": Wire(_responses_said, _responses_bare, "/responses", _responses_model),
    "anthropic": Wire(_anthropic_said, _anthropic_bare, "/v1/messages", _anthropic_model, named=True),
}


async def bare(wire: Wire, base_url: str) -> Callable[[], Any]:
    """A run of the bare loop: aiohttp, events split at blank lines, the minimal decoder, the text collected."""
    import aiohttp

    session = aiohttp.ClientSession()
    text, start = wire.bare, b"\ndata: " if wire.named else b"data: "

    async def pieces() -> AsyncIterator[str]:
        async with session.post(base_url + wire.path, data=b'{"contents":[]}') as reply:
            tail = b""
            async for block in reply.content.iter_any():
                *events, tail = (tail + block if tail else block).split(b"\n\n")
                for event in events:
                    if piece := text(event[event.find(start) + len(start) :]):
                        yield piece

    async def run() -> str:
        return "".join([piece async for piece in pieces()])

    run.close = session.close  # type: ignore[attr-defined]
    return run


async def ours(wire: Wire, base_url: str) -> Callable[[], Any]:
    """The same with our adapter: every delta is seen, and the response at the end."""
    from interlock.messages import UserMessage
    from interlock.model import ModelRequest, TextDelta

    model = wire.model(base_url)
    request = ModelRequest(messages=(UserMessage(content="Go."),))

    async def run() -> str:
        shown = [event.text async for event in model.stream(request) if type(event) is TextDelta]
        return "".join(shown)

    run.close = model.aclose  # type: ignore[attr-defined]
    return run


class _Server(asyncio.Protocol):
    """Replies are made once and kept."""

    said: dict[str, bytes] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        match = LENGTH.search(self.buffer[:end]) if end >= 0 else None
        if match is None or len(self.buffer) < end + 4 + int(match[1]):
            return
        _, wire, pieces, *_ = self.buffer.split(b" ", 2)[1].decode().split("/")
        self.buffer.clear()
        key = f"{wire}/{pieces}"
        if key not in self.said:
            events = [
                b"%bdata: %b\n\n"
                % (
                    b"event: %b\n" % event["type"].encode() if WIRES[wire].named else b"",
                    json.dumps(event, separators=(",", ":")).encode(),
                )
                for event in WIRES[wire].said(int(pieces))
            ]
            self.said[key] = HEAD + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
        self.transport.write(self.said[key])


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(600)  # whoever started it ends it earlier


if __name__ == "__main__":
    asyncio.run(serve())
