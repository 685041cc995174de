"""A tool's parameters in the form that vendors take, whoever wrote the schema. No I/O here."""

from __future__ import annotations

from typing import Any, cast

__all__ = ["root_object"]

# OpenAI: "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'const'/'not' at the top level"; Anthropic:
# "input_schema does not support oneOf, allOf, or anyOf at the top level" (their own messages, both of a 400). One such tool, as servers
# of tools offer them, would fail every request in which it is offered.
_REFUSED = ("allOf", "anyOf", "oneOf", "enum", "const", "not")
_DEPTH_MAX = 8


def root_object(parameters: dict[str, Any]) -> dict[str, Any]:
    """``parameters`` itself, or a copy in which its root is nothing but an object.

    The properties of all alternatives are offered together, and what all of them require is required. That says less than the tool's own
    schema, against which the arguments are checked before a handler runs.
    """
    if not any(name in parameters for name in _REFUSED):
        return parameters
    properties, required = _members(parameters, parameters, _DEPTH_MAX)
    kept = {name: value for name, value in parameters.items() if name not in _REFUSED}
    kept["properties"] = {name: options[0] if len(options) == 1 else {"anyOf": options} for name, options in properties.items()}
    kept.pop("required", None)
    return {**kept, "required": required} if required else kept


def _members(schema: Any, root: dict[str, Any], depth: int) -> tuple[dict[str, list[Any]], list[str]]:
    """What each property may be, and which are needed, over a schema and its alternatives."""
    own = _resolved(schema, root)
    stated = own.get("properties")
    properties = {name: [value] for name, value in cast("dict[str, Any]", stated).items()} if isinstance(stated, dict) else {}
    required = _names(own.get("required"))
    for key in ("allOf", "anyOf", "oneOf") if depth else ():
        branches = own.get(key)
        if not isinstance(branches, list) or not branches:
            continue
        found = [_members(branch, root, depth - 1) for branch in cast("list[Any]", branches)]
        for more, _ in found:
            for name, options in more.items():
                known = properties.setdefault(name, [])
                known += [option for option in options if option not in known]
        needed = [set(names) for _, names in found]
        always = set[str].union(*needed) if key == "allOf" else set[str].intersection(*needed)
        required += [name for _, names in found for name in names if name in always]
    return properties, list(dict.fromkeys(required))


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """The schema, or what its local reference leads to; an empty one where that is nothing of use."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(schema, dict):
            break
        own = cast("dict[str, Any]", schema)
        reference = own.get("$ref")
        if not isinstance(reference, str):
            return own
        found: Any = root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
        schema = found
    return {}


def _names(value: Any) -> list[str]:
    return [name for name in cast("list[Any]", value) if isinstance(name, str)] if isinstance(value, list) else []
