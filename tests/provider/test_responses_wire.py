"""What the Responses adapter makes of a reply: an answer only with terminal evidence, the same however it comes."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import ProviderError
from interlock.messages import ToolCall, UserMessage
from interlock.model import ModelEvent, ModelRequest, ModelResponse, ReasoningDelta, StopReason, TextDelta, ToolCallDelta, Usage
from interlock.providers.openai import OpenAIResponsesModel
from interlock.providers.responses_reply import ResponsesReply
from interlock.testing import Step, WireServer, call, calls, cut, eof, error, error_object, raw, reasoning, text
from interlock.testing.wire_responses import ResponsesWire

from .conftest import Run

REQUEST = ModelRequest(messages=(UserMessage(content="hi"),))


async def play(step: Step, *, stream: bool = True, request: ModelRequest = REQUEST, **options: Any) -> list[ModelEvent]:
    async with WireServer([step]) as server:
        model = OpenAIResponsesModel("m", base_url=server.base_url, api_key="k", stream=stream, **options)
        try:
            return [event async for event in model.stream(request)]
        finally:
            await model.aclose()


async def response_of(step: Step, *, stream: bool = True) -> ModelResponse:
    last = (await play(step, stream=stream))[-1]
    assert isinstance(last, ModelResponse)
    return last


async def failure_of(step: Step, *, stream: bool = True) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await play(step, stream=stream)
    return caught.value


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def message(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": list(parts), **more}


def said(words: str) -> dict[str, Any]:
    return {"type": "output_text", "text": words, "annotations": []}


def called(id: str = "call_1", name: str = "add", arguments: Any = '{"left": 1}', **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": id, "name": name, "arguments": arguments, "status": "completed", **more}


def thought(summary: str = "", encrypted: str | None = "gAAAAAB", **more: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": summary}] if summary else []
    return {"type": "reasoning", "id": "rs_1", "summary": parts, "encrypted_content": encrypted, **more}


def whole(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    counts = {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    return {"object": "response", "id": "resp_1", "status": status, "error": None, "output": list(output), "usage": counts, **more}


def ended(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    return event(status, response=whole(*output, status=status, **more))


def read(*events: dict[str, Any]) -> ModelResponse:
    reply = ResponsesReply("m")
    for one in events:
        reply.take(json.dumps(one).encode())
    return reply.response()


def shown(events: list[ModelEvent]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Text, reasoning and calls as a consumer of the deltas alone would have them."""
    made: dict[int, tuple[str, str, str]] = {}
    for one in events:
        if isinstance(one, ToolCallDelta):
            _, _, before = made.get(one.index, ("", "", ""))
            made[one.index] = (one.id, one.name, before + one.arguments)
    said = "".join(one.text for one in events if isinstance(one, TextDelta))
    return said, "".join(one.text for one in events if isinstance(one, ReasoningDelta)), list(made.values())


