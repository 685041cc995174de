"""After a crash: the tool itself is asked what became of a call that it had started."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..machine import Call
from ..messages import ToolMessage, clean, reason_of
from ..messages.arguments import parse_arguments
from ..records import ReconcileEnded, ToolStepEnded
from ..tools import Tool
from ..tools.reconcile import Happened, Reconciled, did_not_happen, unknown
from ..tools.result import ResultNotSerializable, to_content
from ..tools.signature import is_async
from .identity import idempotency_key, identity_of

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
            found: object = await self._asked(tool, timeout_s)
        except asyncio.CancelledError:
            return unknown("the run was cancelled while it was asked")
        if found is unknown or found is did_not_happen:  # the function itself, not what it makes
            found = unknown() if found is unknown else did_not_happen()
        if not isinstance(found, Reconciled):
            found = unknown(f"its reconcile function returned {type(found).__name__}, not happened(...), did_not_happen() or unknown()")
        if found.found == "unknown":
            why = run.session.said(found.reason) or "it does not say why"
            logger.warning("tool %s: it is unknown what became of the call %s: %s", name, self._call.key, why)
        return found

    async def _asked(self, tool: Tool, timeout_s: float) -> object:
        """What the function returned; unknown if it raised or did not say in time.

        It has a task of its own, so that one which ignores its cancellation can be given up.
        """
        outcome: list[tuple[Any, BaseException | None]] = []

        async def guarded() -> None:
            try:
                outcome.append((await self._ask(tool), None))
            except BaseException as error:
                outcome.append((None, error))

        run = self._run
        task = asyncio.Task(guarded(), loop=asyncio.get_running_loop())
        try:
            await asyncio.wait({task}, timeout=timeout_s)
            in_time = bool(outcome)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=run.config.limits.drain_s)
            if not task.done():
                run.parts.in_background(task)
        if not in_time:
            return unknown(f"it did not say within {timeout_s:g} s")
        found, error = outcome[0]
        if error is None:
            return found
        if isinstance(error, SystemExit | KeyboardInterrupt):  # as from a handler: the run ends, and then it reaches the caller
            run.crash(error)
        return unknown(f"asking it failed: {reason_of(error)}")

    async def _ask(self, tool: Tool) -> Any:
        if tool.reconcile is None:
            raise UsageError("this agent's tool has no reconcile function any more")
        run = self._run
        question = (
            idempotency_key(run.session.session_id, identity_of(self._call.key, self._call.edited)),
            parse_arguments(self._call.started_with),
        )
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
        message = ToolMessage(tool_call_id=call.call.id, name=call.call.name, content=content, effect="happened")
        run.settle(ToolStepEnded(key=call.key, message=message, effect="happened", decided_by="reconcile", code="reconciled"))
