"""How a scripted step is said on each vendor's wire.

A step is a row of chat-completions chunks (``interlock.testing.script``). A *wire* turns them into its own events, one
chunk at a time, and into its own whole reply; the same script then plays over every wire. Frames that are bytes, and
dictionaries that are no chunk of chat completions, are sent as they are: that is how a test says what only one vendor says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from .script import assemble

__all__ = ["ChatWire", "EventWriter", "Wire", "is_chunk", "paths", "sse", "wire_of"]

# What a path ends with, and who answers there: a module of this package, and its class. Loaded when first asked for.
_WIRES: tuple[tuple[str, str, str], ...] = (
    ("/chat/completions", ".wire_render", "ChatWire"),
    ("/messages", ".wire_anthropic", "AnthropicWire"),
    (":generateContent", ".wire_google", "GoogleWire"),
    (":streamGenerateContent", ".wire_google", "GoogleWire"),
    ("/responses", ".wire_responses", "ResponsesWire"),
)


class EventWriter(Protocol):
    """Says one streamed reply."""

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """What one frame is on this wire; ``b""`` if it says nothing yet."""
        ...

    def end(self, ends: str) -> bytes:
        """What is still to be said before the reply ends with ``ends``: ``done``, ``eof`` or ``cut``.

        A wire whose last event says why the reply ended and what it cost says that here, if the frames had a finish reason or
        the step is ``done``; otherwise it is missing, as ``[DONE]`` is.
        """
        ...


class Wire(Protocol):
    """One vendor's wire. Made anew for each request, from its path and body."""

    def __init__(self, path: str, body: dict[str, Any]) -> None: ...

    @property
    def streamed(self) -> bool:
        """Whether the request asks for a stream."""
        ...

    def writer(self) -> EventWriter:
        """For a streamed reply."""
        ...

    def whole(self, frames: Sequence[dict[str, Any]], ends: str) -> Any:
        """The plain reply that says the same as these frames, which end with ``ends``: anything JSON-able."""
        ...

    def failure(self, status: int, body: Any) -> Any:
        """The body of an HTTP error in this vendor's form. body: in OpenAI's form (``{"error": {...}}``), or the test's own."""
        ...


def wire_of(path: str, body: dict[str, Any]) -> Wire | None:
    """The wire that answers a request to ``path``, without its query; None if there is none."""
    for suffix, module, name in _WIRES:
        if path.endswith(suffix):
            made: Wire = getattr(import_module(module, __package__), name)(path, body)
            return made
    return None


def paths() -> str:
    """What this server answers, for whoever asks for anything else."""
    return ", ".join(suffix for suffix, _, _ in _WIRES)


def is_chunk(frame: Mapping[str, Any]) -> bool:
    """Whether a frame is one of chat completions, to be said in the words of the wire, and not one of the wire's own."""
    return "choices" in frame or (frame.keys() <= {"error", "usage", "x_groq"} and bool(frame))


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if event is None else b"event: %b\n" % event.encode()
    return b"%bdata: %b\n\n" % (head, json.dumps(data).encode())


class ChatWire:
    """Chat completions: frames are said as they are."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self._body = body

    @property
    def streamed(self) -> bool:
        """As the body asks."""
        return bool(self._body.get("stream"))

    def writer(self) -> ChatWire:
        """This object: nothing is kept between chunks."""
        return self

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """The chunk itself."""
        return sse(chunk)

    def end(self, ends: str) -> bytes:
        """``[DONE]``."""
        return b"data: [DONE]\n\n" if ends == "done" else b""

    def whole(self, frames: Sequence[dict[str, Any]], ends: str) -> Any:
        """One completion with one choice."""
        return assemble(frames)

    def failure(self, status: int, body: Any) -> Any:
        """OpenAI's form is this wire's."""
        return body
