"""Anthropic's request: what is sent of a conversation, what travels back as it came, and that an unchanged prefix keeps its bytes.

Sources: platform.claude.com/docs/en/api/messages, .../build-with-claude/prompt-caching, .../extended-thinking,
.../agents-and-tools/tool-use/server-tools, and the official SDK's types.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from interlock.model import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from interlock.providers.anthropic import AnthropicModel
from interlock.providers.anthropic_request import AnthropicRequestWriter

MARK = {"cache_control": {"type": "ephemeral"}}
THINKING = {"type": "thinking", "thinking": "Hm. é", "signature": "Eq+/=="}
REDACTED = {"type": "redacted_thinking", "data": "Em=="}
ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})


def writer(**options: Any) -> AnthropicRequestWriter:
    given: dict[str, Any] = {
        "path": "/v1/messages",
        "stream": True,
        "max_tokens": 1000,
        "version": "2023-06-01",
        "cache": False,
        "thinking": None,
        "hosted_tools": (),
    }
    return AnthropicRequestWriter("claude-x", **{**given, **options})


def body(*messages: Message, tools: tuple[ToolSpec, ...] = (), settings: ModelSettings | None = None, **options: Any) -> dict[str, Any]:
    request = ModelRequest(messages=messages, tools=tools, settings=settings or ModelSettings())
    return json.loads(writer(**options).body(request, object()))


def turns(*messages: Message) -> list[tuple[str, Any]]:
    return [(turn["role"], turn["content"]) for turn in body(*messages)["messages"]]


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def asked(*ids: str, text: str = "", **fields: Any) -> AssistantMessage:
    return AssistantMessage(content=text, tool_calls=tuple(ToolCall(id=id, name="add", arguments='{"a":1}') for id in ids), **fields)


def result(id: str, content: Any = "1", *, failed: bool = False) -> ToolMessage:
    return ToolMessage(tool_call_id=id, name="add", content=content, failed=failed)


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "add", "input": {"a": 1}}


def copy(*parts: list[dict[str, Any]], api: str = "anthropic", container: str | None = None) -> WireCopy:
    named = {} if container is None else {"container": container}
    return WireCopy(api=api, model="claude-x", body=json.dumps([{"content": part, **named} for part in parts]))


# ---- the turns ---------------------------------------------------------------------------------------------


def test_the_results_of_parallel_calls_and_the_text_after_them_are_one_user_turn_with_all_results_first() -> None:
    said = turns(user("Go."), asked("a", "b"), result("a"), result("b", "bad", failed=True), user("And now?"), user("Quick."))
    assert said == [
        ("user", [words("Go.")]),
        ("assistant", [use("a"), use("b")]),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "a", "content": [words("1")]},
                {"type": "tool_result", "tool_use_id": "b", "content": [words("bad")], "is_error": True},
                words("And now?"),
                words("Quick."),
            ],
        ),
    ]


def test_a_system_message_reaches_the_model_wherever_it_stands() -> None:
    sent = body(
        SystemMessage(content="Be good."),
        SystemMessage(content="Be brief."),
        user("Go."),
        asked("a"),
        SystemMessage(content="Careful."),
        result("a"),
        SystemMessage(content="Now answer."),
    )
    assert sent["system"] == [words("Be good."), words("Be brief.")]
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    kinds = [(part["type"], part.get("text")) for part in sent["messages"][-1]["content"]]
    assert kinds == [
        ("tool_result", None),
        ("text", "<system>\nCareful.\n</system>"),
        ("text", "<system>\nNow answer.\n</system>"),
    ]


def test_blank_text_is_never_a_block_and_a_message_that_says_nothing_is_left_out() -> None:
    said = turns(
        SystemMessage(content=" "),
        user("Go."),
        AssistantMessage(content=" \n", reasoning="Hm."),
        UserMessage(content=(TextPart(" "), TextPart("Well?"))),
        asked("a", text=" "),
        result("a", ""),
    )
    assert said == [
        ("user", [words("Go."), words("Well?")]),
        ("assistant", [use("a")]),
        ("user", [{"type": "tool_result", "tool_use_id": "a"}]),
    ]
    assert "system" not in body(SystemMessage(content=" "), user("Go."))


def test_a_conversation_of_system_messages_alone_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="at least one message"):
        body(SystemMessage(content="Be good."))


@pytest.mark.parametrize("arguments", ["", " ", "null", '"null"', "[1]", "7", '{"a": ', "{}"])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(arguments: str) -> None:
    message = AssistantMessage(tool_calls=(ToolCall(id="a", name="add", arguments=arguments),))
    assert turns(user("Go."), message, result("a"))[1][1][0]["input"] == {}


def test_ids_and_names_that_the_api_refuses_are_mended_the_same_on_a_call_and_its_result_and_stay_different() -> None:
    calls = tuple(ToolCall(id=id, name="bad name!") for id in ("call:1", "call_1", "call.1"))
    said = turns(user("Go."), AssistantMessage(tool_calls=calls), *(result(made.id) for made in calls))
    ids = [made["id"] for made in said[1][1]]
    assert [part["tool_use_id"] for part in said[2][1]] == ids
    assert len(set(ids)) == 3
    assert ids[1] == "call_1"
    assert all(id.replace("_", "").isalnum() for id in ids)
    assert {made["name"] for made in said[1][1]} == {"bad_name_"}


def test_images_and_files_go_as_blocks_from_users_and_in_results() -> None:
    note = base64.b64encode("Grüße".encode()).decode()
    parts = (
        TextPart("See:"),
        ImagePart(data="aGk=", media_type="image/webp"),
        ImagePart(url="https://x.example/a.png"),
        FilePart(data="cGRm", media_type="application/pdf", name="a.pdf"),
        FilePart(url="https://x.example/b.pdf"),
        FilePart(data=note, media_type="text/plain; charset=utf-8", name="note"),
        FilePart(url="https://x.example/c.txt", media_type="text/plain"),
        FilePart(data="aGk=", media_type="image/png"),
    )
    blocks = [
        words("See:"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "aGk="}},
        {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "cGRm"}, "title": "a.pdf"},
        {"type": "document", "source": {"type": "url", "url": "https://x.example/b.pdf"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"}, "title": "note"},
        words("[file: https://x.example/c.txt]"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
    ]
    said = turns(UserMessage(content=parts), asked("a"), result("a", parts))
    assert said[0][1] == blocks
    assert said[2][1] == [{"type": "tool_result", "tool_use_id": "a", "content": blocks}]


@pytest.mark.parametrize(
    "part", [FilePart(data="aGk=", media_type="application/zip", name="x.zip"), FilePart(data="?", media_type="text/plain"), ImagePart()]
)
def test_a_file_that_this_api_does_not_take_is_a_usage_error(part: Any) -> None:
    with pytest.raises(UsageError):
        body(UserMessage(content=(part,)))


# ---- what travels back as it came -----------------------------------------------------------------------------


def test_signed_thinking_travels_back_with_its_calls_byte_for_byte_and_under_the_runtimes_ids() -> None:
    message = asked("call_0", text="So.", wire=copy([THINKING, REDACTED, words("So."), {"type": "tool_use", "name": "add"}]))
    data = writer().body(ModelRequest(messages=(user("Go."), message, result("call_0"))), object())
    assert json.loads(data)["messages"][1]["content"] == [THINKING, REDACTED, words("So."), use("call_0")]
    assert b'"signature":"Eq+/=="' in data


def test_interleaved_thinking_keeps_its_place_between_calls() -> None:
    second = {**THINKING, "signature": "Zz=="}
    call = {"type": "tool_use", "name": "add", "caller": {"type": "direct"}}
    said = turns(user("Go."), asked("a", "b", wire=copy([THINKING, call, second, call])), result("a"), result("b"))
    direct = {"caller": {"type": "direct"}}
    assert said[1][1] == [THINKING, {**use("a"), **direct}, second, {**use("b"), **direct}]


EDITED = {
    "the text": asked("a", text="Else.", wire=copy([THINKING, words("So."), {"type": "tool_use", "name": "add"}])),
    "a call that is gone": AssistantMessage(content="So.", wire=copy([THINKING, words("So."), {"type": "tool_use", "name": "add"}])),
    "another tool": asked("a", text="So.", wire=copy([THINKING, words("So."), {"type": "tool_use", "name": "drop"}])),
    "another api": asked("a", text="So.", wire=copy([THINKING, words("So."), {"type": "tool_use", "name": "add"}], api="gemini")),
    "given up": asked("a", text="So.", incomplete=True, wire=copy([THINKING, words("So."), {"type": "tool_use", "name": "add"}])),
    "no json": asked("a", text="So.", wire=WireCopy(api="anthropic", model="m", body="{")),
}


@pytest.mark.parametrize("what", EDITED)
def test_a_copy_that_no_longer_says_what_the_message_says_is_left_out_with_its_thinking(what: str) -> None:
    message = EDITED[what]
    answers = [result(made.id) for made in message.tool_calls]
    said = turns(user("Go."), message, *answers)
    assert said[1][1] == [words(message.content), *(use(made.id) for made in message.tool_calls)]


def test_unsigned_reasoning_is_never_sent() -> None:
    message = AssistantMessage(content="So.", reasoning="secret plan")
    assert b"secret plan" not in writer().body(ModelRequest(messages=(user("Go."), message, user("On."))), object())


def test_a_message_made_of_several_responses_says_all_their_blocks_and_then_what_the_last_one_added() -> None:
    search = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}
    message = asked("a", text="I look. It is 3.", wire=copy([THINKING, words("I look. "), search], [found]))
    assert turns(user("Go."), message, result("a"))[1][1] == [THINKING, words("I look. "), search, found, words("It is 3."), use("a")]


def test_a_container_is_named_while_its_turn_goes_on_and_not_in_the_next_one() -> None:
    waiting = asked("a", wire=copy([THINKING, {"type": "tool_use", "name": "add"}], container="ctr_1"))
    assert body(user("Go."), waiting, result("a"))["container"] == "ctr_1"
    paused = AssistantMessage(wire=copy([THINKING], container="ctr_2"))
    assert body(user("Go."), paused)["container"] == "ctr_2"
    assert "container" not in body(user("Go."), waiting, result("a"), user("Next."))
    own = ModelSettings(extra={"container": "mine"})
    assert body(user("Go."), waiting, result("a"), settings=own)["container"] == "mine"


# ---- the settings ----------------------------------------------------------------------------------------------


def test_settings_go_under_anthropics_names() -> None:
    given = ModelSettings(
        temperature=0.5, top_p=0.9, max_tokens=77, stop=("END",), reasoning_effort="high", extra={"metadata": {"user_id": "u"}}
    )
    sent = body(user("Go."), settings=given, thinking={"type": "adaptive"})
    assert {name: value for name, value in sent.items() if name != "messages"} == {
        "model": "claude-x",
        "max_tokens": 77,
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
    }


def test_max_tokens_has_a_default_beside_the_budget_for_thinking() -> None:
    assert body(user("Go."))["max_tokens"] == 1000
    assert body(user("Go."), thinking={"type": "enabled", "budget_tokens": 4096})["max_tokens"] == 5096
    assert body(user("Go."), settings=ModelSettings(extra={"max_tokens": 5}))["max_tokens"] == 5


def test_effort_and_a_format_from_extra_share_output_config_and_none_turns_thinking_off() -> None:
    form = {"type": "json_schema", "schema": {}}
    given = ModelSettings(reasoning_effort="low", extra={"output_config": {"format": form}})
    assert body(user("Go."), settings=given)["output_config"] == {"effort": "low", "format": form}
    off = body(user("Go."), settings=ModelSettings(reasoning_effort="none"), thinking={"type": "adaptive"})
    assert off["thinking"] == {"type": "disabled"}
    assert "output_config" not in off


def test_the_form_of_an_answer_goes_beside_the_effort() -> None:
    form = OutputSpec(name="city", schema={"type": "object", "properties": {}})
    request = ModelRequest(messages=(user("Go."),), settings=ModelSettings(reasoning_effort="low"), output=form)
    sent = json.loads(writer().body(request, object()))["output_config"]
    assert sent == {"effort": "low", "format": {"type": "json_schema", "schema": form.schema}}
    assert [AnthropicModel("m", api_key="k", native_output=native).native_output for native in (False, True)] == [False, True]


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", None, {"type": "any"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("add", True, {"type": "tool", "name": "add"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choice_and_the_parallel_switch(choice: str | None, parallel: bool | None, sent: Any) -> None:
    given = ModelSettings(tool_choice=choice, parallel_tool_calls=parallel)
    assert body(user("Go."), tools=(ADD,), settings=given).get("tool_choice") == sent
    assert "tool_choice" not in body(user("Go."), settings=given)


@pytest.mark.parametrize(
    ("given", "options", "words_of_it"),
    [
        (ModelSettings(seed=1), {}, "seed"),
        (ModelSettings(reasoning_effort="minimal"), {}, "minimal"),
        (ModelSettings(tool_choice="drop"), {}, "neither auto"),
        (ModelSettings(temperature=0.5), {"version": "2026-10-21"}, "temperature"),
        (ModelSettings(extra={"messages": []}), {}, "messages"),
        (ModelSettings(extra={"system": "x"}), {}, "system"),
        (ModelSettings(extra={"x": object()}), {}, "not JSON"),
    ],
)
def test_a_setting_that_this_wire_does_not_have_is_a_usage_error_that_names_it(
    given: ModelSettings, options: Any, words_of_it: str
) -> None:
    with pytest.raises(UsageError, match=words_of_it):
        body(user("Go."), tools=(ADD,), settings=given, **options)


def test_hosted_tools_go_first_as_they_are_and_can_be_chosen() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    sent = body(user("Go."), tools=(ADD,), hosted_tools=[search], settings=ModelSettings(tool_choice="web_search"))
    assert sent["tools"] == [search, {"name": "add", "description": "Add.", "input_schema": ADD.parameters}]
    assert sent["tool_choice"] == {"type": "tool", "name": "web_search"}


# ---- what the provider may keep ----------------------------------------------------------------------------------


def test_the_last_tool_the_system_prompt_and_the_last_two_user_turns_are_marked() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    late = {"type": "tool_search_tool_bm25_20251119", "name": "find", "defer_loading": True}
    conversation = (SystemMessage(content="A"), SystemMessage(content="B"), user("1"), asked("a", "b"), result("a"), result("b"), user("2"))
    sent = body(*conversation, tools=(ADD,), hosted_tools=[search], cache=True)
    assert [tool.get("cache_control") for tool in sent["tools"]] == [None, MARK["cache_control"]]
    assert sent["system"] == [words("A"), {**words("B"), **MARK}]
    first, _, last = sent["messages"]
    assert first["content"] == [{**words("1"), **MARK}]
    assert [part.get("cache_control") for part in last["content"]] == [None, None, MARK["cache_control"]]
    assert json.dumps(sent).count("cache_control") == 4  # the most that a request may have
    deferred = body(user("Go."), hosted_tools=[search, late], cache=True)["tools"]
    assert [tool.get("cache_control") for tool in deferred] == [MARK["cache_control"], None]


def test_a_paused_message_at_the_end_is_not_marked_for_thinking_may_not_be() -> None:
    sent = body(user("Go."), AssistantMessage(wire=copy([THINKING])), cache=True)
    assert sent["messages"] == [
        {"role": "user", "content": [{**words("Go."), **MARK}]},
        {"role": "assistant", "content": [THINKING]},
    ]


def conversation(rounds: int) -> list[Message]:
    messages: list[Message] = [SystemMessage(content="Be good."), user("Go.")]
    for number in range(rounds):
        id = f"toolu_{number}"
        wire = copy([THINKING, {"type": "tool_use", "name": "add"}]) if number % 2 else None
        messages += [asked(id, wire=wire), result(id, f"{number}")]
        if number % 3 == 0:
            messages.append(user(f"More {number}"))
    return messages


def test_an_unchanged_prefix_keeps_its_bytes_from_request_to_request_but_for_the_marks_at_its_end() -> None:
    writing, scratch, owner = writer(cache=True), {}, object()
    whole = conversation(8)
    mark = b',"cache_control":{"type":"ephemeral"}'
    ends = [place for place in range(2, len(whole) + 1) if not isinstance(whole[place - 1], AssistantMessage)]
    before = None
    for end in ends:
        request = ModelRequest(messages=tuple(whole[:end]), tools=(ADD,), scratch=scratch)
        sent = writing.body(request, owner)
        head, _, messages = sent.partition(b',"messages":[')
        if before is not None:
            assert head == before[0]
            shared = before[1].replace(mark, b"").removesuffix(b"]}]}")
            assert messages.replace(mark, b"").startswith(shared)
            settled = messages[: messages.index(mark)]  # what lies before the first mark is literally the same
            assert before[1].replace(mark, b"").startswith(settled)
        before = (head, messages)


@st.composite
def edits(draw: st.DrawFn) -> list[list[Message]]:
    """Conversations in a row, as a runtime and its layers make them: grown, shortened, changed in the middle, with a message at the end."""
    whole = conversation(5)
    made: list[list[Message]] = []
    for _ in range(draw(st.integers(1, 5))):
        one = whole[: draw(st.integers(2, len(whole)))]
        match draw(st.integers(0, 4)):
            case 0:
                one = [*one, SystemMessage(content="Trace.")]
            case 1:
                place = draw(st.integers(0, len(one)))
                one = [*one[:place], user(draw(st.sampled_from(["x", "y"]))), *one[place:]]
            case 2:
                del one[draw(st.integers(0, len(one) - 1))]
            case 3:
                one = one[draw(st.integers(0, 1)) :]
            case _:
                pass
        made.append(one)
    return made


@given(edits())
@settings(max_examples=150, deadline=None)
def test_what_is_kept_between_requests_never_changes_what_is_sent(conversations: list[list[Message]]) -> None:
    kept, scratch, owner = writer(cache=True), {}, object()
    for messages in conversations:
        request = ModelRequest(messages=tuple(messages), scratch=scratch)
        try:
            fresh = writer(cache=True).body(replace(request, scratch={}), object())
        except UsageError:
            with pytest.raises(UsageError):
                kept.body(request, owner)
            continue
        assert kept.body(request, owner) == fresh


def test_each_message_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import interlock.providers.anthropic_request as module

    seen: list[Message] = []
    encode = module.blocks_of
    monkeypatch.setattr(module, "blocks_of", lambda message, offered=(): (seen.append(message), encode(message, offered))[1])
    kept, scratch, owner = writer(cache=True), {}, object()
    whole = conversation(30)
    for end in range(2, len(whole) + 1):
        kept.body(ModelRequest(messages=tuple(whole[:end]), scratch=scratch), owner)
    assert len(seen) == len(whole)


def test_a_message_survives_the_journal_with_its_copy_byte_for_byte() -> None:
    message = asked("a", text="So.", wire=copy([THINKING, words("So."), {"type": "tool_use", "name": "add"}]))
    stored = msgspec.json.decode(msgspec.json.encode(message), type=AssistantMessage)
    one, two = (writer().body(ModelRequest(messages=(user("Go."), m, result("a"))), object()) for m in (message, stored))
    assert one == two
