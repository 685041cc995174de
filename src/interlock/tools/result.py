"""What the transcript keeps of a raw result, and the one cap on its size.

Text stays text; message parts stay parts; everything else becomes compact JSON. None is ``null``: a model takes a blank
result for a failure. NaN and the infinities are null too, as JSON has no word for them. What has no honest text form
is refused by type and place; a ``repr`` would show memory addresses and break replay.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import math
import os
import sys
import types
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from typing import Any, cast

import msgspec
from msgspec.structs import asdict, replace

from ..messages import Content, FilePart, ImagePart, Part, TextPart, clean, text_of
from .arguments import dotted

# The largest image that every provider we know accepts, as base64 text. Its cost to a model does not follow its bytes,
# so it does not count against the limit of the text.
IMAGE_BYTES_MAX = 5 * 1024 * 1024
# How much of a capped text is taken from its beginning; the rest is its end, where errors and totals stand.
HEAD_SHARE = 0.7
READ_BYTES = 16 * 1024


class ResultNotSerializable(TypeError):
    """A result that no text can stand for. The message says where in the value, and which type."""


def to_content(value: Any) -> Content:
    """The content of the ToolMessage for what a handler or a layer returned.

    A list or tuple of parts, among which there may be text, is a tuple of parts. Bytes are text if they are UTF-8, and base64
    with a note otherwise. Sets are sorted. Lone surrogates become U+FFFD. Raises ResultNotSerializable.
    """
    if type(value) is str:
        return clean(value)
    if type(value) is int and value.bit_length() < 64:
        return str(value)
    if isinstance(value, (TextPart, ImagePart, FilePart)):
        return (_clean_part(value),)
    if isinstance(value, (list, tuple)) and any(isinstance(item, (TextPart, ImagePart, FilePart)) for item in cast("list[Any]", value)):
        return _parts(cast("list[Any]", value))
    if not isinstance(value, (list, dict, tuple)):
        value = _unwrapped(value)
        if isinstance(value, str):
            return clean(value)
    return clean(_to_json(value))


def _parts(values: Sequence[Any]) -> tuple[Part, ...]:
    for index, item in enumerate(values):
        if not isinstance(item, (str, TextPart, ImagePart, FilePart)):
            raise ResultNotSerializable(f"result[{index}]: a {type(item).__name__} among message parts; parts and text only go together")
    return tuple(_clean_part(TextPart(item) if isinstance(item, str) else item) for item in values)


def _clean_part(part: Part) -> Part:
    if any(not isinstance(value, str | None) for value in msgspec.structs.astuple(part)):
        raise ResultNotSerializable(f"result: a {type(part).__name__} whose fields are not text")
    if isinstance(part, TextPart):
        return TextPart(clean(part.text))
    return replace(part, **{name: clean(value) for name, value in asdict(part).items() if value is not None})


def _unwrapped(value: Any) -> Any:
    """One level towards JSON, for a value that is no container itself."""
    if value is None or (isinstance(value, (bool, int, float)) and not isinstance(value, enum.Enum)):
        return value
    try:
        return _plain(value)
    except TypeError as error:
        raise ResultNotSerializable(f"result: {error}") from error


def _to_json(value: Any) -> str:
    try:
        return _encoder()(value)
    except (TypeError, ValueError, RecursionError):
        pass  # NaN, an unusual key, or something without a form: walk slowly, which mends the first two and names the third.
    try:
        return _encoder()(_walk(value, ()))
    except ResultNotSerializable:
        raise
    except RecursionError:
        raise ResultNotSerializable("result: nested too deeply, or refers to itself") from None
    except (TypeError, ValueError) as error:
        raise ResultNotSerializable(f"result: {error}") from error


def _walk(value: Any, path: tuple[str | int, ...]) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)) or type(value) is str:
        return value
    if isinstance(value, dict):
        return {_key(key, path): _walk(item, (*path, str(key))) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_walk(item, (*path, index)) for index, item in enumerate(cast("list[Any]", value))]
    try:
        plain = _plain(value)
    except TypeError as error:
        raise ResultNotSerializable(f"{dotted(('result', *path))}: {error}") from error
    return _walk(plain, path)


def _key(key: Any, path: tuple[str | int, ...]) -> str | int | float | bool | None:
    if key is None or type(key) in (str, int, float, bool):
        return "null" if isinstance(key, float) and not math.isfinite(key) else key
    try:
        plain = _plain(key)
    except TypeError:
        plain = key
    if not isinstance(plain, (str, int)):
        raise ResultNotSerializable(f"{dotted(('result', *path))}: a key is a {type(key).__name__}; JSON keys are strings")
    return plain


def _plain(value: Any) -> Any:
    """One step from a Python value towards JSON. Raises TypeError, which names the type."""
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    pydantic = sys.modules.get("pydantic")  # If nobody has loaded it, nobody can have made a model.
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return _dumped(value)
    raise TypeError(f"type {type(value).__qualname__} cannot be turned into text; return a string, JSON-able data, a dataclass or a model")


def _dumped(model: Any) -> Any:
    try:
        return model.model_dump(mode="json", by_alias=True)
    except Exception as error:  # Serializers are code of the user's.
        raise TypeError(f"the model {type(model).__qualname__} cannot be dumped: {type(error).__name__}") from error


def _struct(value: msgspec.Struct) -> dict[str, Any]:
    config = value.__struct_config__
    plain: dict[str, Any] = {} if config.tag_field is None else {config.tag_field: config.tag}
    for field in msgspec.structs.fields(value):
        item = getattr(value, field.name)
        if item is not msgspec.UNSET:
            plain[field.encode_name] = item
    return plain


def _bytes(value: bytes | bytearray | memoryview) -> str:
    data = bytes(value)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes of binary data, base64) {base64.b64encode(data).decode()}"


def _sorted(values: Set[Any]) -> list[Any]:
    """Sets have no order of their own; a transcript needs the same one every time."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda item: (type(item).__name__, _to_json(item)))


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda value: value.value),
    (str, str.__str__),
    (msgspec.Struct, _struct),
    ((datetime.date, datetime.time), lambda value: value.isoformat()),
    (datetime.timedelta, msgspec.to_builtins),
    (decimal.Decimal, str),
    (uuid.UUID, str),
    (os.PathLike, os.fspath),
    ((bytes, bytearray, memoryview), _bytes),
    (Set, _sorted),
    (Mapping, dict[Any, Any]),
    (types.SimpleNamespace, vars),
    ((Sequence, deque), list[Any]),
)


