"""Checks that a Model reads its wire as the runtime needs it, whoever wrote it: a Model factory and a transcript in, a verdict out.

::

    transcript = transcript_of(calls(call("c1", "add", {"left": 1})), path="/v1/chat/completions")
    verdict = await check_model(lambda base_url, stream: MyModel(base_url, stream=stream), transcript)
    verdict.require()

A transcript is what a provider sent, byte for byte: recorded, or said by a script (``transcript_of``). It is served on a loopback
socket, whatever the path that the model asks for.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import ProviderError, UsageError
from ..messages import UserMessage
from ..messages.arguments import MalformedArguments, parse_arguments
from ..model import Model, ModelRequest, ModelResponse, ReasoningDelta, StopReason, TextDelta, ToolCallDelta, is_well_formed
from .conformance_server import Reply, ReplyServer
from .script import Step
from .wire_render import wire_of

__all__ = ["Expected", "Transcript", "Verdict", "check_model", "transcript_of"]

Factory = Callable[[str, bool], Model]
"""Makes the model under test, from a base URL and whether it should ask for a stream. It is closed afterwards."""

# A play takes milliseconds; one that does not end is a fault of its own.
_PLAY_S = 10.0

# G08: a provider's socket is closed within 250 ms of its consumer's leaving.
_CLOSED_S = 0.25

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a reply amounts to. calls: names and arguments, in order. stop and tokens (in, out): None if they do not matter."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    stop: StopReason | None = None
    tokens: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """One reply of a provider. stream: the body of the streamed reply. plain: of the one that is not; None if there is none.
    expected: an independent reading of it; without one the model is compared only with itself."""

    name: str
    stream: bytes
    plain: bytes | None = None
    expected: Expected | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """name: the transcript's. plays: how many replies were read. failures: what was wrong, in words."""

    name: str
    plays: int
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.failures

    def require(self) -> None:
        """Raise AssertionError with the first failures unless ``passed``."""
        if self.failures:
            shown = "\n".join(self.failures[:10])
            raise AssertionError(f"{self.name}: {len(self.failures)} of {self.plays} plays went wrong\n{shown}")


def transcript_of(
    step: Step, *, path: str, plain_path: str | None = None, name: str = "scripted", expected: Expected | None = None
) -> Transcript:
    """A script's step as one vendor's wire says it.

    path: where requests of that wire go, without a query: ``/v1/chat/completions``, ``/v1/responses``, ``/v1/messages``.
    plain_path: where those go that want no stream, if that is another place: ``...:streamGenerateContent`` and ``...:generateContent``.
    Raises UsageError for a path that no wire has, and for a step with gates.
    """
    streamed, plain = wire_of(path, {"stream": True}), wire_of(plain_path or path, {})
    if streamed is None or plain is None:
        raise UsageError(f"no wire answers {path} and {plain_path or path}")
    frames = [frame for frame in step.frames if isinstance(frame, dict)]
    if len(frames) != len(step.frames):
        raise UsageError("a transcript is made of chunks: the step has gates or raw bytes")
    writer = streamed.writer()
    said = b"".join([*(writer.chunk(frame) for frame in frames), writer.end(step.ends)])
    return Transcript(name=name, stream=said, plain=json.dumps(plain.whole(frames, step.ends)).encode(), expected=expected)


