"""judge: what a model response amounts to. One table; the stop reason is judged first."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.machine import State
from interlock.messages import StopReason, Usage
from interlock.records import Ending, ModelStepEnded, Outcome, Verdict
from machine_facts import OFFERED, Story, judged, model_started, tool_call

S = StopReason
FULL, BAD = tool_call("c1"), tool_call("c1", arguments='{"n": 25')


def waiting(**streaks: int) -> State:
    """A state in which a response is due, after ``streaks`` of faults."""
    story = Story()
    story.add(model_started(story.state))
    from msgspec.structs import replace

    return replace(story.state, streaks=streaks)


VERDICTS: list[tuple[str, dict[str, Any], tuple[Verdict, str, bool]]] = [
    ("text and stop", {"text": "Hi.", "stop": S.STOP}, (Verdict.ANSWER, "", True)),
    ("text and an unknown stop", {"text": "Hi.", "stop": S.UNKNOWN}, (Verdict.ANSWER, "", True)),
    ("text and an announced call", {"text": "Hi.", "stop": S.TOOL_CALLS}, (Verdict.RETRY, "dropped_tool_call", False)),
    ("reasoning and an announced call", {"reasoning": "Hm.", "stop": S.TOOL_CALLS}, (Verdict.RETRY, "dropped_tool_call", False)),
    ("nothing and an announced call", {"stop": S.TOOL_CALLS}, (Verdict.RETRY, "dropped_tool_call", False)),
    ("nothing", {"stop": S.STOP}, (Verdict.RETRY, "empty_reply", False)),
    ("blanks", {"text": " \n\t", "stop": S.STOP}, (Verdict.RETRY, "empty_reply", False)),
    ("nothing and length", {"stop": S.LENGTH}, (Verdict.RETRY, "empty_reply", False)),
    ("reasoning", {"reasoning": "Hm.", "stop": S.STOP}, (Verdict.RETRY, "reasoning_only", False)),
    ("reasoning and length", {"reasoning": "Hm.", "stop": S.LENGTH}, (Verdict.RETRY, "reasoning_only", False)),
    ("blank reasoning", {"reasoning": " ", "stop": S.STOP}, (Verdict.RETRY, "empty_reply", False)),
    ("reasoning and text", {"reasoning": "Hm.", "text": "Hi.", "stop": S.STOP}, (Verdict.ANSWER, "", True)),
    ("text and length", {"text": "Hi", "stop": S.LENGTH}, (Verdict.RETRY, "length", False)),
    ("text and pause", {"text": "Hi", "stop": S.PAUSE}, (Verdict.RETRY, "pause", False)),
    ("text and filter", {"text": "Hi", "stop": S.CONTENT_FILTER}, (Verdict.END, "", False)),
    ("nothing and refusal", {"stop": S.REFUSAL}, (Verdict.END, "", False)),
    ("a call and refusal", {"calls": [FULL], "stop": S.REFUSAL}, (Verdict.END, "", False)),
    ("a call and filter", {"calls": [FULL], "stop": S.CONTENT_FILTER}, (Verdict.END, "", False)),
    *(
        (f"a call and {stop.value}", {"calls": [FULL], "text": "Hi.", "stop": stop}, (Verdict.TOOLS, "", True))
        for stop in (S.STOP, S.TOOL_CALLS, S.UNKNOWN, S.PAUSE)
    ),
    ("a whole call and length", {"calls": [FULL], "stop": S.LENGTH}, (Verdict.TOOLS, "malformed_tool_call", True)),
    ("a bad call", {"calls": [BAD], "stop": S.TOOL_CALLS}, (Verdict.TOOLS, "malformed_tool_call", True)),
    ("a bad call and a good one", {"calls": [BAD, FULL], "stop": S.TOOL_CALLS}, (Verdict.TOOLS, "", True)),
]


def decided(state: State, case: dict[str, Any], **more: Any) -> ModelStepEnded:
    return judged(state, case.get("text", ""), *case.get("calls", ()), stop=case["stop"], reasoning=case.get("reasoning", ""), **more)


@pytest.mark.parametrize(("name", "case", "expected"), VERDICTS, ids=[name for name, _, _ in VERDICTS])
def test_the_verdict_is_the_tables(name: str, case: dict[str, Any], expected: tuple[Verdict, str, bool]) -> None:
    record = decided(waiting(), case)
    assert (record.verdict, record.code, record.joined) == expected
    assert (record.nudge is not None) == (record.code in ("dropped_tool_call", "empty_reply", "reasoning_only", "length"))


BOUNDS = [
    ("dropped_tool_call", 3, {"text": "Hi.", "stop": S.TOOL_CALLS}, True),
    ("dropped_tool_call", 3, {"reasoning": "Hm.", "stop": S.TOOL_CALLS}, False),
    ("empty_reply", 2, {"stop": S.STOP}, False),
    ("reasoning_only", 2, {"reasoning": "Hm.", "stop": S.STOP}, False),
    ("length", 3, {"text": "Hi.", "stop": S.LENGTH}, True),
    ("pause", 5, {"text": "Hi.", "stop": S.PAUSE}, True),
]


@pytest.mark.parametrize(("code", "bound", "case", "joined"), BOUNDS)
def test_a_fault_is_forgiven_as_often_as_its_bound_says_and_then_what_there_is_is_delivered_as_incomplete(
    code: str, bound: int, case: dict[str, Any], joined: bool
) -> None:
    assert decided(waiting(**{code: bound - 1}), case).verdict is Verdict.RETRY
    record = decided(waiting(**{code: bound}), case)
    assert (record.verdict, record.joined, record.message.incomplete) == (Verdict.END, joined, True)
    assert record.ending == Ending(Outcome.INCOMPLETE, code, case.get("text", ""))


def test_malformed_batches_past_their_bound_still_settle_every_call_and_then_end_the_run() -> None:
    assert decided(waiting(malformed_tool_call=2), {"calls": [BAD], "stop": S.STOP}).ending is None
    record = decided(waiting(malformed_tool_call=3), {"calls": [BAD], "text": "So:", "stop": S.STOP})
    assert (record.verdict, record.ending, len(record.refused)) == (
        Verdict.TOOLS,
        Ending(Outcome.INCOMPLETE, "malformed_tool_call", "So:"),
        1,
    )


BROKEN = ("[1]", "3", "true", '"x"', "{", '{"a":1}{"b":2}', '{"a": NaN}', "nil", '{"n":' + "[" * 100_000)
SOUND = ("", "  ", "null", '"null"', "{}", '{"a": {}}', '{"a": "\\ud835"}')
REFUSALS = [
    (tool_call("a", "nowhere"), OFFERED, "unknown_tool"),
    (tool_call("a", "free"), OFFERED - {"free"}, "not_offered"),
    (tool_call("a", "FREE"), OFFERED, "unknown_tool"),
    (tool_call("a", ""), OFFERED, "unknown_tool"),
    *((tool_call("a", "free", text), OFFERED, "malformed") for text in BROKEN),
    *((tool_call("a", "free", text), OFFERED, None) for text in SOUND),
]


@pytest.mark.parametrize(("call", "offered", "code"), REFUSALS, ids=range(len(REFUSALS)))
def test_a_call_is_refused_exactly_if_its_tool_or_its_arguments_cannot_be(call: Any, offered: frozenset[str], code: str | None) -> None:
    record = judged(waiting(), "", call, stop=S.TOOL_CALLS, offered=offered)
    assert [refusal.code for refusal in record.refused] == ([code] if code else [])


def test_a_length_stop_refuses_every_call_of_its_batch_and_says_that_it_was_not_executed() -> None:
    record = judged(waiting(), "", tool_call("a"), tool_call("b", arguments='{"n": 2'), stop=S.LENGTH)
    assert [(refusal.ordinal, refusal.code) for refusal in record.refused] == [(0, "cut_off"), (1, "cut_off")]
    assert all("was not executed" in refusal.reason for refusal in record.refused)


IDS = [
    (["", ""], ()),
    (["a", "a"], ()),
    (["a"], ("a",)),
    (["", "call_0", "call_1"], ()),
    (["call_1", ""], ()),
    (["", "", "b"], ("call_2", "call_3", "b")),
    (["a", "b"], ("c",)),
]


@pytest.mark.parametrize(("ids", "known"), IDS)
def test_call_ids_are_unique_in_the_session_and_kept_where_they_are(ids: list[str], known: tuple[str, ...]) -> None:
    record = judged(waiting(), "", *(tool_call(id) for id in ids), known_ids=known)
    made = [call.id for call in record.message.tool_calls]
    assert all(made)
    assert len({*made, *known}) == len(made) + len(known)
    if len({*ids, *known, ""}) == len(ids) + len(known) + 1:
        assert made == ids


def test_a_refused_message_names_the_calls_that_never_existed_and_what_was_shown() -> None:
    record = judged(waiting(), "I will", tool_call("a", "free"), tool_call("b", "serial"), stop=S.REFUSAL)
    assert (record.dropped, record.ending) == (("free", "serial"), Ending(Outcome.REFUSED, "refusal", "I will"))


def test_a_response_that_comes_after_the_run_was_told_to_end_never_joins() -> None:
    from msgspec.structs import replace

    ending = Ending(Outcome.CANCELLED, "cancelled")
    record = judged(replace(waiting(), ending=ending), "Hi.", tool_call("a"))
    assert (record.verdict, record.joined, record.ending) == (Verdict.END, False, ending)


def test_text_is_joined_to_what_an_earlier_part_said_without_a_seam() -> None:
    from msgspec.structs import replace

    record = judged(replace(waiting(), partial="Hel"), "lo")
    assert (record.message.content, record.ending) == ("Hello", Ending(Outcome.COMPLETED, "answer", "Hello"))


def test_text_that_no_store_accepts_is_mended() -> None:
    record = judged(
        waiting(), "a\ud835", tool_call("i\ud835", "n\ud835", '{"a": "\ud835"}'), reasoning="\ud835", usage=Usage(input_tokens=1)
    )
    (call,) = record.message.tool_calls
    for text in (record.message.content, record.message.reasoning, call.id, call.name, call.arguments):
        assert "�" in text
        text.encode()
    assert record.usage == Usage(input_tokens=1)
