"""pydantic's errors in words that a model can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .arguments import Path, dotted, shown

_EXPECTED = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_sub_type", "bytes_type"), "a string"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "an array"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type", "typed_dict_type", "named_tuple_type"),
        "an object",
    ),
    "none_required": "null",
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "a date such as 2026-01-31"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing"), "a date and time such as 2026-01-31T12:00:00Z"),
    **dict.fromkeys(("time_type", "time_parsing"), "a time such as 12:30:00"),
    **dict.fromkeys(("time_delta_type", "time_delta_parsing"), "a duration such as PT1H30M"),
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "a UUID"),
    **dict.fromkeys(("decimal_type", "decimal_parsing"), "a decimal number"),
    **dict.fromkeys(("url_type", "url_parsing"), "a URL"),
}


_MISSING = frozenset({"missing", "missing_argument", "missing_keyword_only_argument", "missing_positional_only_argument"})


def problems_of(error: ValidationError, arguments: dict[str, Any], known: Sequence[str]) -> list[str]:
    """One line for each place in ``arguments``; the branches of a union are joined by "or"."""
    expected: dict[Path, list[str]] = {}
    got: dict[Path, str] = {}
    other: list[str] = []
    for detail in error.errors(include_url=False):
        path = _path(detail["loc"], arguments, absent=detail["type"] in _MISSING)
        want = _expected(detail)
        if want is None:
            other.append(_sentence(detail, path, known))
            continue
        wants = expected.setdefault(path, [])
        if want not in wants:
            wants.append(want)
        got[path] = shown(detail["input"])
    return [f"{dotted(path)}: expected {' or '.join(wants)}, got {got[path]}" for path, wants in expected.items()] + list(
        dict.fromkeys(other)
    )


def _expected(detail: ErrorDetails) -> str | None:
    if detail["type"] in ("literal_error", "enum"):
        return str(detail.get("ctx", {}).get("expected", "another value"))
    return _EXPECTED.get(detail["type"])


def _sentence(detail: ErrorDetails, path: Path, known: Sequence[str]) -> str:
    kind = detail["type"]
    where = dotted(path)
    if kind in _MISSING:
        return f"{where}: required, but missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        if len(path) > 1:
            return f"{where}: unknown field"
        return (
            f"{where}: unknown argument; the known ones are {', '.join(known)}" if known else f"{where}: unknown argument; there are none"
        )
    message = detail["msg"]
    for prefix in ("Value error, ", "Assertion failed, ", "Input "):
        message = message.removeprefix(prefix)
    return f"{where}: {message}, got {shown(detail['input'])}"


def _path(loc: tuple[int | str, ...], arguments: dict[str, Any], *, absent: bool) -> Path:
    """The part of ``loc`` that leads through the arguments; pydantic puts the names of union branches in between.

    absent: the last part names what is missing.
    """
    path: list[str | int] = []
    value: Any = arguments
    for index, part in enumerate(loc):
        if isinstance(value, dict) and (part in value or (absent and index == len(loc) - 1)):
            value = cast("dict[Any, Any]", value).get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[part]
        else:
            continue
        path.append(part)
    return tuple(path)
