"""Anthropic's own SDK as a witness (anthropic, in tests only): it reads what our scripted server says, and for the same
conversation it sends what we send.

Known differences, in which the service sees none: the SDK's version sends ``anthropic-version: 2026-10-21`` and the key as a bearer
token; and it completes arguments that max_tokens cut off, which must not be run, so they stay as they came here.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from interlock.messages import AssistantMessage, FilePart, ImagePart, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.model import ModelRequest, ModelResponse, ModelSettings, OutputSpec, ToolSpec
from interlock.providers.anthropic import AnthropicModel
from interlock.testing import Step, WireServer, call, calls, error, raw, reasoning, text

from .conftest import Run
from .test_anthropic_wire import PING, TYPICAL, block, end, said, start, thought, use


@pytest.fixture(scope="module")
def sdk() -> Any:
    """The SDK, loaded only where it is used: it takes seconds. Its warnings are its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import anthropic
    return anthropic


ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
)
HI = {"model": "claude-x", "max_tokens": 100, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}


async def told(sdk: Any, *steps: Step, stream: bool, bodies: list[dict[str, Any]]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The messages as the SDK reads them, and the bodies that it sent. A body's message may be a function of what was read before."""
    async with WireServer(steps) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = sdk.AsyncAnthropic(api_key="k", base_url=server.base_url.removesuffix("/v1"), max_retries=0)
            found: list[Any] = []
            try:
                for body in bodies:
                    filled = {name: value(found) if callable(value) else value for name, value in body.items()}
                    if stream:
                        async with client.messages.stream(**filled) as events:
                            found.append(await events.get_final_message())
                    else:
                        found.append(await client.messages.create(**filled))
            finally:
                await client.close()
        return found, [request.body for request in server.requests]


async def ours(*steps: Step, request: ModelRequest, stream: bool, **options: Any) -> tuple[ModelResponse, dict[str, Any]]:
    async with WireServer(steps) as server:
        model = AnthropicModel("claude-x", base_url=server.base_url, api_key="k", stream=stream, **options)
        *_, response = [event async for event in model.stream(request)]
        await model.aclose()
        assert isinstance(response, ModelResponse)
        return response, server.requests[-1].body


FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [], "caller": {"type": "direct"}}
SEARCH = use(1, "srvtoolu_1", "web_search", '{"query"', ': "x"}', kind="server_tool_use")
HOSTED = raw(
    start(input_tokens=5, output_tokens=1),
    *thought(0, "Hm."),
    *SEARCH,
    *block(2, FOUND),
    PING,
    *said(3, "I add."),
    *use(4, "toolu_1", "add", '{"a": 1}'),
    *end("tool_use", output_tokens=9),
)
STEPS = {
    "text": text("Héllo 🙂 world."),
    "calls": calls(call("c1", "add", {"a": 1, "b": None}), call("c2", "add", {"a": 2}), before="I add."),
    "reasoning": reasoning("I think.", then="So it is."),
    "length": text("It is", finish="length"),
    "refusal": text("It is", finish="refusal"),
    "typical": raw(*TYPICAL),
    "hosted": HOSTED,
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_the_sdk_reads_what_our_server_says_as_we_do(run: Run, sdk: Any, name: str, stream: bool) -> None:
    (found,), _ = run(told(sdk, STEPS[name], stream=stream, bodies=[HI]))
    response, _ = run(ours(STEPS[name], request=ModelRequest(messages=(UserMessage(content="hi"),)), stream=stream))
    message = response.message
    assert "".join(part.text for part in found.content if part.type == "text") == message.content
    assert "".join(part.thinking for part in found.content if part.type == "thinking") == message.reasoning
    made = [(part.id, part.name, part.input) for part in found.content if part.type == "tool_use"]
    assert made == [(one.id, one.name, json.loads(one.arguments or "{}")) for one in message.tool_calls]
    assert found.stop_reason == response.stop.raw
    usage, counted = response.usage, found.usage
    assert usage is not None
    cached = (counted.cache_read_input_tokens or 0) + (counted.cache_creation_input_tokens or 0)
    assert (usage.input_tokens, usage.output_tokens) == (counted.input_tokens + cached, counted.output_tokens)
    if message.wire is not None:
        kept = [part for part in json.loads(message.wire.body)[0]["content"] if part["type"] != "tool_use"]
        assert kept == [part.to_dict() for part in found.content if part.type != "tool_use"]


def test_the_sdk_reads_our_servers_errors(run: Run, sdk: Any) -> None:
    for status, kind in ((400, sdk.BadRequestError), (429, sdk.RateLimitError), (529, sdk.APIStatusError)):
        with pytest.raises(kind) as caught:
            run(told(sdk, error(status, "What happened."), stream=False, bodies=[HI]))
        assert caught.value.status_code == status
        assert caught.value.body["error"]["message"] == "What happened."


# ---- requests ------------------------------------------------------------------------------------------------


def test_the_sdk_sends_the_same_request_for_the_same_conversation(run: Run, sdk: Any) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    body = {
        "model": "claude-x",
        "max_tokens": 5096,
        "thinking": {"type": "enabled", "budget_tokens": 4096},
        "stop_sequences": ["END"],
        "output_config": {"effort": "low"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "tools": [
            {"type": "web_search_20250305", "name": "web_search"},
            {"name": "add", "description": "Add two numbers.", "input_schema": ADD.parameters, **mark},
        ],
        "system": [{"type": "text", "text": "Be short."}, {"type": "text", "text": "Be kind.", **mark}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "/+79"}},
                    {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}, **mark},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I add."},
                    {"type": "tool_use", "id": "x1", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "x2", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "x1", "content": [{"type": "text", "text": "1"}]},
                    {"type": "tool_result", "tool_use_id": "x2", "content": [{"type": "text", "text": "no"}], "is_error": True},
                    {"type": "text", "text": "And?", **mark},
                ],
            },
        ],
    }
    request = ModelRequest(
        messages=(
            SystemMessage(content="Be short."),
            SystemMessage(content="Be kind."),
            UserMessage(
                content=(
                    TextPart("Look:"),
                    ImagePart(data="/+79", media_type="image/png"),
                    FilePart(url="https://example.com/a.pdf", media_type="application/pdf"),
                )
            ),
            AssistantMessage(
                content="I add.",
                tool_calls=(ToolCall(id="x1", name="add", arguments='{"a": 1}'), ToolCall(id="x2", name="add", arguments="")),
            ),
            ToolMessage(tool_call_id="x1", name="add", content="1"),
            ToolMessage(tool_call_id="x2", name="add", content="no", failed=True),
            UserMessage(content="And?"),
        ),
        tools=(ADD,),
        settings=ModelSettings(stop=("END",), reasoning_effort="low", parallel_tool_calls=False),
    )
    options = {"max_tokens": 1000, "thinking": body["thinking"], "hosted_tools": body["tools"][:1]}
    _, (theirs,) = run(told(sdk, text("Hi."), stream=True, bodies=[body]))
    _, sent = run(ours(text("Hi."), request=request, stream=True, **options))
    assert sent == theirs