async def check_model(factory: Factory, transcript: Transcript, *, every: int = 1, tokens: bool = True) -> Verdict:
    """Read the transcript in every way in which a network can deliver it.

    - streamed, and plain; the two must say the same (tokens: of the tokens too)
    - in two blocks, parted at every byte (or each ``every``-th), and byte by byte
    - cut after every event and in its middle, by a torn connection and by a clean end: that is the whole reply, if all of it was said by
      then, or a retryable ProviderError, and never something between
    - left after the first delta: the connection is closed within 250 ms

    In each play the deltas say what the response says, which comes once, and last.

    Takes about a millisecond for each byte. Raises nothing for what the model does wrong: that is in the verdict.
    """
    check = _Check(transcript)
    async with _playing(factory, stream=True) as (server, model):
        whole = await check.read(server, model, Reply([transcript.stream]), "streamed")
        if whole is not None:
            check.as_expected(whole, "streamed")
            await check.splits(server, model, whole, every)
            await check.cuts(server, model, whole)
            await check.leaving(server, model)
    if transcript.plain is not None:
        async with _playing(factory, stream=False) as (server, model):
            body = Reply([transcript.plain], content_type="application/json")
            plain = await check.read(server, model, body, "plain")
            if plain is not None and whole is not None:
                check.as_expected(plain, "plain")
                check.same(plain, whole, "plain and streamed", tokens=tokens)
    return Verdict(name=transcript.name, plays=check.plays, failures=tuple(check.failures))


@asynccontextmanager
async def _playing(factory: Factory, *, stream: bool) -> AsyncGenerator[tuple[ReplyServer, Model], None]:
    async with ReplyServer() as server:
        model = factory(server.base_url, stream)
        try:
            yield server, model
        finally:
            await model.aclose()


