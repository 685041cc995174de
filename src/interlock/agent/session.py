"""A handle for one session of an agent: run it, steer it, answer it, cancel it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Set
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from .. import __version__
from ..driver.buffer import EventBuffer
from ..driver.run import Prepared, Run
from ..driver.session import LiveSession
from ..driver.setup import RunConfig
from ..errors import CommandRefused, NothingToResume, SessionBusy, UsageError
from ..events import Event
from ..machine import Cancel, Command, Import, StartRun, Steer
from ..messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from ..messages.validity import Ambiguous, IllTyped, repair, well_typed
from ..records import Limits, Row, RunResult
from .answers import answer_of
from .config import AgentRunConfig, check_id

if TYPE_CHECKING:
    from ..driver.fork import Turn
    from ..driver.replay import Replay
    from .agent import Agent
    from .plan import ResumePlan


class Session:
    """One conversation. Cheap to make; nothing is read before it is used. Made by ``agent.session(id)``."""

    def __init__(self, agent: Agent, config: AgentRunConfig) -> None:
        self._agent = agent
        self._config = config
        self.id = check_id(config.session_id, "session_id")

    async def run(self, text: Any, *, config: AgentRunConfig | None = None) -> RunResult:
        """Run ``text`` to an outcome. See ``Agent.run``."""
        command, merged = self._start(text, config)
        await self._free()
        live, run = self._claim(merged, buffer=None)
        return await _finish(live, run, command)

    def stream(self, text: Any, *, config: AgentRunConfig | None = None) -> AsyncGenerator[Event, None]:
        """Run ``text`` and yield its events. See ``Agent.stream``."""
        return self._stream(lambda: self._start(text, config))

    def stream_resume(self) -> AsyncGenerator[Event, None]:
        """``resume``, and yield the events of what follows. Leaving it ends the run CANCELLED, as with ``stream``."""
        return self._stream(lambda: (None, self._config))

    def stream_answer(self, question_id: str, answer: Any = True) -> AsyncGenerator[Event, None]:
        """``answer``, and yield the events of what follows. Leaving it ends the run CANCELLED, as with ``stream``. Raises SessionBusy while
        somebody else drives the run: ``answer`` is taken then, too."""
        return self._stream(lambda: (answer_of(question_id, answer, at=self._agent.parts.clock()), self._config))

    async def _stream(self, begin: Callable[[], tuple[Command | None, AgentRunConfig]]) -> AsyncGenerator[Event, None]:
        command, merged = begin()
        buffer = EventBuffer(self._agent.limits.event_buffer)
        await self._free()
        live, run = self._claim(merged, buffer=buffer)
        task = _spawn(live, run, command)
        items = buffer.items
        try:
            while True:
                while items:
                    yield items.popleft()
                if buffer.closed:
                    break
                await buffer.wait()
        finally:
            if not task.done():
                await _leave(run, task)
        if run.error is not None:
            raise run.error

    async def resume(self) -> RunResult:
        """Go on with the run that is open: after a crash, a failed model step, or while it waits (the WAITING result again).

        What each call that was open becomes, ``explain`` says beforehand. A question that has expired is a denial. The limits
        and traits of the run are those it was begun with; what else is different now is logged as a WARNING.

        Raises NothingToResume if no run is open (also for an unknown session), CommandRefused if the run was begun with a
        tool that this agent does not have (nothing is recorded), SessionBusy, and what ``run`` raises.
        """
        await self._free()
        live, run = self._claim(self._config, buffer=None)
        return await _finish(live, run, None)

    async def explain(self) -> ResumePlan:
        """What ``resume`` would do, without doing it: nothing is claimed, written or sent.

        Raises NothingToResume if no run is open, SessionBusy if it is alive in this process, JournalError.
        """
        agent = self._agent
        run = agent.live(self.id).run
        if run is not None and not run.brief:
            raise SessionBusy(f"session {self.id!r} has a run that is alive in this process: there is nothing to resume")
        return import_module(".plan", __package__).plan_of(self.id, await agent.rows(self.id), agent.parts, agent.limits)

    async def answer(self, question_id: str, answer: Any = True) -> RunResult:
        """Answer an open question and go on with the run, in any process; also while its other calls still run.

        question_id: of ``result.questions``, or of a ``ToolSuspended`` event. answer: ``Allow()`` (or True); ``Deny(reason)``, which
        settles the call without running it; ``Edit(arguments)``, which are asked about anew; or anything JSON-able. The layer that
        asked reads it as ``context.answer``, and decides what it means. An answer is bound to the exact arguments that were
        asked about, and taken once, whoever else answers at the same time.

        Returns and raises what ``run`` does; CommandRefused if the question is not open, was answered already, or has expired, and
        if a tool of the run is missing; UsageError for an answer that is not JSON-able.
        """
        command = answer_of(question_id, answer, at=self._agent.parts.clock())
        await self._free()
        run = self._agent.live(self.id).run
        if run is not None:
            return await _join(run, command)
        live, run = self._claim(self._config, buffer=None)
        return await _finish(live, run, command)

    async def steer(self, text: Any, *, interrupt: str | None = None) -> None:
        """Say something to the run that is open; it lands at the end of the batch. ``interrupt="now"`` supersedes calls that have
        not started. Returns once it is journaled. Raises CommandRefused if no run is open."""
        if interrupt not in (None, "now"):
            raise UsageError(f"interrupt must be None or 'now', not {interrupt!r}")
        message = self._agent.prompt(text, "the message")
        await self._command(Steer(message=message, interrupt=interrupt == "now"), drive=False)

    async def cancel(self) -> None:
        """End the open run CANCELLED. Returns once that is journaled. Raises CommandRefused if no run is open."""
        await self._command(Cancel(), drive=True)

    async def import_messages(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Append a conversation from elsewhere to the transcript. Returns what had to be mended, in words, and logs it as a WARNING.

        Raises UsageError for what is no message, and for results that cannot be paired with their calls; CommandRefused
        while a run is open.
        """
        messages = _messages(messages)
        if not messages:
            return ()
        said: list[str] = []

        def mended(known_ids: Set[str]) -> Import:  # once the session is claimed: another process may have used the same ids
            valid, repairs = repair(messages, known_ids=known_ids)
            said.extend(repairs)
            return Import(messages=valid, repairs=repairs)

        try:
            await self._command(mended, drive=False)
        except Ambiguous as error:
            raise UsageError(f"import_messages: {error}") from error
        self._agent.say_repairs(self.id, tuple(said))
        return tuple(said)

    async def messages(self) -> tuple[Message, ...]:
        """The transcript as it is stored, in order; empty for an unknown session. Raises JournalError."""
        return await self._agent.messages(self.id)

    async def records(self) -> list[Row]:
        """The stored rows of the session, in order; empty for an unknown session. Raises JournalError."""
        return await self._agent.rows(self.id)

    async def turns(self) -> list[Turn]:
        """The places where a fork is sensible, in order: each accepted prompt, each batch with its results, the end of each run.

        Raises JournalError; ProtocolError for damaged rows.
        """
        return import_module("..driver.fork", __package__).turns_of(await self.records())

    async def fork(self, at_seq: int | None = None, new_session_id: str | None = None) -> Session:
        """Make a new session of this one's rows up to ``at_seq`` (None: all), and return its handle. Rewinding is forking earlier.

        What this session did outside is NOT undone, and nothing of it is done again: every call that is open at ``at_seq``
        is settled in the fork, with this session's own result where it has one by now, and as unknown otherwise. A run that is
        open there can be resumed, or ended by a new prompt. This session is only read, and may be running.

        new_session_id: generated if None. Raises UsageError (no such session or row), CommandRefused (the new id is taken; nothing
        was written), JournalError. All of the fork is written in one transaction.
        """
        return await self._agent.forked(self.id, at_seq, new_session_id)

    async def replay(self, *, config: AgentRunConfig | None = None) -> Replay:
        """Go through the stored rows again with this agent's layers, tools and limits of then, without asking anybody.

        Every answer of the model and of a handler is read from the journal: no provider and no tool is called, no delay is
        waited for, nothing is written. The layers run for real, whatever they do themselves included. config: deps for them.

        Raises Diverged at the first difference (its ``seq``, ``expected`` and ``found`` say where and what), UsageError for an unknown
        session, JournalError, ProtocolError for damaged rows.
        """
        agent = self._agent
        return await agent.replayed(self.id, agent.merged(config, self._config))

    # ---- how a run is started ------------------------------------------------------------------------

    def _start(self, text: Any, config: AgentRunConfig | None) -> tuple[StartRun, AgentRunConfig]:
        agent = self._agent
        merged = agent.merged(config, self._config)
        command = StartRun(
            run_id=merged.run_id or f"run-{os.urandom(6).hex()}",
            prompt=agent.prompt(text, "the prompt"),
            limits=agent.limits,
            traits=agent.parts.traits,
            fingerprint=agent.parts.fingerprint,
            parent_session_id=merged.parent_session_id,
        )
        return command, merged

    async def _free(self) -> None:
        """Wait while a steer, a cancel or an import holds the idle session for a moment: a run is not refused for that."""
        while (run := self._agent.live(self.id).run) is not None and run.brief and run.task is not None:
            await asyncio.wait({run.task})

    def _claim(self, config: AgentRunConfig, *, buffer: EventBuffer | None) -> tuple[LiveSession, Run]:
        """This process's one place in the session. Raises SessionBusy if a run of it is alive here."""
        agent = self._agent
        live = agent.live(self.id)
        if live.run is not None:
            raise SessionBusy(f"session {self.id!r} has a run that is alive in this process: wait for it, steer it, or cancel it")
        limits: Limits = agent.limits
        deadline_s = config.deadline_s if config.deadline_s is not None else limits.deadline_s
        settled = RunConfig(limits=limits, settings=config.settings(), deps=config.deps, deadline_s=deadline_s)
        live.run = Run(live, agent.parts, settled, run_id=config.run_id or "", buffer=buffer, version=__version__)
        if buffer is not None:
            buffer.loop = live.run.loop
        return live, live.run

    async def _command(self, command: Command | Prepared, *, drive: bool) -> None:
        live = self._agent.live(self.id)
        if live.run is not None:
            await live.run.command(command)
            return
        live, run = self._claim(self._config, buffer=None)
        try:
            await _finish(live, run, command, drive=drive, brief=True)
        except NothingToResume as error:
            raise CommandRefused(str(error)) from error


