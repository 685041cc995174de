"""Reading JSON that is not as documented, for every wire: what has another type is mended, or left out as None."""

from __future__ import annotations

import json
from typing import Any, cast

__all__ = ["as_dict", "as_int", "as_str", "parse"]


def parse(payload: bytes) -> Any:
    """The JSON value, read as leniently as Python can: lone surrogates, NaN, bytes that are not UTF-8. None if it is none."""
    try:
        return json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def as_dict(value: Any) -> dict[str, Any]:
    """The object; an empty one in place of anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_str(value: Any) -> str | None:
    """The text; a number as text."""
    if isinstance(value, str) or value is None:
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def as_int(value: Any) -> int | None:
    """The whole number; a fraction is cut, digits are read."""
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
