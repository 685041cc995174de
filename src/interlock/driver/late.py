"""A handler that had been given up comes back: what it says is recorded, and changes nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..errors import CommandRefused, JournalError
from ..records import ToolLateResult

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger("interlock.driver")


def record_late(run: Run, record: ToolLateResult) -> None:
    """Record it if this process still has, or can take, the session. Called on the event loop; never raises."""
    if run.parts.closed:
        return  # the agent is gone, and its journal may be
    run.parts.in_background(asyncio.get_running_loop().create_task(_record(run, record)))


async def _record(run: Run, record: ToolLateResult) -> None:
    session = run.session
    try:
        if session.run is None:
            await session.claim(lease_s=run.config.limits.lease_s, version=run.version)
        session.commit(record)
        if session.run is None:
            await session.log.release()
    except (JournalError, CommandRefused) as error:
        logger.warning("a late result of %s could not be recorded: %s", record.key, error)
