"""The parameters of a callable as Python sees them, string annotations resolved. Loads no pydantic."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct

from ..errors import UsageError
from .context import RunContext


class Parameter(Struct, frozen=True):
    """One parameter. default: ``inspect.Parameter.empty`` if it is required. is_context: filled in, not shown."""

    name: str
    annotation: Any
    default: Any
    positional_only: bool
    is_context: bool

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Signature(Struct, frozen=True):
    """What a tool needs to know of a callable. takes_self: a method of a class, not yet bound to an instance."""

    label: str
    name: str
    docstring: str | None
    parameters: tuple[Parameter, ...]
    is_async: bool
    takes_self: bool


def read(fn: Callable[..., Any]) -> Signature:
    """Raises UsageError, which names the function and the parameter, for what cannot be a tool."""
    if not callable(fn):
        raise UsageError(f"a tool is made from a function or another callable, not from {_noun(fn)}{_class_hint(fn)}")
    core = _core(fn)
    named = _without_partials(fn) if inspect.isclass(_without_partials(fn)) else core
    label = f"{getattr(named, '__module__', '') or ''}.{getattr(named, '__qualname__', type(fn).__name__)}".lstrip(".")
    if inspect.isgeneratorfunction(core) or inspect.isasyncgenfunction(core):
        raise UsageError(
            f"{label}: a generator cannot be a tool, which has one result. Return a list or a string; show progress with context.emit(...)"
        )
    parameters = list(_signature(fn, label).parameters.values())
    takes_self = _takes_self(fn, parameters)
    hints = _Hints(core, named if inspect.isclass(named) else None, label)
    fixed = _fixed_by_partial(fn)
    return Signature(
        label=label,
        name=_name(fn),
        docstring=_docstring(fn, core),
        parameters=tuple(_parameter(p, hints, label) for p in parameters[takes_self:] if p.name not in fixed),
        is_async=is_async(fn),
        takes_self=takes_self,
    )


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling ``fn`` gives a coroutine: through partials, methods and callable objects."""
    fn = _without_partials(fn)
    if inspect.isclass(fn):
        return False
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _parameter(parameter: inspect.Parameter, hints: _Hints, label: str) -> Parameter:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        better = "one list parameter" if stars == "*" else "one dict parameter, or the parameters by name"
        raise UsageError(f"{label}: {stars}{parameter.name} has no JSON schema that a model could follow; write {better} instead")
    annotation = hints.resolve(parameter)
    return Parameter(
        name=parameter.name,
        annotation=annotation,
        default=parameter.default,
        positional_only=parameter.kind is parameter.POSITIONAL_ONLY,
        is_context=_is_context(annotation),
    )


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_context(get_args(annotation)[0])
    if origin is Union or origin is types.UnionType:
        return any(_is_context(arg) for arg in get_args(annotation))
    bare = origin or annotation  # of RunContext[Deps]
    return isinstance(bare, type) and RunContext in bare.__mro__


class _Hints:
    """Resolves annotations one by one, so that one bad one can be named."""

    def __init__(self, core: Any, cls: type | None, label: str) -> None:
        self._label = label
        module = sys.modules.get(getattr(cls or core, "__module__", "") or "")
        own = None if cls else getattr(core, "__globals__", None)
        self._globals: dict[str, Any] = own or (vars(module) if module else {})
        self._core = core

    def resolve(self, parameter: inspect.Parameter) -> Any:
        if parameter.annotation is parameter.empty:
            return Any
        error: Exception | None = None
        for names in self._namespaces(parameter.annotation):
            try:
                return self._evaluate(parameter.annotation, names)
            except NameError as caught:
                error = caught
            except Exception as caught:  # The text of an annotation is code of the user's: it may raise anything.
                error = caught
                break
        raise UsageError(
            f"{self._label}: the annotation of parameter {parameter.name!r}, {_text(parameter.annotation)!r}, cannot be read: {error}. "
            "Import what it names at module level, not under TYPE_CHECKING"
        ) from error

    def _namespaces(self, annotation: Any) -> Iterator[dict[str, Any]]:
        """Where names may be found, cheapest first: closure, the functions around it that still run, and our own class."""
        local = {p.__name__: p for p in getattr(self._core, "__type_params__", ())}
        if inspect.isfunction(self._core):
            local |= _closure(self._core)
        yield local
        around = {**_enclosing_locals(self._core), **local}
        yield around
        # Imports that only type checkers need are often hidden from us; which class is meant is clear all the same.
        if _text(annotation).strip("'\"").rpartition(".")[2] == RunContext.__name__:
            text = _text(annotation).strip("'\"")
            yield {**around, text.partition(".")[0]: RunContext if "." not in text else types.SimpleNamespace(RunContext=RunContext)}

    def _evaluate(self, annotation: Any, names: dict[str, Any]) -> Any:
        def carrier() -> None: ...

        carrier.__annotations__ = {"it": annotation}
        return get_type_hints(carrier, self._globals, names, include_extras=True)["it"]


