"""One agent, many sessions: they never mix, and each has one run at a time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from helpers import agent_playing, limits, no_noise, records_of, said
from interlock import Agent, AgentRunConfig, Outcome, RunContext, SessionBusy, UsageError
from interlock.events import TextDelta
from interlock.extensions.base import AgentExtension
from interlock.messages import ToolMessage
from interlock.messages.validity import is_valid
from interlock.records import ModelStepEnded
from interlock.testing import ScriptedModel, call, calls, hold, text


def echo(body: dict[str, Any]) -> Any:
    """Calls ``remember`` with the prompt, then answers with its result."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text(f"remembered {last['content']}")
    return calls(call("same-id", "remember", {"word": last["content"]}))


def test_many_sessions_at_once_on_one_agent_never_mix() -> None:
    seen: dict[str, set[str]] = {}
    together = asyncio.Barrier(25)

    class Look(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            seen.setdefault(context.session_id, set()).add(context.deps)
            return await call_next()

    async def remember(word: str, context: RunContext) -> str:
        await together.wait()
        assert word == f"word of {context.session_id}"
        return f"{word}, {context.deps}"

    async def main() -> None:
        model = ScriptedModel(echo)
        async with no_noise(), await Agent.create(model, tools=[remember], extensions=[Look()], limits=limits()) as agent:

            async def converse(name: str) -> None:
                for _ in range(2):
                    config = AgentRunConfig(session_id=name, deps=f"deps of {name}")
                    result = await agent.run(f"word of {name}", config=config)
                    assert (result.session_id, result.text) == (name, f"remembered word of {name}, deps of {name}")
                    assert is_valid(result.messages)
                    assert all(name in str(m.content) or m.content == "" for m in result.messages)

            await asyncio.gather(*(converse(f"s{n:02d}") for n in range(25)))
            rows = await agent.session("s07").records()
            assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
            assert {row.session for row in rows} == {"s07"}

    asyncio.run(main())
    assert seen == {f"s{n:02d}": {f"deps of s{n:02d}"} for n in range(25)}


@pytest.mark.parametrize("first", ["run", "stream"])
@pytest.mark.parametrize("second", ["run", "stream", "resume"])
def test_a_second_run_on_a_session_that_has_one_alive_is_refused_and_disturbs_nothing(first: str, second: str) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with no_noise(), agent_playing([hold(gate, after="do", then=text("ne")), text("next")]) as agent:
            events = agent.stream("go")
            task: Any = None
            if first == "stream":
                async for event in events:
                    if isinstance(event, TextDelta):
                        break
            else:
                task = asyncio.create_task(agent.run("go"))
                await asyncio.sleep(0)
            with pytest.raises(SessionBusy):
                if second == "run":
                    await agent.run("me too")
                elif second == "stream":
                    await anext(agent.stream("me too"))
                else:
                    await agent.resume()
            gate.set()
            if task is not None:
                assert (await task).text == "done"
            else:
                async for event in events:
                    last = event
                assert last.result.outcome is Outcome.COMPLETED  # type: ignore[union-attr]
            assert (await agent.run("now me")).text == "next"

    asyncio.run(main())


def test_a_session_handle_addresses_its_session_and_so_do_the_agents_own_methods() -> None:
    async def main() -> None:
        model = ScriptedModel(lambda body: text(f"{len(body['messages'])} messages"))
        async with await Agent.create(model, config=AgentRunConfig(session_id="own")) as agent:
            other = agent.session("other")
            assert (await agent.run("a")).session_id == "own"
            assert (await other.run("b")).session_id == "other"
            assert (await other.run("c")).text == "3 messages"
            assert [m.content for m in await other.messages()] == ["b", "1 messages", "c", "3 messages"]
            assert len(await agent.session("own").messages()) == 2

    asyncio.run(main())


def test_a_session_id_is_generated_once_so_that_the_agents_runs_are_one_conversation() -> None:
    async def main() -> None:
        async with await Agent.create(ScriptedModel([text("one"), text("two")])) as agent:
            first, second = await agent.run("a"), await agent.run("b")
            assert first.session_id == second.session_id
            assert first.run_id != second.run_id
            assert len(second.messages) == 4

    asyncio.run(main())


def test_the_config_of_a_run_is_merged_field_by_field_over_the_agents_own() -> None:
    deps: list[Any] = []

    async def act(context: RunContext) -> None:
        deps.append(context.deps)

    async def main() -> None:
        model = ScriptedModel([calls(call("c", "act")), text("a"), text("b")])
        own = AgentRunConfig(session_id="s", temperature=0.5, max_tokens=100, deps="own", stop="END")
        async with await Agent.create(model, config=own, tools=[act]) as agent:
            result = await agent.run("go", config=AgentRunConfig(temperature=0.0, seed=7))
            assert result.session_id == "s"
            await agent.run("go")
        settings = [request.settings for request in model.requests]
        assert [(s.temperature, s.max_tokens, s.seed, s.stop) for s in settings] == [
            (0.0, 100, 7, ("END",)),
            (0.0, 100, 7, ("END",)),
            (0.5, 100, None, ("END",)),
        ]

    asyncio.run(main())
    assert deps == ["own"]


def test_a_failed_start_of_a_run_leaves_the_session_free() -> None:
    async def main() -> None:
        async with agent_playing([text("done")]) as agent:
            for wrong in ("", None, 7, [], "x" * (16 * 1024 * 1024 + 1)):
                with pytest.raises(UsageError):
                    await agent.run(wrong)
            with pytest.raises(UsageError):
                await agent.run("x", config="s")  # type: ignore[arg-type]
            assert (await agent.run("go")).text == "done"

    asyncio.run(main())


def test_a_closed_agent_refuses_and_closing_twice_is_closing_once() -> None:
    async def main() -> None:
        model = ScriptedModel([text("done")])
        agent = await Agent.create(model)
        await agent.run("go")
        await agent.aclose()
        await agent.aclose()
        assert model.closed
        for use in (lambda: agent.run("go"), agent.cancel, agent.resume):
            with pytest.raises(UsageError, match="closed"):
                await use()

    asyncio.run(main())


def test_a_model_that_serves_two_agents_is_closed_with_the_second() -> None:
    async def main() -> None:
        model = ScriptedModel([text("still there")])
        first, second = await Agent.create(model), await Agent.create(model)
        await first.aclose()
        assert not model.closed
        assert (await second.run("go")).text == "still there"
        await second.aclose()
        assert model.closed

    asyncio.run(main())


# ---- scripts without a loop of their own -----------------------------------------------------------------


def test_the_synchronous_pair_runs_in_a_thread_of_its_own_and_keeps_the_conversation() -> None:
    where: list[str] = []

    def act() -> None:
        where.append(threading.current_thread().name)

    model = ScriptedModel([calls(call("c", "act")), text("one"), text("two")])
    before = threading.active_count()
    agent = Agent.create_sync(model, tools=[act])
    try:
        assert agent.run_sync("go").text == "one"
        result = agent.run_sync("on")
        assert (result.text, len(result.messages)) == ("two", 6)
        assert [m.content for m in result.messages if isinstance(m, ToolMessage)] == ["null"]
    finally:
        agent.close_sync()
    assert where != [threading.current_thread().name]
    assert threading.active_count() <= before + 1  # an idle worker may be left, the loop's thread not
    agent.close_sync()
    model.assert_done()


def test_inside_a_loop_the_synchronous_pair_is_a_usage_error_and_leaves_no_noise() -> None:
    outside = Agent.create_sync(ScriptedModel([]))

    async def main() -> None:
        async with no_noise():
            with pytest.raises(UsageError, match="event loop is running"):
                Agent.create_sync(ScriptedModel([]))
            with pytest.raises(UsageError, match="event loop is running"):
                outside.run_sync("go")
            async with await Agent.create(ScriptedModel([])) as agent:
                with pytest.raises(UsageError, match="create_sync"):
                    agent.run_sync("go")

    try:
        asyncio.run(main())
    finally:
        outside.close_sync()


INTERRUPTED = """
import os, signal, threading
from interlock import Agent
from interlock.testing import ScriptedModel, call, calls, text

async def act() -> None:
    import asyncio
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)

agent = Agent.create_sync(ScriptedModel([calls(call("c", "act")), text("on")]), tools=[act])
try:
    agent.run_sync("go")
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(agent.run_sync("and now?").text, flush=True)
agent.close_sync()
"""


def test_ctrl_c_cancels_a_synchronous_run_and_the_session_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (["cleaned up", "interrupted", "on"], "", 0)


# ---- messages from elsewhere -----------------------------------------------------------------------------------


def test_imported_messages_join_the_conversation_and_what_had_to_be_mended_is_said(caplog: pytest.LogCaptureFixture) -> None:
    from interlock.messages import AssistantMessage, ToolCall, UserMessage

    async def main() -> None:
        model = ScriptedModel([text("done")])
        async with await Agent.create(model, config=AgentRunConfig(session_id="s")) as agent:
            old = [UserMessage(content="hi"), AssistantMessage(tool_calls=(ToolCall(id="old", name="look"),))]
            repairs = await agent.import_messages(old)
            assert len(repairs) >= 1
            result = await agent.run("go")
            assert [role for role, _ in said(model.bodies[0])] == ["user", "assistant", "tool", "user"]
            assert is_valid(result.messages)

    asyncio.run(main())
    assert "imported messages of session s" in caplog.text


def test_an_extension_whose_fold_raises_is_named_and_nothing_is_recorded_of_what_it_could_not_remember() -> None:
    class Forgetful(AgentExtension):
        def fold(self, memory: Any, record: Any) -> Any:
            if isinstance(record, ModelStepEnded):
                raise KeyError("what was it")
            return memory

    async def main() -> None:
        async with agent_playing([text("hello")], extensions=[Forgetful()]) as agent:
            with pytest.raises(UsageError, match="fold of extension Forgetful raised on ModelStepEnded"):
                await agent.run("go")
            assert await records_of(agent, ModelStepEnded) == []

    asyncio.run(main())
