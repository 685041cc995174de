"""The tool: what a model is shown, what the machine must know of it, and the one way to call its handler."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Literal, overload

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from ..errors import UsageError
from ..model import ToolSpec
from ..records import Traits
from .context import RunContext

ToolResult = Any
"""What a handler or a layer returns, raw: any JSON-able value, a dataclass, a pydantic model, a message part or a list of parts."""

# What every provider we know accepts.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Bound:
    """Arguments that passed validation, as the handler gets them. json: what was validated, as JSON text."""

    __slots__ = ("args", "json", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], json: str) -> None:
        self.args = args
        self.kwargs = kwargs
        self.json = json


_UNNAMED = ToolSpec(name="", description="", parameters={})


class Tool(Struct, frozen=True, eq=False, kw_only=True):
    """A tool. Made by ``@tool``, ``as_tool`` or ``Tool.from_schema``, not by hand.

    parameters: a JSON schema of type object. handler: None if an extension answers the tool in ``on_tool_call``.
    is_async: whether the handler gives a coroutine; others run on a worker thread. available: whether the tool is
    offered in a turn; None is always. reconcile: asked after a crash what became of a started call.
    spec: always the same object, so that an adapter encodes it once.

    Calling a Tool calls its handler, without validation: a decorated function stays usable in ordinary code.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    traits: Traits = Traits()
    handler: Callable[..., Any] | None = None
    is_async: bool = False
    available: Callable[[RunContext], bool] | None = None
    reconcile: Callable[..., Any] | None = None
    binder: Callable[[dict[str, Any]], Bound]
    context_at: tuple[int | str, ...] = ()
    """Where the handler wants its RunContext: positions and names."""
    takes_self: bool = False
    """Made from a method in a class body; ``instance.method`` is the tool that can run."""
    spec: ToolSpec = _UNNAMED

    def __post_init__(self) -> None:
        _check_name(self.name)
        force_setattr(self, "spec", ToolSpec(name=self.name, description=self.description, parameters=self.parameters))

    @classmethod
    def from_schema(
        cls,
        *,
        name: str,
        description: str = "",
        parameters: dict[str, Any],
        handler: Callable[..., Any] | None = None,
        is_async: bool | None = None,
        traits: Traits | None = None,
        available: Callable[[RunContext], bool] | None = None,
        reconcile: Callable[..., Any] | None = None,
    ) -> Tool:
        """A tool that has no Python signature. ``handler(**arguments)`` gets the arguments as plain JSON values, and the
        RunContext where a parameter is annotated so.

        ``parameters`` is copied. Checked of it are type, enum, const, required, properties, additionalProperties, items,
        prefixItems, anyOf, oneOf, allOf and local $ref; formats, patterns and bounds are for the handler or the server behind it.
        Raises UsageError if it is not a schema of an object.
        """
        from . import schema, signature

        own = schema.object_schema(parameters, label=name)
        at: tuple[int | str, ...] = ()
        if handler is not None:
            is_async = signature.is_async(handler) if is_async is None else is_async
            at = signature.context_names(handler)
        return cls(
            name=name,
            description=description,
            parameters=own,
            traits=traits or Traits(),
            handler=handler,
            is_async=bool(is_async),
            available=available,
            reconcile=reconcile,
            binder=schema.SchemaBinder(own),
            context_at=at,
        )

    def bind(self, arguments: dict[str, Any]) -> Bound:
        """Validate strictly, by JSON's rules: a date may be a string; true, 5.5 and "5" are no integers; unknown arguments are
        refused. Arguments that are missing get the function's defaults.

        Raises InvalidArguments, whose message lists every problem, and nothing else.
        """
        return self.binder(arguments)

    def invoke(self, bound: Bound, context: RunContext) -> Any:
        """Call the handler; a coroutine if ``is_async``. Raises UsageError if there is none."""
        if self.handler is None:
            raise UsageError(f"tool {self.name!r} has no handler: an extension answers it in on_tool_call")
        if not self.context_at:
            return self.handler(*bound.args, **bound.kwargs)
        args, kwargs = list(bound.args), dict(bound.kwargs)
        for place in self.context_at:
            if isinstance(place, int):
                args[place] = context
            else:
                kwargs[place] = context
        return self.handler(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.handler is None:
            raise UsageError(f"tool {self.name!r} has no handler: an extension answers it in on_tool_call")
        return self.handler(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """``@tool`` on a method: ``instance.method`` is a tool bound to the instance."""
        if instance is None or not self.takes_self or self.handler is None:
            return self
        return replace(self, handler=self.handler.__get__(instance, owner), takes_self=False)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool = True,
    on_crash: Literal["report", "rerun"] = "report",
    timeout_s: float | None = None,
    reconcile: Callable[..., Any] | None = None,
    requires_approval: bool = False,
    network: bool = False,
    available: Callable[[RunContext], bool] | None = None,
) -> Any: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool = True,
    on_crash: Literal["report", "rerun"] = "report",
    timeout_s: float | None = None,
    reconcile: Callable[..., Any] | None = None,
    requires_approval: bool = False,
    network: bool = False,
    available: Callable[[RunContext], bool] | None = None,
) -> Any:
    """Make a tool of a function: ``@tool``, ``@tool(...)`` or ``tool(function, ...)``.

    name and description: instead of the function's name and docstring.
    parallel: may run beside the other calls of its batch; otherwise it is a barrier in call order.
    on_crash: ``report`` never starts a started call again; ``rerun`` says that starting it twice does no harm.
    timeout_s: how long the handler may take, in seconds; None is as long as the run.
    reconcile: after a crash, asked what became of a started call.
    requires_approval: a permission layer must ask a person. network: it reaches out, so URLs in its text are checked too.
    available: whether it is offered, asked before each turn.

    A parameter annotated ``RunContext`` is filled in and not shown to the model. Raises UsageError, which names the
    function and the parameter, for what cannot be a tool.
    """
    traits = _traits(
        parallel=parallel,
        on_crash=on_crash,
        timeout_s=timeout_s,
        reconcile=reconcile,
        requires_approval=requires_approval,
        network=network,
    )
    texts: dict[str, Any] = {"name": name, "description": description}
    for option, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"tool({option}=...): text is needed, not {value!r}")
    if available is not None and not callable(available):
        raise UsageError(f"tool(available=...): a function of the RunContext is needed, not {available!r}")

    def make(function: Callable[..., Any]) -> Tool:
        from .binding import FunctionBinder

        if isinstance(function, Tool):
            raise UsageError(f"{function!r} is a tool already; give its options where it is made")
        binder = FunctionBinder(function, name=name)
        return Tool(
            name=binder.name,
            description=binder.description if description is None else description,
            parameters=binder.parameters,
            traits=traits,
            handler=function,
            is_async=binder.is_async,
            available=available,
            reconcile=reconcile,
            binder=binder,
            context_at=binder.context_at,
            takes_self=binder.takes_self,
        )

    return make if fn is None else make(fn)


