"""Putting an agent's parts together, and saying clearly what does not fit."""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..driver.reopening import DRY_RUN
from ..driver.setup import Parts
from ..errors import UsageError
from ..extensions.base import AgentExtension
from ..extensions.coerce import CoerceArguments
from ..extensions.runtime_tools import RuntimeTools
from ..extensions.toollog import ToolLog
from ..extensions.urlguard import UrlGuard
from ..messages import FilePart, ImagePart, TextPart, UserMessage, clean
from ..messages.validity import IllTyped, well_typed
from ..model import Model
from ..records import Limits
from ..tools import Tool, as_tool
from ..tools.output import OutputType
from ..tools.workers import WorkerPool
from .prices import price_of

if TYPE_CHECKING:
    from ..extensions.hooks import CommandHook
    from ..extensions.permissions import Permissions

DEFAULTS: tuple[type[AgentExtension], ...] = (ToolLog, CoerceArguments, RuntimeTools, UrlGuard)
GUARDS = {
    "Approvals": "approvals",
    "AskUser": "ask_user",
    "Budget": "budget",
    "CommandHook": "hooks",
    "DryRun": "dryrun",
    "Permissions": "permissions",
}
"""What may stand from ``USERS_BELOW`` on, and nowhere else: further out, a layer could change what was allowed. By class, its module in
``extensions``. (``AskUser`` answers its tool itself, so what forbids that must stand outside it.)"""
USERS_BELOW = 900
"""Priorities from here on are the runtime's own: what guards must see the bytes that run."""


def _kinds(*names: str) -> tuple[type[Any], ...]:
    """The classes of these guards, as far as they are loaded: no extension is of a class that is not. (To load them all takes 30 ms.)"""
    modules = ((name, sys.modules.get(f"{AgentExtension.__module__.rpartition('.')[0]}.{GUARDS[name]}")) for name in names)
    return tuple(getattr(module, name) for name, module in modules if module is not None)


def assemble(
    model: Model,
    *,
    tools: Iterable[Any],
    extensions: Iterable[Any],
    without: Iterable[Any],
    system_prompt: str,
    limits: Limits,
    clock: Callable[[], float],
    output: Any = None,
) -> Parts:
    """Raises UsageError, naming what does not fit."""
    if not isinstance(system_prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"system_prompt must be a string, not {type(system_prompt).__name__}")
    unwanted = list(_iterable(without, "without"))
    onion = _onion(list(_iterable(extensions, "extensions")), unwanted)
    named, brought_by = _tools(_iterable(tools, "tools"), onion)
    if not any(kind in unwanted for kind in _kinds("Approvals")):
        onion, brought_by = _with_approvals(onion, named, brought_by)
    for hook in onion:
        if isinstance(hook, _kinds("CommandHook")):
            _say(cast("CommandHook", hook), named)
    form = _output(model, output, named)
    policies: dict[str, str] = {}
    for item in onion:
        if isinstance(item, _kinds("Permissions")):
            held = cast("Permissions", item)
            if held.policy.name in policies:
                raise UsageError(f"extensions: there are two policies named {held.policy.name!r}")
            policies[held.policy.name] = held.policy.digest
            held.announce(named)
    return Parts(
        model=model,
        extensions=onion,
        tools=named,
        brought_by=brought_by,
        system_prompt=clean(system_prompt),
        workers=WorkerPool(limits.worker_threads),
        clock=clock,
        fingerprint=_fingerprint(model, named, system_prompt)
        | ({"output": _digest(form.schema)} if form is not None else {})
        | {f"policy {name}": digest for name, digest in policies.items()}
        | ({DRY_RUN: "yes"} if any(isinstance(item, _kinds("DryRun")) for item in onion) else {}),
        output=form,
        price=price_of(model) if limits.cost_usd is not None else None,
    )


def _output(model: Model, kind: Any, named: dict[str, Tool]) -> OutputType | None:
    if kind is None:
        return None
    made = OutputType(kind, native=bool(getattr(model, "native_output", False)))
    if made.tool_name in named:
        raise UsageError(f"tools: the answer is given by a tool named {made.tool_name!r}, and there is one already; name yours differently")
    return made


