"""One tool call: through its layers to the door, the only place where a tool runs, and back to one record."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..errors import AlreadyDelegated, Effect, Fatal, JournalError, ProtocolError, ToolFailure, ToolTimeout, UsageError
from ..events import ToolFinished, ToolSuspended
from ..extensions.base import Stop, Suspended, ToolInvocation
from ..extensions.onion import Chain
from ..machine import NESTED_QUESTION, Call, failed_message
from ..messages import ToolCall, ToolMessage, clean, reason_of, text_of
from ..records import Ending, HandlerStarted, Outcome, Scope, ToolLateResult, ToolStepEnded, ToolStepSuspended
from ..tools import Bound, InvalidArguments, Tool
from ..tools.context import current_call
from ..tools.result import ResultNotSerializable, cap, to_content
from ..tools.workers import PoolFull, Slot
from .identity import identity_of
from .late import record_late
from .payload import capped
from .returned import Gave, with_returned

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger("interlock.driver")

current_step: ContextVar[ToolStep | None] = ContextVar("interlock_tool_step", default=None)
"""The call that the present task, or worker thread, is part of."""


class HandlerExit(Fatal):
    """A handler raised SystemExit or KeyboardInterrupt inside a task of a layer's own, where asyncio would end the loop."""


class ToolStep:
    """One entry of one call into the onion. ``effect`` is what is known of the outside at any moment."""

    __slots__ = (
        "_chain",
        "_gave",
        "_ran",
        "_tool",
        "asked",
        "call",
        "closed",
        "depth",
        "effect",
        "entered",
        "exit",
        "identity",
        "inherited",
        "key",
        "made",
        "nested",
        "run",
        "starts",
    )

    def __init__(self, run: Run, call: Call, tool: Tool, *, depth: int = 0, identity: str = "") -> None:
        self.run = run
        self.key = call.key
        self.call: ToolCall = call.call
        self.asked = run.session.real(call)
        """The call as it was when it entered: with its real arguments, and with what a person has said of it."""
        self.identity = identity or identity_of(call.key, self.asked.edited)
        """What the idempotency key is made of."""
        self.starts = call.starts
        self.depth = depth
        self.effect: Effect = "unknown" if call.starts else "none"
        self.closed = False
        self.entered = False
        self.exit: BaseException | None = None
        self.nested: set[asyncio.Task[Any] | None] = set()
        """The tasks in which calls that this one made are running."""
        self.made: dict[str, int] = {}
        """How often this entry has made each of its calls, by tool and arguments."""
        self.inherited: tuple[BaseException, ...] = ()
        """What calls that this one made have raised: what they say of their effect is not what this one did."""
        self._gave: Gave | None = None
        self._ran = False
        self._tool = tool
        invocation = ToolInvocation(self.asked.call, key=call.key, tool=tool, edited=self.asked.edited)
        self._chain = Chain(invocation, drain_s=run.config.limits.drain_s, said=run.session.said)

    @property
    def handling(self) -> bool:
        """Whether its handler runs now."""
        return self._ran and self._gave is None

    async def main(self) -> None:
        """The body of the call's own task: enter the onion, record what came out. Never raises."""
        run = self.run
        self.entered = True
        try:
            if run.interrupted:  # cancelled before it was entered
                self._chain.decided_by = "runtime"
                self._record(failed_message(self.call, "cancelled before it started", self.effect), "cancelled", unentered=True)
                return
            _, error = await self.enter()
            if isinstance(error, SystemExit | KeyboardInterrupt | Fatal):
                run.crash(error)
        except BaseException as fault:
            run.fail(fault)
        finally:
            run.finished()

    async def enter(self) -> tuple[Any, BaseException | None]:
        """Go through the onion and settle the call. Returns the raw value, or what was raised, once it is recorded.

        Raises only what makes recording impossible: JournalError, ProtocolError.
        """
        call_token, step_token = current_call.set(self.call.id), current_step.set(self)
        chain = self._chain
        chain.task = asyncio.current_task(self.run.loop)
        value: Any = None
        error: BaseException | None = None
        try:
            value = await chain.enter(self.run.tool_layers, self._door)
        except BaseException as raised:
            error = raised
        finally:
            self.closed = True
            current_call.reset(call_token)
            current_step.reset(step_token)
        if self.nested:
            try:
                await self._end_nested()
            except asyncio.CancelledError as raised:
                error = error or raised
        if isinstance(chain.latched, Suspended) and self.depth:
            value, error = None, UsageError(NESTED_QUESTION.format(self.call.name))
        elif chain.latched is not None:
            value, error = chain.latched, None
        elif isinstance(value, Suspended):
            value, error = None, UsageError("a handler cannot return Suspended: it has run; a layer asks before it delegates")
        if self.exit is not None or chain.fatal is not None:  # what stops everything is not a layer's to swallow
            value, error = None, self.exit or chain.fatal
        if error is not None:
            self._failed(error)
        elif isinstance(value, Suspended):
            self._suspended(value)
        else:
            self._answered(value)
        return value, error

    async def _end_nested(self) -> None:
        """What the layers and the handler started and left behind: a call never outlives the call that made it."""
        tasks = {task for task in self.nested if task is not None}
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks, timeout=self.run.config.limits.drain_s)
        finally:
            self.run.give_up_calls(f"{self.key}/")

    @property
    def answer(self) -> Any:
        """What a person answered, if it was about the very arguments that there are now."""
        return self.asked.answer if self.asked.digest and self.asked.digest == self._digest() else None

    @property
    def granted(self) -> tuple[Scope, ...]:
        always: tuple[Scope, ...] = ("always",) if self.asked.scope == "always" and self.answer is True else ()
        return (*self.run.session.granted(self.call.name, self._digest), *always)

    def _digest(self) -> str:
        return self.run.session.digest(self.key, self._chain.invocation.arguments_text())

    # ---- the door --------------------------------------------------------------------------------

    async def _door(self) -> Any:
        """Strict validation, ``HandlerStarted``, durably, and then the handler."""
        chain, slot = self._chain, None
        try:
            bound = self._tool.bind(chain.invocation.arguments)
            if self._tool.handler is None:
                raise ToolFailure("no extension answered this tool", effect="none")
            if not self._tool.is_async:
                slot = await self.run.parts.workers.acquire(self.run.config.limits.worker_wait_s)
            await self._start(bound)
        except BaseException as error:
            if slot is not None:
                slot.release()
            if isinstance(error, JournalError | ProtocolError):
                self.run.fail(error)  # a layer must not be able to swallow it
            chain.conclude(chain.value, error, "runtime")
            raise
        return await self._handle(bound, slot)

    async def _start(self, bound: Bound) -> None:
        session = self.run.session
        self._check_open()
        session.commit(HandlerStarted(key=self.key, attempt=self.starts, arguments=bound.json))
        await session.log.durable()
        self._check_open()

    def _check_open(self) -> None:
        """A layer's own task may come here after the call was settled without it, or after a layer further out has ended."""
        if self.closed or self._chain.cut_off or not self.run.is_open_call(self.key):
            raise AlreadyDelegated(f"{self.call.name}: its call has ended")

    async def _handle(self, bound: Bound, slot: Slot | None) -> Any:
        chain = self._chain
        self.effect, self._ran = "unknown", True
        try:
            if slot is not None:
                value = await self._in_thread(bound, slot)
            elif self._tool.traits.timeout_s is None:
                value = await self._tool.invoke(bound, self.run.context_of(self._tool))
            else:
                context = self.run.context_of(self._tool)
                value = await self._with_timeout(lambda: self._tool.invoke(bound, context), self._tool.traits.timeout_s)
        except BaseException as error:
            if isinstance(error, ToolFailure) and error.effect is not None and error not in self.inherited:
                self.effect = error.effect
            chain.conclude(chain.value, error, "handler")
            self._gave = (None, error)
            if isinstance(error, Fatal) and chain.fatal is None:
                chain.fatal = error
            if self.closed and not isinstance(error, asyncio.CancelledError):
                self._late(None, error)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                self.exit = error
                if asyncio.current_task() is not chain.task:
                    raise HandlerExit(f"{self.call.name} raised {type(error).__name__}") from error
            raise
        self.effect = "happened"
        chain.conclude(value, None, "handler")
        self._gave = (value, None)
        if self.closed:  # a layer's own task went on although the call had been settled
            self._late(value, None)
        return value

    async def _with_timeout(self, handler: Callable[[], Awaitable[Any]], timeout_s: float) -> Any:
        """The handler, made in a task of its own, so that one which ignores its cancellation can be given up."""
        outcome: list[tuple[Any, BaseException | None]] = []

        async def guarded() -> None:
            try:
                outcome.append((await handler(), None))
            except BaseException as error:
                outcome.append((None, error))

        task = asyncio.Task(guarded(), loop=asyncio.get_running_loop())
        try:
            await asyncio.wait({task}, timeout=timeout_s)
            timed_out = not outcome
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self.run.config.limits.drain_s)
            if outcome and outcome[0][1] is None:
                self.effect = "happened"  # even if this is being cancelled
            elif not task.done():
                task.add_done_callback(lambda _: self._late(*outcome[0]) if outcome else None)
                self.run.parts.in_background(task)
        value, error = outcome[0] if outcome else (None, None)
        if timed_out and (error is not None or not outcome):
            raise self._timeout(timeout_s)
        if error is not None:
            raise error
        return value

    async def _in_thread(self, bound: Bound, slot: Slot) -> Any:
        """A thread cannot be stopped: one that runs out of time, or is cancelled, goes on and may report late."""
        timeout_s, began = self._tool.traits.timeout_s, asyncio.get_running_loop().time()
        slot.on_late(self._late)
        future = slot.run(self._tool.invoke, bound, self.run.context_of(self._tool))
        try:
            await asyncio.wait({future}, timeout=timeout_s)
        finally:
            if not future.done():
                future.cancel()
        if future.cancelled():
            raise self._timeout(timeout_s or 0.0)
        value = future.result()
        if not inspect.isawaitable(value):
            return value
        if timeout_s is None:
            return await value  # a plain function that wraps an async one
        return await self._with_timeout(lambda: value, max(0.0, timeout_s - (asyncio.get_running_loop().time() - began)))

    def _timeout(self, timeout_s: float) -> ToolTimeout:
        return ToolTimeout(f"timed out after {timeout_s:g} s", effect="unknown")

    def _late(self, value: Any, error: BaseException | None) -> None:
        """A handler that had been given up came back."""
        if error is not None:
            content = reason_of(error)
        else:
            try:
                content = text_of(to_content(value))
            except ResultNotSerializable as problem:
                content = str(problem)
        self._record_late(error is not None, content)

    def _record_late(self, failed: bool, content: str) -> None:
        def finish(record: ToolLateResult) -> ToolLateResult:
            limit = self.run.config.limits.result_bytes
            shown, _ = cap(record.content, limit_bytes=max(limit, 512), call_id=self.call.id)
            return replace(record, content=text_of(shown))

        record_late(self.run, ToolLateResult(key=self.key, failed=failed, content=clean(content)), finish)

    # ---- what came out, as a record ----------------------------------------------------------------

    def _suspended(self, latched: Suspended) -> None:
        if not self.run.is_open_call(self.key):
            return  # given up while it drained: there is nothing to ask any more
        session, arguments, number = self.run.session, self._chain.asked_about, self.asked.asked
        digest = session.digest(self.key, arguments)
        if digest == self.asked.digest and self.asked.answer is not None:
            logger.warning(
                "%s is asked about again with the arguments that were answered: a layer must look at context.answer after its own edits",
                self.call.name,
            )
        record = ToolStepSuspended(
            key=self.key,
            question_id=f"{digest[:12]}{f'-{number + 1}' if number else ''}@{self.key}",
            question=clean(str(latched.question)),
            digest=digest,
            arguments=clean(arguments),
            expires_at=None if latched.expires_s is None else self.run.parts.clock() + latched.expires_s,
            scopes=session.lasting(latched.scopes, arguments),
            asked_by=clean(self._chain.asked_by),
        )
        record = session.commit(record)
        self.run.emit(ToolSuspended(call=self.call, key=self.key, question=record.question, question_id=record.question_id))

    def _answered(self, value: Any) -> None:
        """A value came out: the handler's, a layer's answer, a failure that a layer returned, or the end of the run."""
        if isinstance(value, ToolFailure):
            self.effect = value.effect or self.effect
            self._record(self._message(reason_of(value)), "failed")
            return
        stop = isinstance(value, Stop)
        try:
            content = to_content(value.result if stop else value)
        except ResultNotSerializable as error:
            self._record(self._message(str(error)), "unserializable")
            return
        ending = Ending(Outcome.COMPLETED, "stop", text_of(content)) if stop else None
        message = ToolMessage(tool_call_id=self.call.id, name=self.call.name, content=content, effect=self.effect)
        delegated = self._chain.decided_by == "handler" or self._ran
        self._record(message, "ok" if delegated else "answered", ending)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, JournalError | ProtocolError) and self.run.failure is error:
            return  # the run is over; nothing more can be recorded
        code = self._code(error)
        reason = self._why_cancelled() if code == "cancelled" else reason_of(error)
        self._record(self._message(reason), code)

    def _message(self, reason: str) -> ToolMessage:
        return failed_message(self.call, reason, self.effect, ran=self._ran)

    def _why_cancelled(self) -> str:
        ending = self.run.session.state.ending
        return "the run's deadline passed" if ending is not None and ending.reason == "deadline" else "the run was cancelled"

    def _code(self, error: BaseException) -> str:
        chain = self._chain
        if isinstance(error, asyncio.CancelledError) and self.run.interrupted:
            return "cancelled"
        if chain.vetoed_by is not None:
            return "vetoed"
        for kind, code in _CODES:
            if isinstance(error, kind) and error not in self.inherited:
                return code
        return "failed" if chain.decided_by in ("handler", "runtime") else "layer_error"

    def _record(self, message: ToolMessage, code: str, ending: Ending | None = None, *, unentered: bool = False) -> None:
        if not self.run.is_open_call(self.key):  # given up while it drained; what it says now is late
            self._record_late(message.failed, text_of(message.content))
            return
        by = clean(self._chain.decided_by)
        record = ToolStepEnded(
            key=self.key, message=message, effect=self.effect, decided_by=by, code=code, ending=ending, unentered=unentered
        )
        record = with_returned(self.run, record, self._gave)
        stored = self.run.session.commit(record, partial(capped, self.run))
        self.run.emit(ToolFinished(call=self.call, key=self.key, message=stored.message, effect=self.effect, decided_by=by, code=code))


_CODES: tuple[tuple[type[BaseException], str], ...] = (
    (InvalidArguments, "invalid_arguments"),
    (ToolTimeout, "timeout"),
    (PoolFull, "no_worker"),
)
