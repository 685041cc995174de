"""Replay: the same machine, driver and layers, with the model's and the handlers' answers read from the journal.

No provider and no tool is called, no delay is waited for, and nothing is written. What came from outside (prompts, steering,
cancellations, answers, crashes, late results) is put in where the journal has it; everything else must come about by itself, as it
is recorded there. The state is always the fold of the journal's own rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from ..extensions.onion import Layer
from ..journal.base import Journal
from ..machine import Action, CallModel, EndRun, State, is_open
from ..messages import Message
from ..records import ExtensionNoted, HandlerStarted, Limits, Record, Row, RunCancelled, RunResult, RunStarted, ToolStepEnded
from ..tools.context import current_call
from .context import Context
from .ledger import Halt, Ledger
from .model_step import ModelStep
from .result import result_at_rest
from .run import Run
from .session import LiveSession
from .setup import Parts, RunConfig
from .stand_ins import StandInModel, stand_in_tool
from .tool_step import ToolStep, current_step

if TYPE_CHECKING:
    from .run import Step

# How long a layer may do nothing that the journal knows of. Layers run for real, so they may really wait for something.
STALL_S = 30.0

R = TypeVar("R", bound=Record)


class Replay(Struct, frozen=True, kw_only=True):
    """What a replay came to. rows: how many were replayed. results: of each run that ended, or waits for a person, in order.

    messages: the transcript. open: the last run has not ended in the journal.
    """

    session_id: str
    rows: int
    results: tuple[RunResult, ...]
    messages: tuple[Message, ...]
    open: bool

    @property
    def result(self) -> RunResult | None:
        """The last run's, if there is one."""
        return self.results[-1] if self.results else None


async def replay_session(session_id: str, rows: Sequence[Row], journal: Journal, parts: Parts, config: RunConfig) -> Replay:
    """Go through ``rows`` with the layers, tools (their schemas) and prompt of ``parts``. Raises Diverged at the first difference;
    ProtocolError for rows that cannot follow one another."""
    director = Director(session_id, rows, journal, parts, config)
    task = asyncio.create_task(director.main())  # of its own: a replay that a tool starts is not part of that tool's call
    try:
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        await director.end_process()


class Log:
    """A SessionLog that keeps nothing: the rows are there already. Payloads are read from the journal."""

    def __init__(self, session_id: str, journal: Journal) -> None:
        self.session_id = session_id
        self.seq = 0
        self._source = journal.session(session_id)

    async def claim(self, *, lease_s: float) -> list[Row]:
        return []

    def append(self, record: Record, *, at: float) -> int:
        self.seq += 1
        return self.seq

    async def durable(self, seq: int | None = None) -> None:
        """Nothing is buffered."""

    async def release(self) -> None:
        """Nothing is held."""

    def put_payload(self, digest: str, data: bytes) -> None:
        """It is in the journal."""

    async def get_payload(self, digest: str) -> bytes | None:
        return await self._source.get_payload(digest)


class ReplayedSession(LiveSession):
    """A session whose records must be the journal's. over: its process has ended."""

    __slots__ = ("_hooks", "_ledger", "over")

    def __init__(self, session_id: str, log: Log, parts: Parts, ledger: Ledger) -> None:
        super().__init__(session_id, log, parts)
        # What is in the journal was redacted already; what comes about here is, to be compared with it.
        self._hooks, self._redactor = self._redactor, None
        self._ledger = ledger
        self.over = False

    def commit(self, record: R, finish: Callable[[R], R] | None = None) -> R:
        if self.over:
            raise Halt("the process that is replayed has ended")
        if self._hooks is not None:
            record = self._hooks.redacted(record)
        if finish is not None:
            record = finish(record)
        if isinstance(record, ExtensionNoted):
            return super().commit(record) if self._ledger.note(record) else record
        index = self._ledger.find(record)
        self.remember(index)
        known = super().commit(cast("R", self._ledger.use(index)))
        self._ledger.bump()
        return known

    def put_in(self, record: Record) -> None:
        """Something that came from outside."""
        super().commit(record)
        self._ledger.bump()

    def remember(self, before: int) -> None:
        """Put in the notes that the journal has before that place, and that no layer has made by itself."""
        for note in self._ledger.notes(before):
            super().commit(note)


class ReplayRun(Run):
    """A run whose steps go on only as far as the journal goes."""

    def __init__(self, director: Director, session: ReplayedSession, parts: Parts, config: RunConfig, run_id: str) -> None:
        super().__init__(session, parts, config, run_id=run_id, buffer=None, version="")
        self.let_in = False
        self._begun.set()
        self._director = director
        self.tool_layers = (*self.tool_layers, Layer("replay", director.door, Context(self, None)))
        session.run = self

    @property
    def idle(self) -> bool:
        return not self._tasks

    def drive(self) -> None:
        if self._rest is None or self._rest.done():
            self._rest = asyncio.get_running_loop().create_future()
        self.advance()

    def interrupt(self) -> None:
        self._interrupt()
        self._director.ledger.bump()

    def fail(self, error: BaseException) -> None:
        if isinstance(error, Halt) and self._director.ledger.diverged is None:
            return  # the process that is replayed ended here: others of its steps may have come further
        super().fail(error)
        self._director.ledger.bump()

    def close(self) -> list[asyncio.Task[None]]:
        """Stop everything. Returns the tasks to wait for."""
        for timer in self._timers:
            timer.cancel()
        tasks = list(self._tasks)
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        return tasks

    def _begin(self, action: Action) -> None:
        super()._begin(replace(action, delay_s=0.0) if isinstance(action, CallModel) else action)
        if isinstance(action, EndRun) and self._ended is not None:
            self._director.results.append(self._ended)

    def _spawn(self, step: Step) -> None:
        task = asyncio.Task(self._enter(step), loop=asyncio.get_running_loop())
        self._tasks[task] = step

    async def _enter(self, step: Step) -> None:
        ledger = self._director.ledger
        if isinstance(step, ToolStep):
            await ledger.until(lambda: self.interrupted or ledger.may_enter(step.key, self.let_in))
        elif isinstance(step, ModelStep):
            await ledger.until(lambda: self.interrupted or self.let_in or ledger.due("") is not None)
        await step.main()


