"""``Approvals``: a call waits until a person has said yes to exactly its arguments."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Fatal, ToolFailure, UsageError
from ..messages import reason_of
from ..records import SCOPES, Scope
from .ask_user import ASK_USER
from .base import AgentExtension, CallNext, RunContext, Suspended, ToolInvocation

if TYPE_CHECKING:
    from .approvals_file import ApprovalsFile

__all__ = ["Approvals", "ask"]

logger = logging.getLogger("interlock.approvals")

When = Callable[[RunContext, ToolInvocation], "bool | str | Awaitable[bool | str]"]


def ask(
    context: RunContext, call: ToolInvocation, *, question: str, expires_s: float | None = None, grants: Iterable[Scope] | None = None
) -> Suspended | None:
    """None if a person has allowed this very call; otherwise what the layer must return, before it delegates, so that one is asked.

    The one way in which policies, hooks and ``Approvals`` ask. A yes is bound to the arguments that the call has now; any other answer to
    the layer's own question is a denial, raised as ToolFailure, and the model reads it. question: what the person reads. expires_s: seconds
    after which no answer is a denial; None waits for ever. grants: how far beyond this once a person may allow it, and what was allowed
    earlier counts; () is this once alone, None what ``Approvals`` offers. ``"always"`` is offered where ``Approvals`` has a file for it.
    Raises UsageError, which is a veto, if that file cannot be read.
    """
    if context.answer is True:
        return None
    if context.answer is not None and context.asked:  # what another layer was told is not for us
        raise ToolFailure(f"denied: a person was asked, and did not say yes: {context.answer}", effect="none")
    if call.tool is ASK_USER and context.answer is not None:  # the person has been asked what the model asks: this layer let that through
        return None
    approvals = context.find(Approvals)
    offered: tuple[Scope, ...] = tuple(grants) if grants is not None else approvals.scopes if approvals is not None else SCOPES
    if any(scope in offered for scope in context.granted):
        return None
    if "always" in offered:
        file = approvals.file if approvals is not None else None
        if file is not None and file.allows(call.name, call.arguments):
            return None
        if file is None or not file.can_hold(call.arguments):
            offered = tuple[Scope, ...](scope for scope in offered if scope != "always")
    return Suspended(question, expires_s, offered)


class Approvals(AgentExtension):
    """Asks a person before a tool with ``requires_approval=True`` runs, and where ``when`` says so. It is added by itself to an agent that
    has such a tool.

    when: ``(context, call)``, sync or async: True or a question (text) asks, False does not; an exception or anything else is a denial. A
    tool that requires approval is asked about whatever it says. file: where ``Allow("always")`` is written, a TOML file that a person can
    review; None offers no such answer. expires_s: seconds after which no answer is a denial; None waits for ever. scopes: how far beyond
    once a person may allow a call. Raises UsageError for what is none of these, and for a file that is not well formed.

    Its place is inside yours and inside a policy: it sees the arguments that run, and asks nobody about what is denied.
    """

    priority = 910

    def __init__(
        self,
        *,
        when: When | None = None,
        file: str | Path | None = None,
        expires_s: float | None = None,
        scopes: Iterable[Scope] = SCOPES,
    ) -> None:
        if when is not None and not callable(when):
            raise UsageError(f"Approvals(when=...): a function (context, call) is needed, not {when!r}")
        self.scopes: tuple[Scope, ...] = tuple(scopes)
        self._expires_s = Suspended("", expires_s, self.scopes).expires_s
        self._when = when
        self.file: ApprovalsFile | None = None
        if file is not None:
            from .approvals_file import ApprovalsFile  # what reads and writes TOML is for those who have one

            self.file = ApprovalsFile(Path(file))
            self.file.allows("", {})  # what is wrong with it is said now, and not at the first call

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        question = await self._question(context, call)
        if question is not None:
            suspended = ask(context, call, question=question, expires_s=self._expires_s, grants=self.scopes)
            if suspended is not None:
                return suspended
        if self.file is not None and "always" in context.granted:  # whoever asked
            await _remember(self.file, context, call)
        return await call_next()

    async def _question(self, context: RunContext, call: ToolInvocation) -> str | None:
        """What is to be asked; None is nothing. Raises PermissionError where the function does not say."""
        said = await self._said(context, call) if self._when is not None else False
        if isinstance(said, str):
            return said
        return f"May {call.name} run?" if said or call.tool.traits.requires_approval else None

    async def _said(self, context: RunContext, call: ToolInvocation) -> bool | str:
        when: Any = self._when
        name = getattr(when, "__qualname__", type(when).__name__)
        try:
            said = when(context, call)
            if inspect.isawaitable(said):
                said = await said
        except Fatal:
            raise
        except Exception as error:
            raise PermissionError(f"denied: {_UNKNOWN}: {name} raised {type(error).__name__}: {reason_of(error)}") from error
        if not isinstance(said, bool | str) or (isinstance(said, str) and not said.strip()):
            what = "an empty question" if isinstance(said, str) else type(said).__name__
            raise PermissionError(f"denied: {_UNKNOWN}: {name} returned {what}; a bool or a question is needed")
        return said


_UNKNOWN = "nobody knows whether a person must be asked"


async def _remember(file: ApprovalsFile, context: RunContext, call: ToolInvocation) -> None:
    """A yes that cannot be written is a yes all the same, to this call: it is asked about again next time."""
    day = time.strftime("%Y-%m-%d", time.gmtime(context.clock()))
    try:
        await asyncio.to_thread(
            file.add, call.name, dict(call.arguments), reason=f"a person allowed it for good on {day}, in session {context.session_id}"
        )
    except (OSError, UsageError) as error:
        logger.warning("%s is allowed now, but not for good: %s could not be written (%s)", call.name, file.path, reason_of(error))
