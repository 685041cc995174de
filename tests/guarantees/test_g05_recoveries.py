"""G05: a plan is never passed off as the answer, and every fault of the model's side is forgiven a bounded number of times."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import WIRES, Played, limits, play, reply, said
from interlock import Agent, Outcome, ToolFailure, extension
from interlock.events import RecoveryStarted, StreamRestarted, TextDelta
from interlock.machine import INVALID_OUTPUT, RECOVERIES
from interlock.messages import AssistantMessage, StopReason, ToolMessage
from interlock.testing import ScriptedModel, call, calls, cut, error_object, raw, reasoning, text

wires = pytest.mark.parametrize("wire", WIRES)


class Add:
    """A tool that counts how often it ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, int]] = []

    def tool(self) -> Any:
        def add(left: int, right: int) -> int:
            """Add two numbers."""
            self.ran.append((left, right))
            return left + right

        return add


def add_call(id: str = "c1", left: int = 1, right: int = 2) -> Any:
    return calls(call(id, "add", {"left": left, "right": right}))


def stall(words: str = "Let me add them.") -> Any:
    """A turn that announces a call and carries none."""
    return text(words, finish="tool_calls")


def run(steps: Any, **options: Any) -> tuple[Played, Add]:
    adder = Add()
    tools = [adder.tool(), *options.pop("tools", ())]
    return asyncio.run(play(steps, tools=tools, **options)), adder


def nudges(body: dict[str, Any]) -> list[str]:
    return [content for role, content in said(body) if role == "user" and content != "Go."]


# ---- a call that was announced but not included --------------------------------------------------


@wires
def test_narration_then_the_call_then_the_answer_takes_three_requests_and_leaves_no_trace_of_the_nudge(wire: str) -> None:
    played, adder = run([stall(), add_call(), text("It is 3.")], wire=wire)
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "It is 3.", 3)
    assert adder.ran == [(1, 2)]
    assert [type(m).__name__ for m in played.result.messages] == ["UserMessage", "AssistantMessage", "ToolMessage", "AssistantMessage"]
    (nudge,) = nudges(played.bodies[1])
    assert "announced a tool call" in nudge
    assert "not narrate a plan" in nudge.lower().replace("do not", "not")
    assert "issue the tool call now" in nudge
    assert ("assistant", "Let me add them.") in said(played.bodies[1])
    assert [role for role, _ in said(played.bodies[2])] == ["user", "assistant", "tool"]
    assert "Let me add them." not in str(played.bodies[2]) + str(played.result.messages)


@wires
def test_narration_for_ever_takes_four_requests_and_is_delivered_as_incomplete(wire: str) -> None:
    played, adder = run([stall("Plan one."), stall("Plan two."), stall("Plan three."), stall("Plan four.")], wire=wire)
    result = played.result
    assert (result.outcome, result.reason, result.text) == (Outcome.INCOMPLETE, "dropped_tool_call", "Plan four.")
    assert len(played.bodies) == 4
    assert adder.ran == []
    prompt, narration = result.messages
    assert narration == AssistantMessage(content="Plan four.", incomplete=True) == result.message
    assert prompt.content == "Go."
    assert "Plan three." not in str(result.messages)


def test_three_stalls_then_a_call_then_three_stalls_then_a_call_then_the_answer_works() -> None:
    three = [stall(), stall(), stall()]
    played, adder = run([*three, add_call("c1"), *three, add_call("c2"), text("Both are 3.")])
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "Both are 3.", 9)
    assert adder.ran == [(1, 2), (1, 2)]


def test_the_streak_is_reset_by_a_call_that_enters_the_onion_even_if_a_layer_vetoes_it() -> None:
    @extension
    async def veto(context: Any, invocation: Any, call_next: Any) -> Any:
        raise ToolFailure("no")

    three = [stall(), stall(), stall()]
    played, adder = run([*three, add_call(), *three, text("I may not.")], extensions=[veto])
    assert (played.result.outcome, played.result.text) == (Outcome.COMPLETED, "I may not.")
    assert adder.ran == []


def test_the_streak_is_not_reset_by_a_batch_in_which_no_call_enters_the_onion() -> None:
    bad = calls(call("c1", "nowhere"))
    played, _ = run([stall(), stall(), stall(), bad, stall("Still planning.")])
    assert (played.result.outcome, played.result.reason, played.result.text) == (Outcome.INCOMPLETE, "dropped_tool_call", "Still planning.")


def test_the_streak_is_reset_by_a_genuine_text_turn() -> None:
    """One that is followed by new input, so that the run goes on."""

    async def scenario() -> None:
        agents: list[Agent] = []

        async def script(body: dict[str, Any]) -> Any:
            number = len(model.requests)
            if number == 4:
                await agents[0].steer("And then?")
                return text("A first answer.")
            return text("The last answer.") if number == 8 else stall()

        model = ScriptedModel(script)
        async with await Agent.create(model, limits=limits()) as agent:
            agents.append(agent)
            assert (await agent.run("Go.")).text == "The last answer."
            assert len(model.requests) == 8

    asyncio.run(scenario())