class Director:
    """Goes through the rows: puts in what came from outside, and waits between for everything else to come about."""

    def __init__(self, session_id: str, rows: Sequence[Row], journal: Journal, parts: Parts, config: RunConfig) -> None:
        self.ledger = ledger = Ledger(rows, session_id)
        self.results: list[RunResult] = []
        self._config = config
        self._log = Log(session_id, journal)
        tools = {name: stand_in_tool(tool, ledger, self._log) if tool.handler is not None else tool for name, tool in parts.tools.items()}
        # closed: nothing that comes late is recorded; the journal has its own late results.
        self._parts = replace(
            parts, model=StandInModel(ledger, self._state), tools=tools, clock=ledger.clock, closed=True, background=set()
        )
        self._session = ReplayedSession(session_id, self._log, self._parts, ledger)
        self._run: ReplayRun | None = None

    def _state(self) -> State:
        return self._session.state

    async def main(self) -> Replay:
        """The body of the replay's task."""
        current_call.set(None)
        current_step.set(None)
        ledger = self.ledger
        while (place := ledger.place()) < len(ledger.rows):
            window = ledger.open_window()
            if place < window:
                await self._until(window)
            else:
                await self._outside(place)
        self._session.remember(len(ledger.rows))
        session, run = self._session, self._run
        if is_open(session.state) and run is not None and run.idle and any(call.question_id for call in session.state.calls.values()):
            self.results.append(result_at_rest(session, run.usage(), driven=True))
        return Replay(
            session_id=session.session_id,
            rows=len(ledger.rows),
            results=tuple(self.results),
            messages=session.transcript.snapshot(),
            open=is_open(session.state),
        )

    async def end_process(self) -> None:
        """Stop whatever runs; what it still says is lost, as it was."""
        self._session.over = True
        tasks = set(self._parts.background)
        if self._run is not None:
            tasks |= set(self._run.close())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- what came about by itself -------------------------------------------------------------------

    async def _until(self, window: int) -> None:
        """Drive until everything before ``window`` has come about."""
        ledger, run = self.ledger, self._run
        if run is None:
            raise ledger.differs(ledger.place(), "no run is open there")
        ledger.bump()
        run.drive()
        while ledger.place() < window:
            self._check(run)
            if run.idle:
                raise ledger.differs(ledger.place(), "nothing more happens")
            try:
                async with asyncio.timeout(STALL_S):
                    await ledger.change()
            except TimeoutError:
                raise ledger.differs(ledger.place(), f"nothing happens for {STALL_S:g} s") from None
        self._check(run)
        self._session.remember(window)

    def _check(self, run: ReplayRun) -> None:
        if self.ledger.diverged is not None:
            raise self.ledger.diverged
        if run.failure is not None:
            raise run.failure

    # ---- what came from outside ------------------------------------------------------------------------

    async def _outside(self, place: int) -> None:
        ledger = self.ledger
        record = ledger.rows[place].record
        if isinstance(record, RunCancelled):
            await self._cancelled(place)
            return
        ledger.use(place)
        if ledger.is_boundary(place):
            await self._reopen(self._session.state.limits)
        elif isinstance(record, RunStarted):
            self._run = self._new_run(record.limits, record.run_id)
        self._session.put_in(record)

    async def _cancelled(self, place: int) -> None:
        """Steps that had begun then are begun, before they are cancelled as then."""
        ledger, run = self.ledger, self._run
        if run is not None and not run.idle:
            run.let_in = True
            ledger.bump()
            for _ in range(3):
                await asyncio.sleep(0)
            self._check(run)
            if ledger.is_used(place):
                return  # it was a step itself that stopped everything
        record = ledger.use(place)
        self._session.put_in(record)
        if run is not None:
            run.interrupt()

    async def _reopen(self, limits: Limits) -> None:
        """Another process: nothing of the one before it runs any more."""
        await self.end_process()
        before = self._session
        self._session = session = ReplayedSession(before.session_id, self._log, self._parts, self.ledger)
        session.state, session.transcript, session.memories = before.state, before.transcript, before.memories
        self._parts.background.clear()
        self._run = self._new_run(limits, before.state.run_id)

    def _new_run(self, limits: Limits, run_id: str) -> ReplayRun:
        return ReplayRun(self, self._session, self._parts, replace(self._config, limits=limits), run_id)

    async def door(self, context: Any, call: Any, call_next: Any) -> Any:
        """The innermost layer: what comes here would start the handler."""
        ledger = self.ledger
        await ledger.until(lambda: self._may_start(call.key, call.arguments_text()))
        return await call_next()

    def _may_start(self, key: str, arguments: str) -> bool:
        place = self.ledger.next(key)
        if place is None:
            return False  # it had not come so far when its process died
        record = self.ledger.rows[place].record
        if isinstance(record, HandlerStarted):
            return place < self.ledger.window
        if isinstance(record, ToolStepEnded) and record.code in ("cancelled", "interrupted", "superseded"):
            return False
        if isinstance(record, ToolStepEnded) and record.decided_by == "runtime":
            return place < self.ledger.window  # refused at the door itself, as it is now
        self.ledger.differs(place, f"its handler would start with {arguments}")
        raise self.ledger.halt()