STEPS: dict[str, Step] = {
    "text": text("Good morning, Zoë 🙂."),
    "nothing": text(""),
    "reasoning": reasoning("First this.", then="Then that."),
    "reasoning only": reasoning("Hm."),
    "one call": calls(call("c1", "add", {"left": 1, "right": 2})),
    "parallel calls": calls(call("c1", "add", {"left": 1}), call("c2", "add", "{}"), before="Let me add."),
    "call without arguments": calls(call("c1", "now", "")),
    "cut by a limit": text("One, two", finish="length"),
    "calls cut by a limit": calls(call("c1", "add", '{"left": 1, "ri'), finish="length"),
    "filtered": text("", finish="content_filter"),
    "refused": text("", finish="refusal"),
    "no finish reason": text("All of it.", finish=None),
    "no usage": text("x", usage=None),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_reply_is_the_same_streamed_and_plain_and_as_it_is_shown(run: Run, name: str) -> None:
    async def main() -> None:
        events = await play(STEPS[name])
        streamed = events[-1]
        plain = await play(STEPS[name], stream=False)
        assert isinstance(streamed, ModelResponse)
        assert streamed == plain[-1]
        for deltas in (events, plain):
            words, reasons, made = shown(deltas[:-1])
            assert words == streamed.message.content
            assert reasons == streamed.message.reasoning
            assert [(one.id, one.name, one.arguments) for one in streamed.message.tool_calls] == made

    run(main())


@pytest.mark.parametrize(
    ("name", "reason", "raw_word"),
    [
        ("text", StopReason.STOP, "completed"),
        ("one call", StopReason.TOOL_CALLS, "completed"),
        ("cut by a limit", StopReason.LENGTH, "max_output_tokens"),
        ("calls cut by a limit", StopReason.LENGTH, "max_output_tokens"),
        ("filtered", StopReason.CONTENT_FILTER, "content_filter"),
        ("refused", StopReason.REFUSAL, "completed"),
        ("no finish reason", StopReason.STOP, "completed"),
    ],
)
def test_a_status_says_why_the_reply_ended(run: Run, name: str, reason: StopReason, raw_word: str) -> None:
    response = run(response_of(STEPS[name]))
    assert (response.stop.reason, response.stop.raw) == (reason, raw_word)


def test_a_response_that_is_incomplete_for_a_reason_without_a_word_is_cut_off_and_no_answer() -> None:
    stop = read(ended(message(said("Half")), status="incomplete", incomplete_details={"reason": "out_of_patience"})).stop
    assert (stop.reason, stop.raw) == (StopReason.LENGTH, "out_of_patience")
    assert read(ended(message(said("Half")), status="incomplete")).stop.reason is StopReason.LENGTH


def test_a_refusal_part_is_a_refusal_with_its_words() -> None:
    refusal = {"type": "refusal", "refusal": "I will not."}
    for events in ([ended(message(refusal))], [event("refusal.delta", delta="I will ", output_index=0), ended(message(refusal))]):
        response = read(*events)
        assert (response.message.content, response.stop.reason) == ("I will not.", StopReason.REFUSAL)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("step", [cut(after="Half of"), eof(after="Half of"), cut(after=calls(call("c1", "add", "{}"))), cut()])
def test_a_reply_without_its_last_event_is_a_cut(run: Run, step: Step, stream: bool) -> None:
    failure = run(failure_of(step, stream=stream))
    assert (failure.kind, failure.retryable) == ("cut", True)


def test_done_without_the_last_event_is_a_cut(run: Run) -> None:
    step = raw(b'data: {"type":"response.output_text.delta","output_index":0,"delta":"Half"}\n\ndata: [DONE]\n\n', ends="eof")
    failure = run(failure_of(step))
    assert failure.kind == "cut"
    assert "4 characters" in str(failure)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("shape", ["top", "choice", "finish"])
def test_an_error_inside_a_200_is_an_error_and_not_an_answer(run: Run, shape: Any, stream: bool) -> None:
    failure = run(failure_of(error_object("server_error", "it broke", after="Half", shape=shape), stream=stream))
    assert (failure.kind, failure.retryable) == ("error_object", True)
    if shape != "finish":
        assert "it broke" in str(failure)


@pytest.mark.parametrize(
    ("said_error", "retryable"),
    [
        ({"code": "server_error", "message": "x"}, True),
        ({"code": "rate_limit_exceeded", "message": "x"}, True),
        ({"code": "invalid_prompt", "message": "x"}, False),
        ({"code": "image_content_policy_violation", "message": "x"}, False),
        ({"code": "failed_to_download_image", "message": "x"}, True),
    ],
)
def test_a_failed_response_is_tried_again_unless_its_code_says_that_it_is_in_vain(said_error: dict[str, str], retryable: bool) -> None:
    with pytest.raises(ProviderError) as caught:
        read(ended(status="failed", error=said_error))
    assert (caught.value.retryable, caught.value.code) == (retryable, said_error["code"])


def test_what_a_failed_reply_has_cost_is_told(run: Run) -> None:
    failed = raw(
        {"type": "response.failed", "response": whole(status="failed", error={"code": "server_error", "message": "x"})}, ends="eof"
    )
    assert run(failure_of(failed)).usage == Usage(input_tokens=3, output_tokens=2, cached_input_tokens=1)


def test_an_http_error_says_what_the_provider_said(run: Run) -> None:
    failure = run(failure_of(error(429, "slow down", headers={"retry-after": "3"})))
    assert (failure.status, failure.retry_after_s, failure.retryable) == (429, 3.0, True)
    assert "slow down" in str(failure)


def test_a_reply_that_is_made_in_the_background_is_no_answer() -> None:
    with pytest.raises(ProviderError, match="answers later"):
        read(whole(status="queued"))


def test_what_is_told_only_as_a_whole_is_shown_and_counts_once() -> None:
    reply = ResponsesReply("m")
    deltas = [
        *reply.take(json.dumps(event("output_text.delta", output_index=0, content_index=0, delta="Good ")).encode()),
        *reply.take(json.dumps(event("output_item.done", output_index=0, item=message(said("Good morning.")))).encode()),
        *reply.take(json.dumps(event("output_item.done", output_index=1, item=called())).encode()),
        *reply.take(json.dumps(ended(message(said("Good morning.")), called(), message(said(" Bye.")))).encode()),
    ]
    words, _, made = shown([*deltas])
    response = reply.response()
    assert words == response.message.content == "Good morning. Bye."
    assert made == [("call_1", "add", '{"left": 1}')]
    assert response.message.tool_calls == (ToolCall(id="call_1", name="add", arguments='{"left": 1}'),)


def test_a_last_event_without_items_leaves_what_was_told_before() -> None:
    told = [event("output_item.added", output_index=0, item=called(arguments=""))]
    told += [event("function_call_arguments.delta", output_index=0, delta=piece) for piece in ('{"left"', ": 1}")]
    told += [event("output_text.delta", output_index=1, delta="Done.")]
    response = read(*told, ended())
    assert response.message.content == "Done."
    assert response.message.tool_calls == (ToolCall(id="call_1", name="add", arguments='{"left": 1}'),)


def test_a_whole_item_that_says_something_else_than_its_deltas_counts() -> None:
    assert read(event("output_text.delta", output_index=0, delta="Goof"), ended(message(said("Good.")))).message.content == "Good."


@pytest.mark.parametrize(
    ("given", "arguments"), [({"left": 1}, '{"left": 1}'), (None, ""), ("null", "null"), ('{"a":"\\ud83d', '{"a":"\\ud83d')]
)
def test_a_calls_arguments_are_kept_as_they_came_and_an_object_is_written_as_text(given: Any, arguments: str) -> None:
    assert read(ended(called(arguments=given))).message.tool_calls[0].arguments == arguments


def test_parallel_calls_whose_fragments_alternate_are_two_calls() -> None:
    told = [event("output_item.added", output_index=place, item=called(f"call_{place}", arguments="")) for place in (0, 1)]
    for piece in ('{"left"', ": 1", "}"):
        told += [event("function_call_arguments.delta", output_index=place, delta=piece) for place in (0, 1)]
    made = read(*told, ended()).message.tool_calls
    assert [(one.id, one.arguments) for one in made] == [("call_0", '{"left": 1}'), ("call_1", '{"left": 1}')]


def test_parts_of_reasoning_are_paragraphs_streamed_and_plain() -> None:
    parts = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    item = {"type": "reasoning", "id": "rs_1", "summary": parts, "encrypted_content": "x"}
    told = [event("reasoning_summary_text.delta", output_index=0, summary_index=i, delta=p) for i, p in ((0, "One"), (0, "."), (1, "Two."))]
    told.append(event("reasoning_text.delta", output_index=1, content_index=0, delta="Three."))
    spoken = {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "Three."}]}
    streamed, plain = read(*told, ended(item, spoken)), read(whole(item, spoken))
    assert streamed == plain
    assert plain.message.reasoning == "One.\n\nTwo.\n\nThree."


