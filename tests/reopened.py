"""A process that died, without a process: the rows that it had stored, in a journal that another agent opens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from helpers import limits
from interlock import Agent, AgentRunConfig
from interlock.journal import MemoryJournal
from interlock.records import Row
from interlock.testing import ScriptedModel


async def journal_of(rows: Iterable[Row]) -> MemoryJournal:
    """A new journal that holds ``rows`` of the session ``s``."""
    journal = MemoryJournal()
    log = journal.session("s")
    for row in rows:
        log.append(row.record, at=row.at)
    await log.durable()
    return journal


async def left_behind(steps: Any, *, at: asyncio.Event, prompt: str = "Go.", **options: Any) -> MemoryJournal:
    """Run until ``at`` is set, and die there: a journal with what had been stored by then, and nothing that was only buffered."""
    journal = MemoryJournal()
    config = AgentRunConfig(session_id="s")
    agent = await Agent.create(_model(steps), config=config, journal=journal, **{"limits": limits(), **options})
    run, reached = asyncio.create_task(agent.run(prompt)), asyncio.create_task(at.wait())
    done, _ = await asyncio.wait({run, reached}, return_when=asyncio.FIRST_COMPLETED)
    assert reached in done, run
    rows = await journal.read("s")
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    await agent.aclose()
    await journal.aclose()
    return await journal_of(rows)


def _model(steps: Any) -> ScriptedModel:
    return steps if isinstance(steps, ScriptedModel) else ScriptedModel(steps)


@asynccontextmanager
async def reopened(journal: MemoryJournal, steps: Any = (), **options: Any) -> AsyncIterator[Agent]:
    """Another agent on what was left behind; its model must have been asked for every one of ``steps`` in the end."""
    model, config = _model(steps), AgentRunConfig(session_id="s")
    async with await Agent.create(model, config=config, journal=journal, **{"limits": limits(), **options}) as agent:
        yield agent
    model.assert_done()
    await journal.aclose()
