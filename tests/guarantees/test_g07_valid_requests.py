"""G07: every request sent to a provider is valid, whatever happened before it. The checker is ``wire_rules``, not the runtime's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import Played, limits, play
from interlock import Agent, AgentExtension, AgentRunConfig, ProviderError, RunContext, ToolFailure, UsageError, extension, tool
from interlock.events import ToolFinished
from interlock.messages import AssistantMessage, ImagePart, Message, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.providers.openai import OpenAIChatModel
from interlock.records import ToolStepEnded
from interlock.testing import ScriptedModel, Step, WireServer, call, calls, cut, error, reasoning, text
from mortal import kill_at, payment
from threaded import serving
from wire_rules import faults


def all_faults(bodies: list[dict[str, Any]]) -> list[str]:
    return [f"request {number}: {fault}" for number, body in enumerate(bodies) for fault in faults(body)]


# ---- any script ----------------------------------------------------------------------------------

IDS = st.sampled_from(["", "", "a", "a", "b", "call_0", "call_1", "a.0", "\ud835", " "])
NAMES = st.sampled_from(["quick", "slow", "serial", "boom", "nothing", "outer", "steer", "leave", "nowhere", "bad name!", ""])
ARGUMENTS = st.sampled_from(["{}", "{}", "{}", "", "null", "[1]", "3", '{"n": 2', '{"x": "\\ud835"}', '{"a":1}{"b":2}', '{"extra": 1}'])
FINISHES = st.sampled_from(["tool_calls", "tool_calls", "tool_calls", "stop", "length", "content_filter", "finished"])
CALLS = st.lists(st.builds(call, IDS, NAMES, ARGUMENTS), min_size=1, max_size=4, unique_by=lambda one: (one.id, one.name, one.arguments))
STEPS = st.one_of(
    st.builds(lambda made, finish, before: calls(*made, finish=finish, before=before), CALLS, FINISHES, st.sampled_from(["", " ", "So:"])),
    st.builds(lambda made, finish, before: calls(*made, finish=finish, before=before), CALLS, st.just("tool_calls"), st.just("")),
    st.builds(
        text, st.sampled_from(["", " \n", "Hi.", "\ud835"]), finish=st.sampled_from(["stop", "tool_calls", "length", "content_filter"])
    ),
    st.just(reasoning("Hm.")),
    st.just(error(503)),
    st.just(error(400)),
    st.just(cut(after="Hel")),
)


def tools(agent: list[Agent]) -> list[Any]:
    async def quick() -> str:
        return "quick"

    async def slow() -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        return "slow"

    @tool(parallel=False)
    async def serial() -> dict[str, Any]:
        return {"x": 1}

    async def boom() -> str:
        raise ToolFailure("boom\ud835")

    async def nothing() -> None:
        return None

    async def outer(context: RunContext) -> str:
        return str(await context.call_tool("quick"))

    async def steer() -> str:
        await agent[0].steer("Wait.", interrupt="now")
        return "steered"

    async def leave() -> str:
        await agent[0].cancel()
        return "left"

    return [quick, slow, serial, boom, nothing, outer, steer, leave]


@given(st.lists(STEPS, max_size=8), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_every_request_is_valid_whatever_the_model_does_and_whatever_happens_to_its_calls(steps: list[Step], prompts: int) -> None:
    left = list(steps)

    async def scenario() -> list[dict[str, Any]]:
        async with WireServer(lambda body: left.pop(0) if left else text("The end.")) as server:
            agent: list[Agent] = []
            model = OpenAIChatModel("scripted", base_url=server.base_url)
            config = AgentRunConfig(session_id="s")
            async with await Agent.create(model, tools=tools(agent), config=config, limits=limits(), system_prompt="Be brief.") as made:
                agent.append(made)
                for number in range(prompts):
                    try:
                        await made.run(f"Prompt {number}.")
                    except ProviderError:
                        pass  # the script may fail for good; the next prompt goes on
            return [request.body for request in server.requests]

    bodies = asyncio.run(scenario())
    assert all_faults(bodies) == []
    for earlier, later in pairwise(bodies):  # what was said once is never said otherwise
        kept = [m for m in earlier["messages"] if m["role"] == "tool"]
        assert [m for m in later["messages"] if m["role"] == "tool"][: len(kept)] == kept


# ---- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["memory", "streamed", "plain"])
def test_results_come_in_the_order_of_completion_and_are_sent_in_the_order_of_the_calls(wire: str) -> None:
    async def scenario() -> Played:
        quick_is_settled = asyncio.Event()

        class Gate(AgentExtension):
            def on_record(self, context: Any, record: Any) -> None:
                if isinstance(record, ToolStepEnded) and record.message.tool_call_id == "q":
                    quick_is_settled.set()

        async def quick() -> str:
            return "quick"

        async def slow() -> str:
            await quick_is_settled.wait()
            return "slow"

        steps = [calls(call("s", "slow"), call("q", "quick")), text("Done.")]
        return await play(steps, tools=[quick, slow], extensions=[Gate()], wire=wire)

    played = asyncio.run(scenario())
    assert [event.call.id for event in played.of(ToolFinished)] == ["q", "s"]
    assert [(m["tool_call_id"], m["content"]) for m in played.bodies[1]["messages"][2:]] == [("s", "slow"), ("q", "quick")]
    assert all_faults(played.bodies) == []


# ---- histories from elsewhere --------------------------------------------------------------------


def asks(*ids: str, name: str = "f", arguments: str = "{}", said: str = "") -> AssistantMessage:
    return AssistantMessage(content=said, tool_calls=tuple(ToolCall(id=id, name=name, arguments=arguments) for id in ids))


def gives(id: str, content: Any = "ok") -> ToolMessage:
    return ToolMessage(tool_call_id=id, name="f", content=content)


HISTORIES: dict[str, tuple[list[Message], list[str]]] = {
    "a valid one": ([UserMessage(content="Hi."), asks("a", "b"), gives("a"), gives("b"), AssistantMessage(content="So.")], []),
    "a missing result": ([asks("a", "b"), gives("b")], ["added a result for 'a': its outcome is unknown", "in the order of their calls"]),
    "no results at all": ([asks("a"), UserMessage(content="Well?")], ["added a result for 'a'"]),
    "results in another order": ([asks("a", "b"), gives("b"), gives("a")], ["in the order of their calls"]),
    "one result without an id": ([asks("a"), gives("")], ["the one result without an id", "'a'"]),
    "one of two without an id": ([asks("a", "b"), gives("b"), gives("")], ["the one open call 'a'"]),
    "two results for a call": ([asks("a"), gives("a"), gives("a", "again")], ["a second result of 'a'"]),
    "two calls with one id": ([asks("a", "a"), gives("a"), gives("a", "again")], ["'a' was used twice", "a second result of 'a'"]),
    "an id used again later": ([asks("a"), gives("a"), asks("a"), gives("a")], ["'a' was used twice"]),
    "a call without an id": ([asks(""), gives("")], ["it had none"]),
    "an orphan at the start": ([gives("x"), UserMessage(content="Hi.")], ["the result of 'x': no call before it"]),
    "an orphan in a batch": ([asks("a"), gives("a"), gives("x")], ["no such call before it"]),
    "a result after something else": (
        [asks("a"), UserMessage(content="Hm."), gives("a")],
        ["added a result for 'a'", "the result of 'a': no call"],
    ),
    "blank messages": (
        [
            SystemMessage(content=" "),
            UserMessage(content=""),
            UserMessage(content=(TextPart(" "),)),
            AssistantMessage(content="\n", reasoning="Hm."),
        ],
        ["a blank SystemMessage", "a blank UserMessage", "a blank UserMessage", "a blank AssistantMessage"],
    ),
    "arguments that are no object": ([asks("a", arguments="[1"), gives("a")], []),
    "lone surrogates": (
        [
            UserMessage(content=(TextPart("\ud835"), ImagePart(url="https://x.test/i.png"))),
            AssistantMessage(content="\ud835", reasoning="\ud835"),
            AssistantMessage(tool_calls=(ToolCall(id="\ud835", name="\ud835", arguments='"\ud835"'),), reasoning="\ud835"),
            ToolMessage(tool_call_id="\ud835", name="\ud835", content=(TextPart("\ud835"),)),
        ],
        [],
    ),
}


async def imported(history: list[Message], journal: str = "memory:", expected: type[Exception] | None = None) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel([text("Hello.")])
    async with await Agent.create(model, journal=journal, config=AgentRunConfig(session_id="s"), limits=limits()) as agent:
        repairs = await agent.import_messages(history)
        await agent.run("Go on.")
        return repairs, model


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_from_elsewhere_is_made_valid_and_every_repair_is_said(
    name: str, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history, words = HISTORIES[name]
    repairs, model = asyncio.run(imported(history, "memory:" if store == "memory" else f"sqlite:///{tmp_path}/agent.db"))
    assert all_faults(model.bodies) == []
    assert bool(repairs) == bool(words)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == len(repairs)
    for word in words:
        assert any(word in repair for repair in repairs)
        assert any(word in warning for warning in warnings)


@pytest.mark.parametrize(
    "history",
    [[asks("a", "b"), gives(""), gives("")], [asks("a", "b"), gives("")], [asks("a"), gives("a"), gives("")]],
)
def test_results_without_ids_that_could_belong_to_more_than_one_call_are_refused_and_nothing_is_imported(history: list[Message]) -> None:
    async def scenario() -> None:
        async with await Agent.create(ScriptedModel([]), config=AgentRunConfig(session_id="s")) as agent:
            with pytest.raises(UsageError, match="cannot be paired"):
                await agent.import_messages(history)
            assert await agent.session("s").messages() == ()

    asyncio.run(scenario())


def test_an_id_that_the_stored_session_has_used_is_replaced_also_in_a_process_that_has_not_read_it_yet(tmp_path: Path) -> None:
    def f() -> str:
        return "ok"

    journal = f"sqlite:///{tmp_path}/agent.db"
    asyncio.run(play([calls(call("a", "f")), text("Done.")], tools=[f], journal=journal))
    repairs, model = asyncio.run(imported([asks("a"), gives("a")], journal))
    assert all_faults(model.bodies) == []
    assert "'a' was used twice" in repairs[0]


# ---- layers that edit the conversation -----------------------------------------------------------

Edit = Callable[[tuple[Message, ...]], Any]

EDITS: dict[str, Edit] = {
    "drops the results": lambda m: tuple(one for one in m if not isinstance(one, ToolMessage)),
    "drops the calls": lambda m: tuple(one for one in m if not isinstance(one, AssistantMessage)),
    "drops the last message": lambda m: m[:-1] or m,
    "drops the first message": lambda m: m[1:] or m,
    "turns everything round": lambda m: m[::-1],
    "says everything twice": lambda m: m + m,
    "says the end twice": lambda m: (*m, *m[-3:]),
    "adds a call that was made before": lambda m: (*m, asks("a"), gives("a")),
    "adds a call without a result": lambda m: (*m, asks("new")),
    "adds a result without a call": lambda m: (*m, gives("new")),
    "adds blank messages": lambda m: (
        SystemMessage(content=""),
        *m,
        UserMessage(content=" "),
        AssistantMessage(),
        UserMessage(content=(TextPart(""),)),
    ),
    "adds blank parts": lambda m: (*m, UserMessage(content=(TextPart("a"), TextPart(" ")))),
    "adds broken arguments": lambda m: (*m, asks("new", arguments='{"n": 2'), gives("new")),
    "adds a strange name": lambda m: (*m, asks("new", name="no such name!"), gives("new")),
    "adds lone surrogates": lambda m: (*m, UserMessage(content="\ud835"), asks("\ud835", name="\ud835"), gives("\ud835", "\ud835")),
    "puts a message between call and result": lambda m: tuple(two for one in m for two in (one, SystemMessage(content="Mind this."))),
    "hands over a list": lambda m: [*m, SystemMessage(content="Mind this.")],
}


@pytest.mark.parametrize("name", EDITS)
def test_a_request_that_a_layer_has_edited_is_made_valid_before_it_is_sent(name: str) -> None:
    edit = EDITS[name]

    @extension
    async def hostile(context: Any, request: Any, call_next: Any) -> Any:
        async for event in call_next(replace(request, messages=edit(request.messages))):
            yield event

    def f() -> str:
        return "ok"

    steps = [calls(call("a", "f"), call("b", "f")), calls(call("c", "f", "[")), text("Done.")]
    played = asyncio.run(play(steps, tools=[f], extensions=[hostile], wire="streamed", prompts=("Go.",)))
    assert played.result.text == "Done."
    assert all_faults(played.bodies) == []
    assert [m.content for m in played.result.messages if isinstance(m, UserMessage)] == ["Go."]


# ---- after a crash -------------------------------------------------------------------------------


def test_the_first_request_after_a_process_died_between_a_call_and_its_result_is_valid(tmp_path: Path) -> None:
    journal, ledger = tmp_path / "agent.db", tmp_path / "ledger"
    with serving([calls(call("", "pay", {"invoice": "A"}), call("", "pay", "[1"), call("x", "pay", {"invoice": "B"}))]) as server:
        kill_at("A in the handler", base_url=server.base_url, journal=journal, ledger=ledger)
    made = play([text("Hello.")], tools=[payment(ledger)], journal=f"sqlite:///{journal}", session_id="mortal", wire="streamed")
    played = asyncio.run(made)
    assert all_faults(played.bodies) == []
    results = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert [(m.failed, m.effect) for m in results] == [(True, "unknown"), (True, "none"), (True, "none")]
