"""Digests: the keys that the outside world is given, so that it can refuse a second time, and the names of what is stored."""

from __future__ import annotations


def identity_of(key: str, edited: str | None) -> str:
    """What stands for the call outside. Arguments that a person gave make it another one: whoever refuses a second time would answer them
    with the result of the first."""
    return key if edited is None else f"{key} {edited}"


def idempotency_key(session_id: str, key: str) -> str:
    """32 hexadecimal digits for the call ``key`` of the session: the same for every start of the same call."""
    return sha256(f"{session_id}\n{key}".encode())[:32]


def sha256(data: bytes) -> str:
    """As hexadecimal digits."""
    import hashlib  # with OpenSSL, a tenth of what touching Agent costs

    return hashlib.sha256(data).hexdigest()
