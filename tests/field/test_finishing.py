"""What ends a turn, when what the model says of its end and what it sent do not agree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import WIRES, Played, limits, play
from interlock import AgentRunConfig, Outcome, RunNotCompleted
from interlock.events import TextDelta
from interlock.messages import AssistantMessage
from interlock.records import RunEnded
from interlock.testing import call, calls, cut, eof, raw, reasoning, repeat, text

wires = pytest.mark.parametrize("wire", WIRES)


async def act() -> str:
    """Act."""
    return "acted"


def run(steps: Any, **options: Any) -> Played:
    return asyncio.run(play(steps, tools=[act], **options))


def partial_answers(played: Played) -> list[AssistantMessage]:
    """Messages of the transcript without calls which are not marked as incomplete."""
    messages = played.results[-1].messages if played.results else ()
    return [m for m in messages if isinstance(m, AssistantMessage) and not m.tool_calls and not m.incomplete]


@wires
def test_a_stop_that_announces_calls_over_nothing_at_all_is_asked_for_them_three_times_and_is_no_success(wire: str) -> None:
    played = run([repeat(text("", finish="tool_calls"))], wire=wire)
    result = played.result
    assert (result.outcome, result.reason, result.text) == (Outcome.INCOMPLETE, "dropped_tool_call", "")
    assert len(played.bodies) == 4
    assert played.bodies[1]["messages"] != played.bodies[0]["messages"]  # not the same request again
    with pytest.raises(RunNotCompleted):
        result.require()


@pytest.mark.parametrize("wire", ["streamed", "plain"])
def test_prose_in_place_of_a_required_call_is_asked_again_and_then_carried_as_partial_text(wire: str) -> None:
    sure = raw({"choices": [{"index": 0, "delta": {"content": "Sure!", "tool_calls": []}, "finish_reason": "tool_calls"}]})
    played = run([repeat(sure)], wire=wire, config=AgentRunConfig(tool_choice="required"))
    result = played.result
    assert (result.outcome, result.reason, result.text) == (Outcome.INCOMPLETE, "dropped_tool_call", "Sure!")
    assert [body["tool_choice"] for body in played.bodies] == ["required"] * 4
    assert result.message == AssistantMessage(content="Sure!", incomplete=True)
    assert partial_answers(played) == []


@wires
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_a_forced_answer_that_is_only_reasoning_is_asked_for_again_without_tools_and_reasoning_is_never_the_answer(
    wire: str, finish: str
) -> None:
    thought = reasoning("The answer is surely 41.", finish=finish)
    played = run([thought, text("42")], wire=wire, config=AgentRunConfig(tool_choice="none"))
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "42", 2)
    assert [body["tool_choice"] for body in played.bodies] == ["none", "none"]
    never = run([repeat(thought)], wire=wire, config=AgentRunConfig(tool_choice="none"))
    assert (never.result.outcome, never.result.text) == (Outcome.INCOMPLETE, "")
    assert 2 <= len(never.bodies) <= 4
    assert "41" not in "".join(event.text for event in never.of(TextDelta)) + str(never.bodies)
    assert partial_answers(never) == []


@wires
def test_reasoning_in_its_own_field_beside_empty_content_is_told_from_an_empty_reply(wire: str) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm.", "content": ""}, "finish_reason": "stop"}]}
    thought = raw(chunk) if wire != "memory" else reasoning("Hm.")
    codes = [run([repeat(step)], wire=wire).result.reason for step in (thought, text(""))]
    assert codes == ["reasoning_only", "empty_reply"]


@wires
def test_a_preamble_before_a_call_at_the_limit_of_requests_is_no_answer_and_nothing_more_is_asked(wire: str) -> None:
    ran: list[int] = []

    async def fetch() -> str:
        """Fetch."""
        ran.append(1)
        return "fetched"

    steps = [calls(call("", "fetch"), before="I'll fetch.") for _ in range(2)]
    played = asyncio.run(play(steps, tools=[fetch], wire=wire, bounds=limits(requests=2)))
    result = played.result
    assert (result.outcome, result.reason, result.text, len(ran), len(played.bodies)) == (Outcome.LIMIT, "requests", "", 2, 2)
    assert partial_answers(played) == []
    with pytest.raises(RunNotCompleted):
        result.require()


@wires
@pytest.mark.parametrize("end", [cut, eof])
@pytest.mark.parametrize("bounds", [{"model_attempts": 1}, {"requests": 1}, {}])
def test_text_of_a_stream_that_died_never_becomes_a_message_that_looks_complete(wire: str, end: Any, bounds: dict[str, int]) -> None:
    steps = [*[end(after="The answer is 4")] * (1 if bounds else 4), text("Hello.")]
    played = run(steps, wire=wire, prompts=("Go.", "Hi."), bounds=limits(**bounds))
    assert played.results[-1].text == "Hello."
    assert [m.content for m in partial_answers(played)] == ["Hello."]
    assert "The answer is 4" not in str(played.bodies[-1])
    first = next(record for record in played.records if isinstance(record, RunEnded))
    assert first.outcome is (Outcome.LIMIT if "requests" in bounds else Outcome.INCOMPLETE)
