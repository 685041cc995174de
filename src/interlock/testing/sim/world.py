"""A simulated world: what outlives every process, and the hand that strikes them at the points of its script."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context
from itertools import count
from typing import Any

from ...errors import InterlockError
from ...extensions.base import AgentExtension
from ...machine import fold, is_open
from ...records import Outcome
from .disk import SimDisk
from .history import History
from .loop import SimLoop, Stuck
from .process import SESSION, Killed, SimProcess
from .script import Act, Reply, Script

_LOGGER = logging.getLogger("interlock")

EPOCH_S = 1_700_000_000.0
"""When a world begins, in seconds since 1970."""
LIVENESS_STEPS_MAX = 12
"""How many times the caller may have to resume or answer, without any further fault, before the session is at rest."""


_CHANGES = frozenset({"switch", "bare", "restart"})
"""Moves to another process."""


class SimWorld:
    """One world, from one script: ``run`` it once, then look at its ``history``.

    tools: further tools of every process. extensions: makes further extensions of one process, outside the ones of the script
    if their priority says so. A handler of yours finds its process in ``context.deps``.
    """

    def __init__(
        self, script: Script, *, tools: Sequence[Any] = (), extensions: Callable[[], Sequence[AgentExtension]] = tuple[AgentExtension]
    ) -> None:
        self.script = script
        self.tools = tuple(tools)
        self.extensions = extensions
        self.loop = SimLoop(script.seed)
        self.disk = SimDisk()
        self.history = History(script)
        self.numbers = count(1)
        self.calm = False
        """The liveness phase: no further fault."""
        self.fenced: dict[str, int] = {}
        """By idempotency key: the oldest epoch that may still act, once it was said that nothing had been done."""
        self._processes: list[SimProcess] = []
        self._acts: dict[tuple[str, str], list[Act]] = {}
        for act in script.acts:
            self._acts.setdefault((act.when, act.what), []).append(act)
        self._passed: Counter[tuple[str, str]] = self.history.points
        self._replies = 0
        self._answers = 0
        self._outside = Context()

    def clock(self) -> float:
        """Seconds since 1970."""
        return EPOCH_S + self.loop.now

    def say(self, process: int, what: str) -> None:
        self.history.trace.append(f"{self.loop.now:.4f} {process} {what}")

    # ---- what the script says ------------------------------------------------------------------------------

    def reply_ahead(self) -> Reply:
        """What the model will say next."""
        replies = self.script.replies
        return replies[self._replies] if self._replies < len(replies) and not self.calm else Reply()

    def next_reply(self) -> Reply:
        reply = self.reply_ahead()
        self._replies += 1
        return reply

    def next_answer(self) -> Any:
        answers = self.script.answers or (True,)
        self._answers += 1
        return answers[(self._answers - 1) % len(answers)]

    def has_entered(self, number: int, layer: int) -> bool:
        """Whether call ``number`` has come to this layer before, in any process."""
        return any((entered.number, entered.layer) == (number, layer) for entered in self.history.entered)

    # ---- points ----------------------------------------------------------------------------------------------

    def point(self, process: SimProcess, when: str, what: str) -> None:
        """Something is about to happen, or has just happened, in ``process``. What the script has for this point strikes now."""
        at = (when, what)
        self._passed[at] += 1
        if self.calm:
            return
        for act in self._acts.get(at, ()):
            if act.nth == self._passed[at]:
                self._strike(process, act, at)

    def _strike(self, process: SimProcess, act: Act, at: tuple[str, str]) -> None:
        self.say(process.number, f"{act.kind} {act.when} {act.what} {act.nth}")
        match act.kind:
            case "crash":
                self.history.crashes.append(at)
                self.kill(process, act.share)
                raise Killed
            case "freeze":
                self.freeze(process, act.last_s)
            case "io_error":
                process.io_error = True
            case "leave":
                for task in process.callers:
                    task.cancel()
            case "rival":
                self.loop.call_later(act.last_s, self._rival, act.move, context=self._outside)
            case _:
                process.spawn(process.do(act.kind))

    def kill(self, process: SimProcess, share: float) -> None:
        """``process`` dies. share: how much of what it had buffered the disk had already taken (0 to 1)."""
        process.dead = True
        for log in list(process.journal.held.values()):
            log.lose(share)
        if self.script.same_machine:
            self.disk.dead.add(process.journal.owner)
        self.loop.kill(process.number)
        if not process.gone.done():
            process.gone.set_result(None)

    def freeze(self, process: SimProcess, last_s: float) -> None:
        """``process`` runs nothing for ``last_s`` seconds."""
        if process.dead:
            return
        self.loop.freeze(process.number)
        self.loop.call_later(last_s, self._thaw, process, context=self._outside)
        if not process.gone.done():
            process.gone.set_result(None)

    def _thaw(self, process: SimProcess) -> None:
        self.loop.thaw(process.number)
        self.say(process.number, "thaws")

    def _rival(self, move: str) -> None:
        """Another process does something to the same session."""
        asyncio.Task(self._rivalry(move), loop=self.loop, context=self._outside.copy())

    async def _rivalry(self, move: str) -> None:
        process = await self.process()
        process.spawn(process.do(move))

    async def process(self, *, bare: bool = False) -> SimProcess:
        """A new process. bare: its agent has no tools."""
        process = SimProcess(self, len(self._processes) + 1)
        self._processes.append(process)
        await process.spawn(process.start(bare=bare))
        return process

    # ---- the two phases --------------------------------------------------------------------------------------

    def run(self) -> History:
        """Safety: the moves, with every fault. Then liveness: without faults, the session must come to rest and answer once more."""
        history = self.history
        was_enabled, said = gc.isenabled(), _LOGGER.level
        gc.disable()  # when garbage is found must not depend on what ran before
        _LOGGER.setLevel(logging.CRITICAL)  # vetoes and mended requests are what this is about
        try:
            self.loop.run_until_complete(asyncio.Task(self._main(), loop=self.loop, context=self._outside.copy()))
        except (Stuck, InterlockError) as error:  # of the latter, a journal that is damaged
            history.unfinished = history.unfinished or f"{type(error).__name__}: {error}"
        finally:
            self._bury()
            _LOGGER.setLevel(said)
            if was_enabled:
                gc.enable()
        history.rows = {session: self.disk.read(session) for session in self.disk.rows}
        for line in history.problems:
            self.say(0, line)
        return history

    async def _main(self) -> None:
        process = await self.process()
        for move in self.script.moves:
            if process.gone.done() or move in _CHANGES:
                if move == "restart" and not process.gone.done():
                    await self._turn(process, "close")
                process = await self.process(bare=move == "bare")
                if move in _CHANGES:
                    continue
            await self._turn(process, move)
        await self._liveness()

    async def _turn(self, process: SimProcess, move: str) -> None:
        """One move, until it is done, or until its process is dead or frozen."""
        task = process.spawn(process.do(move))
        process.callers.add(task)
        await asyncio.wait({task, process.gone}, return_when=asyncio.FIRST_COMPLETED)
        process.callers.discard(task)

    async def _liveness(self) -> None:
        await asyncio.sleep(120.0)  # whoever is frozen wakes, and whoever lingers comes back
        self.calm = True
        await asyncio.sleep(60.0)
        for process in self._processes:
            process.look_at_all()
        process = await self.process()
        for _ in range(LIVENESS_STEPS_MAX):
            if not is_open(fold(row.record for row in self.disk.read(SESSION))):
                break
            await self._turn(process, "resume")
        else:
            self.history.unfinished = f"the session was still open after {LIVENESS_STEPS_MAX} resumptions"
            return
        await self._turn(process, "run")
        finished = self.history.finished[-1]
        if finished.result is None or finished.result.outcome is not Outcome.COMPLETED:
            self.history.unfinished = f"the last run of the session came to {finished.error or finished.result!r}"
        process.look_at_all()
        for known in self._processes:
            if not known.dead and known.agent is not None:
                await self._turn(known, "close")

    def _bury(self) -> None:
        """Let what is left of every process be cleaned up where nothing of it is seen."""
        self.history.problems += [line for line in self.loop.problems if "Killed" not in line]
        for process in self._processes:
            process.dead = True
        self.loop.bury()
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        for _ in range(8):
            for task in left:
                task.cancel()
            try:
                self.loop.run_until_complete(asyncio.Task(_settled(left), loop=self.loop))
            except (Stuck, InterlockError):
                break
            left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
            if not left:
                break
        self.loop.close()


async def _settled(tasks: list[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=100.0)
    await asyncio.sleep(0)
