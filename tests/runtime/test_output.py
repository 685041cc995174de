"""Structured output: the answer is a value of the type that was asked for, or the run says why it is not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from helpers import agent_playing, records_of
from interlock import Agent, Outcome, Stop, UsageError, extension, tool
from interlock.machine import INVALID_OUTPUT, RECOVERIES
from interlock.messages import AssistantMessage, ToolMessage
from interlock.records import HandlerStarted, ModelStepEnded, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, text
from wire_rules import faults


class Invoice(BaseModel):
    """An invoice, as it is to be booked."""

    number: str
    cents: int = Field(gt=0)

    @field_validator("number")
    @classmethod
    def _has_a_prefix(cls, value: str) -> str:
        if not value.startswith("R-"):
            raise ValueError("must begin with R-")
        return value


@dataclass
class Point:
    x: int
    y: int


class Person(TypedDict):
    name: str
    age: int


class Tree(BaseModel):
    """It holds itself, so its schema is a reference to a definition."""

    name: str
    branches: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


GOOD: list[tuple[Any, str, Any]] = [
    (Invoice, '{"number": "R-1", "cents": 5}', Invoice(number="R-1", cents=5)),
    (Point, '{"x": 1, "y": 2}', Point(1, 2)),
    (Person, '{"name": "Ada", "age": 36}', {"name": "Ada", "age": 36}),
    (Tree, '{"name": "a", "branches": [{"name": "b"}]}', Tree(name="a", branches=[Tree(name="b")])),
    (Cat | Dog, '{"value": {"kind": "dog", "tricks": ["sit"]}}', Dog(kind="dog", tricks=["sit"])),
    (list[int], '{"value": [1, 2, 3]}', [1, 2, 3]),
    (bool, '{"value": true}', True),
    (Invoice | None, '{"value": null}', None),
]


def answer(native: bool, said: str) -> Any:
    return text(said) if native else calls(call("f", "final_answer", said))


@pytest.mark.parametrize("native", [True, False], ids=["held to the schema", "by a tool"])
@pytest.mark.parametrize(
    ("kind", "said", "value"), GOOD, ids=["model", "dataclass", "dict", "recursive", "union", "list", "bool", "optional"]
)
def test_the_answer_is_a_value_of_the_type_that_was_asked_for(kind: Any, said: str, value: Any, native: bool) -> None:
    async def main() -> None:
        model = ScriptedModel([answer(native, said), answer(native, said)], native_output=native)
        async with agent_playing(model, output=kind) as agent:
            result = await agent.run("Go.")
            assert (result.outcome, result.output, type(result.output)) == (Outcome.COMPLETED, value, type(value))
            if native:
                assert model.bodies[0]["response_format"]["type"] == "json_schema"  # type: ignore[index]
                assert "tools" not in model.bodies[0]
            else:
                assert [one["function"]["name"] for one in model.bodies[0]["tools"]] == ["final_answer"]  # type: ignore[attr-defined]
                assert "response_format" not in model.bodies[0]
            # What was answered stays a plain message: the next request is a valid one.
            assert (await agent.run("Again.")).output == value
            assert faults(model.bodies[1]) == []
            assert await records_of(agent, ToolStepEnded) == []

    asyncio.run(main())


@pytest.mark.parametrize("native", [True, False], ids=["held to the schema", "by a tool"])
def test_an_answer_of_another_form_is_asked_for_again_with_what_was_wrong_and_leaves_no_trace(native: bool) -> None:
    bad = ['{"number": "R-1"}', '{"number": "17", "cents": 0}', "not JSON at all"]

    async def main() -> None:
        model = ScriptedModel([*(answer(native, said) for said in bad), answer(native, GOOD[0][1])], native_output=native)
        async with agent_playing(model, output=Invoice) as agent:
            result = await agent.run("Go.")
            assert (result.output, result.output_errors) == (GOOD[0][2], ())
            nudges = [body["messages"][-1]["content"] for body in model.bodies[1:]]  # type: ignore[index]
            assert "cents: Field required" in nudges[0]
            assert "must begin with R-" in nudges[1]
            assert "cents: Input should be greater than 0" in nudges[1]
            assert "not JSON" in nudges[2]
            assert [type(message) for message in result.messages[1:]] == [AssistantMessage]
            assert all(faults(body) == [] for body in model.bodies)

    asyncio.run(main())


@pytest.mark.parametrize("native", [True, False], ids=["held to the schema", "by a tool"])
def test_three_times_wrong_in_a_row_is_three_re_prompts_and_then_incomplete_with_the_last_errors(native: bool) -> None:
    async def main() -> None:
        model = ScriptedModel([answer(native, '{"number": "R-1"}')] * 4, native_output=native)
        async with agent_playing(model, output=Invoice) as agent:
            result = await agent.run("Go.")
            assert (result.outcome, result.reason, result.output) == (Outcome.INCOMPLETE, "invalid_output", None)
            assert result.output_errors == ("cents: Field required",)
            assert result.text == '{"number": "R-1"}'

    asyncio.run(main())


def test_without_its_row_in_the_table_of_recoveries_a_wrong_answer_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with agent_playing([text("no")], output=Point) as agent:
            result = await agent.run("Go.")
            assert (result.outcome, result.reason) == (Outcome.INCOMPLETE, "invalid_output")

    monkeypatch.delitem(RECOVERIES, INVALID_OUTPUT)
    asyncio.run(main())


def test_calls_beside_the_answer_run_first_and_the_answer_is_asked_for_afterwards() -> None:
    done: list[str] = []

    @tool
    async def look(where: str) -> str:
        done.append(where)
        return "found"

    async def main() -> None:
        both = calls(call("a", "look", {"where": "desk"}), call("f", "final_answer", GOOD[0][1]))
        model = ScriptedModel([both, calls(call("f", "final_answer", GOOD[0][1]))])
        async with agent_playing(model, tools=[look], output=Invoice) as agent:
            result = await agent.run("Go.")
            assert result.output == GOOD[0][2]
            first, second = (m for m in result.messages if isinstance(m, ToolMessage))
            assert (first.content, second.failed, second.effect) == ("found", True, "none")
            assert "it must be the only call of a reply" in str(second.content)
            assert len(await records_of(agent, HandlerStarted)) == 1
        assert done == ["desk"]

    asyncio.run(main())


def test_an_answer_that_was_cut_off_is_never_one_however_whole_it_looks() -> None:
    async def main() -> None:
        cut_off = calls(call("f", "final_answer", GOOD[0][1]), finish="length")
        model = ScriptedModel([cut_off, answer(False, GOOD[0][1])])
        async with agent_playing(model, output=Invoice) as agent:
            result = await agent.run("Go.")
            assert result.output == GOOD[0][2]
            (ended,) = await records_of(agent, ToolStepEnded)
            assert (ended.code, ended.effect) == ("cut_off", "none")

    asyncio.run(main())


def test_an_answer_that_a_length_limit_cut_is_continued_and_read_as_one() -> None:
    async def main() -> None:
        whole = GOOD[0][1]
        model = ScriptedModel([text(whole[:12], finish="length"), text(whole[12:])], native_output=True)
        async with agent_playing(model, output=Invoice) as agent:
            assert (await agent.run("Go.")).output == GOOD[0][2]

    asyncio.run(main())


def test_a_fence_around_the_answer_is_not_minded_and_text_around_it_is() -> None:
    async def main() -> None:
        fenced = f"```json\n{GOOD[0][1]}\n```"
        model = ScriptedModel([text(f"Here it is: {GOOD[0][1]}"), text(fenced)], native_output=True)
        async with agent_playing(model, output=Invoice) as agent:
            assert (await agent.run("Go.")).output == GOOD[0][2]

    asyncio.run(main())


def test_what_a_layer_ends_the_run_with_is_the_output_if_it_is_of_the_form_and_none_otherwise() -> None:
    async def main(said: Any) -> Any:
        @extension
        async def stop(context: Any, call: Any, call_next: Any) -> Any:
            return Stop(said)

        async def look() -> str:
            return "never"

        async with agent_playing([calls(call("a", "look"))], tools=[look], extensions=[stop], output=Point) as agent:
            return await agent.run("Go.")

    found = asyncio.run(main({"x": 1, "y": 2}))
    assert (found.outcome, found.output) == (Outcome.COMPLETED, Point(1, 2))
    other = asyncio.run(main("enough"))
    assert (other.outcome, other.text, other.output) == (Outcome.COMPLETED, "enough", None)


def test_the_streak_of_wrong_answers_is_in_the_journal_and_survives_the_process() -> None:
    async def main() -> None:
        async with agent_playing([text("no"), text('{"x": 1, "y": 2}')], output=Point) as agent:
            await agent.run("Go.")
            ended = await records_of(agent, ModelStepEnded)
            assert [(record.verdict.value, record.code) for record in ended] == [("retry", "invalid_output"), ("answer", "")]

    asyncio.run(main())


class Opaque:
    pass


@pytest.mark.parametrize("kind", [Opaque, "NoSuchName", lambda: None, 5], ids=["class", "text", "function", "number"])
def test_a_type_without_a_schema_is_refused_when_the_agent_is_made(kind: Any) -> None:
    with pytest.raises(UsageError, match="output"):
        asyncio.run(Agent.create(ScriptedModel([]), output=kind))


def test_a_tool_of_the_name_by_which_the_answer_is_given_is_refused() -> None:
    async def final_answer() -> str:
        return ""

    with pytest.raises(UsageError, match="final_answer"):
        asyncio.run(Agent.create(ScriptedModel([]), tools=[final_answer], output=Point))
