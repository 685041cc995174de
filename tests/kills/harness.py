"""Kills agents: lives one after the other in each world, most of them ended by SIGKILL, until its jobs are done."""

from __future__ import annotations

import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from interlock.machine import Progress, is_open
from interlock.records import RunStarted, ToolStepEnded
from kills.checks import Journal, unfinished, violations
from kills.life import ANSWERS, TRAITS, Plan
from kills.points import ASKED, PERSON, RANDOM, WINDOWS
from kills.world import Said, World, prompt
from kills.zygote import LiveProcess, Zygote
from threaded import serving

CALM_LIVES_MAX = 40
"""Lives without a kill after which a world must have come to its end."""


@dataclass
class Tally:
    """What was done and found. open: kills while a run was open. lives: all of them, killed or not."""

    kills: Counter[str] = field(default_factory=Counter[str])
    open: Counter[str] = field(default_factory=Counter[str])
    points: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])
    lives: int = 0
    worlds: int = 0
    handlers: int = 0
    effects: Counter[str] = field(default_factory=Counter[str])
    requests: int = 0
    commands: int = 0

    @property
    def killed(self) -> int:
        return self.kills.total()

    def rarest(self, windows: Collection[str], rng: random.Random) -> str:
        """The window in which the next kill is wanted: mostly the one that had the fewest."""
        least = min(windows, key=lambda window: (self.kills[window], rng.random()))
        return least if rng.random() < 0.7 else rng.choice(list(windows))


class Harness:
    """Plays worlds and keeps the tally. Made by ``harness()``."""

    def __init__(self, zygote: Zygote, folder: Path, base_url: str, worlds: dict[str, World]) -> None:
        self.tally = Tally()
        self._zygote = zygote
        self._folder = folder
        self._base_url = base_url
        self._worlds = worlds
        self._run_s = 0.02

    def play(self, seed: int, *, kills: int) -> list[str]:
        """Play the world of ``seed`` to its end, with about ``kills`` kills on the way. Returns what was wrong with it."""
        world = World(seed, self._folder)
        self._worlds[world.name] = world
        try:
            wrong = [f"world {seed}: {sentence}" for sentence in _World(self, world, seed).play(kills)]
        finally:
            del self._worlds[world.name]
        self.tally.worlds += 1
        self.tally.requests += len(world.bodies)
        self.tally.violations += wrong
        for path in self._folder.glob(f"{world.name}.*"):
            path.unlink()
        return wrong

    def live(self, plan: Plan, *, kill_after_s: float | None, from_start: bool) -> Life:
        """One life. kill_after_s: of the start, or of the moment when its run is under way; None leaves it to the plan's point."""
        process = self._zygote.start(plan)
        life = _watched(process, kill_after_s, from_start)
        life.code = process.end()
        if life.code == 0:
            life.killed = False  # it was quicker
        self.tally.lives += 1
        if life.ran_s:
            self._run_s += (life.ran_s - self._run_s) / 8
        return life

    def plan(self, world: World, **what: Any) -> Plan:
        return Plan(
            journal=str(world.journal),
            ledger=str(world.ledger),
            base_url=self._base_url,
            control=self._zygote.control,
            world=world.name,
            **what,
        )

    def instant(self, rng: random.Random) -> float:
        """A random moment of a run, by how long they take."""
        return rng.uniform(0.0, self._run_s)


@dataclass
class Life:
    """What came of one. killed: by us. point: where it stood, "" for a random instant. ran_s: how long its run took, if it ended."""

    heard: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    killed: bool = False
    point: str = ""
    code: int = 0
    ran_s: float = 0.0

    @property
    def wrong(self) -> str:
        for said in self.heard:
            if said["what"] in ("error", "hangs"):
                return f"a life came to nothing: {said.get('trace', 'it hung')}"
        if not self.killed and self.code:
            return f"a life ended with the code {self.code}"
        return f"a life ended with the code {self.code} before it could be killed" if self.killed and self.code != -signal.SIGKILL else ""


def _watched(process: LiveProcess, kill_after_s: float | None, from_start: bool) -> Life:
    life = Life()
    began = 0.0
    until = time.monotonic() + kill_after_s if kill_after_s is not None and from_start else None
    while True:
        said = process.hear(until=until)
        if said is None and until is None:
            return life
        if said is not None:
            life.heard.append(said)
        match said:
            case {"what": "under way"}:
                began = time.monotonic()
                if kill_after_s is not None and not from_start:
                    until = began + kill_after_s
            case {"what": "result"} if began:
                life.ran_s = time.monotonic() - began
        # A process that has closed its end is heard as None too; it is only a zombie then, until it is reaped.
        if said is None or said["what"] in ("at", "hangs"):
            life.heard += process.kill()
            life.killed = True
            life.point = "" if said is None else said.get("point", "")
            return life


