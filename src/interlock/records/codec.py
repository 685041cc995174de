"""Records as bytes: one JSON object each, written once. What is written once is read for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import InterlockError, JournalCorrupt
from . import Record
from .upcasters import UPCASTERS, upcast

VERSION = 1
"""The version of the records, stored beside every row. ``upcasters`` reads those before it."""

_Object = dict[str, Any]
_decode = msgspec.json.Decoder(Record).decode


encode: Callable[[Record], bytes] = msgspec.json.Encoder().encode
"""A record as one JSON object."""


def decode(body: bytes, *, v: int = VERSION, where: str = "") -> Record:
    """Raises JournalCorrupt, which names ``where``, for anything that is not a record of a known version."""
    if v != VERSION:
        _check_known(v, where)
    try:
        if v == VERSION:
            return _decode(body)
        return msgspec.convert(upcast(msgspec.json.decode(body, type=_Object), v=v, to=VERSION), Record)
    except Exception as error:  # an upcaster that meets what no release wrote may raise anything
        raise JournalCorrupt(f"{where}: the row is not a record ({_reason(error)})") from error


def _check_known(v: int, where: str) -> None:
    if v > VERSION:
        raise JournalCorrupt(
            f"{where}: written by a newer version of Interlock (schema {v}, this one reads up to {VERSION}); "
            "upgrade Interlock, and until then leave the session alone"
        )
    if v not in UPCASTERS:
        raise JournalCorrupt(f"{where}: no version of Interlock wrote schema {v}: the row is damaged; restore a copy of the journal")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.MsgspecError | ValueError | InterlockError) else f"{type(error).__name__}: {error}"