def as_tool(fn_or_tool: Any) -> Tool:
    """A Tool as it is, or one made of a function, a method, a partial, a class or a callable object. Raises UsageError otherwise."""
    made = fn_or_tool
    inner = getattr(made, "__func__", None)
    if isinstance(inner, Tool):  # @classmethod above @tool
        made = inner.__get__(made.__self__)
    if made is None:
        raise UsageError("a tool is made from a function or another callable, not from None")
    if not isinstance(made, Tool):
        made = tool(made)
    if made.takes_self:
        raise UsageError(f"{made.name}: a method needs its instance: pass instance.{made.name}, not the function of the class")
    return made


def _check_name(name: object) -> None:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return
    if not isinstance(name, str):
        raise UsageError(f"a tool's name is text, not {name!r}")
    suggestion = re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64]
    if name == "<lambda>":
        raise UsageError("a lambda has no name of its own: use tool(function, name='...')")
    raise UsageError(
        f"tool name {name!r}: providers accept 1 to 64 letters of a-z, A-Z, 0-9, _ and -; "
        + (f"for example {suggestion!r}" if suggestion else "give it one with name='...'")
    )


def _traits(**values: Any) -> Traits:
    for name in ("parallel", "requires_approval", "network"):
        if not isinstance(values[name], bool):
            raise UsageError(f"tool({name}=...): True or False is needed, not {values[name]!r}")
    if values["on_crash"] not in ("report", "rerun"):
        raise UsageError(f"tool(on_crash=...): 'report' or 'rerun' is needed, not {values['on_crash']!r}")
    timeout_s = values["timeout_s"]
    if timeout_s is not None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < math.inf:
            raise UsageError(f"tool(timeout_s=...): a number of seconds above 0 is needed, or None, not {timeout_s!r}")
        timeout_s = float(timeout_s)
    reconcile = values["reconcile"]
    if reconcile is not None and not callable(reconcile):
        raise UsageError(f"tool(reconcile=...): a function is needed, not {reconcile!r}")
    return Traits(
        parallel=values["parallel"],
        on_crash=values["on_crash"],
        reconcile=reconcile is not None,
        timeout_s=timeout_s,
        requires_approval=values["requires_approval"],
        network=values["network"],
    )
