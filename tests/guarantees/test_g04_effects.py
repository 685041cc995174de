"""G04: every failed call tells the model and the journal what happened to its effect: none, happened or unknown."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from helpers import Played, agent_playing, limits, no_noise, play, records_of, reply
from interlock import Fatal, Outcome, ToolFailure, extension, tool
from interlock.errors import Effect
from interlock.events import ToolFinished
from interlock.extensions.base import AgentExtension, CallNext, RunContext, Stop, ToolInvocation
from interlock.machine import EFFECT_SENTENCE, NO_EFFECT_SENTENCE
from interlock.messages import StopReason, ToolCall, ToolMessage
from interlock.records import HandlerStarted, ModelStepEnded, ToolLateResult, ToolStepEnded
from interlock.testing import call, calls, hold, text


def check(played: Played, *, effect: Effect, code: str, decided_by: str, reason: str = "") -> ToolStepEnded:
    """The record, the message in the transcript, the request and the event all say the same of the one call."""
    (record,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    (event,) = played.of(ToolFinished)
    (message,) = [message for message in played.result.messages if isinstance(message, ToolMessage)]
    assert (record.effect, record.code, record.decided_by) == (effect, code, decided_by)
    assert (event.effect, event.code, event.decided_by, event.message) == (effect, code, decided_by, record.message)
    assert message == record.message
    assert (message.effect, message.failed) == (effect, True)
    first, second = str(message.content).rsplit("\n", 1)
    assert first.startswith(f"Tool error ({message.name}): ")
    assert reason in first
    ran = any(isinstance(record, HandlerStarted) for record in played.records)
    assert second == (NO_EFFECT_SENTENCE if ran and effect == "none" else EFFECT_SENTENCE[effect])
    sent = [said["content"] for said in played.bodies[1]["messages"] if said["role"] == "tool"]
    assert sent == [message.content]
    return record


def one_call(handler: Any, *layers: Any, name: str = "act", arguments: Any = None, **options: Any) -> Played:
    return asyncio.run(play([calls(call("c1", name, arguments)), text("done")], tools=[handler], extensions=layers, **options))


def test_the_three_sentences_are_different_and_only_one_of_them_says_that_nothing_happened() -> None:
    assert len(set(EFFECT_SENTENCE.values())) == 3
    assert "nothing happened" in EFFECT_SENTENCE["none"]
    assert "not" not in EFFECT_SENTENCE["happened"].split(". ", 1)[0]
    for sentence in EFFECT_SENTENCE.values():
        assert "\n" not in sentence
        assert "failed" not in sentence.lower()
        assert "error" not in sentence.lower()


class Releaser(AgentExtension):
    """Sets ``event`` once a call has been refused."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def on_record(self, context: RunContext, record: Any) -> None:
        if isinstance(record, ToolStepEnded) and record.code == "no_worker":
            self.event.set()


# ---- the handler never started: none -----------------------------------------------------------------


def test_a_call_with_arguments_that_do_not_fit_had_no_effect() -> None:
    async def act(n: int) -> int:
        return n

    check(one_call(act, arguments={"n": "x"}), effect="none", code="invalid_arguments", decided_by="runtime", reason="n: ")


@pytest.mark.parametrize("arguments", ["{", "[1]", "7", '{"n": 2'])
def test_a_call_whose_arguments_are_no_json_object_had_no_effect(arguments: str) -> None:
    async def act(n: int = 0) -> int:
        return n

    played = one_call(act, arguments=arguments)
    check(played, effect="none", code="malformed", decided_by="runtime")
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]


def test_a_call_of_an_unknown_tool_had_no_effect() -> None:
    async def act() -> int:
        return 1

    check(
        one_call(act, name="nothing"), effect="none", code="unknown_tool", decided_by="runtime", reason="there is no tool named 'nothing'"
    )


