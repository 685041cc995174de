"""What the Responses adapter sends: the conversation in the API's form, and the model's own items as they came, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from interlock import Agent, AgentRunConfig
from interlock.errors import UsageError
from interlock.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    WireCopy,
)
from interlock.model import ModelRequest, ModelSettings, ToolSpec
from interlock.providers.openai import OpenAIResponsesModel
from interlock.providers.responses_request import ResponsesRequestWriter
from interlock.testing import WireServer, raw, text

from .conftest import Run

ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {"left": {"type": "integer"}}})


def body(*messages: Message, tools: tuple[ToolSpec, ...] = (), model: ModelSettings | None = None, **options: Any) -> dict[str, Any]:
    writer = ResponsesRequestWriter("m", stream=True, **options)
    return json.loads(writer.body(ModelRequest(messages=messages, tools=tools, settings=model or ModelSettings()), "owner"))


def sent(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    return body(*messages, **options)["input"]


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": '{"left":1}', "status": "completed"}
WORDS = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
WORDS["content"] = [{"type": "output_text", "text": "Sum: é.", "annotations": []}]  # type: ignore[assignment]
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "sums"}}


def copied(*items: dict[str, Any], model: str = "m", api: str = "responses") -> WireCopy:
    return WireCopy(api=api, model=model, body=json.dumps(items))


def asked(*items: dict[str, Any], id: str = "call_1", content: str = "", arguments: str = '{"left":1}', **more: Any) -> AssistantMessage:
    return AssistantMessage(content=content, tool_calls=(ToolCall(id=id, name="add", arguments=arguments),), wire=copied(*items), **more)


BUILT = {key: CALL[key] for key in ("type", "call_id", "name", "arguments")}


def test_each_kind_of_message_has_one_form() -> None:
    assert sent(
        SystemMessage(content="Be brief."),
        UserMessage(content="hi"),
        SystemMessage(content=" "),
        AssistantMessage(content="", reasoning="never sent"),
        AssistantMessage(content="Let me.", tool_calls=(ToolCall(id="c1", name="add", arguments="null"),)),
        ToolMessage(tool_call_id="c1", name="add", content="3"),
        SystemMessage(content="Now."),
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Let me."},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"role": "system", "content": "Now."},
    ]


def test_images_and_files_go_as_parts_from_users_and_from_tools() -> None:
    parts = (
        TextPart("See:"),
        TextPart("  "),
        ImagePart(url="https://x/y.png"),
        ImagePart(data="aGk=", media_type="image/gif"),
        FilePart(data="aGk=", media_type="application/pdf", name="a.pdf"),
        FilePart(url="https://x/a.pdf", name="a.pdf"),
    )
    wire = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
        {"type": "input_image", "image_url": "data:image/gif;base64,aGk=", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
        {"type": "input_file", "file_url": "https://x/a.pdf"},
    ]
    user, result = sent(UserMessage(content=parts), ToolMessage(tool_call_id="c", name="look", content=parts))
    assert user["content"] == result["output"] == wire
    lines = sent(ToolMessage(tool_call_id="c", name="look", content=(TextPart("one"), TextPart("two"))))
    assert lines[0]["output"] == "one\ntwo"


def test_settings_have_the_apis_names() -> None:
    settings = ModelSettings(
        temperature=0.5, top_p=0.9, max_tokens=7, reasoning_effort="low", tool_choice="add", parallel_tool_calls=False, extra={"user": "u"}
    )
    made = body(UserMessage(content="hi"), tools=(ADD,), model=settings, reasoning_summary="auto", hosted_tools=[{"type": "web_search"}])
    assert made == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "reasoning": {"effort": "low", "summary": "auto"},
        "parallel_tool_calls": False,
        "user": "u",
        "tools": [
            {"type": "function", "name": "add", "description": "Add.", "parameters": ADD.parameters, "strict": False},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "add"},
        "input": [{"role": "user", "content": "hi"}],
    }
    assert body(tools=(ADD,), model=ModelSettings(tool_choice="required"))["tool_choice"] == "required"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ModelSettings(stop=("x",)), "no 'stop'"),
        (ModelSettings(seed=1), "no 'seed'"),
        (ModelSettings(extra={"input": []}), "'input'"),
        (ModelSettings(extra={"previous_response_id": "resp_1"}), "'previous_response_id'"),
        (ModelSettings(tool_choice="nothing"), "nor an offered tool"),
    ],
)
def test_what_the_api_cannot_do_is_a_usage_error(settings: ModelSettings, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        body(UserMessage(content="hi"), tools=(ADD,), model=settings)


@pytest.mark.parametrize(
    ("name", "asks"),
    [("gpt-4.1", False), ("gpt-4o-mini", False), ("gpt-5", True), ("o3-mini", True), ("openai/gpt-4o", False), ("my-model", True)],
)
def test_reasoning_to_send_back_is_asked_for_unless_the_model_would_refuse(run: Run, name: str, asks: bool) -> None:
    async def main() -> None:
        async with WireServer([text("x"), text("x")]) as server:
            for given in (None, not asks):
                model = OpenAIResponsesModel(name, base_url=server.base_url, api_key="k", encrypted_reasoning=given)
                _ = [event async for event in model.stream(ModelRequest(messages=(UserMessage(content="hi"),)))]
                await model.aclose()
            assert ["include" in request.body for request in server.requests] == [asks, not asks]

    run(main())


# ---- a reasoning item travels with what it led to ---------------------------------------------------------------


def test_the_models_own_items_go_back_byte_for_byte() -> None:
    data = ", ".join(json.dumps(item) for item in (REASONING, WORDS, SEARCH, CALL))
    message = replace(asked(content="Sum: é."), wire=WireCopy(api="responses", model="m", body=f"[{data}]"))
    written = ResponsesRequestWriter("m", stream=True).body(ModelRequest(messages=(message,)), "owner")
    assert b'"input":[%b]}' % data.replace("}, {", "},{").encode() in written


def test_a_call_that_the_runtime_gave_another_id_keeps_its_reasoning() -> None:
    items = sent(asked(REASONING, CALL, id="call_9"), ToolMessage(tool_call_id="call_9", name="add", content="1"))
    assert items == [REASONING, {**CALL, "call_id": "call_9"}, {"type": "function_call_output", "call_id": "call_9", "output": "1"}]


@pytest.mark.parametrize(
    "message",
    [
        asked(REASONING, CALL, arguments='{"left":2}'),
        asked(REASONING, CALL, content="Something that a layer added."),
        asked(REASONING, CALL, {**CALL, "call_id": "call_2"}),
        asked(REASONING),
        replace(asked(), wire=copied(REASONING, CALL, model="another")),
        replace(asked(), wire=copied(REASONING, CALL, api="anthropic")),
        replace(asked(), wire=WireCopy(api="responses", model="m", body="[")),
        replace(asked(), wire=WireCopy(api="responses", model="m", body="[1]")),
        asked({**REASONING, "encrypted_content": None}, CALL),
    ],
    ids=[
        "other arguments",
        "other text",
        "a call less",
        "a call that it had not",
        "another model",
        "another api",
        "broken",
        "no item",
        "not stored",
    ],
)
def test_items_that_no_longer_say_what_the_message_says_are_left_out_with_their_reasoning(message: AssistantMessage) -> None:
    items = sent(message)
    assert not any(item.get("type") == "reasoning" or "id" in item for item in items)
    assert [item["arguments"] for item in items if item.get("type") == "function_call"] == [message.tool_calls[0].arguments]


def test_reasoning_that_led_to_nothing_is_left_out() -> None:
    """The API: 400, "Item 'rs_...' of type 'reasoning' was provided without its required following item."""
    assert sent(AssistantMessage(content="Sum: é.", wire=copied(REASONING, WORDS, REASONING))) == [REASONING, WORDS]
    assert sent(AssistantMessage(content="", wire=copied(REASONING))) == []


