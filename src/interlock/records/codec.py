"""Records as bytes: one JSON object each, written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import InterlockError, JournalCorrupt
from . import Record

VERSION = 1
"""The schema's version, stored beside every row."""

UPCASTERS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""One pure function per old version: the decoded object of version n to that of version n + 1."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def encode(record: Record) -> bytes:
    return _encode(record)


def decode(body: bytes, *, v: int = VERSION, where: str = "") -> Record:
    """Raises JournalCorrupt, which names ``where``, for anything that is not a record of a known version."""
    try:
        if v == VERSION:
            return _decode(body)
        if v > VERSION or v < 1:
            raise JournalCorrupt(f"{where}: written by a newer version of Interlock (schema {v}, this one reads {VERSION})")
        value = msgspec.json.decode(body)
        for step in range(v, VERSION):
            value = UPCASTERS[step](value)
        return msgspec.convert(value, Record)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError, RecursionError) as error:
        raise JournalCorrupt(f"{where}: the row is not a record ({error})") from error
    except InterlockError as error:
        if isinstance(error, JournalCorrupt):
            raise
        raise JournalCorrupt(f"{where}: the row is not a record ({error})") from error
