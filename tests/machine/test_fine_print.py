"""The fine print of the table: what a fact must not forget, and what it must not be allowed to say."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.errors import CommandRefused, ProtocolError
from interlock.machine import Answer, CallModel, EndRun, Phase, Progress, RunTool, SettleTool, StartRun, Steer, admit, apply, decide
from interlock.messages import StopReason, Usage
from interlock.records import Limits, ModelStepFailed, Outcome, QuestionAnswered, RunCancelled, RunEnded
from machine_facts import (
    TRAITS,
    Story,
    answered,
    handler_started,
    judged,
    model_failed,
    model_started,
    nested_started,
    prompt,
    result_of,
    run_started,
    steering,
    suspended,
    tool_call,
)


def refused(story: Story, record: Any) -> None:
    with pytest.raises(ProtocolError):
        apply(story.state, record)


# ---- what was said during a run --------------------------------------------------------------------------


def test_what_is_said_while_a_request_is_under_way_is_still_owed_a_turn_after_that_request_failed() -> None:
    story = Story()
    story.add(model_started(story.state), steering(), model_failed()).replies("Hi.")
    assert (story.state.phase, story.state.turn) == (Phase.MODEL_DUE, 1)


def test_an_interruption_that_comes_before_a_request_lands_with_it_and_supersedes_none_of_its_calls() -> None:
    story = Story().add(steering(interrupt=True)).replies("", tool_call("a"))
    assert [type(action) for action in decide(story.state)] == [RunTool]


def test_a_batch_that_would_end_the_run_as_malformed_does_not_end_it_when_the_person_has_said_more() -> None:
    story = Story(Limits(malformed_calls=0))
    story.add(model_started(story.state), steering()).add(judged(story.state, "", tool_call("a", "nowhere")))
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    assert [type(action) for action in decide(story.add(action.record).state)] == [CallModel]


def test_the_message_of_the_malformed_batch_that_ends_the_run_is_marked_incomplete() -> None:
    story = Story(Limits(malformed_calls=0))
    story.add(model_started(story.state))
    record = judged(story.state, "I will.", tool_call("a", "nowhere"))
    assert record.ending is not None
    assert record.message.incomplete


def test_a_run_that_is_ending_takes_no_more_input_not_even_while_its_calls_still_run() -> None:
    story = Story().replies("", tool_call("a")).enters(0).add(RunCancelled())
    with pytest.raises(CommandRefused, match="ending"):
        admit(story.state, Steer(message=prompt("And B?")))


def test_a_question_is_answered_once_and_the_second_answer_is_refused_as_a_command() -> None:
    story = Story().replies("", tool_call("a")).enters(0)
    story.add(suspended(story.call(0), "q"))
    story.add(admit(story.state, Answer(question_id="q", answer=True)))
    with pytest.raises(CommandRefused, match="answered already"):
        admit(story.state, Answer(question_id="q", answer=False))


def test_an_answer_must_name_the_question_that_is_open_and_no_earlier_one() -> None:
    story = Story().replies("", tool_call("a")).enters(0)
    story.add(suspended(story.call(0), "first")).add(answered(story.call(0))).enters(0)
    story.add(suspended(story.call(0), "second"))
    refused(story, QuestionAnswered(key=story.key(0), question_id="first", answer=True))


def test_a_new_run_on_one_that_failed_says_that_it_failed_and_not_that_it_was_superseded() -> None:
    story = Story()
    story.add(model_started(story.state), model_failed(retryable=False))
    record = admit(story.state, StartRun(run_id="r2", prompt=prompt(), limits=Limits(), traits=TRAITS))
    assert record == RunCancelled(outcome=Outcome.INCOMPLETE, reason="provider_error")


# ---- the model step -----------------------------------------------------------------------------------------


def test_the_failures_of_one_step_neither_slow_the_next_one_down_nor_count_against_its_attempts() -> None:
    story = Story(Limits(model_attempts=3))
    for _ in range(2):
        story.add(model_started(story.state), model_failed())
    story.replies("", tool_call("a")).enters(0).settles(0)
    (action,) = decide(story.state)
    assert isinstance(action, CallModel)
    assert action.delay_s == 0.0
    for _ in range(2):
        story.add(model_started(story.state), model_failed())
    assert story.state.phase is Phase.MODEL_DUE


def test_a_run_that_is_resumed_after_it_stalled_has_all_its_attempts_again_and_waits_for_none() -> None:
    story = Story(Limits(model_attempts=2))
    for _ in range(2):
        story.add(model_started(story.state), model_failed(retry_after_s=30.0))
    story.reopens()
    (action,) = decide(story.state)
    assert isinstance(action, CallModel)
    assert action.delay_s == 0.0
    story.add(model_started(story.state), model_failed())
    assert story.state.phase is Phase.MODEL_DUE


def test_the_tokens_of_a_failed_attempt_count_against_the_limit() -> None:
    story = Story(Limits(tokens=10))
    usage = Usage(input_tokens=9, output_tokens=1)
    story.add(model_started(story.state), ModelStepFailed(kind="cut", retryable=True, usage=usage))
    (action,) = decide(story.state)
    assert isinstance(action, EndRun)
    assert (action.record.outcome, action.record.reason) == (Outcome.LIMIT, "tokens")


def test_a_provider_that_asks_for_exactly_the_longest_wait_is_waited_for() -> None:
    story = Story(Limits(retry_after_max_s=60.0))
    story.add(model_started(story.state), model_failed(retry_after_s=60.0))
    (action,) = decide(story.state)
    assert isinstance(action, CallModel)
    assert action.delay_s == 60.0


def test_a_run_that_was_cancelled_while_its_request_was_under_way_asks_nothing_more_after_a_crash() -> None:
    story = Story()
    story.add(model_started(story.state), RunCancelled()).reopens()
    (action,) = decide(story.state)
    assert isinstance(action, EndRun)
    assert action.record.outcome is Outcome.CANCELLED


def test_the_first_half_of_an_answer_is_gone_once_a_call_came_in_its_stead() -> None:
    story = Story().replies("The first ", stop=StopReason.LENGTH).replies("half.", tool_call("a")).enters(0).settles(0)
    assert story.state.partial == ""


# ---- the tool step -------------------------------------------------------------------------------------------


def test_a_call_whose_handler_has_started_cannot_wait_for_a_person_any_more() -> None:
    story = Story().replies("", tool_call("a")).enters(0).handles(0)
    refused(story, suspended(story.call(0)))


def test_a_nested_call_cannot_wait_for_a_person() -> None:
    story = Story().replies("", tool_call("a")).enters(0).add(nested_started("r/0/0"))
    refused(story, suspended(story.state.calls["r/0/0/0"]))


def test_a_result_must_name_the_call_that_it_belongs_to() -> None:
    story = Story().replies("", tool_call("a"), tool_call("b")).enters(0, 1)
    other = result_of(story.call(1))
    refused(story, type(other)(key=story.key(0), message=other.message))


def test_reopenings_alone_earn_no_further_start() -> None:
    story = Story().replies("", tool_call("a", "rerun")).enters(0).handles(0)
    for _ in range(3):
        story.reopens().enters(0)
    assert story.handles(0).call(0).starts == 2
    refused(story, handler_started(story.call(0)))


def test_a_nested_call_that_had_started_is_lost_with_its_process_even_if_its_tool_may_run_again() -> None:
    story = Story().replies("", tool_call("a", "rerun")).enters(0).add(nested_started("r/0/0", name="rerun"))
    story.add(handler_started(story.state.calls["r/0/0/0"])).reopens()
    assert story.state.calls["r/0/0/0"].progress is Progress.LOST


def test_a_batch_is_not_over_before_the_last_nested_call_of_it_is_settled() -> None:
    story = Story().replies("", tool_call("a")).enters(0).add(nested_started("r/0/0")).settles(0)
    assert story.state.phase is Phase.TOOLS
    assert story.add(result_of(story.state.calls["r/0/0/0"])).state.phase is Phase.MODEL_DUE


def test_a_call_that_was_answered_starts_although_the_limit_of_tool_calls_is_reached() -> None:
    story = Story(Limits(tool_calls=1)).replies("", tool_call("a"), tool_call("b", "serial")).enters(0)
    story.add(suspended(story.call(0)))
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    story.add(action.record).add(answered(story.call(0)))
    assert story.call(0).entered
    assert [type(action) for action in decide(story.state)] != [RunTool]  # the run is ending: the other call ended it


def test_a_call_that_had_started_and_is_not_started_again_is_said_to_have_been_interrupted() -> None:
    story = Story().replies("", tool_call("a", "rerun")).enters(0).handles(0).reopens()
    story.add(RunCancelled(outcome=Outcome.INCOMPLETE, reason="superseded"))
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    assert action.record.code == "interrupted"
    assert "before it started" not in str(action.record.message.content)


def test_a_fresh_id_repeats_no_other_id_of_its_batch_and_none_of_the_session() -> None:
    story = Story()
    story.add(model_started(story.state))
    record = judged(story.state, "", tool_call("call_3"), tool_call("call_2"), tool_call(""), tool_call(""), known_ids=("x",))
    ids = [call.id for call in record.message.tool_calls]
    assert (ids[:2], len(set(ids))) == (["call_3", "call_2"], 4)
    record = judged(story.state, "", tool_call(""), tool_call("call_5"), known_ids=("call_0", "call_1", "call_2", "call_5"))
    assert len({call.id for call in record.message.tool_calls} - {"call_0", "call_1", "call_2", "call_5"}) == 2


# ---- the session ----------------------------------------------------------------------------------------------


def test_the_epoch_outlives_the_run_and_the_next_one_begins_with_it() -> None:
    story = Story().reopens().reopens().replies("Hi.")
    story.add(RunEnded(run_id="r", outcome=Outcome.COMPLETED, reason="answer"))
    assert story.state.epoch == 3
    assert story.add(run_started()).state.epoch == 3