def test_the_streak_starts_at_zero_in_each_run() -> None:
    steps = [stall("One."), stall("Two."), stall("Three."), stall("Four."), *[stall()] * 3, text("Here it is.")]
    played, _ = run(steps, prompts=("Go.", "Again."))
    first, second = played.results
    assert (first.reason, second.outcome, second.text) == ("dropped_tool_call", Outcome.COMPLETED, "Here it is.")


@wires
def test_an_announced_call_that_is_missing_is_that_case_even_if_only_reasoning_came_and_reasoning_is_never_delivered(wire: str) -> None:
    thought = reasoning("I should add them.", finish="tool_calls")
    played, _ = run([thought] * 4, wire=wire)
    assert (played.result.outcome, played.result.reason, played.result.text) == (Outcome.INCOMPLETE, "dropped_tool_call", "")
    assert len(played.bodies) == 4
    assert [m.content for m in played.result.messages] == ["Go."]
    assert all("I should add them." not in str(body) for body in played.bodies)


def test_an_empty_list_of_calls_with_the_stop_reason_tool_calls_is_a_call_that_is_missing() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "On it.", "tool_calls": []}, "finish_reason": "tool_calls"}]}
    played, adder = run([raw(chunk), add_call(), text("3")], wire="streamed")
    assert (played.result.text, len(played.bodies), adder.ran) == ("3", 3, [(1, 2)])


# ---- nothing, and only reasoning -----------------------------------------------------------------


@wires
@pytest.mark.parametrize(
    ("fault", "code", "word"),
    [(text(""), "empty_reply", "empty"), (text(" \n\n "), "empty_reply", "empty"), (reasoning("Hm."), "reasoning_only", "only reasoning")],
)
def test_an_empty_reply_and_a_reasoning_only_one_are_asked_again_twice_each_with_a_nudge_of_its_own(
    wire: str, fault: Any, code: str, word: str
) -> None:
    played, _ = run([fault, fault, text("42")], wire=wire)
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "42", 3)
    assert [word in nudge for nudge in nudges(played.bodies[2])] == [True, True]
    assert [m.content for m in played.result.messages] == ["Go.", "42"]
    again, _ = run([fault] * 3, wire=wire)
    assert (again.result.outcome, again.result.reason, again.result.text.strip()) == (Outcome.INCOMPLETE, code, "")
    assert [m.content for m in again.result.messages] == ["Go."]


# ---- malformed calls -----------------------------------------------------------------------------

MALFORMED = {
    "bad JSON": (call("c1", "add", '{"left": 1, "ri'), "malformed"),
    "a list": (call("c1", "add", "[1, 2]"), "malformed"),
    "a number": (call("c1", "add", "3"), "malformed"),
    "an unknown tool": (call("c1", "subtract", {}), "unknown_tool"),
}


@wires
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_call_gets_a_failed_result_that_says_nothing_happened_and_is_counted(wire: str, kind: str) -> None:
    bad, code = MALFORMED[kind]
    played, adder = run([calls(bad), text("Sorry.")], wire=wire)
    (result,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert (result.failed, result.effect, result.tool_call_id) == (True, "none", "c1")
    assert "nothing happened" in result.content
    assert [event.code for event in played.of(RecoveryStarted)] == ["malformed_tool_call"]
    assert code in str(played.records)
    assert adder.ran == []
    again, adder = run([calls(bad, before=f"Try {n}.") for n in range(4)], wire=wire)
    assert (again.result.outcome, again.result.reason, again.result.text) == (Outcome.INCOMPLETE, "malformed_tool_call", "Try 3.")
    assert len([m for m in again.result.messages if isinstance(m, ToolMessage)]) == 4
    assert adder.ran == []


def test_a_tool_that_was_not_offered_this_turn_does_not_run() -> None:
    @extension
    async def only_others(context: Any, request: Any, call_next: Any) -> Any:
        from dataclasses import replace

        async for event in call_next(replace(request, tools=tuple(spec for spec in request.tools if spec.name != "add"))):
            yield event

    played, adder = run([add_call(), text("I cannot.")], extensions=[only_others])
    (result,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert adder.ran == []
    assert "not available" in result.content
    assert played.of(RecoveryStarted)[0].code == "malformed_tool_call"


def test_a_batch_with_one_good_call_resets_the_count_of_malformed_ones() -> None:
    bad = calls(call("", "nowhere"))
    mixed = calls(call("", "nowhere"), call("", "add", {"left": 1, "right": 2}))
    played, adder = run([bad, bad, bad, mixed, bad, bad, bad, text("Done.")])
    assert (played.result.outcome, played.result.text, adder.ran) == (Outcome.COMPLETED, "Done.", [(1, 2)])


# ---- what is no fault ----------------------------------------------------------------------------


@wires
@pytest.mark.parametrize("words", ["42", "I will now call the add tool.", "Let me check...", '{"name": "add", "arguments": {}}'])
def test_a_text_turn_that_ends_with_stop_is_the_answer_after_one_request_whatever_its_words(wire: str, words: str) -> None:
    played, _ = run([text(words)], wire=wire)
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, words, 1)


@pytest.mark.parametrize("wire", ["memory", "streamed"])
def test_a_text_turn_with_done_and_no_finish_reason_is_the_answer_after_one_request(wire: str) -> None:
    played, _ = run([text("I will look into it.", finish=None)], wire=wire)
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "I will look into it.", 1)


