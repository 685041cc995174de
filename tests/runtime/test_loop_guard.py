"""The loop guard, as a run shows it: what would pass a bound does not run, is paired, and ends the run LIMIT ``loop``."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from helpers import Played, agent_playing, limits, play, records_of
from interlock import AgentExtension, Limits, Outcome, RunContext, ToolFailure, UsageError, tool
from interlock.machine import fold
from interlock.machine.prospect import prospect
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ModelStepEnded, ToolStepEnded
from interlock.testing import Step, call, calls, repeat, text
from reopened import left_behind, reopened


class World:
    """Tools that leave traces. looks: what ``look`` gives, one after the other, the last for ever."""

    def __init__(self, *looks: Any) -> None:
        self.sent: list[str] = []
        self.looked: list[str] = []
        self.looks = itertools.chain(looks, itertools.repeat(looks[-1] if looks else "the same"))

    def tools(self) -> list[Any]:
        @tool(on_crash="report")
        async def send(message: str) -> str:
            """Send a message."""
            self.sent.append(message)
            return f"sent as number {len(self.sent)}"

        @tool(on_crash="rerun")
        async def look(where: str) -> Any:
            """Look something up."""
            self.looked.append(where)
            found = next(self.looks)
            if isinstance(found, Exception):
                raise found
            return found

        return [send, look]


def played(world: World, steps: Any, **bounds: Any) -> Played:
    return asyncio.run(play(steps, tools=world.tools(), bounds=limits(**bounds)))


def assert_looped(run: Played, *, ran: int) -> None:
    """Ended so; what did not run has its one result, which says that nothing happened."""
    assert (run.result.outcome, run.result.reason, run.result.text) == (Outcome.LIMIT, "loop", "")
    asked = [c.id for r in run.records if isinstance(r, ModelStepEnded) for c in r.message.tool_calls]
    told = [m for m in run.result.messages if isinstance(m, ToolMessage)]
    assert [m.tool_call_id for m in told] == asked
    assert len([r for r in run.records if isinstance(r, HandlerStarted)]) == ran
    ended = next(r for r in run.records if isinstance(r, ToolStepEnded) and r.code == "loop")
    assert (ended.effect, ended.decided_by, ended.message.failed) == ("none", "runtime", True)
    assert "It was not executed; nothing happened." in str(ended.message.content)


def test_a_message_that_is_sent_every_turn_is_sent_as_often_as_the_bound_says_and_then_the_run_ends() -> None:
    world = World()
    run = played(world, [repeat(calls(call("c", "send", {"message": "hi"})))], repeated_effects=3)
    assert world.sent == ["hi"] * 3  # although each time another number came back
    assert_looped(run, ran=3)
    assert "has been executed 3 times" in str(run.result.messages[-1].content)


def test_seven_equal_messages_in_one_reply_are_not_all_sent() -> None:
    world = World()
    run = played(world, [calls(*(call(f"c{n}", "send", {"message": "thanks"}) for n in range(7)))], repeated_effects=6)
    assert world.sent == ["thanks"] * 6
    assert_looped(run, ran=6)


def test_eighty_five_equal_lookups_are_as_many_as_the_bound_says() -> None:
    world = World("nothing new")
    run = played(world, [repeat(calls(call("c", "look", {"where": "here"})))], repeated_results=4, requests=100)
    assert len(world.looked) == 4
    assert_looped(run, ran=4)


def test_without_a_bound_nothing_is_a_loop() -> None:
    world = World()
    run = played(world, [repeat(calls(call("c", "look", {"where": "here"})))], requests=30)
    assert (run.result.reason, len(world.looked)) == ("requests", 30)


def test_a_lookup_whose_result_changes_is_no_loop() -> None:
    world = World(*range(20))
    poll = calls(call("c", "look", {"where": "the queue"}))
    run = played(world, [*[poll] * 20, text("done")], repeated_results=2, repeated_failures=2, repeated_effects=2)
    assert run.result.outcome is Outcome.COMPLETED
    assert len(world.looked) == 20


def test_a_call_that_fails_in_the_same_way_has_a_bound_of_its_own() -> None:
    world = World(ToolFailure("no such place"))
    run = played(world, [repeat(calls(call("c", "look", {"where": "Atlantis"})))], repeated_results=9, repeated_failures=2)
    assert len(world.looked) == 2
    assert_looped(run, ran=2)
    assert "failed in the same way 2 times" in str(run.result.messages[-1].content)


def test_a_failure_of_another_kind_begins_the_count_anew() -> None:
    world = World(ToolFailure("one"), ToolFailure("two"), ToolFailure("three"), ToolFailure("three"))
    run = played(world, [repeat(calls(call("c", "look", {"where": "x"})))], repeated_failures=2)
    assert len(world.looked) == 4
    assert_looped(run, ran=4)


def test_two_calls_in_turn_are_a_loop() -> None:
    world = World("the same")
    turns = [calls(call(f"c{n}", "look", {"where": "ab"[n % 2]})) for n in range(7)]
    run = played(world, turns, repeated_results=3)
    assert world.looked == ["a", "b", "a", "b", "a", "b"]
    assert_looped(run, ran=6)


def test_a_check_that_fails_again_after_something_new_was_tried_is_no_loop() -> None:
    world = World(ToolFailure("1 test failed"))
    turns: list[Step] = []
    for n in range(6):
        turns += [calls(call(f"t{n}", "look", {"where": "the tests"})), calls(call(f"e{n}", "send", {"message": f"edit {n}"}))]
    run = played(world, [*turns, text("I give up.")], repeated_failures=2, repeated_results=2, repeated_effects=2)
    assert run.result.outcome is Outcome.COMPLETED
    assert (len(world.looked), len(world.sent)) == (6, 6)


def test_after_something_new_a_call_is_repeated_as_often_as_the_bound_says_again() -> None:
    world = World("the same")
    look, send = calls(call("l", "look", {"where": "x"})), calls(call("s", "send", {"message": "new"}))
    run = played(world, [look, look, send, look, look, text("done")], repeated_results=3)
    assert (run.result.outcome, len(world.looked)) == (Outcome.COMPLETED, 4)
    world = World("the same")
    run = played(world, [look, look, send, look, look, look], repeated_results=3)
    assert len(world.looked) == 4
    assert_looped(run, ran=5)


def test_the_order_of_keys_and_the_spaces_make_no_other_call() -> None:
    ran: list[Any] = []

    async def act(a: int, b: int) -> str:
        """Act."""
        ran.append((a, b))
        return "acted"

    written = ('{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"\\u0061": 1,\n"b": 2}')
    steps = [calls(call(f"{n}", "act", raw)) for n, raw in enumerate(written)]
    run = asyncio.run(play(steps, tools=[act], bounds=limits(repeated_results=2)))
    assert ran == [(1, 2), (1, 2)]
    assert_looped(run, ran=2)


def test_equal_calls_of_one_reply_wait_until_it_is_known_how_the_first_ones_end() -> None:
    world = World("same", "same", "same")
    run = played(world, [calls(*(call(f"c{n}", "look", {"where": "x"}) for n in range(10)))], repeated_results=3)
    assert len(world.looked) == 3
    assert_looped(run, ran=3)

    world = World(*range(10))
    run = played(world, [calls(*(call(f"c{n}", "look", {"where": "x"}) for n in range(10))), text("ten")], repeated_results=3)
    assert run.result.outcome is Outcome.COMPLETED
    assert len(world.looked) == 10


def test_what_stands_before_the_loop_in_its_reply_still_runs_and_what_stands_behind_it_does_not() -> None:
    world = World("same")
    look = call("l", "look", {"where": "x"})
    last = calls(call("before", "send", {"message": "before"}), look, call("behind", "send", {"message": "behind"}))
    run = played(world, [calls(look), calls(look), last], repeated_results=2)
    assert world.sent == ["before"]
    assert_looped(run, ran=3)
    ended = {r.message.tool_call_id: (r.code, r.effect) for r in run.records if isinstance(r, ToolStepEnded)}
    assert (ended["before"], ended["behind"]) == (("ok", "happened"), ("limit", "none"))


def test_a_tool_that_does_not_exist_is_a_failure_like_any_other() -> None:
    world = World("same")
    both = calls(call("c", "look", {"where": "x"}), call("d", "lock", {}))  # the first call resets the streak of malformed ones
    run = played(world, [repeat(both)], repeated_failures=3)
    assert_looped(run, ran=4)  # what stands before it still runs


def test_a_veto_that_is_met_again_and_again_is_a_loop() -> None:
    class Never(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            raise PermissionError("not today")

    world = World()
    steps = [repeat(calls(call("c", "send", {"message": "hi"})))]
    run = asyncio.run(play(steps, tools=world.tools(), extensions=[Never()], bounds=limits(repeated_failures=3, repeated_effects=1)))
    assert world.sent == []
    assert_looped(run, ran=0)


def test_calls_that_a_tool_makes_itself_are_no_loop_of_the_model() -> None:
    world = World("same")

    async def watch(context: RunContext) -> str:
        """Look ten times."""
        for _ in range(10):
            await context.call_tool("look", {"where": "x"})
        return "watched"

    steps = [calls(call("c", "watch")), text("done")]
    run = asyncio.run(play(steps, tools=[*world.tools(), watch], bounds=limits(repeated_results=2)))
    assert (run.result.outcome, len(world.looked)) == (Outcome.COMPLETED, 10)


def test_a_capped_result_is_compared_whole_and_not_by_the_notice_that_names_its_call() -> None:
    world = World("x" * 10_000)
    run = played(world, [repeat(calls(call("c", "look", {"where": "x"})))], repeated_results=3, result_bytes=1024)
    assert_looped(run, ran=3)


def test_each_run_begins_at_zero() -> None:
    world = World("same")
    steps = [calls(call("c", "look", {"where": "x"})), calls(call("c", "look", {"where": "x"})), text("done")]
    run = asyncio.run(play(steps * 3, tools=world.tools(), prompts=["One.", "Two.", "Three."], bounds=limits(repeated_results=2)))
    assert [result.outcome for result in run.results] == [Outcome.COMPLETED] * 3
    assert len(world.looked) == 6


def test_the_count_survives_the_death_of_the_process() -> None:
    async def main() -> None:
        world, at = World("same"), asyncio.Event()
        hung: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        class Die(AgentExtension):
            async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
                if len(world.looked) == 2:
                    at.set()
                    await hung
                async for event in call_next(request):
                    yield event

        step = calls(call("c", "look", {"where": "x"}))
        journal = await left_behind([step, step], at=at, tools=world.tools(), extensions=[Die()], limits=limits(repeated_results=3))
        async with reopened(journal, [step, step], tools=world.tools(), limits=limits()) as agent:
            result = await agent.resume()
            assert (result.outcome, result.reason, len(world.looked)) == (Outcome.LIMIT, "loop", 3)
            assert fold(await records_of(agent)) == agent.live("s").state

    asyncio.run(main())


def test_what_a_resume_would_do_is_said_of_a_loop_as_well() -> None:
    async def main() -> None:
        steps, bounds = [calls(call("c", "act")), calls(call("d", "act"), call("e", "look"))], limits(repeated_results=1)
        async with agent_playing(steps, tools=[act, look], bounds=bounds) as agent:
            await agent.run("Go.")
            records = await records_of(agent)
        asked = max(n for n, record in enumerate(records) if isinstance(record, ModelStepEnded))
        found = prospect(fold(records[: asked + 1]), 0.0)
        assert found is not None
        assert ([call.what for call in found.calls], found.next) == (["refused", "refused"], "end")
        unguarded = fold(records[: asked + 1])
        found = prospect(replace(unguarded, limits=limits()), 0.0)
        assert found is not None
        assert ([call.what for call in found.calls], found.next) == (["not_started", "not_started"], "model")

    async def act() -> str:
        """Act."""
        return "the same"

    async def look() -> str:
        """Look."""
        return "there"

    asyncio.run(main())


@pytest.mark.parametrize("name", ["repeated_results", "repeated_failures", "repeated_effects"])
def test_a_bound_of_none_at_all_is_said_with_none_and_not_with_zero(name: str) -> None:
    with pytest.raises(UsageError, match="or None for no guard"):
        Limits(**{name: 0})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_no_call_is_executed_more_often_than_the_bound_says_however_they_are_spread(batches: list[list[str]], bound: int) -> None:
    world = World()
    steps = [calls(*(call(f"{n}-{m}", "send", {"message": said}) for m, said in enumerate(batch))) for n, batch in enumerate(batches)]
    totals = list(itertools.accumulate(map(Counter, batches)))
    cut = next((n for n, total in enumerate(totals, 1) if max(total.values()) > bound), 0)  # after that batch the run has ended
    over, cut = cut > 0, cut or len(batches)
    after = [] if over else [text("done")]
    run = played(world, [*steps[:cut], *after], repeated_effects=bound)
    assert max(Counter(world.sent).values()) <= bound
    assert run.result.outcome is (Outcome.LIMIT if over else Outcome.COMPLETED)
    told = [m.tool_call_id for m in run.result.messages if isinstance(m, ToolMessage)]
    assert told == [f"{n}-{m}" for n, batch in enumerate(batches[:cut]) for m in range(len(batch))]
