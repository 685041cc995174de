"""A budget is never passed, however the calls come, and what was not spent is there again."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import Played, agent_playing, play, records_of
from interlock import AgentExtension, Deny, Outcome, RunContext, Suspended, ToolFailure, UsageError, tool
from interlock.extensions.budget import Budget, Spent
from interlock.extensions.hooks import CommandHook
from interlock.extensions.urlguard import UrlGuard
from interlock.messages import ToolMessage
from interlock.records import ExtensionNoted, HandlerStarted, RunEnded, ToolStepEnded
from interlock.records.redaction import with_texts
from interlock.testing import Step, call, calls, text
from reopened import journal_of, left_behind, reopened


class Till:
    """Pays. What was paid is in ``paid``; what may not be, it says itself. gate: what every payment waits for."""

    def __init__(self, *, on_crash: Any = "report") -> None:
        self.paid: list[float] = []
        self.gate: asyncio.Event | None = None
        self.inside = asyncio.Event()
        self.on_crash = on_crash

    def tool(self) -> Any:
        @tool(on_crash=self.on_crash)
        async def pay(amount: float) -> str:
            """Pay."""
            self.inside.set()
            for _ in range(3):  # so that the calls of a reply are in here together
                await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
            if amount == 13:
                raise ToolFailure("nobody pays 13", effect="none")
            if amount == 17:
                raise OSError("the line broke")
            self.paid.append(amount)
            return f"paid {amount}"

        return pay


def pays(*amounts: Any, name: str = "c") -> Step:
    return calls(*(call(f"{name}{n}", "pay", {"amount": amount}) for n, amount in enumerate(amounts)))


def told(played: Played) -> list[str]:
    return [str(m.content).splitlines()[0] for m in played.result.messages if isinstance(m, ToolMessage)]


def run(till: Till, steps: Sequence[Any], *extensions: AgentExtension, prompts: Sequence[str] = ("Go.",)) -> Played:
    return asyncio.run(play([*steps], tools=[till.tool()], extensions=extensions, prompts=prompts))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="interlock.tools")


def test_a_call_that_would_pass_the_number_of_calls_is_vetoed_with_the_reason_and_the_run_goes_on() -> None:
    till = Till()
    played = run(till, [pays(1), pays(2), pays(3), text("done")], Budget("pay", calls=2))
    assert till.paid == [1, 2]
    assert told(played)[2] == "Tool error (pay): the budget of pay per run is spent: 2 calls, and there were 2"
    last = [r for r in played.records if isinstance(r, ToolStepEnded)][-1]
    assert (last.code, last.effect, last.decided_by) == ("vetoed", "none", "Budget(pay, per run)")
    assert played.result.outcome is Outcome.COMPLETED


def test_parallel_calls_cannot_pass_together() -> None:
    till = Till()
    run(till, [pays(200, 200, 200, 100, 50), text("done")], Budget("pay", sum="amount", at_most=500))
    assert till.paid == [200, 200, 100]


def test_what_was_not_spent_is_given_back() -> None:
    class Never(UrlGuard):  # further in
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            if call.arguments["amount"] == 400:
                raise PermissionError("not 400")
            return await call_next()

    till = Till()
    steps = [pays(400), pays(13), pays("many"), pays(500), text("done")]
    played = run(till, steps, Budget("pay", sum="amount", at_most=500, calls=1), Never())
    assert till.paid == [500]
    assert [r.effect for r in played.records if isinstance(r, ToolStepEnded)] == ["none", "none", "none", "happened"]


def test_what_may_have_been_spent_was_spent() -> None:
    till = Till()
    played = run(till, [pays(17), pays(1), text("done")], Budget("pay", calls=1))
    assert till.paid == []
    assert "is spent" in told(played)[1]


def test_a_budget_per_run_begins_anew_and_one_per_session_does_not() -> None:
    steps = [pays(1), text("one"), pays(2), text("two")]
    till = Till()
    run(till, steps, Budget("pay", calls=1), prompts=["One.", "Two."])
    assert till.paid == [1, 2]
    till = Till()
    run(till, steps, Budget("pay", calls=1, per="session"), prompts=["One.", "Two."])
    assert till.paid == [1]


def test_two_sessions_have_a_budget_each() -> None:
    async def main() -> None:
        till, budget = Till(), Budget("pay", calls=1, per="session")
        for session_id in ("one", "two"):
            played = await play([pays(1), pays(2), text("done")], tools=[till.tool()], extensions=[budget], session_id=session_id)
            assert "is spent" in told(played)[1]
        assert till.paid == [1, 1]

    asyncio.run(main())


def test_a_budget_of_all_tools_counts_them_together_and_of_one_only_that_one() -> None:
    async def other() -> str:
        """Something else."""
        return "other"

    async def main(budget: Budget) -> list[str]:
        till = Till()
        steps = [calls(call("a", "other", {}), call("b", "pay", {"amount": 1})), text("done")]
        return told(await play(steps, tools=[till.tool(), other], extensions=[budget]))

    assert "is spent" in asyncio.run(main(Budget(calls=1)))[1]
    assert asyncio.run(main(Budget("pay", calls=1))) == ["other", "paid 1.0"]


@pytest.mark.parametrize("amount", [-1, True, "-1", "NaN", "Infinity", "x", None, [], 1e400, "1e999999999", "9" * 100])
def test_an_amount_that_cannot_be_added_up_is_a_veto(amount: Any) -> None:
    ran: list[Any] = []

    async def pay(amount: Any) -> str:
        """Pay anything."""
        ran.append(amount)
        return "paid"

    raw = '{"amount": 1e400}' if amount == 1e400 else {"amount": amount}
    steps = [calls(call("a", "pay", raw)), text("done")]
    played = asyncio.run(play(steps, tools=[pay], extensions=[Budget("pay", sum="amount", at_most=500)]))
    assert ran == []
    assert "Tool error (pay): " in told(played)[0]


def test_amounts_are_added_up_exactly() -> None:
    till = Till()
    run(till, [pays(0.1, 0.2), pays(0.1), text("done")], Budget("pay", sum="amount", at_most=0.3))
    assert till.paid == [0.1, 0.2]


def test_a_layer_outside_that_edits_the_amount_is_seen_and_one_inside_is_counted_as_it_ran() -> None:
    class Edit(UrlGuard):
        def __init__(self, priority: int, amount: int) -> None:
            self.priority, self.amount = priority, amount

        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            call.arguments["amount"] = self.amount
            return await call_next()

    till = Till()
    run(till, [pays(1), text("done")], Budget("pay", sum="amount", at_most=500), Edit(100, 501))
    assert till.paid == []
    run(till, [pays(1), pays(1), text("done")], Budget("pay", sum="amount", at_most=500), Edit(1000, 500))
    assert till.paid == [500]


def test_what_a_hook_makes_of_the_amount_is_what_the_budget_sees(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text('import sys; sys.stdin.read(); print(\'{"verdict": "edit", "arguments": {"amount": 501}}\')')
    till = Till()
    hook = CommandHook([sys.executable, "-I", "-S", str(tmp_path / "more.py")])
    run(till, [pays(1), text("done")], Budget("pay", sum="amount", at_most=500), hook)
    assert till.paid == []


def test_a_call_that_waits_for_a_person_keeps_its_share_and_gives_it_back_when_it_is_denied() -> None:
    class Ask(UrlGuard):  # further in
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if call.arguments["amount"] < 300 or context.answer else Suspended("so much?")

    async def main() -> None:
        till, budget = Till(), Budget("pay", sum="amount", at_most=500, per="session")
        steps = [pays(400, 450), pays(450, name="d"), text("done")]
        async with agent_playing(steps, tools=[till.tool()], extensions=[budget, Ask()]) as agent:
            waiting = await agent.run("Pay.")
            assert [question.arguments for question in waiting.questions] == ['{"amount":400}']  # no room for 450 beside it
            again = await agent.answer(waiting.questions[0].id, Deny("no"))
            assert again.outcome is Outcome.WAITING  # now there is
            result = await agent.answer(again.questions[0].id, True)
            assert (result.outcome, till.paid) == (Outcome.COMPLETED, [450])

    asyncio.run(main())


@pytest.mark.parametrize("on_crash", ["report", "rerun"])
def test_a_budget_survives_the_death_of_the_process(on_crash: Any) -> None:
    async def main() -> None:
        till = Till(on_crash=on_crash)
        till.gate = asyncio.Event()
        budget = Budget("pay", sum="amount", at_most=500, per="session")
        journal = await left_behind([pays(400)], at=till.inside, tools=[till.tool()], extensions=[budget])
        till.gate.set()
        async with reopened(journal, [pays(200, 100, name="d"), text("done")], tools=[till.tool()], extensions=[budget]) as agent:
            result = await agent.resume()
            assert result.outcome is Outcome.COMPLETED
            # Unknown is spent; what is started again is the same share, and not a second one.
            assert till.paid[-1:] == [100]
            assert len(await records_of(agent, HandlerStarted)) == (3 if on_crash == "rerun" else 2)

    asyncio.run(main())


def test_a_budget_that_is_made_smaller_still_counts_what_was_spent_before() -> None:
    async def main() -> None:
        till = Till()
        async with agent_playing(
            [pays(400), text("done")], tools=[till.tool()], extensions=[Budget("pay", sum="amount", at_most=500, per="session")]
        ) as agent:
            await agent.run("Pay.")
            rows = await agent.rows("s")
        journal = await journal_of(rows)
        smaller = Budget("pay", sum="amount", at_most=450, per="session")
        async with reopened(
            journal, [pays(100, name="d"), pays(50, name="e"), text("done")], tools=[till.tool()], extensions=[smaller]
        ) as agent:
            await agent.run("Pay more.")
            assert till.paid == [400, 50]

    asyncio.run(main())


def test_calls_that_a_tool_makes_count_too() -> None:
    till = Till()

    async def pay_all(context: RunContext) -> str:
        """Pay three times."""
        for _ in range(3):
            await context.call_tool("pay", {"amount": 1})
        return "all"

    steps = [calls(call("a", "pay_all")), text("done")]
    asyncio.run(play(steps, tools=[till.tool(), pay_all], extensions=[Budget("pay", calls=2)]))
    assert till.paid == [1, 1]


def test_a_redaction_that_takes_the_number_out_costs_the_whole_budget_and_nothing_fails() -> None:
    class NoDigits(AgentExtension):
        def redact(self, record: Any) -> Any:
            return with_texts(record, lambda text: "[gone]" if text.isdigit() else text)

    till = Till()
    budget = Budget("pay", sum="amount", at_most=500)
    steps = [pays("100"), pays(1), text("done")]  # the coercion makes a number of it: the note has it as text
    played = run(till, steps, budget, NoDigits())
    assert played.result.outcome is Outcome.COMPLETED
    noted = ExtensionNoted(extension=budget.name, version=1, data={"key": "k", "amount": "[gone]"})
    assert budget.fold(None, noted) == Spent(open={"k": Decimal(500)})


AMOUNTS = st.lists(st.lists(st.sampled_from([13, 17, 50, 100, 120, 300]), min_size=1, max_size=5), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(AMOUNTS, st.integers(0, 6), st.integers(0, 500))
def test_no_mixture_of_calls_passes_a_budget(batches: list[list[int]], most: int, at_most: int) -> None:
    till = Till()
    steps = [pays(*batch, name=f"{n}-") for n, batch in enumerate(batches)]
    played = run(till, [*steps, text("done")], Budget("pay", calls=most, sum="amount", at_most=at_most))
    spent = [
        a for r, a in zip((r for r in played.records if isinstance(r, ToolStepEnded)), _amounts(played), strict=True) if r.effect != "none"
    ]
    assert sum(spent) <= at_most
    assert len(spent) <= most
    memory: Any = None
    budget = Budget("pay", calls=most, sum="amount", at_most=at_most)
    for record in played.records:
        if not isinstance(record, RunEnded):
            memory = budget.fold(memory, record)
    assert memory == Spent(len(spent), Decimal(sum(spent)), {})


def _amounts(played: Played) -> list[float]:
    """What each settled call asked for, in the order of their settlement."""
    asked = {c.id: c.arguments for m in played.result.messages for c in getattr(m, "tool_calls", ())}
    return [json.loads(asked[r.message.tool_call_id])["amount"] for r in played.records if isinstance(r, ToolStepEnded)]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"sum": "amount"},
        {"at_most": 5},
        {"calls": -1},
        {"calls": True},
        {"calls": 1, "per": "day"},
        {"sum": "a", "at_most": float("nan")},
    ],
)
def test_what_is_no_budget_is_said_when_it_is_made(given: Any) -> None:
    with pytest.raises(UsageError, match="Budget"):
        Budget("pay", **given)