@wires
def test_a_forced_call_that_arrives_with_stop_runs(wire: str) -> None:
    played, adder = run([calls(call("c1", "add", {"left": 1, "right": 2}), finish="stop"), text("3")], wire=wire)
    assert (played.result.text, adder.ran) == ("3", [(1, 2)])


@wires
@pytest.mark.parametrize("before", ["\n\n", " ", "I'll check."])
def test_a_call_after_first_text_runs_and_the_text_is_not_the_answer(wire: str, before: str) -> None:
    played, adder = run([calls(call("c1", "add", {"left": 1, "right": 2}), before=before), text("42")], wire=wire)
    assert (played.result.text, adder.ran, len(played.bodies)) == ("42", [(1, 2)], 2)


# ---- as data -------------------------------------------------------------------------------------

# By the code of a recovery: a script that needs it once and then answers.
NEEDS: dict[str, list[Any]] = {
    "dropped_tool_call": [stall(), text("Done.")],
    "empty_reply": [text(""), text("Done.")],
    "reasoning_only": [reasoning("Hm."), text("Done.")],
    "malformed_tool_call": [calls(call("c1", "nowhere")), text("Done.")],
    "length": [text("Do", finish="length"), text("ne.")],
    "pause": [reply("Do", reason=StopReason.PAUSE), text("ne.")],
}


def test_every_recovery_has_a_scenario_that_needs_it() -> None:
    # An answer of another form needs an agent that asks for one: that has a module of its own.
    assert set(NEEDS) == set(RECOVERIES) - {INVALID_OUTPUT}


@pytest.mark.parametrize("removed", NEEDS)
def test_deleting_one_recoverys_row_breaks_exactly_its_scenario(removed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RECOVERIES, removed)
    for code, steps in NEEDS.items():
        played, _ = run(steps[:1] if code == removed else steps)
        result = played.result
        if code == removed:
            assert (result.outcome, result.reason) == (Outcome.INCOMPLETE, code)
        else:
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "Done.")


# ---- what a consumer sees ------------------------------------------------------------------------


def test_each_recovery_is_shown_as_an_event_that_counts_it_against_its_bound() -> None:
    for code, steps in NEEDS.items():
        played, _ = run(steps)
        assert [(event.code, event.count) for event in played.of(RecoveryStarted)] == [(code, 1)]
    played, _ = run([stall()] * 4)
    assert [(event.count, event.bound) for event in played.of(RecoveryStarted)] == [(1, 3), (2, 3), (3, 3)]
    assert [event.reason for event in played.of(StreamRestarted)] == ["dropped_tool_call"] * 3


@extension
async def second_try(context: Any, request: Any, call_next: Any) -> Any:
    """A layer that asks again where the provider failed."""
    try:
        async for event in call_next(request):
            yield event
    except Exception:
        async for event in call_next(request):
            yield event


SHOWN: dict[str, tuple[list[Any], list[Any]]] = {
    "a narration, then the answer": ([stall(), text("It is 3.")], []),
    "narration for ever": ([stall(f"Plan {n}.") for n in range(4)], []),
    "an answer in three parts": ([text("It ", finish="length"), text("is ", finish="length"), text("3.")], []),
    "a continuation without end": ([text(f"{n} ", finish="length") for n in range(4)], []),
    "a paused turn": ([reply("It ", reason=StopReason.PAUSE), text("is 3.")], []),
    "a cut, then the whole": ([cut(after="It i"), text("It is 3.")], []),
    "an error object, then the whole": ([error_object(500, after="It i"), text("It is 3.")], []),
    "a cut in the middle of a continuation": ([text("It ", finish="length"), cut(after="is f"), text("is 3.")], []),
    "a continuation that ends in a narration": ([text("I will ", finish="length"), stall("add them."), text("It is 3.")], []),
    "a continuation that ends in silence": ([text("I will ", finish="length"), stall(""), text("It is 3.")], []),
    "blank text, then the answer": ([text(" \n"), text("It is 3.")], []),
    "reasoning, then the answer": ([reasoning("Hm."), reasoning("Hm.", then="It is 3.")], []),
    "a layer that asks again": ([cut(after="It i"), text("It is 3.")], [second_try]),
    "a refusal": ([text("It i", finish="content_filter")], []),
}


# This wire has no pause: only a script past it has one.
SHOWN_ON = [(name, wire) for name in SHOWN for wire in ("memory", "streamed") if wire == "memory" or name != "a paused turn"]


@pytest.mark.parametrize(("name", "wire"), SHOWN_ON)
def test_a_consumer_that_clears_its_text_where_it_is_withdrawn_ends_up_with_exactly_the_result(name: str, wire: str) -> None:
    steps, extensions = SHOWN[name]
    played, _ = run(steps, wire=wire, extensions=extensions)
    assert played.shown() == played.result.text != ""
    assert played.of(TextDelta)
