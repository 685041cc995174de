"""G11: after a crash at any point, reopening settles every open call honestly, never starts a reported tool again, and goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from helpers import limits, records_of
from interlock import (
    AgentExtension,
    CommandRefused,
    Limits,
    NothingToResume,
    Outcome,
    RunContext,
    Tool,
    did_not_happen,
    extension,
    happened,
    tool,
    unknown,
)
from interlock.journal import MemoryJournal
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ReconcileEnded, ReconcileStarted, RunStarted, SessionOpened, ToolStepEnded
from interlock.testing import call, calls, text
from reopened import journal_of, left_behind, reopened


class Bank:
    """The world: it outlives every process. keys: the idempotency key of each start of ``pay``, in order."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.keys: list[str] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def pay(self, *, standing: asyncio.Event | None = None, after: bool = False, says: Any = None, **traits: Any) -> Tool:
        """The tool. standing: the first start stops there for ever, before the effect or ``after`` it. says: what reconcile answers."""

        async def reconcile(key: str, arguments: dict[str, Any]) -> Any:
            self.asked.append((key, arguments))
            return says() if callable(says) else says

        if says is not None:
            traits["reconcile"] = reconcile

        @tool(**traits)
        async def pay(invoice: str, context: RunContext) -> str:
            self.keys.append(context.idempotency_key())
            if standing is not None and not after:
                standing.set()
                await asyncio.Event().wait()
            self.paid.append(invoice)
            if standing is not None:
                standing.set()
                await asyncio.Event().wait()
            return f"paid {invoice}"

        return pay


PAY = calls(call("c1", "pay", {"invoice": "A"}))
PAY_TWO = calls(call("c1", "pay", {"invoice": "A"}), call("c2", "note", {"text": "B"}))


def note(written: list[str]) -> Callable[..., Any]:
    async def note(text: str) -> str:
        written.append(text)
        return "noted"

    return note


async def died_paying(bank: Bank, *, after: bool = False, steps: Any = PAY, more: Any = (), **traits: Any) -> MemoryJournal:
    standing = asyncio.Event()
    tools = [bank.pay(standing=standing, after=after, **traits), *more]
    return await left_behind([steps], at=standing, tools=tools)


async def settled(agent: Any) -> list[tuple[str, str, str]]:
    return [(record.code, record.effect, record.decided_by) for record in await records_of(agent, ToolStepEnded)]


def told(agent_result: Any) -> list[ToolMessage]:
    return [message for message in agent_result.messages if isinstance(message, ToolMessage)]


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
def test_a_started_call_is_unknown_is_said_so_and_is_never_started_again(after: bool) -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, after=after)
        paid = list(bank.paid)
        async with reopened(journal, [text("I shall check.")], tools=[bank.pay()]) as agent:
            result = await agent.resume()
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "I shall check.")
            assert await settled(agent) == [("interrupted", "unknown", "runtime")]
            assert "may have happened" in str(told(result)[0].content)
            assert len(await records_of(agent, HandlerStarted)) == 1
        assert bank.paid == paid

    asyncio.run(main())


def test_a_call_that_had_not_started_runs_once_when_the_session_goes_on() -> None:
    async def main() -> None:
        bank, standing = Bank(), asyncio.Event()

        @extension
        async def stand(context: RunContext, call: Any, call_next: Any) -> Any:
            standing.set()
            await asyncio.Event().wait()

        journal = await left_behind([PAY], at=standing, tools=[bank.pay()], extensions=[stand])
        # What was not waited for died with the process: here the response itself, so that the model is asked again.
        async with reopened(journal, [PAY, text("Paid.")], tools=[bank.pay()]) as agent:
            assert (await agent.resume()).text == "Paid."
        assert bank.paid == ["A"]

    asyncio.run(main())


