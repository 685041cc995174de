"""Playing a scenario: an agent on a scripted server, and what must be true of every play, whatever it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interlock import Agent, AgentRunConfig, Limits, Outcome, RunResult
from interlock.events import ModelStarted, RunFinished, StreamRestarted, TextDelta
from interlock.machine import Phase, fold, texts
from interlock.messages import AssistantMessage, ToolMessage, UserMessage
from interlock.records import HandlerStarted, Row
from interlock.testing import Step, WireServer

from .rounds import ForEver, Round
from .stage import Layer, Stage
from .validity import complaints
from .wires import WIRES
from .words import Words

NUDGES = (texts.DROPPED_NUDGE, texts.EMPTY_NUDGE, texts.REASONING_NUDGE, texts.LENGTH_NUDGE)
QUICK = {"backoff_s": 0.004, "backoff_max_s": 0.02}
SESSION = "conversation"

Act = Callable[["Play"], Awaitable[None]]
Check = Callable[["Play"], str | None]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One conversation.

    rounds: what the model says, in order. prompts: what the user says, one run each. act: what happens beside the first
    run. beside: another conversation, at the same time, of the same agent. plain: whether it also makes sense when
    replies are not streamed. limits: what differs from the defaults.
    """

    name: str
    rounds: Sequence[Round]
    checks: Sequence[Check]
    tools: Sequence[str] = ("charge",)
    layers: Sequence[Layer] = ()
    prompts: Sequence[str] = ("Please charge the card.",)
    act: Act | None = None
    beside: Scenario | None = None
    plain: bool = True
    limits: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Turn:
    """One run as its caller saw it. shown: the text that a consumer has on its screen at the end."""

    result: RunResult | None = None
    error: BaseException | None = None
    shown: str = ""
    events: list[Any] = field(default_factory=list[Any])


class Play:
    """One play of one scenario."""

    def __init__(self, scenario: Scenario, stage: Stage, *, session: str = SESSION) -> None:
        self.scenario = scenario
        self.stage = stage
        self.words = stage.words
        self.session = session
        self.turns: list[Turn] = []
        self.rows: list[Row] = []
        self.agent: Agent
        self.server: WireServer
        self.task: asyncio.Task[None]
        self.bodies: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self._streamed = True
        self._next = 0

    def answer(self, body: dict[str, Any]) -> Step:
        """The server's side: the next round; the last one again if it is for ever."""
        self.bodies.append(body)
        self.stage.bodies.append(body)
        self.wrong += [f"request {len(self.bodies)}: {why}" for why in complaints(body)]
        rounds = self.scenario.rounds
        if self._next >= len(rounds):
            if rounds and isinstance(rounds[-1], ForEver):
                return rounds[-1].step(self.stage)
            self.wrong.append(f"request {len(self.bodies)} was not expected")
            raise AssertionError(self.wrong[-1])
        self._next += 1
        return rounds[self._next - 1].step(self.stage)

    async def talk(self, *, streamed: bool) -> None:
        self._streamed = streamed
        for number, prompt in enumerate(self.scenario.prompts):
            turn = Turn()
            self.turns.append(turn)
            act = self.scenario.act if number == 0 else None
            self.task = asyncio.create_task(self._run(turn, self.words.text(prompt), streamed=streamed))
            if act is not None:
                await act(self)
            await asyncio.wait({self.task})
            if not self.task.cancelled():
                self.task.result()

    async def _run(self, turn: Turn, prompt: str, *, streamed: bool) -> None:
        config = AgentRunConfig(session_id=self.session)
        try:
            if not streamed:
                turn.result = await self.agent.run(prompt, config=config)
                return
            async with aclosing(self.agent.stream(prompt, config=config)) as events:
                async for event in events:
                    self._see(turn, event)
        except asyncio.CancelledError as error:
            turn.error = error
            raise
        except BaseException as error:
            turn.error = error

    def _see(self, turn: Turn, event: Any) -> None:
        turn.events.append(event)
        match event:
            case TextDelta():
                turn.shown += event.text
                self.stage.gate("text shown").set()
            case StreamRestarted():
                turn.shown = ""
            case ModelStarted(attempt=0):
                turn.shown = ""
            case RunFinished():
                turn.result = event.result
            case _:
                pass

    # ---- what is true of every play ------------------------------------------------------------------

    def complaints(self) -> list[str]:
        wrong = [*self.wrong]
        wrong += [why for check in self.scenario.checks if (why := check(self)) is not None]
        left = len(self.scenario.rounds) - self._next
        if left and not isinstance(self.scenario.rounds[-1], ForEver):
            wrong.append(f"{left} rounds were never asked for")
        wrong += self._of_journal()
        wrong += [why for turn in self.turns for why in self._of_turn(turn)]
        return wrong

    def _of_journal(self) -> list[str]:
        wrong: list[str] = []
        phase = fold(row.record for row in self.rows).phase
        if phase not in (Phase.IDLE, Phase.STALLED):
            wrong.append(f"the session rests in phase {phase.value}")
        started = [row.record.key for row in self.rows if isinstance(row.record, HandlerStarted)]
        if len(set(started)) != len(started):
            wrong.append(f"a handler started twice: {started}")
        return wrong

    def _of_turn(self, turn: Turn) -> list[str]:
        result = turn.result
        if result is None:
            return []
        wrong: list[str] = []
        for message in result.messages:
            if isinstance(message, UserMessage | AssistantMessage) and any(nudge in str(message.content) for nudge in NUDGES):
                wrong.append(f"scaffolding in the transcript: {message}")
        calls = [call.id for m in result.messages if isinstance(m, AssistantMessage) for call in m.tool_calls]
        results = [m.tool_call_id for m in result.messages if isinstance(m, ToolMessage)]
        if calls != results:
            wrong.append(f"the transcript's calls {calls} have the results {results}")
        shows = result.outcome is Outcome.COMPLETED and result.reason == "answer"
        if self._streamed and shows and turn.shown != result.text:
            wrong.append(f"the consumer has {turn.shown!r} on its screen, the answer is {result.text!r}")
        return wrong


async def play(scenario: Scenario, words: Words, *, streamed: bool, plain: bool, folder: Path | None, wire: str = "chat") -> Play:
    """Play ``scenario``. streamed: events, or only the result. plain: replies come whole. folder: a SQLite journal goes there."""
    spoken = WIRES[wire]
    stage = Stage(words)
    main = Play(scenario, stage)
    plays = [main]
    if scenario.beside is not None:
        plays.append(Play(scenario.beside, stage, session="another one"))
    whose = {words.text(one.scenario.prompts[0]): one for one in plays}

    def answer(body: dict[str, Any]) -> Step:
        body = spoken.chat(body)
        first = next(message["content"] for message in body["messages"] if message["role"] == "user")
        return whose[first].answer(body)

    before = asyncio.all_tasks()
    async with WireServer(answer) as server:
        agent = await Agent.create(
            spoken.model(server, not plain),
            tools=[stage.tool(name) for name in scenario.tools],
            extensions=[make(stage) for make in scenario.layers],
            journal=None if folder is None else f"sqlite:///{folder / 'journal.db'}",
            limits=Limits(**{**QUICK, **scenario.limits}),
        )
        async with agent:
            for one in plays:
                one.agent, one.server = agent, server
            await asyncio.gather(*(one.talk(streamed=streamed) for one in plays))
            for one in plays:
                one.rows = await agent.session(one.session).records()
    left = [task for task in asyncio.all_tasks() - before if not task.done()]
    if left:
        await asyncio.wait(left, timeout=1)
        main.wrong += [f"a task is left: {task!r}" for task in left if not task.done()]
    return main
