"""The request of a model step: what was said, the overlay of the streak, and what is offered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..machine import CallModel
from ..messages import SystemMessage
from ..model import ModelRequest, ToolSpec

if TYPE_CHECKING:
    from .run import Run

Specs = tuple[ToolSpec, ...]


def build_request(run: Run, action: CallModel) -> ModelRequest:
    session = run.session
    transcript = session.transcript
    return ModelRequest(
        messages=(*_system(run), *transcript.messages, *transcript.overlay),
        tools=_offer(run),
        settings=run.config.settings,
        output=run.parts.output.spec if run.parts.output is not None else None,
        session_id=session.session_id,
        run_id=run.run_id,
        turn=action.turn,
        attempt=action.attempt,
        scratch=session.scratch,
    )


def _system(run: Run) -> tuple[SystemMessage, ...]:
    """The system prompt and the extensions' instructions: one message, the same object as long as the text is the same."""
    parts = run.parts
    if not parts.instructors:
        return (parts.system,) if parts.system is not None else ()
    said = [text for i in parts.instructors if (text := parts.extensions[i].instructions(run.contexts[i]))]
    text = "\n\n".join((parts.system_prompt, *said) if parts.system is not None else said)
    if not text.strip():
        return ()
    old: SystemMessage | None = run.session.scratch.get("system")
    if old is None or old.content != text:
        old = run.session.scratch["system"] = SystemMessage(content=text)
    return (old,)


def _offer(run: Run) -> Specs:
    """What is offered this turn: the same tuple as long as it is the same tools, so that adapters encode it once."""
    parts, scratch = run.parts, run.session.scratch
    specs = tuple(tool.spec for tool in parts.tools.values() if tool.available is None or tool.available(run.context_of(tool)))
    if parts.output is not None and parts.output.tool is not None:
        specs = (*specs, parts.output.tool)
    old: Specs | None = scratch.get("tools")
    if old is None or old != specs:
        old = scratch["tools"] = specs
    return old
