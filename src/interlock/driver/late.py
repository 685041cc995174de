"""A call that was given up because it did not stop in time; and its handler, should it come back: what it says is recorded, and changes
nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import CommandRefused, JournalError, UsageError
from ..machine import Call, failed_message
from ..records import ToolLateResult, ToolStepEnded

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger("interlock.driver")


def given_up(call: Call) -> ToolStepEnded:
    """The record of a call that was cancelled and did not stop in time."""
    effect = "unknown" if call.starts else "none"
    message = failed_message(call.call, "cancelled; it did not stop in time and was left behind", effect)
    return ToolStepEnded(key=call.key, message=message, effect=effect, decided_by="runtime", code="cancelled")


def record_late(run: Run, record: ToolLateResult, finish: Callable[[ToolLateResult], ToolLateResult]) -> None:
    """Record it if this process still has, or can take, the session; ``finish`` caps it. Called on the event loop; never raises."""
    if run.parts.closed:
        return  # the agent is gone, and its journal may be
    run.parts.in_background(asyncio.get_running_loop().create_task(_record(run, record, finish)))


async def _record(run: Run, record: ToolLateResult, finish: Callable[[ToolLateResult], ToolLateResult]) -> None:
    session = run.session
    try:
        if session.run is None:
            await session.claim(lease_s=run.config.limits.lease_s, version=run.version)
        session.commit(record, finish)
        if session.run is None:
            await session.log.release()
    except (JournalError, CommandRefused, UsageError) as error:
        logger.warning("a late result of %s could not be recorded: %s", record.key, error)
        if session.run is None:
            await session.give_up()
