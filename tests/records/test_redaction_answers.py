"""Redacted answers and edits, and tools that are asked what became of a redacted call: the process that knows acts, any other does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from helpers import limits
from interlock import Agent, AgentExtension, AgentRunConfig, Edit, Outcome, RunContext, did_not_happen, happened, tool
from interlock.extensions.base import CallNext, Suspended, ToolInvocation
from interlock.journal import MemoryJournal
from interlock.journal.memory import MemoryStore
from interlock.machine import fold
from interlock.records import HandlerStarted, QuestionAnswered, Record, ToolStepEnded
from interlock.records.redaction import with_texts
from interlock.testing import ScriptedModel, call, calls, text
from records.secret import GONE, SECRET, Redact, holds_it

CONFIG = AgentRunConfig(session_id="s")


class World:
    """A store that outlives its processes, and what the tool and the layer of every process saw."""

    def __init__(self, *, layer: Callable[[Any, ToolInvocation], Any] | None = None, reconcile: bool = False, **traits: Any) -> None:
        self.ran: list[str] = []
        self.answers: list[Any] = []
        self.asked: list[tuple[str, Any]] = []
        self.hold: asyncio.Event | None = None
        """Set by a handler that has begun, which then never ends; None lets handlers run."""
        self.found: Any = None
        self._layer = layer
        self._reconciles = reconcile
        self._traits = traits
        self._store = MemoryStore()

    def agent(self, *steps: Any, redact: AgentExtension | None = None) -> Any:
        """One process. It has the rows that are stored now, and shares nothing else with the others."""
        seen = self
        store, self._store = self._store, MemoryStore()
        self._store.rows = {name: list(rows) for name, rows in store.rows.items()}
        self._store.payloads = {name: dict(data) for name, data in store.payloads.items()}

        async def reconcile(key: str, arguments: dict[str, Any]) -> Any:
            seen.asked.append((key, arguments))
            return seen.found

        @tool(**self._traits, reconcile=reconcile if self._reconciles else None)
        async def log_in(key: str) -> str:
            seen.ran.append(key)
            if seen.hold is not None:
                seen.hold.set()
                await asyncio.Event().wait()
            return f"in with {key}"

        class Ask(AgentExtension):
            async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
                if seen._layer is None:
                    return await call_next()
                seen.answers.append(context.answer)
                said = seen._layer(context, call)
                return said if said is not None else await call_next()

        journal = MemoryJournal(self._store)
        options: dict[str, Any] = {"tools": [log_in], "extensions": [Ask(), redact or Redact()], "limits": limits()}
        return Agent.create(ScriptedModel(list(steps)), config=CONFIG, journal=journal, **options)

    @property
    def records(self) -> list[Record]:
        return [row.record for row in self._store.rows["s"]]

    def settled(self) -> list[tuple[str, str, str]]:
        return [(r.message.tool_call_id, r.code, r.effect) for r in self.records if isinstance(r, ToolStepEnded)]


def ask(context: Any, call: ToolInvocation) -> Any:
    return Suspended("Really?") if context.answer is None else None


async def crashed(world: World, run: Any) -> None:
    """Drive ``run(agent)`` until a handler has begun, and lose the process there: only what is stored by then goes on."""
    world.hold = asyncio.Event()
    task = asyncio.create_task(run)
    await world.hold.wait()
    store, kept = world._store, {name: list(rows) for name, rows in world._store.rows.items()}
    world.hold = None
    task.cancel()
    await asyncio.wait({task})
    store.rows = kept


@pytest.mark.parametrize("there", [True, False], ids=["the same process", "another process"])
def test_an_edit_with_a_secret_runs_as_it_was_meant_or_not_at_all(there: bool) -> None:
    async def scenario() -> World:
        world = World(layer=ask)
        async with await world.agent(calls(call("a", "log_in", {"key": "harmless"})), *([text("Done.")] if there else [])) as agent:
            (question,) = (await agent.run("Go.")).questions
            (question,) = (await agent.answer(question.id, Edit({"key": SECRET}))).questions
            assert question.arguments == f'{{"key":"{GONE}"}}'
            if there:
                assert (await agent.answer(question.id)).text == "Done."
        if not there:
            async with await world.agent(text("Done.")) as agent:
                assert (await agent.answer(question.id)).text == "Done."
        return world

    world = asyncio.run(scenario())
    assert world.ran == ([SECRET] if there else [])
    assert world.settled() == [("a", "ok", "happened") if there else ("a", "arguments_redacted", "none")]
    assert not holds_it(world.records)


def test_a_person_elsewhere_may_give_whole_arguments_to_a_call_whose_own_are_gone() -> None:
    async def scenario() -> World:
        world = World(layer=ask)
        async with await world.agent(calls(call("a", "log_in", {"key": SECRET}))) as agent:
            (question,) = (await agent.run("Go.")).questions
        async with await world.agent() as agent:
            (question,) = (await agent.answer(question.id, Edit({"key": "harmless"}))).questions
        async with await world.agent(text("Done.")) as agent:  # and that is stored: a third process may run it
            assert (await agent.answer(question.id)).text == "Done."
        return world

    world = asyncio.run(scenario())
    assert world.ran == ["harmless"]
    assert world.settled() == [("a", "ok", "happened")]


@pytest.mark.parametrize("crash", [False, True], ids=["the same process", "another process"])
def test_an_answer_with_a_secret_reaches_the_layer_that_asked_or_nobody(crash: bool) -> None:
    """Two serial calls: the second is answered while the first one's handler runs on."""

    def ask_second(context: Any, call: ToolInvocation) -> Any:
        return Suspended("The code?") if context.answer is None and call.id == "b" else None

    async def scenario() -> World:
        world = World(layer=ask_second)
        two = calls(call("a", "log_in", {"key": "one"}), call("b", "log_in", {"key": "two"}))
        async with await world.agent(two, *([] if crash else [text("Done.")])) as agent:
            (question,) = (await agent.run("Go.")).questions
            if not crash:
                assert (await agent.answer(question.id, {"code": SECRET})).text == "Done."
            else:
                await crashed(world, agent.answer(question.id, {"code": SECRET}))
        if crash:
            async with await world.agent(text("Done.")) as agent:
                assert (await agent.resume()).text == "Done."
        return world

    world = asyncio.run(scenario())
    assert {"code": SECRET} in world.answers
    assert {"code": GONE} not in world.answers
    assert ("b", "interrupted", "unknown") in world.settled() if crash else ("b", "ok", "happened") in world.settled()
    assert [r.redacted for r in world.records if isinstance(r, QuestionAnswered)] == [True]
    assert not holds_it(world.records)
    assert world.ran == ["one", "two"]


