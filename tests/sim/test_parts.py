"""The parts of the simulator: its loop, its disk, its command, and what a user puts into it."""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlock import RunContext, extension, tool
from interlock.journal.base import Journal
from interlock.testing.journal_kit import JOURNAL_CHECKS, Bench, Clock
from interlock.testing.sim import Act, Call, Reply, Script, SimDisk, SimJournal, SimLoop, simulate
from interlock.testing.sim.__main__ import main
from interlock.testing.sim.batch import BEGIN, END, write_table
from interlock.testing.sim.loop import Stuck, process_here


@pytest.mark.parametrize("flush_s", [0.0, 0.001])
@pytest.mark.parametrize("name", JOURNAL_CHECKS)
def test_the_simulated_disk_keeps_what_every_journal_promises(name: str, flush_s: float) -> None:
    disks: dict[str, SimDisk] = {}

    def make(place: str, clock: Clock) -> Journal:
        return SimJournal(disks.setdefault(place, SimDisk()), clock=clock, flush_s=flush_s)

    async def main() -> None:
        await JOURNAL_CHECKS[name](Bench(make))

    asyncio.run(main())


def test_a_crash_loses_what_was_buffered_and_nothing_that_was_stored() -> None:
    script = Script(calls=(Call(),), replies=(Reply("calls", (0,)),), moves=("run",), layers=0)
    kept: dict[float, list[str]] = {}
    for share in (0.0, 1.0):
        crashed = replace(script, acts=(Act("crash", "after", "ToolStepStarted", share=share),))
        kept[share] = [type(row.record).__name__ for row in simulate(crashed).history.rows["s"]]
    assert kept[0.0][:4] == ["SessionOpened", "RunStarted", "ModelStepStarted", "SessionOpened"]
    assert kept[1.0][:6] == ["SessionOpened", "RunStarted", "ModelStepStarted", "ModelStepEnded", "ToolStepStarted", "SessionOpened"]


def test_a_frozen_process_that_wakes_after_a_takeover_runs_no_handler() -> None:
    script = Script(
        calls=(Call("move"), Call("move")),
        replies=(Reply("calls", (0, 1)),),
        acts=(Act("freeze", "before", "HandlerStarted", nth=2, last_s=30.0),),
        moves=("run", "resume"),
        layers=0,
    )
    report = simulate(script)
    assert report.ok
    assert [(handled.number, handled.process) for handled in report.history.handled] == [(0, 1), (1, 2)]
    assert any("JournalConflict" in line for line in report.history.trace)


# ---- the loop --------------------------------------------------------------------------------------------


def test_time_passes_at_once_and_in_order() -> None:
    loop, seen = SimLoop(), list[tuple[float, str]]()

    async def sleeper(name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        seen.append((loop.time(), name))

    async def both() -> None:
        await asyncio.gather(sleeper("late", 3600.0), sleeper("early", 60.0))

    loop.run_until_complete(both())
    loop.close()
    assert seen == [(60.0, "early"), (3600.0, "late")]


def test_the_order_of_what_is_ready_together_follows_from_the_seed() -> None:
    def order(seed: int | None) -> list[int]:
        loop, seen = SimLoop(seed), list[int]()

        async def step(number: int) -> None:
            await asyncio.sleep(0)
            seen.append(number)

        async def all_of_them() -> None:
            await asyncio.gather(*(step(number) for number in range(8)))

        loop.run_until_complete(all_of_them())
        loop.close()
        return seen

    assert order(None) == list(range(8))
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("ends", ["thaw", "kill"])
def test_what_belongs_to_a_frozen_process_waits_and_what_belongs_to_a_dead_one_is_never_run(ends: str) -> None:
    loop, seen = SimLoop(), list[float]()

    async def inside() -> None:
        process_here.set(1)
        await asyncio.sleep(0)
        task = asyncio.create_task(later())
        loop.call_later(5.0, loop.freeze if ends == "thaw" else loop.kill, 1, context=outside)
        if ends == "thaw":
            loop.call_later(60.0, loop.thaw, 1, context=outside)
        del task

    async def later() -> None:
        await asyncio.sleep(10.0)
        seen.append(loop.time())

    async def world() -> None:
        first = asyncio.Task(inside(), loop=loop)
        await asyncio.sleep(100.0)
        assert first.done()

    outside = contextvars.Context()
    loop.run_until_complete(world())
    assert seen == ([60.0] if ends == "thaw" else [])
    loop.bury()
    loop.run_until_complete(asyncio.sleep(1.0))
    loop.close()


def test_a_loop_in_which_nothing_can_happen_any_more_says_so() -> None:
    loop = SimLoop()

    async def forever() -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing is ready"):
        loop.run_until_complete(forever())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_loop_that_never_rests_is_stopped() -> None:
    loop = SimLoop(steps_max=500)
    on = True

    async def restless() -> None:
        while on:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="more than 500"):
        loop.run_until_complete(restless())
    on = False
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.close()


# ---- what a user puts into it, and the command --------------------------------------------------------------


def test_a_tool_and_a_layer_of_a_user_are_simulated_like_any_other() -> None:
    seen: list[str] = []

    @tool
    async def ship(number: int, context: RunContext) -> str:
        """Ship."""
        seen.append(f"ship {number} in epoch {context.epoch}")
        return "shipped"

    @extension
    async def watch(context: Any, call: Any, call_next: Any) -> Any:
        seen.append(f"watch {call.name}")
        return await call_next()

    script = Script(calls=(Call("ship"),), replies=(Reply("calls", (0,)),), acts=(Act("crash", "before", "HandlerStarted", share=1.0),))
    report = simulate(script, tools=[ship], extensions=lambda: [watch])
    assert report.ok
    assert seen == ["watch ship", "watch ship", "ship 0 in epoch 2"]


def test_the_command_runs_worlds_and_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--from", "40", "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert "| simulated worlds | 5 |" in out
    assert "5 of 5 worlds, 0 violated" in err


def test_the_command_prints_every_step_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "Script(" in out
    assert "append s 1 " in out
    assert "seed 3: no violation" in out


def test_the_table_replaces_what_is_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table(page, "new\n")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="markers"):
        write_table(Path(__file__).parent / "test_seeds.py", "new")
