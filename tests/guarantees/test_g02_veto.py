"""G02: an extension that raises before delegating vetoes the call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from helpers import Played, agent_playing, play, records_of
from interlock import Fatal, Outcome, ToolFailure, extension
from interlock.extensions.base import AgentExtension, CallNext, RunContext, ToolInvocation
from interlock.extensions.coerce import CoerceArguments
from interlock.extensions.toollog import ToolLog
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.testing import call, calls, text, when


class Denied(Exception):
    """What a guard raises."""


class Outside:
    """What the tools of these tests do to the world."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def delete(self, path: str) -> str:
        """Delete a file."""
        self.deleted.append(path)
        return f"deleted {path}"


class Watch(AgentExtension):
    """Passes through; keeps that it was entered, and what came up."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.entered = 0
        self.seen: list[BaseException] = []

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        self.entered += 1
        try:
            return await call_next()
        except BaseException as error:
            self.seen.append(error)
            raise


class Guard(AgentExtension):
    """Raises ``error`` for the paths that begin with ``/etc``, before or after delegating."""

    def __init__(self, error: BaseException, *, after: bool = False) -> None:
        self.error = error
        self.after = after

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        result = await call_next() if self.after else None
        if call.arguments["path"].startswith("/etc"):
            raise self.error
        return result if self.after else await call_next()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """The WARNINGs of the logger ``interlock.tools``, as they were formatted."""

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "interlock.tools" and r.levelno == logging.WARNING]

    with caplog.at_level(logging.INFO, logger="interlock.tools"):
        yield lines


def play_delete(outside: Outside, *layers: Any, path: str = "/etc/passwd", **options: Any) -> Played:
    steps = [calls(call("c1", "delete", {"path": path})), text("I could not.")]
    return asyncio.run(play(steps, tools=[outside.delete], extensions=layers, **options))


def ended(played: Played) -> list[ToolStepEnded]:
    return [record for record in played.records if isinstance(record, ToolStepEnded)]


def test_a_layer_that_raises_before_delegating_keeps_the_handler_and_everything_further_in_from_running(warnings: Any) -> None:
    outside, outer, inner, error = Outside(), Watch(50), Watch(150), Denied("outside of the working directory")
    played = play_delete(outside, outer, Guard(error), inner)
    assert (outside.deleted, inner.entered) == ([], 0)
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]
    assert outer.seen == [error]
    assert outer.seen[0] is error
    assert warnings() == ["Middleware Guard vetoed tool delete: outside of the working directory"]


def test_a_veto_is_recorded_with_its_layer_and_the_model_is_told_the_reason_and_that_nothing_happened() -> None:
    outside = Outside()
    played = play_delete(outside, Guard(Denied("outside of the working directory")))
    (record,) = ended(played)
    assert (record.code, record.decided_by, record.effect, record.message.failed) == ("vetoed", "Guard", "none", True)
    assert record.message.content == ("Tool error (delete): outside of the working directory\nIt was not executed; nothing happened.")
    assert played.bodies[1]["messages"][-1]["content"] == record.message.content
    assert played.result.outcome is Outcome.COMPLETED


def test_an_unconditional_veto_leaves_the_world_untouched_whatever_the_log_says() -> None:
    outside = Outside()

    @extension
    async def never(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        raise PermissionError

    played = play_delete(outside, never, path="notes.txt")
    assert outside.deleted == []
    assert str(ended(played)[0].message.content).startswith("Tool error (delete): PermissionError\n")


def test_the_siblings_of_a_vetoed_call_run_and_the_results_keep_the_order_of_the_calls(warnings: Any) -> None:
    outside = Outside()
    paths = ["a.txt", "/etc/hosts", "b.txt"]
    steps = [calls(*(call(f"c{n}", "delete", {"path": path}) for n, path in enumerate(paths))), text("done")]
    played = asyncio.run(play(steps, tools=[outside.delete], extensions=[Guard(Denied("no"))]))
    results = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert sorted(outside.deleted) == ["a.txt", "b.txt"]
    assert [(m.tool_call_id, m.failed) for m in results] == [("c0", False), ("c1", True), ("c2", False)]
    assert len(warnings()) == 1


@pytest.mark.parametrize("error", [KeyError("rules"), TypeError("unexpected"), RecursionError("deep"), AssertionError()])
def test_a_bug_in_a_guard_is_a_veto(warnings: Any, error: Exception) -> None:
    outside = Outside()
    played = play_delete(outside, Guard(error))
    assert outside.deleted == []
    assert ended(played)[0].code == "vetoed"
    assert warnings() == [f"Middleware Guard vetoed tool delete: {str(error) or type(error).__name__}"]


def test_a_bug_in_the_coercion_gates_the_call() -> None:
    class Broken(CoerceArguments):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            raise ZeroDivisionError

    outside = Outside()
    played = play_delete(outside, Broken(), path="a.txt")
    assert (outside.deleted, ended(played)[0].code) == ([], "vetoed")


def test_a_guard_whose_exception_cannot_be_printed_still_vetoes_in_one_line(warnings: Any) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    outside, outer, error = Outside(), Watch(50), Mute()
    played = play_delete(outside, outer, Guard(error))
    assert (outside.deleted, played.result.outcome) == ([], Outcome.COMPLETED)
    assert outer.seen[0] is error
    assert warnings() == ["Middleware Guard vetoed tool delete: Mute"]


def test_a_reason_that_holds_line_breaks_cannot_look_like_another_line_of_the_log(warnings: Any) -> None:
    play_delete(Outside(), Guard(Denied("no\nMiddleware Nobody vetoed tool other: forged")))
    (line,) = warnings()
    assert "\n" not in line


def test_a_layer_that_raises_after_delegating_is_not_called_a_veto(warnings: Any) -> None:
    outside, outer, error = Outside(), Watch(50), Denied("too late")
    played = play_delete(outside, outer, Guard(error, after=True))
    (record,) = ended(played)
    assert outside.deleted == ["/etc/passwd"]
    assert (record.code, record.decided_by, record.effect) == ("layer_error", "Guard", "happened")
    assert outer.seen[0] is error
    assert warnings() == []


def test_layers_around_a_veto_are_not_said_to_have_vetoed(warnings: Any) -> None:
    play_delete(Outside(), Watch(10), Watch(20), Guard(Denied("no")), Watch(150))
    assert warnings() == ["Middleware Guard vetoed tool delete: no"]


def test_a_layer_that_turns_a_veto_into_another_exception_is_no_second_veto(warnings: Any) -> None:
    @extension(priority=50, name="translate")
    async def translate(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Denied as error:
            raise ToolFailure("ask the owner first") from error

    outside = Outside()
    (record,) = ended(play_delete(outside, translate, Guard(Denied("no"))))
    assert (outside.deleted, record.decided_by, record.effect) == ([], "translate", "none")
    assert "ask the owner first" in str(record.message.content)
    assert len(warnings()) == 1


def test_an_outer_layer_may_catch_a_veto_and_answer_and_nothing_runs_all_the_same(warnings: Any) -> None:
    @extension(priority=50, name="soften")
    async def soften(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Denied as error:
            return f"skipped: {error}"

    outside = Outside()
    (record,) = ended(play_delete(outside, soften, Guard(Denied("no"))))
    assert outside.deleted == []
    assert (record.code, record.decided_by, record.effect, record.message.failed) == ("answered", "soften", "none", False)
    assert record.message.content == "skipped: no"
    assert len(warnings()) == 1


def test_a_layer_that_returns_a_tool_failure_without_delegating_answers_and_is_no_veto(warnings: Any) -> None:
    @extension(name="refuse")
    async def refuse(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        return ToolFailure("the file is locked")

    outside = Outside()
    (record,) = ended(play_delete(outside, refuse))
    assert (outside.deleted, warnings()) == ([], [])
    assert (record.code, record.decided_by, record.effect, record.message.failed) == ("failed", "refuse", "none", True)


def test_a_fatal_error_before_delegating_is_no_veto_and_reaches_the_caller(warnings: Any) -> None:
    outside, error = Outside(), Fatal("the ledger is inconsistent")

    async def main() -> None:
        steps = [calls(call("c1", "delete", {"path": "/etc/x"}))]
        async with agent_playing(steps, tools=[outside.delete], extensions=[Guard(error)]) as agent:
            with pytest.raises(Fatal) as caught:
                await agent.run("go")
            assert caught.value is error
            (record,) = await records_of(agent, ToolStepEnded)
            assert (record.code, record.effect) == ("layer_error", "none")

    asyncio.run(main())
    assert (outside.deleted, warnings()) == ([], [])


def test_a_guard_that_is_cancelled_or_cancels_itself_has_not_vetoed(warnings: Any) -> None:
    outside = Outside()
    played = play_delete(outside, Guard(asyncio.CancelledError()))
    (record,) = ended(played)
    assert (outside.deleted, record.code, record.effect) == ([], "layer_error", "none")

    async def main() -> None:
        entered = asyncio.Event()

        @extension
        async def slow(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            entered.set()
            await asyncio.Event().wait()

        steps = [calls(call("c1", "delete", {"path": "a"}))]
        async with agent_playing(steps, tools=[outside.delete], extensions=[slow]) as agent:
            task = asyncio.create_task(agent.run("go"))
            await entered.wait()
            await agent.cancel()
            assert (await task).outcome is Outcome.CANCELLED
            (record,) = await records_of(agent, ToolStepEnded)
            assert (record.code, record.effect) == ("cancelled", "none")

    asyncio.run(main())
    assert (outside.deleted, warnings()) == ([], [])


def test_the_arguments_that_a_guard_has_approved_are_the_ones_that_run() -> None:
    """An outer layer's rewriting is seen by the guard; one further in stays below it and is refused its own way."""
    seen: list[str] = []

    @extension(priority=50)
    async def rewrite(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        call.arguments = {"path": "/etc/shadow"}
        return await call_next()

    @extension(priority=60)
    async def look(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        seen.append(call.arguments["path"])
        return await call_next()

    outside = Outside()
    (record,) = ended(play_delete(outside, rewrite, look, Guard(Denied("no")), path="fine.txt"))
    assert (seen, outside.deleted, record.code) == (["/etc/shadow"], [], "vetoed")


def test_the_log_of_tool_calls_has_one_row_for_a_vetoed_call_and_one_for_a_failed_one(warnings: Any) -> None:
    log, outside = ToolLog(), Outside()

    async def explode() -> None:
        raise ValueError("no")

    steps = [calls(call("c1", "delete", {"path": "/etc/x"}), call("c2", "explode")), text("done")]
    asyncio.run(play(steps, tools=[outside.delete, explode], extensions=[log, Watch(10), Guard2(), Watch(200)]))
    assert sorted((row.tool, row.code, row.decided_by) for row in log.entries) == [
        ("delete", "vetoed", "Guard2"),
        ("explode", "failed", "handler"),
    ]


class Guard2(AgentExtension):
    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.name == "delete":
            raise Denied("no")
        return await call_next()


def test_the_reason_of_a_veto_is_in_the_next_request_whatever_the_wire() -> None:
    outside = Outside()

    def told(body: dict[str, Any]) -> bool:
        return "Tool error (delete): no\n" in body["messages"][-1]["content"]

    for wire in ("streamed", "plain"):
        steps = [calls(call("c1", "delete", {"path": "/etc/x"})), when(told, text("ok"))]
        played = asyncio.run(play(steps, tools=[outside.delete], extensions=[Guard(Denied("no"))], wire=wire))
        assert played.result.text == "ok"
    assert outside.deleted == []
