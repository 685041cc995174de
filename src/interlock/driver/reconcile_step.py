"""After a crash: the tool itself is asked what became of a call that it had started."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from ..errors import JournalError, ProtocolError, UsageError
from ..machine import Call
from ..messages import ToolMessage, clean, reason_of
from ..messages.arguments import parse_arguments
from ..records import ReconcileEnded, ToolStepEnded
from ..tools import Tool
from ..tools.reconcile import Happened, Reconciled, did_not_happen, unknown
from ..tools.result import ResultNotSerializable, to_content
from ..tools.signature import is_async
from .identity import idempotency_key
from .payload import capped

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger("interlock.driver")


class ReconcileStep:
    """One question to one tool. A question has no effect, so nobody minds if it is asked again after another crash."""

    __slots__ = ("_call", "_run", "entered")

    def __init__(self, run: Run, call: Call) -> None:
        self._run = run
        self._call = call
        self.entered = False

    async def main(self) -> None:
        """The body of the step's own task. Never raises."""
        run = self._run
        self.entered = True
        try:
            await run.session.log.durable()  # a process that has lost the session learns it here, and asks nothing
            found = await self._found()
            if run.is_running(self):
                self._record(found)
        except BaseException as error:
            run.fail(error)
        finally:
            run.finished()

    async def _found(self) -> Reconciled:
        """What the tool says; unknown, with the reason, for whatever goes wrong."""
        name, run = self._call.call.name, self._run
        if run.interrupted:
            return unknown("the run was cancelled before it was asked")
        tool = run.parts.tools[name]
        timeout_s = tool.traits.timeout_s or run.config.limits.reconcile_s
        try:
            async with asyncio.timeout(timeout_s):
                found: object = await self._ask(tool)
        except (JournalError, ProtocolError):
            raise
        except asyncio.CancelledError:
            return unknown("the run was cancelled while it was asked")
        except TimeoutError:
            found = unknown(f"it did not say within {timeout_s:g} s")
        except Exception as error:
            found = unknown(f"asking it failed: {reason_of(error)}")
        if found in (unknown, did_not_happen):  # the function itself, not what it makes
            found = unknown() if found is unknown else did_not_happen()
        if not isinstance(found, Reconciled):
            found = unknown(f"its reconcile function returned {type(found).__name__}, not happened(...), did_not_happen() or unknown()")
        if found.found == "unknown":
            logger.warning(
                "tool %s: it is unknown what became of the call %s: %s", name, self._call.key, found.reason or "it does not say why"
            )
        return found

    async def _ask(self, tool: Tool) -> Any:
        if tool.reconcile is None:
            raise UsageError("this agent's tool has no reconcile function any more")
        run = self._run
        question = (idempotency_key(run.session.session_id, self._call.key), parse_arguments(self._call.started_with))
        if is_async(tool.reconcile):
            return await tool.reconcile(*question)
        slot = await run.parts.workers.acquire(run.config.limits.worker_wait_s)
        said = await slot.run(tool.reconcile, *question)
        return await said if inspect.isawaitable(said) else said

    def _record(self, found: Reconciled) -> None:
        run, call = self._run, self._call
        if not isinstance(found, Happened):
            what = "did_not_happen" if found.found == "did_not_happen" else "unknown"
            run.session.commit(ReconcileEnded(key=call.key, found=what, reason=clean(found.reason)))
            return
        try:
            content = to_content(found.result)
        except ResultNotSerializable as error:
            content = f"The call was completed. Its result is lost: {error}"
        shown, payload = capped(run, content, call.call.id)
        message = ToolMessage(tool_call_id=call.call.id, name=call.call.name, content=shown, effect="happened")
        run.settle(
            ToolStepEnded(key=call.key, message=message, effect="happened", decided_by="reconcile", code="reconciled", payload=payload)
        )
