"""Hooks and models that misbehave: the caller hears whose fault it is, and the session goes on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    Outcome,
    RunContext,
    UsageError,
    tool,
)
from interlock.messages import AssistantMessage, ToolCall, ToolMessage, Usage
from interlock.model import ModelResponse, Stop, StopReason
from interlock.testing import ScriptedModel, Step, call, calls, text

from .saying import refused

SESSION = AgentRunConfig(session_id="s")


class Bug(RuntimeError):
    pass


@dataclass
class Faulty:
    """Raises once, when ``at`` is reached."""

    at: str
    left: int = 1
    raised: list[Bug] = field(default_factory=list)

    def reach(self, where: str) -> None:
        if where == self.at and self.left:
            self.left -= 1
            self.raised.append(Bug(f"a bug in {where}"))
            raise self.raised[-1]


def faulty_extension(fault: Faulty) -> AgentExtension:
    class Odd(AgentExtension):
        def instructions(self, context: RunContext) -> str | None:
            fault.reach("instructions")
            return None

        def on_record(self, context: RunContext, record: Any) -> None:
            fault.reach("on_record")

        def fold(self, memory: Any, record: Any) -> Any:
            fault.reach("fold")
            return memory

        async def on_model_request(self, context: RunContext, request: Any, call_next: Any) -> Any:
            fault.reach("before the model")
            async for event in call_next(request):
                yield event
                fault.reach("in the stream")
            fault.reach("after the model")

        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            fault.reach("before the tool")
            value = await call_next()
            fault.reach("after the tool")
            return value

    return Odd()


PLACES = ("instructions", "on_record", "fold", "before the model", "in the stream", "after the model", "before the tool", "after the tool")


@pytest.mark.parametrize("place", PLACES)
def test_a_hook_that_raises_once_never_costs_the_session(place: str, tmp_path: Path) -> None:
    """The caller gets the hook's own exception, one that names it, or a result; the next run is a normal one; nothing ran twice."""
    paid: list[int] = []

    async def pay() -> str:
        paid.append(1)
        return "paid"

    def answer(body: dict[str, Any]) -> Step:
        asked = body["messages"][-1]["role"] == "user"
        return calls(call(f"c{len(body['messages'])}", "pay", {})) if asked else text("Done.")

    async def main() -> None:
        fault = Faulty(place)
        agent = await Agent.create(
            ScriptedModel(answer),
            tools=[pay],
            extensions=[faulty_extension(fault)],
            config=SESSION,
            journal=f"sqlite:///{tmp_path / 'j.db'}",
        )
        async with agent, asyncio.timeout(10):
            caught: list[BaseException] = []
            try:
                result = await agent.run("x")
                assert result.outcome is Outcome.COMPLETED
            except Bug as error:
                caught.append(error)
            except UsageError as error:  # a fold's bug is named
                caught.append(error.__cause__ or error)
            assert caught in ([], fault.raised)
            assert fault.left == 0
            before = len(paid)
            result = await agent.run("y")
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "Done.")
            assert len(paid) == before + 1 <= 2

    asyncio.run(main())


def test_a_tool_whose_availability_cannot_be_asked_costs_one_run() -> None:
    fault = Faulty("available")

    def available(context: RunContext) -> bool:
        fault.reach("available")
        return True

    @tool(available=available)
    async def pay() -> None: ...

    async def main() -> None:
        async with await Agent.create(ScriptedModel([text("Fine.")]), tools=[pay]) as agent, asyncio.timeout(10):
            with pytest.raises(Bug):
                await agent.run("x")
            assert (await agent.run("y")).text == "Fine."

    asyncio.run(main())


FINE = AssistantMessage(content="Fine.")
ILL_FORMED: list[Any] = [
    ModelResponse(message=None, stop=Stop(StopReason.STOP)),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=FINE, stop=None),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=FINE, stop=Stop("stop")),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=FINE, stop=Stop(StopReason.STOP, 5)),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=FINE, stop=Stop(StopReason.STOP), usage=5),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=FINE, stop=Stop(StopReason.STOP), usage=Usage(input_tokens="5")),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=AssistantMessage(content=None), stop=Stop(StopReason.STOP)),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=AssistantMessage(content="x", reasoning=5), stop=Stop(StopReason.STOP)),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=AssistantMessage(tool_calls=(ToolCall(id=None, name="x"),)), stop=Stop(StopReason.TOOL_CALLS)),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=AssistantMessage(tool_calls=("x",)), stop=Stop(StopReason.TOOL_CALLS)),  # pyright: ignore[reportArgumentType]
    ModelResponse(message=AssistantMessage(tool_calls=[]), stop=Stop(StopReason.STOP)),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize("response", ILL_FORMED, ids=[str(number) for number in range(len(ILL_FORMED))])
@pytest.mark.parametrize("streamed", [True, False])
def test_an_ill_formed_response_is_never_recorded_and_the_session_goes_on(response: Any, streamed: bool, tmp_path: Path) -> None:
    async def main() -> None:
        journal = f"sqlite:///{tmp_path / 'j.db'}"
        async with await Agent.create(ScriptedModel([[response], text("Fine.")]), config=SESSION, journal=journal) as agent:
            with refused("ModelResponse"):
                if streamed:
                    async for _ in agent.stream("x"):
                        pass
                else:
                    await agent.run("x")
        async with await Agent.create(ScriptedModel([text("Fine.")]), config=SESSION, journal=journal) as agent:
            assert (await agent.resume()).text == "Fine."

    asyncio.run(main())


def test_a_call_never_outlives_the_call_that_made_it() -> None:
    """A handler that leaves a nested call behind: it is cancelled, settled, and the run goes on."""

    async def main() -> None:
        left: list[str] = []
        running = asyncio.Event()
        behind: list[asyncio.Task[Any]] = []

        async def slow() -> None:
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.append("slow")

        async def parent(context: RunContext) -> str:
            behind.append(asyncio.create_task(context.call_tool("slow")))
            await running.wait()
            return "parent is done"

        async with await Agent.create(ScriptedModel([calls(call("c1", "parent", {})), text("Done.")]), tools=[slow, parent]) as agent:
            result = await agent.run("x")
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "Done.")
            assert left == ["slow"]
            assert (await asyncio.gather(*behind, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    asyncio.run(main())


def test_a_nested_call_never_takes_the_place_of_a_call_with_the_same_id() -> None:
    async def main() -> None:
        async def outer(context: RunContext) -> str:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return f"outer {await context.call_tool('inner')}"

        async def inner() -> str:
            return "inner"

        async def plain() -> str:
            return "plain"

        model = ScriptedModel([calls(call("c1", "outer", {}), call("c1.0", "plain", {})), text("Done.")])
        async with await Agent.create(model, tools=[outer, inner, plain]) as agent:
            result = await agent.run("x")
        told = {m.tool_call_id: m.content for m in result.messages if isinstance(m, ToolMessage)}
        assert told == {"c1": "outer inner", "c1.0": "plain"}

    asyncio.run(main())
