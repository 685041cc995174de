"""One attempt of a model step: through its layers to the provider, shown as it streams, and back to one record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

from msgspec import structs

from ..errors import Fatal, JournalError, ProtocolError, ProviderError, UsageError
from ..events import ModelFinished, RecoveryStarted, StreamRestarted, TextDelta
from ..extensions.onion import OwnedStreams
from ..machine import CallModel, EndRun, bound_of, decide, judge
from ..messages import Message, StopReason, Usage, reason_of
from ..messages.validity import is_valid, repair
from ..model import ModelEvent, ModelRequest, ModelResponse, is_well_formed
from ..records import ModelStepEnded, ModelStepFailed, ModelStepStarted, Outcome, Verdict
from .returned import dismissed_of, received_of

if TYPE_CHECKING:
    from .buffer import EventBuffer
    from .filtered import Filtered
    from .run import Run

logger = logging.getLogger("interlock.driver")

# Characters of an error's text that are recorded: a provider may answer with a whole page.
MESSAGE_MAX = 2000


_GOES_ON = (StopReason.LENGTH, StopReason.PAUSE)
"""What follows is joined to this answer: what a filter holds back of its end is held on to."""


class RequestsSpent(Exception):
    """A layer asked for one more request than the run may make."""


class ModelStep:
    """One entry into the onion of the model boundary. A layer may go through it to the provider more than once."""

    __slots__ = (
        "_delay_s",
        "_filtered",
        "_offered",
        "_over_limit",
        "_received",
        "_request",
        "_run",
        "_sent",
        "_shown",
        "_spent",
        "_streams",
        "_text_shown",
        "entered",
    )

    def __init__(self, run: Run, action: CallModel, request: ModelRequest) -> None:
        self._run = run
        self._delay_s = action.delay_s
        self._request = request
        self._offered: frozenset[str] | None = None
        self._sent = 0
        self._shown = False
        self._text_shown = False
        self._spent: Usage | None = None
        self._received: ModelResponse | None = None
        self._streams = OwnedStreams()
        self._over_limit = False
        self._filtered: Filtered | None = None
        if run.parts.filters and run.buffer is not None:
            from .filtered import filtered_of  # most agents filter nothing, and need not load how it is done

            self._filtered = filtered_of(run)
        self.entered = False

    async def main(self) -> None:
        """The body of the step's own task. Never raises."""
        run = self._run
        self.entered = True
        try:
            if run.interrupted:
                raise asyncio.CancelledError
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await run.session.log.durable()
            self._ended(await self._stream())
        except (JournalError, ProtocolError) as error:
            run.fail(error)
        except BaseException as error:
            try:
                self._failed(error)
            except BaseException as fault:
                run.fail(fault)
        finally:
            run.finished()

    async def _stream(self) -> ModelResponse:
        run, streams = self._run, self._streams
        try:
            if run.model_layers:
                handler = streams.through(run.model_layers, lambda request: streams.own(self._send(request)))
                stream = handler(self._request)
            else:  # nothing stands between: the provider's own stream, without a frame per chunk
                stream = streams.own(run.parts.model.stream(self._request))
            response = await self._show(stream)
        finally:
            await streams.aclose()
        if response is None:
            raise ProviderError("the stream ended without a response", retryable=True, kind="cut")
        if not is_well_formed(response):
            raise UsageError(
                f"the model, or a layer around it, gave a ModelResponse whose fields are not what they declare: {response!r:.300}"
            )
        if run.buffer is not None and response.message.content and not self._text_shown:
            said = response.message.content
            run.emit(
                TextDelta(said if self._filtered is None else self._filtered.whole(said))
            )  # a reply that was not streamed is shown all the same
            self._shown = True
        return response

    async def _show(self, stream: AsyncIterator[ModelEvent]) -> ModelResponse | None:
        """Pass the deltas on as they come. The response alone is the truth."""
        buffer, response = self._run.buffer, None
        if buffer is None:
            async for event in stream:
                if type(event) is ModelResponse:
                    response = event
            return response
        items, bound = buffer.items, buffer.bound
        append = items.append
        if self._filtered is not None:
            return await self._show_filtered(stream, self._filtered, buffer)
        async for event in stream:
            if type(event) is TextDelta:  # first: isinstance takes a tenth of the time of a chunk
                if not self._text_shown:
                    self._shown = self._text_shown = True
            elif isinstance(event, ModelResponse):
                response = event
                continue
            else:
                self._shown = True
            append(event)  # as in buffer.put, without a call per chunk
            if buffer.waiting:
                buffer.wake()
            if len(items) >= bound:
                await buffer.room()
        return response

    async def _show_filtered(self, stream: AsyncIterator[ModelEvent], filtered: Filtered, buffer: EventBuffer) -> ModelResponse | None:
        """The same, where extensions take something out of what is shown."""
        response = None
        async for event in stream:
            if isinstance(event, ModelResponse):
                response = event
                continue
            self._text_shown = self._text_shown or isinstance(event, TextDelta)  # or held back, which is not to be shown whole instead
            if (shown := filtered.feed(event)) is not None:
                await self._put(shown, buffer)
        if response is None or response.stop.reason not in _GOES_ON:
            for shown in filtered.rest():
                await self._put(shown, buffer)
        return response

    async def _put(self, event: ModelEvent, buffer: EventBuffer) -> None:
        self._shown = True
        buffer.put(event)  # pyright: ignore[reportArgumentType]  # a response is no delta
        await buffer.room()

    async def _send(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The core of the onion: one request to the provider. A further one is a further attempt, against the same limits."""
        run, streams = self._run, self._streams
        streams.read_by(asyncio.current_task())
        self._check_running()
        if not isinstance(request, ModelRequest):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"call_next takes the ModelRequest, or one made of it with dataclasses.replace, not {type(request).__name__}")
        if self._sent:
            state = run.session.state
            if state.requests >= state.limits.requests:
                self._over_limit = True
                run.stop_step(self)  # a layer that catches the error and tries again would do so for ever
                raise RequestsSpent
            self._withdraw("retry")
            dismissed, self._received = dismissed_of(self._received) if not run.parts.redactors else None, None
            run.session.commit(ModelStepStarted(turn=state.turn, attempt=state.attempt, dismissed=dismissed))
            await run.session.log.durable()
            self._check_running()
        self._sent += 1
        self._offered = frozenset(spec.name for spec in request.tools)
        if request.messages is not self._request.messages:
            request = replace(request, messages=self._valid(request.messages))
        async for event in streams.own(run.parts.model.stream(request), source=True):
            if type(event) is ModelResponse:
                self._received = event
                if event.usage is not None:
                    self._spent = event.usage if self._spent is None else self._spent + event.usage
            yield event

    def _valid(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """A request that a layer has edited, made valid, loudly. What the runtime itself built is valid, and is not looked at again."""
        session, built, messages = self._run.session, self._request.messages, _checked(messages)
        kept = len(built) if messages[: len(built)] == built else 0
        rest, used = messages[kept:], session.transcript.ids if kept else frozenset[str]()
        if is_valid(rest, known_ids=used):
            return messages
        mended, repairs = repair(rest, known_ids=used)
        for said in repairs:
            logger.warning("a layer's request had to be mended: %s", session.said(said))
        return (*messages[:kept], *mended)

    # ---- what came out, as a record ----------------------------------------------------------------

    def _check_running(self) -> None:
        """A step that was given up goes on in the background: it must not act on a later run of the session."""
        if not self._run.is_running(self):
            raise UsageError("call_next: the model step that this belongs to has ended")

    async def close_sources(self) -> None:
        """Close the provider's sockets at once, whatever the layers around them are still doing."""
        await self._streams.close_sources()

    def _ended(self, response: ModelResponse) -> None:
        run = self._run
        if self._over_limit:
            raise RequestsSpent
        if not run.is_running(self):
            return  # given up while it drained
        offered = self._offered if self._offered is not None else frozenset(spec.name for spec in self._request.tools)
        usage = self._spent if run.model_layers and self._sent else response.usage
        state, output = run.session.state, run.parts.output
        message, stop, invalid = response.message, response.stop.reason, ""
        if output is not None:
            message, stop = output.taken(message, stop)
            invalid = "" if message.tool_calls else "\n".join(output.check(state.partial + message.content).problems)
        record = judge(
            state,
            message,
            stop,
            offered=offered,
            known_ids=run.session.transcript.ids,
            stop_raw=response.stop.raw,
            usage=usage,
            invalid=invalid,
            output_tool=output.tool_name if output is not None else "",
        )
        if self._received is not None and self._received is not response and not run.parts.redactors:
            record = structs.replace(record, received=received_of(self._received, response))
        if run.parts.price is not None and usage is not None:
            record = structs.replace(record, cost_usd=run.parts.price(usage))
        bound = bound_of(state.limits, record.code)
        self._shown = self._shown or state.partial != ""
        record = run.session.commit(record)
        if self._filtered is not None and record.verdict is not Verdict.RETRY:
            for event in self._filtered.rest():  # nothing follows: what was held on to is shown now
                run.emit(cast("TextDelta", event))
        run.emit(ModelFinished(message=record.message, verdict=record.verdict.value, usage=usage))
        self._recovery(record, bound)

    def _recovery(self, record: ModelStepEnded, bound: int) -> None:
        """Say what is being recovered from, and withdraw what was shown of it."""
        run = self._run
        if not record.code or record.ending is not None:
            return
        count = run.session.state.streaks.get(record.code, 0)
        run.emit(RecoveryStarted(code=record.code, count=count, bound=bound))
        if record.verdict is Verdict.RETRY and not run.session.state.partial:
            self._withdraw(record.code)

    def _withdraw(self, reason: str) -> None:
        """Take back what is on show. What an earlier part of the same answer said stands, and is shown anew."""
        partial = self._run.session.state.partial
        again: Any = TextDelta(partial) if partial else None
        if self._filtered is not None:
            self._filtered.restart()
            if again is not None:  # its end may be the beginning of what is to be taken out
                again = self._filtered.feed(again)
        if self._shown:
            self._shown = self._text_shown = False
            self._run.emit(StreamRestarted(reason=reason))
            if again is not None:
                self._run.emit(again)

    def _failed(self, error: BaseException) -> None:
        run = self._run
        if not run.is_running(self):
            return  # given up while it drained
        if self._over_limit:
            error = RequestsSpent("a layer asked for more requests than limits.requests allows")
        kind, retryable, retry_after_s, status = _described(error, run.interrupted)
        run.model_error = error
        said = error.usage if isinstance(error, ProviderError) and isinstance(error.usage, Usage) else None
        usage = self._spent + said if self._spent is not None and said is not None else self._spent or said
        record = ModelStepFailed(
            kind=kind, message=reason_of(error), retryable=retryable, retry_after_s=retry_after_s, status=status, usage=usage
        )
        if run.parts.price is not None and usage is not None:
            record = structs.replace(record, cost_usd=run.parts.price(usage))
        record = run.session.commit(record, lambda said: structs.replace(said, message=said.message[:MESSAGE_MAX]))
        self._withdraw(kind)
        if isinstance(error, SystemExit | KeyboardInterrupt | Fatal):
            run.crash(error)
            return
        self._retrying(f"{kind}: {record.message}")

    def _retrying(self, detail: str) -> None:
        """Say so if the machine wants another attempt; if a limit forbids it, say what the limit would hide."""
        run, state = self._run, self._run.session.state
        for action in decide(state):
            if isinstance(action, CallModel):
                bound = state.limits.model_attempts - 1
                run.emit(RecoveryStarted(code="model_failed", count=state.failures, bound=bound, delay_s=action.delay_s, detail=detail))
            elif isinstance(action, EndRun) and action.record.outcome is Outcome.LIMIT:
                logger.warning("the run ends at its limit (%s), and its last request failed: %s", action.record.reason, detail)


def _described(error: BaseException, interrupted: bool) -> tuple[str, bool, float | None, int | None]:
    if isinstance(error, ProviderError):
        return error.kind, error.retryable, error.retry_after_s, error.status
    if isinstance(error, RequestsSpent):
        return "limit", False, None, None
    if isinstance(error, asyncio.CancelledError) and interrupted:
        return "cancelled", False, None, None
    return "layer", False, None, None


def _checked(messages: object) -> tuple[Message, ...]:
    if isinstance(messages, list | tuple) and messages and _MESSAGES.issuperset(map(type, cast("tuple[object, ...]", messages))):
        return cast("tuple[Message, ...]", tuple(messages))  # pyright: ignore[reportUnknownArgumentType]
    raise UsageError("call_next: request.messages must be a tuple of messages, at least one")


# 25 us for 800 messages; isinstance takes 190.
_MESSAGES = frozenset(get_args(Message))
