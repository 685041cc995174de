"""The worker threads of synchronous handlers: bounded, reused, never waited for at exit."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.tools.workers import PoolFull, WorkerPool

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What blocked threads wait for; open at the end of the test, so that none is left."""
    event = threading.Event()
    yield event
    event.set()


async def run(pool: WorkerPool, fn: Any, *args: Any) -> Any:
    return await (await pool.acquire(1)).run(fn, *args)


def test_a_function_runs_in_a_copy_of_the_callers_context() -> None:
    async def main() -> None:
        pool = WorkerPool(2)
        name.set("caller")
        assert await run(pool, name.get) == "caller"
        await run(pool, name.set, "worker")
        assert name.get() == "caller"
        one, two = await asyncio.gather(run(pool, threading.get_ident), run(pool, name.get))
        assert (one != threading.get_ident(), two) == (True, "caller")

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_every_exception_is_delivered_as_the_same_object(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def main() -> None:
        future = (await WorkerPool(1).acquire(1)).run(fail)
        await asyncio.wait([future])
        assert future.exception() is error

    asyncio.run(main())


def test_stop_iteration_becomes_a_runtime_error() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            await run(WorkerPool(1), next, iter(()))
        assert isinstance(caught.value.__cause__, StopIteration)

    asyncio.run(main())


def test_a_full_pool_refuses_and_says_how_many_calls_still_run(gate: threading.Event) -> None:
    async def main() -> None:
        pool = WorkerPool(2)
        running = [(await pool.acquire(1)).run(gate.wait) for _ in range(2)]
        with pytest.raises(PoolFull, match="all 2 worker threads") as caught:
            await pool.acquire(0.01)
        assert caught.value.effect == "none"
        gate.set()
        await asyncio.gather(*running)
        assert pool.occupied == 0

    asyncio.run(main())


def test_a_slot_stays_occupied_until_the_abandoned_function_ends(gate: threading.Event) -> None:
    async def main() -> None:
        pool = WorkerPool(1)
        late: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()
        slot = await pool.acquire(1)
        started = threading.Event()
        future = slot.run(lambda: (started.set(), gate.wait(), "late")[-1])
        slot.on_late(lambda value, error: late.set_result((value, error)))
        await asyncio.to_thread(started.wait)
        future.cancel()
        with pytest.raises(PoolFull):
            await pool.acquire(0.01)
        waiting = asyncio.create_task(pool.acquire(5))
        await asyncio.sleep(0)
        gate.set()
        (await waiting).release()
        assert await late == ("late", None)
        assert pool.occupied == 0

    asyncio.run(main())


def test_forty_hanging_functions_do_not_delay_a_fast_one(gate: threading.Event) -> None:
    async def main() -> None:
        pool = WorkerPool(64)
        for _ in range(40):
            (await pool.acquire(1)).run(gate.wait).cancel()
        assert await asyncio.wait_for(run(pool, int, "7"), 1) == 7

    asyncio.run(main())


def test_a_function_cancelled_before_its_first_line_never_runs(gate: threading.Event) -> None:
    """The worker looks at the future first; here the thread starts only after the cancellation."""
    ran: list[int] = []

    async def main() -> None:
        pool = WorkerPool(1)
        late: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        start = pool.start
        held: list[Any] = []
        pool.start = held.append  # type: ignore[method-assign]
        slot = await pool.acquire(1)
        future = slot.run(ran.append, 1)
        slot.on_late(lambda value, error: late.set_result(error))
        future.cancel()
        start(held[0])
        assert isinstance(await late, asyncio.CancelledError)

    asyncio.run(main())
    assert ran == []


def test_cancelling_a_wait_for_a_slot_leaks_nothing(gate: threading.Event) -> None:
    async def main() -> None:
        pool = WorkerPool(1)
        first = await pool.acquire(1)
        waits = [asyncio.create_task(pool.acquire(5)) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        first.release()  # granted to the second, which is cancelled before it can see it
        waits[1].cancel()
        await asyncio.wait(waits[:2])
        (await waits[2]).release()
        assert pool.occupied == 0

    asyncio.run(main())


def test_a_slot_is_used_once() -> None:
    async def main() -> None:
        pool = WorkerPool(1)
        slot = await pool.acquire(1)
        slot.release()
        slot.release()
        assert pool.occupied == 0
        with pytest.raises(RuntimeError, match="once"):
            slot.run(int)

    asyncio.run(main())


def test_threads_are_reused() -> None:
    async def main() -> None:
        pool = WorkerPool(8)
        assert len({await run(pool, threading.get_ident) for _ in range(20)}) == 1

    asyncio.run(main())


def test_an_idle_thread_ends_and_the_pool_goes_on() -> None:
    async def main() -> None:
        pool = WorkerPool(8, idle_s=0.01)
        thread = await run(pool, threading.current_thread)
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
        assert await run(pool, int, "1") == 1

    asyncio.run(main())


def test_an_idle_thread_keeps_no_result_alive() -> None:
    class Result:
        pass

    async def main() -> None:
        pool = WorkerPool(1)
        seen = weakref.ref(await run(pool, Result))
        await run(pool, int)
        gc.collect()
        assert seen() is None

    asyncio.run(main())


def test_one_pool_serves_several_loops_and_survives_a_closed_one(gate: threading.Event) -> None:
    pool = WorkerPool(1)
    threads: list[threading.Thread] = []

    def block() -> None:
        threads.append(threading.current_thread())
        gate.wait()

    async def abandon() -> None:
        (await pool.acquire(1)).run(block)

    async def later() -> int:
        waiting = asyncio.create_task(run(pool, int, "5"))
        await asyncio.sleep(0)
        gate.set()
        return await waiting

    asyncio.run(abandon())  # its loop is closed while the function runs
    assert asyncio.run(later()) == 5
    assert pool.occupied == 0


def test_a_process_exits_without_waiting_for_a_hanging_function() -> None:
    code = """
import asyncio, threading
from interlock.tools.workers import WorkerPool
async def main():
    started = threading.Event()
    slot = await WorkerPool(1).acquire(1)
    slot.run(lambda: (started.set(), threading.Event().wait()))
    started.wait()
asyncio.run(main())
print("bye")
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True).stdout == "bye\n"
