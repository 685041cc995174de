"""decide: what should be started now."""

from __future__ import annotations

import pytest

from interlock.machine import CallModel, EndRun, Phase, RunTool, SettleTool, at_rest, decide
from interlock.messages import Usage
from interlock.records import Limits, Outcome, RunCancelled
from machine_facts import Story, answered, model_failed, model_started, steering, suspended, tool_call


def started(story: Story) -> list[int]:
    """The ordinals of the calls that may start now."""
    return [int(action.call.key.rpartition("/")[2]) for action in decide(story.state) if isinstance(action, RunTool)]


def batch(*names: str, limits: Limits | None = None) -> Story:
    return Story(limits).replies("", *(tool_call(f"id{number}", name) for number, name in enumerate(names)))


BARRIERS: list[tuple[list[str], list[list[int]]]] = [
    (["free", "free", "free"], [[0, 1, 2]]),
    (["serial", "serial"], [[0], [1]]),
    (["free", "serial", "free", "free"], [[0], [1], [2, 3]]),
    (["serial", "free", "free", "serial"], [[0], [1, 2], [3]]),
    (["free", "free", "serial"], [[0, 1], [2]]),
]


@pytest.mark.parametrize(("names", "waves"), BARRIERS)
def test_parallel_calls_start_together_and_a_serial_one_is_a_barrier_in_call_order(names: list[str], waves: list[list[int]]) -> None:
    story = batch(*names)
    for wave in waves:
        assert started(story) == wave
        story.enters(*wave)
        assert started(story) == []
        story.settles(*wave)
    assert story.state.phase is Phase.MODEL_DUE


def test_a_serial_call_waits_for_every_call_before_it_and_not_only_for_the_first() -> None:
    story = batch("free", "free", "serial").enters(0, 1).settles(1)
    assert started(story) == []
    assert started(story.settles(0)) == [2]


def test_no_more_calls_are_in_the_onion_at_once_than_the_limit_says() -> None:
    story = batch(*["free"] * 5, limits=Limits(parallel_calls=2))
    assert started(story) == [0, 1]
    story.enters(0, 1).settles(1)
    assert started(story) == [2]


def test_refused_calls_are_settled_before_any_other_starts() -> None:
    story = Story().replies("", tool_call("a"), tool_call("b", "nowhere"), tool_call("c", arguments="["))
    actions = decide(story.state)
    assert [type(action) for action in actions] == [SettleTool, SettleTool]
    assert [action.record.effect for action in actions if isinstance(action, SettleTool)] == ["none", "none"]


def test_what_would_pass_the_limit_of_tool_calls_is_settled_and_the_run_ends_limit() -> None:
    story = batch("free", "free", "free", limits=Limits(tool_calls=2))
    assert started(story) == [0, 1]
    story.enters(0, 1)
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    assert (action.record.code, action.record.effect) == ("limit", "none")
    story.add(action.record).settles(0, 1)
    (end,) = decide(story.state)
    assert isinstance(end, EndRun)
    assert (end.record.outcome, end.record.reason) == (Outcome.LIMIT, "tool_calls")


@pytest.mark.parametrize("name", ["free", "rerun"])
def test_a_call_that_is_entered_again_after_a_reopening_is_counted_once(name: str) -> None:
    story = batch(name, limits=Limits(tool_calls=1)).enters(0)
    if name == "rerun":
        story.handles(0)
    story.reopens()
    assert started(story) == [0]
    assert story.enters(0).state.tool_calls == 1


def test_a_call_that_was_answered_by_a_person_is_counted_once() -> None:
    story = batch("free", limits=Limits(tool_calls=1)).enters(0)
    story.add(suspended(story.call(0))).add(answered(story.call(0), "yes"))
    assert started(story) == [0]
    assert story.enters(0).state.tool_calls == 1
    assert story.call(0).answer == "yes"


def test_a_call_that_waits_for_a_person_holds_up_no_other_and_then_the_run_rests() -> None:
    story = batch("free", "serial").enters(0)
    story.add(suspended(story.call(0)))
    assert started(story) == [1]
    story.enters(1).settles(1)
    assert (decide(story.state), at_rest(story.state)) == ((), Outcome.WAITING)


@pytest.mark.parametrize(("reason", "code"), [("cancelled", "cancelled"), ("deadline", "cancelled"), ("superseded", "superseded")])
def test_a_run_that_ends_starts_nothing_more_and_says_why(reason: str, code: str) -> None:
    story = batch("free", "serial").enters(0).add(RunCancelled(reason=reason))
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    assert (action.record.key, action.record.code, action.record.effect) == (story.key(1), code, "none")


def test_new_input_that_interrupts_supersedes_what_has_not_started_and_the_turn_goes_on() -> None:
    story = batch("free", "serial").enters(0).add(steering(interrupt=True))
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    assert action.record.code == "superseded"
    story.add(action.record).settles(0)
    assert [type(action) for action in decide(story.state)] == [CallModel]
    assert (story.state.interrupt, story.state.pending_input) == (False, 1)


def test_new_input_keeps_an_answer_from_being_the_last_word() -> None:
    story = Story()
    story.add(model_started(story.state), steering())
    from machine_facts import judged

    story.add(judged(story.state, "Hi."))
    assert (story.state.phase, story.state.turn) == (Phase.MODEL_DUE, 1)


DELAYS = [
    ([None], 0.5),
    ([None, None], 1.0),
    ([None, None, None], 2.0),
    ([None, 3.0], 3.0),
    ([3.0, None], 1.0),
    ([0.0], 0.5),
]


@pytest.mark.parametrize(("asked", "delay_s"), DELAYS)
def test_the_wait_before_an_attempt_grows_and_is_never_shorter_than_was_asked(asked: list[float | None], delay_s: float) -> None:
    story = Story(Limits(model_attempts=9))
    for retry_after_s in asked:
        story.add(model_started(story.state), model_failed(retry_after_s=retry_after_s))
    (action,) = decide(story.state)
    assert isinstance(action, CallModel)
    assert action.delay_s == delay_s


def test_a_provider_that_asks_for_too_long_a_wait_fails_the_step_at_once() -> None:
    story = Story(Limits(retry_after_max_s=60.0))
    story.add(model_started(story.state), model_failed(retry_after_s=3600.0))
    assert story.state.phase is Phase.STALLED


@pytest.mark.parametrize(
    ("limits", "usage", "reason"),
    [(Limits(requests=1), None, "requests"), (Limits(tokens=10), Usage(input_tokens=6, output_tokens=4), "tokens")],
)
def test_a_spent_limit_ends_the_run_before_another_request(limits: Limits, usage: Usage | None, reason: str) -> None:
    story = Story(limits).replies("", tool_call("a"), usage=usage).enters(0).settles(0)
    (end,) = decide(story.state)
    assert isinstance(end, EndRun)
    assert (end.record.outcome, end.record.reason, end.record.text) == (Outcome.LIMIT, reason, "")


def test_a_call_that_is_answered_while_a_serial_one_behind_it_runs_waits_for_that_one() -> None:
    story = Story().replies("", tool_call("a", "free"), tool_call("b", "serial")).enters(0)
    story.add(suspended(story.call(0))).enters(1).handles(1)
    story.add(answered(story.call(0)))
    assert decide(story.state) == ()
    story.settles(1)
    assert [action.call.key for action in decide(story.state) if isinstance(action, RunTool)] == [story.key(0)]
