"""What users met with Gemini, as tests: signatures over a restart, history of another model, calls that were thrown away, filters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlock import Agent, AgentExtension, AgentRunConfig, Outcome
from interlock.messages import SystemMessage
from interlock.model import Model
from interlock.providers.google import GoogleModel
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import WireServer, call, calls, raw, text

SIGNATURE = "EpwICpkIAXLI2nxl+/UGsWZaZHRYkX1orzuM8vSUF=="
PLACEHOLDER = "skip_thought_signature_validator"
OLD = ["user", "assistant", "tool", "assistant"]
SIGNED: list[dict[str, Any]] = [
    {"functionCall": {"name": "add", "args": {"left": 1, "right": 2}}, "thoughtSignature": SIGNATURE},
    {"functionCall": {"name": "add", "args": {"left": 3, "right": 4}}},
]


async def add(left: int, right: int) -> str:
    """Add two numbers. The smaller sum takes longer."""
    for _ in range(20 if left == 1 else 1):
        await asyncio.sleep(0)
    return str(left + right)


def reply(*parts: dict[str, Any], finish: str = "STOP") -> Any:
    return raw({"candidates": [{"index": 0, "content": {"role": "model", "parts": list(parts)}, "finishReason": finish}]})


def gemini(server: WireServer) -> Model:
    return GoogleModel("gemini-3-pro", base_url=server.base_url, api_key="k")


def sent(server: WireServer, request: int = -1) -> list[dict[str, Any]]:
    return server.requests[request].body["contents"]


def test_parallel_calls_with_one_signature_survive_storage_and_go_back_in_one_content(tmp_path: Path) -> None:
    async def main() -> None:
        async with WireServer([reply(*SIGNED), text("3 and 7."), text("Yes.")]) as server:
            for prompt in ("Add.", "Sure?"):
                config = AgentRunConfig(session_id="s")
                async with await Agent.create(
                    gemini(server), tools=[add], journal=f"sqlite:///{tmp_path / 'a.db'}", config=config
                ) as agent:
                    await agent.run(prompt)
            for request in (1, 2):
                contents = sent(server, request)
                assert [content["role"] for content in contents[:3]] == ["user", "model", "user"]
                first, second = contents[1]["parts"]
                assert first["thoughtSignature"] == SIGNATURE
                assert "thoughtSignature" not in second
                results = [part["functionResponse"] for part in contents[2]["parts"]]
                assert [result["id"] for result in results] == [first["functionCall"]["id"], second["functionCall"]["id"]]
                assert [result["response"] for result in results] == [{"output": "3"}, {"output": "7"}]
            assert server.requests[2].body["contents"][:3] == server.requests[1].body["contents"]

    asyncio.run(main())


def test_a_session_that_another_model_began_goes_on_with_gemini_and_back(tmp_path: Path) -> None:
    async def main() -> None:
        asked = calls(call("c1", "add", {"left": 1, "right": 2}))
        async with WireServer([asked, text("3."), reply(*SIGNED), text("3, 7."), text("Bye.")]) as server:
            chat = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
            for model, prompt in ((chat, "Add."), (gemini(server), "Again."), (chat, "Bye.")):
                journal = f"sqlite:///{tmp_path / 'a.db'}"
                async with await Agent.create(model, tools=[add], journal=journal, config=AgentRunConfig(session_id="s")) as agent:
                    (await agent.run(prompt)).require()
            assert PLACEHOLDER not in str(sent(server, 3)), "calls of an earlier turn need no signature"
            assert SIGNATURE in str(sent(server, 3))
            said = server.requests[4].body["messages"]
            assert [message["role"] for message in said] == [*OLD, *OLD[:3], "tool", *OLD[3:], "user"]
            assert SIGNATURE not in str(said)

    asyncio.run(main())


def test_a_call_that_another_model_made_in_this_turn_carries_the_placeholder() -> None:
    class Switches(AgentExtension):
        """Falls back to Gemini after the first turn."""

        def __init__(self, other: Model) -> None:
            self.other = other

        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async for event in call_next(request) if request.turn == 0 else self.other.stream(request):
                yield event

    async def main() -> None:
        async with WireServer([calls(call("c1", "add", {"left": 1, "right": 2})), text("3.")]) as server:
            other = gemini(server)
            chat = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
            async with await Agent.create(chat, tools=[add], extensions=[Switches(other)]) as agent:
                (await agent.run("Add.")).require()
            await other.aclose()
            (asked,) = sent(server)[1]["parts"]
            assert asked["thoughtSignature"] == PLACEHOLDER

    asyncio.run(main())


@pytest.mark.parametrize(
    ("parts", "narrated"),
    [((), 0), (({"text": "I will add."},), 1), (({"text": "I will add.", "thought": True},), 0)],
)
def test_a_malformed_function_call_is_asked_for_again_and_leaves_no_trace(parts: Any, narrated: int) -> None:
    async def main() -> None:
        broken = reply(*parts, finish="MALFORMED_FUNCTION_CALL")
        async with WireServer([broken, broken, reply(*SIGNED), text("3 and 7.")]) as server:
            async with await Agent.create(gemini(server), tools=[add]) as agent:
                result = await agent.run("Add.")
            assert result.require().text == "3 and 7."
            roles = [content["role"] for content in sent(server, 2)]
            assert roles == ["user", *["model", "user"] * 2 * narrated], "each narration is followed by its nudge, and none is blank"
            assert [content["role"] for content in sent(server)] == ["user", "model", "user"]
            assert len(sent(server)[0]["parts"]) == 1, "the nudges are gone"

    asyncio.run(main())


@pytest.mark.parametrize(
    "refused",
    [
        reply(finish="SAFETY"),
        reply({"text": "Well"}, finish="PROHIBITED_CONTENT"),
        reply({"text": "Well"}, *SIGNED, finish="RECITATION"),
        raw({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}),
    ],
)
def test_a_filter_ends_the_run_refused_after_one_request_and_the_next_prompt_works(refused: Any) -> None:
    async def main() -> None:
        async with WireServer([refused, text("Hello.")]) as server:
            async with await Agent.create(gemini(server), tools=[add]) as agent:
                assert (await agent.run("Do harm.")).outcome is Outcome.REFUSED
                assert (await agent.run("Say hello.")).require().text == "Hello."
            assert "Well" not in str(sent(server))
            assert [content["role"] for content in sent(server)] == ["user"]

    asyncio.run(main())


def test_a_system_message_of_a_layer_reaches_gemini_where_it_was_put() -> None:
    class Trace(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async for event in call_next(replace(request, messages=(*request.messages, SystemMessage(content="Trace this request.")))):
                yield event

    async def main() -> None:
        async with WireServer([reply(*SIGNED), text("3.")]) as server:
            async with await Agent.create(gemini(server), tools=[add], extensions=[Trace()], system_prompt="Be short.") as agent:
                await agent.run("Add.")
            for request in (0, 1):
                assert server.requests[request].body["systemInstruction"]["parts"] == [{"text": "Be short."}]
                assert sent(server, request)[-1]["parts"][-1] == {"text": "<system>\nTrace this request.\n</system>"}
            assert str(sent(server)).count("Trace this request.") == 1

    asyncio.run(main())