def test_an_unstarted_sibling_runs_and_a_finished_one_is_not_repeated() -> None:
    async def main() -> None:
        bank, written, standing = Bank(), list[str](), asyncio.Event()
        steps = calls(call("c0", "note", {"text": "first"}), call("c1", "pay", {"invoice": "A"}), call("c2", "note", {"text": "last"}))
        tools = [bank.pay(standing=standing, parallel=False), tool(note(written), name="note", parallel=False)]
        journal = await left_behind([steps], at=standing, tools=tools)
        assert written == ["first"]
        async with reopened(journal, [text("Done.")], tools=[bank.pay(), note(written)]) as agent:
            plan = await agent.explain()
            assert [(call.call.name, call.what) for call in plan.run.calls] == [
                ("note", "finished"),
                ("pay", "unknown"),
                ("note", "not_started"),
            ]
            await agent.resume()
            assert [code for code, *_ in await settled(agent)] == ["ok", "interrupted", "ok"]
        assert (written, bank.paid) == (["first", "last"], [])

    asyncio.run(main())


def test_a_tool_that_may_rerun_is_started_again_under_the_same_idempotency_key() -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, on_crash="rerun")
        async with reopened(journal, [text("Paid.")], tools=[bank.pay(on_crash="rerun")]) as agent:
            (planned,) = (await agent.explain()).run.calls
            assert (planned.what, planned.attempt) == ("rerun", 2)
            assert (await agent.resume()).text == "Paid."
            assert [record.attempt for record in await records_of(agent, HandlerStarted)] == [0, 1]
        assert bank.paid == ["A"]
        assert len(bank.keys) == 2
        assert len(set(bank.keys)) == 1

    asyncio.run(main())


def test_a_tool_that_may_rerun_is_vetoed_on_its_way_in_and_still_nobody_says_that_nothing_happened() -> None:
    @extension
    async def veto(context: RunContext, call: Any, call_next: Any) -> Any:
        raise PermissionError("not any more")

    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, after=True, on_crash="rerun")
        async with reopened(journal, [text("Hm.")], tools=[bank.pay(on_crash="rerun")], extensions=[veto]) as agent:
            await agent.resume()
            assert await settled(agent) == [("vetoed", "unknown", "veto")]
        assert bank.paid == ["A"]

    asyncio.run(main())


def test_a_nested_call_has_the_same_idempotency_key_when_its_parent_is_started_again_and_another_call_another_one() -> None:
    keys: dict[str, list[str]] = {}

    @tool
    async def leaf(name: str, context: RunContext) -> str:
        keys.setdefault(name, []).append(context.idempotency_key())
        return "ok"

    def parent(order: list[str], standing: asyncio.Event | None = None) -> Tool:
        @tool(on_crash="rerun")
        async def parent(context: RunContext) -> str:
            for name in order:
                await context.call_tool("leaf", {"name": name})
            if standing is not None:
                standing.set()
                await asyncio.Event().wait()
            return "all done"

        return parent

    async def main() -> None:
        standing = asyncio.Event()
        journal = await left_behind([calls(call("p", "parent"))], at=standing, tools=[parent(["x", "y", "y"], standing), leaf])
        async with reopened(journal, [text("Done.")], tools=[parent(["y", "x", "y", "z"]), leaf]) as agent:
            assert (await agent.resume()).text == "Done."

    asyncio.run(main())
    assert keys["x"] == [keys["x"][0]] * 2
    assert sorted(keys["y"][:2]) == sorted(keys["y"][2:])
    assert len({key for several in keys.values() for key in several}) == 4  # x, y, the second y, and z


# ---- the tool is asked ------------------------------------------------------------------------------------


def test_a_tool_that_says_that_it_happened_gives_the_call_its_result_without_running_it() -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, after=True, says=happened({"receipt": 17}))
        async with reopened(journal, [text("Paid.")], tools=[bank.pay(says=happened({"receipt": 17}))]) as agent:
            assert [call.what for call in (await agent.explain()).run.calls] == ["reconcile"]
            result = await agent.resume()
            assert await settled(agent) == [("reconciled", "happened", "reconcile")]
            assert [(m.content, m.failed, m.effect) for m in told(result)] == [('{"receipt":17}', False, "happened")]
        assert bank.paid == ["A"]
        assert bank.asked == [(bank.keys[0], {"invoice": "A"})]

    asyncio.run(main())