def test_a_hosted_tool_is_no_call_and_its_items_are_kept() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "é"}}
    response = read(
        event("output_item.added", output_index=0, item={**search, "status": "in_progress"}),
        event("web_search_call.searching", output_index=0, item_id="ws_1"),
        event("output_item.done", output_index=0, item=search),
        ended(search, message(said("Found."))),
    )
    assert response.message.tool_calls == ()
    assert (response.message.content, response.stop.reason) == ("Found.", StopReason.STOP)
    assert response.message.wire is not None
    assert response.message.wire.body.isascii()
    assert json.loads(response.message.wire.body)[0] == search


def test_a_reply_that_our_form_holds_is_not_kept_twice() -> None:
    assert read(ended(message(said("Hi.")), called())).message.wire is None


@pytest.mark.parametrize(
    "item", [thought(), message(said("x"), phase="commentary"), called(namespace="tools"), {"type": "compaction", "encrypted_content": "x"}]
)
def test_what_only_the_apis_own_form_holds_is_kept_as_it_came(item: dict[str, Any]) -> None:
    data = json.dumps(item, indent=1)
    reply = ResponsesReply("m")
    reply.take(json.dumps(event("output_item.added", output_index=0, item={**item, "encrypted_content": "half"})).encode())
    reply.take(b'{"type":"response.output_item.done","output_index":0,"item":%b}' % data.encode())
    reply.take(b'{"type":"response.completed","response":{"status":"completed","output":[%b]}}' % data.encode())
    copy = reply.response().message.wire
    assert copy is not None
    assert (copy.api, copy.model, copy.body) == ("responses", "m", f"[{data}]")


@pytest.mark.parametrize("kind", ["computer_call", "local_shell_call", "shell_call", "apply_patch_call", "custom_tool_call"])
def test_an_item_that_waits_for_the_client_is_not_kept_for_it_would_never_be_answered(kind: str) -> None:
    assert read(ended(thought(), {"type": kind, "id": "x_1", "call_id": "c"}, message(said("Wait.")))).message.wire is None


