"""The verbs of a layer, side by side: what the model is told, what the journal has, what the caller gets, and what becomes of the siblings.

Each call of ``pay`` has two siblings in its reply: ``look``, which runs beside it, and ``lock``, which has to wait for both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from helpers import agent_playing, records_of
from interlock import AgentExtension, Fatal, Outcome, RunResult, Stop, Suspended, ToolFailure, tool
from interlock.messages import ToolMessage
from interlock.messages.validity import is_valid
from interlock.records import HandlerStarted, RunEnded, ToolStepEnded, ToolStepSuspended
from interlock.testing import call, calls, text


@dataclass
class Came:
    """What came of one verb. told: the content and effect of each result, by call. ended: the record of each settlement, by call."""

    ran: list[str] = field(default_factory=list)
    result: RunResult | None = None
    error: BaseException | None = None
    told: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    started: int = 0
    records: list[Any] = field(default_factory=list)
    outer: Any = None

    @property
    def outcome(self) -> Outcome | None:
        return self.result.outcome if self.result is not None else None


def of_verb(verb: Callable[[Any], Any], *, answers: bool = True) -> Came:
    """Play the three calls with a layer that does ``verb`` for ``pay``, and one outside it that swallows whatever it can."""
    came = Came()

    class Verb(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            if call.name != "pay":
                return await call_next()
            while "look" not in came.ran:  # so that it is known how far the sibling has come
                await asyncio.sleep(0)
            return await verb(call_next) if asyncio.iscoroutinefunction(verb) else verb(call_next)

    class Outer(AgentExtension):
        priority = 50

        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            try:
                value = await call_next()
            except BaseException as error:
                came.outer = error if call.name == "pay" else came.outer
                raise
            came.outer = value if call.name == "pay" else came.outer
            return value

    async def pay(euros: int) -> str:
        """Pay."""
        came.ran.append("pay")
        return f"paid {euros}"

    async def look() -> str:
        """Look."""
        came.ran.append("look")
        if not answers:
            await asyncio.get_running_loop().create_future()
        return "seen"

    @tool(parallel=False)
    async def lock() -> str:
        """Lock up."""
        came.ran.append("lock")
        return "locked"

    async def main() -> None:
        steps = [calls(call("p", "pay", {"euros": 5}), call("l", "look"), call("k", "lock")), text("done")]
        asked = steps if getattr(verb, "goes_on", True) else steps[:1]
        async with agent_playing(asked, tools=[pay, look, lock], extensions=[Verb(), Outer()]) as agent:
            try:
                came.result = await agent.run("Go.")
            except Fatal as error:
                came.error = error
            came.records = await records_of(agent)
        names = {"p": "pay", "l": "look", "k": "lock"}
        for record in came.records:
            if isinstance(record, ToolStepEnded):
                came.ended[names[record.message.tool_call_id]] = (record.code, record.effect, record.decided_by)
                came.told[names[record.message.tool_call_id]] = (str(record.message.content), record.message.effect)
            came.started += isinstance(record, HandlerStarted)

    asyncio.run(main())
    if came.result is not None and came.outcome is not Outcome.WAITING:
        assert is_valid(came.result.messages)
        assert [m.tool_call_id for m in came.result.messages if isinstance(m, ToolMessage)] == ["p", "l", "k"]
    return came


def ends(verb: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """This verb ends the run, or halts it: the model is not asked again."""
    verb.goes_on = False  # type: ignore[attr-defined]
    return verb


NOT_RUN = "It was not executed; nothing happened."


def test_raising_before_delegating_is_a_veto(caplog: pytest.LogCaptureFixture) -> None:
    veto = PermissionError("not today")

    def verb(call_next: Any) -> Any:
        raise veto

    with caplog.at_level(logging.WARNING, logger="interlock.tools"):
        came = of_verb(verb)
    assert came.told["pay"] == (f"Tool error (pay): not today\n{NOT_RUN}", "none")
    assert came.ended["pay"] == ("vetoed", "none", "Verb")
    assert came.outer is veto
    assert came.outcome is Outcome.COMPLETED
    assert came.ran == ["look", "lock"]
    assert caplog.messages == ["Middleware Verb vetoed tool pay: not today"]


def test_returning_without_delegating_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    came = of_verb(lambda call_next: "it was paid already")
    assert came.told["pay"] == ("it was paid already", "none")
    assert came.ended["pay"] == ("answered", "none", "Verb")
    assert came.outcome is Outcome.COMPLETED
    assert came.ran == ["look", "lock"]
    assert caplog.messages == []


def test_returning_a_tool_failure_is_a_failed_answer_and_no_veto(caplog: pytest.LogCaptureFixture) -> None:
    came = of_verb(lambda call_next: ToolFailure("say whom"))
    assert came.told["pay"] == (f"Tool error (pay): say whom\n{NOT_RUN}", "none")
    assert came.ended["pay"] == ("failed", "none", "Verb")
    assert isinstance(came.outer, ToolFailure)
    assert came.outcome is Outcome.COMPLETED
    assert came.ran == ["look", "lock"]
    assert caplog.messages == []


def test_raising_a_tool_failure_before_delegating_is_a_veto_in_the_layers_words(caplog: pytest.LogCaptureFixture) -> None:
    def verb(call_next: Any) -> Any:
        raise ToolFailure("say whom")

    with caplog.at_level(logging.WARNING, logger="interlock.tools"):
        came = of_verb(verb)
    assert came.told["pay"] == (f"Tool error (pay): say whom\n{NOT_RUN}", "none")
    assert came.ended["pay"] == ("vetoed", "none", "Verb")
    assert caplog.messages == ["Middleware Verb vetoed tool pay: say whom"]


def test_raising_after_the_call_was_executed_is_a_failure_that_happened(caplog: pytest.LogCaptureFixture) -> None:
    async def verb(call_next: Any) -> Any:
        await call_next()
        raise ValueError("I did not like that")

    came = of_verb(verb)
    assert came.told["pay"][0].startswith("Tool error (pay): I did not like that\nThe tool itself had completed: its effect happened.")
    assert came.ended["pay"] == ("layer_error", "happened", "Verb")
    assert came.outcome is Outcome.COMPLETED
    assert sorted(came.ran) == ["lock", "look", "pay"]
    assert caplog.messages == []


def test_returning_suspended_asks_a_person_and_the_run_waits_once_its_siblings_are_done() -> None:
    came = of_verb(ends(lambda call_next: Suspended("pay 5 euros?")))
    assert came.outcome is Outcome.WAITING
    assert came.result is not None
    assert [(q.text, q.arguments) for q in came.result.questions] == [("pay 5 euros?", '{"euros":5}')]
    assert "pay" not in came.ended
    assert any(isinstance(record, ToolStepSuspended) for record in came.records)
    assert came.ended["look"] == ("ok", "happened", "handler")
    assert came.ran == ["look", "lock"]
    assert not any(isinstance(record, RunEnded) for record in came.records)


def test_returning_stop_ends_the_run_with_that_result_and_without_another_request() -> None:
    came = of_verb(ends(lambda call_next: Stop("enough for today")))
    assert came.outcome is Outcome.COMPLETED
    assert came.result is not None
    assert (came.result.text, came.result.reason, came.result.usage.requests) == ("enough for today", "stop", 1)
    assert came.told["pay"] == ("enough for today", "none")
    assert came.ended["pay"] == ("answered", "none", "Verb")
    assert came.ended["look"] == ("ok", "happened", "handler")
    assert came.ended["lock"][:2] == ("superseded", "none")
    assert NOT_RUN in came.told["lock"][0]
    assert came.ran == ["look"]


def test_stop_after_delegating_returns_the_layers_result_and_keeps_that_of_the_effect_paired() -> None:
    """A filter that ends the run after a tool: the caller gets the filter's result, and the journal a result for the call."""

    async def verb(call_next: Any) -> Any:
        return Stop(f"that was all: {await call_next()}")

    came = of_verb(ends(verb))
    assert came.result is not None
    assert (came.outcome, came.result.text) == (Outcome.COMPLETED, "that was all: paid 5")
    assert came.told["pay"] == ("that was all: paid 5", "happened")
    assert came.ended["pay"][1:] == ("happened", "Verb")


