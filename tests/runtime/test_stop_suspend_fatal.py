"""The ways in which one call ends, or holds up, the whole run."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from helpers import Played, agent_playing, limits, no_noise, play, records_of, slow_claim
from interlock import Agent, AgentRunConfig, CommandRefused, Fatal, Outcome, RunContext, extension, tool
from interlock.events import ToolSuspended
from interlock.extensions.base import AgentExtension, CallNext, Stop, Suspended, ToolInvocation
from interlock.journal import MemoryJournal
from interlock.messages import ToolMessage
from interlock.messages.validity import is_valid
from interlock.records import HandlerStarted, QuestionAnswered, RunCancelled, RunEnded, ToolStepEnded, ToolStepSuspended
from interlock.testing import ScriptedModel, call, calls, text


class Swallow(AgentExtension):
    """An outer layer that replaces whatever comes out, and raises if it is told to."""

    priority = 10

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            await call_next()
        except Exception:
            pass
        if self.problem is not None:
            raise self.problem
        return "swallowed"


def ended(played: Played) -> list[ToolStepEnded]:
    return [record for record in played.records if isinstance(record, ToolStepEnded)]


# ---- Stop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("outer", [None, Swallow(), Swallow(ValueError("no"))], ids=["alone", "swallowed", "raised over"])
def test_a_layer_that_returns_stop_ends_the_run_with_it_and_no_outer_layer_can_swallow_it(after: bool, outer: Any) -> None:
    ran: list[int] = []

    async def act() -> str:
        ran.append(1)
        return "acted"

    @extension(name="stopper")
    async def stopper(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if after:
            await call_next()
        return Stop({"total": 3})

    layers = [stopper] if outer is None else [outer, stopper]
    played = asyncio.run(play([calls(call("c1", "act"), before="I will look.")], tools=[act], extensions=layers))
    result = played.result
    assert (result.outcome, result.reason, result.text, len(played.bodies)) == (Outcome.COMPLETED, "stop", '{"total":3}', 1)
    assert ran == ([1] if after else [])
    (message,) = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert (message.content, message.failed) == ('{"total":3}', False)
    assert is_valid(result.messages)


def test_a_stop_that_a_handler_returns_ends_the_run_once_a_layer_has_passed_it_on() -> None:
    async def act() -> Stop:
        return Stop("enough")

    played = asyncio.run(play([calls(call("c1", "act"))], tools=[act], extensions=[Swallow()]))
    assert (played.result.outcome, played.result.reason, played.result.text) == (Outcome.COMPLETED, "stop", "enough")
    assert len(played.bodies) == 1


def test_after_a_stop_the_session_goes_on_with_a_valid_request() -> None:
    async def act() -> None:
        pass

    @extension
    async def stopper(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return Stop("enough")

    played = asyncio.run(play([calls(call("c1", "act")), text("and on")], tools=[act], extensions=[stopper], prompts=["one", "two"]))
    assert [result.text for result in played.results] == ["enough", "and on"]
    assert [m["role"] for m in played.bodies[1]["messages"]] == ["user", "assistant", "tool", "user"]


def test_a_stop_lets_its_running_siblings_finish() -> None:
    async def main() -> None:
        stopped = asyncio.Event()
        finished: list[str] = []

        async def act(name: str) -> str:
            if name == "slow":
                await stopped.wait()
            finished.append(name)
            return name

        class Stopper(AgentExtension):
            async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
                result = await call_next()
                return Stop("enough") if result == "quick" else result

            def on_record(self, context: RunContext, record: Any) -> None:
                if isinstance(record, ToolStepEnded) and record.ending is not None:
                    stopped.set()

        steps = [calls(call("a", "act", {"name": "slow"}), call("b", "act", {"name": "quick"}))]
        played = await play(steps, tools=[act], extensions=[Stopper()])
        assert finished == ["quick", "slow"]
        assert (played.result.text, [record.message.failed for record in ended(played)]) == ("enough", [False, False])

    asyncio.run(main())


# ---- Suspended ---------------------------------------------------------------------------------------------


class Ask(AgentExtension):
    """Asks before each call of ``pay``; runs it when the answer is yes."""

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.name != "pay" or context.answer == "yes":
            return await call_next()
        if context.answer is not None:
            raise PermissionError(f"the owner said {context.answer}")
        return Suspended(f"Pay {call.arguments['amount']}?")


class Till:
    def __init__(self) -> None:
        self.paid: list[int] = []

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        return f"paid {amount}"


PAY = calls(call("c1", "pay", {"amount": 5}))


@pytest.mark.parametrize("outer", [None, Swallow(), Swallow(ValueError("no"))], ids=["alone", "swallowed", "raised over"])
def test_a_layer_that_returns_suspended_makes_the_run_wait_and_no_outer_layer_can_swallow_it(outer: Any) -> None:
    till = Till()

    async def main() -> None:
        layers = [Ask()] if outer is None else [outer, Ask()]
        async with no_noise(), agent_playing([PAY], tools=[till.pay], extensions=layers) as agent:
            result = await agent.run("go")
            assert (result.outcome, result.text) == (Outcome.WAITING, "")
            (question,) = result.questions
            assert (question.text, question.call.name) == ("Pay 5?", "pay")
            again = await agent.resume()
            assert (again.outcome, again.questions) == (Outcome.WAITING, result.questions)
            assert await records_of(agent, HandlerStarted, ToolStepEnded) == []

    asyncio.run(main())
    assert till.paid == []


def test_the_answer_of_a_person_lets_the_call_enter_the_onion_anew_under_the_same_key_and_run_once() -> None:
    till = Till()
    entered: list[str] = []

    @extension(priority=50, name="outer")
    async def outer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        entered.append(call.key)
        return await call_next()

    async def main() -> None:
        async with agent_playing([PAY, text("Paid.")], tools=[till.pay], extensions=[outer, Ask()]) as agent:
            waiting = await agent.run("go")
            result = await agent.answer(waiting.questions[0].id, "yes")
            assert (result.outcome, result.text, result.questions) == (Outcome.COMPLETED, "Paid.", ())
            assert len(await records_of(agent, HandlerStarted)) == 1
            (answered,) = await records_of(agent, QuestionAnswered)
            assert answered.answer == "yes"
            with pytest.raises(CommandRefused):
                await agent.answer(waiting.questions[0].id, "yes")

    asyncio.run(main())
    assert till.paid == [5]
    assert len(entered) == 2
    assert len(set(entered)) == 1


def test_another_process_may_take_the_answer() -> None:
    till = Till()

    async def main() -> None:
        journal = MemoryJournal()
        config = AgentRunConfig(session_id="s")
        async with await Agent.create(ScriptedModel([PAY]), config=config, tools=[till.pay], extensions=[Ask()], journal=journal) as first:
            waiting = await first.run("go")
        async with await Agent.create(
            ScriptedModel([text("Paid.")]), config=config, tools=[till.pay], extensions=[Ask()], journal=journal
        ) as second:
            assert (await second.resume()).questions == waiting.questions
            assert (await second.answer(waiting.questions[0].id, "yes")).text == "Paid."
        await journal.aclose()

    asyncio.run(main())
    assert till.paid == [5]


def test_a_refusal_by_a_person_is_a_veto_and_the_siblings_have_run_in_the_meantime() -> None:
    till, looked = Till(), []

    async def look() -> str:
        looked.append(1)
        return "looked"

    async def main() -> None:
        steps = [calls(call("c1", "pay", {"amount": 5}), call("c2", "look")), text("Not paid.")]
        async with agent_playing(steps, tools=[till.pay, look], extensions=[Ask()]) as agent:
            events = [event async for event in agent.stream("go")]
            (suspended,) = [event for event in events if isinstance(event, ToolSuspended)]
            assert suspended.question == "Pay 5?"
            assert looked == [1]
            waiting = events[-1].result  # type: ignore[union-attr]
            result = await agent.answer(waiting.questions[0].id, "no")
            messages = [m for m in result.messages if isinstance(m, ToolMessage)]
            assert [(m.name, m.failed) for m in messages] == [("pay", True), ("look", False)]
            assert "the owner said no" in str(messages[0].content)

    asyncio.run(main())
    assert till.paid == []


def test_suspended_after_delegating_is_an_error_of_the_layer_because_the_call_may_have_run() -> None:
    till = Till()

    @extension(name="too late")
    async def late(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        await call_next()
        return Suspended("was that right?")

    played = asyncio.run(play([PAY, text("done")], tools=[till.pay], extensions=[late]))
    (record,) = ended(played)
    assert till.paid == [5]
    assert (record.code, record.decided_by, record.effect) == ("layer_error", "too late", "happened")
    assert not [one for one in played.records if isinstance(one, ToolStepSuspended)]
    assert played.result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("with_layers", [True, False])
def test_suspended_returned_by_a_handler_is_an_error_because_it_has_run(with_layers: bool) -> None:
    from interlock.extensions.coerce import CoerceArguments
    from interlock.extensions.runtime_tools import RuntimeTools
    from interlock.extensions.toollog import ToolLog
    from interlock.extensions.urlguard import UrlGuard

    async def act() -> Any:
        return Suspended("was that right?")

    async def main() -> None:
        without = [] if with_layers else [CoerceArguments, RuntimeTools, ToolLog, UrlGuard]
        async with agent_playing([calls(call("c", "act")), text("done")], tools=[act], without=without) as agent:
            assert (await agent.run("go")).text == "done"
            (record,) = await records_of(agent, ToolStepEnded)
            assert (record.effect, record.message.failed) == ("happened", True)

    asyncio.run(main())


def test_a_new_run_on_a_waiting_session_supersedes_the_open_question_without_running_the_call() -> None:
    till = Till()

    async def main() -> None:
        async with agent_playing([PAY, text("Something else.")], tools=[till.pay], extensions=[Ask()]) as agent:
            waiting = await agent.run("go")
            result = await agent.run("never mind")
            assert result.text == "Something else."
            (record,) = await records_of(agent, ToolStepEnded)
            assert (record.code, record.effect) == ("superseded", "none")
            ended = await records_of(agent, RunEnded)
            assert [(one.outcome, one.reason) for one in ended] == [(Outcome.INCOMPLETE, "superseded"), (Outcome.COMPLETED, "answer")]
            assert is_valid(result.messages)
            with pytest.raises(CommandRefused):
                await agent.answer(waiting.questions[0].id, "yes")

    asyncio.run(main())
    assert till.paid == []


def test_a_new_run_that_is_left_before_it_began_does_not_end_the_waiting_one() -> None:
    till = Till()

    async def main() -> None:
        async with no_noise(), agent_playing([PAY, text("Paid.")], tools=[till.pay], extensions=[Ask()]) as agent:
            waiting = await agent.run("go")
            gate = asyncio.Event()
            claiming = slow_claim(agent, gate)
            task = asyncio.create_task(agent.run("never mind"))
            await claiming.wait()
            task.cancel()
            await asyncio.sleep(0)
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await records_of(agent, RunCancelled) == []
            assert (await agent.answer(waiting.questions[0].id, "yes")).text == "Paid."

    asyncio.run(main())
    assert till.paid == [5]


def test_cancelling_a_waiting_session_settles_the_call_that_waits() -> None:
    till = Till()

    async def main() -> None:
        async with agent_playing([PAY], tools=[till.pay], extensions=[Ask()]) as agent:
            await agent.run("go")
            await agent.cancel()
            (record,) = await records_of(agent, ToolStepEnded)
            assert (record.code, record.effect) == ("cancelled", "none")
            (end,) = await records_of(agent, RunEnded)
            assert end.outcome is Outcome.CANCELLED

    asyncio.run(main())
    assert till.paid == []


# ---- what stops everything ---------------------------------------------------------------------------------


FATAL = [Fatal("the ledger is inconsistent"), SystemExit(3), KeyboardInterrupt()]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_siblings_are_cancelled_and_drained_before_the_error_surfaces_and_nothing_is_written_afterwards(
    error: BaseException, streamed: bool, threaded: bool
) -> None:
    async def main() -> None:
        written: list[str] = []
        sibling_runs, drained = asyncio.Event(), []
        go = threading.Event()

        async def write() -> None:
            sibling_runs.set()
            go.set()
            try:
                await asyncio.Event().wait()
                written.append("after the failure")
            finally:
                await asyncio.sleep(0)
                drained.append("finally")

        async def explode() -> None:
            await sibling_runs.wait()
            raise error

        def explode_in_a_thread() -> None:
            go.wait(5)
            raise error

        name = "explode_in_a_thread" if threaded else "explode"
        steps = [calls(call("a", name), call("b", "write"), call("c", "later"))]

        @tool(parallel=False)
        async def later() -> None:
            """Never reached."""
            written.append("later")

        handlers = [write, explode, explode_in_a_thread, later]
        async with no_noise(), agent_playing(steps, tools=handlers, bounds=limits(drain_s=5.0)) as agent:
            with pytest.raises(type(error)) as caught:
                if streamed:
                    async for _ in agent.stream("go"):
                        pass
                else:
                    await agent.run("go")
            assert caught.value is error
            assert (written, drained) == ([], ["finally"])
            by_id = {record.message.tool_call_id: record for record in await records_of(agent, ToolStepEnded)}
            assert {id: record.effect for id, record in by_id.items()} == {"a": "unknown", "b": "unknown", "c": "none"}
            (end,) = await records_of(agent, RunEnded)
            assert (end.outcome, end.reason) == (Outcome.CANCELLED, "fatal")

    asyncio.run(main())


@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_after_such_an_error_the_session_goes_on_with_a_valid_request(error: BaseException) -> None:
    async def explode() -> None:
        raise error

    async def main() -> None:
        async with agent_playing([calls(call("a", "explode")), text("on")], tools=[explode]) as agent:
            with pytest.raises(type(error)):
                await agent.run("go")
            result = await agent.run("and now?")
            assert (result.text, is_valid(result.messages)) == ("on", True)

    asyncio.run(main())


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_no_outer_layer_can_swallow_such_an_error(error: BaseException, inside: bool) -> None:
    @extension(priority=10)
    async def swallow(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except BaseException:
            return "swallowed"

    async def explode() -> None:
        raise error

    async def outer(context: RunContext) -> Any:
        try:
            return await context.call_tool("explode")
        except BaseException:
            return "swallowed too"

    async def main() -> None:
        steps = [calls(call("a", "outer" if inside else "explode"))]
        async with no_noise(), agent_playing(steps, tools=[explode, outer], extensions=[swallow]) as agent:
            with pytest.raises(type(error)) as caught:
                await agent.run("go")
            assert caught.value is error
            (end,) = await records_of(agent, RunEnded)
            assert end.outcome is Outcome.CANCELLED

    asyncio.run(main())


@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_such_an_error_in_a_task_of_a_layers_own_does_not_tear_the_event_loop_down(error: BaseException) -> None:
    async def explode() -> None:
        raise error

    @extension
    async def in_a_task(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return await asyncio.wait_for(asyncio.create_task(call_next()), 10)  # type: ignore[arg-type]

    async def main() -> None:
        async with no_noise(), agent_playing([calls(call("a", "explode"))], tools=[explode], extensions=[in_a_task]) as agent:
            with pytest.raises(type(error)) as caught:
                await agent.run("go")
            assert caught.value is error
            (record,) = await records_of(agent, ToolStepEnded)
            assert record.effect == "unknown"

    asyncio.run(main())


def test_a_fatal_error_in_a_model_layer_ends_the_run_and_reaches_the_caller() -> None:
    error = Fatal("no more requests")

    @extension
    async def stop(context: RunContext, request: Any, call_next: Any) -> Any:
        raise error
        yield

    async def main() -> None:
        async with agent_playing([], extensions=[stop]) as agent:
            with pytest.raises(Fatal) as caught:
                await agent.run("go")
            assert caught.value is error
            (end,) = await records_of(agent, RunEnded)
            assert end.outcome is Outcome.CANCELLED

    asyncio.run(main())


def test_a_handler_that_cancels_itself_is_a_failed_call_and_the_run_goes_on() -> None:
    async def act() -> None:
        raise asyncio.CancelledError("by itself")

    async def cancels_its_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel("from within")
        await asyncio.sleep(0)

    for handler in (act, cancels_its_task):
        played = asyncio.run(play([calls(call("c1", handler.__name__)), text("done")], tools=[handler]))
        (record,) = ended(played)
        assert (record.code, record.effect, record.decided_by) == ("failed", "unknown", "handler")
        assert (played.result.outcome, played.result.text) == (Outcome.COMPLETED, "done")
