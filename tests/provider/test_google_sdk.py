"""Google's own SDK as a witness (google-genai, in tests only): it reads what our scripted server says, and for the same
conversation it sends what we send.

Known differences of a request, in which the service sees none: the SDK writes bytes in the URL's alphabet of base64, and some
names of fields in snake_case (``mime_type``), both of which the JSON mapping of protocol buffers allows. Everything else is
equal, field by field.
"""

from __future__ import annotations

import base64
import json
import re
import warnings
from typing import Any

import pytest

from interlock.messages import AssistantMessage, FilePart, ImagePart, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.model import ModelRequest, ModelResponse, ModelSettings, OutputSpec, ToolSpec
from interlock.providers.google import GoogleModel
from interlock.testing import Step, WireServer, call, calls, error, raw, reasoning, text

from .conftest import Run


@pytest.fixture(scope="module")
def sdk() -> Any:
    """The SDK, loaded only where it is used: it takes seconds. Its warnings are its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google import genai
    return genai


SIGNATURE = base64.b64encode(bytes(range(240, 256)) * 3).decode()  # with + and / in it
ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
)


def client(sdk: Any, server: WireServer) -> Any:
    types = sdk.types
    options = types.HttpOptions(base_url=server.base_url, api_version="", retry_options=types.HttpRetryOptions(attempts=1))
    return sdk.Client(api_key="k", vertexai=False, http_options=options)


async def told(sdk: Any, step: Step, *, stream: bool, contents: Any = "hi", config: Any = None) -> tuple[list[Any], dict[str, Any]]:
    """The responses as the SDK reads them, and the body that it sent."""
    async with WireServer([step]) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            google = client(sdk, server)
            try:
                if stream:
                    found = [
                        one
                        async for one in await google.aio.models.generate_content_stream(
                            model="gemini-3-pro", contents=contents, config=config
                        )
                    ]
                else:
                    found = [await google.aio.models.generate_content(model="gemini-3-pro", contents=contents, config=config)]
            finally:
                await google.aio.aclose()
        return found, server.requests[0].body


async def ours(step: Step, request: ModelRequest, *, stream: bool) -> tuple[ModelResponse, dict[str, Any]]:
    async with WireServer([step]) as server:
        model = GoogleModel("gemini-3-pro", base_url=server.base_url, api_key="k", stream=stream)
        *_, response = [event async for event in model.stream(request)]
        await model.aclose()
        assert isinstance(response, ModelResponse)
        return response, server.requests[0].body


PARTS = [
    {"text": "sum", "thought": True},
    {"functionCall": {"name": "add", "args": {"a": 1}, "id": "x1"}, "thoughtSignature": SIGNATURE},
    {"functionCall": {"name": "add", "args": {}, "id": "x2"}},
]
SIGNED = raw({"candidates": [{"index": 0, "content": {"role": "model", "parts": PARTS}, "finishReason": "STOP"}]})
STEPS = {
    "text": text("Héllo 🙂 world."),
    "calls": calls(call("c1", "add", {"a": 1, "b": None}), call("c2", "add", {"a": 2}), before="I add."),
    "reasoning": reasoning("I think.", then="So it is."),
    "length": text("It is", finish="length"),
    "filter": text("It is", finish="content_filter"),
    "no call": text("I call.", finish="tool_calls"),
    "signed": SIGNED,
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_the_sdk_reads_what_our_server_says_as_we_do(run: Run, sdk: Any, name: str, stream: bool) -> None:
    found, _ = run(told(sdk, STEPS[name], stream=stream))
    response, _ = run(ours(STEPS[name], ModelRequest(messages=(UserMessage(content="hi"),)), stream=stream))
    parts = [part for one in found for part in ((one.candidates and one.candidates[0].content and one.candidates[0].content.parts) or ())]
    message = response.message
    assert "".join(part.text or "" for part in parts if not part.thought) == message.content
    assert "".join(part.text or "" for part in parts if part.thought) == message.reasoning
    made = [(part.function_call.id, part.function_call.name, part.function_call.args) for part in parts if part.function_call]
    assert made == [(one.id, one.name, json.loads(one.arguments)) for one in message.tool_calls]
    assert [one.candidates[0].finish_reason.value for one in found if one.candidates and one.candidates[0].finish_reason] == [
        response.stop.raw
    ]
    counted = found[-1].usage_metadata
    usage = response.usage
    assert (counted and (counted.prompt_token_count, counted.candidates_token_count)) == (
        usage and (usage.input_tokens, usage.output_tokens)
    )
    signatures = [base64.b64encode(part.thought_signature).decode() for part in parts if part.thought_signature]
    assert signatures == ([SIGNATURE] if name == "signed" else [])


def test_the_sdk_reads_our_servers_errors(run: Run, sdk: Any) -> None:
    for status in (400, 429, 503):
        with pytest.raises(sdk.errors.APIError) as caught:
            run(told(sdk, error(status, "What happened."), stream=False))
        assert (caught.value.code, caught.value.message) == (status, "What happened.")


# ---- requests --------------------------------------------------------------------------------------------


def normal(value: Any) -> Any:
    """Base64 in one alphabet, and field names in one spelling, except in what is the user's own."""
    if isinstance(value, dict):
        named = {re.sub("_([a-z])", lambda match: match[1].upper(), key): item for key, item in value.items()}
        return {
            key: _bytes(item) if key in ("thoughtSignature", "data") else item if key in OWN else normal(item)
            for key, item in named.items()
        }
    return [normal(item) for item in value] if isinstance(value, list) else value


