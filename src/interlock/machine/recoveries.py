"""The recoveries, as data: what a model's fault is called, how often in a row it is forgiven, and what is said.

A row that is missing is a fault without a recovery: the run ends at its first occurrence.
"""

from __future__ import annotations

from msgspec import Struct

from ..records import Limits
from . import texts


class Recovery(Struct, frozen=True, gc=False, kw_only=True):
    """bound: the field of ``Limits`` that says how often in a row. nudge: what the next request says; None says nothing."""

    bound: str
    nudge: str | None = None


DROPPED = "dropped_tool_call"
EMPTY = "empty_reply"
REASONING_ONLY = "reasoning_only"
MALFORMED = "malformed_tool_call"
LENGTH = "length"
PAUSE = "pause"
INVALID_OUTPUT = "invalid_output"

RECOVERIES: dict[str, Recovery] = {
    DROPPED: Recovery(bound="dropped_calls", nudge=texts.DROPPED_NUDGE),
    EMPTY: Recovery(bound="empty_replies", nudge=texts.EMPTY_NUDGE),
    REASONING_ONLY: Recovery(bound="reasoning_only", nudge=texts.REASONING_NUDGE),
    MALFORMED: Recovery(bound="malformed_calls"),
    LENGTH: Recovery(bound="continuations", nudge=texts.LENGTH_NUDGE),
    PAUSE: Recovery(bound="pauses"),
    INVALID_OUTPUT: Recovery(bound="invalid_outputs"),  # what is said depends on what was wrong
}

CONTINUED = frozenset({LENGTH, PAUSE})
"""Recoveries that keep the text so far and join what follows to it without a seam."""


def bound_of(limits: Limits, code: str) -> int:
    """How many times in a row ``code`` is recovered from; 0 if there is no such recovery."""
    recovery = RECOVERIES.get(code)
    return getattr(limits, recovery.bound) if recovery is not None else 0


def nudge_of(code: str) -> str | None:
    recovery = RECOVERIES.get(code)
    return recovery.nudge if recovery is not None else None