@pytest.mark.parametrize("says", [did_not_happen(), did_not_happen], ids=["made", "the function itself"])
def test_a_reported_tool_that_did_not_happen_is_said_to_have_done_nothing_and_is_not_started_by_us(says: Any) -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=did_not_happen())
        tools = [bank.pay(says=lambda: says)]
        async with reopened(journal, [text("Shall I pay again?")], tools=tools) as agent:
            result = await agent.resume()
            assert await settled(agent) == [("did_not_happen", "none", "runtime")]
            assert "nothing happened" in str(told(result)[0].content)
            assert len(await records_of(agent, HandlerStarted)) == 1
        assert bank.paid == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("says", "paid", "starts"),
    [(happened("paid before"), [], 1), (did_not_happen(), ["A"], 2), (unknown("the bank is shut"), ["A"], 2)],
    ids=["happened", "did not happen", "unknown"],
)
def test_a_tool_that_may_rerun_is_asked_first_and_is_not_started_again_if_it_happened(says: Any, paid: list[str], starts: int) -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=says, on_crash="rerun")
        async with reopened(journal, [text("Done.")], tools=[bank.pay(says=says, on_crash="rerun")]) as agent:
            await agent.resume()
            assert len(await records_of(agent, HandlerStarted)) == starts
        assert bank.paid == paid
        assert len(bank.asked) == 1

    asyncio.run(main())


def broken() -> Any:
    raise ConnectionError("no route to the bank")


class Equal:
    """As an array is, whose ``==`` is no truth value, or a stand-in that is equal to anything."""

    def __init__(self, equal: bool | None) -> None:
        self.equal = equal

    def __eq__(self, other: object) -> bool:
        if self.equal is None:
            raise ValueError("the truth value of an array is ambiguous")
        return self.equal

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def refuses_to_be_compared() -> Any:
    return Equal(None)


def equal_to_anything() -> Any:
    return Equal(True)


def cancels_itself() -> Any:
    raise asyncio.CancelledError


def fails_in_its_own_way() -> Any:
    raise BaseException("not here")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (unknown("the ledger is down"), "the ledger is down"),
        (lambda: broken(), "no route to the bank"),
        ("yes", "its reconcile function returned str"),
        (happened, "its reconcile function returned"),
        (lambda: refuses_to_be_compared(), "its reconcile function returned Equal"),
        (lambda: equal_to_anything(), "its reconcile function returned Equal"),
        (lambda: cancels_itself(), "asking it failed: CancelledError"),
        (lambda: fails_in_its_own_way(), "asking it failed: not here"),
    ],
    ids=["unknown", "raises", "garbage", "happened without a result", "array", "equal to anything", "cancelled", "no Exception"],
)
def test_whatever_else_a_tool_says_the_call_is_unknown_with_the_reason(says: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=unknown())
        answer = says if says is happened else None
        tools = [bank.pay(says=(lambda: answer) if answer is not None else says)]
        with caplog.at_level(logging.WARNING, "interlock.driver"):
            async with reopened(journal, [text("I shall look.")], tools=tools) as agent:
                result = await agent.resume()
                assert await settled(agent) == [("interrupted", "unknown", "runtime")]
                assert why in str(told(result)[0].content)
        assert bank.paid == []
        assert any("pay" in record.getMessage() and why in record.getMessage() for record in caplog.records)

    asyncio.run(main())


def test_a_tool_that_does_not_say_in_time_leaves_the_call_unknown() -> None:
    async def silent(key: str, arguments: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=unknown())

        @tool(reconcile=silent)
        async def pay(invoice: str) -> str:
            raise AssertionError("never run")

        async with reopened(journal, [text("Hm.")], tools=[pay], limits=limits(reconcile_s=0.01)) as agent:
            result = await agent.resume()
            assert "did not say within 0.01 s" in str(told(result)[0].content)

    asyncio.run(main())


def test_a_tool_that_ignores_that_its_time_is_up_is_given_up() -> None:
    over = asyncio.Event()

    async def deaf(key: str, arguments: dict[str, Any]) -> Any:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        return happened("too late")

    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=unknown())

        @tool(reconcile=deaf)
        async def pay(invoice: str) -> str:
            raise AssertionError("never run")

        async with reopened(journal, [text("Hm.")], tools=[pay], limits=limits(reconcile_s=0.01, drain_s=0.01)) as agent:
            result = await asyncio.wait_for(agent.resume(), 5.0)
            assert "did not say within 0.01 s" in str(told(result)[0].content)
            over.set()

    asyncio.run(main())


