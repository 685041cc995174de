"""The official SDK reads what the scripted chat-completions server says, and sends what the adapter sends."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from pydantic import TypeAdapter

from interlock.messages import AssistantMessage, FilePart, ImagePart, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.model import ModelRequest, ModelResponse, ModelSettings, OutputSpec, ToolSpec
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import Step, WireServer, call, calls, error, text
from interlock.testing.wire_render import ChatWire

from .conftest import Run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from openai import APIStatusError, AsyncAzureOpenAI, AsyncOpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

STEPS = {
    "text": text("Good morning, Zoë."),
    "calls": calls(call("c1", "add", {"left": 1}), call("c2", "add", {"left": 2}), before="Let me add."),
    "limit": text("One, two", finish="length"),
    "filter": text("", finish="content_filter"),
}


def client(server: WireServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0)


async def streamed(sdk: AsyncOpenAI) -> tuple[str, list[list[str]], str | None, tuple[int, int]]:
    """What a client of the SDK joins from the chunks: the text, the calls, the finish reason and the tokens."""
    said, made, finish, tokens = "", list[list[str]](), None, (-1, -1)
    reply: Any = await sdk.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    async for chunk in reply:
        if chunk.usage:
            tokens = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            said += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or ():
                if part.index == len(made):
                    made.append([part.id, part.function.name, ""])
                made[part.index][2] += part.function.arguments or ""
    return said, made, finish, tokens


@pytest.mark.parametrize("name", STEPS)
def test_every_chunk_and_reply_of_the_scripted_server_is_one_of_the_vendors_own_types(name: str) -> None:
    chunk, reply = TypeAdapter[Any](ChatCompletionChunk), TypeAdapter[Any](ChatCompletion)
    wire, step = ChatWire("/chat/completions", {}), STEPS[name]
    writer = wire.writer()
    frames: list[Any] = [frame for frame in step.frames if isinstance(frame, dict)]
    said = b"".join([*map(writer.chunk, frames), writer.end(step.ends)]).decode()
    data = [line[6:] for line in said.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    for one in data[:-1]:
        chunk.validate_python(json.loads(one))
    reply.validate_python(wire.whole(frames, step.ends))


@pytest.mark.parametrize("name", STEPS)
def test_the_sdk_reads_the_scripted_server_as_the_adapter_does(run: Run, name: str) -> None:
    step: Step = STEPS[name]

    async def main() -> None:
        async with WireServer([step] * 3) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
            ours = [event async for event in model.stream(ModelRequest(messages=(UserMessage(content="hi"),)))][-1]
            assert isinstance(ours, ModelResponse)
            await model.aclose()
            assert ours.usage is not None
            expected = (
                ours.message.content,
                [[one.id, one.name, one.arguments] for one in ours.message.tool_calls],
                ours.stop.raw,
                (ours.usage.input_tokens, ours.usage.output_tokens),
            )
            async with client(server) as sdk:
                assert await streamed(sdk) == expected
                reply: Any = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                (choice,) = reply.choices
                made = [[one.id, one.function.name, one.function.arguments] for one in choice.message.tool_calls or ()]
                tokens = (reply.usage.prompt_tokens, reply.usage.completion_tokens)
                assert (choice.message.content or "", made, choice.finish_reason, tokens) == expected

    run(main())


def test_the_sdk_reads_our_servers_errors(run: Run) -> None:
    async def main() -> None:
        async with WireServer([error(429, "slow down")]) as server, client(server) as sdk:
            with pytest.raises(APIStatusError, match="slow down") as caught:
                await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            assert caught.value.status_code == 429

    run(main())


def test_a_request_equals_the_one_that_the_sdk_sends_for_the_same_conversation(run: Run) -> None:
    schema = {"type": "object", "properties": {"left": {"type": "integer"}}, "required": ["left"]}
    parts = (TextPart("Add."), ImagePart(url="https://x/y.png"), FilePart(data="JVBERg==", media_type="application/pdf", name="a.pdf"))
    messages = (
        SystemMessage(content="Be brief."),
        UserMessage(content=parts),
        AssistantMessage(content="Let me.", tool_calls=(ToolCall(id="c1", name="add", arguments='{"left":1}'),)),
        ToolMessage(tool_call_id="c1", name="add", content="2"),
        SystemMessage(content="Be briefer."),
    )
    settings = ModelSettings(
        max_tokens=50,
        temperature=0.2,
        top_p=0.9,
        stop=("END",),
        seed=7,
        tool_choice="add",
        parallel_tool_calls=False,
        reasoning_effort="low",
    )
    request = ModelRequest(messages=messages, tools=(ToolSpec(name="add", description="Add.", parameters=schema),), settings=settings)

    async def main() -> None:
        async with WireServer([text("2")] * 4) as server:
            for stream in (True, False):
                model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", profile="openai", stream=stream)
                _ = [event async for event in model.stream(request)]
                await model.aclose()
            async with client(server) as sdk:
                for stream in (True, False):
                    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
                    reply: Any = await sdk.chat.completions.create(
                        model="m",
                        messages=[
                            {"role": "system", "content": "Be brief."},
                            {
                                "role": "user",
                                "content": [
                                    {"type": "text", "text": "Add."},
                                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
                                ],
                            },
                            {
                                "role": "assistant",
                                "content": "Let me.",
                                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"left":1}'}}],
                            },
                            {"role": "tool", "tool_call_id": "c1", "content": "2"},
                            {"role": "system", "content": "Be briefer."},
                        ],
                        tools=[{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": schema}}],
                        max_completion_tokens=50,
                        parallel_tool_calls=False,
                        reasoning_effort="low",
                        seed=7,
                        stop=["END"],
                        stream=stream,
                        temperature=0.2,
                        tool_choice={"type": "function", "function": {"name": "add"}},
                        top_p=0.9,
                        **options,
                    )
                    if stream:
                        _ = [event async for event in reply]
            ours, plain, theirs, theirs_plain = (request.body for request in server.requests)
            assert ours == theirs
            assert plain == theirs_plain
            paths = {request.path for request in server.requests}
            assert paths == {"/v1/chat/completions"}
            keys = {request.headers["authorization"] for request in server.requests}
            assert keys == {"Bearer k"}

    run(main())


def test_the_sdk_asks_for_a_form_as_we_do(run: Run) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    request = ModelRequest(messages=(UserMessage(content="hi"),), output=OutputSpec(name="answer", schema=schema))

    async def main() -> None:
        async with WireServer([text('{"sum":2}')] * 2) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", profile="openai", stream=False)
            _ = [event async for event in model.stream(request)]
            await model.aclose()
            async with client(server) as sdk:
                await sdk.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "hi"}],
                    response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
                )
            ours, theirs = (request.body for request in server.requests)
            # The SDK leaves out what it need not say: a reply is plain unless a stream is asked for.
            assert ours == {**theirs, "stream": False}

    run(main())


def test_the_sdk_sends_azures_key_where_the_profile_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that holds it, the header that it goes into, and no other header with it."""
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")

    async def main() -> None:
        async with WireServer([text("Hello.")] * 2) as server:
            at = {"base_url": server.base_url, "api_version": "v1", "max_retries": 0}
            async with AsyncAzureOpenAI(**at) as sdk:  # type: ignore[arg-type]
                await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            # The variable's key goes to Azure's own hosts alone.
            model = OpenAIChatModel("m", base_url=server.base_url, profile="azure", stream=False, api_key="azure-key")
            _ = [event async for event in model.stream(ModelRequest(messages=(UserMessage(content="hi"),)))]
            await model.aclose()
            theirs, ours = ([(n.lower(), v) for n, v in request.headers.items() if "azure-key" in v] for request in server.requests)
            assert ours == theirs == [("api-key", "azure-key")]
        own = OpenAIChatModel("m", base_url="https://r.openai.azure.com/openai/v1")
        assert own.key_headers == {"api-key": "azure-key"}

    run(main())
