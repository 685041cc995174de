"""The fine print of several guarantees: what only a fault in an unlikely place would break."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from helpers import agent_playing, limits, no_noise, play, records_of, reply
from interlock import AlreadyDelegated, Fatal, NothingToResume, Outcome, RunContext, UsageError, current_tool_call_id, extension
from interlock.driver.buffer import EventBuffer
from interlock.extensions.base import AgentExtension, CallNext, Stop, Suspended, ToolInvocation
from interlock.extensions.coerce import CoerceArguments
from interlock.extensions.runtime_tools import RuntimeTools
from interlock.extensions.urlguard import UrlGuard
from interlock.journal import MemoryJournal
from interlock.journal.memory import MemoryStore
from interlock.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from interlock.model import ModelRequest, TextDelta
from interlock.records import (
    HandlerStarted,
    ModelStepStarted,
    Record,
    RunEnded,
    SessionOpened,
    ToolLateResult,
    ToolStepEnded,
    ToolStepSuspended,
)
from interlock.testing import ScriptedModel, call, calls, cut, hold, text

ONE_CALL = [calls(call("c", "act")), text("done")]


async def act(n: int = 0) -> int:
    """Act."""
    return n


# ---- G01 ---------------------------------------------------------------------------------------------------


def test_g01_the_call_next_of_a_layer_that_has_returned_enters_no_layer_further_in() -> None:
    kept: list[CallNext] = []
    entered: list[str] = []

    @extension(priority=10)
    async def outer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        kept.append(call_next)
        return "mine"

    @extension(priority=20)
    async def inner(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        entered.append(call.id)
        return await call_next()

    async def main() -> None:
        async with agent_playing(ONE_CALL, tools=[act], extensions=[outer, inner]) as agent:
            await agent.run("go")
            with pytest.raises(AlreadyDelegated):
                await kept[0]()

    asyncio.run(main())
    assert entered == []


def test_g01_a_handler_that_its_layer_left_behind_has_cleaned_up_before_its_call_ends() -> None:
    order: list[str] = []

    async def act() -> None:
        """Act."""
        order.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            order.append("cleaned up")

    class Early(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            self.task = asyncio.ensure_future(call_next())
            while not order:
                await asyncio.sleep(0)
            return "early"

        def on_record(self, context: RunContext, record: Record) -> None:
            if isinstance(record, ToolStepEnded):
                order.append("ended")

    async def main() -> None:
        async with no_noise(), agent_playing(ONE_CALL, tools=[act], extensions=[Early()]) as agent:
            await agent.run("go")

    asyncio.run(main())
    assert order == ["began", "cleaned up", "ended"]


def test_g01_a_task_that_a_handler_left_behind_can_make_no_call_once_its_own_call_has_ended() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        left: list[asyncio.Task[Any]] = []

        async def outer(context: RunContext) -> str:
            """Leave a task behind."""

            async def later() -> Any:
                await gate.wait()
                return await context.call_tool("act")

            left.append(asyncio.create_task(later()))
            return "left"

        async with no_noise(), agent_playing([calls(call("c", "outer")), text("done")], tools=[act, outer]) as agent:
            assert (await agent.run("go")).text == "done"
            gate.set()
            with pytest.raises(UsageError, match="only while a tool call runs"):
                await left[0]
            assert len(await records_of(agent, ToolStepEnded)) == 1

    asyncio.run(main())


def test_g01_a_handler_whose_call_was_given_up_while_its_start_was_being_stored_does_not_start() -> None:
    ran: list[str] = []

    async def act() -> None:
        """Act."""
        ran.append("act")

    @extension
    async def stubborn(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return await call_next()

    async def main() -> None:
        storing, gate = asyncio.Event(), asyncio.Event()
        loop, ahead = asyncio.get_running_loop(), 0.0
        now = loop.time
        loop.time = lambda: now() + ahead  # type: ignore[method-assign]
        async with agent_playing(ONE_CALL[:1], tools=[act], extensions=[stubborn], bounds=limits(drain_s=60.0)) as agent:
            live = agent.live("s")
            log = live.log

            class Slow:
                async def durable(self, seq: int | None = None) -> None:
                    if any(call.starts for call in live.state.calls.values()):
                        storing.set()
                        await gate.wait()
                    await log.durable(seq)

                def __getattr__(self, name: str) -> Any:
                    return getattr(log, name)

            live.log = Slow()  # type: ignore[assignment]
            task = asyncio.create_task(agent.run("go"))
            while not any(call.entered for call in live.state.calls.values()):
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            cancel = asyncio.create_task(agent.cancel())
            await storing.wait()
            ahead = 100.0  # it has drained for long enough
            while live.state.calls:
                await asyncio.sleep(0)
            gate.set()
            await cancel
            assert (await task).outcome is Outcome.CANCELLED
            for _ in range(10):
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 500))
    assert ran == []


# ---- G02, G03 ----------------------------------------------------------------------------------------------


def test_g02_a_veto_that_an_outer_layer_caught_is_not_what_its_own_later_error_is_called() -> None:
    @extension(priority=10)
    async def outer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except PermissionError:
            raise LookupError("the plan B is missing") from None

    @extension(priority=20)
    async def guard(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        raise PermissionError("not today")

    played = asyncio.run(play(ONE_CALL, tools=[act], extensions=[outer, guard]))
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ended.code, ended.decided_by, ended.effect) == ("layer_error", "outer", "none")


def test_g02_a_veto_that_an_outer_layer_answered_is_called_an_answer_and_its_failure_no_veto() -> None:
    from interlock import ToolFailure

    @extension(priority=5)
    async def outermost(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        await call_next()
        raise ToolFailure("of my own")

    @extension(priority=10)
    async def outer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except PermissionError:
            return "plan B"

    @extension(priority=20)
    async def guard(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        raise PermissionError("not today")

    codes = []
    for layers in ([outer, guard], [outermost, outer, guard]):
        played = asyncio.run(play(ONE_CALL, tools=[act], extensions=layers))
        codes += [(record.code, record.decided_by) for record in played.records if isinstance(record, ToolStepEnded)]
    assert codes == [("answered", "outer"), ("layer_error", "outermost")]


def test_g02_a_veto_that_was_caught_by_a_layer_that_then_asks_too_late_is_an_error_of_that_layer() -> None:
    @extension(priority=10)
    async def outer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            await call_next()
        except PermissionError:
            pass
        return Suspended("May I?")

    @extension(priority=20)
    async def guard(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        raise PermissionError("not today")

    played = asyncio.run(play(ONE_CALL, tools=[act], extensions=[outer, guard]))
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ended.code, ended.decided_by) == ("layer_error", "outer")


def test_g02_a_person_is_asked_about_the_arguments_as_the_outer_layers_have_left_them() -> None:
    @extension(priority=10)
    async def edit(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        call.arguments = {"z": 1, "n": 2}
        return await call_next()

    @extension(priority=20)
    async def ask(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return Suspended("May I?")

    played = asyncio.run(play(ONE_CALL[:1], tools=[act], extensions=[edit, ask]))
    (asked,) = [record for record in played.records if isinstance(record, ToolStepSuspended)]
    assert asked.digest == hashlib.sha256(b'{"n":2,"z":1}').hexdigest()
    assert asked.question_id.startswith(asked.digest[:12])


def test_g02_the_first_stop_ends_the_run_and_no_outer_layer_puts_its_own_in_its_place() -> None:
    @extension(priority=10)
    async def outer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        await call_next()
        return Stop("second")

    @extension(priority=20)
    async def inner(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return Stop("first")

    result = asyncio.run(play(ONE_CALL[:1], tools=[act], extensions=[outer, inner])).result
    assert (result.outcome, result.text) == (Outcome.COMPLETED, "first")


@pytest.mark.parametrize("delegated", [False, True])
def test_g03_a_fatal_error_of_a_layer_reaches_the_caller_although_an_outer_layer_swallows_it(delegated: bool) -> None:
    problem = Fatal("stop everything")

    @extension(priority=10)
    async def swallow(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Exception:
            return "fine"

    @extension(priority=20)
    async def alarm(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if delegated:
            await call_next()
        raise problem

    async def main() -> list[Any]:
        async with agent_playing(ONE_CALL[:1], tools=[act], extensions=[swallow, alarm]) as agent:
            with pytest.raises(Fatal) as caught:
                await agent.run("go")
            assert caught.value is problem
            return await records_of(agent, RunEnded)

    (end,) = asyncio.run(main())
    assert end.outcome is Outcome.CANCELLED


def test_g03_a_fatal_error_of_a_handler_reaches_the_caller_although_the_only_layer_around_it_swallows_it() -> None:
    problem = Fatal("stop everything")

    async def act() -> None:
        """Act."""
        raise problem

    @extension
    async def swallow(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Fatal:
            return "fine"

    async def main() -> None:
        without = [CoerceArguments, RuntimeTools, UrlGuard]
        async with agent_playing(ONE_CALL[:1], tools=[act], extensions=[swallow], without=without) as agent:
            with pytest.raises(Fatal) as caught:
                await agent.run("go")
            assert caught.value is problem

    asyncio.run(main())


# ---- G04 ----------------------------------------------------------------------------------------------------


def test_g04_a_handler_that_was_left_behind_and_then_fails_is_recorded_as_a_late_failure() -> None:
    async def main() -> None:
        gate, began = asyncio.Event(), asyncio.Event()
        left: list[asyncio.Task[Any]] = []

        async def act() -> str:
            """Act."""
            began.set()
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    pass
            raise ValueError("too late, and wrong")

        @extension
        async def early(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            left.append(asyncio.ensure_future(call_next()))
            await began.wait()
            return "early"

        async with no_noise(), agent_playing(ONE_CALL, tools=[act], extensions=[early], bounds=limits(drain_s=0.0)) as agent:
            await agent.run("go")
            gate.set()
            await asyncio.wait(left)
            for _ in range(5):
                await asyncio.sleep(0)
            (late,) = await records_of(agent, ToolLateResult)
            assert (late.failed, late.content) == (True, "too late, and wrong")

    asyncio.run(main())


def test_g09_a_late_result_of_an_idle_session_leaves_the_session_free_for_others() -> None:
    async def main() -> None:
        gate, began = asyncio.Event(), asyncio.Event()
        left: list[asyncio.Task[Any]] = []

        async def act() -> str:
            """Act."""
            began.set()
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    pass
            return "late"

        @extension
        async def early(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            left.append(asyncio.ensure_future(call_next()))
            await began.wait()
            return "early"

        journal = MemoryJournal()
        options = {"tools": [act], "extensions": [early], "bounds": limits(drain_s=0.0), "journal": journal}
        async with no_noise(), agent_playing(ONE_CALL, **options) as agent:
            await agent.run("go")
            gate.set()
            await asyncio.wait(left)
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(await records_of(agent, ToolLateResult)) == 1
            assert [info.state for info in await journal.sessions()] == ["idle"]

    asyncio.run(main())


def test_g04_a_call_that_was_given_up_while_it_drained_is_recorded_as_late_when_it_comes_back() -> None:
    async def main() -> None:
        gate, began, back = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def act() -> str:
            """Act."""
            began.set()
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    pass
            back.set()
            return "late"

        async with no_noise(), agent_playing(ONE_CALL[:1], tools=[act], bounds=limits(drain_s=0.0)) as agent:
            task = asyncio.create_task(agent.run("go"))
            await began.wait()
            await agent.cancel()
            assert (await task).outcome is Outcome.CANCELLED
            gate.set()
            await back.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            (ended,) = await records_of(agent, ToolStepEnded)
            assert (ended.code, ended.effect) == ("cancelled", "unknown")
            assert [late.content for late in await records_of(agent, ToolLateResult)] == ["late"]

    asyncio.run(main())


# ---- G06, G07 -----------------------------------------------------------------------------------------------


def test_g06_what_an_earlier_part_of_the_answer_said_is_shown_anew_when_its_continuation_is_withdrawn() -> None:
    steps = [text("The first half ", finish="length"), cut(after="of the wro"), text("and the second.")]
    played = asyncio.run(play(steps))
    assert (played.result.text, played.shown()) == ("The first half and the second.",) * 2


def test_g07_a_nested_call_repeats_no_id_that_the_model_has_written() -> None:
    async def outer(context: RunContext) -> Any:
        """Call another tool."""
        return await context.call_tool("act")

    played = asyncio.run(play([calls(call("c.0", "act")), calls(call("c", "outer")), text("done")], tools=[act, outer]))
    ids = [record.message.tool_call_id for record in played.records if isinstance(record, ToolStepEnded)]
    assert len(ids) == len(set(ids)) == 3


def test_g07_an_id_that_came_with_imported_messages_is_not_given_to_another_call() -> None:
    history = [
        UserMessage(content="Act."),
        AssistantMessage(content="", tool_calls=(ToolCall(id="c", name="act", arguments="{}"),)),
        ToolMessage(tool_call_id="c", name="act", content="1"),
        AssistantMessage(content="Done."),
    ]

    async def main() -> None:
        async with agent_playing(ONE_CALL, tools=[act]) as agent:
            assert await agent.session("s").import_messages(history) == ()
            result = await agent.run("Again.")
            ids = [message.tool_call_id for message in result.messages if isinstance(message, ToolMessage)]
            assert ids[0] == "c"
            assert len(ids) == len(set(ids)) == 2

    asyncio.run(main())


# ---- G08 ----------------------------------------------------------------------------------------------------


def test_g08_the_providers_stream_is_closed_before_any_layer_cleans_up() -> None:
    order: list[str] = []

    class Provider(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            try:
                yield TextDelta("Half an")
                yield reply("Half an answer.")[0]
            finally:
                order.append("provider")

    @extension(priority=10)
    async def early(context: RunContext, request: ModelRequest, call_next: Any) -> Any:
        async for _ in call_next(request):
            yield reply("My own.")[0]
            return

    @extension(priority=20)
    async def slow(context: RunContext, request: ModelRequest, call_next: Any) -> Any:
        try:
            async for event in call_next(request):
                yield event
        finally:
            order.append("layer")

    async def main() -> None:
        async with no_noise(), agent_playing(Provider([]), extensions=[early, slow]) as agent:
            assert (await agent.run("go")).text == "My own."

    asyncio.run(main())
    assert order == ["provider", "layer"]


def test_g08_a_call_whose_turn_comes_after_the_cancellation_is_not_entered() -> None:
    entered: list[str] = []

    @extension
    async def alarm(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        entered.append(call.id)
        if call.id == "a":
            raise Fatal("stop everything")
        return await call_next()

    async def main() -> None:
        async with no_noise(), agent_playing([calls(call("a", "act"), call("b", "act"))], tools=[act], extensions=[alarm]) as agent:
            with pytest.raises(Fatal):
                await agent.run("go")
            ended = {record.message.tool_call_id: record for record in await records_of(agent, ToolStepEnded)}
            assert (ended["b"].code, ended["b"].effect, ended["b"].decided_by) == ("cancelled", "none", "runtime")
            assert "cancelled before it started" in ended["b"].message.content

    asyncio.run(main())
    assert entered == ["a"]


def test_g08_a_model_layer_that_cleans_up_for_long_does_not_keep_a_cancelled_run_open() -> None:
    async def main() -> None:
        gate, asked = asyncio.Event(), asyncio.Event()

        @extension
        async def slow(context: RunContext, request: ModelRequest, call_next: Any) -> Any:
            try:
                asked.set()
                async for event in call_next(request):
                    yield event
            finally:
                await gate.wait()

        async with no_noise(), agent_playing([hold(asyncio.Event())], extensions=[slow], bounds=limits(drain_s=0.0)) as agent:
            task = asyncio.create_task(agent.run("go"))
            await asked.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            await agent.cancel()
            assert (await task).outcome is Outcome.CANCELLED
            (end,) = await records_of(agent, RunEnded)
            assert end.outcome is Outcome.CANCELLED
            gate.set()
            for _ in range(10):
                await asyncio.sleep(0)

    asyncio.run(main())


# ---- G09 ----------------------------------------------------------------------------------------------------


def test_g09_a_command_that_fails_gives_the_session_up_again() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        async with agent_playing([text("done")], journal=journal) as agent:
            await agent.run("go")
            with pytest.raises(NothingToResume):
                await agent.resume()
            assert [info.state for info in await journal.sessions()] == ["idle"]

    asyncio.run(main())


def test_g09_the_same_call_of_the_same_run_has_another_idempotency_key_in_another_session() -> None:
    from interlock import AgentRunConfig

    keys: list[str] = []

    async def act(context: RunContext) -> None:
        """Act."""
        keys.append(context.idempotency_key())

    for session in ("one", "two"):
        asyncio.run(play(ONE_CALL, tools=[act], session_id=session, config=AgentRunConfig(run_id="r")))
    assert len(keys) == len(set(keys)) == 2


def test_g09_a_run_that_a_tool_starts_in_another_session_is_no_part_of_that_tools_call() -> None:
    seen: dict[str, str | None] = {}

    @extension
    async def look(context: RunContext, request: ModelRequest, call_next: Any) -> Any:
        seen[context.session_id] = current_tool_call_id()
        async for event in call_next(request):
            yield event

    async def main() -> None:
        agents: list[Any] = []

        async def outer() -> str:
            """Start a run."""
            return (await agents[0].session("other").run("And you?")).text

        steps = [calls(call("c", "outer")), text("inner"), text("outer")]
        async with no_noise(), agent_playing(steps, tools=[outer], extensions=[look]) as agent:
            agents.append(agent)
            assert (await agent.run("go")).text == "outer"

    asyncio.run(main())
    assert seen == {"s": None, "other": None}


def test_g09_a_session_that_another_process_went_on_with_is_opened_anew_under_a_higher_epoch() -> None:
    async def main() -> None:
        store = MemoryStore()
        one, two = MemoryJournal(store), MemoryJournal(store)
        async with agent_playing([text("1"), text("3")], journal=one) as first, agent_playing([text("2")], journal=two) as second:
            for agent in (first, second, first):
                await agent.run("go")
            assert [record.epoch for record in await records_of(first, SessionOpened)] == [1, 2, 3]

    asyncio.run(main())


def test_g09_the_last_message_of_an_earlier_run_is_not_the_message_of_a_run_that_has_none() -> None:
    async def main() -> None:
        model = ScriptedModel([text("Hi."), hold(asyncio.Event())])
        async with no_noise(), agent_playing(model) as agent:
            assert (await agent.run("go")).message == AssistantMessage(content="Hi.")
            task = asyncio.create_task(agent.run("And now?"))
            while len(model.requests) < 2:
                await asyncio.sleep(0)
            await agent.cancel()
            assert (await task).message is None

    asyncio.run(main())


# ---- G10 ----------------------------------------------------------------------------------------------------


def test_g10_every_request_is_stored_before_it_is_sent_those_that_a_layer_adds_included() -> None:
    journal = MemoryJournal()
    stored: list[int] = []

    class Watching(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            stored.append(sum(isinstance(row.record, ModelStepStarted) for row in await journal.read("s")))
            async for event in super().stream(request):
                yield event

    @extension
    async def twice(context: RunContext, request: ModelRequest, call_next: Any) -> Any:
        async for _ in call_next(request):
            pass
        async for event in call_next(request):
            yield event

    async def main() -> None:
        async with agent_playing(Watching([text("one"), text("two")]), extensions=[twice], journal=journal) as agent:
            assert (await agent.run("go")).text == "two"

    asyncio.run(main())
    assert stored == [1, 2]


def test_g10_a_command_that_comes_while_the_run_gives_its_session_up_is_still_carried_out() -> None:
    @extension
    async def ask(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return Suspended("May I?")

    async def main() -> None:
        releasing, gate = asyncio.Event(), asyncio.Event()
        async with no_noise(), agent_playing(ONE_CALL[:1], tools=[act], extensions=[ask]) as agent:
            live = agent.live("s")
            log = live.log

            class Slow:
                async def release(self) -> None:
                    releasing.set()
                    await gate.wait()
                    await log.release()

                def __getattr__(self, name: str) -> Any:
                    return getattr(log, name)

            live.log = Slow()  # type: ignore[assignment]
            task = asyncio.create_task(agent.run("go"))
            await releasing.wait()
            await agent.cancel()
            gate.set()
            assert (await task).outcome is Outcome.CANCELLED
            assert [record.code for record in await records_of(agent, ToolStepEnded)] == ["cancelled"]

    asyncio.run(main())


def test_g10_the_journal_says_with_which_arguments_a_handler_was_started_and_not_with_which_it_was_called() -> None:
    @extension
    async def edit(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        call.arguments["n"] = 7
        return await call_next()

    played = asyncio.run(play(ONE_CALL, tools=[act], extensions=[edit]))
    assert [record.arguments for record in played.records if isinstance(record, HandlerStarted)] == ['{"n":7}']


# ---- G13 ----------------------------------------------------------------------------------------------------


def test_g13_a_handler_that_could_not_be_recorded_as_started_gives_its_worker_back() -> None:
    class Forgetful(AgentExtension):
        """Its memory fails once, where the first handler is to be recorded as started."""

        failed = False

        def fold(self, memory: Any, record: Record) -> Any:
            if isinstance(record, HandlerStarted) and not self.failed:
                self.failed = True
                raise ValueError("no room")
            return memory

    def block() -> str:
        """Block."""
        return "ran"

    steps = [calls(call("a", "block")), calls(call("b", "block")), text("done")]
    bounds = limits(worker_threads=1, worker_wait_s=0.0)
    played = asyncio.run(play(steps, tools=[block], extensions=[Forgetful()], bounds=bounds))
    assert [record.code for record in played.records if isinstance(record, ToolStepEnded)] == ["failed", "ok"]


def test_g13_the_full_copy_of_a_capped_result_is_no_larger_than_its_bound() -> None:
    async def act() -> str:
        """Act."""
        return "x" * 9000

    played = asyncio.run(play(ONE_CALL, tools=[act], bounds=limits(result_bytes=1024, result_store_bytes=5000)))
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert ended.payload is not None
    assert ended.payload.size == 5000


def test_g13_the_deadline_of_a_run_that_has_ended_does_not_end_the_next_one() -> None:
    from interlock import AgentRunConfig

    async def main() -> None:
        loop, ahead = asyncio.get_running_loop(), 0.0
        now = loop.time
        loop.time = lambda: now() + ahead  # type: ignore[method-assign]
        gate = asyncio.Event()
        model = ScriptedModel([text("one"), hold(gate, then=text("two"))])
        async with agent_playing(model) as agent:
            await agent.run("go", config=AgentRunConfig(deadline_s=60.0))
            task = asyncio.create_task(agent.run("and now?"))
            while len(model.requests) < 2:
                await asyncio.sleep(0)
            ahead = 3600.0
            for _ in range(5):
                await asyncio.sleep(0)
            gate.set()
            assert (await task).text == "two"

    asyncio.run(main())


def test_g13_a_buffer_is_full_at_its_bound_and_lets_nobody_wait_once_it_is_closed() -> None:
    async def main() -> None:
        buffer = EventBuffer(2)
        full: list[bool] = []
        for piece in "abc":
            buffer.put(TextDelta(piece))
            full.append(buffer.full)
        assert full == [False, True, True]
        waiting = asyncio.create_task(buffer.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        buffer.close()
        await waiting

    asyncio.run(asyncio.wait_for(main(), 10))
