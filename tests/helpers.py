"""Small things that many tests share: play a script against an agent, and look at what came of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import pytest

from interlock import Agent, AgentRunConfig, Limits, RunResult
from interlock.events import Event, RunFinished, StreamRestarted, TextDelta
from interlock.journal import Journal
from interlock.messages import AssistantMessage
from interlock.model import ModelResponse, Stop, StopReason
from interlock.providers.openai import OpenAIChatModel
from interlock.records import Record
from interlock.testing import ScriptedModel, WireServer

WIRES = ("memory", "streamed", "plain")
"""How a script reaches the agent: without a socket, over one as a stream, over one as a whole reply."""

eager_tasks = pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="tasks can start eagerly from Python 3.12 on")


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An asynchronous test as pytest takes it: run to its end in a loop of its own."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(_awaited(test(*args, **named)))

    return run


async def _awaited(test: Awaitable[None]) -> None:
    await test


def limits(**changed: Any) -> Limits:
    """Limits under which nothing waits between attempts."""
    return Limits(**{"backoff_s": 0.0, "backoff_max_s": 0.0, **changed})


@dataclass
class Played:
    """What came of a script. bodies: every request, as the wire has it. results and errors: of each prompt, in order."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @property
    def result(self) -> RunResult:
        assert not self.errors, self.errors
        return self.results[-1]

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    def shown(self) -> str:
        """The text in front of a consumer that clears it where it is withdrawn."""
        text = ""
        for event in self.events:
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, StreamRestarted):
                text = ""
        return text


async def play(
    steps: Any,
    *,
    tools: Iterable[Any] = (),
    wire: str = "memory",
    prompts: Sequence[str] = ("Go.",),
    extensions: Iterable[Any] = (),
    bounds: Limits | None = None,
    journal: Journal | str | None = None,
    session_id: str = "s",
    system_prompt: str = "",
    config: AgentRunConfig | None = None,
) -> Played:
    """Send ``prompts`` one after the other to an agent whose model plays ``steps`` to their end."""
    played = Played()
    if wire == "memory":
        model = ScriptedModel(steps)
        await _converse(model, played, tools, prompts, extensions, bounds, journal, session_id, system_prompt, config)
        played.bodies = list(model.bodies)
        model.assert_done()
        return played
    async with WireServer(steps) as server:
        model = OpenAIChatModel("scripted", base_url=server.base_url, stream=wire == "streamed")
        await _converse(model, played, tools, prompts, extensions, bounds, journal, session_id, system_prompt, config)
        played.bodies = [request.body for request in server.requests]
    return played


async def _converse(
    model: Any,
    played: Played,
    tools: Any,
    prompts: Any,
    extensions: Any,
    bounds: Any,
    journal: Any,
    session_id: str,
    system: str,
    config: Any,
) -> None:
    base = AgentRunConfig(session_id=session_id)
    async with await Agent.create(
        model,
        config=config.over(base) if config is not None else base,
        tools=tools,
        extensions=extensions,
        limits=bounds or limits(),
        journal=journal,
        system_prompt=system,
    ) as agent:
        for prompt in prompts:
            try:
                async with aclosing(agent.stream(prompt)) as events:
                    async for event in events:
                        played.events.append(event)
                        if isinstance(event, RunFinished):
                            played.results.append(event.result)
            except Exception as error:
                played.errors.append(error)
        played.records = [row.record for row in await agent.session(session_id).records()]


@asynccontextmanager
async def agent_playing(steps: Any, *, bounds: Limits | None = None, **options: Any) -> AsyncIterator[Agent]:
    """An agent in session ``s`` whose model plays ``steps`` (or is one), all of which must have been asked for in the end."""
    model = steps if isinstance(steps, ScriptedModel) else ScriptedModel(steps)
    config = AgentRunConfig(session_id="s")
    async with await Agent.create(model, config=config, limits=bounds or limits(), **options) as agent:
        yield agent
    model.assert_done()


async def records_of(agent: Agent, *kinds: type[Any], session_id: str = "s") -> list[Any]:
    """The session's records; only those of ``kinds``, if there are any."""
    return [row.record for row in await agent.session(session_id).records() if not kinds or isinstance(row.record, kinds)]


def slow_claim(agent: Agent, gate: asyncio.Event, session_id: str = "s") -> asyncio.Event:
    """From now on, taking the session takes until ``gate`` is set. The event that is returned says that it has begun."""
    live, begun = agent.live(session_id), asyncio.Event()
    log = live.log

    class Slow:
        async def claim(self, *, lease_s: float) -> Any:
            begun.set()
            await gate.wait()
            return await log.claim(lease_s=lease_s)

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

    live.log = Slow()  # type: ignore[assignment]
    return begun


@asynccontextmanager
async def no_noise() -> AsyncIterator[None]:
    """Fails if the event loop has anything to complain of afterwards, or if a task is left over."""
    loop = asyncio.get_running_loop()
    complaints: list[str] = []
    loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
    before = asyncio.all_tasks()
    try:
        yield
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        assert complaints == []
        assert asyncio.all_tasks() - before == set()
    finally:
        loop.set_exception_handler(None)


def reply(text: str = "", *, reason: StopReason = StopReason.STOP, raw: str | None = None, **message: Any) -> list[ModelResponse]:
    """A step for ScriptedModel: one whole response, past the wire."""
    return [ModelResponse(message=AssistantMessage(content=text, **message), stop=Stop(reason, raw))]


def said(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """The messages of a request as (role, content)."""
    return [(message["role"], message.get("content")) for message in body["messages"]]
