"""JSON schemas as plain data: tidying one, and a check of the part that the runtime relies on.

The check knows type (and ``nullable``), enum, const, required, properties, additionalProperties, items, prefixItems,
anyOf, oneOf, allOf and local ``$ref``. Formats, patterns and bounds are left to whoever runs the tool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from ..errors import UsageError
from .arguments import InvalidArguments, Path, dotted, encode_arguments, shown
from .tool import Bound

# A schema that refers to itself in several branches can be made to cost any time; this is far above any real check.
STEPS_MAX = 20_000
# Of schemas inside each other, whether the value goes deeper or not: a union may contain itself.
DEPTH_MAX = 64

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = frozenset({"default", "const", "enum", "examples", "example", "required"})

TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value)),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, (list, tuple)),
    "object": lambda value: isinstance(value, dict),
}
"""Strict: true and 5.0 are no integers."""


_NAMES = {"integer": "an integer", "boolean": "true or false", "null": "null", "array": "an array", "object": "an object"}


def without_titles(schema: Any) -> Any:
    """A copy without the ``title`` of any schema in it. A property, a default or an example called title stays."""
    if isinstance(schema, list):
        return [without_titles(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key == "title" and isinstance(value, str):
            continue
        if key in _DATA:
            copy[key] = value
        elif key in _NAMED and isinstance(value, dict):
            copy[key] = {name: without_titles(inner) for name, inner in cast("dict[str, Any]", value).items()}
        else:
            copy[key] = without_titles(value)
    return copy


def object_schema(schema: Any, *, label: str) -> dict[str, Any]:
    """A copy of ``schema`` as the parameters of a tool. Raises UsageError unless it describes an object."""
    try:
        own = msgspec.json.decode(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"tool {label!r}: the schema is not JSON: {error}") from error
    if not isinstance(own, dict):
        raise UsageError(f"tool {label!r}: a JSON schema of type object is needed, not {shown(own)}")
    own = unfolded(cast("dict[str, Any]", own))
    kind = own.get("type", "object")
    if kind != "object" or not isinstance(own.get("properties", {}), dict):
        raise UsageError(f"tool {label!r}: a JSON schema of type object is needed, not of type {shown(kind)}")
    return {**own, "type": "object", "properties": own.get("properties", {})}


def unfolded(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with what its root refers to at the root, where providers want it; a type that holds itself is behind a reference."""
    target = resolve(schema, schema)
    if target is schema or not isinstance(target, dict):
        return schema
    return {**{key: value for key, value in schema.items() if key != "$ref"}, **cast("dict[str, Any]", target)}


def resolve(schema: Any, root: dict[str, Any]) -> Any:
    """``schema``, or what its local ``$ref`` leads to; True (anything goes) where that leads nowhere."""
    for _ in range(32):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return cast("Any", schema)
        schema = _pointed(str(cast("dict[str, Any]", schema)["$ref"]), root)
    return True


def _pointed(reference: str, root: dict[str, Any]) -> Any:
    if reference != "#" and not reference.startswith("#/"):
        return True
    found: Any = root
    for part in reference.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            return True
        found = cast("dict[str, Any]", found)[key]
    return found


def branches(schema: dict[str, Any]) -> list[Any] | None:
    """The alternatives of a union: anyOf, oneOf, a list of types, ``nullable``. None if there are none."""
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return [_merged(schema, branch, key) for branch in schema[key]]
    kind = schema.get("type")
    if isinstance(kind, list):
        return [{**schema, "type": one} for one in cast("list[Any]", kind)]
    if schema.get("nullable") is True:
        return [{key: value for key, value in schema.items() if key != "nullable"}, {"type": "null"}]
    return None


def _merged(schema: dict[str, Any], branch: Any, key: str) -> Any:
    """What stands beside a union holds for each branch; mostly that is a description."""
    beside = {name: schema[name] for name in ("type", "properties", "required") if name in schema}
    return {"allOf": [beside, branch]} if beside else branch


