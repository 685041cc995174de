"""Every request is valid for the wire, and each message is encoded once, whatever a layer edits."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import UsageError
from interlock.messages import AssistantMessage, ImagePart, Message, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.model import ModelRequest, ModelSettings, ToolSpec
from interlock.providers import chat_request
from interlock.providers.chat_request import ChatRequestWriter, encode_message
from interlock.providers.history import EncodedHistory

ADD = ToolSpec(name="add", description="Add", parameters={"type": "object", "properties": {}})


def body_of(*messages: Message, tools: tuple[ToolSpec, ...] = (), settings: ModelSettings | None = None, **writer: Any) -> dict[str, Any]:
    options = {"stream": True, "max_tokens_field": "max_tokens", **writer}
    request = ModelRequest(messages=messages, tools=tools, settings=settings or ModelSettings())
    return json.loads(ChatRequestWriter("m", **options).body(request, object()))


def wire(message: Message) -> Any:
    encoded = encode_message(message)
    return json.loads(encoded) if encoded else None


def test_each_kind_of_message_has_one_wire_form() -> None:
    call = ToolCall(id="c", name="add", arguments='{"a": 1}')
    wire_call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert body_of(
        SystemMessage(content="s"),
        UserMessage(content="u"),
        AssistantMessage(content="t", tool_calls=(call,), reasoning="never sent"),
        ToolMessage(tool_call_id="c", name="add", content="1"),
        SystemMessage(content="late"),
        AssistantMessage(content="a"),
    )["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "t", "tool_calls": [wire_call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": "a"},
    ]


def test_blank_text_beside_calls_is_null_and_a_message_with_nothing_to_say_is_left_out() -> None:
    call = ToolCall(id="c", name="add")
    assert wire(AssistantMessage(content=" \n", tool_calls=(call,)))["content"] is None
    assert wire(AssistantMessage(content=" \n", reasoning="only")) is None
    assert wire(SystemMessage(content="")) is None
    left = body_of(UserMessage(content="u"), AssistantMessage(), SystemMessage(content=" "), UserMessage(content="v"))["messages"]
    assert [message["content"] for message in left] == ["u", "v"]


def test_parts_become_text_and_image_urls_without_blank_text() -> None:
    parts = (TextPart("look"), TextPart(" "), ImagePart(url="http://x/y.png"), ImagePart(data="QUJD", media_type="image/webp"))
    assert wire(UserMessage(content=parts))["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,QUJD"}},
    ]
    assert wire(UserMessage(content=(TextPart(""),)))["content"] == ""
    with pytest.raises(UsageError, match="url or data"):
        wire(UserMessage(content=(ImagePart(),)))


def test_an_image_in_a_result_is_named_in_a_line_of_text() -> None:
    parts = (TextPart("a chart:"), ImagePart(data="QUJD", media_type="image/png"), ImagePart(url="http://x/y.png"))
    message = ToolMessage(tool_call_id="c", name="t", content=parts)
    assert wire(message)["content"] == "a chart:\n[image: image/png]\n[image: http://x/y.png]"


@pytest.mark.parametrize("arguments", ["", " ", "null", '"null"', '{"a": 1', "[1]", "3", '"text"', "NaN", "oops", '{"a":1}{"b":2}'])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(arguments: str) -> None:
    message = wire(AssistantMessage(tool_calls=(ToolCall(id="c", name="add", arguments=arguments),)))
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("name", "sent"),
    [("add", "add"), ("multi_tool_use.parallel", "multi_tool_use_parallel"), ("", "unknown_tool"), ("a b\n", "a_b_"), ("x" * 90, "x" * 64)],
)
def test_a_name_that_a_model_made_up_is_sent_back_in_a_valid_form(name: str, sent: str) -> None:
    message = wire(AssistantMessage(tool_calls=(ToolCall(id="c", name=name),)))
    assert message["tool_calls"][0]["function"]["name"] == sent


def test_the_name_of_an_offered_tool_is_sent_as_it_is() -> None:
    dotted = ToolSpec(name="files.read", description="", parameters={})
    message = body_of(AssistantMessage(tool_calls=(ToolCall(id="c", name="files.read"),)), tools=(dotted,))["messages"][0]
    assert message["tool_calls"][0]["function"]["name"] == "files.read"


def test_a_lone_surrogate_is_replaced_instead_of_failing() -> None:
    assert wire(UserMessage(content="a\ud835b"))["content"] == "a\ufffdb"
    call = ToolCall(id="c\ud835", name="add", arguments='{"a": "\ud835"}')
    assert json.loads(wire(AssistantMessage(tool_calls=(call,)))["tool_calls"][0]["function"]["arguments"]) == {"a": "\ufffd"}


def test_settings_are_sent_when_set_and_extra_goes_last() -> None:
    settings = ModelSettings(
        temperature=0.0, top_p=0.5, max_tokens=9, stop=("a", "b"), seed=7, reasoning_effort="low", extra={"seed": 8, "service_tier": "flex"}
    )
    body = body_of(UserMessage(content="u"), settings=settings)
    del body["messages"]
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 9,
        "stop": ["a", "b"],
        "seed": 8,
        "reasoning_effort": "low",
        "service_tier": "flex",
    }
    plain = body_of(UserMessage(content="u"), stream=False, settings=ModelSettings(max_tokens=9), max_tokens_field="max_completion_tokens")
    del plain["messages"]
    assert plain == {"model": "m", "stream": False, "max_completion_tokens": 9}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("auto", "auto"), ("none", "none"), ("required", "required"), ("add", {"type": "function", "function": {"name": "add"}})],
)
def test_tool_choice_is_a_word_or_an_offered_tool_and_needs_tools(choice: str, sent: Any) -> None:
    settings = ModelSettings(tool_choice=choice, parallel_tool_calls=False)
    body = body_of(UserMessage(content="u"), tools=(ADD,), settings=settings)
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (sent, False)
    assert body["tools"] == [{"type": "function", "function": {"name": "add", "description": "Add", "parameters": ADD.parameters}}]
    assert body_of(UserMessage(content="u"), settings=settings).keys().isdisjoint({"tools", "tool_choice", "parallel_tool_calls"})


def test_what_cannot_be_sent_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="neither auto"):
        body_of(UserMessage(content="u"), tools=(ADD,), settings=ModelSettings(tool_choice="subtract"))
    with pytest.raises(UsageError, match="messages"):
        body_of(UserMessage(content="u"), settings=ModelSettings(extra={"messages": []}))
    with pytest.raises(UsageError, match="not JSON"):
        body_of(UserMessage(content="u"), settings=ModelSettings(extra={"x": object()}))


def test_changed_tools_and_settings_are_sent_and_equal_ones_encoded_once() -> None:
    writer, scratch, owner = ChatRequestWriter("m", stream=True, max_tokens_field="max_tokens"), dict[Any, Any](), object()
    request = ModelRequest(messages=(UserMessage(content="u"),), tools=(ADD,), scratch=scratch)

    def sent(changed: ModelRequest) -> dict[str, Any]:
        return json.loads(writer.body(changed, owner))

    assert "tools" in sent(request)
    assert "tools" not in sent(replace(request, tools=()))
    assert sent(replace(request, settings=ModelSettings(seed=1)))["seed"] == 1
    assert "seed" not in sent(request)
    head = scratch[owner].head
    sent(replace(request, tools=(ADD,), settings=ModelSettings()))
    assert scratch[owner].head is head


def test_two_models_of_one_session_do_not_mix() -> None:
    scratch: dict[Any, Any] = {}
    request = ModelRequest(messages=(UserMessage(content="u"),), scratch=scratch)
    for name in ("one", "two", "one"):
        writer = ChatRequestWriter(name, stream=True, max_tokens_field="max_tokens")
        assert json.loads(writer.body(request, name))["model"] == name


class Counted:
    """Counts how often each message is encoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = chat_request.encode_message

        def counted(message: Message, offered: tuple[ToolSpec, ...] = ()) -> bytes:
            self.count += 1
            return original(message, offered)

        monkeypatch.setattr(chat_request, "encode_message", counted)