def test_reasoning_that_the_server_knows_by_its_id_goes_back_if_it_stores_responses() -> None:
    bare = {**REASONING, "encrypted_content": None}
    assert sent(asked(bare, CALL), store=True) == [bare, CALL]
    spoken = {**bare, "content": [{"type": "reasoning_text", "text": "Because."}]}
    assert sent(asked(spoken, CALL)) == [spoken, CALL]


def test_arguments_that_are_no_object_go_back_as_an_empty_one_with_their_reasoning() -> None:
    assert sent(asked(REASONING, {**CALL, "arguments": ""}, arguments="")) == [REASONING, {**CALL, "arguments": "{}"}]


def turns(count: int) -> list[Message]:
    made: list[Message] = []
    for turn in range(count):
        made.append(UserMessage(content=f"turn {turn}"))
        id = f"call_{turn}"
        made.append(asked({**REASONING, "id": f"rs_{turn}"}, {**CALL, "call_id": id, "id": f"fc_{turn}"}, id=id))
        made.append(ToolMessage(tool_call_id=id, name="add", content="1"))
        made.append(AssistantMessage(content="Sum: é.", wire=copied({**REASONING, "id": f"rs_{turn}b"}, WORDS)))
    return made


@given(st.integers(0, 12), st.integers(0, 12))
def test_a_conversation_cut_at_any_message_holds_no_reasoning_without_what_it_led_to(start: int, end: int) -> None:
    items = sent(*turns(3)[start:end])
    for place, item in enumerate(items):
        if item.get("type") == "reasoning":
            assert items[place + 1].get("type") in ("function_call", "message")
        if item.get("id", "").startswith(("fc_", "msg_")):
            assert items[place - 1]["type"] == "reasoning"


