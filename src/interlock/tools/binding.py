"""A function's schema and validator, by pydantic. Loading this loads pydantic.

The parameters become the fields of one TypedDict: its keys may be any name a parameter can have ("schema", "copy",
"_x"), nothing clashes with the attributes of a model class, and validation gives the keyword arguments themselves.
"""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin

import msgspec
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from ..errors import InterlockError, UsageError
from . import docstrings, signature
from .arguments import InvalidArguments, encode_arguments
from .schema import without_titles
from .tool import Bound
from .words import problems_of

_MUTABLE = (list, dict, set, bytearray)


class FunctionBinder:
    """``binder(arguments)`` validates and gives what to call the function with."""

    __slots__ = (
        "_known",
        "_mutable",
        "_positional",
        "_validate",
        "context_at",
        "description",
        "is_async",
        "name",
        "parameters",
        "takes_self",
    )

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        read = signature.read(function)
        docs = docstrings.read(read.docstring)
        self.name = read.name if name is None else name
        self.description = docs.description
        self.is_async = read.is_async
        self.takes_self = read.takes_self
        shown = [p for p in read.parameters if not p.is_context]
        adapter, self.parameters = _build(shown, docs.arguments, read.label)
        self._validate = adapter.validator.validate_json
        self._known = tuple(self.parameters["properties"])
        # A positional-only parameter cannot be left out if a later one is given: its default is passed explicitly.
        self._positional = [p for p in read.parameters if p.positional_only]
        self._mutable = [p for p in shown if isinstance(p.default, _MUTABLE) and not p.positional_only]
        self.context_at: tuple[int | str, ...] = tuple(
            self._positional.index(p) if p.positional_only else p.name for p in read.parameters if p.is_context
        )

    def __call__(self, arguments: dict[str, Any]) -> Bound:
        data = encode_arguments(arguments)
        try:
            values: dict[str, Any] = self._validate(data, strict=True)
        except ValidationError as error:
            raise InvalidArguments(problems_of(error, json.loads(data), self._known)) from None
        except InterlockError:
            raise
        except Exception as error:  # A validator of the user's own types. Nothing has started: the model can be told.
            raise InvalidArguments(f"the arguments could not be checked: {type(error).__name__}: {error}") from error
        for parameter in self._mutable:
            # As pydantic does it: a default that one call changes must not be seen by the next.
            if parameter.name not in values:
                values[parameter.name] = copy.deepcopy(parameter.default)
        args = tuple(_take(values, p) for p in self._positional) if self._positional else ()
        return Bound(args, values, data.decode())


def _take(values: dict[str, Any], parameter: signature.Parameter) -> Any:
    if parameter.is_context:
        return None  # filled in when the handler is called
    return values.pop(parameter.name) if parameter.name in values else copy.deepcopy(parameter.default)


class _Generate(GenerateJsonSchema):
    # A default that is no JSON is left out of the schema; it is used all the same.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}


def _build(parameters: list[signature.Parameter], docs: dict[str, str], label: str) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    fields = {p.name: _field(p, docs.get(p.name)) for p in parameters}
    try:
        adapter, schema = _adapt(fields)
    except Exception as error:  # The types are the user's, and so are their schema hooks.
        raise UsageError(f"{label}: {_culprit(fields)}no JSON schema can be made of it: {_first_sentence(error)}") from error
    schema = without_titles(schema)
    schema.setdefault("properties", {})
    return adapter, schema


def _adapt(fields: dict[str, Any]) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    arguments = cast("Any", TypedDict("arguments", fields))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues] its keys are known only now
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the user's types; what matters is an error
        adapter = TypeAdapter[Any](arguments)
        schema = adapter.json_schema(schema_generator=_Generate)
    # Through JSON once: whatever the schema shares with the user's classes is left alone from here on.
    return adapter, msgspec.json.decode(msgspec.json.encode(schema))


def _field(parameter: signature.Parameter, doc: str | None) -> Any:
    """The annotation of a TypedDict key. What the user said in a ``Field`` wins over the docstring."""
    default = parameter.default
    ours: dict[str, Any] = {"description": doc} if doc else {}
    if not parameter.required and not isinstance(default, FieldInfo):
        known, value = _as_json(default)
        if known:
            ours["json_schema_extra"] = {"default": value}
    annotation = parameter.annotation
    metadata: tuple[Any, ...] = ()
    if get_origin(annotation) is Annotated:
        annotation, *rest = get_args(annotation)
        metadata = tuple(rest)
    if ours:
        metadata = (Field(**ours), *metadata)
    if isinstance(default, FieldInfo):
        metadata = (*metadata, default)
    if metadata:
        annotation = Annotated[(annotation, *metadata)]
    if parameter.required or isinstance(default, FieldInfo):
        return annotation
    return NotRequired[annotation]


def _as_json(default: Any) -> tuple[bool, Any]:
    try:
        value = to_jsonable_python(default)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):  # PydanticSerializationError and UnicodeEncodeError are ValueErrors
        return False, None
    return True, value


def _culprit(fields: dict[str, Any]) -> str:
    for name, annotation in fields.items():
        try:
            _adapt({name: annotation})
        except Exception:  # as in _build
            return f"parameter {name!r}: "
    return ""


def _first_sentence(error: Exception) -> str:
    """Without pydantic's advice, which is about settings that do not apply here."""
    text = re.split(r"\n|\. Set `", str(error), maxsplit=1)[0].strip().rstrip(".")
    return text or type(error).__name__