def test_a_call_of_a_tool_that_was_not_offered_had_no_effect() -> None:
    ran: list[int] = []

    async def act() -> None:
        ran.append(1)

    hidden = tool(available=lambda context: False)(act)
    check(one_call(hidden), effect="none", code="not_offered", decided_by="runtime")
    assert ran == []


def test_calls_that_a_length_limit_cut_had_no_effect_and_the_model_is_told_that_they_were_not_executed() -> None:
    ran: list[int] = []

    async def act() -> None:
        ran.append(1)

    played = asyncio.run(play([calls(call("c1", "act"), finish="length"), text("done")], tools=[act]))
    check(played, effect="none", code="cut_off", decided_by="runtime", reason="was not executed")
    assert ran == []


def test_a_vetoed_call_had_no_effect() -> None:
    async def act() -> int:
        return 1

    @extension(name="guard")
    async def guard(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        raise PermissionError("not you")

    check(one_call(act, guard), effect="none", code="vetoed", decided_by="guard", reason="not you")


def test_a_call_that_a_layer_refuses_with_a_tool_failure_had_no_effect() -> None:
    async def act() -> int:
        return 1

    @extension(name="busy")
    async def busy(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return ToolFailure("come back later")

    check(one_call(act, busy), effect="none", code="failed", decided_by="busy", reason="come back later")


def test_a_call_that_finds_no_free_worker_thread_had_no_effect() -> None:
    release = threading.Event()

    def block() -> None:
        release.wait(5)

    steps = [calls(call("c1", "block"), call("c2", "block")), text("done")]
    bounds = limits(worker_threads=1, worker_wait_s=0.01)
    played = asyncio.run(play(steps, tools=[block], bounds=bounds, extensions=[Releaser(release)]))
    by_id = {record.message.tool_call_id: record for record in played.records if isinstance(record, ToolStepEnded)}
    assert (by_id["c2"].effect, by_id["c2"].code, by_id["c2"].decided_by) == ("none", "no_worker", "runtime")
    assert (by_id["c1"].effect, by_id["c1"].code) == ("happened", "ok")
    assert len([record for record in played.records if isinstance(record, HandlerStarted)]) == 1


# ---- it started and raised: unknown, unless it says otherwise ---------------------------------------


@pytest.mark.parametrize(
    ("error", "effect", "code"),
    [
        (ValueError("bad day"), "unknown", "failed"),
        (ConnectionResetError("reset"), "unknown", "failed"),
        (ToolFailure("use an ISO date"), "unknown", "failed"),
        (ToolFailure("the account is closed", effect="none"), "none", "failed"),
        (ToolFailure("sent, but not filed", effect="happened"), "happened", "failed"),
        (ToolFailure("who knows", effect="unknown"), "unknown", "failed"),
        (asyncio.CancelledError("on its own"), "unknown", "failed"),
    ],
    ids=lambda value: str(value) if not isinstance(value, BaseException) else f"{type(value).__name__}-{value}",
)
@pytest.mark.parametrize("threaded", [False, True])
def test_a_handler_that_raises_leaves_its_effect_unknown_unless_it_says_otherwise(
    error: BaseException, effect: Effect, code: str, threaded: bool
) -> None:
    async def act() -> None:
        raise error

    def act_in_a_thread() -> None:
        raise error

    handler = tool(name="act")(act_in_a_thread) if threaded else act
    check(one_call(handler), effect=effect, code=code, decided_by="handler", reason=str(error))


def test_an_exception_without_a_text_is_named_by_its_class() -> None:
    async def act() -> None:
        raise KeyError

    check(one_call(act), effect="unknown", code="failed", decided_by="handler", reason="Tool error (act): KeyError")


def test_a_handler_whose_exception_cannot_be_printed_is_a_failed_call_and_not_the_end_of_the_run() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    async def act() -> None:
        raise Mute

    check(one_call(act), effect="unknown", code="failed", decided_by="handler", reason="Mute")


def test_what_a_call_made_by_the_handler_says_of_its_effect_is_not_said_of_the_handler_itself() -> None:
    written: list[str] = []

    async def strict(n: int) -> int:
        return n

    async def act(context: RunContext) -> Any:
        written.append("before")
        return await context.call_tool("strict", {"n": "many"})

    played = asyncio.run(play([calls(call("c1", "act")), text("done")], tools=[act, strict]))
    nested, outer = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert written == ["before"]
    assert (nested.effect, nested.code) == ("none", "invalid_arguments")
    assert (outer.effect, outer.code) == ("unknown", "failed")
    assert str(outer.message.content).endswith(EFFECT_SENTENCE["unknown"])


# ---- it completed: happened ---------------------------------------------------------------------------


class NoText:
    """What no text can stand for."""


def test_a_result_that_cannot_be_serialized_is_said_to_have_happened() -> None:
    async def act() -> Any:
        return {"rows": [NoText()]}

    record = check(one_call(act), effect="happened", code="unserializable", decided_by="handler", reason="result.rows[0]")
    assert "NoText" in str(record.message.content)


def test_a_layer_that_raises_after_the_handler_completed_does_not_make_it_a_failure_of_the_handler() -> None:
    async def act() -> int:
        return 1

    @extension(name="late")
    async def late(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        await call_next()
        raise ValueError("the report could not be written")

    record = check(one_call(act, late), effect="happened", code="layer_error", decided_by="late", reason="the report could not be written")
    assert "The tool itself had completed" in str(record.message.content)


def test_a_layer_that_returns_a_tool_failure_after_the_handler_completed_says_that_it_happened() -> None:
    async def act() -> int:
        return 1

    @extension(name="judge")
    async def judge(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        await call_next()
        return ToolFailure("the result is not usable")

    check(one_call(act, judge), effect="happened", code="failed", decided_by="judge", reason="the result is not usable")


def test_a_layer_whose_own_result_cannot_be_serialized_keeps_what_is_known_of_the_effect() -> None:
    async def act() -> int:
        return 1

    @extension(name="wrap")
    async def wrap(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        await call_next()
        return NoText()

    check(one_call(act, wrap), effect="happened", code="unserializable", decided_by="wrap")

    @extension(name="instead")
    async def instead(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return NoText()

    check(one_call(act, instead), effect="none", code="unserializable", decided_by="instead")


def test_a_handler_that_completed_although_its_run_was_cancelled_is_said_to_have_happened() -> None:
    @tool(timeout_s=30)
    async def patient() -> str:
        return await to_the_end()

    async def plain() -> str:
        return await to_the_end()

    started: list[asyncio.Event] = []

    async def to_the_end() -> str:
        started[0].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "committed"

    async def main(handler: Any, name: str) -> ToolStepEnded:
        started[:] = [asyncio.Event()]
        async with agent_playing([calls(call("c1", name))], tools=[handler]) as agent:
            task = asyncio.create_task(agent.run("go"))
            await started[0].wait()
            await agent.cancel()
            assert (await task).outcome is Outcome.CANCELLED
            (record,) = await records_of(agent, ToolStepEnded)
            return record

    for handler, name in ((patient, "patient"), (plain, "plain")):
        assert asyncio.run(main(handler, name)).effect == "happened"


# ---- time ran out: unknown, and what comes late is recorded once ------------------------------------


def test_a_synchronous_handler_that_runs_out_of_time_is_unknown_and_its_late_completion_is_recorded_once() -> None:
    release, done = threading.Event(), threading.Event()

    @tool(timeout_s=0.02)
    def write() -> str:
        """Write."""
        release.wait(5)
        done.set()
        return "written"

    async def main() -> list[Any]:
        async with no_noise(), agent_playing([calls(call("c1", "write")), text("done")], tools=[write]) as agent:
            await agent.run("go")
            late = asyncio.Event()
            watcher = asyncio.create_task(wait_for_record(agent, ToolLateResult, late))
            release.set()
            await asyncio.wait_for(late.wait(), 5)
            await watcher
            assert done.is_set()
            return await records_of(agent, ToolStepEnded, ToolLateResult)

    ended, *late = asyncio.run(main())
    content = str(ended.message.content)
    assert (ended.effect, ended.code, ended.decided_by) == ("unknown", "timeout", "handler")
    assert content == "Tool error (write): timed out after 0.02 s\n" + EFFECT_SENTENCE["unknown"]
    assert not any(word in content.lower() for word in ("failed", "denied", "rejected"))
    assert [(record.key, record.failed, record.content) for record in late] == [(ended.key, False, "written")]


async def wait_for_record(agent: Any, kind: type[Any], seen: asyncio.Event) -> None:
    """Sets ``seen`` once a record of ``kind`` is in the session's journal."""
    async for row in agent._journal.tail("s"):
        if isinstance(row.record, kind):
            seen.set()
            return


def test_a_synchronous_handler_that_fails_after_its_time_is_recorded_as_a_late_failure() -> None:
    release = threading.Event()

    @tool(timeout_s=0.02)
    def write() -> str:
        """Write."""
        release.wait(5)
        raise OSError("disk full")

    async def main() -> list[Any]:
        async with agent_playing([calls(call("c1", "write")), text("done")], tools=[write]) as agent:
            await agent.run("go")
            late = asyncio.Event()
            watcher = asyncio.create_task(wait_for_record(agent, ToolLateResult, late))
            release.set()
            await asyncio.wait_for(late.wait(), 5)
            await watcher
            return await records_of(agent, ToolLateResult)

    (late,) = asyncio.run(main())
    assert (late.failed, late.content) == (True, "disk full")


def test_a_late_result_that_comes_while_the_run_goes_on_is_recorded_in_it() -> None:
    release, gate = threading.Event(), asyncio.Event()

    @tool(timeout_s=0.02)
    def write() -> str:
        """Write."""
        release.wait(5)
        return "written"

    async def main() -> list[Any]:
        arrived = asyncio.Event()

        class Hears(AgentExtension):
            def on_record(self, context: Any, record: Any) -> None:
                if isinstance(record, ToolLateResult):
                    arrived.set()

        script = [calls(call("c1", "write")), hold(gate, then=text("done"))]
        async with agent_playing(script, tools=[write], extensions=[Hears()]) as agent:
            late = asyncio.Event()
            watcher = asyncio.create_task(wait_for_record(agent, ToolStepEnded, late))
            task = asyncio.create_task(agent.run("go"))
            await asyncio.wait_for(late.wait(), 5)
            await watcher
            assert not task.done()
            release.set()
            await asyncio.wait_for(arrived.wait(), 5)
            gate.set()
            assert (await task).text == "done"
            return await records_of(agent)

    records = asyncio.run(main())
    kinds = [type(record).__name__ for record in records]
    assert kinds.count("ToolLateResult") == 1
    assert kinds.index("ToolLateResult") < kinds.index("RunEnded")


def test_an_asynchronous_handler_that_runs_out_of_time_is_unknown_and_one_that_finishes_while_it_is_stopped_has_happened() -> None:
    @tool(timeout_s=0.02)
    async def hangs() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    @tool(timeout_s=0.02)
    async def finishes() -> str:
        """Finish what was begun."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "committed all the same"
        return "never"

    check(one_call(hangs, name="hangs"), effect="unknown", code="timeout", decided_by="handler", reason="timed out after 0.02 s")
    played = one_call(finishes, name="finishes")
    (record,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (record.code, record.effect, record.message.content) == ("ok", "happened", "committed all the same")


def test_a_handler_that_raises_the_time_out_of_another_call_has_not_run_out_of_its_own_time() -> None:
    @tool(timeout_s=0.02)
    async def slow() -> None:
        """Be slow."""
        await asyncio.Event().wait()

    async def act(context: RunContext) -> Any:
        return await context.call_tool("slow")

    played = asyncio.run(play([calls(call("c1", "act")), text("done")], tools=[act, slow]))
    nested, outer = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (nested.code, outer.code, outer.effect) == ("timeout", "failed", "unknown")


# ---- a run that ends while calls are open -----------------------------------------------------------


def test_when_a_run_is_cancelled_the_calls_that_ran_are_unknown_and_those_that_had_not_started_are_none() -> None:
    async def main() -> dict[str, ToolStepEnded]:
        started = asyncio.Event()

        @tool(parallel=False)
        async def act(n: int) -> None:
            """Act."""
            started.set()
            await asyncio.Event().wait()

        steps = [calls(call("c1", "act", {"n": 1}), call("c2", "act", {"n": 2}))]
        async with agent_playing(steps, tools=[act]) as agent:
            task = asyncio.create_task(agent.run("go"))
            await started.wait()
            await agent.cancel()
            assert (await task).outcome is Outcome.CANCELLED
            return {record.message.tool_call_id: record for record in await records_of(agent, ToolStepEnded)}

    ended = asyncio.run(main())
    assert [(ended[id].effect, ended[id].code) for id in ("c1", "c2")] == [("unknown", "cancelled"), ("none", "cancelled")]


def test_after_a_stop_the_calls_that_had_not_started_are_none() -> None:
    ran: list[str] = []

    @tool(parallel=False)
    async def act(name: str) -> str:
        """Act."""
        ran.append(name)
        return name

    @extension(name="stopper")
    async def stopper(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return Stop(await call_next())

    steps = [calls(call("c1", "act", {"name": "a"}), call("c2", "act", {"name": "b"}))]
    played = asyncio.run(play(steps, tools=[act], extensions=[stopper]))
    by_id = {record.message.tool_call_id: record for record in played.records if isinstance(record, ToolStepEnded)}
    assert ran == ["a"]
    assert (by_id["c1"].effect, by_id["c1"].message.failed) == ("happened", False)
    assert (by_id["c2"].effect, by_id["c2"].message.failed, by_id["c2"].code) == ("none", True, "superseded")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Fatal("no")], ids=lambda error: type(error).__name__)
def test_a_handler_that_stops_everything_leaves_its_effect_unknown(error: BaseException) -> None:
    async def act() -> None:
        raise error

    async def main() -> ToolStepEnded:
        async with agent_playing([calls(call("c1", "act"))], tools=[act]) as agent:
            with pytest.raises(type(error)) as caught:
                await agent.run("go")
            assert caught.value is error
            (record,) = await records_of(agent, ToolStepEnded)
            return record

    record = asyncio.run(main())
    assert (record.effect, record.message.failed) == ("unknown", True)


# ---- calls that never existed for the model ------------------------------------------------------------


@pytest.mark.parametrize("reason", [StopReason.CONTENT_FILTER, StopReason.REFUSAL])
def test_the_calls_of_a_filtered_or_refused_message_are_named_in_its_record_and_nowhere_else(reason: StopReason) -> None:
    ran: list[int] = []

    async def act() -> None:
        ran.append(1)

    step = reply("I will", reason=reason, tool_calls=(ToolCall(id="c1", name="act"), ToolCall(id="c2", name="other")))
    played = asyncio.run(play([step], tools=[act]))
    (record,) = [record for record in played.records if isinstance(record, ModelStepEnded)]
    assert (ran, played.result.outcome, record.dropped) == ([], Outcome.REFUSED, ("act", "other"))
    assert not [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert len(played.result.messages) == 1


def test_a_successful_call_says_happened_and_an_answer_without_the_handler_says_none() -> None:
    async def act() -> str:
        return "acted"

    @extension
    async def cache(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return "cached"

    for layers, effect, code in (([], "happened", "ok"), ([cache], "none", "answered")):
        played = one_call(act, *layers)
        (record,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
        assert (record.effect, record.code, record.message.failed, record.message.effect) == (effect, code, False, effect)
