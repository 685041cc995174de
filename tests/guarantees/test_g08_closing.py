"""G08: when a consumer leaves, the provider's socket is closed within 250 ms, and nothing is left over.

The time is taken where it counts: at the server's end of the socket.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from helpers import agent_playing, limits, no_noise, records_of
from interlock import Agent, AgentRunConfig, Outcome, extension, tool
from interlock.events import RunFinished, TextDelta, ToolFinished, ToolStarted
from interlock.extensions.base import AgentExtension
from interlock.messages.validity import is_valid
from interlock.model import ModelEvent, ModelRequest
from interlock.providers.openai import OpenAIChatModel
from interlock.records import RunCancelled, RunEnded, ToolStepEnded
from interlock.testing import ScriptedModel, WireServer, call, calls, hold, text, when
from threaded import serving

SOCKET_S = 0.25
ACLOSE_S = 0.5


def clock() -> float:
    return asyncio.get_running_loop().time()


# ---- ways to leave -----------------------------------------------------------------------------------
# Each consumes until it has seen text, leaves, and returns the moment at which it left.


async def until_text(events: AsyncIterator[Any]) -> None:
    async for event in events:
        if isinstance(event, TextDelta):
            return


async def by_breaking_out(agent: Agent) -> float:
    async with aclosing(agent.stream("go")) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                left = clock()
                break
    return left


async def by_closing(agent: Agent) -> float:
    events = agent.stream("go")
    await until_text(events)
    left = clock()
    await events.aclose()
    return left


async def by_raising(agent: Agent) -> float:
    left = 0.0
    with pytest.raises(ZeroDivisionError):
        async with aclosing(agent.stream("go")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    left = clock()
                    raise ZeroDivisionError
    return left


async def by_dropping_the_last_reference(agent: Agent) -> float:
    events = agent.stream("go")
    await until_text(events)
    del events
    gc.collect()
    return clock()  # until here nobody could have noticed


async def by_waiting_no_longer(agent: Agent) -> float:
    events = agent.stream("go")
    await until_text(events)
    left = clock()
    with pytest.raises(TimeoutError):
        while True:
            await asyncio.wait_for(anext(events), 0.01)
    return left + 0.01


async def by_cancelling_the_consumer(agent: Agent) -> float:
    seen = asyncio.Event()

    async def consume() -> None:
        async with aclosing(agent.stream("go")) as events:
            await until_text(events)
            seen.set()
            async for _ in events:
                pass

    task = asyncio.create_task(consume())
    await seen.wait()
    await asyncio.sleep(0)
    left = clock()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return left


async def by_cancelling_the_run(agent: Agent) -> float:
    """The consumer stays; somebody else ends the run."""
    left = 0.0
    async with aclosing(agent.stream("go")) as events:
        async for event in events:
            if isinstance(event, TextDelta) and not left:
                left = clock()
                await agent.cancel()
            if isinstance(event, RunFinished):
                assert event.result.outcome is Outcome.CANCELLED
    return left


async def by_closing_the_agent(agent: Agent) -> float:
    events = agent.stream("go")
    await until_text(events)
    left = clock()
    await agent.aclose()
    await events.aclose()
    return left


WAYS = [
    by_breaking_out,
    by_closing,
    by_raising,
    by_dropping_the_last_reference,
    by_waiting_no_longer,
    by_cancelling_the_consumer,
    by_cancelling_the_run,
    by_closing_the_agent,
]

ways = pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)


# ---- layers on the way to the socket ---------------------------------------------------------------


class Layered(AgentExtension):
    """Counts how often its stream was entered and how often its ``finally`` ran."""

    def __init__(self) -> None:
        self.entered = 0
        self.left = 0

    async def on_model_request(self, context: Any, request: ModelRequest, call_next: Any) -> AsyncIterator[ModelEvent]:
        self.entered += 1
        try:
            async for event in self.through(call_next(request)):
                yield event
        finally:
            self.left += 1

    async def through(self, inner: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
        async with aclosing(inner) as events:  # type: ignore[type-var]
            async for event in events:
                yield event


class Forgetful(Layered):
    """Never closes what it opened, and keeps a reference to it, so that no garbage collector does it either."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    async def through(self, inner: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
        self.kept.append(inner)
        while True:
            try:
                yield await anext(inner)
            except StopAsyncIteration:
                return