def test_the_sdk_sends_a_reply_back_as_we_do(run: Run, sdk: Any) -> None:
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "1"}]}]}
    second = {**HI, "messages": lambda found: [*HI["messages"], {"role": "assistant", "content": found[0].content}, result]}  # type: ignore[misc]
    _, (_, theirs) = run(told(sdk, HOSTED, text("Done."), stream=True, bodies=[HI, second]))
    response, _ = run(ours(HOSTED, request=ModelRequest(messages=(UserMessage(content="hi"),)), stream=True))
    answer = ToolMessage(tool_call_id="toolu_1", name="add", content="1")
    request = ModelRequest(messages=(UserMessage(content="hi"), response.message, answer))
    _, sent = run(ours(text("Done."), request=request, stream=True, max_tokens=100, cache=False))
    assert sent == theirs


def test_the_sdk_sends_a_paused_reply_back_as_we_do(run: Run, sdk: Any) -> None:
    paused = raw(start(), *thought(0, "Hm."), *SEARCH, *end("pause_turn", output_tokens=3))
    second = {**HI, "messages": lambda found: [*HI["messages"], {"role": "assistant", "content": found[0].content}]}  # type: ignore[misc]
    _, (_, theirs) = run(told(sdk, paused, text("Done."), stream=True, bodies=[HI, second]))
    response, _ = run(ours(paused, request=ModelRequest(messages=(UserMessage(content="hi"),)), stream=True))
    request = ModelRequest(messages=(UserMessage(content="hi"), response.message))
    _, sent = run(ours(text("Done."), request=request, stream=True, max_tokens=100, cache=False))
    assert sent == theirs


def test_media_of_a_result_and_a_form_are_sent_as_the_sdk_sends_them(run: Run, sdk: Any) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}
    shown = [
        {"type": "text", "text": "See:"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "/+79"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}, "title": "a.pdf"},
    ]
    body = {
        **HI,
        "messages": [
            *HI["messages"],  # type: ignore[misc]
            {"role": "assistant", "content": [{"type": "tool_use", "id": "x1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x1", "content": shown}]},
        ],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }
    parts = (
        TextPart("See:"),
        ImagePart(data="/+79", media_type="image/png"),
        ImagePart(url="https://example.com/a.png"),
        FilePart(data="JVBERg==", media_type="application/pdf", name="a.pdf"),
    )
    request = ModelRequest(
        messages=(
            UserMessage(content="hi"),
            AssistantMessage(tool_calls=(ToolCall(id="x1", name="look", arguments="{}"),)),
            ToolMessage(tool_call_id="x1", name="look", content=parts),
        ),
        output=OutputSpec(name="answer", schema=schema),
    )
    for stream in (True, False):
        _, (theirs,) = run(told(sdk, text('{"sum":2}'), stream=stream, bodies=[body]))
        _, sent = run(ours(text('{"sum":2}'), request=request, stream=stream, max_tokens=100, cache=False, native_output=True))
        # The SDK leaves out what it need not say: a reply is plain unless a stream is asked for.
        assert sent == {"stream": False, **theirs}
