"""The arguments of a tool call: raw JSON text on the wire, a dictionary for everyone who runs things."""

from __future__ import annotations

import re
from typing import Any, NoReturn, cast

import msgspec

from .text import clean_tree

_decode = msgspec.json.Decoder(strict=True).decode

# Models that mean "no arguments" say it in all of these ways.
_EMPTY = frozenset({"", "null", '"null"', '""', "{}"})


class MalformedArguments(ValueError):
    """The text is not a JSON object. The message says what it is."""


def parse_arguments(text: str) -> dict[str, Any]:
    """The object that ``text`` holds; missing, blank, null and ``"null"`` count as ``{}``.

    Nothing is guessed or completed: text that was cut, a list, a number, NaN and Infinity raise
    MalformedArguments. Lone surrogate escapes become U+FFFD.
    """
    stripped = text.strip()
    if stripped in _EMPTY:
        return {}
    try:
        value = _decode(stripped)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        value = _decode_surrogates(stripped, error)
    except RecursionError:
        raise MalformedArguments("the arguments are nested too deeply") from None
    if not isinstance(value, dict):
        raise MalformedArguments(f"the arguments are a JSON {_kind(value)}, not an object")
    return cast("dict[str, Any]", value)


def wire_arguments(text: str) -> str:
    """What a provider may be sent back for ``text``: itself where it is a JSON object, ``{}`` otherwise.

    Halves of surrogate pairs, which the provider could not read either, are mended.
    """
    try:
        value = parse_arguments(text)
    except MalformedArguments:
        return "{}"
    stripped = text.strip()  # of white space that JSON does not know, too
    if stripped[:1] != "{":
        return "{}"
    return msgspec.json.encode(value).decode() if _SURROGATE.search(stripped) else stripped


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _decode_surrogates(text: str, error: Exception) -> Any:
    """The strict decoder refuses ``"\\ud835"``, which models do send; the standard one reads it, and we mend it."""
    if "\\u" not in text and isinstance(error, msgspec.DecodeError):
        raise MalformedArguments(f"the arguments are not valid JSON: {error}") from None
    import json  # it is seldom needed, and a tenth of what touching Agent costs

    try:
        return clean_tree(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError) as second:
        raise MalformedArguments(f"the arguments are not valid JSON: {second}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "boolean" if isinstance(value, bool) else "number"
