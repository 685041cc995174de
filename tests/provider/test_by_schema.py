"""Tools for a model without tools: what it is asked, the form of its reply, and how that is read at every split."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from helpers import limits, looped
from interlock import Agent, Outcome, ProviderError, UsageError
from interlock.events import TextDelta, ToolCallDelta
from interlock.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    StopReason,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from interlock.model import ModelRequest, ModelResponse, ModelSettings, OutputSpec, Stop, ToolSpec
from interlock.providers.by_schema import CallsBySchema
from interlock.providers.form_reader import FormReader, read_form
from interlock.providers.forms import as_text, reply_schema
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import ScriptedModel, WireServer, cut, hold, text
from interlock.testing.conformance import Expected, check_model, transcript_of

ADD = ToolSpec(name="add", description="Add\n two numbers.", parameters={"type": "object", "properties": {"left": {"type": "integer"}}})
NOW = ToolSpec(name="now", description="The time.", parameters={"type": "object", "properties": {}, "additionalProperties": False})

spaces = st.text(alphabet=" \t\r\n", max_size=3)


def ended(content: str, reason: StopReason = StopReason.STOP) -> ModelResponse:
    return ModelResponse(message=AssistantMessage(content=content), stop=Stop(reason, reason.value))


def shown(reader: FormReader, pieces: list[str]) -> list[Any]:
    return [delta for piece in pieces for delta in reader.feed(piece)]


def split(document: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(document) + 1) for place in places), len(document)]
    return [document[start:end] for start, end in pairwise(edges)]


@given(st.text(), st.booleans(), st.lists(spaces, min_size=5, max_size=5), st.lists(st.integers(0, 10_000)))
def test_the_text_of_an_answer_comes_out_whole_however_it_is_escaped_spaced_and_cut(
    said: str, escaped: bool, gaps: list[str], places: list[int]
) -> None:
    a, b, c, d, e = gaps
    document = f'{a}{{{b}"answer"{c}:{d}{json.dumps(said, ensure_ascii=escaped)}{e}}}{a}'
    for pieces in (split(document, places), list(document)):
        reader = FormReader()
        deltas = shown(reader, pieces)
        assert (reader.complete, reader.name, reader.value) == (True, None, said)
        assert "".join(delta.text for delta in deltas) == said
        for delta in deltas:
            delta.text.encode()  # no half of a surrogate pair is ever shown


leaves = st.none() | st.booleans() | st.integers() | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8)


@given(st.dictionaries(st.text(), values), st.text(), st.sampled_from([None, 2]), st.booleans(), st.lists(st.integers(0, 10_000)))
def test_the_arguments_of_a_call_are_exactly_the_text_that_the_model_wrote(
    arguments: dict[str, Any], name: str, indent: int | None, escaped: bool, places: list[int]
) -> None:
    wrote = json.dumps(arguments, indent=indent, ensure_ascii=escaped)
    document = f'{{ "tool" : {json.dumps(name)}, "arguments" : {wrote} \n}}'
    for pieces in (split(document, places), list(document)):
        reader = FormReader()
        deltas = shown(reader, pieces)
        assert (reader.complete, reader.name, reader.value) == (True, name, wrote)
        assert "".join(delta.arguments for delta in deltas) == wrote
        assert all(type(delta) is ToolCallDelta and delta.name == name for delta in deltas)
    if name:
        response = read_form(ended(document))
        assert response.message == AssistantMessage(content="", tool_calls=(ToolCall(id="", name=name, arguments=wrote),))
        assert response.stop == Stop(StopReason.TOOL_CALLS, "stop")


@pytest.mark.parametrize(
    "document", ['{"answer":"a \\ud83d\\ude00 \\" b\\\\"}', '{"tool":"add","arguments":{"left":[1,"}]\\""],"x":{}}}', '{"answer":{"n":1}}']
)
def test_a_form_that_was_cut_off_anywhere_is_never_complete(document: str) -> None:
    whole = read_form(ended(document)).message
    for place in range(len(document)):
        part = document[:place]
        with pytest.raises(ProviderError, match="does not have the form") as failed:
            read_form(ended(part))
        assert (failed.value.kind, failed.value.retryable) == ("malformed", True)
        response = read_form(ended(part, StopReason.LENGTH))
        assert response.stop == Stop(StopReason.LENGTH, "length")
        assert whole.content.startswith(response.message.content)
        for call in response.message.tool_calls:
            assert whole.tool_calls[0].arguments.startswith(call.arguments)


@pytest.mark.parametrize(
    "document",
    [
        "Hello.",
        '{"answer":"a"} {"answer":"b"}',
        '{"answer":"a","tool":"b"}',
        '{"answer":"\\x"}',
        '{"answer":3}',
        '{"tool":"add"}',
        '{"tool":"add","arguments":[]}',
        "",
    ],
)
def test_what_is_none_of_the_forms_is_no_answer(document: str) -> None:
    with pytest.raises(ProviderError, match="the endpoint must support JSON schemas"):
        read_form(ended(document))


def test_half_a_surrogate_pair_that_stands_alone_is_mended() -> None:
    assert read_form(ended('{"answer":"a\\ud83db \\ude00 \\ud83d\\n"}')).message.content == "a\ufffdb \ufffd \ufffd\n"


def test_each_tools_schema_keeps_its_references_when_it_becomes_a_part_of_one() -> None:
    parameters = {
        "type": "object",
        "title": "Args",
        "properties": {
            "description": {"type": "string", "description": "What it is.", "default": "x"},
            "node": {"$ref": "#/$defs/Node"},
            "either": {"oneOf": [{"type": "integer", "minimum": 0}, {"const": {"title": "kept"}}]},
            "free": {"type": "object", "additionalProperties": {"type": "integer"}},
            "both": {"allOf": [{"type": "object", "properties": {"a": True}}, {"type": "object", "properties": {"b": {}}}]},
        },
        "required": ["node"],
        "$defs": {"Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}},
    }
    schema = reply_schema((NOW, ToolSpec(name="plant", description="", parameters=parameters)))
    assert [form["properties"].get("tool") for form in schema["anyOf"]] == [{"const": "now"}, {"const": "plant"}, None]
    assert [list(form["properties"]) for form in schema["anyOf"]] == [["tool", "arguments"], ["tool", "arguments"], ["answer"]]
    assert all(form["required"] == list(form["properties"]) and form["additionalProperties"] is False for form in schema["anyOf"])
    assert schema["anyOf"][1]["properties"]["arguments"] == {"$ref": "#/$defs/tool1"}
    assert schema["$defs"]["tool1"] == {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "node": {"$ref": "#/$defs/tool1/$defs/Node"},
            "either": {"anyOf": [{"type": "integer", "minimum": 0}, {"const": {"title": "kept"}}]},
            "free": {"type": "object", "additionalProperties": {"type": "integer"}},
            "both": {"allOf": [{"type": "object", "properties": {"a": True}}, {"type": "object", "properties": {"b": {}}}]},
        },
        "required": ["node"],
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/tool1/$defs/Node"}, {"type": "null"}]}},
                "additionalProperties": False,
            }
        },
        "additionalProperties": False,
    }


HISTORY = (
    SystemMessage(content="Be brief."),
    SystemMessage(content=" "),
    UserMessage(content=(TextPart(text="Add these."), ImagePart(url="http://host/a.png"), FilePart(name="b.pdf"))),
    AssistantMessage(
        content="I add.", tool_calls=(ToolCall(id="1", name="add", arguments='{"left": 1}'), ToolCall(id="2", name="now", arguments="{"))
    ),
    ToolMessage(tool_call_id="1", name="add", content="3"),
    ToolMessage(tool_call_id="2", name="now", content="Tool error (now): bad arguments", failed=True),
    AssistantMessage(content='It is "3".'),
    SystemMessage(content="Now be long."),
    UserMessage(content="Why?"),
)


def test_the_conversation_goes_as_text_in_turns_by_one_rule_per_message() -> None:
    request, formed = as_text(ModelRequest(messages=HISTORY, tools=(ADD,)))
    assert formed
    assert request.tools == ()
    system, *turns = request.messages
    assert isinstance(system, SystemMessage)
    assert system.content.startswith("Be brief.\n\nYou have these tools:\n- add: Add two numbers. Arguments (JSON schema): {")
    assert turns == [
        UserMessage(content="Add these.\n[image: http://host/a.png]\n[file: b.pdf]"),
        AssistantMessage(content='I add.\n{"tool":"add","arguments":{"left": 1}}\n{"tool":"now","arguments":{}}'),
        UserMessage(content="Result of add:\n3\n\nResult of now:\nTool error (now): bad arguments"),
        AssistantMessage(content='{"answer":"It is \\"3\\"."}'),
        UserMessage(content="System: Now be long.\n\nWhy?"),
    ]


def test_without_tools_the_request_is_plain_and_the_reply_is_free_text() -> None:
    output = OutputSpec(name="form", schema={"type": "object", "title": "Form", "properties": {"n": {"type": "integer"}}})
    for choice in (None, "none"):
        settings = ModelSettings(tool_choice=choice, stop=("END",))
        request, formed = as_text(ModelRequest(messages=HISTORY, tools=(ADD,) if choice else (), settings=settings, output=output))
        assert not formed
        assert request.messages[0] == SystemMessage(content="Be brief.")
        assert request.messages[4] == AssistantMessage(content='It is "3".')
        assert request.settings == ModelSettings(stop=("END",))
        assert request.output is not None
        assert request.output.schema == {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("choice", "forms"),
    [("auto", ["add", "now", "answer"]), ("required", ["add", "now"]), ("now", ["now"])],
)
def test_the_choice_of_a_tool_is_the_choice_of_forms(choice: str, forms: list[str]) -> None:
    request, _ = as_text(ModelRequest(messages=HISTORY, tools=(ADD, NOW), settings=ModelSettings(tool_choice=choice)))
    assert request.output is not None
    found = [form["properties"].get("tool", {"const": "answer"})["const"] for form in request.output.schema["anyOf"]]
    assert found == forms
    assert ("To answer the user" in request.messages[0].content) == ("answer" in forms)
    with pytest.raises(UsageError, match="neither auto, none or required nor an offered tool"):
        as_text(ModelRequest(messages=HISTORY, tools=(ADD,), settings=ModelSettings(tool_choice="absent")))
    with pytest.raises(UsageError, match=r"ModelSettings\.stop cannot be kept beside tools"):
        as_text(ModelRequest(messages=HISTORY, tools=(ADD,), settings=ModelSettings(stop=("x",))))


def test_the_grammar_field_holds_the_same_schema_and_forbids_white_space() -> None:
    asked = ModelRequest(messages=HISTORY, tools=(ADD,), settings=ModelSettings(extra={"top_k": 1}))
    by_format, by_grammar = as_text(asked)[0], as_text(asked, grammar=True)[0]
    assert by_format.output is not None
    assert by_grammar.output is None
    head, _, schema = by_grammar.settings.extra["grammar"].partition("start: %json ")
    assert (head, by_grammar.settings.extra["top_k"]) == ("%llguidance {}\n", 1)
    assert json.loads(schema) == {**by_format.output.schema, "x-guidance": {"whitespace_flexible": False, "lenient": True}}


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


CALL = '{"tool":"add","arguments":{"left":1,"right": 2}}'


def over(server: WireServer, **options: Any) -> CallsBySchema:
    return CallsBySchema(OpenAIChatModel("small", base_url=server.base_url, native_output=True, **options))


@pytest.mark.parametrize("stream", [True, False])
def test_an_agent_with_tools_runs_on_a_model_without_any(stream: bool) -> None:
    said = 'It is 3: "drei" \U0001f600.'
    answer = json.dumps({"answer": said})

    @looped
    async def main() -> None:
        async with WireServer([text(CALL, pieces=len(CALL)), text(answer, pieces=len(answer))]) as server:
            async with await Agent.create(over(server, stream=stream), tools=[add], system_prompt="Be exact.") as agent:
                deltas = [event async for event in agent.stream("1 + 2?") if isinstance(event, (TextDelta, ToolCallDelta))]
            first, second = (request.body for request in server.requests)
        assert "tools" not in first
        assert first["response_format"]["json_schema"]["schema"]["anyOf"][0]["properties"]["tool"] == {"const": "add"}
        assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
        assert [message["content"] for message in second["messages"][2:]] == [CALL, "Result of add:\n3"]
        if stream:
            assert "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta)) == '{"left":1,"right": 2}'
            assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == said

    main()


def test_a_call_in_a_reply_that_was_cut_off_never_runs() -> None:
    ran: list[str] = []

    def act(what: str) -> str:
        ran.append(what)
        return what

    whole = '{"tool":"act","arguments":{"what":"it"}}'
    done = text('{"answer":"No."}')

    @looped
    async def main() -> None:
        async with WireServer([text(whole, finish="length"), text(whole[:-2], finish="length"), cut(after=whole), done]) as server:
            async with await Agent.create(over(server), tools=[act], limits=limits()) as agent:
                result = await agent.run("Act.")
            assert result.require().text == "No."

    main()
    assert ran == []


def test_an_answer_that_a_limit_cuts_off_is_continued_in_the_form_and_joined() -> None:
    @looped
    async def main() -> None:
        model = ScriptedModel([text('{"answer":"one \\u00e9 tw', finish="length"), text('{"answer":"o three"}')], native_output=True)
        async with await Agent.create(CallsBySchema(model), tools=[add], limits=limits()) as agent:
            result = await agent.run("Count.")
        assert (result.outcome, result.text) == (Outcome.COMPLETED, "one \u00e9 two three")

    main()


def test_a_consumer_that_leaves_closes_the_connection() -> None:
    @looped
    async def main() -> None:
        async with WireServer([hold(asyncio.Event(), after='{"answer":"Once up')]) as server:
            stream = over(server).stream(ModelRequest(messages=HISTORY, tools=(ADD,)))
            assert await anext(stream) == TextDelta("Once up")
            await stream.aclose()
            async with asyncio.timeout(0.25):
                await server.requests[0].disconnected.wait()

    main()


class Sum(BaseModel):
    left: int
    total: int


def test_a_structured_answer_is_one_of_the_forms_beside_the_tools() -> None:
    @looped
    async def main() -> None:
        model = ScriptedModel([text(CALL), text('{"answer":{"left":1,"total":3}}')], native_output=True)
        async with await Agent.create(CallsBySchema(model), tools=[add], output=Sum) as agent:
            result = await agent.run("1 + 2?")
        assert result.output == Sum(left=1, total=3)
        assert result.text == '{"left":1,"total":3}'
        form = model.requests[0].output.schema["anyOf"][-1]
        assert form["properties"] == {"answer": {"$ref": "#/$defs/output"}}

    main()


class Offered(CallsBySchema):
    """The kit offers no tools."""

    async def stream(self, request: ModelRequest) -> Any:
        async with aclosing(super().stream(replace(request, tools=(ADD,)))) as events:
            async for event in events:
                yield event


KIT = {
    "an answer": (
        text('{"answer":"H\\u00e9llo \\ud83d\\ude00 \U0001f642."}'),
        Expected(text="H\u00e9llo \U0001f600 \U0001f642.", stop=StopReason.STOP),
    ),
    "a call": (text('{"tool":"add","arguments":{"left":1}}'), Expected(calls=[("add", {"left": 1})], stop=StopReason.TOOL_CALLS)),
    "cut by length": (text('{"answer":"It is \\u00e', finish="length"), Expected(text="It is ", stop=StopReason.LENGTH)),
}


@pytest.mark.parametrize("name", KIT)
def test_it_conforms_streamed_and_not_at_every_split_and_every_cut(name: str) -> None:
    step, expected = KIT[name]
    transcript = transcript_of(step, path="/v1/chat/completions", name=name, expected=expected)

    @looped
    async def main() -> None:
        make = lambda url, stream: Offered(OpenAIChatModel("m", base_url=url, stream=stream, native_output=True))  # noqa: E731
        (await check_model(make, transcript, every=7)).require()

    main()
