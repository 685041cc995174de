"""The driver: starts what the machine decides, and records what happened. One loop, for every run.

One rule: append, then apply, then act. Nothing is started that the journal does not already say was started.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..errors import CommandRefused, JournalError, NothingToResume, ProtocolError, SessionBusy, UsageError
from ..events import Event, ModelStarted, RunFinished, RunStarted, SteeringLanded, ToolFinished, ToolProgress, ToolStarted
from ..extensions.onion import Layer
from ..machine import (
    UNDER_WAY,
    Action,
    Answer,
    CallModel,
    Cancel,
    Command,
    EndRun,
    Progress,
    Reconcile,
    RunTool,
    SettleTool,
    StartRun,
    admit,
    decide,
    is_stalled,
)
from ..messages import Usage, text_of
from ..records import ModelStepFailed, ModelStepStarted, Outcome, ReconcileStarted, RunCancelled, RunResult, ToolStepEnded, ToolStepStarted
from ..records import RunStarted as RunStartedRecord
from ..tools import Tool
from ..tools.context import current_call
from .buffer import EventBuffer
from .context import Context
from .late import given_up
from .model_step import ModelStep
from .payload import capped
from .reopening import go_on, reopen
from .request import build_request
from .result import cost_of, result_at_rest, result_of
from .session import LiveSession
from .setup import NamedHooks, Parts, RunConfig
from .tool_step import ToolStep, current_step

if TYPE_CHECKING:
    from .reconcile_step import ReconcileStep

    Step = ToolStep | ModelStep | ReconcileStep

Prepared = Callable[[Set[str]], Command]
"""A command that depends on the call ids that the session has used; asked for once they are known."""


class Run:
    """One drive of one session: from a command to a result, or to a rest.

    buffer: where the consumer reads, or None if there is none. failure: why nothing more can be recorded.
    result and error: what became of it, once ``main`` has returned; exactly one is set. noting: how many notes are being
    written within one another. task: in which ``main`` runs. brief: it only takes a command, and holds an idle session for a moment.
    """

    def __init__(
        self, session: LiveSession, parts: Parts, config: RunConfig, *, run_id: str, buffer: EventBuffer | None, version: str
    ) -> None:
        self.session = session
        self.parts = parts
        self.config = config
        self.run_id = run_id
        self.buffer = buffer
        self.interrupted = False
        self.noting = 0
        self.task: asyncio.Task[None] | None = None
        self.brief = False
        self.failure: BaseException | None = None
        self.model_error: BaseException | None = None
        self.result: RunResult | None = None
        self.error: BaseException | None = None
        self.version = version
        self.loop = asyncio.get_running_loop()  # kept: in Python 3.11 to ask for it is a system call
        self._begun = asyncio.Event()
        self._crashed: BaseException | None = None
        self._tasks: dict[asyncio.Task[None], Step] = {}
        self._rest: asyncio.Future[None] | None = None
        self._context: contextvars.Context | None = None
        self._ended: RunResult | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.contexts = [Context(self, index) for index in range(len(parts.extensions))]
        self.tool_layers = self._layers(parts.tool_hooks)
        self.model_layers = self._layers(parts.model_hooks)
        session.contexts = self.contexts

    def _layers(self, hooks: NamedHooks) -> Sequence[Layer]:
        return [Layer(name, hook, self.contexts[index]) for index, name, hook in hooks] if hooks else ()

    # ---- the body of the run's task ----------------------------------------------------------------

    async def main(self, command: Command | Prepared | None, *, drive: bool = True) -> None:
        """Take the session, do what ``command`` asks (None: go on with what is open), drive to a rest. Never raises."""
        current_call.set(None)  # a run that a tool starts is not part of that tool's call
        current_step.set(None)
        self._context = contextvars.copy_context()
        try:
            await self.session.claim(lease_s=self.config.limits.lease_s, version=self.version)
            self._check_wanted()
            await self._begin_with(command)
            self._begun.set()
            if self.config.deadline_s is not None and drive:
                self._timers.append(self.loop.call_later(self.config.deadline_s, self.cancel, "deadline", Outcome.LIMIT))
            if drive:
                await self._drive_through_cancel()
            await self.session.log.release()
            await self.session.log.durable()  # a log that was poisoned before says nothing when it is released
            while drive and decide(self.session.state):  # a command came in while the lease was being given up
                await self.session.claim(lease_s=self.config.limits.lease_s, version=self.version)
                await self._drive_through_cancel()
                await self.session.log.release()
                await self.session.log.durable()
            self._conclude(drive)
        except BaseException as error:
            self.error = error
            self._stop_tasks()
            await self.session.give_up()
        finally:
            self._begun.set()
            for timer in self._timers:
                timer.cancel()
            # After a failure nothing that is known here can be trusted: the session is read anew.
            if self.failure is not None or isinstance(self.error, JournalError | ProtocolError | SessionBusy):
                self.session.lost = True
            self.session.run = None
            self.session.contexts = ()
            if not self.interrupted and self.error is None:  # no step is left; what refers to one another only the collector frees
                self.contexts, self.tool_layers, self.model_layers = [], (), ()
            if self.result is not None and drive:
                self.emit(RunFinished(result=self.result))
            if self.buffer is not None:
                self.buffer.close()
            self.parts.background.discard(self.task)  # pyright: ignore[reportArgumentType]  # it is set before its task begins

    async def _begin_with(self, command: Command | Prepared | None) -> None:
        session = self.session
        if callable(command):
            command = command(session.transcript.ids)
        if command is None:
            reopen(self)
            self.run_id = session.state.run_id
            return
        if isinstance(command, StartRun):
            session.check_run_id(command.run_id)
        record = admit(session.state, command)
        if isinstance(command, Answer):
            go_on(self)
        while isinstance(command, StartRun) and isinstance(record, RunCancelled):
            session.commit(record)  # what an earlier run left open is settled first
            await self._drive()
            self._check_wanted()
            record = admit(session.state, command)
        session.commit(record)
        self.run_id = session.state.run_id or self.run_id
        self._ended = None
        if isinstance(record, RunStartedRecord):
            self.emit(RunStarted(session_id=session.session_id, run_id=record.run_id))

    def _check_wanted(self) -> None:
        """Whoever asked may have left before anything was accepted: then nothing is."""
        if self.interrupted:
            raise asyncio.CancelledError

    async def _drive_through_cancel(self) -> None:
        """A cancelled run task is a cancelled run: it is recorded, drained, and then the cancellation goes on."""
        try:
            await self._drive()
        except asyncio.CancelledError as error:
            if self.failure is not None:
                raise
            self.cancel("cancelled")
            await self._drive()
            self._crashed = error

    async def _drive(self) -> None:
        """Until nothing runs and nothing can be started."""
        self._rest = self.loop.create_future()
        self.advance()
        await self._rest
        if self.failure is not None:
            raise self.failure

    def advance(self) -> None:
        """Start what the machine wants started. Called by whoever has just changed something; it never waits, so there is no
        loop that must be woken, and a step that ends begins the next one itself."""
        if self._rest is None or self._rest.done():
            return  # nobody drives: what was recorded waits for whoever does
        try:
            while self.failure is None and (actions := decide(self.session.state)):
                for action in actions:
                    self._begin(action)
        except BaseException as error:
            self.fail(error)
        if not self._tasks and not self._rest.done():
            self._rest.set_result(None)

    def _begin(self, action: Action) -> None:
        """Append the record that says it starts, then start it."""
        session = self.session
        match action:
            case CallModel():
                landing = session.transcript.pending_input if action.attempt == 0 else ()
                session.commit(ModelStepStarted(turn=action.turn, attempt=action.attempt))
                for message in landing:
                    self.emit(SteeringLanded(text=text_of(message.content)))
                self.emit(ModelStarted(turn=action.turn, attempt=action.attempt))
                self._spawn(ModelStep(self, action, build_request(self, action)))
            case Reconcile():
                session.commit(ReconcileStarted(key=action.call.key))
                self._spawn(import_module(".reconcile_step", __package__).ReconcileStep(self, action.call))
            case RunTool():
                session.commit(ToolStepStarted(key=action.call.key))
                self.emit(ToolStarted(call=action.call.call, key=action.call.key, edited=action.call.edited))
                self._spawn(ToolStep(self, action.call, self.parts.tools[action.call.call.name]))
            case SettleTool():
                self.settle(action.record)
            case EndRun():
                usage, cost = self.usage(), cost_of(session.state)
                self._ended = result_of(session, session.commit(action.record), usage, cost, self.parts.output)

    def _spawn(self, step: Step) -> None:
        """Each step runs in a task, and in a copy of the caller's context, of its own."""
        context = self._context
        # Not loop.create_task: a factory that starts tasks eagerly would run the step before it is known here.
        task = asyncio.Task(step.main(), loop=self.loop, context=context.copy() if context is not None else None)
        self._tasks[task] = step

    def finished(self) -> None:
        """Called by a step at the very end of its task: cheaper, by two turns of the event loop, than a callback of the task."""
        task = asyncio.current_task(self.loop)
        if task is not None and self._tasks.pop(task, None) is not None:
            self.advance()

    def settle(self, record: ToolStepEnded) -> None:
        """Give a call its result, and show it."""
        call = self.session.state.calls[record.key].call
        record = self.session.commit(record, partial(capped, self))
        self.emit(
            ToolFinished(
                call=call, key=record.key, message=record.message, effect=record.effect, decided_by=record.decided_by, code=record.code
            )
        )

    # ---- how it ends ---------------------------------------------------------------------------------

    def _conclude(self, drive: bool) -> None:
        """The result, or what must reach the caller instead."""
        if self._crashed is not None:
            self.error = self._crashed
        elif self._ended is not None:
            self.result = self._ended
        elif drive and is_stalled(self.session.state):
            self.error = self.model_error or NothingToResume("the model step failed in an earlier process")
        else:
            self.result = result_at_rest(self.session, self.usage(), driven=drive)

    # ---- ending it from outside or inside --------------------------------------------------------------

    async def command(self, command: Command | Prepared) -> None:
        """Accept ``command`` into the live run. Returns once it is durable. Raises CommandRefused, JournalError."""
        if not self._begun.is_set():  # what is said now is meant for the run that is about to begin, not for one that it ends
            await self._begun.wait()
        if callable(command):
            command = command(self.session.transcript.ids)
        self.session.commit(admit(self.session.state, command))
        if isinstance(command, Cancel):
            self._interrupt()
        self.advance()
        await self.session.log.durable()

    def cancel(self, reason: str, outcome: Outcome = Outcome.CANCELLED) -> None:
        """End the run. Does nothing if it is ending already, or if nothing can be recorded any more."""
        if self.failure is not None or self.session.run is not self:
            return  # a step that outlived its run must not end the next one
        if not self._begun.is_set():  # the session is still being taken: `main` looks before it accepts anything
            self._interrupt()
            return
        try:
            self.session.commit(admit(self.session.state, Cancel(outcome=outcome, reason=reason)))
        except CommandRefused:
            pass
        except (JournalError, UsageError) as error:  # the latter: an extension's fold or redaction failed
            self.fail(error)
            return
        self._interrupt()
        self.advance()

    def crash(self, error: BaseException) -> None:
        """``error`` stops everything: siblings are cancelled and drained, the run ends, and then it reaches the caller."""
        if self._crashed is None:
            self._crashed = error
        self.cancel("fatal")

    def stop_step(self, step: ModelStep) -> None:
        """Cancel one model step, and go on without it if it does not stop in time."""
        for task, other in self._tasks.items():
            if other is step:
                task.cancel()
                self._timers.append(asyncio.get_running_loop().call_later(self.config.limits.drain_s, self._give_up_model, "limit"))

    def fail(self, error: BaseException) -> None:
        """Nothing more can be recorded. The caller gets ``error``; the session must be opened anew."""
        if self.failure is None:
            self.failure = error
        self._stop_tasks()
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    def _interrupt(self) -> None:
        if self.interrupted:
            return
        self.interrupted = True
        for task, step in self._tasks.items():
            if step.entered:  # one that is not records that by itself; its task, cancelled now, would never begin
                task.cancel()
            if isinstance(step, ModelStep) and self.model_layers:
                self.parts.in_background(asyncio.get_running_loop().create_task(step.close_sources()))
        if self._tasks:
            self._timers.append(self.loop.call_later(self.config.limits.drain_s, self._give_up))

    def _give_up(self) -> None:
        """Drained for long enough: settle what still runs, and leave it to end in the background."""
        try:
            self.give_up_calls()
        except (JournalError, UsageError) as error:
            self.fail(error)
        self._give_up_model("cancelled")
        self._stop_tasks()
        self.advance()

    def _give_up_model(self, kind: str) -> None:
        """Settle a model step that does not stop, and leave it to end in the background."""
        for task, step in list(self._tasks.items()):
            if isinstance(step, ModelStep):
                del self._tasks[task]
                self.parts.in_background(task)
                try:
                    self.session.commit(ModelStepFailed(kind=kind, message="given up while it drained"))
                except (JournalError, UsageError) as error:
                    self.fail(error)
        self.advance()

    def give_up_calls(self, under: str = "") -> None:
        """Settle the calls that still run and whose key begins with ``under``; what they say after this is late."""
        for call in reversed(self.session.state.calls.values()):
            if call.progress in UNDER_WAY and call.key.startswith(under):
                self.settle(given_up(call))

    def _stop_tasks(self) -> None:
        for task in list(self._tasks):
            if not self.interrupted:  # else it was cancelled already: a second time would break off its cleaning up
                task.cancel()
            self.parts.in_background(task)
        self._tasks.clear()

    # ---- what steps need -------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        if (buffer := self.buffer) is not None:
            buffer.items.append(event)  # as in its put, without a further call
            if buffer.waiting:
                buffer.wake()

    def emit_progress(self, event: ToolProgress) -> None:
        """Progress cannot slow a thread down: when the consumer is behind, it is left out."""
        if self.buffer is not None and not self.buffer.full and not self.buffer.closed:
            with suppress(UsageError):  # a redaction failed, and with it the run
                self.buffer.put(replace(event, data=self.session.shown(event.data)))

    def usage(self) -> Usage:
        state = self.session.state
        return replace(state.usage, requests=state.requests, tool_calls=state.tool_calls)

    def is_open_call(self, key: str) -> bool:
        call = self.session.state.calls.get(key)
        return call is not None and call.progress is Progress.RUNNING

    def is_running(self, step: Step) -> bool:
        """Whether ``step`` may still act: not once it was given up."""
        return step in self._tasks.values()

    def context_of(self, tool: Tool) -> Context:
        """The context of the extension that brought ``tool``; the handlers' for any other."""
        index = self.parts.brought_by.get(tool.name)
        return self.contexts[index] if index is not None else Context(self, None)