@pytest.mark.parametrize("count", [-1, 10**13, "12", 1.5, True, None])
def test_a_count_that_cannot_be_one_is_unknown(count: Any) -> None:
    usage = {"input_tokens": count, "output_tokens": 7}
    assert read(ended(message(said("x")), usage=usage)).usage == Usage(input_tokens=None, output_tokens=7)


def test_keep_alives_say_nothing_and_events_of_a_response_do() -> None:
    reply = ResponsesReply("m")
    for payload, said_something in ((b'{"type":"keepalive","sequence_number":3}', False), (b'{"type":"response.in_progress"}', True)):
        reply.said = False
        assert reply.take(payload) == ()
        assert reply.said is said_something


def test_half_a_surrogate_pair_is_shown_with_its_other_half() -> None:
    reply = ResponsesReply("m")
    deltas = [
        *reply.take(rb'{"type":"response.output_text.delta","output_index":0,"delta":"a\ud83d"}'),
        *reply.take(rb'{"type":"response.output_text.delta","output_index":0,"delta":"\ude42b"}'),
    ]
    assert deltas == [TextDelta("a"), TextDelta("🙂b")]
    reply.take(json.dumps(ended()).encode())
    assert reply.response().message.content == "a🙂b"


# ---- any sequence, any split -----------------------------------------------------------------------------------


def frames_of(step: Step) -> bytes:
    writer = ResponsesWire("/responses", {}).writer()
    return b"".join(writer.chunk(frame) for frame in step.frames if isinstance(frame, dict)) + writer.end(step.ends)


FULL = frames_of(calls(call("c1", "add", {"left": 1}), call("c2", "say", {"text": "é🙂"}), before="Zoë says 🙂.", pieces=2))


async def fed(blocks: list[bytes], *, ends: str = "eof") -> list[ModelEvent]:
    return await play(raw(*blocks, ends=ends))  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, len(FULL) - 1), max_size=12))
def test_a_reply_is_the_same_at_any_byte_split(cuts: list[int]) -> None:
    places = sorted({0, *cuts, len(FULL)})
    blocks = [FULL[start:end] for start, end in pairwise(places)]
    events = asyncio.run(fed(blocks))
    last = events[-1]
    assert isinstance(last, ModelResponse)
    words, _, made = shown(events[:-1])
    assert words == last.message.content == "Zoë says 🙂."
    assert made == [("c1", "add", '{"left": 1}'), ("c2", "say", '{"text": "é🙂"}')]


@pytest.mark.parametrize("ends", ["cut", "eof"])
def test_a_cut_at_every_event_is_a_cut_and_no_answer(run: Run, ends: Any) -> None:
    """However it ends: the connection breaks, or something in between closes it in good order."""
    events = FULL.split(b"\n\n")[:-1]

    async def main() -> None:
        for count in range(len(events)):
            failure = await failure_of(raw(b"".join(one + b"\n\n" for one in events[:count]), ends=ends))
            assert failure.kind == "cut", count

    run(main())


ITEMS = st.sampled_from(
    [message(said("ab")), called(), thought("why"), {"type": "web_search_call", "id": "ws"}, message(), called("call_2", "", "")]
)
ANY = st.one_of(
    st.builds(
        lambda kind, i, t: event(kind, output_index=i, delta=t),
        st.sampled_from(["output_text.delta", "refusal.delta"]),
        st.none() | st.integers(0, 3),
        st.text(max_size=3),
    ),
    st.builds(lambda i, t: event("function_call_arguments.delta", output_index=i, delta=t), st.integers(0, 3), st.text(max_size=3)),
    st.builds(
        lambda i, t: event("reasoning_summary_text.delta", output_index=i, summary_index=0, delta=t), st.integers(0, 3), st.text(max_size=3)
    ),
    st.builds(
        lambda kind, i, item: event(f"output_item.{kind}", output_index=i, item=item),
        st.sampled_from(["added", "done"]),
        st.integers(0, 3),
        ITEMS,
    ),
    st.builds(lambda *items: ended(*items), ITEMS),
    st.builds(lambda word: ended(status="incomplete", incomplete_details={"reason": word}), st.text(max_size=4)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.dictionaries(
            st.sampled_from(["type", "item", "response", "delta", "output", "error", "status"]), inner, max_size=4
        ),
        max_leaves=6,
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ANY, max_size=10))
def test_any_sequence_of_events_is_a_response_or_a_provider_error(events: list[Any]) -> None:
    reply = ResponsesReply("m")
    try:
        for one in events:
            reply.take(json.dumps(one).encode())
            if reply.done:
                break
        response = reply.response()
    except ProviderError:
        return
    assert reply.finished
    assert events
    if response.stop.reason not in (StopReason.LENGTH, StopReason.REFUSAL, StopReason.CONTENT_FILTER):
        assert response.stop.raw == "completed"
