"""What a request says of parallel calls: every result with its own call, in the order of the calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import agent_playing, play
from interlock import UsageError
from interlock.events import ToolFinished
from interlock.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from interlock.testing import call, calls, text
from wire_rules import faults


@pytest.mark.parametrize("wire", ["memory", "streamed"])
@pytest.mark.parametrize("ids", [("s", "q"), ("", ""), ("same", "same")])
def test_each_result_stands_with_its_call_although_the_second_was_first_and_the_provider_gave_no_ids(
    wire: str, ids: tuple[str, str]
) -> None:
    async def scenario() -> None:
        second_ran = asyncio.Event()

        async def look(place: str) -> str:
            """Look at a place."""
            if place == "far":
                await second_ran.wait()
                for _ in range(5):
                    await asyncio.sleep(0)
            second_ran.set()
            return f"seen: {place}"

        steps = [calls(call(ids[0], "look", {"place": "far"}), call(ids[1], "look", {"place": "near"})), text("Done.")]
        played = await play(steps, tools=[look], wire=wire)
        assert [event.message.content for event in played.of(ToolFinished)] == ["seen: near", "seen: far"]
        asked, far, near = played.bodies[1]["messages"][1:]
        assert [one["function"]["arguments"] for one in asked["tool_calls"]] == ['{"place": "far"}', '{"place": "near"}']
        assert [one["id"] for one in asked["tool_calls"]] == [far["tool_call_id"], near["tool_call_id"]]
        assert (far["content"], near["content"]) == ("seen: far", "seen: near")
        assert [fault for body in played.bodies for fault in faults(body)] == []

    asyncio.run(scenario())


def history(*ids: str) -> list[Message]:
    asked = AssistantMessage(tool_calls=tuple(ToolCall(id=f"c{n}", name="look", arguments="{}") for n in range(len(ids))))
    return [
        UserMessage(content="Look."),
        asked,
        *(ToolMessage(tool_call_id=id, name="look", content=f"result {n}") for n, id in enumerate(ids)),
    ]


def test_two_results_without_ids_for_two_calls_are_refused_and_one_for_one_is_accepted() -> None:
    async def scenario() -> None:
        async with agent_playing([text("I see.")]) as agent:
            with pytest.raises(UsageError, match="cannot be paired"):
                await agent.import_messages(history("", ""))
            assert await agent.session("s").messages() == ()
            (repair,) = await agent.import_messages(history(""))
            assert "c0" in repair
            result: Any = (await agent.run("Well?")).messages[2]
            assert (result.tool_call_id, result.content) == ("c0", "result 0")

    asyncio.run(scenario())
