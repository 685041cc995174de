"""``CoerceArguments``: what a model plainly meant, by the schema's own types, before the strict validation looks at it."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import msgspec

from ..tools.schema import TYPES, Checker, TooComplex, branches, item_schema, resolve, same
from .base import AgentExtension, CallNext, RunContext, ToolInvocation

DEPTH_MAX = 32
# Longer digit strings are no numbers that anybody meant, and turning them into one takes quadratic time.
DIGITS_MAX = 64
JSON_TEXT_MAX = 1024 * 1024
# Above this a float does not hold every integer: which one was meant cannot be known.
EXACT_MAX = 2**53

_INTEGER = re.compile(rf"([+-]?[0-9]{{1,{DIGITS_MAX}}})(?:\.0{{1,{DIGITS_MAX}}})?")
_NUMBER = re.compile(rf"[+-]?(?:[0-9]{{1,{DIGITS_MAX}}}(?:\.[0-9]{{0,{DIGITS_MAX}}})?|\.[0-9]{{1,{DIGITS_MAX}}})(?:[eE][+-]?[0-9]{{1,3}})?")
_DICTS = (dict, dict)
_AT_SIGHT: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_BOOLEANS = {"true": True, "false": False}
_NULLS = frozenset({"null", "none"})


class CoerceArguments(AgentExtension):
    """``"5"`` where an integer is wanted becomes 5, ``"true"`` true, a JSON text an object or array, one item a list of it.

    A value that fits is left alone, and so is one that cannot be coerced: the final validation refuses it. Nothing is
    deleted or invented. Layers further in see the coerced values; ``call.original_arguments`` keeps what came.
    """

    priority = -100

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        arguments = call.arguments
        coerced = coerce(arguments, call.tool.parameters)
        if coerced is not arguments and isinstance(coerced, dict):
            call.arguments = coerced
        return await call_next()


def coerce(value: Any, schema: dict[str, Any]) -> Any:
    """``value`` as ``schema`` wants it, as far as that is clear; the same object if there is nothing to do."""
    if _fits_at_sight(value, schema):
        return value
    try:
        return _Coercion(schema).value(value, schema, 0)
    except TooComplex:  # A hostile schema or value: validation has its own bound.
        return value


def _fits_at_sight(value: Any, schema: dict[str, Any]) -> bool:
    """Whether every argument is a scalar of just the type its schema names: the usual call, for a tenth of the walk."""
    properties: Any = schema.get("properties")
    if (type(value), type(properties)) != _DICTS:
        return False
    for name, item in value.items():
        wanted = properties.get(name)
        if type(wanted) is not dict or wanted.get("type") != _AT_SIGHT.get(type(item), ""):  # pyright: ignore[reportUnknownMemberType]
            return False
    return True


class _Coercion:
    """One walk. Containers are copied where something in them changes, never changed in place."""

    __slots__ = ("_checker", "_root")

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._checker = Checker(root)

    def value(self, value: Any, schema: Any, depth: int) -> Any:
        schema = resolve(schema, self._root)
        if not isinstance(schema, dict) or depth > DEPTH_MAX:
            return value
        self._checker.step()
        schema = cast("dict[str, Any]", schema)
        for part in schema.get("allOf", ()):
            value = self.value(value, part, depth + 1)
        alternatives = branches(schema)
        if alternatives is not None:
            return self._union(value, alternatives, depth)
        options = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(options, list):
            return _option(value, cast("list[Any]", options))
        kind = schema.get("type")
        if not isinstance(kind, str):
            kind = "object" if "properties" in schema else ""
        if kind == "array":
            return self._array(value, schema, depth)
        if kind == "object":
            return self._object(value, schema, depth)
        convert = _SCALARS.get(kind)
        return value if convert is None or TYPES[kind](value) else convert(value)

    def _union(self, value: Any, alternatives: list[Any], depth: int) -> Any:
        """A branch that fits already, then null for its name (no branch takes text, or the first rule had held), then the
        first branch that the coerced value fits."""
        if any(self._checker.fits(value, branch) for branch in alternatives):
            return value
        if _null(value) is None and any(self._checker.fits(None, branch) for branch in alternatives):
            return None
        for branch in alternatives:
            candidate = self.value(value, branch, depth + 1)
            if candidate is not value and self._checker.fits(candidate, branch):
                return candidate
        return value

    def _array(self, value: Any, schema: dict[str, Any], depth: int) -> Any:
        if isinstance(value, str) and value.lstrip()[:1] == "[":
            value = _parsed(value, list)
            if isinstance(value, str):
                return value  # Cut or broken JSON is not one item of a list.
        if isinstance(value, (list, tuple)):
            items = cast("list[Any]", value)
            return _kept(items, [self.value(item, item_schema(schema, index), depth + 1) for index, item in enumerate(items)])
        if value is None:
            return value
        one = item_schema(schema, 0)
        item = self.value(value, one, depth + 1)
        return [item] if self._checker.fits(item, one) else value

    def _object(self, value: Any, schema: dict[str, Any], depth: int) -> Any:
        if isinstance(value, str):
            value = _parsed(value, dict)
        if not isinstance(value, dict):
            return value
        properties = cast("dict[str, Any]", schema.get("properties", {}))
        rest = schema.get("additionalProperties", True)
        old = cast("dict[str, Any]", value)
        new = {name: self.value(item, properties.get(name, rest), depth + 1) for name, item in old.items()}
        return new if any(new[name] is not item for name, item in old.items()) else old


def _kept(old: list[Any], new: list[Any]) -> Any:
    return new if any(a is not b for a, b in zip(old, new, strict=True)) else old


def _option(value: Any, options: list[Any]) -> Any:
    """The enum's or const's value that ``value`` writes in another type; text is never matched loosely."""
    if any(same(value, option) for option in options):
        return value
    for option in options:
        convert = _SCALARS.get(next((name for name, fits in TYPES.items() if fits(option)), ""))
        if convert is not None and same(convert(value), option):
            return option
    return value


def _integer(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_MAX:
        return int(value)
    match = _INTEGER.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) if match else value


def _number(value: Any) -> Any:
    whole = _integer(value) if isinstance(value, str) else value
    if whole is not value or not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return whole
    number = float(value)
    return number if math.isfinite(number) else value


def _boolean(value: Any) -> Any:
    return _BOOLEANS.get(value.strip().lower(), value) if isinstance(value, str) else value


def _null(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in _NULLS else value


_SCALARS = {"integer": _integer, "number": _number, "boolean": _boolean, "null": _null}


def _parsed(text: str, wanted: type) -> Any:
    """The JSON array or object that ``text`` holds; ``text`` itself if it holds none."""
    if len(text) > JSON_TEXT_MAX:
        return text
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    return found if isinstance(found, wanted) else text
