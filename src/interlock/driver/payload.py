"""Results that are too large for the model: cut for it, kept in full beside the journal."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ..messages import Content
from ..records import Payload
from ..tools.result import cap

if TYPE_CHECKING:
    from .run import Run


def capped(run: Run, content: Content, call_id: str) -> tuple[Content, Payload | None]:
    """What the model is shown of ``content``, and where its full copy lies if that is not all of it."""
    limits = run.config.limits
    shown, full = cap(content, limit_bytes=limits.result_bytes, call_id=call_id)
    if full is None:
        return shown, None
    full = full[: limits.result_store_bytes]
    digest = hashlib.sha256(full).hexdigest()
    run.session.log.put_payload(digest, full)
    return shown, Payload(digest, len(full))