def test_a_tool_that_exits_while_it_is_asked_ends_the_run_and_does_not_keep_the_session_from_going_on() -> None:
    def leaves() -> Any:
        raise SystemExit(3)

    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=unknown())
        async with reopened(journal, [text("I shall look.")], tools=[bank.pay(says=leaves)]) as agent:
            with pytest.raises(SystemExit):
                await agent.resume()
            assert await settled(agent) == [("interrupted", "unknown", "runtime")]
            assert (await agent.run("And now?")).text == "I shall look."

    asyncio.run(main())


def test_a_plain_function_may_reconcile_in_a_thread_of_its_own() -> None:
    def ask(key: str, arguments: dict[str, Any]) -> Any:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return happened(f"receipt of {arguments['invoice']}")

    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=unknown())

        @tool(reconcile=ask)
        async def pay(invoice: str) -> str:
            raise AssertionError("never run")

        async with reopened(journal, [text("Paid.")], tools=[pay]) as agent:
            assert told(await agent.resume())[0].content == "receipt of A"

    asyncio.run(main())


def test_a_process_that_dies_while_it_asks_leaves_a_question_that_is_asked_again() -> None:
    async def main() -> None:
        bank, asking = Bank(), asyncio.Event()
        first = await died_paying(bank, says=unknown())

        async def stands(key: str, arguments: dict[str, Any]) -> Any:
            asking.set()
            await asyncio.Event().wait()

        @tool(reconcile=stands)
        async def pay(invoice: str) -> str:
            raise AssertionError("never run")

        async with reopened(first, [], tools=[pay], limits=limits(drain_s=0.0)) as agent:
            resuming = asyncio.create_task(agent.resume())
            await asking.wait()
            second = await journal_of(await agent.session("s").records())
            resuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await resuming
        async with reopened(second, [text("Paid.")], tools=[bank.pay(says=happened("paid A"))]) as agent:
            assert (await agent.resume()).text == "Paid."
            assert len(await records_of(agent, ReconcileStarted)) == 2
            assert await records_of(agent, ReconcileEnded) == []
        assert bank.paid == []

    asyncio.run(main())


def test_a_run_that_is_cancelled_asks_nobody_and_says_unknown() -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, says=happened("paid A"))
        async with reopened(journal, tools=[bank.pay(says=happened("paid A"))]) as agent:
            await agent.cancel()
            assert await settled(agent) == [("interrupted", "unknown", "runtime")]
            with pytest.raises(NothingToResume):
                await agent.resume()  # and asks no model either
        assert bank.asked == []

    asyncio.run(main())


def test_a_run_that_is_cancelled_while_a_tool_is_asked_ends_without_waiting_for_it() -> None:
    async def main() -> None:
        bank, asking = Bank(), asyncio.Event()
        journal = await died_paying(bank, says=unknown())

        async def stands(key: str, arguments: dict[str, Any]) -> Any:
            asking.set()
            await asyncio.Event().wait()

        @tool(reconcile=stands)
        async def pay(invoice: str) -> str:
            raise AssertionError("never run")

        async with reopened(journal, tools=[pay]) as agent:
            resuming = asyncio.create_task(agent.resume())
            await asking.wait()
            await agent.cancel()
            assert (await resuming).outcome is Outcome.CANCELLED
            assert [effect for _, effect, _ in await settled(agent)] == ["unknown"]

    asyncio.run(main())


def test_a_new_run_asks_as_well_before_it_tells_the_model_what_was_left_open() -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank, after=True, says=happened("paid A"))
        async with reopened(journal, [text("Hello.")], tools=[bank.pay(says=happened("paid A"))]) as agent:
            result = await agent.run("And now?")
            assert (result.text, await settled(agent)) == ("Hello.", [("reconciled", "happened", "reconcile")])
            assert told(result)[0].content == "paid A"

    asyncio.run(main())


# ---- what a resume is refused for, and what it says -----------------------------------------------------------


def test_there_is_nothing_to_resume_or_to_explain_in_an_unknown_or_idle_session_and_no_request_is_made() -> None:
    async def main() -> None:
        async with reopened(MemoryJournal(), [text("Hello.")]) as agent:
            for _ in range(2):
                with pytest.raises(NothingToResume):
                    await agent.resume()
                with pytest.raises(NothingToResume):
                    await agent.explain()
                if not await records_of(agent, RunStarted):
                    await agent.run("Hi.")

    asyncio.run(main())


