"""One life of the agent's process, in the child of a fork: it does what its plan says until it is done, or dead.

It speaks to the harness in lines of JSON over a socket. Where the plan wants it killed it says so and stands still: the whole process
(``still``), or only the task that came there, while its siblings go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock import Agent, AgentExtension, AgentRunConfig, Allow, Deny, Edit, Limits, RunContext, current_tool_call_id, tool
from interlock.errors import CommandRefused
from interlock.extensions.base import Suspended
from interlock.providers.openai import OpenAIChatModel
from interlock.records import (
    HandlerStarted,
    ModelStepEnded,
    Outcome,
    QuestionAnswered,
    ReconcileEnded,
    ReconcileStarted,
    RunEnded,
    RunStarted,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
)
from interlock.tools import Reconciled, did_not_happen, happened, unknown

TRAITS: dict[str, dict[str, Any]] = {
    "pay": {"parallel": False},
    "send": {"parallel": True},
    "post": {"parallel": True},
    "transfer": {"parallel": False},
    "note": {"parallel": True, "on_crash": "rerun"},
    "file": {"parallel": False, "on_crash": "rerun"},
    "wire": {"parallel": True, "reconcile": True},
    "book": {"parallel": False, "on_crash": "rerun", "reconcile": True},
}
"""The tools. ``post`` is a plain function, on a thread; ``transfer`` asks a person first; those with ``reconcile`` look into the
ledger after a crash, ``wire`` on the event loop and ``book`` on a thread."""

_BUFFERED: dict[type[Any], str] = {
    RunStarted: "run buffered",
    ModelStepEnded: "response buffered",
    ToolStepStarted: "entry buffered",
    HandlerStarted: "start buffered",
    ToolStepEnded: "result buffered",
    ToolStepSuspended: "question buffered",
    QuestionAnswered: "answer buffered",
    RunEnded: "end buffered",
    ReconcileStarted: "question to the tool buffered",
    ReconcileEnded: "the tool's answer buffered",
}


@dataclass(frozen=True)
class Plan:
    """What one life does.

    do: ``run``, ``resume`` or ``answer`` (one of ``ANSWERS``, about ``item``). point: where it stands still, at the passage ``nth``
    (from 0). steer: what it says to the run once that is under way. cancel: whether it cancels it then.
    """

    journal: str
    ledger: str
    base_url: str
    control: str
    world: str
    do: str
    prompt: str = ""
    run_id: str = ""
    question: str = ""
    answer: str = ""
    item: str = ""
    steer: str = ""
    cancel: bool = False
    point: str = ""
    nth: int = 0
    still: bool = True


class Line:
    """The way to the harness. When that is gone, so is this process."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lock = threading.Lock()

    def say(self, what: str, **more: Any) -> None:
        with self._lock:
            self._socket.sendall(json.dumps({"what": what, **more}).encode() + b"\n")

    def stand_still(self) -> None:
        self._socket.recv(1)
        os._exit(3)

    def end_with_harness(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._socket.fileno(), os._exit, 3)


class Stops:
    """Knows the point at which this life is to stand still. moment: set once the run is under way, and what began it is stored."""

    def __init__(self, plan: Plan, line: Line) -> None:
        self.moment = asyncio.Event()
        self._plan = plan
        self._line = line
        self._passed: Counter[str] = Counter()

    async def at(self, point: str) -> None:
        if self._is_due(point):
            self._line.say("at", point=point)
            if self._plan.still:
                self._line.stand_still()
            await asyncio.Event().wait()

    def at_blocking(self, point: str) -> None:
        """From a thread, and from a hook: there is nothing to await there."""
        if self._is_due(point):
            self._line.say("at", point=point)
            self._line.stand_still()

    def under_way(self) -> None:
        if not self.moment.is_set():
            self.moment.set()
            self._line.say("under way")

    def _is_due(self, point: str) -> bool:
        self._passed[point] += 1
        return self._plan.point == point and self._passed[point] == self._plan.nth + 1


