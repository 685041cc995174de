"""G06: output that was cut is never a completed answer, and no call in it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import WIRES, Played, limits, play, said
from interlock import Outcome, ProviderError
from interlock.events import RecoveryStarted, StreamRestarted
from interlock.messages import AssistantMessage, StopReason, ToolMessage
from interlock.records import ModelStepEnded, ModelStepFailed
from interlock.testing import Step, call, calls, cut, eof, error, error_object, raw, reasoning, text
from wire_rules import faults

wires = pytest.mark.parametrize("wire", WIRES)
sockets = pytest.mark.parametrize("wire", ["streamed", "plain"])
streams = pytest.mark.parametrize("wire", ["memory", "streamed"])


class Counter:
    def __init__(self) -> None:
        self.ran: list[int] = []

    def count(self, n: int) -> str:
        """Count up to n."""
        self.ran.append(n)
        return f"counted to {n}"


def run(steps: Any, **options: Any) -> tuple[Played, list[int]]:
    counter = Counter()
    return asyncio.run(play(steps, tools=[counter.count], **options)), counter.ran


def count(n: Any = 25, *, id: str = "c1", finish: str = "tool_calls", before: str = "") -> Step:
    return calls(call(id, "count", {"n": n} if isinstance(n, int) else n), finish=finish, before=before)


# ---- length --------------------------------------------------------------------------------------


@wires
@pytest.mark.parametrize("parts", [["Hel", "lo"], ["The answer", " is", " 4", "2."], [" a ", "\n\nb", " ", "c"]])
def test_text_cut_by_the_length_limit_is_continued_and_joined_without_a_seam(wire: str, parts: list[str]) -> None:
    steps = [*(text(part, finish="length") for part in parts[:-1]), text(parts[-1])]
    played, _ = run(steps, wire=wire)
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "".join(parts), len(parts))
    assert [m.content for m in played.result.messages] == ["Go.", "".join(parts)]
    assert played.shown() == played.result.text
    assert [fault for body in played.bodies for fault in faults(body)] == []


@wires
def test_an_answer_that_does_not_end_within_its_continuations_is_incomplete(wire: str) -> None:
    played, _ = run([text(f"{n} ", finish="length") for n in range(4)], wire=wire)
    result = played.result
    assert (result.outcome, result.reason, result.text, len(played.bodies)) == (Outcome.INCOMPLETE, "length", "0 1 2 3 ", 4)
    assert result.message == AssistantMessage(content="0 1 2 3 ", incomplete=True) == result.messages[-1]


@wires
def test_a_continuation_may_end_in_a_call(wire: str) -> None:
    played, ran = run([text("I will co", finish="length"), count(before="unt."), text("Done.")], wire=wire)
    assert (played.result.text, ran) == ("Done.", [25])
    assert said(played.bodies[2])[1] == ("assistant", "I will count.")


@wires
@pytest.mark.parametrize("arguments", ['{"n": 25', '{"n": 2', '{"n"', "{", '{"n": 25}'])
def test_a_call_that_came_with_a_length_stop_never_runs_and_the_model_is_told_so(wire: str, arguments: str) -> None:
    """Also where what is left happens to be whole: nobody knows what was cut."""
    played, ran = run([count(arguments, finish="length"), text("I see.")], wire=wire)
    (result,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert ran == []
    assert "was not executed" in result.content
    assert (result.failed, result.effect) == (True, "none")
    assert "cut_off" in str(played.records)
    assert [event.code for event in played.of(RecoveryStarted)] == ["malformed_tool_call"]
    assert faults(played.bodies[1]) == []
    sent = played.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert sent == (arguments if arguments.endswith("}") else "{}")
    (kept,) = played.result.messages[1].tool_calls
    assert kept.arguments == arguments


@wires
@pytest.mark.parametrize("finish", ["length", "tool_calls", "stop"])
def test_a_number_that_was_cut_is_never_taken_for_a_smaller_one(wire: str, finish: str) -> None:
    played, ran = run([count('{"n": 2', finish=finish), count(25, id="c2"), text("Done.")], wire=wire)
    assert (ran, played.result.text) == ([25], "Done.")


@wires
def test_a_router_that_calls_a_cut_tool_calls_does_not_make_its_call_run_and_the_history_stays_valid(wire: str) -> None:
    played, ran = run([count('{"n": 25, "why": "bec'), text("Sorry."), text("Hello.")], wire=wire, prompts=("Go.", "Hi."))
    assert ran == []
    assert [fault for body in played.bodies for fault in faults(body)] == []
    assert played.result.messages[1].tool_calls[0].arguments == '{"n": 25, "why": "bec'


# ---- filter and refusal --------------------------------------------------------------------------


@wires
@pytest.mark.parametrize(("finish", "reason"), [("content_filter", "content_filter"), ("refusal", "refusal")])
@pytest.mark.parametrize("shown", ["", "I would"])
@pytest.mark.parametrize("with_call", [False, True])
def test_a_refused_reply_runs_nothing_joins_nothing_is_not_retried_and_the_next_turn_is_possible(
    wire: str, finish: str, reason: str, shown: str, with_call: bool
) -> None:
    refused = count(finish=finish, before=shown) if with_call else text(shown, finish=finish)
    played, ran = run([refused, text("Hello.")], wire=wire, prompts=("Go.", "Hi."))
    first, second = played.results
    assert (first.outcome, first.reason, first.text) == (Outcome.REFUSED, reason, shown)
    assert ran == []
    assert [m.content for m in first.messages] == ["Go."]
    assert first.message is None
    assert (second.outcome, second.text, len(played.bodies)) == (Outcome.COMPLETED, "Hello.", 2)
    assert said(played.bodies[1]) == [("user", "Go."), ("user", "Hi.")]
    (ended, _) = [record for record in played.records if isinstance(record, ModelStepEnded)]
    assert ended.dropped == (("count",) if with_call else ())


# ---- failures inside a reply ---------------------------------------------------------------------

CUTS: dict[str, Step] = {
    "an error object": error_object(500, after="Hel"),
    "an error object without a code": error_object(after="Hel"),
    "an error in the choice": error_object(502, after="Hel", shape="choice"),
    "the finish reason error": error_object(after="Hel", shape="finish"),
    "a torn connection": cut(after="Hel"),
    "an end without terminal evidence": eof(after="Hel"),
    "an error status": error(503),
}


@wires
@pytest.mark.parametrize("name", CUTS)
def test_a_cut_is_retried_on_a_clean_slate_and_the_text_before_it_is_withdrawn(wire: str, name: str) -> None:
    played, _ = run([CUTS[name], text("Hello")], wire=wire)
    assert (played.result.outcome, played.result.text, played.shown()) == (Outcome.COMPLETED, "Hello", "Hello")
    assert [m.content for m in played.result.messages] == ["Go.", "Hello"]
    assert said(played.bodies[1]) == said(played.bodies[0]) == [("user", "Go.")]
    assert [(event.code, event.count, event.bound) for event in played.of(RecoveryStarted)] == [("model_failed", 1, 3)]
    if wire != "plain" and name != "an error status":
        assert len(played.of(StreamRestarted)) == 1


@wires
@pytest.mark.parametrize("name", CUTS)
def test_a_cut_for_ever_is_a_provider_error_and_never_an_answer(wire: str, name: str) -> None:
    played, _ = run([CUTS[name]] * 4, wire=wire)
    (error_,) = played.errors
    assert isinstance(error_, ProviderError)
    assert played.results == []
    assert "Hel" not in str([record for record in played.records if isinstance(record, ModelStepEnded)])
    assert len([record for record in played.records if isinstance(record, ModelStepFailed)]) == 4


@wires
def test_after_a_provider_error_a_new_run_ends_the_old_one_incomplete_and_works(wire: str) -> None:
    played, _ = run([*[cut(after="Hel")] * 2, text("Hello")], wire=wire, prompts=("Go.", "Again."), bounds=limits(model_attempts=2))
    assert (len(played.errors), played.results[-1].text) == (1, "Hello")
    ended = [record for record in played.records if type(record).__name__ == "RunEnded"]
    assert [(record.outcome, record.reason, record.text) for record in ended] == [
        (Outcome.INCOMPLETE, "provider_error", ""),
        (Outcome.COMPLETED, "answer", "Hello"),
    ]


@wires
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("end", [cut, eof])
def test_a_call_that_was_cut_in_the_middle_runs_once_with_its_full_arguments(wire: str, chunks: int, end: Any) -> None:
    played, ran = run([end(after=count(), chunks=chunks), count(), text("Done.")], wire=wire)
    assert (ran, played.result.text, len(played.bodies)) == ([25], "Done.", 3)
    assert len(played.result.messages[1].tool_calls) == 1
    assert played.result.messages[1].tool_calls[0].arguments == '{"n": 25}'


@pytest.mark.parametrize("wire", ["memory", "streamed"])
def test_text_that_was_cut_and_told_again_is_shown_once_and_its_withdrawal_is_an_event(wire: str) -> None:
    played, _ = run([cut(after="Hel"), text("Hello")], wire=wire)
    kinds = [type(event).__name__ for event in played.events]
    assert kinds.index("StreamRestarted") > kinds.index("TextDelta")
    assert [event.reason for event in played.of(StreamRestarted)] == ["cut"]
    assert (played.shown(), played.result.text) == ("Hello", "Hello")


@sockets
def test_a_rate_limit_hidden_in_a_reply_that_began_well_is_taken_for_one(wire: str) -> None:
    played, _ = run([error_object(429, "slow down", after="Hel")], wire=wire, bounds=limits(model_attempts=1))
    (error_,) = played.errors
    assert isinstance(error_, ProviderError)
    assert (error_.status, error_.retryable) == (429, True)


# ---- terminal evidence ---------------------------------------------------------------------------


@wires
@pytest.mark.parametrize("finish", ["finished", "end_turn?", "max_turns_of_tomorrow"])
def test_an_unknown_finish_reason_is_an_end_its_raw_value_is_kept_and_complete_calls_run(wire: str, finish: str) -> None:
    played, ran = run([count(finish=finish), text("Done.", finish=finish)], wire=wire)
    assert (played.result.outcome, played.result.text, ran) == (Outcome.COMPLETED, "Done.", [25])
    ended = [record for record in played.records if isinstance(record, ModelStepEnded)]
    assert [(record.stop, record.stop_raw) for record in ended] == [(StopReason.UNKNOWN, finish)] * 2


@streams
def test_done_without_a_finish_reason_is_an_end(wire: str) -> None:
    played, ran = run([calls(call("c1", "count", {"n": 25}), finish=None), text("Done.", finish=None)], wire=wire)
    assert (played.result.text, ran) == ("Done.", [25])


def test_a_plain_reply_without_a_finish_reason_is_a_cut() -> None:
    played, ran = run([count(finish=None), count(), text("Done.")], wire="plain")  # type: ignore[arg-type]
    assert (played.result.text, ran, len(played.bodies)) == ("Done.", [25], 3)


def test_what_stands_behind_the_finish_reason_does_not_make_a_cut_of_a_reply() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Done."}, "finish_reason": "stop"}]}
    played, _ = run([raw(chunk, ends="eof")], wire="streamed")
    assert (played.result.outcome, played.result.text) == (Outcome.COMPLETED, "Done.")


# ---- streamed or not -----------------------------------------------------------------------------

SCRIPTS: dict[str, list[Step]] = {
    "an answer": [text("Hello")],
    "a call": [count(), text("Done.")],
    "two calls": [calls(call("a", "count", {"n": 1}), call("b", "count", {"n": 2}), before="So:"), text("Done.")],
    "a call cut by length": [count('{"n": 2', finish="length"), count(), text("Done.")],
    "length": [text("Hel", finish="length"), text("lo")],
    "a filter": [text("Hel", finish="content_filter")],
    "a refused call": [count(finish="content_filter")],
    "a stall": [text("I will.", finish="tool_calls"), count(), text("Done.")],
    "silence": [text(""), text("Hello")],
    "an error object": [error_object(500, after="Hel"), text("Hello")],
    "a torn connection": [cut(after="Hel"), text("Hello")],
    "an unknown tool": [calls(call("a", "nowhere")), text("Sorry.")],
    "an unknown end": [text("Hello", finish="finished")],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_reply_amounts_to_the_same_whether_it_is_streamed_or_not(name: str) -> None:
    seen = []
    for wire in WIRES:
        played, ran = run(SCRIPTS[name], wire=wire)
        result = played.result
        messages = [body["messages"] for body in played.bodies]
        seen.append((result.outcome, result.reason, result.text, result.messages, result.usage, sorted(ran), messages, played.shown()))
    assert seen[0] == seen[1] == seen[2]


@wires
def test_a_cut_answer_that_is_followed_by_nothing_is_asked_for_again_and_keeps_its_place(wire: str) -> None:
    """An empty continuation is no real end: the answer goes on where it was cut, or is incomplete."""
    played, _ = run([text("Hel", finish="length"), text(""), reasoning("hm"), text("lo")], wire=wire)
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "Hello", 4)
    assert [fault for body in played.bodies for fault in faults(body)] == []
    assert said(played.bodies[3])[1] == ("assistant", "Hel")
    assert len(said(played.bodies[3])) == 3
    played, _ = run([text("Hel", finish="length"), text(""), text(""), text("")], wire=wire)
    assert (played.result.outcome, played.result.reason, played.result.text) == (Outcome.INCOMPLETE, "empty_reply", "Hel")
