"""A scripted model in memory: the same steps as WireServer's, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec

from ..errors import UsageError
from ..model import ModelEvent, ModelRequest
from ..providers.chat_reply import ChatReply
from ..providers.chat_request import ChatRequestWriter
from ..providers.faults import http_error
from .script import Handler, Script, Step

__all__ = ["ScriptedModel"]

Events = Sequence[ModelEvent | Exception]
"""Model events as they are to be yielded; an exception among them is raised there."""


class ScriptedModel:
    """A Model that plays one step per request.

    steps: a row of steps (``interlock.testing.script``) or of lists of ModelEvents, or a function from a request's
    body, in the chat-completions form, to a step. native_output: it passes for one that can be held to a schema.

    ``requests`` holds every ModelRequest, ``bodies`` the same as the wire would have them. ``open_streams`` counts streams that
    were begun and not closed.

    A request beyond the script raises ProviderError (not retryable) and fails ``assert_done``.
    """

    def __init__(self, steps: Iterable[Step | Events] | Handler, *, name: str = "scripted", native_output: bool = False) -> None:
        self.name = name
        self.native_output = native_output
        self.requests: list[ModelRequest] = []
        self.bodies: list[dict[str, object]] = []
        self.open_streams = 0
        self.closed = False
        self._events: dict[int, Events] = {}
        self._script = Script(steps if callable(steps) else [self._step(step) for step in steps])
        self._writer = ChatRequestWriter(name, stream=True, max_tokens_field="max_tokens")

    def _step(self, step: Step | Events) -> Step:
        if isinstance(step, Step):
            return step
        placeholder = Step()
        self._events[id(placeholder)] = step
        return placeholder

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Play the next step. Raises ProviderError as a real exchange would."""
        self.requests.append(request)
        body = msgspec.json.decode(self._writer.body(request, self))
        self.bodies.append(body)
        step = await self._script.step(body)
        self.open_streams += 1
        try:
            events = self._events.get(id(step))
            if events is not None:
                for event in events:
                    if isinstance(event, Exception):
                        raise event
                    yield event
            else:
                async for event in _play(step):
                    yield event
        finally:
            self.open_streams -= 1

    async def aclose(self) -> None:
        """Idempotent."""
        self.closed = True

    def assert_done(self) -> None:
        """Raise AssertionError unless every step was asked for and nothing else was."""
        self._script.assert_done()


async def _play(step: Step) -> AsyncGenerator[ModelEvent, None]:
    """What an adapter makes of ``step``, by the adapter's own reading."""
    if step.status != 200:
        for frame in step.frames:
            if isinstance(frame, asyncio.Event):
                await frame.wait()
        body = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
        raise http_error(step.status, {name.lower(): value for name, value in step.headers.items()}, body, url="scripted model")
    reply = ChatReply()
    for frame in step.frames:
        if isinstance(frame, asyncio.Event):
            await frame.wait()
        elif isinstance(frame, bytes):
            raise UsageError("ScriptedModel has no wire: bytes in a step need a WireServer")
        else:
            for event in reply.take(json.dumps(frame).encode()):
                yield event
    reply.done = step.ends == "done"
    yield reply.response()