class Pumping(Layered):
    """Reads ahead in a task of its own, and forgets that task when it is left."""

    def __init__(self) -> None:
        super().__init__()
        self.pumps: list[asyncio.Task[None]] = []

    async def through(self, inner: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
        queue: asyncio.Queue[ModelEvent | None] = asyncio.Queue()

        async def pump() -> None:
            async for event in inner:
                queue.put_nowait(event)
            queue.put_nowait(None)

        self.pumps.append(asyncio.create_task(pump()))
        while (event := await queue.get()) is not None:
            yield event


LAYERS: dict[str, Callable[[], list[Layered]]] = {
    "no layer": list,
    "two layers": lambda: [Layered(), Layered()],
    "a layer that forgets": lambda: [Forgetful()],
    "forgetful ones among others": lambda: [Layered(), Forgetful(), Layered(), Forgetful()],
    "a layer that reads ahead": lambda: [Layered(), Pumping(), Layered()],
}


@asynccontextmanager
async def served(*steps: Any, **options: Any) -> AsyncIterator[tuple[Agent, WireServer]]:
    async with WireServer(steps) as server:
        model = OpenAIChatModel("scripted", base_url=server.base_url)
        config = AgentRunConfig(session_id="s")
        async with await Agent.create(model, config=config, limits=options.pop("bounds", limits()), **options) as agent:
            yield agent, server


def valid_and_cancelled(body: dict[str, Any]) -> bool:
    roles = [message["role"] for message in body["messages"]]
    return roles == ["user", "user"]


@ways
@pytest.mark.parametrize("layers", LAYERS)
def test_the_socket_is_closed_at_the_servers_end_however_the_consumer_leaves(
    leave: Callable[[Agent], Awaitable[float]], layers: str
) -> None:
    made = LAYERS[layers]()

    async def main() -> None:
        async with no_noise(), served(hold(asyncio.Event(), after="Here it comes"), extensions=made) as (agent, server):
            left = await leave(agent)
            (request,) = server.requests
            await asyncio.wait_for(request.disconnected.wait(), 2.0)
            assert request.disconnected_at is not None
            assert request.disconnected_at - left < SOCKET_S
            assert not request.finished.is_set()
            if leave is by_dropping_the_last_reference:
                await ended(agent)
            assert [layer.entered for layer in made] == [layer.left for layer in made] == [1] * len(made)

    asyncio.run(main())


async def ended(agent: Agent) -> None:
    """Wait until the journal says that the run is over."""
    async with aclosing(agent._journal.tail("s")) as rows:  # type: ignore[type-var]
        async for row in rows:
            if isinstance(row.record, RunEnded):
                return


@pytest.mark.parametrize("leave", [way for way in WAYS if way is not by_closing_the_agent], ids=lambda way: way.__name__)
def test_the_session_goes_on_afterwards_with_a_valid_request(leave: Callable[[Agent], Awaitable[float]]) -> None:
    async def main() -> None:
        steps = [hold(asyncio.Event(), after="Here it comes"), when(valid_and_cancelled, text("Still here."))]
        async with no_noise(), served(*steps) as (agent, _):
            await leave(agent)
            if leave is by_dropping_the_last_reference:
                await ended(agent)
            result = await agent.run("and now?")
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "Still here.")
            assert is_valid(result.messages)
            outcomes = [record.outcome for record in await records_of(agent, RunEnded)]
            assert outcomes == [Outcome.CANCELLED, Outcome.COMPLETED]
            assert len(await records_of(agent, RunCancelled)) == 1

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancel", "wait_for"])
def test_a_run_that_is_cancelled_from_outside_closes_the_socket_and_raises_what_it_should(how: str) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with no_noise(), served(hold(gate, after="Here it comes")) as (agent, server):
            if how == "cancel":
                task = asyncio.create_task(agent.run("go"))
                while not server.requests:
                    await asyncio.sleep(0.001)
                left = clock()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(agent.run("go"), 0.05)
                left = clock()
            (request,) = server.requests
            await asyncio.wait_for(request.disconnected.wait(), 2.0)
            assert (request.disconnected_at or 0.0) - left < SOCKET_S
            (record,) = await records_of(agent, RunEnded)
            assert record.outcome is Outcome.CANCELLED

    asyncio.run(main())


