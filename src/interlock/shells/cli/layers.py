"""``interlock onion``: the layers around every model request and every tool call of ``interlock run``, outermost first."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import NamedTuple

from ...errors import ProviderError
from ...extensions.base import AgentExtension
from ...extensions.permissions import Permissions
from ...model import ModelEvent, ModelRequest
from ..interrupts import run_interruptible
from .jsonl import write_line
from .run import AgentSource
from .settings import Settings
from .text import console

__all__ = ["ShownLayer", "onion", "order"]


class ShownLayer(NamedTuple):
    """One extension in its place."""

    name: str
    priority: float
    hooks: tuple[str, ...]
    says: str


class _NoModel:
    """Stands where a model would; the order of the layers does not depend on it."""

    name = "none"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        raise ProviderError("there is no model behind this agent")
        yield

    async def aclose(self) -> None:
        pass


def order(settings: Settings) -> list[ShownLayer]:
    """The extensions of the agent that ``interlock run`` makes."""

    async def look() -> list[ShownLayer]:
        source = AgentSource(settings=settings, model=_NoModel(), journal="memory:")
        async with await source.make("onion", say=lambda *_, **__: None) as agent:
            parts = agent.parts
            hooks = {"on_model_request": parts.model_layers, "on_tool_call": parts.tool_layers, "on_record": parts.recorders}
            return [
                ShownLayer(
                    extension.name,
                    extension.priority,
                    tuple(hook for hook, indices in hooks.items() if index in indices),
                    _says(extension),
                )
                for index, extension in enumerate(parts.extensions)
            ]

    return run_interruptible(look())


def _says(extension: AgentExtension) -> str:
    if isinstance(extension, Permissions):
        return str(extension.policy)
    return (inspect.getdoc(type(extension)) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")


def onion(settings: Settings, *, as_json: bool) -> int:
    """Print them."""
    layers = order(settings)
    if as_json:
        for layer in layers:
            write_line(layer._asdict())
        return 0
    out = console()
    for layer in layers:
        out.print(f"{layer.priority:>6}  {layer.name}  ({', '.join(layer.hooks) or 'no layer'})", style="bold")
        out.print(f"        {layer.says}", style="dim")
    out.print("        the tool's handler, which starts at most once")
    return 0
