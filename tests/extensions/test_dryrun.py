"""In a dry run every guard is asked, and no tool of any kind is executed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from field.test_veto import writers
from helpers import play
from interlock import Agent, AgentExtension, AgentRunConfig, Allow, Outcome, tool
from interlock.errors import CommandRefused
from interlock.extensions.dryrun import DryRun
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, text


def fetch(url: str, times: int = 1) -> str:
    """Fetch a page."""
    raise AssertionError("it ran")


@pytest.mark.parametrize("kind", sorted(writers(Path())))
def test_no_kind_of_tool_is_executed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "effect"
    made = writers(path)
    steps = [calls(call("a", kind)), text("done")]
    played = asyncio.run(play(steps, tools=list(made.values()), extensions=[DryRun()]))
    assert not path.exists()
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]
    ended = next(record for record in played.records if isinstance(record, ToolStepEnded))
    assert (ended.code, ended.effect, ended.decided_by) == ("answered", "none", "DryRun")
    assert "was not executed, and nothing was done" in str(ended.message.content)
    assert played.result.outcome is Outcome.COMPLETED


def test_every_guard_is_asked_before_it_and_strict_validation_too() -> None:
    seen: list[Any] = []

    class Look(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            try:
                return await call_next()
            finally:
                seen.append(dict(call.arguments))

    asked = [
        call("a", "fetch", {"url": "http://169.254.169.254/latest"}),
        call("b", "fetch", {"url": "https://1.1.1.1", "times": "3"}),
        call("c", "fetch", {"url": "https://1.1.1.1", "times": "often"}),
    ]
    played = asyncio.run(play([calls(*asked), text("done")], tools=[fetch], extensions=[DryRun(), Look()]))
    content = {m.tool_call_id: str(m.content) for m in played.result.messages if isinstance(m, ToolMessage)}
    assert "SSRF violation" in content["a"]
    assert content["b"].startswith("Dry run: fetch was not executed, and nothing was done. It would have been called with {")
    assert '"times":3' in content["b"]  # as the coercion made it
    assert "Tool error (fetch)" in content["c"]
    assert "times" in content["c"]
    assert len(seen) == 3


def test_it_lies_further_in_than_every_other_layer() -> None:
    async def main() -> tuple[str, ...]:
        async with await Agent.create(ScriptedModel([]), extensions=[DryRun()]) as agent:
            return agent.onion()

    assert asyncio.run(main())[-2:] == ("UrlGuard", "DryRun")


def test_what_a_dry_run_left_open_is_not_executed_by_an_agent_that_is_none(tmp_path: Path) -> None:
    """Neither a yes to its question nor a resume makes a dry run a real one."""
    done: list[int] = []

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        done.append(amount)
        return "paid"

    def desk(*steps: Any, extensions: Any = ()) -> Any:
        config = AgentRunConfig(session_id="s")
        journal = f"sqlite:///{tmp_path}/j.db"
        return Agent.create(ScriptedModel(list(steps)), config=config, tools=[pay], extensions=extensions, journal=journal)

    async def main() -> None:
        async with await desk(calls(call("a", "pay", {"amount": 5})), extensions=[DryRun()]) as agent:
            (question,) = (await agent.run("Pay.")).questions
        async with await desk() as agent:
            with pytest.raises(CommandRefused, match="begun as a dry run"):
                await agent.answer(question.id, Allow())
            with pytest.raises(CommandRefused, match="begun as a dry run"):
                await agent.resume()
            plan = await agent.explain()
            assert plan.lost_dry_run
            assert "dry run" in list(plan.lines())[-1]
        async with await desk(text("Nothing was paid."), extensions=[DryRun()]) as agent:
            assert (await agent.answer(question.id, Allow())).text == "Nothing was paid."
        assert done == []
        async with await desk(calls(call("b", "pay", {"amount": 6})), text("Paid.")) as agent:  # a run of its own is a real one
            (question,) = (await agent.run("Now really.")).questions
            assert (await agent.answer(question.id, Allow())).text == "Paid."
        assert done == [6]

    asyncio.run(main())