def test_a_consumer_that_leaves_before_the_first_byte_of_the_reply_closes_the_socket_too() -> None:
    async def main() -> None:
        async with no_noise(), served(hold(asyncio.Event())) as (agent, server):
            events = agent.stream("go")
            await anext(events)
            while not server.requests:
                await asyncio.sleep(0.001)
            left = clock()
            await events.aclose()
            (request,) = server.requests
            await asyncio.wait_for(request.disconnected.wait(), 2.0)
            assert (request.disconnected_at or 0.0) - left < SOCKET_S

    asyncio.run(main())


def test_a_stream_that_is_never_begun_starts_nothing() -> None:
    async def main() -> None:
        async with no_noise(), agent_playing([text("later")]) as agent:
            events = agent.stream("go")
            await events.aclose()
            del events
            assert await records_of(agent) == []
            assert (await agent.run("go")).text == "later"

    asyncio.run(main())


def test_the_run_is_over_when_aclose_returns_so_that_the_next_one_may_begin_at_once() -> None:
    async def main() -> None:
        async with agent_playing([hold(asyncio.Event(), after="Hello there"), text("yes")]) as agent:
            await by_closing(agent)
            assert (await agent.run("again")).text == "yes"

    asyncio.run(main())


# ---- a layer cannot leak its inner stream -----------------------------------------------------------


class Keeping(ScriptedModel):
    """Keeps every stream that it gave out: only a real ``aclose`` can end one."""

    def __init__(self, steps: Any) -> None:
        super().__init__(steps)
        self.streams: list[Any] = []

    def stream(self, request: ModelRequest) -> Any:
        self.streams.append(super().stream(request))
        return self.streams[-1]


@pytest.mark.parametrize("layers", ["two layers", "a layer that forgets", "forgetful ones among others"])
def test_a_layer_that_answers_by_itself_half_way_leaves_no_stream_of_the_provider_open(layers: str) -> None:
    class Impatient(AgentExtension):
        priority = 1000 - 110

        async def on_model_request(self, context: Any, request: ModelRequest, call_next: Any) -> AsyncIterator[ModelEvent]:
            stream = call_next(request)
            async for event in stream:
                yield event
                raise KeyError("enough")

    async def main() -> None:
        model = Keeping([hold(asyncio.Event(), after="Here it comes")])
        async with await Agent.create(model, extensions=[*LAYERS[layers](), Impatient()], limits=limits()) as agent:
            with pytest.raises(KeyError, match="enough"):
                await agent.run("go")
            await asyncio.sleep(0)
            assert model.open_streams == 0
            assert len(model.streams) == 1

    asyncio.run(main())


def test_a_call_next_of_the_model_boundary_that_is_kept_and_used_after_its_step_sends_nothing() -> None:
    from interlock import UsageError

    kept: list[Any] = []

    class Keep(AgentExtension):
        async def on_model_request(self, context: Any, request: ModelRequest, call_next: Any) -> AsyncIterator[ModelEvent]:
            kept.append((call_next, request))
            async for event in call_next(request):
                yield event

    async def main() -> None:
        model = ScriptedModel([text("done")])
        async with await Agent.create(model, extensions=[Keep()]) as agent:
            await agent.run("go")
            call_next, request = kept[0]
            with pytest.raises(UsageError, match="has ended"):
                async for _ in call_next(request):
                    pass
            assert len(model.requests) == 1

    asyncio.run(main())