def test_a_long_id_of_another_provider_is_shortened_alike_for_the_call_and_its_result() -> None:
    id = "toolu_" + "x" * 80
    made, result = sent(
        AssistantMessage(content="", tool_calls=(ToolCall(id=id, name="add", arguments="{}"),)),
        ToolMessage(tool_call_id=id, name="add", content="1"),
    )
    assert made["call_id"] == result["call_id"]
    assert len(made["call_id"]) <= 64


def test_an_agent_sends_a_reasoning_item_back_before_its_call_also_after_the_session_is_read_again(run: Run, tmp_path: Any) -> None:
    def add(left: int) -> int:
        """Add."""
        return left + 1

    first = {"type": "response.completed", "response": {"status": "completed", "output": [REASONING, SEARCH, CALL]}}
    journal, config = f"sqlite:///{tmp_path / 'j.db'}", AgentRunConfig(session_id="s")

    async def main() -> None:
        async with WireServer([raw(first, ends="eof"), text("2"), text("Again 2")]) as server:
            for prompt in ("Add.", "Again?"):
                model = OpenAIResponsesModel("m", base_url=server.base_url, api_key="k")
                async with await Agent.create(model, tools=[add], journal=journal) as agent:
                    await agent.run(prompt, config=config)
                await model.aclose()
            for request in server.requests[1:]:
                assert request.body["input"][1:5] == [
                    REASONING,
                    SEARCH,
                    CALL,
                    {"type": "function_call_output", "call_id": "call_1", "output": "2"},
                ]

    run(main())


def test_an_unchanged_prefix_has_the_same_bytes_in_every_request() -> None:
    """OpenAI's prompt cache takes the longest prefix that it has seen (developers.openai.com, Prompt caching)."""
    writer, scratch = ResponsesRequestWriter("m", stream=True), dict[Any, Any]()
    conversation, before = turns(4), b""
    for length in range(1, len(conversation) + 1):
        made = writer.body(ModelRequest(messages=tuple(conversation[:length]), tools=(ADD,), scratch=scratch), "owner")
        assert made.startswith(before)
        before = made[:-2]
        # A new process, that has encoded nothing yet, writes the same.
        fresh = ResponsesRequestWriter("m", stream=True)
        assert fresh.body(ModelRequest(messages=tuple(conversation[:length]), tools=(ADD,)), "owner") == made