def history(count: int) -> tuple[Message, ...]:
    return tuple(UserMessage(content=f"message {number}") for number in range(count))


def test_a_growing_conversation_encodes_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, cache, messages = Counted(monkeypatch), EncodedHistory(chat_request.encode_message), history(50)
    for length in range(1, 51):
        cache.encode(messages[:length])
    assert counted.count == 50


def test_a_volatile_message_at_the_end_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, cache, messages = Counted(monkeypatch), EncodedHistory(chat_request.encode_message), history(50)
    for length in range(1, 51):
        cache.encode((*messages[:length], SystemMessage(content=f"it is {length} o'clock")))
    assert counted.count == 100


@pytest.mark.parametrize("place", [0, 1, 25])
def test_a_volatile_message_anywhere_costs_only_itself(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    counted, cache, messages = Counted(monkeypatch), EncodedHistory(chat_request.encode_message), history(50)
    cache.encode(messages)
    for number in range(20):
        cache.encode((*messages[:place], SystemMessage(content=f"it is {number} o'clock"), *messages[place:]))
    assert counted.count == 50 + 20


POOL: list[Message] = [
    *history(4),
    SystemMessage(content="s"),
    AssistantMessage(content=""),
    AssistantMessage(content="a"),
    ToolMessage(tool_call_id="c", name="t", content="r"),
    UserMessage(content="message 0"),
]


@given(st.lists(st.lists(st.sampled_from(range(len(POOL))), max_size=12), max_size=12))
def test_any_edit_anywhere_gives_what_encoding_anew_gives(conversations: list[list[int]]) -> None:
    cache = EncodedHistory(chat_request.encode_message)
    for conversation in conversations:
        messages = tuple(POOL[number] for number in conversation)
        assert json.loads(b"[%b]" % cache.encode(messages)) == json.loads(
            b"[%b]" % EncodedHistory(chat_request.encode_message).encode(messages)
        )


def test_a_long_conversation_costs_little_more_than_a_short_one() -> None:
    def seconds(length: int) -> float:
        messages, cache, rounds = history(length), EncodedHistory(chat_request.encode_message), 50
        cache.encode(messages)
        start = time.process_time()
        for number in range(rounds):
            messages = (*messages, UserMessage(content=f"more {number}"))
            cache.encode(messages)
        return time.process_time() - start

    seconds(10)
    anew = time.process_time()
    for _ in range(50):
        EncodedHistory(chat_request.encode_message).encode(history(1_600))
    anew = time.process_time() - anew
    assert min(seconds(1_600) for _ in range(3)) < anew / 4
