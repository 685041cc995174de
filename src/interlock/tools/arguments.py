"""The effective arguments of a call as JSON text, and what is said when they do not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ..errors import ToolFailure
from ..messages import clean_tree

# Deeper than any honest argument, and well inside what the validator's own JSON parser accepts (about 200).
DEPTH_MAX = 100
PROBLEMS_MAX = 10
SHOWN_CHARS_MAX = 80

_encode = msgspec.json.Encoder().encode
_SAFE = frozenset({str, int, bool, type(None)})

Path = tuple[str | int, ...]


class InvalidArguments(ToolFailure):
    """The arguments do not fit the tool's schema. The handler was not started, so the effect is none."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        listed = [problems] if isinstance(problems, str) else list(problems)
        text = "; ".join(listed[:PROBLEMS_MAX])
        if len(listed) > PROBLEMS_MAX:
            text += f"; and {len(listed) - PROBLEMS_MAX} more"
        super().__init__(text, effect="none")
        self.problems = tuple(listed)


def encode_arguments(arguments: dict[str, Any]) -> bytes:
    """``arguments`` as JSON, lone surrogates replaced.

    Layers may have put anything into them. What is not JSON raises InvalidArguments and is not guessed at: a set has
    no order, an object has no one form, and NaN would silently become null.
    """
    for name, value in arguments.items():
        if type(value) not in _SAFE:
            _require_json(value, (name,))
    try:
        return _encode(arguments)
    except UnicodeEncodeError:
        return _encode(clean_tree(arguments))
    except (TypeError, ValueError, OverflowError) as error:
        # A key that is no string, or an integer too long to be written.
        raise InvalidArguments(f"the arguments cannot be written as JSON: {error}") from error


def _require_json(value: Any, path: Path) -> None:
    kind = cast("type[Any]", type(value))
    if kind in _SAFE:
        return
    if len(path) > DEPTH_MAX:
        raise InvalidArguments(f"{path[0]}: nested deeper than {DEPTH_MAX} levels, or refers to itself")
    if kind is float:
        if not math.isfinite(value):
            raise InvalidArguments(f"{dotted(path)}: {value} is not a JSON number")
    elif kind is list or kind is tuple:
        for index, item in enumerate(cast("Sequence[Any]", value)):
            _require_json(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if type(key) is not str:
                raise InvalidArguments(f"{dotted(path)}: a key is a {type(key).__name__}; JSON keys are strings")
            _require_json(item, (*path, key))
    else:
        raise InvalidArguments(f"{dotted(path)}: a {kind.__name__} is not a JSON value (string, number, boolean, null, array or object)")


def dotted(path: Sequence[str | int]) -> str:
    """``("items", 0, "id")`` as ``items[0].id``; the arguments as a whole have no name."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "arguments"


def shown(value: Any) -> str:
    """A JSON value in an error message: short, on one line."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = _encode(value).decode()
        except (TypeError, ValueError, RecursionError):
            text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 4]} ..."
