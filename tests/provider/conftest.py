"""Helpers of the provider tests: one way to run a coroutine, which notices whatever it leaves behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def _run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run ``main`` in a new event loop. Fails for tasks that survive it and for exceptions that nobody retrieved."""
    complaints: list[str] = []

    async def guarded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
        async with asyncio.timeout(20):
            result = await main
        for _ in range(5):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"
        return result

    result = asyncio.run(guarded())
    gc.collect(1)  # what this test made; a full collection would look at hypothesis each time
    assert not complaints, complaints
    return result


@pytest.fixture(scope="session")
def run() -> Run:
    return _run