def test_raising_fatal_reaches_the_caller_and_cancels_the_siblings() -> None:
    fatal = Fatal("pull the plug")

    def verb(call_next: Any) -> Any:
        raise fatal

    came = of_verb(ends(verb), answers=False)
    assert came.error is fatal
    assert came.ended["pay"][1:] == ("none", "Verb")
    assert came.ended["look"][:2] == ("cancelled", "unknown")
    assert came.ended["lock"][:2] == ("cancelled", "none")
    assert came.ran == ["look"]
    ended = next(record for record in came.records if isinstance(record, RunEnded))
    assert (ended.outcome, ended.reason) == (Outcome.CANCELLED, "fatal")


@pytest.mark.parametrize("verb", [Suspended("may it?"), Stop("enough"), Fatal("no")], ids=lambda verb: type(verb).__name__)
def test_no_outer_layer_can_swallow_what_asks_stops_or_aborts(verb: Any) -> None:
    class Swallows(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            try:
                await call_next()
            except BaseException:
                return "all is well"
            return "all is well"

    class Verb(AgentExtension):
        priority = 200

        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            if isinstance(verb, Fatal):
                raise verb
            return verb

    async def pay() -> str:
        """Pay."""
        raise AssertionError("it ran")

    async def main() -> Any:
        async with agent_playing([calls(call("p", "pay"))], tools=[pay], extensions=[Swallows(), Verb()]) as agent:
            return await agent.run("Go.")

    if isinstance(verb, Fatal):
        with pytest.raises(Fatal) as raised:
            asyncio.run(main())
        assert raised.value is verb
    else:
        result = asyncio.run(main())
        assert result.outcome is (Outcome.WAITING if isinstance(verb, Suspended) else Outcome.COMPLETED)
        assert result.text == ("" if isinstance(verb, Suspended) else "enough")
