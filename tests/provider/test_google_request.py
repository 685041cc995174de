"""Gemini's requests: what goes back as it came, what is left out, whose turn it is, and bytes that do not change.

Sources: https://ai.google.dev/api/generate-content, https://ai.google.dev/gemini-api/docs/thought-signatures,
https://ai.google.dev/gemini-api/docs/function-calling, https://ai.google.dev/gemini-api/docs/openai ("Thinking").
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from interlock import UsageError
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
from interlock.providers.google import GoogleModel
from interlock.providers.google_reply import GoogleReply
from interlock.providers.google_request import GoogleRequestWriter

PLACEHOLDER = "skip_thought_signature_validator"
SIGNATURE = "EpwICpkIAXLI2nxl+/UGsWZaZHRYkX1orzuM8vSUF=="
ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {"a": {"$ref": "#/$defs/N"}}, "$defs": {}})
USER = UserMessage(content="Go.")


def writer(name: str = "gemini-3-pro", **options: Any) -> GoogleRequestWriter:
    return GoogleRequestWriter(name, stream=True, **options)


def body(*messages: Message, name: str = "gemini-3-pro", tools: tuple[ToolSpec, ...] = (), **settings: Any) -> dict[str, Any]:
    request = ModelRequest(messages=messages, tools=tools, settings=ModelSettings(**settings))
    return json.loads(writer(name).body(request, "owner"))


def contents(*messages: Message, **options: Any) -> list[tuple[str, list[Any]]]:
    return [(content["role"], content["parts"]) for content in body(*messages, **options)["contents"]]


def replied(*parts: dict[str, Any], finish: str = "STOP", renamed: dict[str, str] | None = None) -> AssistantMessage:
    """What the reader makes of a reply, its calls with the ids that the runtime gives them."""
    reply = GoogleReply("gemini-3-pro")
    reply.take(json.dumps({"candidates": [{"content": {"parts": list(parts)}, "finishReason": finish}]}).encode())
    message = reply.response().message
    calls = tuple(msgspec.structs.replace(call, id=call.id or f"call_{place}") for place, call in enumerate(message.tool_calls))
    return msgspec.structs.replace(message, tool_calls=calls)


def call(id: str = "c1", name: str = "add", arguments: str = '{"a": 1}') -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def asked(*calls: ToolCall, text: str = "") -> AssistantMessage:
    return AssistantMessage(content=text, tool_calls=calls)


def result(id: str = "c1", content: Any = "2", *, failed: bool = False, name: str = "add") -> ToolMessage:
    return ToolMessage(tool_call_id=id, name=name, content=content, failed=failed)


# ---- roles and places ------------------------------------------------------------------------------------


def test_roles_alternate_and_parallel_calls_and_their_results_are_in_one_content_each_in_call_order() -> None:
    said = contents(
        USER, asked(call("c1"), call("c2"), text="I add."), result("c1", "2"), result("c2", "no", failed=True), UserMessage(content="And?")
    )
    assert [role for role, _ in said] == ["user", "model", "user"]
    assert [list(part) for part in said[1][1]] == [["text"], ["functionCall", "thoughtSignature"], ["functionCall"]]
    first, second, text = said[2][1]
    assert first == {"functionResponse": {"id": "c1", "name": "add", "response": {"output": "2"}}}
    assert second == {"functionResponse": {"id": "c2", "name": "add", "response": {"error": "no"}}}
    assert text == {"text": "And?"}


def test_neighbours_of_one_role_share_a_content_whoever_they_are() -> None:
    said = contents(USER, UserMessage(content="More."), AssistantMessage(content="a"), AssistantMessage(content="b"), USER)
    assert said == [
        ("user", [{"text": "Go."}, {"text": "More."}]),
        ("model", [{"text": "a"}, {"text": "b"}]),
        ("user", [{"text": "Go."}]),
    ]


def test_what_says_nothing_is_left_out() -> None:
    said = contents(USER, AssistantMessage(content=" ", reasoning="thought"), SystemMessage(content=" "), UserMessage(content=()))
    assert said == [("user", [{"text": "Go."}])]


def test_system_messages_at_the_beginning_are_the_instruction_and_later_ones_stand_where_they_are() -> None:
    sent = body(SystemMessage(content="Be short."), SystemMessage(content="Be kind."), USER, SystemMessage(content="Trace this."))
    assert sent["systemInstruction"] == {"role": "user", "parts": [{"text": "Be short."}, {"text": "Be kind."}]}
    assert sent["contents"] == [{"role": "user", "parts": [{"text": "Go."}, {"text": "<system>\nTrace this.\n</system>"}]}]


def test_a_conversation_of_system_messages_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one message"):
        body(SystemMessage(content="Be short."))


def test_arguments_that_are_no_object_and_names_that_are_none_are_sent_as_google_takes_them() -> None:
    for arguments in ("", "null", "[1]", '{"a"', " "):
        _, (_, parts), (_, results) = contents(USER, asked(call(arguments=arguments, name="no such tool!")), result(name="no such tool!"))
        assert parts[0]["functionCall"] == {"name": "no_such_tool_", "args": {}, "id": "c1"}
        assert results[0]["functionResponse"]["name"] == "no_such_tool_"


# ---- signatures ------------------------------------------------------------------------------------------


def test_signatures_go_back_byte_equal_on_their_own_parts_after_the_message_was_stored() -> None:
    parts = [
        {"text": "Lét me "},
        {"text": "see.", "thoughtSignature": "QQ=="},
        {"text": "summary", "thought": True},
        {"text": "signed", "thought": True, "thoughtSignature": "Wg=="},
        {"functionCall": {"args": {"a": 1.50, "b": "🙂"}, "id": "x1", "name": "add"}, "thoughtSignature": SIGNATURE},
        {"functionCall": {"args": None, "name": "ping"}},
        {"text": "", "thoughtSignature": "YQ=="},
    ]
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(replied(*parts)), type=AssistantMessage)
    assert message.content == "Lét me see."
    role, sent = contents(USER, message, result("x1"), result("call_1", name="ping"))[1]
    named = {"functionCall": {"args": None, "name": "ping", "id": "call_1"}}
    assert (role, sent) == ("model", [*parts[:2], *parts[3:5], named, parts[6]])
    raw = writer().body(ModelRequest(messages=(USER, message, result("x1"), result("call_1", name="ping"))), "owner")
    assert b'"a":1.5' in raw
    assert SIGNATURE.encode() in raw
    assert raw.count(PLACEHOLDER.encode()) == 0


def test_parts_of_googles_own_tools_go_back_as_they_came() -> None:
    parts = [
        {"executableCode": {"code": "print(1)", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}},
        {"toolCall": {"toolType": "FILE_SEARCH", "id": "t1"}},
        {"text": "It is 1."},
    ]
    assert contents(USER, replied(*parts), USER)[1] == ("model", parts)


@pytest.mark.parametrize(
    "edit",
    [
        {"content": "Something else."},
        {"tool_calls": ()},
        {"tool_calls": (call("call_0", arguments='{"a":2}'),)},
        {"tool_calls": (call("call_0", name="sub", arguments='{"a":1}'),)},
        {"wire": WireCopy(api="anthropic", model="m", body='[{"text": "Yes.", "thoughtSignature": "QQ=="}]')},
        {"wire": WireCopy(api="gemini", model="m", body="[{")},
        {"wire": WireCopy(api="gemini", model="m", body='{"text": "Yes."}')},
    ],
)
def test_a_message_that_says_something_else_by_now_goes_without_the_old_signatures(edit: dict[str, Any]) -> None:
    message = replied(
        {"text": "Yes.", "thoughtSignature": "QQ=="}, {"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": SIGNATURE}
    )
    kept = json.dumps(contents(USER, message, result("call_0")))
    assert SIGNATURE in kept
    changed = msgspec.structs.replace(message, **edit)
    sent = json.dumps(contents(USER, changed, result("call_0"))[1:])
    assert SIGNATURE not in sent
    assert "QQ==" not in sent
    assert changed.content in sent


def test_calls_that_gemini_did_not_make_get_the_placeholder_on_the_first_of_each_step_of_the_current_turn_only() -> None:
    old, new = asked(call("a1"), call("a2")), asked(call("b1"), call("b2"))
    signed = replied({"functionCall": {"name": "add", "args": {"a": 1}, "id": "s1"}, "thoughtSignature": SIGNATURE})
    history = (USER, old, result("a1"), result("a2"), AssistantMessage(content="Done."), UserMessage(content="Again."))
    sent = contents(*history, new, result("b1"), result("b2"), signed, result("s1"), asked(call("c1")), result("c1"))
    signatures = [[part.get("thoughtSignature") for part in parts if "functionCall" in part] for role, parts in sent if role == "model"]
    assert signatures == [[None, None], [], [PLACEHOLDER, None], [SIGNATURE], [PLACEHOLDER]]
    # Text beside results does not begin a turn: the calls before it are still the current ones.
    sent = contents(*history, new, result("b1"), result("b2"), UserMessage(content="Hurry."))
    assert sent[-2][1][0]["thoughtSignature"] == PLACEHOLDER
    assert sent[-1][1][-1] == {"text": "Hurry."}


def test_a_model_that_asks_for_no_signatures_gets_no_placeholder() -> None:
    assert PLACEHOLDER not in json.dumps(body(USER, asked(call()), result(), name="gemini-2.5-flash"))
    assert PLACEHOLDER in json.dumps(body(USER, asked(call()), result(), name="tunedModels/mine"))


# ---- media -----------------------------------------------------------------------------------------------


def test_images_and_files_of_the_user_are_inline_data_or_file_data() -> None:
    sent = contents(
        UserMessage(
            content=(
                TextPart("Look:"),
                ImagePart(data="aGk=", media_type="image/webp"),
                ImagePart(url="data:image/gif;base64,R0k="),
                ImagePart(url="https://example.com/cat.png", media_type="image/png"),
                FilePart(data="JVBERg==", name="report.pdf"),
                FilePart(url="https://generativelanguage.googleapis.com/v1beta/files/abc"),
                TextPart(" "),
            )
        )
    )
    assert sent[0][1] == [
        {"text": "Look:"},
        {"inlineData": {"mimeType": "image/webp", "data": "aGk="}},
        {"inlineData": {"mimeType": "image/gif", "data": "R0k="}},
        {"fileData": {"mimeType": "image/png", "fileUri": "https://example.com/cat.png"}},
        {"text": "[file: report.pdf]"},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
        {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}},
    ]
    with pytest.raises(UsageError, match="needs a url or data"):
        contents(UserMessage(content=(ImagePart(),)))


def test_an_image_of_a_result_is_in_the_result_from_gemini_3_on_and_named_before() -> None:
    picture = result(content=(TextPart("a chart"), ImagePart(data="aGk=", media_type="image/png"), ImagePart(url="https://e.com/x.png")))
    response = contents(USER, asked(call()), picture)[2][1][0]["functionResponse"]
    assert response["response"] == {"output": "a chart\n[image: https://e.com/x.png]"}
    assert response["parts"] == [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]
    response = contents(USER, asked(call()), picture, name="gemini-2.5-pro")[2][1][0]["functionResponse"]
    assert response["response"] == {"output": "a chart\n[image: image/png]\n[image: https://e.com/x.png]"}
    assert "parts" not in response


# ---- tools and settings ----------------------------------------------------------------------------------


def test_a_schema_is_sent_as_it_is() -> None:
    assert body(USER, tools=(ADD,))["tools"] == [
        {"functionDeclarations": [{"name": "add", "description": "Add.", "parametersJsonSchema": ADD.parameters}]}
    ]


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("add", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
    ],
)
def test_each_tool_choice_is_a_mode(choice: str, config: dict[str, Any]) -> None:
    assert body(USER, tools=(ADD,), tool_choice=choice)["toolConfig"] == {"functionCallingConfig": config}
    assert "toolConfig" not in body(USER, tool_choice=choice if choice != "add" else None)


def test_settings_have_googles_names() -> None:
    sent = body(USER, temperature=0.5, top_p=0.9, max_tokens=100, stop=("END",), seed=7)
    config = {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 100, "stopSequences": ["END"], "seed": 7}
    assert sent == {"generationConfig": config, "contents": [{"role": "user", "parts": [{"text": "Go."}]}]}


@pytest.mark.parametrize(
    ("name", "effort", "config"),
    [
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "minimal", {"thinkingBudget": 1024}),
        ("gemini-2.5-pro", "low", {"thinkingBudget": 1024}),
        ("gemini-2.5-pro", "medium", {"thinkingBudget": 8192}),
        ("gemini-2.5-pro", "high", {"thinkingBudget": 24576}),
        ("gemini-3-flash-preview", "minimal", {"thinkingLevel": "MINIMAL"}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW"}),
        ("gemini-3-pro", "low", {"thinkingLevel": "LOW"}),
        ("gemini-3-pro", "medium", {"thinkingLevel": "MEDIUM"}),
        ("gemini-3-pro", "high", {"thinkingLevel": "HIGH"}),
    ],
)
def test_reasoning_effort_is_a_budget_up_to_2_5_and_a_level_from_3_on(name: str, effort: str, config: dict[str, Any]) -> None:
    assert body(USER, name=name, reasoning_effort=effort)["generationConfig"] == {"thinkingConfig": config}


def test_what_the_wire_does_not_have_is_said() -> None:
    with pytest.raises(UsageError, match="none"):
        body(USER, name="gemini-3-pro", reasoning_effort="none")
    with pytest.raises(UsageError, match="parallel"):
        body(USER, tools=(ADD,), parallel_tool_calls=False)
    with pytest.raises(UsageError, match="contents"):
        body(USER, extra={"contents": []})
    with pytest.raises(UsageError, match="neither"):
        body(USER, tools=(ADD,), tool_choice="sub")
    assert body(USER, tools=(ADD,), parallel_tool_calls=True) == body(USER, tools=(ADD,))


def test_an_answer_of_a_form_is_asked_for_beside_the_tools_by_the_models_that_can() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    request = ModelRequest(messages=(USER,), tools=(ADD,), output=OutputSpec(name="answer", schema=schema))
    sent = json.loads(writer().body(request, "owner"))
    assert sent["generationConfig"] == {"responseMimeType": "application/json", "responseJsonSchema": schema}
    assert "tools" in sent
    native = {name: GoogleModel(name, api_key="k").native_output for name in ("gemini-3-pro", "gemini-2.5-pro", "tunedModels/mine")}
    assert native == {"gemini-3-pro": True, "gemini-2.5-pro": False, "tunedModels/mine": False}


def test_thoughts_are_asked_for_only_on_request() -> None:
    request = ModelRequest(messages=(USER,), settings=ModelSettings(reasoning_effort="low"))
    sent = json.loads(writer(thoughts=True).body(request, "owner"))
    assert sent["generationConfig"]["thinkingConfig"] == {"includeThoughts": True, "thinkingLevel": "LOW"}


def test_extra_is_merged_field_by_field_and_googles_own_tools_precede_the_functions() -> None:
    extra = {
        "generationConfig": {"topK": 5, "thinkingConfig": {"includeThoughts": True}},
        "tools": [{"googleSearch": {}}],
        "toolConfig": {"includeServerSideToolInvocations": True},
        "cachedContent": "cachedContents/1",
    }
    sent = body(USER, tools=(ADD,), temperature=1.0, tool_choice="auto", reasoning_effort="low", extra=extra)
    thinking = {"thinkingLevel": "LOW", "includeThoughts": True}
    assert sent["generationConfig"] == {"temperature": 1.0, "topK": 5, "thinkingConfig": thinking}
    assert [list(tool) for tool in sent["tools"]] == [["googleSearch"], ["functionDeclarations"]]
    assert sent["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}, "includeServerSideToolInvocations": True}
    assert sent["cachedContent"] == "cachedContents/1"


@pytest.mark.parametrize(
    ("name", "stream", "version", "path"),
    [
        ("gemini-3-pro", True, "/v1beta", "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"),
        ("models/gemini-3-pro", False, "", "/models/gemini-3-pro:generateContent"),
        ("tunedModels/mine", False, "", "/tunedModels/mine:generateContent"),
    ],
)
def test_the_model_is_in_the_path(name: str, stream: bool, version: str, path: str) -> None:
    assert GoogleRequestWriter(name, stream=stream, version=version).path(ModelRequest(messages=())) == path


# ---- the bytes -------------------------------------------------------------------------------------------


def rounds(many: int) -> list[Message]:
    made: list[Message] = [SystemMessage(content="Be short."), USER]
    for place in range(many):
        id = f"s{place}"
        made.append(replied({"functionCall": {"name": "add", "args": {"a": place}, "id": id}, "thoughtSignature": SIGNATURE}))
        made.append(result(id, f"result {place}"))
    return made


def test_an_unchanged_prefix_keeps_its_bytes_from_request_to_request() -> None:
    """Implicit caching is by prefix (https://ai.google.dev/gemini-api/docs/caching): a byte that changes early costs the rest."""
    ours, scratch, before = writer(), dict[Any, Any](), b""
    messages = rounds(12)
    for end in range(2, len(messages) + 1, 2):
        sent = ours.body(ModelRequest(messages=tuple(messages[:end]), tools=(ADD,), scratch=scratch), "owner")
        assert sent.startswith(before), end
        before = sent.removesuffix(b"]}]}")
    reopened = writer().body(ModelRequest(messages=tuple(messages), tools=(ADD,)), "owner")
    assert reopened == sent


def test_a_new_prompt_leaves_the_bytes_before_it_as_they_were() -> None:
    ours, scratch = writer(), dict[Any, Any]()
    messages = [*rounds(3), AssistantMessage(content="Done.")]
    before = ours.body(ModelRequest(messages=(*messages, USER), scratch=scratch), "owner").removesuffix(b"]}")
    after = ours.body(ModelRequest(messages=(*messages, USER, *rounds(2)[2:]), scratch=scratch), "owner")
    assert after.startswith(before)


def test_an_edit_anywhere_gives_the_same_bytes_as_a_new_session() -> None:
    ours, scratch = writer(), dict[Any, Any]()
    messages = rounds(6)
    request = ModelRequest(messages=tuple(messages), scratch=scratch)
    ours.body(request, "owner")
    for place in range(len(messages)):
        edited = [*messages]
        edited[place : place + 1] = [SystemMessage(content="Mind this.")]
        got = ours.body(replace(request, messages=tuple(edited)), "owner")
        assert got == writer().body(ModelRequest(messages=tuple(edited)), "other")
