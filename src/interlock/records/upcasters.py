"""Reading what an earlier version of Interlock wrote: one pure function per version step.

A stored row is never rewritten. When the meaning or the shape of a stored record has to change, ``codec.VERSION`` is raised by
one and the function that turns the old object into the new one is added here, for ever. A field that is merely added, with a
default, needs neither: old rows simply lack it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["UPCASTERS", "Upcaster", "upcast"]

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""From the decoded object of a record of version n to that of version n + 1. Pure: it may neither look around nor keep anything."""

UPCASTERS: dict[int, Upcaster] = {}
"""By the version that it reads."""


def upcast(value: dict[str, Any], *, v: int, to: int) -> dict[str, Any]:
    """The object of version ``v`` as version ``to`` would have written it, step by step. Raises KeyError for a step that nobody wrote."""
    for step in range(v, to):
        value = UPCASTERS[step](value)
    return value