class _World:
    """One world being played."""

    def __init__(self, harness: Harness, world: World, seed: int) -> None:
        self.harness = harness
        self.world = world
        self.rng = random.Random(f"lives {seed}")
        self.journal = Journal([])
        self.job = -1
        self.lives = 0

    def play(self, kills: int) -> Iterator[str]:
        calm, killed = 0, 0
        while (plan := self.next_plan()) is not None:
            self.lives += 1
            window = self.harness.tally.rarest(self.windows(plan), self.rng) if killed < kills else ""
            life = self.live(plan, window)
            wrong = list(self.judge(life, plan, window))
            if wrong:
                yield from (f"life {self.lives} ({plan.do}, {life.point or window}): {sentence}" for sentence in wrong)
                return
            killed += life.killed
            calm = 0 if killed < kills else calm + 1
            if calm > CALM_LIVES_MAX:
                yield "it does not come to its end"
                return
        yield from unfinished(self.journal)
        tally = self.harness.tally
        tally.handlers += sum(entry.what == "began" for entry in self.world.entries())
        tally.effects.update(record.effect for record in self.journal.of(ToolStepEnded))
        tally.commands += sum(one.what != "refused" for one in self.world.said)

    def next_plan(self) -> Plan | None:
        """What the next process is started for. None when every job is done."""
        rng, state, more = self.rng, self.journal.state, self.job + 1 < len(self.world.jobs)
        begins = not is_open(state)
        if begins and not more:
            return None
        if begins or (more and rng.random() < 0.1):  # the latter supersedes a run that is open
            self.job += 1
            return self.plan("run", prompt=prompt(self.job), run_id=f"run-{self.job}-{self.lives}")
        waiting = [call for call in state.calls.values() if call.progress is Progress.WAITING]
        if waiting and rng.random() < 0.8:
            asked = rng.choice(waiting)
            answer = rng.choice(["allow", *ANSWERS])
            return self.plan("answer", question=asked.question_id, answer=answer, item=json.loads(asked.call.arguments)["item"])
        return self.plan("resume")

    def windows(self, plan: Plan) -> list[str]:
        """Where this life may be killed: some windows need a certain past."""
        calls = self.journal.state.calls.values()
        lost = [call for call in calls if call.starts and call.progress is not Progress.DONE and "reconcile" in TRAITS[call.call.name]]
        person = plan.do == "answer" or any(call.call.name == "transfer" and call.progress is not Progress.DONE for call in calls)
        return [window for window in WINDOWS if (window != ASKED or lost) and (window != PERSON or person)]

    def plan(self, do: str, **what: Any) -> Plan:
        steer = f"And mind this: {self.lives}." if self.rng.random() < 0.2 else ""
        return self.harness.plan(self.world, do=do, steer=steer, cancel=self.rng.random() < 0.04, **what)

    def live(self, plan: Plan, window: str) -> Life:
        rng = self.rng
        if window == RANDOM:
            return self.harness.live(plan, kill_after_s=self.harness.instant(rng), from_start=plan.do != "run" or rng.random() < 0.2)
        if window:
            point = rng.choice(WINDOWS[window])
            plan = replace(plan, point=point, nth=rng.choice((0, 0, 0, 1, 2)), still=rng.random() < 0.5)
        return self.harness.live(plan, kill_after_s=None, from_start=False)

    def judge(self, life: Life, plan: Plan, window: str) -> Iterator[str]:
        world, before = self.world, self.journal.rows
        said = [Said(self.lives, one["what"], one) for one in life.heard if one["what"] in ("steered", "cancelled", "refused", "result")]
        if plan.do == "answer" and any(one.what == "result" for one in said):
            said.append(Said(self.lives, "answered", {"question": plan.question}))
        world.said += said
        self.journal = Journal(world.rows())
        if life.killed:
            tally = self.harness.tally
            tally.kills[window] += 1
            tally.open[window] += is_open(self.journal.state)
            tally.points[life.point] += 1
        if life.wrong:
            yield life.wrong
        yield from violations(self.journal, before, world.entries(), world.bodies, world.said)
        if plan.do == "run" and all(started.run_id != plan.run_id for started in self.journal.of(RunStarted)):
            self.job -= 1  # it died before the prompt was accepted, so somebody says it again


@contextmanager
def harness() -> Iterator[Harness]:
    """A harness with its servers and its zygote; nothing of them is left afterwards."""
    worlds: dict[str, World] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-kills-")))
        server = stack.enter_context(serving(lambda body: worlds[body["model"]].step(body)))
        yield Harness(stack.enter_context(Zygote()), folder, server.base_url, worlds)
