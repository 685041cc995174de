"""The keys that the outside world is given, so that it can refuse a second time."""

from __future__ import annotations

import hashlib


def idempotency_key(session_id: str, key: str) -> str:
    """32 hexadecimal digits for the call ``key`` of the session: the same for every start of the same call."""
    return hashlib.sha256(f"{session_id}\n{key}".encode()).hexdigest()[:32]
