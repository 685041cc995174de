"""What an agent gives its runs: the parts that do not change from run to run, and those that do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct

from ..extensions.base import AgentExtension
from ..messages import SystemMessage, Usage
from ..model import Model, ModelSettings
from ..records import Limits, Record, Traits
from ..tools import Tool
from ..tools.workers import WorkerPool

if TYPE_CHECKING:
    from ..tools.output import OutputType  # most agents ask for no form


Hooks = dict[type[Any], tuple[tuple[int, Callable[..., Any]], ...]]
"""Places of extensions and their hooks, by the kind of record."""

NamedHooks = tuple[tuple[int, str, Callable[..., Any]], ...]
"""Places of extensions, their names and their hooks."""

RECORDS: frozenset[type[Any]] = frozenset(get_args(Record))


def overrides(extension: AgentExtension, hook: str) -> bool:
    """Whether ``extension`` has a ``hook`` of its own. Hooks that it does not override are left out of every onion."""
    return getattr(type(extension), hook) is not getattr(AgentExtension, hook) or hook in vars(extension)


def _with(extensions: Sequence[AgentExtension], hook: str) -> tuple[int, ...]:
    return tuple(index for index, extension in enumerate(extensions) if overrides(extension, hook))


class Parts(Struct, eq=False):
    """One agent's parts. extensions: in onion order, outermost first. The index tuples say who overrides which hook."""

    model: Model
    extensions: tuple[AgentExtension, ...]
    tools: dict[str, Tool]
    system_prompt: str
    workers: WorkerPool
    clock: Callable[[], float]
    fingerprint: dict[str, str] = {}
    brought_by: dict[str, int] = {}
    output: OutputType | None = None
    price: Callable[[Usage], float] | None = None
    """What a request cost, in dollars; None where nobody asks."""
    closed: bool = False
    background: set[asyncio.Task[Any]] = set()
    model_layers: tuple[int, ...] = ()
    model_hooks: NamedHooks = ()
    tool_layers: tuple[int, ...] = ()
    tool_hooks: NamedHooks = ()
    redactors: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    recorders: tuple[int, ...] = ()
    told: Hooks = {}
    """The ``on_record`` hooks, by the kind of record that they are told of."""
    folders: tuple[int, ...] = ()
    folds: Hooks = {}
    instructors: tuple[int, ...] = ()
    traits: dict[str, Traits] = {}
    system: SystemMessage | None = None

    def __post_init__(self) -> None:
        self.model_layers = _with(self.extensions, "on_model_request")
        self.model_hooks = self._named("on_model_request", self.model_layers)
        self.tool_layers = _with(self.extensions, "on_tool_call")
        self.tool_hooks = self._named("on_tool_call", self.tool_layers)
        self.redactors = _with(self.extensions, "redact")
        self.filters = _with(self.extensions, "redact_deltas")
        self.recorders = _with(self.extensions, "on_record")
        self.told = self._by_kind("on_record", self.recorders)
        self.folders = _with(self.extensions, "fold")
        self.folds = self._by_kind("fold", self.folders)
        self.instructors = _with(self.extensions, "instructions")
        self.traits = {name: tool.traits for name, tool in self.tools.items()}
        self.system = SystemMessage(content=self.system_prompt) if self.system_prompt.strip() else None

    def _named(self, hook: str, indices: tuple[int, ...]) -> NamedHooks:
        return tuple((index, self.extensions[index].name, getattr(self.extensions[index], hook)) for index in indices)

    def _by_kind(self, name: str, indices: tuple[int, ...]) -> Hooks:
        hooks = [(index, getattr(self.extensions[index], name)) for index in indices]
        wanted = [(entry, getattr(entry[1], "told_of", RECORDS)) for entry in hooks]
        return {kind: found for kind in RECORDS if (found := tuple(entry for entry, kinds in wanted if kind in kinds))}

    def in_background(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task that nobody waits for, until it ends; look at its exception, so that none is reported as lost."""
        self.background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        if not task.cancelled():
            task.exception()


class RunConfig(Struct, eq=False):
    """What one run brings along, merged and validated."""

    limits: Limits
    settings: ModelSettings
    deps: Any = None
    deadline_s: float | None = None
