"""The form that an answer must have: from a type to a schema, and from a text to a value.

Loads pydantic when it is made, which ``Agent.create(output=...)`` does.
"""

from __future__ import annotations

import re
from inspect import isroutine
from typing import Any, NamedTuple, cast

from ..errors import UsageError
from ..messages import AssistantMessage, StopReason
from ..model import OutputSpec, ToolSpec

OUTPUT_TOOL = "final_answer"
"""The tool by which an answer is given where the endpoint cannot be held to a schema."""

# What a provider accepts as the name of a form.
_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)
_PROBLEMS_MAX = 20


class Checked(NamedTuple):
    """A text that was read. problems: what is wrong with it, a sentence each; then ``value`` is None."""

    value: Any
    problems: tuple[str, ...] = ()


class OutputType:
    """What ``output`` asks for. native: the endpoint is held to the schema; otherwise the answer is given by calling OUTPUT_TOOL.

    A type whose JSON is no object (a union, a list, a number) is asked for as the field ``value`` of one.
    """

    def __init__(self, kind: Any, *, native: bool) -> None:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError

        from .schema import unfolded

        label = getattr(kind, "__name__", None) or str(kind)
        if isroutine(kind):
            raise UsageError(f"output: a type is needed, not the function {label}")
        try:
            self._adapter: Any = TypeAdapter(kind)
            schema = unfolded(self._adapter.json_schema())
        except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError, TypeError) as error:
            raise UsageError(f"output: {label} has no JSON schema: {str(error).splitlines()[0]}") from error
        self._wrapped = schema.get("type") != "object"
        if self._wrapped:
            definitions = {name: schema.pop(name) for name in ("$defs",) if name in schema}
            schema = {
                "type": "object",
                "properties": {"value": schema},
                "required": ["value"],
                "additionalProperties": False,
                **definitions,
            }
        self.schema = schema
        spec = OutputSpec(name=_NAME.sub("_", label)[:64].strip("_") or "output", schema=schema)
        self.spec = spec if native else None
        self.tool = None if native else ToolSpec(name=OUTPUT_TOOL, description=_description(schema), parameters=schema)

    @property
    def tool_name(self) -> str:
        """The name of the tool by which the answer is given; "" if there is none."""
        return self.tool.name if self.tool is not None else ""

    def taken(self, message: AssistantMessage, stop: StopReason) -> tuple[AssistantMessage, StopReason]:
        """A lone call of the output tool is the answer: its arguments, as text. A reply that was cut off is left as it is."""
        calls = message.tool_calls
        if len(calls) != 1 or calls[0].name != self.tool_name or stop not in _WHOLE:
            return message, stop
        return AssistantMessage(content=calls[0].arguments.strip() or "{}", reasoning=message.reasoning), StopReason.STOP

    def check(self, text: str) -> Checked:
        """The value that ``text`` is. A fence around the JSON is not minded."""
        from pydantic import ValidationError
        from pydantic_core import from_json

        fenced = _FENCED.fullmatch(text)
        value: Any
        try:
            value = from_json(fenced[1] if fenced else text)
        except ValueError as error:
            how = f"call {self.tool_name} with the answer" if self.tool is not None else "the whole reply must be one JSON document"
            return Checked(None, (f"it is not JSON ({error}); {how}",))
        if self._wrapped:
            if not isinstance(value, dict) or list(cast("dict[str, Any]", value)) != ["value"]:
                return Checked(None, ('a JSON object with the one field "value" is needed',))
            value = cast("dict[str, Any]", value)["value"]
        try:
            return Checked(self._adapter.validate_json(_json(value)))
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
            return Checked(None, tuple(f"{_place(one['loc'])}{one['msg']}" for one in found[:_PROBLEMS_MAX]))
        except Exception as error:  # a validator of the user's own
            return Checked(None, (f"{type(error).__name__}: {error}",))


_WHOLE = frozenset({StopReason.STOP, StopReason.TOOL_CALLS, StopReason.UNKNOWN})


def _json(value: Any) -> bytes:
    from pydantic_core import to_json

    return to_json(value)


def _place(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") + ": " if location else ""


def _description(schema: dict[str, Any]) -> str:
    said = schema.get("description")
    return "Give the final answer, once nothing else is to be done. Call it alone." + (f" {said}" if isinstance(said, str) else "")