def _text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__forward_arg__", None) or repr(annotation)


def _closure(fn: types.FunctionType) -> dict[str, Any]:
    """The closure's variables that have a value by now: a tool may name what is only assigned later, such as its own agent."""
    found: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # still empty
            pass
    return found


def _enclosing_locals(core: Any) -> dict[str, Any]:
    """The locals of the functions that ``core`` was defined in, as far as they are still running: that is where tools are
    decorated, and mostly where agents are created."""
    found: dict[str, Any] = {}
    code = getattr(core, "__code__", None)
    outer = [part.rpartition(".")[2] for part in getattr(core, "__qualname__", "").split(".<locals>")[:-1]]
    frame = inspect.currentframe() if outer and code is not None else None
    while frame is not None and outer:
        if frame.f_code.co_name == outer[-1] and frame.f_code.co_filename == getattr(code, "co_filename", ""):
            found = {**frame.f_locals, **found}
            outer.pop()
        frame = frame.f_back
    return found


def _without_partials(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    return fn


def _core(fn: Any) -> Any:
    """The function whose globals and docstring count: inside partials, wrappers, methods, classes and callable objects."""
    fn = inspect.unwrap(_without_partials(fn))
    if inspect.isclass(fn):
        return fn.__init__ if inspect.isfunction(fn.__init__) else fn
    if inspect.ismethod(fn):
        return inspect.unwrap(fn.__func__)
    if inspect.isroutine(fn):
        return fn
    call = inspect.unwrap(type(fn).__call__)
    return call if inspect.isfunction(call) else fn


def _signature(fn: Callable[..., Any], label: str) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            # Names that only type checkers can see stay names, which we try to find ourselves.
            return inspect.signature(fn, annotation_format=Format.FORWARDREF)
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{label}: its signature cannot be read ({error}); wrap it in a function of your own") from error


def _takes_self(fn: Any, parameters: list[inspect.Parameter]) -> bool:
    if not inspect.isfunction(fn) or not parameters or parameters[0].name not in ("self", "cls"):
        return False
    return "." in fn.__qualname__.rpartition("<locals>.")[2]


def _fixed_by_partial(fn: Any) -> set[str]:
    """What a partial binds by name is decided: Python would let a caller override it, a model may not even see it."""
    names: set[str] = set()
    while isinstance(fn, functools.partial):
        partial = cast("functools.partial[Any]", fn)
        names |= partial.keywords.keys()
        fn = partial.func
    return names


def _name(fn: Any) -> str:
    fn = _without_partials(fn)
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


def _docstring(fn: Any, core: Any) -> str | None:
    fn = _without_partials(fn)
    if inspect.isclass(fn):
        own = cast("type[Any]", fn).__dict__.get("__doc__")
        # A dataclass without a docstring gets its signature as one.
        return own if isinstance(own, str) and not own.startswith(f"{fn.__name__}(") else None
    if inspect.isroutine(fn):
        return fn.__doc__ or core.__doc__
    return getattr(core, "__doc__", None) or type(fn).__doc__


def _noun(value: Any) -> str:
    return f"{value!r}" if value is None or isinstance(value, (str, int, float, bool)) else f"a {type(value).__name__}"


def _class_hint(value: Any) -> str:
    return "; write @classmethod above @tool" if isinstance(value, classmethod) else ""


def context_names(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters annotated ``RunContext``; ``**kwargs`` and whatever cannot be read do not matter here."""
    try:
        core = _core(fn)
        hints = _Hints(core, None, _name(fn))
        parameters = [p for p in _signature(fn, _name(fn)).parameters.values() if p.annotation is not p.empty]
        return tuple(p.name for p in parameters if RunContext.__name__ in _text(p.annotation) and _is_context(hints.resolve(p)))
    except UsageError:
        return ()
