"""G01: a tool call's handler starts at most once, whatever the extensions do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from helpers import Played, agent_playing, eager_tasks, limits, no_noise, play, records_of
from interlock import AlreadyDelegated, Limits, Outcome, ProtocolError, extension
from interlock.driver.tool_step import ToolStep
from interlock.extensions.base import AgentExtension, CallNext, RunContext, Stop, ToolInvocation
from interlock.extensions.onion import Slot
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolLateResult, ToolStepEnded
from interlock.testing import call, calls, text, when

ONE_CALL = (calls(call("c1", "act")), text("done"))


class Hand:
    """A handler that counts its runs, then returns ``value``, or raises it."""

    def __init__(self, value: Any = "acted") -> None:
        self.value = value
        self.ran = 0

    async def act(self) -> Any:
        self.ran += 1
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def act_in_a_thread(self) -> Any:
        self.ran += 1
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class Through(AgentExtension):
    """Passes through, and keeps what it saw coming up."""

    def __init__(self) -> None:
        self.seen: list[BaseException] = []

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            self.seen.append(error)
            raise


def ended(played: Played) -> list[ToolStepEnded]:
    return [record for record in played.records if isinstance(record, ToolStepEnded)]


def starts(played: Played) -> int:
    return sum(isinstance(record, HandlerStarted) for record in played.records)


def one_call(hand: Hand, *layers: Any, **options: Any) -> Played:
    return asyncio.run(play(ONE_CALL, tools=[hand.act], extensions=layers, **options))


# ---- a handler that raises -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 4, 8])
def test_a_raising_handler_under_any_number_of_layers_runs_once_and_its_exception_object_reaches_the_outermost(count: int) -> None:
    hand, layers = Hand(ValueError("no")), [Through() for _ in range(count)]
    played = one_call(hand, *layers)
    assert (hand.ran, starts(played), played.result.outcome) == (1, 1, Outcome.COMPLETED)
    assert [layer.seen for layer in layers] == [[hand.value]] * count
    assert all(layer.seen[0] is hand.value for layer in layers)


@pytest.mark.parametrize("count", [0, 1, 8])
def test_a_raising_synchronous_handler_runs_once_too(count: int) -> None:
    hand, layers = Hand(ValueError("no")), [Through() for _ in range(count)]
    played = asyncio.run(play([calls(call("c1", "act_in_a_thread")), text("done")], tools=[hand.act_in_a_thread], extensions=layers))
    assert (hand.ran, starts(played)) == (1, 1)
    assert all(layer.seen == [hand.value] and layer.seen[0] is hand.value for layer in layers)


def test_a_tool_whose_connection_was_reset_is_not_tried_again_so_the_mail_is_sent_once() -> None:
    sent: list[str] = []

    async def send(to: str) -> None:
        sent.append(to)
        raise ConnectionResetError("connection reset by peer")

    def expect_a_warning(body: dict[str, Any]) -> bool:
        result = body["messages"][-1]["content"]
        return "connection reset by peer" in result and "may have happened" in result

    played = asyncio.run(play([calls(call("c1", "send", {"to": "ann"})), when(expect_a_warning, text("sent?"))], tools=[send]))
    assert sent == ["ann"]
    assert played.result.outcome is Outcome.COMPLETED


def test_a_layer_that_retries_on_any_exception_does_not_run_the_handler_again() -> None:
    hand = Hand(ConnectionError("reset"))
    refused: list[BaseException] = []

    @extension
    async def retry(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        for _ in range(3):
            try:
                return await call_next()
            except Exception as error:
                refused.append(error)
        return "gave up"

    played = one_call(hand, retry)
    assert hand.ran == 1
    assert [type(error) for error in refused] == [ConnectionError, AlreadyDelegated, AlreadyDelegated]
    assert ended(played)[0].message.content == "gave up"


# ---- what a layer may do with call_next --------------------------------------------------------------


async def swallow(call_next: CallNext) -> Any:
    try:
        await call_next()
    except Exception:
        pass
    return "swallowed"


async def twice(call_next: CallNext) -> Any:
    await call_next()
    return await call_next()


async def twice_and_swallow(call_next: CallNext) -> Any:
    first = await call_next()
    try:
        await call_next()
    except AlreadyDelegated:
        return first
    raise AssertionError("the second call_next was not refused")


async def race(call_next: CallNext) -> Any:
    return await asyncio.gather(call_next(), call_next())


async def race_and_collect(call_next: CallNext) -> Any:
    return [str(one) for one in await asyncio.gather(*(call_next() for _ in range(5)), return_exceptions=True)]


async def task_and_await(call_next: CallNext) -> Any:
    return await asyncio.create_task(call_next())  # type: ignore[arg-type]


async def task_and_again(call_next: CallNext) -> Any:
    task = asyncio.create_task(call_next())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    try:
        return await call_next()
    except AlreadyDelegated:
        return await task


async def within_a_time(call_next: CallNext) -> Any:
    return await asyncio.wait_for(call_next(), 30)


async def shielded(call_next: CallNext) -> Any:
    return await asyncio.shield(call_next())


LAYERS: list[tuple[Callable[[CallNext], Any], str]] = [
    (swallow, "ok"),
    (twice, "layer_error"),
    (twice_and_swallow, "ok"),
    (race, "layer_error"),
    (race_and_collect, "ok"),
    (task_and_await, "ok"),
    (task_and_again, "ok"),
    (within_a_time, "ok"),
    (shielded, "ok"),
]


@pytest.mark.parametrize(("behave", "code"), LAYERS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("surrounded", [False, True])
def test_no_way_to_call_call_next_runs_the_handler_twice(behave: Callable[[CallNext], Any], code: str, surrounded: bool) -> None:
    hand = Hand()

    @extension
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return await behave(call_next)

    layers = [Through(), layer, Through()] if surrounded else [layer]
    played = one_call(hand, *layers)
    assert (hand.ran, starts(played)) == (1, 1)
    assert [record.code for record in ended(played)] == [code]
    assert played.result.outcome is Outcome.COMPLETED


def test_a_second_call_next_is_refused_with_a_usage_error_and_the_model_learns_that_the_effect_happened() -> None:
    hand = Hand()

    @extension(name="double")
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return await twice(call_next)

    (record,) = ended(one_call(hand, layer))
    assert (record.effect, record.decided_by) == ("happened", "double")
    assert "double: call_next was already awaited" in str(record.message.content)
    assert str(record.message.content).splitlines()[1].startswith("The tool itself had completed")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_call_next_that_is_dropped_runs_nothing() -> None:
    hand = Hand()

    @extension
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        call_next()
        return "dropped"

    played = one_call(hand, layer)
    assert (hand.ran, starts(played)) == (0, 0)
    assert (ended(played)[0].effect, ended(played)[0].code) == ("none", "answered")


def test_a_call_next_that_is_kept_and_awaited_after_its_call_runs_nothing() -> None:
    hand = Hand()
    kept: list[CallNext] = []

    @extension
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        kept.append(call_next)
        return "answered"

    async def main() -> None:
        async with agent_playing(ONE_CALL, tools=[hand.act], extensions=[layer]) as agent:
            await agent.run("go")
            with pytest.raises(AlreadyDelegated, match="its call has ended"):
                await kept[0]()

    asyncio.run(main())
    assert hand.ran == 0


def test_a_layer_may_keep_the_call_next_of_one_call_for_another_and_it_runs_nothing() -> None:
    hand = Hand()
    kept: list[CallNext] = []

    @extension
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        kept.append(call_next)
        return await kept[0]()

    played = asyncio.run(play([calls(call("c1", "act")), calls(call("c2", "act")), text("done")], tools=[hand.act], extensions=[layer]))
    assert hand.ran == 1
    assert [record.code for record in ended(played)] == ["ok", "vetoed"]


# ---- a handler never outlives its call -----------------------------------------------------------


def test_a_task_of_call_next_that_the_layer_leaves_behind_is_cancelled_and_waited_for_before_the_call_ends() -> None:
    order: list[str] = []

    async def act() -> str:
        order.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            order.append("stopped")
        return "never"

    @extension
    async def early(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        asyncio.create_task(call_next())  # type: ignore[arg-type]  # noqa: RUF006
        while not order:
            await asyncio.sleep(0)
        return "early"

    async def main() -> list[Any]:
        async with no_noise(), agent_playing(ONE_CALL, tools=[act], extensions=[early]) as agent:
            await agent.run("go")
            assert order == ["began", "stopped"]
            return await records_of(agent, ToolStepEnded)

    (record,) = asyncio.run(main())
    assert (record.message.content, record.effect, record.decided_by) == ("early", "unknown", "early")


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=eager_tasks)])
def test_no_handler_starts_for_a_layer_whose_own_check_beside_call_next_has_failed(eager: bool) -> None:
    """With eager tasks, ``gather(call_next(), ...)`` begins on the layer's own stack and goes on in a task of its own."""
    hand = Hand()

    @extension(priority=10)
    async def slow_outside(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            for _ in range(30):
                await asyncio.sleep(0)

    @extension(priority=20)
    async def audited(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        async def audit() -> None:
            await asyncio.sleep(0)
            raise PermissionError("the audit failed")

        result, _ = await asyncio.gather(call_next(), audit())
        return result

    @extension(priority=30)
    async def slow_inside(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        for _ in range(10):
            await asyncio.sleep(0)
        return await call_next()

    async def main() -> list[Any]:
        if eager:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # pyright: ignore
        layers = [slow_outside, audited, slow_inside]
        async with no_noise(), agent_playing(ONE_CALL, tools=[hand.act], extensions=layers) as agent:
            await agent.run("go")
            return await records_of(agent, ToolStepEnded)

    (record,) = asyncio.run(main())
    assert hand.ran == 0
    assert (record.effect, record.decided_by, record.code) == ("none", "audited", "layer_error")


@pytest.mark.parametrize("then", ["delegates", "stops the run", "raises", "answers"])
def test_what_a_layer_left_behind_and_what_does_not_stop_neither_starts_the_handler_nor_ends_the_call(then: str) -> None:
    hand, inside, left = Hand(), asyncio.Event(), list[asyncio.Task[Any]]()

    @extension(priority=10)
    async def slow_outside(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            inside.set()
            await asyncio.wait(left)

    @extension(priority=20)
    async def audited(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        left.append(asyncio.ensure_future(call_next()))
        await asyncio.sleep(0)
        raise PermissionError("the audit failed")

    @extension(priority=30)
    async def stubborn(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        while not inside.is_set():
            try:
                await inside.wait()
            except asyncio.CancelledError:
                pass
        if then == "raises":
            raise ValueError("of its own")
        return await call_next() if then == "delegates" else Stop("stopped") if then == "stops the run" else "late"

    async def main() -> list[Any]:
        layers = [slow_outside, audited, stubborn]
        async with no_noise(), agent_playing(ONE_CALL, tools=[hand.act], extensions=layers, bounds=limits(drain_s=0.01)) as agent:
            assert (await agent.run("go")).reason == "answer"
            return await records_of(agent, ToolStepEnded)

    (record,) = asyncio.run(main())
    assert hand.ran == 0
    assert (record.effect, record.decided_by, record.code) == ("none", "audited", "layer_error")


def test_a_handler_whose_start_is_being_stored_when_its_layer_is_given_up_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, storing, stored, left = Hand(), asyncio.Event(), asyncio.Event(), list[asyncio.Task[Any]]()
    start = ToolStep._check_open  # pyright: ignore[reportPrivateUsage]

    @extension(priority=10)
    async def slow_outside(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            stored.set()
            await asyncio.wait(left)

    @extension(priority=20)
    async def early(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        left.append(asyncio.ensure_future(call_next()))
        await storing.wait()
        return "early"

    async def door(step: ToolStep, bound: Any) -> None:  # one that waits for the journal, and cannot be cancelled there
        storing.set()
        while not stored.is_set():
            try:
                await stored.wait()
            except asyncio.CancelledError:
                pass
        start(step)

    monkeypatch.setattr(ToolStep, "_start", door)

    async def main() -> list[Any]:
        layers = [slow_outside, early]
        async with no_noise(), agent_playing(ONE_CALL, tools=[hand.act], extensions=layers, bounds=limits(drain_s=0.01)) as agent:
            await agent.run("go")
            return await records_of(agent, ToolStepEnded)

    (record,) = asyncio.run(main())
    assert hand.ran == 0
    assert (record.message.content, record.effect, record.decided_by) == ("early", "none", "early")


def test_a_layer_further_in_that_ignores_its_cancellation_cannot_start_the_handler_after_the_call_has_ended() -> None:
    hand, release = Hand(), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    @extension(priority=50)
    async def early(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        left.append(asyncio.create_task(call_next()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return "early"

    @extension(priority=60)
    async def stubborn(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass
        return await call_next()

    async def main() -> None:
        options = {"tools": [hand.act], "extensions": [early, stubborn], "bounds": limits(drain_s=0.01)}
        async with agent_playing(ONE_CALL, **options) as agent:
            result = await agent.run("go")
            release.set()
            with pytest.raises(AlreadyDelegated, match="its call has ended"):
                await left[0]
            assert result.outcome is Outcome.COMPLETED
            assert await records_of(agent, HandlerStarted) == []

    asyncio.run(main())
    assert hand.ran == 0


def test_a_handler_that_ignores_its_cancellation_is_left_behind_and_what_it_says_then_is_recorded_as_late() -> None:
    async def main() -> None:
        gate, began, ended_late = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def act() -> str:
            began.set()
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    pass
            ended_late.set()
            return "late"

        @extension
        async def early(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            left.append(asyncio.create_task(call_next()))  # type: ignore[arg-type]
            await began.wait()
            return "early"

        left: list[asyncio.Task[Any]] = []
        async with no_noise(), agent_playing(ONE_CALL, tools=[act], extensions=[early], bounds=limits(drain_s=0.01)) as agent:
            await agent.run("go")
            gate.set()
            await ended_late.wait()
            await left[0]
            for _ in range(5):
                await asyncio.sleep(0)
            (record,) = await records_of(agent, ToolStepEnded)
            assert (record.message.content, record.effect) == ("early", "unknown")
            assert [late.content for late in await records_of(agent, ToolLateResult)] == ["late"]

    asyncio.run(main())


# ---- the one lock ------------------------------------------------------------------------------------


def without_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away everything that keeps a second delegation out in memory; what is left is the machine."""
    monkeypatch.setattr(Slot, "delegated", property(lambda _: None, lambda _, value: None))
    monkeypatch.setattr(ToolStep, "_check_open", lambda self: None)


@pytest.mark.parametrize("behave", [twice, twice_and_swallow, race, race_and_collect, task_and_again])
@pytest.mark.parametrize("threaded", [False, True])
def test_with_every_flag_in_memory_removed_the_machine_alone_refuses_a_second_start(
    monkeypatch: pytest.MonkeyPatch, behave: Callable[[CallNext], Any], threaded: bool
) -> None:
    without_flags(monkeypatch)
    hand = Hand()
    name = "act_in_a_thread" if threaded else "act"

    @extension
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return await behave(call_next)

    async def main() -> int:
        async with agent_playing([calls(call("c1", name))], tools=[getattr(hand, name)], extensions=[layer]) as agent:
            with pytest.raises(ProtocolError, match="has already started"):
                await agent.run("go")
            return len(await records_of(agent, HandlerStarted))

    assert asyncio.run(main()) == 1
    assert hand.ran <= 1


def test_with_every_flag_in_memory_removed_a_call_next_that_was_kept_still_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    without_flags(monkeypatch)
    hand = Hand()
    kept: list[CallNext] = []

    @extension
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        kept.append(call_next)
        return await call_next()

    async def main() -> None:
        async with agent_playing(ONE_CALL, tools=[hand.act], extensions=[layer]) as agent:
            await agent.run("go")
            with pytest.raises(ProtocolError):
                await kept[0]()

    asyncio.run(main())
    assert hand.ran == 1


# ---- what is not one call twice ------------------------------------------------------------------------


def test_two_identical_calls_in_one_response_are_two_calls_and_both_run() -> None:
    appended: list[str] = []

    async def append(line: str) -> int:
        appended.append(line)
        return len(appended)

    steps = [calls(call("c1", "append", {"line": "x"}), call("c2", "append", {"line": "x"})), text("done")]
    played = asyncio.run(play(steps, tools=[append]))
    assert appended == ["x", "x"]
    assert [m.content for m in played.result.messages if isinstance(m, ToolMessage)] == ["1", "2"]


def test_the_same_call_in_a_later_turn_is_another_call() -> None:
    hand = Hand()
    played = asyncio.run(play([calls(call("c1", "act")), calls(call("c1", "act")), text("done")], tools=[hand.act]))
    assert (hand.ran, starts(played)) == (2, 2)
    ids = [m.tool_call_id for m in played.result.messages if isinstance(m, ToolMessage)]
    assert len(set(ids)) == 2


def test_arguments_that_do_not_fit_are_told_from_a_failure_in_the_body_and_run_nothing() -> None:
    ran: list[int] = []

    async def double(n: int) -> int:
        ran.append(n)
        if n > 1:
            raise ValueError("too large")
        return 2 * n

    steps = [calls(call("c1", "double", {"n": "one"}), call("c2", "double", {"n": 2}), call("c3", "double", {"n": 1})), text("done")]
    played = asyncio.run(play(steps, tools=[double]))
    by_id = {record.message.tool_call_id: record for record in ended(played)}
    assert sorted(ran) == [1, 2]
    assert [by_id[id].code for id in ("c1", "c2", "c3")] == ["invalid_arguments", "failed", "ok"]
    assert [by_id[id].effect for id in ("c1", "c2", "c3")] == ["none", "unknown", "happened"]


def test_a_body_that_validates_something_itself_is_not_taken_for_wrong_arguments() -> None:
    from pydantic import TypeAdapter

    ran: list[int] = []

    async def parse() -> int:
        ran.append(1)
        return TypeAdapter(int).validate_python("five")

    (record,) = ended(asyncio.run(play([calls(call("c1", "parse")), text("done")], tools=[parse])))
    assert (ran, record.code, record.effect) == ([1], "failed", "unknown")


def test_a_run_cancelled_while_it_waits_for_the_journal_never_runs_the_handler_afterwards() -> None:
    """The record may be there; the handler's first line is not reached."""
    hand = Hand()
    gate, reached = asyncio.Event(), asyncio.Event()

    async def main() -> None:
        async with agent_playing([calls(call("c1", "act"))], tools=[hand.act], bounds=Limits(drain_s=5.0)) as agent:
            live = agent.live("s")
            durable = live.log.durable

            class Slow:
                """The session's log, whose wait at HandlerStarted takes as long as the test wants."""

                async def durable(self) -> None:
                    if any(one.starts for one in live.state.calls.values()):
                        reached.set()
                        await gate.wait()
                    await durable()

                def __getattr__(self, name: str) -> Any:
                    return getattr(log, name)

            log, live.log = live.log, Slow()  # type: ignore[assignment]
            task = asyncio.create_task(agent.run("go"))
            await reached.wait()
            cancelling = asyncio.create_task(agent.cancel())
            result = await task
            gate.set()
            await cancelling
            assert result.outcome is Outcome.CANCELLED
            (record,) = await records_of(agent, ToolStepEnded)
            assert record.effect == "none"

    asyncio.run(main())
    assert hand.ran == 0
