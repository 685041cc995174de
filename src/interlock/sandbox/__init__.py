"""Where commands run: isolation levels, and the one way to run a command under them.

Names are loaded when they are first used: the process that keeps a command imports this package and nothing else of ours.
"""

from __future__ import annotations

from importlib import import_module

# As in interlock/__init__.py: the name in typing costs more than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .levels import LEVELS, Level, Rlimits, Sandbox, unavailable
    from .running import Background, Finished, end_background, run
    from .tree import Process

_HOME = {
    "LEVELS": ".levels",
    "Level": ".levels",
    "Rlimits": ".levels",
    "Sandbox": ".levels",
    "unavailable": ".levels",
    "Background": ".running",
    "Finished": ".running",
    "end_background": ".running",
    "run": ".running",
    "Process": ".tree",
}

__all__ = [
    "LEVELS",
    "Background",
    "Finished",
    "Level",
    "Process",
    "Rlimits",
    "Sandbox",
    "end_background",
    "run",
    "unavailable",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