def test_a_session_whose_tool_is_missing_is_refused_by_name_and_nothing_is_recorded_or_asked() -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank)
        before = len(await journal.read("s"))
        async with reopened(journal, tools=[note([])]) as agent:
            assert (await agent.explain()).missing_tools == ("pay",)
            with pytest.raises(CommandRefused, match=r"\(pay\).*Create the agent with"):
                await agent.resume()
            rows = await agent.session("s").records()
            assert [type(row.record) for row in rows[before:]] == [SessionOpened]
        async with reopened(await journal_of(rows), [text("Hello.")], tools=[note([])]) as agent:
            assert (await agent.run("Never mind.")).text == "Hello."  # what a new run may always do

    asyncio.run(main())


def test_what_has_changed_since_the_run_was_begun_is_said_and_its_own_limits_hold(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank)

        @tool(timeout_s=5)
        async def pay(invoice: str, currency: str = "EUR") -> str:
            """Pay in any currency."""
            return "paid"

        bounds = Limits(requests=7, drain_s=0.5, backoff_s=0.0, backoff_max_s=0.0)
        async with reopened(
            journal, [text("Done.")], tools=[pay, note([])], limits=bounds, system_prompt="You are another.", extensions=[]
        ) as agent:
            plan = await agent.explain()
            said = "\n".join(plan.changes)
            with caplog.at_level(logging.WARNING, "interlock.driver"):
                await agent.resume()
        for expected in (
            "the system prompt is another one",
            "the description or the schema of the tool pay is another one",
            "the traits of the tool pay are others",
            "the tool note is new",
            "limits.requests was 25 and stays so (this agent has 7)",
            "limits.drain_s was 0.25 and is 0.5 now",
        ):
            assert expected in said
            assert expected in caplog.text
        assert "the model was" not in said

    asyncio.run(main())


def test_nothing_is_said_of_a_run_that_goes_on_as_it_was_begun(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank)
        async with reopened(journal, [text("Done.")], tools=[bank.pay()]) as agent:
            assert (await agent.explain()).changes == ()
            await agent.resume()
        assert caplog.text == ""

    asyncio.run(main())


def test_to_explain_writes_nothing_and_takes_nothing() -> None:
    async def main() -> None:
        bank = Bank()
        journal = await died_paying(bank)
        rows = await journal.read("s")
        async with reopened(journal, tools=[bank.pay()]) as agent:
            plan = await agent.explain()
            assert await journal.read("s") == rows
            assert [info.state for info in await journal.sessions()] == ["idle"]
            assert "unknown: it had started" in "\n".join(plan.lines())
            assert plan.run.next == "model"

    asyncio.run(main())


def test_a_tool_reads_the_epoch_of_its_writer_and_a_takeover_counts_it_on() -> None:
    epochs: list[int] = []

    def seen(standing: asyncio.Event | None = None) -> Tool:
        @tool(on_crash="rerun")
        async def look(context: RunContext) -> str:
            epochs.append(context.epoch)
            if standing is not None:
                standing.set()
                await asyncio.Event().wait()
            return "seen"

        return look

    async def main() -> None:
        standing = asyncio.Event()
        journal = await left_behind([calls(call("c", "look"))], at=standing, tools=[seen(standing)])
        async with reopened(journal, [text("Done.")], tools=[seen()]) as agent:
            await agent.resume()
            opened = [record.epoch for record in await records_of(agent, SessionOpened)]
        assert epochs == opened == [1, 2]

    asyncio.run(main())


class Waits(AgentExtension):
    """Lets the first call wait for ever before its handler."""

    def __init__(self) -> None:
        self.here = asyncio.Event()

    async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
        self.here.set()
        await asyncio.Event().wait()


def test_a_cancelled_call_leaves_no_open_work_and_no_request_is_made_for_it() -> None:
    async def main() -> None:
        bank, layer = Bank(), Waits()
        async with reopened(MemoryJournal(), [PAY], tools=[bank.pay()], extensions=[layer]) as agent:
            run = asyncio.create_task(agent.run("Go."))
            await layer.here.wait()
            await agent.cancel()
            assert (await run).outcome is Outcome.CANCELLED
            with pytest.raises(NothingToResume):
                await agent.resume()
        assert bank.paid == []

    asyncio.run(main())
