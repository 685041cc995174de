"""Results that are too large for the model: cut for it, kept in full beside the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..messages import Content
from ..records import Payload, ToolStepEnded
from ..tools.result import cap
from .identity import sha256

if TYPE_CHECKING:
    from .run import Run


def capped(run: Run, record: ToolStepEnded) -> ToolStepEnded:
    """``record``, as it was redacted, with what the model is shown of its result, and where the full copy lies if that is not all
    of it. What a handler or a layer raised may be as long as any result."""
    message, returned = record.message, record.returned
    shown, payload = _capped(run, message.content, message.tool_call_id)
    if returned is not None and returned.content is not None:
        content, full = _capped(run, returned.content, message.tool_call_id)
        record = replace(record, returned=replace(returned, content=content, payload=full))
    if payload is None and shown is message.content:
        return record
    return replace(record, message=replace(message, content=shown), payload=payload)


def _capped(run: Run, content: Content, call_id: str) -> tuple[Content, Payload | None]:
    limits = run.config.limits
    shown, full = cap(content, limit_bytes=limits.result_bytes, call_id=call_id)
    if full is None:
        return shown, None
    full = full[: limits.result_store_bytes]
    digest = sha256(full)
    run.session.log.put_payload(digest, full)
    return shown, Payload(digest, len(full))