class TooComplex(Exception):
    """The check would take more than STEPS_MAX steps, or go deeper than DEPTH_MAX."""


class Checker:
    """Checks values against the schemas of one root. One per check: it counts its steps and raises TooComplex."""

    __slots__ = ("_root", "_steps")

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def step(self) -> None:
        """One schema was looked at; a walk beside the check can count with it."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise TooComplex

    def fits(self, value: Any, schema: Any, *, depth: int = 0) -> bool:
        return next(self.problems(value, schema, depth=depth), None) is None

    def problems(self, value: Any, schema: Any, path: Path = (), *, depth: int = 0) -> Iterator[str]:
        """Every problem in words; nothing if the value fits."""
        self.step()
        if depth > DEPTH_MAX:
            raise TooComplex
        depth += 1
        schema = resolve(schema, self._root)
        if schema is False:
            yield f"{dotted(path)}: nothing is allowed here"
        if not isinstance(schema, dict):
            return
        schema = cast("dict[str, Any]", schema)
        for part in schema.get("allOf", ()):
            yield from self.problems(value, part, path, depth=depth)
        alternatives = branches(schema)
        if alternatives is not None:
            if not any(self.fits(value, branch, depth=depth) for branch in alternatives):
                wanted = " or ".join(dict.fromkeys(self._wanted(branch) for branch in alternatives))
                yield f"{dotted(path)}: expected {wanted}, got {shown(value)}"
            return
        kind = schema.get("type")
        if kind in TYPES and not TYPES[kind](value):
            yield f"{dotted(path)}: expected {self._wanted(schema)}, got {shown(value)}"
            return
        options = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(options, list) and not any(same(value, option) for option in cast("list[Any]", options)):
            yield f"{dotted(path)}: expected {' or '.join(map(shown, cast('list[Any]', options)))}, got {shown(value)}"
        if isinstance(value, dict):
            yield from self._object(cast("dict[str, Any]", value), schema, path, depth)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(cast("list[Any]", value)):
                yield from self.problems(item, item_schema(schema, index), (*path, index), depth=depth)

    def _object(self, value: dict[str, Any], schema: dict[str, Any], path: Path, depth: int) -> Iterator[str]:
        properties = cast("dict[str, Any]", schema.get("properties", {}))
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{dotted((*path, name))}: required, but missing"
        rest = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in properties:
                yield from self.problems(item, properties[name], (*path, name), depth=depth)
            elif rest is not False:
                yield from self.problems(item, rest, (*path, name), depth=depth)
            elif not schema.get("patternProperties"):
                known = f"the known ones are {', '.join(properties)}" if properties else "there are none"
                yield f"{dotted((*path, name))}: unknown argument; {known}"

    def _wanted(self, branch: Any) -> str:
        branch = resolve(branch, self._root)
        kind = cast("dict[str, Any]", branch).get("type") if isinstance(branch, dict) else None
        return _NAMES.get(kind, f"a {kind}") if isinstance(kind, str) else "another value"


def item_schema(schema: dict[str, Any], index: int) -> Any:
    """The schema of an array's item."""
    prefix = cast("list[Any]", schema.get("prefixItems") or [])
    return prefix[index] if index < len(prefix) else schema.get("items", True)


def same(value: Any, option: Any) -> bool:
    """Equal as JSON: 1 is not true, and neither is "1"."""
    return type(value) is type(option) and value == option


class SchemaBinder:
    """``binder(arguments)`` for a tool that was made from a JSON schema: the arguments are what the handler gets."""

    __slots__ = ("_schema",)

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def __call__(self, arguments: dict[str, Any]) -> Bound:
        data = encode_arguments(arguments)
        values = cast("dict[str, Any]", msgspec.json.decode(data))  # the handler's own copy
        try:
            problems = list(Checker(self._schema).problems(values, self._schema))
        except TooComplex:
            raise InvalidArguments("the arguments are too complex to be checked") from None
        if problems:
            raise InvalidArguments(problems)
        return Bound((), values, data.decode())
