"""The official SDK reads what the scripted server says, and sends what the adapter sends."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from interlock.messages import AssistantMessage, FilePart, ImagePart, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.model import ModelRequest, ModelResponse, ModelSettings, OutputSpec, ToolSpec
from interlock.providers.openai import OpenAIResponsesModel
from interlock.testing import Step, WireServer, call, calls, raw, reasoning, text
from interlock.testing.wire_responses import ResponsesWire

from .conftest import Run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from openai import AsyncOpenAI
    from openai.types.responses import Response, ResponseStreamEvent

STEPS = {
    "text": text("Good morning, Zoë."),
    "reasoning": reasoning("Hm.", then="Yes."),
    "calls": calls(call("c1", "add", {"left": 1}), call("c2", "add", {"left": 2}), before="Let me add."),
    "limit": text("One, two", finish="length"),
    "filter": text("", finish="content_filter"),
    "refusal": text("", finish="refusal"),
}


def client(server: WireServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0)


@pytest.mark.parametrize("name", STEPS)
def test_every_event_and_reply_of_the_scripted_server_is_one_of_the_vendors_own_types(name: str) -> None:
    event, reply = TypeAdapter[Any](ResponseStreamEvent), TypeAdapter[Any](Response)
    wire, step = ResponsesWire("/responses", {}), STEPS[name]
    writer = wire.writer()
    frames: list[Any] = [frame for frame in step.frames if isinstance(frame, dict)]
    said = b"".join([*map(writer.chunk, frames), writer.end(step.ends)]).decode()
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: ")]
    for number, one in enumerate(events):
        assert one["sequence_number"] == number
        event.validate_python(one)
    reply.validate_python(wire.whole(frames, step.ends))
    assert events[-1]["response"] == wire.whole(frames, step.ends)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"message": "it broke", "code": "server_error"}, "server_error"),
        ({"message": "it broke", "type": "invalid_request_error", "code": 400}, "400"),
        ({"message": "it broke", "type": "invalid_request_error"}, "invalid_request_error"),
        ({"message": "it broke"}, None),
    ],
)
def test_an_error_event_of_the_scripted_server_is_the_vendors(said: dict[str, Any], code: str | None) -> None:
    writer = ResponsesWire("/responses", {}).writer()
    event = json.loads(writer.chunk({"error": said}).decode().split("data: ")[-1])
    TypeAdapter[Any](ResponseStreamEvent).validate_python(event)
    assert (event["type"], event["code"], event["message"]) == ("error", code, "it broke")


@pytest.mark.parametrize("name", STEPS)
def test_the_sdk_reads_the_scripted_server_as_the_adapter_does(run: Run, name: str) -> None:
    step: Step = STEPS[name]

    async def main() -> None:
        async with WireServer([step] * 3) as server:
            model = OpenAIResponsesModel("m", base_url=server.base_url, api_key="k")
            ours = [event async for event in model.stream(ModelRequest(messages=(UserMessage(content="hi"),)))][-1]
            assert isinstance(ours, ModelResponse)
            await model.aclose()
            async with client(server) as sdk:
                streamed: Any = None
                async for event in await sdk.responses.create(model="m", input="hi", stream=True):
                    streamed = getattr(event, "response", None) or streamed
                for reply in (streamed, await sdk.responses.create(model="m", input="hi")):
                    made = [(one.call_id, one.name, one.arguments) for one in reply.output if one.type == "function_call"]
                    assert reply.output_text == ours.message.content
                    assert made == [(one.id, one.name, one.arguments) for one in ours.message.tool_calls]
                    assert ours.usage is not None
                    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (ours.usage.input_tokens, ours.usage.output_tokens)

    run(main())


def test_a_request_equals_the_one_that_the_sdk_sends_for_the_same_conversation(run: Run) -> None:
    schema = {"type": "object", "properties": {"left": {"type": "integer"}}, "required": ["left"]}
    messages = (
        SystemMessage(content="Be brief."),
        UserMessage(content=(TextPart("Add."), ImagePart(url="https://x/y.png"))),
        AssistantMessage(content="Let me.", tool_calls=(ToolCall(id="c1", name="add", arguments='{"left":1}'),)),
        ToolMessage(tool_call_id="c1", name="add", content="2"),
    )
    settings = ModelSettings(max_tokens=50, temperature=0.2, tool_choice="required", parallel_tool_calls=False, reasoning_effort="low")
    request = ModelRequest(messages=messages, tools=(ToolSpec(name="add", description="Add.", parameters=schema),), settings=settings)

    async def main() -> None:
        async with WireServer([text("2")] * 4) as server:
            for stream in (True, False):
                model = OpenAIResponsesModel(
                    "m", base_url=server.base_url, api_key="k", stream=stream, hosted_tools=[{"type": "web_search"}]
                )
                _ = [event async for event in model.stream(request)]
                await model.aclose()
            async with client(server) as sdk:
                for stream in (True, False):
                    reply: Any = await sdk.responses.create(
                        model="m",
                        input=[
                            {"role": "system", "content": "Be brief."},
                            {
                                "role": "user",
                                "content": [
                                    {"type": "input_text", "text": "Add."},
                                    {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
                                ],
                            },
                            {"role": "assistant", "content": "Let me."},
                            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"left":1}'},
                            {"type": "function_call_output", "call_id": "c1", "output": "2"},
                        ],
                        tools=[
                            {"type": "function", "name": "add", "description": "Add.", "parameters": schema, "strict": False},
                            {"type": "web_search"},
                        ],
                        include=["reasoning.encrypted_content"],
                        max_output_tokens=50,
                        parallel_tool_calls=False,
                        reasoning={"effort": "low"},
                        store=False,
                        stream=stream,
                        temperature=0.2,
                        tool_choice="required",
                    )
                    if stream:
                        _ = [event async for event in reply]
            ours, plain, theirs, theirs_plain = (request.body for request in server.requests)
            assert ours == theirs
            assert plain == theirs_plain
            paths = {request.path for request in server.requests}
            assert paths == {"/v1/responses"}
            keys = {request.headers["authorization"] for request in server.requests}
            assert keys == {"Bearer k"}

    run(main())


def test_media_a_form_and_a_reply_that_goes_back_are_sent_as_the_sdk_sends_them(run: Run) -> None:
    """The reply is what the SDK read of it, given back by the SDK's own user: reasoning in front of its call."""
    thought = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gA+/="}
    call_item = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "c1", "name": "look", "arguments": "{}"}
    response = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [thought, call_item]}
    first = raw({**response, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None})
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    parts = (ImagePart(data="aGk=", media_type="image/gif"), FilePart(data="JVBERg==", media_type="application/pdf", name="a.pdf"))
    wire = [
        {"type": "input_image", "image_url": "data:image/gif;base64,aGk=", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
    ]
    options: dict[str, Any] = {
        "model": "m",
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": False,
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": False}},
    }

    async def main() -> None:
        async with WireServer([first, text('{"sum":2}')] * 2) as server:
            model = OpenAIResponsesModel("m", base_url=server.base_url, api_key="k", stream=False)
            asked = ModelRequest(messages=(UserMessage(content=parts),), output=OutputSpec(name="answer", schema=schema))
            found = [event async for event in model.stream(asked)][-1]
            assert isinstance(found, ModelResponse)
            told = ToolMessage(tool_call_id="c1", name="look", content=parts)
            _ = [event async for event in model.stream(replace(asked, messages=(*asked.messages, found.message, told)))]
            await model.aclose()
            async with client(server) as sdk:
                conversation: list[Any] = [{"role": "user", "content": wire}]
                reply: Any = await sdk.responses.create(input=conversation, **options)
                conversation += [item.to_dict() for item in reply.output]
                conversation.append({"type": "function_call_output", "call_id": "c1", "output": wire})
                await sdk.responses.create(input=conversation, **options)
            ours, theirs = ([request.body for request in server.requests[place : place + 2]] for place in (0, 2))
            assert ours == theirs

    run(main())