def _iterable(value: Any, name: str) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise UsageError(f"{name} must be a list, not {type(cast('object', value)).__name__}")
    return value


def _onion(extensions: list[Any], without: list[Any]) -> tuple[AgentExtension, ...]:
    guards, asking = _kinds(*GUARDS), _kinds("Approvals")
    for item in extensions:
        if not isinstance(item, AgentExtension):
            what = f"the class {item.__name__}; make an instance of it" if isinstance(item, type) else type(item).__name__
            raise UsageError(f"extensions: an AgentExtension is needed, not {what}")
        guard = isinstance(item, (*DEFAULTS, *guards))
        if not isinstance(item.name, str) or not item.name.isprintable() or not item.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"extensions: the name of a {type(item).__name__} must be printable text, not {item.name!r}")
        if isinstance(item.priority, bool) or not isinstance(item.priority, int | float) or math.isnan(item.priority):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"extensions: the priority of {item.name} must be a number, not {item.priority!r}")
        if isinstance(item, guards) and item.priority != type(item).priority:
            raise UsageError(
                f"extensions: the priority of {item.name} is {type(item).priority}, not {item.priority}: it must see the arguments that run"
            )
        if item.priority >= USERS_BELOW and not guard:
            raise UsageError(f"extensions: the priority of {item.name} is {item.priority}; {USERS_BELOW} and above lie inside the guards")
        _check_hooks(item)
        _check_spelling(item)
    if len({id(item) for item in extensions}) != len(extensions):
        raise UsageError("extensions: the same instance is there twice")
    for item in without:
        if item not in (*DEFAULTS, *asking):
            names = ", ".join((*(default.__name__ for default in DEFAULTS), "Approvals"))
            raise UsageError(f"without: {getattr(item, '__name__', item)!r} is none of the default extensions ({names})")
    defaults = [d() for d in DEFAULTS if d not in without and not any(isinstance(item, d) for item in extensions)]
    hooks, budgets = _kinds("CommandHook"), _kinds("Budget")
    # A hook comes before the others of its priority: what it edits must be judged. A budget has reserved before a policy asks.
    return tuple(
        sorted((*defaults, *extensions), key=lambda item: (item.priority, not isinstance(item, hooks), not isinstance(item, budgets)))
    )


def _with_approvals(
    onion: tuple[AgentExtension, ...], named: dict[str, Tool], brought_by: dict[str, int]
) -> tuple[tuple[AgentExtension, ...], dict[str, int]]:
    """A tool that requires approval is asked about although nobody has registered what asks: it would be a trap otherwise."""
    if not any(tool.traits.requires_approval for tool in named.values()) or any(isinstance(item, _kinds("Approvals")) for item in onion):
        return onion, brought_by
    added: AgentExtension = import_module("..extensions.approvals", __package__).Approvals()
    at = next((index for index, item in enumerate(onion) if item.priority > added.priority), len(onion))
    return (*onion[:at], added, *onion[at:]), {name: index + (index >= at) for name, index in brought_by.items()}


def _say(hook: CommandHook, named: dict[str, Tool]) -> None:
    """A guard that is not there, or guards nothing, is noticed when the agent is made, and not when it was needed."""
    sentence, wrong = hook.look(tuple(named))
    logging.getLogger("interlock.hooks").log(logging.WARNING if wrong else logging.INFO, "%s", sentence)


def _check_hooks(item: AgentExtension) -> None:
    """A hook of the wrong kind would otherwise fail at every call, and look like a veto."""
    for hook, wrong, right in (
        ("on_model_request", inspect.iscoroutinefunction, "an async generator: 'async def' with 'yield'"),
        ("on_tool_call", inspect.isasyncgenfunction, "an async function that returns the result: 'async def' without 'yield'"),
    ):
        method = getattr(item, hook)
        if not callable(method) or wrong(method):
            raise UsageError(f"extensions: {hook} of {item.name} must be {right}")
        try:
            inspect.signature(method).bind(None, None, None)
        except TypeError as error:
            raise UsageError(f"extensions: {hook} of {item.name} must take (context, {_SECOND[hook]}, call_next): {error}") from error
        except ValueError:
            pass  # a callable that has no signature to look at
    if not callable(item.redact) or inspect.iscoroutinefunction(item.redact):
        raise UsageError(f"extensions: redact of {item.name} must be a plain function of the record that returns one")


