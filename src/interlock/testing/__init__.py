"""For tests of agents and tools: scripted models, in memory and on a real socket.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .extension_kit import ExtensionVerdict, Finding, check_extension
    from .model import ScriptedModel
    from .script import Frame, Handler, Step, call, calls, cut, eof, error, error_object, hold, raw, reasoning, repeat, text, when
    from .wire import WireRequest, WireServer

_HOME = {
    ".extension_kit": ("ExtensionVerdict", "Finding", "check_extension"),
    ".model": ("ScriptedModel",),
    ".script": (
        "Frame",
        "Handler",
        "Step",
        "call",
        "calls",
        "cut",
        "eof",
        "error",
        "error_object",
        "hold",
        "raw",
        "reasoning",
        "repeat",
        "text",
        "when",
    ),
    ".wire": ("WireRequest", "WireServer"),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ExtensionVerdict",
    "Finding",
    "Frame",
    "Handler",
    "ScriptedModel",
    "Step",
    "WireRequest",
    "WireServer",
    "call",
    "calls",
    "check_extension",
    "cut",
    "eof",
    "error",
    "error_object",
    "hold",
    "raw",
    "reasoning",
    "repeat",
    "text",
    "when",
]


def __getattr__(name: str) -> Any:
    home = _WHERE.get(name)
    if home is None:
        raise AttributeError(f"module 'interlock.testing' has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
