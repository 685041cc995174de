"""Gemini's reply: what is terminal evidence, what is a call, what is kept, whatever the blocks, the cuts and the odd types.

Sources: https://ai.google.dev/api/generate-content (the response), https://ai.google.dev/gemini-api/docs/thought-signatures.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import ProviderError
from interlock.messages import UserMessage
from interlock.model import ModelRequest, ModelResponse, ReasoningDelta, StopReason, TextDelta, ToolCallDelta
from interlock.providers.google import GoogleModel
from interlock.providers.google_reply import GoogleReply
from interlock.testing import Step, WireServer, error, raw

from .conftest import Run

REQUEST = ModelRequest(messages=(UserMessage(content="hi"),))
SIGNATURE = "EpwICpkIAXLI2nxl+/UGsWZaZHRYkX1orzuM8vSUF=="


def part(**fields: Any) -> dict[str, Any]:
    return fields


def said(*parts: dict[str, Any], finish: str | None = None, usage: dict[str, int] | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": list(parts)}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **({"usageMetadata": usage} if usage else {})}


TOKENS = {"promptTokenCount": 20, "candidatesTokenCount": 7, "thoughtsTokenCount": 30, "cachedContentTokenCount": 16}
TYPICAL = [
    said(part(text="I look ", thought=True), usage={"promptTokenCount": 20}),
    said(part(text="at it 🙂.", thought=True)),
    said(part(text="Lét me ")),
    said(part(text="see.", thoughtSignature="QQ=="), usage={"promptTokenCount": 20, "candidatesTokenCount": 2}),
    said(part(functionCall={"name": "read", "args": {"path": "a/b", "n": 1.0}}, thoughtSignature=SIGNATURE)),
    said(part(functionCall={"name": "read", "args": {"path": "é"}, "id": "x1"}), part(functionCall={"name": "ping", "args": None})),
    said(part(text="", thoughtSignature="Wg=="), finish="STOP", usage=TOKENS),
]


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\r\n\r\n" for event in events)


def read(*events: dict[str, Any] | bytes) -> tuple[list[Any], ModelResponse]:
    reply = GoogleReply("gemini-3-pro")
    shown = [
        delta for event in events for delta in reply.take(event if isinstance(event, bytes) else json.dumps(event).encode(), last=False)
    ]
    return shown, reply.response()


async def play(step: Step, *, stream: bool = True) -> list[Any]:
    async with WireServer([step]) as server:
        model = GoogleModel("gemini-3-pro", base_url=server.base_url, api_key="k", stream=stream)
        events = [event async for event in model.stream(REQUEST)]
        await model.aclose()
        return events


async def failure(step: Step, *, stream: bool = True) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await play(step, stream=stream)
    return caught.value


def check_typical(events: list[Any]) -> None:
    *shown, response = events
    assert "".join(event.text for event in shown if isinstance(event, TextDelta)) == "Lét me see."
    assert "".join(event.text for event in shown if isinstance(event, ReasoningDelta)) == "I look at it 🙂."
    message = response.message
    assert (message.content, message.reasoning) == ("Lét me see.", "I look at it 🙂.")
    calls = [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls]
    assert calls == [("", "read", {"path": "a/b", "n": 1.0}), ("x1", "read", {"path": "é"}), ("", "ping", {})]
    assert '"n":1.0' in message.tool_calls[0].arguments
    deltas = [(delta.name, json.loads(delta.arguments)) for delta in shown if isinstance(delta, ToolCallDelta)]
    assert deltas == [one[1:] for one in calls]
    assert (response.stop.reason, response.stop.raw) == (StopReason.STOP, "STOP")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cached_input_tokens) == (20, 37, 30, 16)
    assert message.wire.body.isascii()
    kept = json.loads(message.wire.body)
    assert [part.get("thoughtSignature") for part in kept] == [None, "QQ==", SIGNATURE, None, None, "Wg=="]
    assert [part.get("text") for part in kept] == ["Lét me ", "see.", None, None, None, ""]


def test_a_typical_reply_is_read_whole_and_its_signatures_stay_on_their_parts(run: Run) -> None:
    check_typical(run(play(raw(*TYPICAL))))


def test_the_same_reply_is_the_same_when_it_is_not_streamed(run: Run) -> None:
    check_typical(run(play(raw(*TYPICAL), stream=False)))
    check_typical(run(play(raw(json.dumps(TYPICAL).encode()), stream=False)))  # without alt=sse the endpoint sends an array


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 1500), max_size=40))
def test_a_reply_is_the_same_in_any_blocks(run: Run, cuts: list[int]) -> None:
    stream = sse(*TYPICAL)
    bounds = [0, *sorted({min(cut, len(stream)) for cut in cuts}), len(stream)]
    check_typical(run(play(raw(*(stream[a:b] for a, b in pairwise(bounds)), ends="eof"))))


@pytest.mark.parametrize("ends", ["eof", "cut"])
def test_a_reply_cut_after_any_event_is_an_answer_only_with_a_finish_reason(run: Run, ends: Any) -> None:
    async def main() -> None:
        for kept in range(len(TYPICAL) + 1):
            step = raw(*map(sse, TYPICAL[:kept]), ends=ends)
            if kept == len(TYPICAL):
                check_typical(await play(step))
            else:
                fault = await failure(step)
                assert (fault.kind, fault.retryable) == ("cut", True), kept

    run(main())


def test_a_reply_cut_at_any_byte_is_the_whole_reply_or_a_cut(run: Run) -> None:
    stream = sse(*TYPICAL)

    async def main() -> None:
        lengths = iter(wanted)
        async with WireServer(lambda body: raw(stream[: next(lengths)], ends="cut")) as server:
            model = GoogleModel("gemini-3-pro", base_url=server.base_url, api_key="k")
            faults: dict[int, ProviderError] = {}
            for length in wanted:
                try:
                    check_typical([event async for event in model.stream(REQUEST)])
                except ProviderError as fault:
                    faults[length] = fault
            assert {(fault.kind, fault.retryable) for fault in faults.values()} == {("cut", True)}
            # The event with the finish reason is one when its blank line begins, which may be a CR alone.
            assert set(wanted) - faults.keys() == {len(stream) - 1, len(stream)}
            await model.aclose()

    wanted = [*range(0, len(stream), 5), *range(len(stream) - 8, len(stream) + 1)]
    run(main())


PARTS = st.one_of(
    st.builds(lambda text: part(text=text), st.text(max_size=8)),
    st.builds(lambda text: part(text=text, thought=True), st.text(max_size=8)),
    st.builds(lambda text: part(text=text, thoughtSignature="QQ=="), st.text(max_size=8)),
    st.builds(lambda n: part(functionCall={"name": "f", "args": {"n": n}}), st.integers()),
    st.builds(lambda id: part(functionCall={"name": "f", "id": id}), st.text(max_size=3)),
    st.just(part(executableCode={"code": "1", "language": "PYTHON"})),
)


@settings(max_examples=150, deadline=None)
@given(chunks=st.lists(st.lists(PARTS, max_size=3), max_size=6))
def test_whatever_the_parts_nothing_is_lost_or_doubled_between_stream_and_plain(chunks: list[list[dict[str, Any]]]) -> None:
    shown, streamed = read(*(said(*parts) for parts in chunks), said(finish="STOP"))
    every = [one for parts in chunks for one in parts]
    _, plain = read(said(*every, finish="STOP"))
    text = "".join(one.get("text", "") for one in every if not one.get("thought"))
    assert streamed.message.content == plain.message.content == text
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == text
    assert streamed == plain
    assert len(streamed.message.tool_calls) == len([delta for delta in shown if isinstance(delta, ToolCallDelta)])
    if streamed.message.wire is not None:
        kept = json.loads(streamed.message.wire.body)
        assert "".join(one.get("text", "") for one in kept if not one.get("thought")) == text
        assert not any(one.get("thought") and not one.get("thoughtSignature") for one in kept)


FIELDS = (
    *("candidates", "content", "parts", "text", "thought", "thoughtSignature", "functionCall", "name", "args", "id", "index"),
    *("finishReason", "usageMetadata", "promptTokenCount", "candidatesTokenCount", "promptFeedback", "blockReason"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
ODD = st.recursive(
    JSON,
    lambda inner: st.dictionaries(
        st.sampled_from(FIELDS),
        inner | st.lists(inner, max_size=2),
        max_size=5,
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(events=st.lists(ODD, max_size=4))
def test_no_json_whatever_its_types_breaks_the_reader(events: list[Any]) -> None:
    reply = GoogleReply("m")
    try:
        for event in events:
            reply.take(json.dumps(event).encode())
        kind = type(reply.response()).__name__
    except ProviderError as fault:
        kind = fault.kind
    assert kind in ("ModelResponse", "cut", "malformed", "error_object")


# ---- how a reply ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("STOP", StopReason.STOP),
        ("MAX_TOKENS", StopReason.LENGTH),
        *((word, StopReason.CONTENT_FILTER) for word in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE")),
        *((word, StopReason.CONTENT_FILTER) for word in ("IMAGE_SAFETY", "MODEL_ARMOR", "ESCALATION")),
        *((word, StopReason.TOOL_CALLS) for word in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS")),
        *((word, StopReason.UNKNOWN) for word in ("OTHER", "FINISH_REASON_UNSPECIFIED", "SOMETHING_NEW")),
    ],
)
def test_each_documented_finish_reason_has_our_word_and_keeps_its_own(word: str, reason: StopReason) -> None:
    _, response = read(said(part(text="so far"), finish=word))
    assert (response.stop.reason, response.stop.raw, response.message.content) == (reason, word, "so far")


@pytest.mark.parametrize("word", ["MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE", "PUP_LIMITED_DISABLED"])
def test_a_finish_reason_that_says_that_google_failed_is_an_error_with_its_message(word: str) -> None:
    reply = GoogleReply("m")
    event = said(part(text="so far"), finish=word)
    event["candidates"][0]["finishMessage"] = "because of this"
    reply.take(json.dumps(event).encode())
    with pytest.raises(ProviderError, match=f"{word}.*because of this") as caught:
        reply.response()
    assert caught.value.kind == "error_object"


def test_every_chunk_may_carry_a_finish_reason_and_the_gravest_counts() -> None:
    _, response = read(*(said(part(text=text), finish="STOP") for text in "abc"), said(finish="SAFETY"), said(finish="STOP"))
    assert (response.message.content, response.stop.reason) == ("abc", StopReason.CONTENT_FILTER)


@pytest.mark.parametrize("word", ["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "JAILBREAK"])
def test_a_blocked_prompt_is_a_refusal_whatever_the_reason(run: Run, word: str) -> None:
    for stream in (True, False):
        *_, response = run(play(raw({"promptFeedback": {"blockReason": word}, "usageMetadata": {"promptTokenCount": 4}}), stream=stream))
        assert (response.stop.reason, response.stop.raw) == (StopReason.CONTENT_FILTER, word)
        assert response.usage.input_tokens == 4


@pytest.mark.parametrize("nothing", [{}, {"candidates": []}, {"candidates": [{"index": 0}]}, {"usageMetadata": {"promptTokenCount": 3}}])
def test_a_reply_without_a_candidate_and_without_a_reason_is_a_cut(run: Run, nothing: dict[str, Any]) -> None:
    for stream in (True, False):
        assert run(failure(raw(nothing), stream=stream)).kind == "cut"


def test_only_the_first_candidate_is_read() -> None:
    other = {"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "MAX_TOKENS"}
    event = said(part(text="mine"), finish="STOP")
    _, response = read({"candidates": [other]}, {"candidates": [other, *event["candidates"]]})
    assert (response.message.content, response.stop.raw) == ("mine", "STOP")


# ---- errors ----------------------------------------------------------------------------------------------

UNAVAILABLE = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}


@pytest.mark.parametrize("shape", [UNAVAILABLE, [UNAVAILABLE]])
def test_an_error_object_in_a_200_is_an_error_also_in_an_array(run: Run, shape: Any) -> None:
    said_so_far = sse(said(part(text="half")))
    event = b"data: " + json.dumps(shape).encode() + b"\n\n"
    for step, stream in ((raw(said_so_far, event, ends="eof"), True), (raw(json.dumps(shape).encode()), False)):
        fault = run(failure(step, stream=stream))
        assert (fault.kind, fault.status, fault.retryable) == ("error_object", 503, True)
        assert "overloaded" in str(fault)


@pytest.mark.parametrize(
    ("status", "word", "retryable"),
    [
        (400, "INVALID_ARGUMENT", False),
        (403, "PERMISSION_DENIED", False),
        (404, "NOT_FOUND", False),
        (429, "RESOURCE_EXHAUSTED", True),
        (500, "INTERNAL", True),
        (503, "UNAVAILABLE", True),
        (504, "DEADLINE_EXCEEDED", True),
    ],
)
def test_an_http_error_has_googles_message_and_is_retryable_by_its_status(run: Run, status: int, word: str, retryable: bool) -> None:
    for wrapped in (False, True):
        body = {"error": {"code": status, "message": "What happened.", "status": word}}
        fault = run(failure(error(status, body=[body] if wrapped else body)))
        assert (fault.status, fault.code, fault.retryable) == (status, word, retryable)
        assert "What happened." in str(fault)


@pytest.mark.parametrize(("delay", "wait"), [("34.07s", 34.07), ("0s", 0.0), ("soon", None), ("xs", None), (5, None)])
def test_how_long_to_wait_is_read_from_retry_info_in_the_body(run: Run, delay: Any, wait: float | None) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
    body = {"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": details}}
    assert run(failure(error(429, body=body))).retry_after_s == wait
    assert run(failure(error(429, body=body, headers={"Retry-After": "7"}))).retry_after_s == 7.0


def test_a_key_that_is_missing_is_said_and_the_key_travels_in_its_header(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Exception, match="GOOGLE_API_KEY or GEMINI_API_KEY"):
        GoogleModel("gemini-3-pro")
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    GoogleModel("gemini-3-pro")

    async def main() -> None:
        async with WireServer([raw(said(part(text="a"), finish="STOP"))] * 2) as server:
            mine = GoogleModel("gemini-3-pro", base_url=server.base_url, api_key="mine")
            kept = GoogleModel("gemini-3-pro", base_url=server.base_url)
            for model in (mine, kept):
                _ = [event async for event in model.stream(REQUEST)]
                await model.aclose()
            sent = [request.headers.get("x-goog-api-key") for request in server.requests]
            assert sent == ["mine", None], "a key from the environment went to a host that the environment does not name"

    run(main())


# ---- calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [{}, {"args": None}, {"args": {}}])
def test_missing_and_null_arguments_are_an_empty_object(args: dict[str, Any]) -> None:
    _, response = read(said(part(functionCall={"name": "ping", **args}), finish="STOP"))
    assert [(call.name, call.arguments) for call in response.message.tool_calls] == [("ping", "{}")]


def test_equal_calls_without_ids_are_two_and_one_sent_twice_under_its_id_is_one() -> None:
    ping = part(functionCall={"name": "ping"})
    named = part(functionCall={"name": "ping", "id": "a"}, thoughtSignature="QQ==")
    _, response = read(said(ping, ping), said(named), said(named, part(functionCall={"name": "ping", "id": "b"}), finish="STOP"))
    assert [call.id for call in response.message.tool_calls] == ["", "", "a", "b"]
    assert response.message.wire is not None
    assert len(json.loads(response.message.wire.body)) == 4


def test_a_call_in_pieces_which_nobody_asked_for_is_refused_before_it_can_run() -> None:
    reply = GoogleReply("m")
    pieces = {"name": "pay", "partialArgs": [{"jsonPath": "$.amount", "numberValue": 5}], "willContinue": True}
    with pytest.raises(ProviderError, match="in pieces"):
        reply.take(json.dumps(said(part(functionCall=pieces))).encode())


# ---- tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reports", "counted"),
    [
        ([{"promptTokenCount": 5, "candidatesTokenCount": n} for n in (1, 2, 9)], (5, 9)),  # running totals, not to be added
        ([{"promptTokenCount": 5, "candidatesTokenCount": 9}, {"promptTokenCount": 5}], (5, 9)),
        ([{"promptTokenCount": 5, "candidatesTokenCount": 9}, {}], (5, 9)),
        ([{"promptTokenCount": 5}], (5, None)),
        ([{"promptTokenCount": 5, "thoughtsTokenCount": 4}], (5, 4)),
        ([{"promptTokenCount": 5, "toolUsePromptTokenCount": 3, "candidatesTokenCount": 1}], (8, 1)),
        ([{"promptTokenCount": -5, "candidatesTokenCount": 10**15}], None),
    ],
)
def test_the_last_running_total_counts_and_unknown_is_not_zero(reports: list[dict[str, int]], counted: tuple[Any, Any] | None) -> None:
    _, response = read(*({**said(part(text="a")), "usageMetadata": report} for report in reports), said(finish="STOP"))
    usage = response.usage
    assert (None if usage is None else (usage.input_tokens, usage.output_tokens)) == counted


def test_what_a_failed_attempt_has_cost_is_known(run: Run) -> None:
    fault = run(failure(raw(sse(said(part(text="half"), usage=TOKENS)), ends="cut")))
    assert fault.usage is not None
    assert (fault.usage.input_tokens, fault.usage.output_tokens) == (20, 37)
