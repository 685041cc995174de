"""A person's answer: bound to the exact arguments, taken once, from any process, in time, and of any kind."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers import agent_playing, limits, records_of
from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    Allow,
    CommandRefused,
    Deny,
    Edit,
    InterlockError,
    Outcome,
    RunContext,
    Suspended,
    UsageError,
    extension,
    tool,
)
from interlock.events import RunFinished, ToolStarted, ToolSuspended
from interlock.journal import MemoryJournal
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, QuestionAnswered, ToolStepEnded, ToolStepSuspended
from interlock.testing import ScriptedModel, call, calls, text
from reopened import journal_of, reopened


class Till:
    def __init__(self) -> None:
        self.paid: list[int] = []

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        return f"paid {amount}"


class Approve(AgentExtension):
    """Asks before each payment; what it was asked about is what it goes by."""

    def __init__(self, expires_s: float | None = None) -> None:
        self.expires_s = expires_s
        self.answers: list[Any] = []

    async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
        if call.name != "pay":
            return await call_next()
        self.answers.append(context.answer)
        return await call_next() if context.answer else Suspended(f"Pay {call.arguments['amount']}?", expires_s=self.expires_s)


PAY = calls(call("c1", "pay", {"amount": 5}))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def asked(journal: MemoryJournal, till: Till, *, layers: Any = None, steps: Any = PAY, **options: Any) -> Any:
    """A run that waits: the question, as the process that asked had it. That process is gone afterwards."""
    async with reopened(MemoryJournal(), [steps], tools=[till.pay], extensions=layers or [Approve()], **options) as agent:
        waiting = await agent.run("Go.")
        assert waiting.outcome is Outcome.WAITING
        rows = await agent.session("s").records()
    log = journal.session("s")
    for row in rows:
        log.append(row.record, at=row.at)
    await log.durable()
    (question,) = waiting.questions
    return question


def told(result: Any) -> list[ToolMessage]:
    return [message for message in result.messages if isinstance(message, ToolMessage)]


def test_a_question_shows_the_exact_arguments_and_not_only_what_the_model_wrote() -> None:
    @extension(priority=50)
    async def in_cents(context: RunContext, call: Any, call_next: Any) -> Any:
        call.arguments["amount"] *= 100
        return await call_next()

    async def main() -> None:
        till = Till()
        question = await asked(MemoryJournal(), till, layers=[in_cents, Approve()])
        assert (question.arguments, question.call.arguments) == ('{"amount":500}', '{"amount": 5}')
        assert question.text == "Pay 500?"
        assert till.paid == []

    asyncio.run(main())


@pytest.mark.parametrize("answer", [True, Allow()], ids=["true", "Allow"])
def test_allowed_it_runs_once_and_a_second_answer_is_refused(answer: Any) -> None:
    async def main() -> None:
        journal, till, layer = MemoryJournal(), Till(), Approve()
        question = await asked(journal, till)
        async with reopened(journal, [text("Paid.")], tools=[till.pay], extensions=[layer]) as agent:
            assert (await agent.answer(question.id, answer)).text == "Paid."
            with pytest.raises(CommandRefused, match=question.id):
                await agent.answer(question.id, Deny())
        assert (till.paid, layer.answers) == ([5], [True])

    asyncio.run(main())


def test_denied_it_is_settled_without_entering_a_layer_and_the_model_hears_the_reason() -> None:
    async def main() -> None:
        journal, till, layer = MemoryJournal(), Till(), Approve()
        question = await asked(journal, till)
        async with reopened(journal, [text("As you wish.")], tools=[till.pay], extensions=[layer]) as agent:
            result = await agent.answer(question.id, Deny("not on a Monday"))
            assert result.text == "As you wish."
            (ended,) = await records_of(agent, ToolStepEnded)
            assert (ended.code, ended.effect, ended.decided_by) == ("denied", "none", "runtime")
            assert "denied: not on a Monday" in str(told(result)[0].content)
        assert (till.paid, layer.answers) == ([], [])

    asyncio.run(main())


def test_edited_arguments_are_asked_about_anew_and_the_old_question_is_closed() -> None:
    async def main() -> None:
        journal, till, layer = MemoryJournal(), Till(), Approve()
        question = await asked(journal, till)
        async with reopened(journal, [text("Paid less.")], tools=[till.pay], extensions=[layer]) as agent:
            again = await agent.answer(question.id, Edit({"amount": 3}))
            assert again.outcome is Outcome.WAITING
            (second,) = again.questions
            assert (second.text, second.arguments) == ("Pay 3?", '{"amount":3}')
            assert second.id != question.id
            with pytest.raises(CommandRefused):
                await agent.answer(question.id)
            async with aclosing(agent.session(again.session_id).stream_answer(second.id)) as events:
                shown = [event async for event in events]
            assert next(event.edited for event in shown if isinstance(event, ToolStarted)) == '{"amount":3}'
            assert next(event.result.text for event in shown if isinstance(event, RunFinished)) == "Paid less."
            (started,) = await records_of(agent, HandlerStarted)
            assert started.arguments == '{"amount":3}'
        assert (till.paid, layer.answers) == ([3], [None, True])

    asyncio.run(main())


def test_edited_arguments_are_validated_like_any_others() -> None:
    async def main() -> None:
        journal, till = MemoryJournal(), Till()
        question = await asked(journal, till)
        async with reopened(journal, [text("Hm.")], tools=[till.pay], extensions=[Approve()]) as agent:
            (second,) = (await agent.answer(question.id, Edit({"amount": "many"}))).questions
            result = await agent.answer(second.id)
            assert [record.code for record in await records_of(agent, ToolStepEnded)] == ["invalid_arguments"]
            assert result.text == "Hm."
        assert till.paid == []

    asyncio.run(main())


def test_an_answer_is_void_for_any_other_arguments_than_those_that_were_asked_about() -> None:
    """The layer further out is another one in the process that takes the answer: what runs would not be what was approved."""

    def times(factor: int) -> Any:
        @extension(priority=50)
        async def times(context: RunContext, call: Any, call_next: Any) -> Any:
            call.arguments["amount"] *= factor
            return await call_next()

        return times

    async def main() -> None:
        journal, till, layer = MemoryJournal(), Till(), Approve()
        question = await asked(journal, till, layers=[times(1), Approve()])
        async with reopened(journal, tools=[till.pay], extensions=[times(1000), layer]) as agent:
            result = await agent.answer(question.id, Allow())
            assert result.outcome is Outcome.WAITING
            assert [q.text for q in result.questions] == ["Pay 5000?"]
        assert (till.paid, layer.answers) == ([], [None])

    asyncio.run(main())


def test_a_layer_that_asks_again_although_it_was_answered_is_told_what_it_does_wrong(caplog: pytest.LogCaptureFixture) -> None:
    @extension
    async def reads_too_early(context: RunContext, call: Any, call_next: Any) -> Any:
        answer = context.answer
        call.arguments["amount"] += 1
        return await call_next() if answer else Suspended("Sure?")

    async def main() -> None:
        till = Till()
        async with agent_playing([PAY], tools=[till.pay], extensions=[reads_too_early]) as agent:
            (question,) = (await agent.run("Go.")).questions
            (again,) = (await agent.answer(question.id)).questions
            assert again.id != question.id
        assert till.paid == []

    with caplog.at_level(logging.WARNING, "interlock.driver"):
        asyncio.run(main())
    assert "after its own edits" in caplog.text


def test_two_layers_may_ask_one_after_the_other_and_each_answer_is_for_its_own_question() -> None:
    """Both ask about the same arguments: the second question is another one all the same, which the first answer does not open."""

    class Second(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if context.answer == "second" else Suspended("And the auditor?")

    class First(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if context.answer else Suspended("The owner?")

    async def main() -> None:
        till = Till()
        async with agent_playing([PAY, text("Paid.")], tools=[till.pay], extensions=[First(), Second()]) as agent:
            (one,) = (await agent.run("Go.")).questions
            (two,) = (await agent.answer(one.id, "first")).questions
            assert (one.text, two.text) == ("The owner?", "And the auditor?")
            with pytest.raises(CommandRefused):
                await agent.answer(one.id, "second")
            assert (await agent.answer(two.id, "second")).text == "Paid."
        assert till.paid == [5]

    asyncio.run(main())


def test_edited_arguments_have_an_idempotency_key_of_their_own_so_nobody_takes_them_for_the_first_ones() -> None:
    async def main() -> None:
        keys: list[tuple[str, int]] = []
        standing = asyncio.Event()

        def pay_with(stand: bool) -> Any:
            @tool(on_crash="rerun")
            async def pay(amount: int, context: RunContext) -> str:
                keys.append((context.idempotency_key(), amount))
                if stand:
                    standing.set()
                    await asyncio.Event().wait()
                return "paid"

            return pay

        async with reopened(MemoryJournal(), [PAY], tools=[pay_with(stand=True)], extensions=[Approve()]) as agent:
            (question,) = (await agent.run("Go.")).questions
            answering = asyncio.create_task(agent.answer(question.id))
            await standing.wait()
            left = await journal_of(await agent.session("s").records())
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering

        @extension
        async def always_asks(context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if call.arguments["amount"] == 9 else Suspended("Really?")

        async with reopened(left, [text("Paid.")], tools=[pay_with(stand=False)], extensions=[always_asks]) as agent:
            (question,) = (await agent.resume()).questions
            await agent.answer(question.id, Edit({"amount": 9}))
        assert [amount for _, amount in keys] == [5, 9]
        assert len({key for key, _ in keys}) == 2

    asyncio.run(main())


# ---- in time ------------------------------------------------------------------------------------------------


def test_a_question_that_has_expired_takes_no_answer_and_is_a_denial_when_the_session_goes_on() -> None:
    async def main() -> None:
        journal, till, clock = MemoryJournal(), Till(), Clock()
        question = await asked(journal, till, layers=[Approve(expires_s=3600)], clock=clock)
        assert question.expires_at == clock.now + 3600
        clock.now += 3600
        async with reopened(journal, [text("Nobody was there.")], tools=[till.pay], extensions=[Approve()], clock=clock) as agent:
            with pytest.raises(CommandRefused, match="expired"):
                await agent.answer(question.id, Allow())
            assert await records_of(agent, QuestionAnswered) == []
            assert [call.what for call in (await agent.explain()).run.calls] == ["refused"]
            result = await agent.resume()
            assert result.text == "Nobody was there."
            (ended,) = await records_of(agent, ToolStepEnded)
            assert (ended.code, ended.effect) == ("expired", "none")
            assert "nobody answered in time" in str(told(result)[0].content)
        assert till.paid == []

    asyncio.run(main())


def test_an_answer_in_the_last_second_is_in_time_and_one_question_expires_while_another_is_answered() -> None:
    async def main() -> None:
        till, clock = Till(), Clock()
        steps = calls(call("c1", "pay", {"amount": 1}), call("c2", "pay", {"amount": 2}))

        @extension
        async def ask(context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if context.answer else Suspended("Pay?", expires_s=60 if call.arguments["amount"] == 1 else 600)

        async with agent_playing([steps, text("Done.")], tools=[till.pay], extensions=[ask], clock=clock) as agent:
            one, two = (await agent.run("Go.")).questions
            clock.now += 599.9
            with pytest.raises(CommandRefused, match="expired"):
                await agent.answer(one.id)
            assert (await agent.answer(two.id)).text == "Done."
            assert [(r.code, r.effect) for r in await records_of(agent, ToolStepEnded)] == [("expired", "none"), ("ok", "happened")]
        assert till.paid == [2]

    asyncio.run(main())


# ---- from anywhere, once --------------------------------------------------------------------------------------


def test_an_answer_is_taken_while_other_calls_still_run_and_leaving_it_does_not_end_the_run() -> None:
    async def main() -> None:
        till, gate, waiting = Till(), asyncio.Event(), asyncio.Event()

        @tool
        async def slow() -> str:
            await gate.wait()
            return "slow done"

        async def watch() -> Any:
            async for event in agent.stream("Go."):
                if isinstance(event, ToolSuspended):
                    ids.append(event.question_id)
                    waiting.set()
            return event.result

        ids: list[str] = []
        steps = calls(call("c1", "pay", {"amount": 5}), call("c2", "slow"))
        async with agent_playing([steps, text("Both.")], tools=[till.pay, slow], extensions=[Approve()]) as agent:
            run = asyncio.create_task(watch())
            await waiting.wait()
            impatient = asyncio.create_task(agent.answer(ids[0], Allow()))
            while not till.paid:
                await asyncio.sleep(0)
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            with pytest.raises(CommandRefused, match="answered already"):
                await agent.answer(ids[0], Allow())
            gate.set()
            assert (await run).text == "Both."
        assert till.paid == [5]

    asyncio.run(main())


def test_who_answers_in_mid_run_gets_what_the_run_comes_to() -> None:
    async def main() -> None:
        till, gate, ids = Till(), asyncio.Event(), asyncio.Queue[str]()

        @tool
        async def slow() -> str:
            await gate.wait()
            return "slow done"

        async def watch() -> Any:
            async for event in agent.stream("Go."):
                if isinstance(event, ToolSuspended):
                    ids.put_nowait(event.question_id)
            return event.result

        steps = calls(call("c1", "pay", {"amount": 5}), call("c2", "slow"))
        async with agent_playing([steps, text("Both.")], tools=[till.pay, slow], extensions=[Approve()]) as agent:
            run = asyncio.create_task(watch())
            answering = asyncio.create_task(agent.answer(await ids.get(), Allow()))
            while not till.paid:
                await asyncio.sleep(0)
            gate.set()
            assert await answering == await run

    asyncio.run(main())


def test_of_two_agents_that_answer_at_once_exactly_one_is_heard(tmp_path: Path) -> None:
    async def main() -> None:
        till = Till()
        spec, config = f"sqlite:///{tmp_path / 'agent.db'}", AgentRunConfig(session_id="s")

        async def agent(*steps: Any) -> Agent:
            return await Agent.create(
                ScriptedModel(list(steps)), config=config, tools=[till.pay], extensions=[Approve()], journal=spec, limits=limits()
            )

        async with await agent(PAY) as first:
            (question,) = (await first.run("Go.")).questions
        async with await agent(text("Paid.")) as second, await agent(text("Paid.")) as third:
            said = await asyncio.gather(*(a.answer(question.id) for a in (second, third)), return_exceptions=True)
            assert sum(isinstance(result, InterlockError) for result in said) == 1, said
            assert [result.text for result in said if not isinstance(result, BaseException)] == ["Paid."]
            answered = [row for row in await second.session("s").records() if isinstance(row.record, QuestionAnswered)]
            assert len(answered) == 1
        assert till.paid == [5]

    asyncio.run(main())


def test_an_approval_survives_a_crash_of_a_tool_that_may_rerun() -> None:
    """It is bound to the call and its arguments, so the second start needs no second answer, and other arguments do."""

    async def main() -> None:
        starts: list[int] = []
        standing = asyncio.Event()

        def pay_with(stand: bool) -> Any:
            @tool(on_crash="rerun")
            async def pay(amount: int) -> str:
                starts.append(amount)
                if stand:
                    standing.set()
                    await asyncio.Event().wait()
                return "paid"

            return pay

        async with reopened(MemoryJournal(), [PAY], tools=[pay_with(stand=True)], extensions=[Approve()]) as agent:
            (question,) = (await agent.run("Go.")).questions
            answering = asyncio.create_task(agent.answer(question.id))
            await standing.wait()
            left = await journal_of(await agent.session("s").records())
            more = await journal_of(await agent.session("s").records())
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering

        layer = Approve()
        async with reopened(left, [text("Paid.")], tools=[pay_with(stand=False)], extensions=[layer]) as agent:
            assert (await agent.resume()).text == "Paid."
        assert (starts, layer.answers) == ([5, 5], [True])

        @extension(priority=50)
        async def doubled(context: RunContext, call: Any, call_next: Any) -> Any:
            call.arguments["amount"] *= 2
            return await call_next()

        async with reopened(more, [text("No.")], tools=[pay_with(stand=False)], extensions=[doubled, Approve()]) as agent:
            (question,) = (await agent.resume()).questions
            assert question.text == "Pay 10?"
            await agent.answer(question.id, Deny("no"))
            assert [(r.code, r.effect) for r in await records_of(agent, ToolStepEnded)] == [("denied", "unknown")]
        assert starts == [5, 5]

    asyncio.run(main())


def test_siblings_that_need_no_answer_finish_before_the_run_waits_serial_ones_too() -> None:
    async def main() -> None:
        till, done = Till(), list[str]()

        @tool
        async def free(name: str) -> str:
            done.append(name)
            return name

        @tool(parallel=False)
        async def serial() -> str:
            done.append("serial")
            return "serial"

        steps = calls(call("c1", "pay", {"amount": 5}), call("c2", "free", {"name": "x"}), call("c3", "serial"))
        async with agent_playing([steps, text("All.")], tools=[till.pay, free, serial], extensions=[Approve()]) as agent:
            waiting = await agent.run("Go.")
            (question,) = waiting.questions
            before = list(done)
            assert (await agent.answer(question.id)).text == "All."
        assert before == done == ["x", "serial"]
        assert till.paid == [5]

    asyncio.run(main())


# ---- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (object(), "JSON-able"),
        (Allow, "make an instance"),
        (Deny, "make an instance"),
        (Deny(5), "text is needed"),  # type: ignore[arg-type]
        (Edit("{}"), "a dict is needed"),  # type: ignore[arg-type]
        (Edit({"amount": object()}), "JSON-able"),
    ],
    ids=["object", "Allow class", "Deny class", "Deny number", "Edit text", "Edit object"],
)
def test_what_is_no_answer_is_refused_and_the_question_stays_open(answer: Any, message: str) -> None:
    async def main() -> None:
        till = Till()
        async with agent_playing([PAY, text("Paid.")], tools=[till.pay], extensions=[Approve()]) as agent:
            (question,) = (await agent.run("Go.")).questions
            with pytest.raises(UsageError, match=message):
                await agent.answer(question.id, answer)
            assert (await agent.answer(question.id)).text == "Paid."

    asyncio.run(main())


def test_an_answer_may_hold_any_text_and_reads_back_as_plain_data() -> None:
    async def main() -> None:
        till, seen = Till(), list[Any]()

        @extension
        async def ask(context: RunContext, call: Any, call_next: Any) -> Any:
            seen.append(context.answer)
            return await call_next() if context.answer is not None else Suspended("Pay \ud800 this?\0")

        async with agent_playing([PAY, text("Paid.")], tools=[till.pay], extensions=[ask]) as agent:
            (question,) = (await agent.run("Go.")).questions
            await agent.answer(question.id, {"note": "a\ud800b", "by": ("me", 1)})
            (suspended,) = await records_of(agent, ToolStepSuspended)
            assert msgspec.json.decode(suspended.arguments) == {"amount": 5}
        assert seen[0] is None
        assert seen[1]["by"] == ["me", 1]

    asyncio.run(main())


@pytest.mark.parametrize(
    "seconds",
    [float("nan"), float("inf"), float("-inf"), 10**400, "60", True],
    ids=["nan", "inf", "minus inf", "huge", "text", "bool"],
)
def test_a_time_that_cannot_be_stored_is_a_veto_of_the_layer_that_asks_and_never_a_question_without_end(seconds: Any) -> None:
    async def main() -> None:
        till = Till()
        steps = [calls(call("c1", "pay", {"amount": 5})), text("Then not.")]
        async with agent_playing(steps, tools=[till.pay], extensions=[Approve(seconds)]) as agent:
            result = await agent.run("Pay.")
            assert result.text == "Then not."
            (ended,) = await records_of(agent, ToolStepEnded)
            assert (ended.code, ended.effect, ended.decided_by) == ("vetoed", "none", "Approve")
            assert "a finite number of seconds" in str(ended.message.content)
        assert till.paid == []

    asyncio.run(main())


def test_an_answer_that_is_nested_without_end_is_refused_and_the_question_stays_open() -> None:
    async def main() -> None:
        till = Till()
        steps = [calls(call("c1", "pay", {"amount": 5})), text("Paid.")]
        async with agent_playing(steps, tools=[till.pay], extensions=[Approve()]) as agent:
            (question,) = (await agent.run("Pay.")).questions
            endless: list[Any] = []
            endless.append(endless)
            with pytest.raises(UsageError, match="JSON-able"):
                await agent.answer(question.id, endless)
            assert (await agent.answer(question.id, Allow())).text == "Paid."

    asyncio.run(main())


def test_an_answer_to_a_call_that_was_settled_meanwhile_is_told_that_it_may_have_had_none() -> None:
    async def main() -> None:
        till, waiting, gate = Till(), asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            await gate.wait()
            return "slow"

        async def watch() -> Any:
            async for event in agent.stream("Go."):
                if isinstance(event, ToolSuspended):
                    ids.append(event.question_id)
                    waiting.set()
            return event.result

        ids: list[str] = []
        steps = [calls(call("c1", "pay", {"amount": 5}), call("c2", "slow")), text("Then not.")]
        async with agent_playing(steps, tools=[till.pay, slow], extensions=[Approve()]) as agent:
            run = asyncio.create_task(watch())
            await waiting.wait()
            await agent.steer("Do not pay.", interrupt="now")
            with pytest.raises(CommandRefused, match="settled without an answer"):
                await agent.answer(ids[0], Allow())
            gate.set()
            assert (await run).text == "Then not."
        assert till.paid == []

    asyncio.run(main())