@cache
def _encoder() -> Callable[[Any], str]:
    """The encoder in C. It calls `_plain` for what JSON does not know, and keeps the order of keys."""
    import json  # with its decoder, a tenth of what touching Agent costs

    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def cap(content: Content, *, limit_bytes: int, call_id: str) -> tuple[Content, bytes | None]:
    """``content`` within ``limit_bytes`` of UTF-8, and the full text as bytes if something was left out of it.

    The middle is left out, at character boundaries; a line says so, and how to read on. Of parts, the text is capped as one,
    at the place of the first text; an image of more than IMAGE_BYTES_MAX is replaced by a note. A limit under 512 may be
    passed by the notice.
    """
    if isinstance(content, str):
        if len(content) * 4 <= limit_bytes:  # No character has more than four bytes.
            return content, None
        full = content.encode()
        return (content, None) if len(full) <= limit_bytes else (_shortened(full, limit_bytes, call_id), full)
    parts = tuple(_small_image(part) for part in content)
    full = text_of(parts).encode()
    if len(full) <= limit_bytes:
        return parts, None
    kept: list[Part] = [part for part in parts if not isinstance(part, TextPart)]
    first = next(index for index, part in enumerate(parts) if isinstance(part, TextPart))
    kept.insert(first, TextPart(_shortened(full, limit_bytes, call_id)))
    return tuple(kept), full


def _small_image(part: Part) -> Part:
    if isinstance(part, TextPart) or part.data is None or len(part.data) <= IMAGE_BYTES_MAX:
        return part
    what = "An image" if isinstance(part, ImagePart) else "A file"
    return TextPart(f"[{what} ({part.media_type or 'unknown type'}, {len(part.data)} bytes of base64) was too large and is not shown.]")


def _shortened(full: bytes, limit: int, call_id: str) -> str:
    room = limit - len(_notice(len(full), len(full), len(full), call_id).encode())
    if room < 0:  # A wire id may have any length.
        call_id = ""
        room = max(0, limit - len(_notice(len(full), len(full), len(full), call_id).encode()))
    head = full[: int(room * HEAD_SHARE)].decode("utf-8", "ignore")
    start = boundary(full, len(full) - (room - int(room * HEAD_SHARE)), forward=True)
    at = len(head.encode())
    return f"{head}{_notice(len(full), start - at, at, call_id)}{full[start:].decode()}"


def boundary(data: bytes, at: int, *, forward: bool = False) -> int:
    """``at``, moved back (or forward) to where a UTF-8 character begins."""
    at = max(0, min(at, len(data)))
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1 if forward else -1
    return at


def _notice(size: int, left_out: int, offset: int, call_id: str) -> str:
    how = f' To read on: read_result(call_id="{call_id}", offset={offset}, limit={READ_BYTES}).' if call_id else ""
    return f"\n[... {left_out} of {size} bytes are left out here.{how} ...]\n"
