"""``ask_user``: the model asks, the run waits, a person answers."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import agent_playing, looped, records_of
from interlock import Agent, Allow, Deny, Edit, Outcome, UsageError
from interlock.events import ToolFinished
from interlock.extensions.approvals import Approvals
from interlock.extensions.ask_user import ASK_USER, AskUser
from interlock.journal import MemoryJournal
from interlock.messages import text_of
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, check_extension, text

CHOICES = ["Berlin", "Paris", "10"]


def asking(**arguments: Any) -> Any:
    return calls(call("c1", "ask_user", {"question": "Which city?", **arguments}))


async def answered(answer: Any, **arguments: Any) -> str:
    """What the model is told."""
    async with agent_playing([asking(**arguments), text("Thanks.")], extensions=[AskUser()]) as agent:
        result = await agent.run("Book it.")
        assert result.outcome is Outcome.WAITING
        [question] = result.questions
        result = await agent.answer(question.id, answer)
        assert result.text == "Thanks."
        assert not await records_of(agent, HandlerStarted)
        [step] = await records_of(agent, ToolStepEnded)
        assert (step.effect, step.message.failed) == ("none", isinstance(answer, Deny))
        return text_of(step.message.content)


@looped
async def test_the_question_shows_the_choices() -> None:
    async with agent_playing([asking(choices=CHOICES)], extensions=[AskUser()]) as agent:
        result = await agent.run("Book it.")
    assert result.questions[0].text == "Which city?\n  1. Berlin\n  2. Paris\n  3. 10"
    assert result.questions[0].expires_at is None


@pytest.mark.parametrize(
    ("answer", "choices", "said"),
    [
        ("Oslo, by train", [], "The user answered: Oslo, by train"),
        ("Paris", CHOICES, "The user chose: Paris"),
        (" paris ", CHOICES, "The user chose: Paris"),
        ("2", CHOICES, "The user chose: Paris"),
        ("10", CHOICES, "The user chose: 10"),
        ("4", CHOICES, "The user answered, and chose none of these: 4"),
        ("0", CHOICES, "The user answered, and chose none of these: 0"),
        ("²", CHOICES, "The user answered, and chose none of these: ²"),
        ("Oslo", CHOICES, "The user answered, and chose none of these: Oslo"),
        (2, CHOICES, "The user chose: Paris"),
        (Allow(), [], "The user said yes."),
        (False, [], "The user said no."),
        ({"city": "Oslo"}, [], 'The user answered: {"city":"Oslo"}'),
        ("  ", [], "The user gave an empty answer."),
    ],
)
@looped
async def test_an_answer_is_the_result(answer: Any, choices: list[str], said: str) -> None:
    assert await answered(answer, choices=choices) == said


@pytest.mark.parametrize("answer", ["No!", Allow()], ids=["in words", "yes"])
@looped
async def test_a_yes_to_a_guard_is_no_answer_to_the_model(answer: Any) -> None:
    guards = [Approvals(when=lambda context, call: True)]
    async with agent_playing([asking(question="Delete it all?"), text("Thanks.")], extensions=[AskUser(), *guards]) as agent:
        result = await agent.run("Tidy up.")
        assert result.questions[0].text == "May ask_user run?"
        result = await agent.answer(result.questions[0].id, Allow())
        assert result.questions[0].text == "Delete it all?"
        assert (await agent.answer(result.questions[0].id, answer)).text == "Thanks."
        [step] = await records_of(agent, ToolStepEnded)
        assert text_of(step.message.content) == ("The user answered: No!" if answer == "No!" else "The user said yes.")


@looped
async def test_a_person_who_will_not_answer_is_a_failure_with_their_reason() -> None:
    assert "ask somebody else" in await answered(Deny("ask somebody else"))


@looped
async def test_an_edited_question_is_asked_anew() -> None:
    async with agent_playing([asking(), text("Thanks.")], extensions=[AskUser()]) as agent:
        result = await agent.run("Book it.")
        result = await agent.answer(result.questions[0].id, Edit({"question": "Which country?"}))
        [question] = result.questions
        assert question.text == "Which country?"
        assert (await agent.answer(question.id, "Norway")).text == "Thanks."


@looped
async def test_another_process_answers_next_week() -> None:
    journal = MemoryJournal()
    async with agent_playing([asking()], extensions=[AskUser()], journal=journal) as agent:
        result = await agent.run("Book it.")
    model = ScriptedModel([text("Oslo it is.")])
    async with agent_playing(model, extensions=[AskUser()], journal=journal) as agent:
        assert (await agent.answer(result.questions[0].id, "Oslo")).text == "Oslo it is."
        assert "The user answered: Oslo" in str(model.bodies[0])
        assert (await agent.replay("s")).results[-1].text == "Oslo it is."


@looped
async def test_a_question_that_nobody_answers_in_time_is_a_denial() -> None:
    now = [1000.0]
    async with agent_playing([asking(), text("Nobody there.")], extensions=[AskUser(expires_s=60)], clock=lambda: now[0]) as agent:
        result = await agent.run("Book it.")
        assert result.questions[0].expires_at == 1060.0
        now[0] = 1061.0
        assert (await agent.resume()).text == "Nobody there."
        [step] = await records_of(agent, ToolStepEnded)
        assert step.message.failed


@looped
async def test_other_calls_of_the_batch_finish_meanwhile() -> None:
    def look(city: str) -> str:
        return f"{city} is far"

    batch = calls(call("c1", "ask_user", {"question": "Where?"}), call("c2", "look", {"city": "Oslo"}))
    async with agent_playing([batch, text("Done.")], extensions=[AskUser()], tools=[look]) as agent:
        finished = [event.call.name async for event in agent.stream("Go.") if isinstance(event, ToolFinished)]
        assert finished == ["look"]
        questions = (await agent.resume()).questions
        assert (await agent.answer(questions[0].id, "Oslo")).text == "Done."


@pytest.mark.parametrize(
    "arguments",
    [
        {"question": ""},
        {"question": " \n"},
        {"question": "x" * 4001},
        {"question": "x", "choices": ["a"] * 21},
        {"question": "x", "choices": ["a", " "]},
        {"question": "x", "choices": ["a" * 301]},
        {"question": "x", "choices": [1]},
        {"question": "x", "choices": {"a": 1}},
        {"choices": ["a"]},
        {"question": "x", "more": 1},
    ],
)
@looped
async def test_a_question_that_is_none_is_refused_and_nobody_is_asked(arguments: dict[str, Any]) -> None:
    script = [calls(call("c1", "ask_user", arguments)), text("Never mind.")]
    async with agent_playing(script, extensions=[AskUser()]) as agent:
        assert (await agent.run("Go.")).text == "Never mind."
        [step] = await records_of(agent, ToolStepEnded)
        assert (step.message.failed, step.effect, step.decided_by) == (True, "none", "AskUser")


@looped
async def test_a_tool_of_the_users_own_with_that_name_is_refused_when_the_agent_is_made() -> None:
    def ask_user(question: str) -> str:
        return question

    with pytest.raises(UsageError, match="ask_user"):
        await Agent.create(ScriptedModel([]), tools=[ask_user], extensions=[AskUser()])


@looped
async def test_it_keeps_what_the_runtime_relies_on() -> None:
    (await check_extension(AskUser, calls=[(ASK_USER, {"question": "Which?"})])).require()


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError):
        AskUser(expires_s=float("nan"))