OWN = ("parametersJsonSchema", "responseJsonSchema", "args", "response")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.replace("+", "-").replace("/", "_"))


def test_the_sdk_sends_the_same_request_for_the_same_conversation(run: Run, sdk: Any) -> None:
    types = sdk.types
    config = types.GenerateContentConfig(
        system_instruction=["Be short.", "Be kind."],
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=100,
        stop_sequences=["END"],
        seed=7,
        thinking_config=types.ThinkingConfig(thinking_level=types.ThinkingLevel.LOW),
        tools=[
            types.Tool(
                function_declarations=[
                    types.FunctionDeclaration(name="add", description="Add two numbers.", parameters_json_schema=ADD.parameters)
                ]
            ),
            types.Tool(google_search=types.GoogleSearch()),
        ],
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY", allowed_function_names=["add"])),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    raw_signature = base64.b64decode(SIGNATURE)
    contents = [
        types.Content(
            role="user",
            parts=[
                types.Part(text="Look:"),
                types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\xff\xfe\xfd")),
                types.Part(file_data=types.FileData(mime_type="application/pdf", file_uri="https://example.com/a.pdf")),
            ],
        ),
        types.Content(
            role="model",
            parts=[
                types.Part(function_call=types.FunctionCall(name="add", args={"a": 1}, id="x1"), thought_signature=raw_signature),
                types.Part(function_call=types.FunctionCall(name="add", args={}, id="x2")),
            ],
        ),
        types.Content(
            role="user",
            parts=[
                types.Part(function_response=types.FunctionResponse(name="add", id="x1", response={"output": "1"})),
                types.Part(function_response=types.FunctionResponse(name="add", id="x2", response={"error": "no"})),
            ],
        ),
        types.Content(role="model", parts=[types.Part(text="One.")]),
        types.Content(role="user", parts=[types.Part(text="And?")]),
        types.Content(
            role="model",
            parts=[
                types.Part(
                    function_call=types.FunctionCall(name="add", args={"a": 5}, id="y1"),
                    thought_signature=base64.urlsafe_b64decode("skip_thought_signature_validator"),
                )
            ],
        ),
        types.Content(
            role="user", parts=[types.Part(function_response=types.FunctionResponse(name="add", id="y1", response={"output": "5"}))]
        ),
    ]
    answered, _ = run(ours(SIGNED, ModelRequest(messages=(UserMessage(content="hi"),)), stream=True))
    request = ModelRequest(
        messages=(
            SystemMessage(content="Be short."),
            SystemMessage(content="Be kind."),
            UserMessage(
                content=(
                    TextPart("Look:"),
                    ImagePart(data=base64.b64encode(b"\xff\xfe\xfd").decode()),
                    FilePart(url="https://example.com/a.pdf", media_type="application/pdf"),
                )
            ),
            answered.message,
            ToolMessage(tool_call_id="x1", name="add", content="1"),
            ToolMessage(tool_call_id="x2", name="add", content="no", failed=True),
            AssistantMessage(content="One."),
            UserMessage(content="And?"),
            AssistantMessage(tool_calls=(ToolCall(id="y1", name="add", arguments='{"a": 5}'),)),
            ToolMessage(tool_call_id="y1", name="add", content="5"),
        ),
        tools=(ADD,),
        settings=ModelSettings(
            temperature=0.5,
            top_p=0.9,
            max_tokens=100,
            stop=("END",),
            seed=7,
            reasoning_effort="low",
            tool_choice="add",
            extra={"tools": [{"googleSearch": {}}]},
        ),
    )
    for stream in (True, False):
        _, theirs = run(told(sdk, text("ok"), stream=stream, contents=contents, config=config))
        _, mine = run(ours(text("ok"), request, stream=stream))
        assert normal(mine) == normal(theirs)


def test_media_of_a_result_and_a_form_are_sent_as_the_sdk_sends_them(run: Run, sdk: Any) -> None:
    types = sdk.types
    schema = {"type": "object", "properties": {"the_sum": {"type": "integer"}}, "required": ["the_sum"]}
    picture = types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(mime_type="image/png", data=b"\xff\xfe\xfd"))
    told_part = types.FunctionResponse(name="look", id="x1", response={"output": "See:"}, parts=[picture])
    asked = types.FunctionCall(name="look", args={}, id="x1")
    placeholder = base64.urlsafe_b64decode("skip_thought_signature_validator")
    contents = [
        types.Content(role="user", parts=[types.Part(text="hi")]),
        types.Content(role="model", parts=[types.Part(function_call=asked, thought_signature=placeholder)]),
        types.Content(role="user", parts=[types.Part(function_response=told_part)]),
    ]
    config = types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=schema)
    parts = (TextPart("See:"), ImagePart(data=base64.b64encode(b"\xff\xfe\xfd").decode(), media_type="image/png"))
    request = ModelRequest(
        messages=(
            UserMessage(content="hi"),
            AssistantMessage(tool_calls=(ToolCall(id="x1", name="look", arguments="{}"),)),
            ToolMessage(tool_call_id="x1", name="look", content=parts),
        ),
        output=OutputSpec(name="answer", schema=schema),
    )
    for stream in (True, False):
        _, theirs = run(told(sdk, text("{}"), stream=stream, contents=contents, config=config))
        _, mine = run(ours(text("{}"), request, stream=stream))
        assert normal(mine) == normal(theirs)
