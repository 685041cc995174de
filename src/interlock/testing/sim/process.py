"""One process of a simulated world: an agent and its journal, which end with it. Freezing and killing are the loop's and the disk's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from ...agent import Agent, AgentRunConfig, Session
from ...agent.answers import Deny, Edit
from ...errors import CommandRefused, JournalError, SessionBusy
from ...extensions.base import AgentExtension
from ...machine import Phase, State, apply
from ...messages import UserMessage
from ...model import ModelRequest
from ...records import HandlerStarted, Limits, Outcome, QuestionAnswered, Record, Row, RunResult, ToolStepSuspended
from ...records.codec import decode, encode
from .disk import SimJournal, SimLog, Stored
from .history import Acknowledged, Asked, Entered, Finished, Handled, Lineage, in_words
from .layers import Discreet, Noter, SimLayer, SimModelLayer
from .loop import process_here
from .model import SimModel
from .script import Reply
from .tools import TOOLS, here, watched

if TYPE_CHECKING:
    from .world import SimWorld

SESSION = "s"
ANSWERS_MAX = 12
"""How many questions of one run are answered before its caller gives up."""
BUSY_MAX = 2
"""How often a caller comes back to a busy session."""


class Killed(BaseException):
    """The process died here. Nothing that it does after this can be seen by anybody."""


class SimProcess:
    """The hooks of its journal and the actions of its caller. number: from 1; 0 is the world.

    gone: is done once the process is dead or frozen, so that its caller's caller does not wait for it.
    """

    def __init__(self, world: SimWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.dead = False
        self.io_error = False
        self.gone: asyncio.Future[None] = world.loop.create_future()
        self.context: Context = copy_context()
        self.context.run(process_here.set, number)
        self.context.run(here.set, self)
        self.journal = SimJournal(world.disk, clock=world.clock, hooks=self, flush_s=world.script.flush_s)
        self.agent: Agent | None = None
        self.refused: set[int] = set()
        """Calls whose HandlerStarted the disk has refused, since this process last took the session."""
        self.callers: set[asyncio.Task[Any]] = set()
        """The moves of its caller that are under way."""
        self._lineages: dict[SimLog, Lineage] = {}
        self._current: dict[str, SimLog] = {}

    async def start(self, *, bare: bool = False) -> None:
        """Make the agent: the shipped one, with this world's model, tools and layers. bare: without any tool."""
        script = self.world.script
        extensions: list[AgentExtension] = [SimLayer(index) for index in range(script.layers)]
        if script.model_layer:
            extensions.append(SimModelLayer())
        if script.redacts:
            extensions.append(Discreet())
        if script.noted:
            extensions.append(Noter(script.noted))
        self.agent = await Agent.create(
            SimModel(self),
            config=AgentRunConfig(session_id=SESSION, deps=self),
            tools=() if bare else [*TOOLS, *(watched(item, self) for item in self.world.tools)],
            extensions=[*extensions, *self.world.extensions()],
            system_prompt="You are simulated.",
            journal=self.journal,
            limits=Limits(**script.limits),
            clock=self.world.clock,
        )

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this process."""
        return asyncio.Task(coro, loop=self.world.loop, context=self.context.copy())

    def say(self, what: str) -> None:
        self.world.say(self.number, what)

    def _live(self) -> None:
        if self.dead:
            raise Killed

    @property
    def frozen(self) -> bool:
        return self.world.loop.is_frozen(self.number)

    # ---- what the journal tells ----------------------------------------------------------------------------

    def appending(self, log: SimLog, record: Record) -> None:
        self._live()
        self._look(log)
        self.world.point(self, "before", type(record).__name__)

    def appended(self, log: SimLog, record: Record, body: bytes) -> None:
        self._lineage(log).rows.append((log.seq, body, True))
        # The digest of what was taken out has a salt of the process, which is chance.
        salted = self.world.script.redacts and isinstance(record, ToolStepSuspended | QuestionAnswered)
        self.say(f"append {log.session_id} {log.seq} {type(record).__name__ if salted else body.decode()}")
        self.world.point(self, "after", type(record).__name__)

    def claimed(self, log: SimLog, rows: list[Row]) -> None:
        self._live()
        self.refused.clear()
        self._lineage(log).rows += [(row.seq, encode(row.record), False) for row in rows]
        self.say(f"claim {log.session_id} {len(rows)}")

    def flushing(self, log: SimLog) -> None:
        self._live()
        if log.buffer:
            self.world.point(self, "before", "flush")

    def flushed(self, log: SimLog, rows: list[Stored], failure: JournalError | SessionBusy | None) -> None:
        if failure is not None:
            self.io_error = False
            starts = [record for _, _, body in rows if isinstance(record := decode(body), HandlerStarted)]
            self.refused |= {json.loads(record.arguments).get("number", -1) for record in starts}
        if rows:
            self.say(f"flush {log.session_id} {rows[0][0]}-{rows[-1][0]} {in_words(failure) if failure else 'ok'}")
            self.world.point(self, "after", "flush")

    def _lineage(self, log: SimLog) -> Lineage:
        found = self._lineages.get(log)
        if found is None:
            found = self._lineages[log] = Lineage(self.number, log.session_id)
            self._current[log.session_id] = log
            self.world.history.lineages.append(found)
        return found

    def _look(self, log: SimLog) -> None:
        """See the live state, which now is what follows from every record so far."""
        if self.agent is None or log.failure is not None:
            return
        live = self.agent.live(log.session_id)
        if live.log is log:
            self._lineage(log).states.append((log.seq, live.state))

    def look_at_all(self) -> None:
        """See the live state of every session once more: what followed the last append."""
        for log in list(self._lineages):
            if not self.dead and log is self._current.get(log.session_id):
                self._look(log)

    # ---- what the actors tell ------------------------------------------------------------------------------

    def asked(self, request: ModelRequest) -> Reply:
        self._live()
        self.world.history.asked.append(Asked(self.number, request.session_id, request.messages))
        reply = self.world.next_reply()
        self.say(f"asked {request.turn}/{request.attempt} {len(request.messages)} -> {reply.kind}")
        return reply

    def entered(self, number: int, layer: int, behaviour: str, *, arguments: str, answered: bool) -> None:
        self._live()
        history = self.world.history
        history.entered.append(Entered(self.number, number, layer, behaviour, len(history.handled), arguments, answered))
        self.say(f"layer {layer} {behaviour} {number}")

    def handler_started(self, number: int, call_id: str, key: str, *, epoch: int, rerun: bool) -> Handled:
        """The first line of a handler: the outside world counts it."""
        self._live()
        stored = len(self.world.disk.rows.get(SESSION, ()))
        begun = Handled(self.number, SESSION, number, call_id, key, epoch, rerun, stored, number in self.refused)
        handled = self.world.history.handled
        begun.beside = tuple(other for other in handled if not other.ended and (other.process, other.epoch) == (self.number, epoch))
        handled.append(begun)
        self.say(f"handler {number} {call_id} {key} epoch {epoch}")
        return begun

    def epoch(self) -> int:
        """The epoch in which this process has the session."""
        return self.agent.live(SESSION).state.epoch if self.agent is not None else 0

    # ---- what its caller does ----------------------------------------------------------------------------

    async def do(self, move: str) -> RunResult | None:
        """One move of the caller, in a task of this process. What comes of it is in the history; never raises but Killed."""
        try:
            result = await self._move(move)
            for _ in range(ANSWERS_MAX):
                if result is None or result.outcome is not Outcome.WAITING or move == "unanswered":
                    break
                for question in result.questions:
                    result = await self._answer(question.id)
        except BaseException as error:  # SystemExit too: it must not leave the loop
            if self.dead:
                raise
            self.say(f"{move} failed {in_words(error)}")
            self.world.history.finished.append(Finished(self.number, move, error=error))
            return None
        self.say(f"{move} finished {None if result is None else (result.outcome.value, result.reason, result.text)}")
        self.world.history.finished.append(Finished(self.number, move, result=result))
        return result

    async def _move(self, move: str) -> RunResult | None:
        agent, number = self.agent, next(self.world.numbers)
        assert agent is not None
        match move:
            case "run" | "unanswered":
                config = AgentRunConfig(run_id=f"run-{number}")
                result = await self._patiently(lambda: agent.run(f"prompt-{number}", config=config))
                self._acknowledge("run", f"prompt-{number}")
                return result
            case "stream":
                async with aclosing(agent.stream(f"prompt-{number}", config=AgentRunConfig(run_id=f"run-{number}"))) as events:
                    for _ in range(1 + number % 5):
                        await anext(events, None)
            case "resume":
                return await self._patiently(agent.resume)
            case "steer" | "interrupt":
                await agent.steer(f"steer-{number}", interrupt="now" if move == "interrupt" else None)
                self._acknowledge("steer", f"steer-{number}")
            case "cancel":
                before = len(self.world.disk.rows.get(SESSION, ()))
                await agent.cancel()
                self._acknowledge("cancel", str(before))
            case "import":
                await agent.import_messages([UserMessage(content=f"import-{number}")])
                self._acknowledge("import", f"import-{number}")
            case "answer":
                return await self._answer_open()
            case "explain":
                await self._session().explain()
            case "fork":
                await self._fork(number)
            case "wait":
                await asyncio.sleep(50.0)
            case "close":
                await agent.aclose()
            case _:
                raise ValueError(f"there is no move {move!r}")
        return None

    async def _fork(self, number: int) -> None:
        """Fork the session at the last row of each phase that it has been in."""
        state, places = State(), dict[Phase, int]()
        for row in self.world.disk.read(SESSION):
            state = apply(state, row.record)
            places[state.phase] = row.seq
        for seq in places.values():
            await self._session().fork(seq, f"fork-{number}-{seq}")

    def _session(self) -> Session:
        assert self.agent is not None
        return self.agent.session(SESSION)

    async def _patiently(self, attempt: Callable[[], Awaitable[RunResult]]) -> RunResult:
        """What a caller does who is told that the session is busy: come back when the lease must have expired."""
        for _ in range(BUSY_MAX):
            try:
                return await attempt()
            except SessionBusy:
                await asyncio.sleep(self.agent.limits.lease_s + 1.0 if self.agent is not None else 1.0)
        return await attempt()

    async def _answer(self, question_id: str) -> RunResult | None:
        agent, value = self.agent, self.world.next_answer()
        assert agent is not None
        said = {"deny": Deny("rather not"), "edit": Edit({"number": self._number_asked(question_id)})}.get(value, value)
        try:
            result = await agent.answer(question_id, said)
        except CommandRefused as error:
            self.say(f"answer refused {in_words(error)}")
            return None
        self._acknowledge("answer", question_id)
        return result

    async def _answer_open(self) -> RunResult | None:
        """Answer what the stored rows say is open."""
        asked = [row.record for row in self.world.disk.read(SESSION) if isinstance(row.record, ToolStepSuspended)]
        return await self._answer(asked[-1].question_id) if asked else None

    def _number_asked(self, question_id: str) -> int:
        """The number of the call that a question is about, which its text says."""
        asked = [row.record for row in self.world.disk.read(SESSION) if isinstance(row.record, ToolStepSuspended)]
        return next((int(record.question.split()[1]) for record in asked if record.question_id == question_id), -1)

    def _acknowledge(self, kind: str, mark: str) -> None:
        self._live()
        self.world.history.acknowledged.append(Acknowledged(self.number, kind, mark, len(self.world.disk.rows.get(SESSION, ()))))
        self.say(f"acknowledged {kind}")
