"""Anthropic's reply: what is terminal evidence, what is a call, what is kept, whatever the blocks, the cuts and the odd types.

Sources: platform.claude.com/docs/en/build-with-claude/streaming, .../api/messages, .../api/errors, and the official SDK's types.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import ProviderError, UsageError
from interlock.messages import UserMessage, WireCopy
from interlock.model import ModelRequest, ModelResponse, ReasoningDelta, StopReason, TextDelta, ToolCallDelta
from interlock.providers.anthropic import AnthropicModel
from interlock.providers.anthropic_reply import AnthropicReply
from interlock.providers.faults import error_object, http_error
from interlock.testing import Step, WireServer, call, calls, cut, eof, error, hold, raw, reasoning, text
from interlock.testing import error_object as scripted_error

from .conftest import Run

REQUEST = ModelRequest(messages=(UserMessage(content="hi"),))
SIGNATURE = "EpADCokBCA8YAipAsfSSBF77IhHThF+yK0LNwHz/ujpQ6S="


def start(model: str = "claude-x", **usage: Any) -> dict[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None}
    return {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}}


def block(index: int, fields: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": fields},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def said(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def thought(index: int, *pieces: str, signatures: Sequence[str] = (SIGNATURE,)) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    signed = [{"type": "signature_delta", "signature": part} for part in signatures]
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, *signed)


def use(index: int, id: str, name: str, *pieces: str, kind: str = "tool_use", **more: Any) -> list[dict[str, Any]]:
    deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    return block(index, {"type": kind, "id": id, "name": name, "input": {}, **more}, *deltas)


def end(reason: str | None, **usage: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


PING = {"type": "ping"}
TYPICAL: list[dict[str, Any]] = [
    start(input_tokens=20, cache_creation_input_tokens=100, cache_read_input_tokens=3000, output_tokens=1),
    *thought(0, "I look ", "at it 🙂."),
    PING,
    *block(1, {"type": "redacted_thinking", "data": "EmwKAhgB"}),
    *said(2, "Lét me ", "", "see."),
    *use(3, "toolu_1", "read", "", '{"path": "a', '/b", "n": 1.0}'),
    *use(4, "toolu_2", "read", '{"path": "é"}', caller={"type": "direct"}),
    *use(5, "toolu_3", "ping", ""),
    *end("tool_use", output_tokens=47, output_tokens_details={"thinking_tokens": 30}),
]


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e, ensure_ascii=False).encode()) for e in events)


def read(*events: dict[str, Any] | bytes) -> tuple[list[Any], ModelResponse]:
    reply = AnthropicReply()
    shown = [delta for event in events for delta in reply.take(event if isinstance(event, bytes) else json.dumps(event).encode())]
    return shown, reply.response()


async def play(step: Step, *, stream: bool = True) -> list[Any]:
    async with WireServer([step]) as server:
        model = AnthropicModel("claude-x", base_url=server.base_url, api_key="k", stream=stream)
        events = [event async for event in model.stream(REQUEST)]
        await model.aclose()
        return events


async def failure(step: Step, *, stream: bool = True) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await play(step, stream=stream)
    return caught.value


def content(response: ModelResponse) -> list[dict[str, Any]]:
    assert response.message.wire is not None
    return [block for part in json.loads(response.message.wire.body) for block in part["content"]]


def check_typical(events: Sequence[Any]) -> None:
    *shown, response = events
    message = response.message
    assert message.content == "Lét me see."
    assert message.reasoning == "I look at it 🙂."
    made = [(made.id, made.name, json.loads(made.arguments or "{}")) for made in message.tool_calls]
    assert made == [("toolu_1", "read", {"path": "a/b", "n": 1.0}), ("toolu_2", "read", {"path": "é"}), ("toolu_3", "ping", {})]
    assert (response.stop.reason, response.stop.raw) == (StopReason.TOOL_CALLS, "tool_use")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (3120, 47)
    assert (usage.cached_input_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (3000, 100, 30)
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == message.content
    assert "".join(delta.text for delta in shown if isinstance(delta, ReasoningDelta)) == message.reasoning
    for place, one in enumerate(message.tool_calls):
        pieces = [delta for delta in shown if isinstance(delta, ToolCallDelta) and delta.index == place]
        assert "".join(piece.arguments for piece in pieces) == one.arguments
        assert {(piece.id, piece.name) for piece in pieces} == {(one.id, one.name)}
    assert [part["type"] for part in content(response)] == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use", "tool_use"]
    assert content(response)[0] == {"type": "thinking", "thinking": "I look at it 🙂.", "signature": SIGNATURE}
    assert content(response)[1] == {"type": "redacted_thinking", "data": "EmwKAhgB"}


# ---- the same reply, however it comes -----------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_with_thinking_text_and_parallel_calls_is_read_the_same_streamed_and_not(run: Run, stream: bool) -> None:
    check_typical(run(play(raw(*TYPICAL), stream=stream)))


@given(st.lists(st.integers(1, len(sse(*TYPICAL)) - 1), max_size=40))
@settings(max_examples=40, deadline=None)
def test_no_split_of_the_bytes_changes_what_is_read(run: Run, places: list[int]) -> None:
    data = sse(*TYPICAL)
    pieces = [data[a:b] for a, b in pairwise([0, *sorted(set(places)), len(data)])]
    check_typical(run(play(raw(*pieces, ends="eof"))))


EVIDENCE = next(place for place, event in enumerate(TYPICAL) if event["type"] == "message_delta")


@pytest.mark.parametrize("count", range(len(TYPICAL)))
@pytest.mark.parametrize("ends", ["cut", "eof"])
def test_a_reply_that_breaks_after_any_event_is_a_cut_unless_the_stop_reason_was_there(run: Run, count: int, ends: Any) -> None:
    step = raw(sse(*TYPICAL[:count]) or b"\n", ends=ends)
    if count > EVIDENCE:
        check_typical(run(play(step)))
        return
    caught = run(failure(step))
    assert (caught.kind, caught.retryable) == ("cut", True)


def test_a_plain_reply_that_breaks_is_a_cut(run: Run) -> None:
    assert run(failure(cut(after="half an answer"), stream=False)).kind == "cut"


def test_message_stop_without_a_stop_reason_is_a_cut(run: Run) -> None:
    step = raw(sse(start(), *said(0, "half"), {"type": "message_stop"}), ends="eof")
    assert run(failure(step)).kind == "cut"
    whole = {"type": "message", "content": [{"type": "text", "text": "half"}], "stop_reason": None, "usage": {}}
    assert run(failure(raw(json.dumps(whole).encode()), stream=False)).kind == "cut"


SCRIPTS: dict[str, Step] = {
    "text": text("Hello 🙂 wörld"),
    "text without a finish reason": text("Hello", finish=None),
    "reasoning": reasoning("Let me think.", then="Done."),
    "calls": calls(call("c1", "add", {"a": 1}), call("c2", "add", {"b": [1, {"c": "é"}]}), before="I add."),
    "no arguments": calls(call("c1", "ping", ""), call("c2", "ping", "{}")),
    "length": text("cut off", finish="length"),
    "filtered": text("", finish="content_filter"),
    "unknown": text("hm", finish="something_new"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_the_same_streamed_and_plain(run: Run, name: str) -> None:
    streamed, plain = (run(play(SCRIPTS[name], stream=stream)) for stream in (True, False))
    for one, two in [(streamed[-1], plain[-1])]:
        assert (one.message.content, one.message.reasoning) == (two.message.content, two.message.reasoning)
        assert [(c.id, c.name, json.loads(c.arguments or "{}")) for c in one.message.tool_calls] == [
            (c.id, c.name, json.loads(c.arguments or "{}")) for c in two.message.tool_calls
        ]
        assert (one.stop, one.usage, one.message.wire) == (two.stop, two.usage, two.message.wire)


# ---- event sequences that nobody documented --------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "input", "index"]), inner, max_size=3),
    max_leaves=4,
)
ODD_EVENTS = st.one_of(
    st.just(PING),
    st.builds(
        lambda index, kind, more: {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}},
        st.integers(0, 2) | ANYTHING,
        st.sampled_from(["text", "thinking", "tool_use", "server_tool_use", "new_kind"]) | ANYTHING,
        st.dictionaries(st.sampled_from(["text", "thinking", "id", "name", "input", "citations", "signature"]), ANYTHING, max_size=3),
    ),
    st.builds(
        lambda index, kind, more: {"type": "content_block_delta", "index": index, "delta": {"type": kind, **more}},
        st.integers(0, 2) | ANYTHING,
        st.sampled_from(["text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta", "new_delta"]) | ANYTHING,
        st.dictionaries(st.sampled_from(["text", "thinking", "partial_json", "signature", "citation"]), TEXTS | ANYTHING, max_size=3),
    ),
    st.builds(lambda index: {"type": "content_block_stop", "index": index}, st.integers(0, 2) | ANYTHING),
    st.builds(lambda usage, delta: {"type": "message_delta", "usage": usage, "delta": delta}, ANYTHING, ANYTHING),
    st.builds(lambda message: {"type": "message_start", "message": message}, ANYTHING),
    st.dictionaries(st.sampled_from(["type", "delta", "message", "index"]), ANYTHING, max_size=3),
)


@given(st.lists(ODD_EVENTS, max_size=12))
@settings(max_examples=120, deadline=None)
def test_any_sequence_of_events_gives_a_reply_or_a_provider_error_and_shows_the_text_that_it_ends_with(events: list[Any]) -> None:
    reply = AnthropicReply()
    shown: list[Any] = []
    try:
        for event in [*events, *end("end_turn")]:
            shown += reply.take(json.dumps(event).encode())
        response = reply.response()
    except ProviderError:
        return
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == response.message.content
    assert "".join(delta.text for delta in shown if isinstance(delta, ReasoningDelta)) == response.message.reasoning
    if response.message.wire is not None:
        assert response.message.wire.body.isascii()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("text"), st.lists(TEXTS, min_size=1, max_size=3)),
            st.tuples(st.just("thinking"), st.lists(TEXTS, min_size=1, max_size=3)),
            st.tuples(st.just("tool_use"), st.lists(TEXTS, min_size=1, max_size=3)),
            st.tuples(st.just("server_tool_use"), st.lists(TEXTS, min_size=1, max_size=3)),
        ),
        max_size=6,
    )
)
@settings(max_examples=50, deadline=None)
def test_no_text_is_lost_or_doubled_and_a_hosted_call_is_never_one_of_ours(blocks: list[tuple[str, list[str]]]) -> None:
    events: list[dict[str, Any]] = [start()]
    for index, (kind, pieces) in enumerate(blocks):
        match kind:
            case "text":
                events += said(index, *pieces)
            case "thinking":
                events += thought(index, *pieces)
            case _:
                events += use(index, f"id_{index}", f"tool_{index}", json.dumps({"x": pieces}), kind=kind)
    shown, response = read(*events, *end("tool_use"))
    message = response.message
    assert message.content == "".join(piece for kind, pieces in blocks if kind == "text" for piece in pieces)
    assert message.reasoning == "".join(piece for kind, pieces in blocks if kind == "thinking" for piece in pieces)
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == message.content
    own = [(f"tool_{index}", {"x": pieces}) for index, (kind, pieces) in enumerate(blocks) if kind == "tool_use"]
    assert [(made.name, json.loads(made.arguments)) for made in message.tool_calls] == own


def test_half_a_surrogate_pair_at_the_end_of_a_fragment_is_shown_with_its_other_half() -> None:
    pieces = [
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}' % half for half in (b"a\\ud83d", b"\\ude42b")
    ]
    shown, response = read(start(), *pieces, *end("end_turn"))
    assert response.message.content == "a🙂b"
    assert [delta.text for delta in shown] == ["a", "🙂b"]


# ---- calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given_input", [{"a": 1}, '{"a": 1}'])
def test_a_call_whose_input_comes_whole_with_its_beginning_is_a_call_with_that_input(given_input: Any) -> None:
    shown, response = read(start(), *block(0, {"type": "tool_use", "id": "t", "name": "f", "input": given_input}), *end("tool_use"))
    (made,) = response.message.tool_calls
    assert json.loads(made.arguments) == {"a": 1}
    assert "".join(delta.arguments for delta in shown) == made.arguments


def test_a_call_that_arrives_with_another_stop_reason_is_still_a_call() -> None:
    _, response = read(start(), *use(0, "t", "f", "{}"), *end("end_turn"))
    assert [made.name for made in response.message.tool_calls] == ["f"]
    assert response.stop.reason is StopReason.STOP


def test_a_call_cut_by_max_tokens_keeps_its_arguments_raw_and_says_length() -> None:
    _, response = read(start(), *use(0, "t", "f", '{"path": "/etc/pass'), *end("max_tokens"))
    assert response.stop.reason is StopReason.LENGTH
    assert response.message.tool_calls[0].arguments == '{"path": "/etc/pass'


# ---- stop reasons --------------------------------------------------------------------------------------------

# StopReason and BetaStopReason of the official SDK, and the words of other servers.
STOPS = [
    ("end_turn", StopReason.STOP),
    ("stop_sequence", StopReason.STOP),
    ("tool_use", StopReason.TOOL_CALLS),
    ("max_tokens", StopReason.LENGTH),
    ("model_context_window_exceeded", StopReason.LENGTH),
    ("pause_turn", StopReason.PAUSE),
    ("compaction", StopReason.PAUSE),
    ("refusal", StopReason.REFUSAL),
    ("sensitive", StopReason.CONTENT_FILTER),
    ("out_of_luck", StopReason.UNKNOWN),
]


@pytest.mark.parametrize(("word", "reason"), STOPS)
def test_every_documented_stop_reason_has_ours_and_keeps_its_own_word(word: str, reason: StopReason) -> None:
    _, response = read(start(), *said(0, "Hm."), *end(word))
    assert (response.stop.reason, response.stop.raw) == (reason, word)


def test_a_refusal_with_what_was_said_before_it_is_a_refusal() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": None}
    last = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}, "usage": {}}
    _, response = read(start(), *said(0, "Here is"), last, {"type": "message_stop"})
    assert (response.stop.reason, response.message.content) == (StopReason.REFUSAL, "Here is")


# ---- usage ---------------------------------------------------------------------------------------------------


def test_cumulative_usage_is_taken_from_its_last_report_and_what_is_not_repeated_stays() -> None:
    _, response = read(
        start(input_tokens=10, cache_read_input_tokens=5, cache_creation_input_tokens=0, output_tokens=1),
        *said(0, "x"),
        {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 20, "input_tokens": None}},
        *end("end_turn", output_tokens=30, input_tokens=12),
    )
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.cache_write_tokens) == (17, 30, 5, 0)
    assert usage.reasoning_tokens is None


def test_unreported_tokens_are_unknown_and_not_zero() -> None:
    _, response = read({"type": "message_start", "message": {}}, *said(0, "x"), *end("end_turn"))
    assert response.usage is None


@pytest.mark.parametrize("count", [-1, 10**13, "many", None, True])
def test_a_count_that_counts_nothing_is_unknown(count: Any) -> None:
    _, response = read(start(), *said(0, "x"), *end("end_turn", input_tokens=count, output_tokens=3))
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (None, 3)


def test_a_failed_exchange_says_what_it_has_cost(run: Run) -> None:
    caught = run(failure(raw(sse(start(input_tokens=40, output_tokens=1), *said(0, "x")), ends="eof")))
    assert caught.usage is not None
    assert caught.usage.input_tokens == 40


# ---- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        ("overloaded_error", True),
        ("rate_limit_error", True),
        ("api_error", True),
        ("timeout_error", True),
        ("invalid_request_error", False),
        ("authentication_error", False),
        ("permission_error", False),
        ("not_found_error", False),
        ("billing_error", False),
        ("request_too_large", False),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_an_error_event_in_a_200_is_a_provider_error_that_is_retryable_by_its_type(
    run: Run, kind: str, retryable: bool, stream: bool
) -> None:
    said_so = {"type": "error", "error": {"type": kind, "message": "Overloaded"}, "request_id": "req_1"}
    step = raw(sse(start(), *said(0, "Hel"), said_so), ends="eof") if stream else raw(json.dumps(said_so).encode())
    caught = run(failure(step, stream=stream))
    assert (caught.kind, caught.code, caught.retryable) == ("error_object", kind, retryable)
    assert "Overloaded" in str(caught)


def test_a_spent_budget_is_not_retried_although_it_is_a_429() -> None:
    details = {"error_code": "enforced_spend_limit_reached"}  # error.details of the official SDK's RateLimitError
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "spent", "details": details}}
    caught = http_error(429, {}, json.dumps(body).encode(), url="http://x")
    assert (caught.retryable, caught.code) == (False, "enforced_spend_limit_reached")
    assert not error_object(body).retryable
    usual = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    assert http_error(429, {"retry-after": "7"}, json.dumps(usual).encode(), url="http://x").retryable


def test_an_http_error_is_told_with_its_type_and_its_retry_after(run: Run) -> None:
    caught = run(failure(error(529, "Overloaded", headers={"Retry-After": "3"})))
    assert (caught.kind, caught.status, caught.code, caught.retryable, caught.retry_after_s) == ("http", 529, "overloaded_error", True, 3.0)
    assert run(failure(error(401, "invalid x-api-key"))).retryable is False


def test_a_scripted_error_object_is_an_error_on_this_wire_too(run: Run) -> None:
    assert run(failure(scripted_error(529, "busy", after="Hel"))).retryable
    assert not run(failure(scripted_error(400, "bad", after="Hel"))).retryable
    assert run(failure(scripted_error(shape="finish"))).kind == "error_object"
    assert run(failure(scripted_error(500, shape="choice"), stream=False)).kind == "error_object"


def test_what_is_no_json_is_malformed(run: Run) -> None:
    assert run(failure(raw(b"data: <html>\n\n", ends="eof"))).kind == "malformed"
    assert run(failure(eof(after="abc"))).kind == "cut"


def test_a_ping_says_nothing_and_an_event_that_was_added_since_is_ignored() -> None:
    reply = AnthropicReply()
    assert reply.take(json.dumps(PING).encode()) == ()
    assert not reply.said
    assert not reply.begun
    _, response = read(start(), PING, {"type": "weather_report", "sky": 1}, *said(0, "Hi."), *end("end_turn"))
    assert response.message.content == "Hi."


# ---- what is kept for the next request ------------------------------------------------------------------------


def test_a_reply_of_text_and_calls_alone_needs_no_copy() -> None:
    _, response = read(start(), *said(0, "Hi."), *use(1, "t", "f", "{}", caller={"type": "direct"}), *end("tool_use"))
    assert response.message.wire is None


def test_thinking_without_a_signature_is_shown_and_never_kept() -> None:
    shown, response = read(start(), *thought(0, "Hm.", signatures=()), *said(1, "Hi."), *end("end_turn"))
    assert [type(delta) for delta in shown] == [ReasoningDelta, TextDelta]
    assert response.message.wire is None
    _, mixed = read(start(), *thought(0, "Hm.", signatures=()), *thought(1, "Yes."), *said(2, "Hi."), *end("end_turn"))
    assert [part.get("thinking") for part in content(mixed)] == ["Yes.", None]


def test_a_signature_in_pieces_is_joined_and_one_that_is_said_twice_is_one() -> None:
    half = len(SIGNATURE) // 2
    for pieces in ((SIGNATURE[:half], SIGNATURE[half:]), (SIGNATURE, SIGNATURE)):
        assert content(read(start(), *thought(0, "Hm.", signatures=pieces), *end("end_turn"))[1])[0]["signature"] == SIGNATURE
    begun = block(0, {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE})
    assert content(read(start(), *begun, *end("end_turn"))[1])[0]["signature"] == SIGNATURE


def test_omitted_thinking_is_kept_by_its_signature_alone() -> None:
    _, response = read(start(), *thought(0), *said(1, "Hi."), *end("end_turn"))
    assert content(response)[0] == {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    assert response.message.wire == WireCopy(api="anthropic", model="claude-x", body=response.message.wire.body)


def test_citations_and_blocks_of_hosted_tools_are_kept_as_they_came() -> None:
    result = {
        "type": "web_search_tool_result",
        "tool_use_id": "srv_1",
        "content": [{"type": "web_search_result", "encrypted_content": "é=="}],
    }
    citation = {"type": "web_search_result_location", "cited_text": "x", "encrypted_index": "E=="}
    _, response = read(
        start(),
        *use(0, "srv_1", "web_search", '{"que', 'ry": "x"}', kind="server_tool_use"),
        *block(1, result),
        *block(
            2,
            {"type": "text", "text": "", "citations": []},
            {"type": "citations_delta", "citation": citation},
            {"type": "text_delta", "text": "So."},
        ),
        *block(3, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "Earlier", "encrypted_content": "Q"}),
        *end("end_turn"),
    )
    assert response.message.tool_calls == ()
    assert response.message.content == "So."
    assert content(response) == [
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        result,
        {"type": "text", "text": "So.", "citations": [citation]},
        {"type": "compaction", "content": "Earlier", "encrypted_content": "Q"},
    ]


def test_a_hosted_call_without_its_result_is_kept_only_while_the_turn_goes_on() -> None:
    waiting = [start(), *thought(0, "Hm."), *said(1, "I search."), *use(2, "srv_1", "web_search", "{}", kind="server_tool_use")]
    assert read(*waiting, *end("pause_turn"))[1].message.wire is not None
    assert read(*waiting, *use(3, "t", "f", "{}"), *end("tool_use"))[1].message.wire is not None
    assert read(*waiting, *end("max_tokens"))[1].message.wire is None


# ---- the adapter -----------------------------------------------------------------------------------------------


def test_the_key_and_the_version_are_sent_in_anthropics_headers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-the-environment")

    async def main() -> None:
        async with WireServer([text("Hi."), text("Hi.")]) as server:
            model = AnthropicModel("claude-x", base_url=server.base_url, api_key="k", beta=["one-2025", "two-2026"])
            [_ async for _ in model.stream(REQUEST)]
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url.removesuffix("/v1"))
            other = AnthropicModel("claude-x", version="2026-10-21")
            [_ async for _ in other.stream(REQUEST)]
            await model.aclose()
            await other.aclose()
            first, second = server.requests
            assert (first.path, second.path) == ("/v1/messages", "/v1/messages")
            assert (first.headers["x-api-key"], first.headers["anthropic-version"]) == ("k", "2023-06-01")
            assert first.headers["anthropic-beta"] == "one-2025,two-2026"
            assert "authorization" not in first.headers
            assert (second.headers["x-api-key"], second.headers["anthropic-version"]) == ("from-the-environment", "2026-10-21")

    run(main())


def test_the_environments_key_is_not_handed_to_any_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    model = AnthropicModel("m", base_url="http://127.0.0.1:1")
    assert "secret" not in str(model._http.headers)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY"):
        AnthropicModel("m")


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": True},
        {"thinking": "adaptive"},
        {"hosted_tools": [{"name": "web_search"}]},
        {"hosted_tools": {"type": "x"}},
        {"cache": 1},
        {"native_output": None},
        {"version": "latest"},
        {"beta": "one"},
        {"beta": ["a\nb"]},
        {"stream": 1},
    ],
)
def test_an_option_that_makes_no_sense_is_a_usage_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        AnthropicModel("m", api_key="k", **options)


def test_closing_the_stream_closes_the_connection(run: Run) -> None:
    import asyncio

    async def main() -> None:
        gate = asyncio.Event()
        async with WireServer([hold(gate, after="Hello")]) as server:
            model = AnthropicModel("m", base_url=server.base_url, api_key="k")
            stream = model.stream(REQUEST)
            assert isinstance(await anext(stream), TextDelta)
            await stream.aclose()
            await asyncio.wait_for(server.requests[0].disconnected.wait(), 5)
            await model.aclose()

    run(main())