# ---- slow cleaning up ----------------------------------------------------------------------------------


class Slow(AgentExtension):
    """Its ``finally`` takes until ``gate`` is set."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate
        self.cleaned = asyncio.Event()

    async def on_model_request(self, context: Any, request: ModelRequest, call_next: Any) -> AsyncIterator[ModelEvent]:
        try:
            async for event in call_next(request):
                yield event
        finally:
            await self.gate.wait()
            self.cleaned.set()


def test_a_slow_finally_holds_up_neither_aclose_nor_the_socket_and_is_awaited_in_the_background() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        slow = Slow(gate)
        steps = [hold(asyncio.Event(), after="Here it comes"), text("on")]
        async with no_noise(), served(*steps, extensions=[slow]) as (agent, server):
            left = await by_closing(agent)
            assert clock() - left < ACLOSE_S
            assert (server.requests[0].disconnected_at or 1e9) - left < SOCKET_S
            assert not slow.cleaned.is_set()
            await asyncio.sleep(0.05)  # long after the run gave it up, it is still there
            gate.set()
            await asyncio.wait_for(slow.cleaned.wait(), 1.0)
            assert (await agent.run("and now?")).text == "on"

    asyncio.run(main())


@pytest.mark.parametrize("where", ["layer", "handler"])
def test_a_slow_finally_of_a_tool_call_does_not_hold_up_aclose_and_is_not_broken_off(where: str) -> None:
    async def main() -> None:
        gate, started, cleaned, finished = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

        @extension
        async def slow(context: Any, call: Any, call_next: Any) -> Any:
            try:
                return await call_next()
            finally:
                if where == "layer":
                    await gate.wait()
                finished.set()

        async def act() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                if where == "handler":
                    await gate.wait()
                cleaned.set()

        options: dict[str, Any] = {"tools": [act], "extensions": [slow], "bounds": limits(drain_s=0.05)}
        async with no_noise(), agent_playing([calls(call("c1", "act")), text("on")], **options) as agent:
            events = agent.stream("go")
            async for event in events:
                if isinstance(event, ToolStarted):
                    break
            await started.wait()
            left = clock()
            await events.aclose()
            assert clock() - left < ACLOSE_S
            (record,) = await records_of(agent, ToolStepEnded)
            assert (record.effect, record.code) == ("unknown", "cancelled")
            result = await agent.run("and now?")
            assert (result.text, is_valid(result.messages)) == ("on", True)
            gate.set()
            await asyncio.wait_for(cleaned.wait(), 1.0)
            await asyncio.wait_for(finished.wait(), 1.0)

    asyncio.run(main())


# ---- siblings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
def test_every_running_call_is_cancelled_and_drained_within_its_bound(threaded: bool) -> None:
    async def main() -> None:
        running: list[str] = []
        all_run = asyncio.Event()
        stopped: list[str] = []

        async def act(name: str) -> None:
            running.append(name)
            if len(running) == 3:
                all_run.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # a little cleaning up
                stopped.append(name)

        handler = tool(timeout_s=30)(act) if threaded else act
        steps = [calls(*(call(name, "act", {"name": name}) for name in "abc"))]
        async with no_noise(), agent_playing(steps, tools=[handler], bounds=limits(drain_s=5.0)) as agent:
            events = agent.stream("go")
            async for event in events:
                if isinstance(event, ToolStarted):
                    break
            await all_run.wait()
            left = clock()
            await events.aclose()
            assert clock() - left < ACLOSE_S
            assert sorted(stopped) == ["a", "b", "c"]
            assert {record.code for record in await records_of(agent, ToolStepEnded)} == {"cancelled"}

    asyncio.run(main())


def test_a_call_that_ignores_its_cancellation_is_left_behind_after_the_bound() -> None:
    async def main() -> None:
        started, gate = asyncio.Event(), asyncio.Event()

        async def act() -> str:
            started.set()
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    pass
            return "done in spite of it"

        async with no_noise(), agent_playing([calls(call("c1", "act"))], tools=[act], bounds=limits(drain_s=0.05)) as agent:
            task = asyncio.create_task(agent.run("go"))
            await started.wait()
            left = clock()
            await agent.cancel()
            assert (await task).outcome is Outcome.CANCELLED
            assert 0.04 < clock() - left < ACLOSE_S
            gate.set()

    asyncio.run(main())


def test_a_consumer_that_leaves_after_the_first_of_three_results_keeps_what_is_known_of_each() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def act(name: str) -> str:
            if name != "a":
                await gate.wait()
            return name

        steps = [calls(*(call(name, "act", {"name": name}) for name in "abc")), text("on")]
        async with no_noise(), agent_playing(steps, tools=[act]) as agent:
            async with aclosing(agent.stream("go")) as events:
                async for event in events:
                    if isinstance(event, ToolFinished):
                        break
            records = {record.message.tool_call_id: record for record in await records_of(agent, ToolStepEnded)}
            assert {id: record.effect for id, record in records.items()} == {"a": "happened", "b": "unknown", "c": "unknown"}
            result = await agent.run("and now?")
            assert [m.tool_call_id for m in result.messages if hasattr(m, "tool_call_id")] == ["a", "b", "c"]  # type: ignore[attr-defined]
            assert is_valid(result.messages)

    asyncio.run(main())


# ---- cancelled more than once ------------------------------------------------------------------------


def test_two_cancellations_around_a_turn_of_the_loop_twelve_times_over_leak_no_connection() -> None:
    async def main() -> None:
        async with no_noise(), WireServer(lambda body: hold(asyncio.Event(), after="Here it comes")) as server:
            model = OpenAIChatModel("scripted", base_url=server.base_url)
            async with await Agent.create(model, limits=limits(worker_threads=2)) as agent:
                for number in range(12):
                    task = asyncio.create_task(agent.run("go", config=AgentRunConfig(session_id=f"s{number}")))
                    while len(server.requests) <= number:
                        await asyncio.sleep(0.001)
                    task.cancel()
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await asyncio.wait_for(server.requests[number].disconnected.wait(), 2.0)
                assert server.open_connections == 0

    asyncio.run(main())


def test_cancelled_waits_for_a_worker_thread_give_their_place_back() -> None:
    import threading

    async def main() -> None:
        release = threading.Event()

        def block() -> str:
            release.wait(5)
            return "free"

        started = asyncio.Event()

        class Seen(AgentExtension):
            async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
                started.set()
                return await call_next()

        bounds = limits(worker_threads=1, worker_wait_s=5.0, drain_s=0.05)
        script = ScriptedModel(lambda body: calls(call("c", "block")) if body["messages"][-1]["role"] == "user" else text("done"))
        async with await Agent.create(script, tools=[block], extensions=[Seen()], limits=bounds) as agent:
            first = asyncio.create_task(agent.run("go", config=AgentRunConfig(session_id="first")))
            await started.wait()
            for number in range(12):
                started.clear()
                task = asyncio.create_task(agent.run("go", config=AgentRunConfig(session_id=f"s{number}")))
                await started.wait()
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            release.set()
            assert (await first).text == "done"
            last = await agent.run("go", config=AgentRunConfig(session_id="last"))
            assert last.text == "done"
            assert agent.parts.workers.occupied == 0

    asyncio.run(main())


def test_a_program_that_just_ends_leaves_no_noise_behind(capfd: pytest.CaptureFixture[str]) -> None:
    async def main(base_url: str) -> None:
        agent = await Agent.create(OpenAIChatModel("scripted", base_url=base_url))
        events = agent.stream("go")
        await until_text(events)
        # The loop is closed under a run, a stream and a connection that nobody ended.

    with serving([hold(asyncio.Event(), after="Here it comes")]) as server:
        asyncio.run(main(server.base_url))
        gc.collect()
    said = capfd.readouterr().err
    assert "never retrieved" not in said
    assert "was destroyed" not in said