def _messages(messages: Any) -> list[Message]:
    """Messages, checked to the last field: what is stored must be readable. Raises UsageError."""
    known = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
    if isinstance(messages, str | bytes | dict) or not hasattr(messages, "__iter__"):
        kind = type(cast("object", messages)).__name__
        raise UsageError(f"import_messages takes a list of messages, not {kind}")
    made: list[Message] = []
    for message in cast("Iterable[object]", messages):
        if not isinstance(message, known):
            raise UsageError(f"import_messages takes messages, not {type(message).__name__}")
        try:
            made.append(well_typed(message))
        except IllTyped as error:
            raise UsageError(f"import_messages: message {len(made)} is not well formed: {error}") from error
    return made


def _spawn(live: LiveSession, run: Run, command: Command | Prepared | None, *, drive: bool = True) -> asyncio.Task[None]:
    """The run in a task of its own: it goes on to a clean end even if whoever asked for it is gone."""
    task = asyncio.Task(run.main(command, drive=drive), loop=run.loop)  # never eagerly: the caller is not ready
    run.parts.background.add(task)  # its main takes it out at its end, and never raises
    run.task = task
    return task


async def _join(run: Run, command: Command) -> RunResult:
    """Say ``command`` to a run that somebody else drives, and wait for what becomes of it. Leaving does not end it."""
    task = run.task
    await run.command(command)
    if task is not None:
        await asyncio.wait({task})
    return _outcome(run)


async def _finish(live: LiveSession, run: Run, command: Command | Prepared | None, *, drive: bool = True, brief: bool = False) -> RunResult:
    task = _spawn(live, run, command, drive=drive)
    run.brief = brief
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await _leave(run, task)
        raise
    return _outcome(run)


def _outcome(run: Run) -> RunResult:
    if run.error is not None:
        raise run.error
    assert run.result is not None
    return run.result


async def _leave(run: Run, task: asyncio.Task[None]) -> None:
    """The consumer is gone: end the run, and wait for it as long as draining may take; a slower end goes on in the background."""
    run.cancel("consumer_left")
    await asyncio.wait({task}, timeout=run.config.limits.drain_s + 0.1)