@dataclass
class _Check:
    transcript: Transcript
    plays: int = 0
    failures: list[str] = field(default_factory=list[str])

    def fail(self, play: str, why: str) -> None:
        self.failures.append(f"{play}: {why}")

    async def read(self, server: ReplyServer, model: Model, reply: Reply, play: str) -> ModelResponse | None:
        """The response to a reply that is whole; None after a failure."""
        result = await self._play(server, model, reply, play)
        if isinstance(result, ModelResponse):
            return result
        if result is not None:
            self.fail(play, f"ProviderError {result.kind}: {result}")
        return None

    async def _play(self, server: ReplyServer, model: Model, reply: Reply, play: str) -> ModelResponse | ProviderError | None:
        self.plays += 1
        server.reply = reply
        events: list[Any] = []
        try:
            async with asyncio.timeout(_PLAY_S):
                async for event in model.stream(_REQUEST):
                    events.append(event)
        except ProviderError as error:
            if any(isinstance(event, ModelResponse) for event in events):
                self.fail(play, f"an error after the response: {error}")
            return error
        except TimeoutError:
            self.fail(play, f"it did not end within {_PLAY_S:g} s")
            return None
        except Exception as error:  # a model may be anybody's code: whatever it raises is its fault, and is said
            self.fail(play, f"{type(error).__name__}: {error}, which is no ProviderError")
            return None
        return self._judged(events, play)

    def _judged(self, events: list[Any], play: str) -> ModelResponse | None:
        responses = [event for event in events if isinstance(event, ModelResponse)]
        if len(responses) != 1 or events[-1] is not responses[0]:
            self.fail(play, f"{len(responses)} responses among {len(events)} events; there must be one, the last")
            return None
        response = responses[0]
        if not is_well_formed(response):
            self.fail(play, f"the response has fields of wrong types: {response!r}")
            return None
        message = response.message
        for kind, said in ((TextDelta, message.content), (ReasoningDelta, message.reasoning)):
            shown = "".join(event.text for event in events if isinstance(event, kind))
            if (shown and shown != said) or (said and not shown and kind is TextDelta):
                self.fail(play, f"{kind.__name__}: shown was {shown!r}, the message says {said!r}")
        shown_calls: dict[int, str] = {}
        for event in events:
            if isinstance(event, ToolCallDelta):
                shown_calls[event.index] = shown_calls.get(event.index, "") + event.arguments
        made = [call.arguments for call in message.tool_calls]
        if shown_calls and list(shown_calls.values()) != made:
            self.fail(play, f"the deltas of calls said {list(shown_calls.values())}, the message says {made}")
        return response

    def as_expected(self, response: ModelResponse, play: str) -> None:
        """Compare with the independent reading."""
        expected, message = self.transcript.expected, response.message
        if expected is None:
            return
        if message.content != expected.text:
            self.fail(play, f"the text is {message.content!r}, not {expected.text!r}")
        calls = [(call.name, _arguments(call.arguments)) for call in message.tool_calls]
        if calls != list(expected.calls):
            self.fail(play, f"the calls are {calls}, not {list(expected.calls)}")
        if expected.stop is not None and response.stop.reason is not expected.stop:
            self.fail(play, f"it stopped with {response.stop}, not {expected.stop}")
        if expected.tokens is not None:
            usage = response.usage
            counted = None if usage is None else (usage.input_tokens, usage.output_tokens)
            if counted != expected.tokens:
                self.fail(play, f"the tokens are {counted}, not {expected.tokens}")

    def same(self, response: ModelResponse, whole: ModelResponse, play: str, *, tokens: bool) -> None:
        """Whether two readings of one reply say the same. Arguments count as what they say."""
        for what, got, want in (
            ("text", response.message.content, whole.message.content),
            ("reasoning", response.message.reasoning, whole.message.reasoning),
            ("calls", _calls(response), _calls(whole)),
            ("stop", response.stop, whole.stop),
            ("tokens", response.usage if tokens else None, whole.usage if tokens else None),
        ):
            if got != want:
                self.fail(play, f"the {what} differ: {got!r} and {want!r}")

    async def splits(self, server: ReplyServer, model: Model, whole: ModelResponse, every: int) -> None:
        """Two blocks, parted at every byte, and blocks of one byte."""
        stream = self.transcript.stream
        plays = [(f"split at byte {at}", [stream[:at], stream[at:]]) for at in range(1, len(stream), every)]
        plays.append(("byte by byte", [stream[at : at + 1] for at in range(len(stream))]))
        for play, blocks in plays:
            response = await self.read(server, model, Reply(blocks), play)
            if response is not None:
                self.same(response, whole, play, tokens=True)

    async def cuts(self, server: ReplyServer, model: Model, whole: ModelResponse) -> None:
        """Torn and ended at every event's end, and in its middle."""
        stream = self.transcript.stream
        ends = [match.end() for match in _EVENT_END.finditer(stream)]
        places = sorted({0, *ends, *((start + end) // 2 for start, end in zip([0, *ends], ends, strict=False))} - {len(stream)})
        for at in places:
            for torn in (True, False):
                play = f"{'torn' if torn else 'ended'} after byte {at} of {len(stream)}"
                result = await self._play(server, model, Reply([stream[:at]], torn=torn), play)
                if isinstance(result, ModelResponse):
                    self.same(result, whole, f"{play}, which was taken for a reply", tokens=False)
                elif result is not None and not result.retryable:
                    self.fail(play, f"an error that is not retryable: {result}")

    async def leaving(self, server: ReplyServer, model: Model) -> None:
        """The consumer leaves after the first event, while the provider has more to say."""
        self.plays += 1
        play = "left after the first delta"
        stream = self.transcript.stream
        server.reply = Reply([stream[: len(stream) // 2]], waits=True)
        events: Any = model.stream(_REQUEST)
        first = asyncio.ensure_future(anext(events, None))
        await asyncio.wait({first}, timeout=_CLOSED_S)
        if not first.done():  # half of it shows nothing yet: whoever waits leaves
            first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        try:
            await events.aclose()
            async with asyncio.timeout(_CLOSED_S):
                await server.left.wait()
        except TimeoutError:
            self.fail(play, f"the connection was still open after {_CLOSED_S * 1000:.0f} ms")


_REQUEST = ModelRequest(messages=(UserMessage(content="Go."),))


def _calls(response: ModelResponse) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, _arguments(call.arguments)) for call in response.message.tool_calls]


def _arguments(text: str) -> Any:
    try:
        return parse_arguments(text)
    except MalformedArguments:
        return text