def test_a_call_that_was_answered_with_a_secret_and_had_not_started_is_not_run_elsewhere() -> None:
    async def scenario() -> World:
        world = World(layer=lambda context, call: Suspended("The code?") if context.answer is None else None, parallel=False)
        both = calls(call("a", "log_in", {"key": "one"}), call("b", "log_in", {"key": "two"}))
        async with await world.agent(both) as agent:
            (question,) = (await agent.run("Go.")).questions
            # The answer is taken, and the process ends before the call enters its layers again.
            live = agent.live("s")
            await live.claim(lease_s=15.0, version="test")
            live.commit(QuestionAnswered(key=question.key, question_id=question.id, answer=SECRET))
            await live.log.release()
        async with await world.agent(text("Done.")) as agent:
            (question,) = (await agent.resume()).questions
            assert (await agent.answer(question.id)).text == "Done."
        return world

    world = asyncio.run(scenario())
    assert world.ran == ["two"]
    assert world.settled() == [("a", "arguments_redacted", "none"), ("b", "ok", "happened")]
    assert not holds_it(world.records)


@pytest.mark.parametrize("kind", ["report", "rerun"])
def test_a_tool_is_not_asked_about_arguments_that_were_not_the_ones_it_was_started_with(kind: Any) -> None:
    async def scenario() -> World:
        world = World(on_crash=kind, reconcile=True)
        world.found = did_not_happen()
        async with await world.agent(calls(call("a", "log_in", {"key": SECRET}))) as agent:
            await crashed(world, agent.run("Go."))
        async with await world.agent(text("Done.")) as agent:
            assert (await agent.resume()).text == "Done."
        return world

    world = asyncio.run(scenario())
    assert world.asked == []
    assert world.settled() == [("a", "interrupted", "unknown")]
    assert world.ran == [SECRET]
    assert [r.redacted for r in world.records if isinstance(r, HandlerStarted)] == [True]


class OnlyTheModels(AgentExtension):
    """Takes the secret out of what the model said, and not out of what a layer has made of it."""

    def redact(self, record: Record) -> Record:
        return record if isinstance(record, HandlerStarted) else with_texts(record, lambda text: text.replace("$", "?"))


@pytest.mark.parametrize("kind", ["report", "rerun"])
def test_a_redacted_call_that_did_not_happen_is_not_started_again_elsewhere(kind: Any) -> None:
    """What it was started with is stored, so the tool is asked; but what would enter the layers again is not what the model said."""

    def resolve(context: Any, call: ToolInvocation) -> None:
        call.arguments["key"] = "of " + call.arguments["key"].strip("$")

    async def scenario() -> World:
        world = World(layer=resolve, on_crash=kind, reconcile=True)
        world.found = did_not_happen()
        async with await world.agent(calls(call("a", "log_in", {"key": "$user"})), redact=OnlyTheModels()) as agent:
            await crashed(world, agent.run("Go."))
        async with await world.agent(text("Done."), redact=OnlyTheModels()) as agent:
            assert (await agent.resume()).text == "Done."
        return world

    world = asyncio.run(scenario())
    assert [arguments for _, arguments in world.asked] == [{"key": "of user"}]
    assert world.settled() == [("a", "did_not_happen", "none")]
    assert world.ran == ["of user"]


def test_what_a_tool_says_of_a_lost_call_is_redacted_before_it_is_cut_and_written() -> None:
    async def scenario() -> World:
        world = World(reconcile=True)
        world.found = happened("x" * 1000 + SECRET + "y" * 200_000)
        async with await world.agent(calls(call("a", "log_in", {"key": "harmless"}))) as agent:
            await crashed(world, agent.run("Go."))
        async with await world.agent(text("Done.")) as agent:
            assert (await agent.resume()).outcome is Outcome.COMPLETED
        return world

    world = asyncio.run(scenario())
    assert world.settled() == [("a", "reconciled", "happened")]
    (payload,) = world._store.payloads["s"].values()
    assert SECRET[:8].encode() not in payload
    assert GONE.encode() in payload
    assert not holds_it(world.records)
    assert fold(world.records) is not None