def tools(stops: Stops, ledger: Path) -> list[Any]:
    """Each writes into the world's ledger when it begins and when its effect has happened."""

    def enter(what: str, name: str, item: str, context: RunContext) -> None:
        entry = {
            "what": what,
            "tool": name,
            "item": item,
            "call": current_tool_call_id(),
            "key": context.idempotency_key(),
            "pid": os.getpid(),
        }
        # One write of an append is whole or absent, and what is written outlives its process without a sync.
        file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, json.dumps(entry).encode() + b"\n")
        os.close(file)

    def made(name: str) -> Callable[..., Any]:
        async def handler(item: str, context: RunContext) -> str:
            await stops.at("first line")
            enter("began", name, item, context)
            await stops.at("begun")
            enter("happened", name, item, context)
            await stops.at("effect made")
            return f"done: {item}"

        def on_a_thread(item: str, context: RunContext) -> str:
            stops.at_blocking("first line")
            enter("began", name, item, context)
            stops.at_blocking("begun")
            enter("happened", name, item, context)
            stops.at_blocking("effect made")
            return f"done: {item}"

        return on_a_thread if name == "post" else handler

    def became(key: str, arguments: dict[str, Any]) -> Reconciled:
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        found = {entry["what"] for entry in map(json.loads, lines) if entry["key"] == key}
        if "happened" in found:
            return happened(f"done: {arguments['item']}")
        return unknown("it has begun") if "began" in found and arguments["item"].endswith("0") else did_not_happen()

    async def look(key: str, arguments: dict[str, Any]) -> Reconciled:
        await stops.at("the tool is asked")
        return became(key, arguments)

    def look_on_a_thread(key: str, arguments: dict[str, Any]) -> Reconciled:
        stops.at_blocking("the tool is asked")
        return became(key, arguments)

    def traits_of(name: str) -> dict[str, Any]:
        asked = look if name == "wire" else look_on_a_thread
        return {**TRAITS[name], "reconcile": asked} if "reconcile" in TRAITS[name] else TRAITS[name]

    return [tool(name=name, description=f"{name} one item", **traits_of(name))(made(name)) for name in TRAITS]


class Watch(AgentExtension):
    """A layer that only looks: one outside the others, one inside."""

    def __init__(self, stops: Stops, place: str, priority: int) -> None:
        self.name, self.priority = f"Watch-{place}", priority
        self._stops, self._place = stops, place

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        self._stops.under_way()
        await self._stops.at(f"{self._place} layer in")
        value = await call_next()
        await self._stops.at(f"{self._place} layer out")
        return value


class Records(AgentExtension):
    """Looks at every record when it is appended, and at each model step."""

    def __init__(self, stops: Stops) -> None:
        self._stops = stops

    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        self._stops.under_way()
        await self._stops.at("request due")
        async for event in call_next(request):
            yield event
        await self._stops.at("response read")

    def on_record(self, context: Any, record: Any) -> None:
        if point := _BUFFERED.get(type(record)):
            self._stops.at_blocking(point)


class Approval(AgentExtension):
    """A transfer waits for a person, who may be asked by one process and answer in another."""

    priority = 50

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        if call.name != "transfer":
            return await call_next()
        if context.answer is None:
            return Suspended(f"Transfer {call.arguments['item']}?")
        if context.answer != "no":
            return await call_next()
        raise PermissionError("a person said no")


ANSWERS: dict[str, Callable[[str], Any]] = {
    "allow": lambda item: Allow(),
    "text": lambda item: "all right",
    "deny": lambda item: Deny("a person said no"),
    "no": lambda item: "no",
    "edit": lambda item: Edit({"item": f"{item}, edited"}),
}
"""What a person says of an item: the answer to a question, by a name that a plan can carry."""


async def live(plan: Plan, line: Line) -> None:
    line.end_with_harness(asyncio.get_running_loop())
    stops = Stops(plan, line)
    agent = await Agent.create(
        OpenAIChatModel(plan.world, base_url=plan.base_url),
        config=AgentRunConfig(session_id=plan.world),
        tools=tools(stops, Path(plan.ledger)),
        extensions=[Watch(stops, "outer", 10), Records(stops), Approval(), Watch(stops, "inner", 800)],
        journal=f"sqlite:///{plan.journal}",
        limits=Limits(requests=10_000, backoff_s=0.0),
    )
    commands = asyncio.create_task(_command(agent, plan, stops, line))
    async with agent:
        match plan.do:
            case "run":
                result = await agent.run(plan.prompt, config=AgentRunConfig(run_id=plan.run_id))
            case "answer":
                result = await agent.answer(plan.question, ANSWERS[plan.answer](plan.item))
            case _:
                result = await agent.resume()
        line.say("result", run_id=result.run_id, outcome=result.outcome.value, questions=[question.id for question in result.questions])
        if result.outcome is Outcome.WAITING:
            await stops.at("waiting")
        commands.cancel()


async def _command(agent: Agent, plan: Plan, stops: Stops, line: Line) -> None:
    """What a person says while the run is under way. It counts as accepted once that is said."""
    await stops.moment.wait()
    try:
        if plan.steer:
            await agent.steer(plan.steer)
            line.say("steered", text=plan.steer)
        if plan.cancel:
            await agent.cancel()
            line.say("cancelled")
    except CommandRefused as error:
        line.say("refused", why=str(error))