HOOKS = ("on_model_request", "on_tool_call", "on_record", "instructions", "redact_deltas")


def _check_spelling(item: AgentExtension) -> None:
    """A hook that is spelled wrongly would never be called, and what it was to guard would not be guarded."""
    known = set(dir(AgentExtension))
    for kind in type(item).__mro__[: type(item).__mro__.index(AgentExtension)]:
        for name, value in vars(kind).items():
            if name.startswith("_") or name in known or not callable(value):
                continue
            meant = next((hook for hook in HOOKS if name[:2] == hook[:2] and _distance(name.lower(), hook) <= 2), None)
            if meant is not None:
                raise UsageError(
                    f"extensions: {item.name} has a method {name}, which is no hook: is {meant} meant? (Else give it another name.)"
                )


def _distance(one: str, other: str) -> int:
    """How many letters must be added, left out or changed to make ``other`` of ``one``."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


_SECOND = {"on_model_request": "request", "on_tool_call": "call"}


def _tools(tools: Iterable[Any], onion: Sequence[AgentExtension]) -> tuple[dict[str, Tool], dict[str, int]]:
    named: dict[str, Tool] = {}
    brought_by: dict[str, int] = {}
    for item in tools:
        made = as_tool(item)
        if made.name in named:
            raise UsageError(f"tools: there are two tools named {made.name!r}")
        named[made.name] = made
    for index, extension in enumerate(onion):
        brought: Any = extension.tools()
        for item in _iterable(brought, f"what tools() of {extension.name} returns"):
            try:
                made = as_tool(item)
            except UsageError as error:
                raise UsageError(f"what tools() of {extension.name} returns: {error}") from error
            if made.name in named:
                raise UsageError(f"tools: {extension.name} brings a tool named {made.name!r}, and there is one already")
            named[made.name] = made
            brought_by[made.name] = index
    return named, brought_by


def _fingerprint(model: Model, tools: dict[str, Tool], system_prompt: str) -> dict[str, str]:
    """What decides a run's course and may differ when it is resumed: see ``RunStarted``."""
    name = clean(str(getattr(model, "name", type(model).__name__)))
    shown = {f"tool {tool.name}": _digest((tool.name, tool.description, tool.parameters)) for tool in tools.values()}
    return {"model": name, "system": _digest(clean(system_prompt)), **shown}


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:12]


def _check_size(size: int, limits: Limits, what: str) -> None:
    if size > limits.prompt_bytes:
        raise UsageError(f"{what} has {size:,} bytes; limits.prompt_bytes allows {limits.prompt_bytes:,}")


def prompt_of(text: object, limits: Limits, what: str = "the prompt") -> UserMessage:
    """A user message of ``text``: a string, a UserMessage, or a list of parts. Raises UsageError."""
    content: Any = text.content if isinstance(text, UserMessage) else text
    if isinstance(content, str):
        if not content.strip():
            raise UsageError(f"{what} is empty")
        content = clean(content)
        _check_size(len(content) if content.isascii() else len(content.encode()), limits, what)
        return UserMessage(content=content)
    if isinstance(content, list | tuple) and content and all(isinstance(part, TextPart | ImagePart | FilePart) for part in content):  # pyright: ignore[reportUnknownVariableType]
        try:
            message = well_typed(UserMessage(content=tuple(content)))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        except IllTyped as error:
            raise UsageError(f"{what} is not well formed: {error}") from error
        if all(isinstance(part, TextPart) and not part.text.strip() for part in message.content):
            raise UsageError(f"{what} is empty")
        _check_size(len(msgspec.json.encode(message.content)), limits, what)
        return message
    raise UsageError(f"{what} must be a string, a UserMessage or a list of parts, not {type(text).__name__}")
