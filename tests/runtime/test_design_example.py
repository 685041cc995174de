"""The example that the documentation begins with, as it stands, against a server on a real socket and a journal on disk."""

from __future__ import annotations

import asyncio
import stat
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlock import Agent, AgentRunConfig, Limits, Outcome, RunResult, current_tool_call_id, tool
from interlock.events import RunFinished, TextDelta, ToolFinished, ToolStarted
from interlock.extensions.base import AgentExtension, MiddlewareHook
from interlock.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from interlock.model import Model, ModelRequest, ModelResponse, StopReason, Usage
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import WireServer, call, calls, text


class Trace(AgentExtension):
    priority = 100  # the default

    def __init__(self) -> None:
        self.log: list[Any] = []

    async def on_model_request(self, context, request, call_next):  # type: ignore[no-untyped-def]
        request = replace(request, messages=(*request.messages, SystemMessage(content="Trace this request.")))
        async with aclosing(call_next(request)) as events:
            async for event in events:
                yield event

    async def on_tool_call(self, context, call, call_next):  # type: ignore[no-untyped-def]
        self.log.append(("before", call.id, current_tool_call_id()))
        try:
            return await call_next()
        finally:
            self.log.append(("after", call.id, current_tool_call_id()))


@tool(timeout_s=30)
async def add(left: int, right: int) -> int:
    """Add two numbers.

    Args:
        left: The first one.
        right: The second one.
    """
    return left + right


def script() -> list[Any]:
    return [calls(call("c1", "add", {"left": 1, "right": 2})), text("It is 3."), text("You are welcome.")]


@pytest.mark.parametrize("spec", [False, True])
def test_the_example_of_the_documentation_runs_as_it_stands(tmp_path: Path, spec: bool) -> None:
    async def main() -> None:
        async with WireServer(script()) as server:
            model: Any = (
                f"openai-compatible:scripted@{server.base_url}"
                if spec
                else OpenAIChatModel("scripted", base_url=server.base_url, api_key="k")
            )
            trace = Trace()
            agent = await Agent.create(
                model,
                config=AgentRunConfig(session_id="chat-42"),
                tools=[add],
                extensions=[trace],
                system_prompt="You add.",
                journal=f"sqlite:///{tmp_path}/agent.db",
                limits=Limits(requests=10),
            )
            result = await agent.run("What is 1 and 2?")
            assert isinstance(result, RunResult)
            assert (result.outcome, result.text, result.session_id) == (Outcome.COMPLETED, "It is 3.", "chat-42")
            assert result.require() is result
            assert (result.usage.requests, result.usage.tool_calls, result.usage.input_tokens) == (2, 1, 20)
            kinds = [type(message) for message in result.messages]
            assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage]
            assert trace.log == [("before", "c1", "c1"), ("after", "c1", "c1")]
            shown, finished = "", None
            async with aclosing(agent.stream("Thank you.")) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        shown += event.text
                    if isinstance(event, RunFinished):
                        finished = event.result
            assert shown == "You are welcome."
            assert finished is not None
            assert finished.text == shown
            await agent.aclose()
            bodies = [request.body for request in server.requests]
            assert all(body["messages"][-1] == {"role": "system", "content": "Trace this request."} for body in bodies)
            assert all(body["messages"][0] == {"role": "system", "content": "You add."} for body in bodies)
            assert not any("Trace" in str(message.content) for message in finished.messages)
        database = tmp_path / "agent.db"
        assert stat.S_IMODE(database.stat().st_mode) == 0o600

    asyncio.run(main())


def test_the_conversation_goes_on_in_another_process_where_this_one_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        journal = f"sqlite:///{tmp_path}/agent.db"
        config = AgentRunConfig(session_id="chat-42")
        async with WireServer(script()) as server:
            for prompt, answer, messages in (("What is 1 and 2?", "It is 3.", 4), ("Thank you.", "You are welcome.", 6)):
                model = OpenAIChatModel("scripted", base_url=server.base_url, api_key="k")
                async with await Agent.create(model, config=config, tools=[add], journal=journal) as agent:
                    result = await agent.run(prompt)
                    assert (result.text, len(result.messages)) == (answer, messages)
            roles = [message["role"] for message in server.requests[-1].body["messages"]]
            assert roles == ["user", "assistant", "tool", "assistant", "user"]

    asyncio.run(main())


def test_the_events_of_a_run_with_a_tool_come_in_this_order() -> None:
    async def main() -> list[str]:
        async with WireServer(script()[:2]) as server:
            model = OpenAIChatModel("scripted", base_url=server.base_url, api_key="k")
            async with await Agent.create(model, tools=[add]) as agent:
                return [type(event).__name__ async for event in agent.stream("What is 1 and 2?")]

    names = asyncio.run(main())
    without_deltas = [name for name in names if not name.endswith("Delta")]
    assert without_deltas == [
        "RunStarted",
        "ModelStarted",
        "ModelFinished",
        "ToolStarted",
        "ToolFinished",
        "ModelStarted",
        "ModelFinished",
        "RunFinished",
    ]


def test_the_public_names_of_the_example_are_what_they_are_said_to_be() -> None:
    assert issubclass(AgentExtension, object)
    assert {"on_model_request", "on_tool_call"} <= set(dir(MiddlewareHook))
    assert isinstance(OpenAIChatModel("x", base_url="http://127.0.0.1:1/v1"), Model)
    assert ToolCall(id="c", name="n").arguments == "{}"
    assert ModelRequest(messages=()).tools == ()
    assert ModelResponse.__struct_fields__ == ("message", "stop", "usage")
    assert StopReason.TOOL_CALLS.value == "tool_calls"
    assert Usage().input_tokens is None
    assert ToolStarted is not ToolFinished
