"""What the chat-completions adapter makes of a reply: an answer only with terminal evidence, the same however it comes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import ProviderError
from interlock.messages import ToolCall, UserMessage
from interlock.model import ModelEvent, ModelRequest, ModelResponse, ReasoningDelta, StopReason, TextDelta, ToolCallDelta, Usage
from interlock.providers.openai import OpenAIChatModel
from interlock.providers.stops import FAILED, STOP_REASONS
from interlock.testing import Step, WireServer, call, calls, cut, eof, error_object, raw, reasoning, text

from .conftest import Run

REQUEST = ModelRequest(messages=(UserMessage(content="hi"),))


async def events_of(server: WireServer, *, stream: bool = True, **options: Any) -> list[ModelEvent]:
    model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", stream=stream, **options)
    try:
        return [event async for event in model.stream(REQUEST)]
    finally:
        await model.aclose()


async def play(step: Step, *, stream: bool = True, **options: Any) -> list[ModelEvent]:
    async with WireServer([step]) as server:
        return await events_of(server, stream=stream, **options)


async def response_of(step: Step, *, stream: bool = True) -> ModelResponse:
    *deltas, last = await play(step, stream=stream)
    assert isinstance(last, ModelResponse)
    assert not any(isinstance(delta, ModelResponse) for delta in deltas)
    return last


async def failure_of(step: Step, *, stream: bool = True, **options: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await play(step, stream=stream, **options)
    return caught.value


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def fragment(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})


def sse(*chunks: dict[str, Any], end: bytes = b"data: [DONE]\n\n", newline: bytes = b"\n") -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + newline * 2 for one in chunks) + end


TYPICAL = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Hm, añ😀"}),
    chunk({"content": "I will"}),
    chunk({"content": " look 🔎."}),
    fragment(0, "c1", "search", ""),
    fragment(0, None, None, '{"q":'),
    fragment(0, None, None, '"zürich"}'),
    fragment(1, "c2", "search", '{"q":"x"}'),
    chunk({}, "tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}},
)


def check_typical(events: list[ModelEvent]) -> None:
    response = events[-1]
    assert isinstance(response, ModelResponse)
    assert response.message.content == "I will look 🔎."
    assert response.message.reasoning == "Hm, añ😀"
    assert response.message.tool_calls == (
        ToolCall(id="c1", name="search", arguments='{"q":"zürich"}'),
        ToolCall(id="c2", name="search", arguments='{"q":"x"}'),
    )
    assert response.stop.reason is StopReason.TOOL_CALLS
    assert response.usage == Usage(input_tokens=11, output_tokens=7, cached_input_tokens=3)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == response.message.content
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == response.message.reasoning
    shown = [event for event in events if isinstance(event, ToolCallDelta)]
    assert "".join(event.arguments for event in shown if event.index == 0) == '{"q":"zürich"}'


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_reply_is_the_same_cut_at_every_byte(run: Run, newline: bytes) -> None:
    stream = sse(*TYPICAL, newline=newline)

    async def main() -> None:
        model: OpenAIChatModel | None = None
        splits = iter(range(1, len(stream)))
        async with WireServer(lambda body: raw(stream[: (at := next(splits))], stream[at:])) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
            for _ in range(1, len(stream)):
                check_typical([event async for event in model.stream(REQUEST)])
            assert server.connections == 1
            await model.aclose()

    run(main())


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 1500), max_size=40))
def test_a_reply_is_the_same_in_any_blocks(run: Run, cuts: list[int]) -> None:
    stream = sse(*TYPICAL)
    bounds = [0, *sorted({min(cut, len(stream)) for cut in cuts}), len(stream)]
    blocks = [stream[a:b] for a, b in pairwise(bounds)]
    check_typical(run(play(raw(*blocks))))


@pytest.mark.parametrize("ends", ["eof", "cut"])
def test_a_reply_cut_after_any_event_is_an_answer_only_with_terminal_evidence(run: Run, ends: Any) -> None:
    async def main() -> None:
        for kept in range(len(TYPICAL) + 1):
            step = raw(*TYPICAL[:kept], ends=ends)
            if kept >= 9:  # the finish reason was sent
                assert (await response_of(step)).stop.raw == "tool_calls"
                continue
            failure = await failure_of(step)
            assert (failure.kind, failure.retryable) == ("cut", True), kept

    run(main())


@pytest.mark.parametrize(("ends", "blank_line"), [("eof", 0), ("cut", 2)])
def test_a_reply_cut_at_any_byte_is_an_answer_only_with_terminal_evidence(run: Run, ends: Any, blank_line: int) -> None:
    stream = sse(*TYPICAL)
    finish = b'"finish_reason": "tool_calls"}]}'
    # An event that a torn connection left without its blank line is not read at all.
    evidence = stream.index(finish) + len(finish) + blank_line
    lengths = sorted({*range(0, len(stream), 7), *range(evidence - 8, evidence + 8), len(stream)})

    async def main() -> None:
        kept = iter(lengths)
        async with WireServer(lambda body: raw(stream[: next(kept)], ends=ends)) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
            for length in lengths:
                if length >= evidence:
                    *_, last = [event async for event in model.stream(REQUEST)]
                    assert isinstance(last, ModelResponse), length
                    assert len(last.message.tool_calls) == 2
                    continue
                with pytest.raises(ProviderError) as caught:
                    async for _ in model.stream(REQUEST):
                        pass
                assert (caught.value.kind, caught.value.retryable) == ("cut", True), length
            await model.aclose()

    run(main())


def test_a_reply_cut_inside_an_event_is_a_cut(run: Run) -> None:
    stream = sse(chunk({"content": "half an ans"}), end=b'data: {"choices":[{"index":0,"delta":{"content":"wer"},"finish_r')
    failure = run(failure_of(raw(stream, ends="eof")))
    assert (failure.kind, failure.retryable) == ("cut", True)


def test_done_without_a_finish_reason_is_an_answer(run: Run) -> None:
    answer = run(response_of(raw(chunk({"content": "42"}))))
    assert answer.message.content == "42"
    assert (answer.stop.reason, answer.stop.raw) == (StopReason.STOP, None)


def test_done_without_a_finish_reason_after_calls_means_calls(run: Run) -> None:
    answer = run(response_of(raw(fragment(0, "c1", "f", "{}"))))
    assert (answer.stop.reason, answer.stop.raw) == (StopReason.TOOL_CALLS, None)


def test_a_finish_reason_without_done_is_an_answer(run: Run) -> None:
    answer = run(response_of(raw(chunk({"content": "42"}), chunk({}, "stop"), ends="eof")))
    assert (answer.message.content, answer.stop.reason) == ("42", StopReason.STOP)


def test_a_last_event_without_its_blank_line_still_counts(run: Run) -> None:
    assert run(response_of(raw(sse(chunk({"content": "42"}, "stop"), end=b"")[:-2], ends="eof"))).message.content == "42"
    assert run(response_of(raw(sse(chunk({"content": "42"}), end=b"data: [DONE]"), ends="eof"))).message.content == "42"


def test_a_plain_reply_without_a_finish_reason_is_a_cut(run: Run) -> None:
    failure = run(failure_of(eof(after="par"), stream=False))
    assert (failure.kind, failure.retryable) == ("cut", True)


def test_a_plain_reply_cut_in_the_middle_is_a_cut(run: Run) -> None:
    failure = run(failure_of(cut(after="a longer text"), stream=False))
    assert (failure.kind, failure.retryable) == ("cut", True)


SAME = {
    "text": text("The answer is 42.", usage=(3, 4)),
    "text without usage": text("x", usage=None),
    "empty": text(""),
    "calls": calls(call("a", "f", {"n": 1}), call("b", "g", '{"n": 2')),
    "text and calls": calls(call("a", "f", {}), before="Let me see."),
    "calls with equal ids": calls(call("a", "f", {"n": 1}), call("a", "f", {"n": 2}), call("a", "g", {"n": 2})),
    "calls with equal ids, broken": calls(call("a", "f", '{"n": 1'), call("a", "f", {"n": 2})),
    "calls without ids": calls(call("", "f", '{"n": 1'), call("", "f", {"n": 2})),
    "calls with stop": calls(call("a", "f", {}), finish="stop"),
    "reasoning": reasoning("thinking", then="done"),
    "only reasoning": reasoning("thinking"),
    "length": text("half an ans", finish="length"),
    "filter": text("", finish="content_filter"),
    "announced call that is missing": text("Let me call it.", finish="tool_calls"),
    "unknown word": text("42", finish="moon_phase"),
    "refusal": raw(chunk({"refusal": "I cannot "}), chunk({"refusal": "do that."}), chunk({}, "stop")),
    "groq usage": raw(chunk({"content": "x"}), {**chunk({}, "stop"), "x_groq": {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}}),
    "null usage": raw(chunk({"content": "x"}, "stop", usage={"prompt_tokens": None, "completion_tokens": None})),
    "reasoning details": raw(chunk({"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "why"}]}), chunk({}, "stop")),
    "parts": raw(
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}, {"type": "text", "text": "x"}]}, "stop")
    ),
    "legacy call": raw(chunk({"function_call": {"name": "f", "arguments": '{"n":1}'}}), chunk({}, "function_call")),
}


@pytest.mark.parametrize("name", SAME)
def test_a_step_is_the_same_streamed_and_plain(run: Run, name: str) -> None:
    streamed, plain = run(response_of(SAME[name])), run(response_of(SAME[name], stream=False))
    assert streamed == plain


def test_blank_text_in_a_stream_does_not_hide_the_call_after_it(run: Run) -> None:
    for before in ("\n\n", "I'll check"):
        answer = run(response_of(calls(call("a", "f", {}), before=before)))
        assert (answer.message.content, len(answer.message.tool_calls)) == (before, 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("shape", ["top", "choice", "finish"])
def test_an_error_inside_a_200_is_a_failure_with_its_status(run: Run, shape: Any, stream: bool) -> None:
    failure = run(failure_of(error_object(429, "slow down", after="par", shape=shape), stream=stream))
    assert failure.kind == "error_object"
    assert failure.retryable
    if shape != "finish":  # the finish reason alone hides the code
        assert failure.status == 429
        assert "slow down" in str(failure)


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        ({"message": "m", "code": 400}, 400, False),
        ({"message": "m", "code": "502"}, 502, True),
        ({"message": "m", "status": 529}, 529, True),
        ({"message": "m", "type": "invalid_request_error", "code": "tool_use_failed", "status_code": 400}, 400, False),
        ({"message": "m", "type": "invalid_request_error"}, None, False),
        ({"message": "m", "type": "authentication_error"}, None, False),
        ({"message": "m", "type": "permission_error"}, None, False),
        ({"message": "m", "code": "context_length_exceeded"}, None, False),
        ({"message": "m", "type": "insufficient_quota", "code": "insufficient_quota"}, None, False),
        ({"message": "m", "type": "server_error", "code": "server_error"}, None, True),
        ({"message": "m", "type": "overloaded_error"}, None, True),
        ({"message": "m", "code": "rate_limit_exceeded"}, None, True),
        ({"message": "m"}, None, True),
        ("m", None, True),
    ],
)
def test_the_status_hidden_in_an_error_decides_and_else_its_words(run: Run, error: Any, status: int | None, retryable: bool) -> None:
    for stream in (True, False):
        failure = run(failure_of(raw(chunk({"content": "par"}), {"error": error}, ends="eof"), stream=stream))
        assert (failure.kind, failure.status, failure.retryable) == ("error_object", status, retryable)
        assert "m" in str(failure)


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}\n\n',
        b'data: {"detail": "too long"}\n\n',
        b'[{"error": {"code": 400, "message": "too long", "status": "INVALID_ARGUMENT"}}]',
        b'{"error": {"message": "too long"}}',
        b'{"detail": [{"msg": "too long"}]}',
        b'event: error\ndata: {"error":{"message":"too long","status_code":400}}\n\n',
    ],
)
def test_errors_in_other_clothes_are_failures_too(run: Run, body: bytes) -> None:
    failure = run(failure_of(raw(body, ends="eof")))
    assert failure.kind == "error_object"
    assert "too long" in str(failure)


def test_an_error_after_a_finish_reason_is_a_failure(run: Run) -> None:
    failure = run(failure_of(raw(chunk({"content": "x"}, "stop"), {"error": {"code": 400, "message": "Token limit reached"}})))
    assert (failure.kind, failure.status) == ("error_object", 400)


@pytest.mark.parametrize("word", [*sorted(FAILED), "ERROR", "user-cancel"])
def test_a_finish_reason_that_says_that_the_provider_failed_is_a_failure(run: Run, word: str) -> None:
    failure = run(failure_of(text("par", finish=word)))
    assert (failure.kind, failure.retryable) == ("error_object", True)


@pytest.mark.parametrize("word", [*STOP_REASONS, "STOP", "MAX_TOKENS", "SAFETY", "moon_phase"])
def test_each_finish_reason_is_kept_beside_our_word(run: Run, word: str) -> None:
    stop = run(response_of(text("x", finish=word))).stop
    assert stop.raw == word
    assert stop.reason is STOP_REASONS.get(word.lower(), StopReason.UNKNOWN)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("max_output_tokens error_limit time_limit max-tokens", StopReason.LENGTH),
        ("content_filtered guardrail_intervened error_toxic ERROR_TOXIC content-filter model_armor", StopReason.CONTENT_FILTER),
        ("malformed_tool_use UNEXPECTED_TOOL_CALL tool-calls", StopReason.TOOL_CALLS),
    ],
)
def test_no_word_for_a_part_of_an_answer_reads_as_an_answer(run: Run, words: str, reason: StopReason) -> None:
    for word in words.split():
        assert run(response_of(text("x", finish=word))).stop.reason is reason, word


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ("length stop", "length"),
        ("stop length", "length"),
        ("content_filter stop", "content_filter"),
        ("length content_filter stop", "content_filter"),
        ("content_filter refusal", "content_filter"),
        ("content_filter error", "content_filter"),
        ("error content_filter", "content_filter"),
        ("pause_turn stop", "pause_turn"),
        ("pause_turn length", "length"),
        ("stop moon_phase", "stop"),
        ("moon_phase stop", "moon_phase"),
        ("tool_calls stop", "tool_calls"),
        ("null not_finished stop", "stop"),
    ],
)
def test_of_several_finish_reasons_the_gravest_counts_and_else_the_first(run: Run, words: str, counts: str) -> None:
    stop = run(response_of(raw(chunk({"content": "half"}), *(chunk({}, word) for word in words.split())))).stop
    assert (stop.raw, stop.reason) == (counts, STOP_REASONS.get(counts, StopReason.UNKNOWN))


@pytest.mark.parametrize("words", ["error stop", "length error", "stop error length"])
def test_a_failure_among_several_finish_reasons_is_a_failure(run: Run, words: str) -> None:
    failure = run(failure_of(raw(chunk({"content": "half"}), *(chunk({}, word) for word in words.split()))))
    assert (failure.kind, failure.retryable) == ("error_object", True)
    assert "'error'" in str(failure)


def test_a_finish_reason_that_says_that_the_reply_goes_on_is_no_evidence(run: Run) -> None:
    failure = run(failure_of(raw(chunk({"content": "half"}, "null"), ends="eof")))
    assert (failure.kind, failure.retryable) == ("cut", True)


def test_the_text_of_a_refusal_is_shown_and_its_reason_is_refusal(run: Run) -> None:
    *shown, answer = run(play(SAME["refusal"]))
    assert "".join(delta.text for delta in shown) == "I cannot do that."
    assert answer.stop.reason is StopReason.REFUSAL
    assert answer.stop.raw == "stop"


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"reasoning_content": "why"}, "why"),
        ({"reasoning": "why"}, "why"),
        ({"reasoning": "why", "reasoning_content": "why"}, "why"),
        ({"reasoning": "why", "reasoning_details": [{"type": "reasoning.text", "text": "why"}]}, "why"),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "why"}, {"type": "reasoning.encrypted", "data": "x"}]}, "why"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}]}, "why"),
        ({"reasoning": {"odd": 1}, "reasoning_details": "odd"}, ""),
    ],
)
def test_reasoning_is_never_content(run: Run, delta: dict[str, Any], expected: str) -> None:
    message = run(response_of(raw(chunk(delta), chunk({"content": "x"}, "stop")))).message
    assert (message.reasoning, message.content) == (expected, "x")


USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}}
COUNTED = Usage(input_tokens=9, output_tokens=4, reasoning_tokens=2)


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([chunk({"content": "x"}, "stop"), {"choices": [], "usage": USAGE}], COUNTED),
        ([chunk({"content": "x"}, "stop"), {"choices": None, "usage": USAGE}], COUNTED),
        ([chunk({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": 1}), chunk({}, "stop", usage=USAGE)], COUNTED),
        ([chunk({"content": "x"}, "stop", usage=USAGE), {"choices": [], "usage": None}], COUNTED),
        ([chunk({"content": "x"}, "stop", usage=USAGE), {"choices": [], "usage": {"prompt_tokens": None}}], COUNTED),
        ([chunk({}, "stop", usage={"prompt_tokens": 9.0, "completion_tokens": "4"})], Usage(input_tokens=9, output_tokens=4)),
        ([chunk({"content": "x"}, "stop", x_groq={"id": "r", "usage": USAGE})], COUNTED),
        ([chunk({"content": "x"}, "stop", usage={"completion_tokens": 4})], Usage(output_tokens=4)),
        ([chunk({"content": "x"}, "stop")], None),
        ([chunk({}, "stop", usage={"prompt_tokens": -1_000_000, "completion_tokens": 4})], Usage(output_tokens=4)),
        ([chunk({}, "stop", usage={"prompt_tokens": 4, "completion_tokens": -1.0})], Usage(input_tokens=4)),
        ([chunk({}, "stop", usage={"prompt_tokens": 10**30, "completion_tokens": -4})], None),
        ([chunk({}, "stop", usage={"prompt_tokens": True, "completion_tokens": float("nan")})], None),
        ([chunk({}, "stop", usage={"prompt_tokens": float("inf"), "completion_tokens": 4})], Usage(output_tokens=4)),
        ([chunk({}, "stop", usage=USAGE), {"choices": [], "usage": {"prompt_tokens": -9, "completion_tokens": -4}}], COUNTED),
        (
            [chunk({}, "stop", usage={**USAGE, "prompt_tokens_details": {"cached_tokens": -3}, "completion_tokens_details": {}})],
            Usage(input_tokens=9, output_tokens=4),
        ),
        ([chunk({"content": "x"}, "stop", usage={"prompt_tokens": 0, "completion_tokens": 0})], Usage(input_tokens=0, output_tokens=0)),
    ],
)
def test_the_last_usage_wins_and_unknown_is_not_zero(run: Run, chunks: list[dict[str, Any]], usage: Usage | None) -> None:
    assert run(response_of(raw(*chunks))).usage == usage


def test_only_choice_zero_is_read(run: Run) -> None:
    several = {"choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "A"}}]}
    other = {"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}]}
    answer = run(response_of(raw(several, other, chunk({}, "stop"))))
    assert (answer.message.content, answer.stop.raw) == ("A", "stop")


@pytest.mark.parametrize("stream", [True, False])
def test_a_plain_body_and_a_stream_are_read_as_what_they_are(run: Run, stream: bool) -> None:
    plain = b'\n\n{"choices": [{"index": 0, "message": {"content": "42"}, "finish_reason": "stop"}]}'
    events = sse(chunk({"content": "42"}), chunk({}, "stop"))
    for body in (plain, events):
        assert run(response_of(raw(body, ends="eof"), stream=stream)).message.content == "42"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"n": 1}, '{"n": 1}'), ([1], "[1]"), (7, "7"), (None, ""), ("", ""), (" ", " "), ("null", "null"), ('{"n": 2', '{"n": 2')],
)
@pytest.mark.parametrize("stream", [True, False])
def test_arguments_are_kept_as_they_came_and_an_object_becomes_text(run: Run, arguments: Any, expected: str, stream: bool) -> None:
    answer = run(response_of(raw(fragment(0, "a", "f", arguments), chunk({}, "tool_calls")), stream=stream))
    assert answer.message.tool_calls == (ToolCall(id="a", name="f", arguments=expected),)


def test_missing_ids_stay_empty_and_calls_stay_apart(run: Run) -> None:
    answer = run(response_of(raw(fragment(0, None, "f", "{}"), fragment(1, None, "f", "{}"), chunk({}, "tool_calls"))))
    assert [made.id for made in answer.message.tool_calls] == ["", ""]


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": "none"},
        {"choices": [None, 3]},
        {"choices": [{"index": "0", "delta": "x"}]},
        {"choices": [{"delta": {"content": None, "tool_calls": "no", "reasoning": 3}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": "0", "function": None}]}}]},
        {"choices": [{"delta": {"role": "assistant", "content": {"odd": 1}}}], "usage": "none"},
        {"error": None, "choices": []},
        {"error": "", "choices": []},
        {},
    ],
)
def test_a_chunk_of_odd_types_does_not_end_the_stream(run: Run, odd: dict[str, Any]) -> None:
    answer = run(response_of(raw(chunk({"content": "4"}), odd, chunk({"content": "2"}), chunk({}, "stop"))))
    assert (answer.message.content.replace("3", ""), answer.message.tool_calls) == ("42", ())


def test_what_is_no_json_is_malformed(run: Run) -> None:
    for payload in (b"data: oops\n\n", b'data: {"choices": [}\n\n', b"data: 3\n\n"):
        failure = run(failure_of(raw(chunk({"content": "x"}), payload)))
        assert (failure.kind, failure.retryable) == ("malformed", True)


def test_events_that_are_not_separated_by_blank_lines_are_read(run: Run) -> None:
    lines = sse(chunk({"content": "4"}), chunk({"content": "2"}), chunk({}, "stop")).replace(b"\n\n", b"\n")
    assert run(response_of(raw(lines, ends="eof"))).message.content == "42"


def test_half_characters_cut_between_two_chunks_are_joined(run: Run) -> None:
    stream = (
        b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n'
        + b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00b"}}]}\n\n'
    )
    *shown, answer = run(play(raw(stream, chunk({}, "stop"))))
    assert answer.message.content == "a😀b"
    assert "".join(delta.text for delta in shown) == "a😀b"


def test_half_a_character_that_ordinary_text_follows_is_replaced_in_what_is_shown_too(run: Run) -> None:
    stream = b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n' + b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n'
    *shown, answer = run(play(raw(stream, chunk({}, "stop"))))
    assert answer.message.content == "a\N{REPLACEMENT CHARACTER}b"
    assert "".join(delta.text for delta in shown) == answer.message.content


def test_a_lone_surrogate_and_bytes_that_are_not_utf8_are_replaced(run: Run) -> None:
    stream = (
        b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n'
        + b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n'
    )
    answer = run(response_of(raw(stream, chunk({"content": "b"}, "stop"))))
    assert answer.message.content == "a\ufffd\ufffdb"
    answer.message.content.encode()


def test_a_page_instead_of_a_reply_says_what_to_check(run: Run) -> None:
    async def main() -> None:
        async with WireServer([Step(status=203, headers={"Content-Type": "text/html"}, body=b"<html></html>")]) as server:
            with pytest.raises(ProviderError, match="check base_url") as caught:
                await events_of(server)
            assert caught.value.kind == "malformed"

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_beyond_its_bound_is_an_error_that_is_not_repeated(run: Run, stream: bool) -> None:
    failure = run(failure_of(text("x" * 200_000, pieces=50), stream=stream, response_bytes_max=100_000))
    assert (failure.kind, failure.retryable, failure.code) == ("malformed", False, "response_too_large")
