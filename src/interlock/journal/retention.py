"""What may be deleted because it is old: the rule that every store follows."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..errors import UsageError
from ..records import Record, RunEnded, RunStarted

__all__ = ["check_age", "has_open_run"]


def check_age(older_than_s: object) -> float:
    """``older_than_s``, if it is an age in seconds. Raises UsageError."""
    if isinstance(older_than_s, bool) or not isinstance(older_than_s, int | float) or not 0 <= older_than_s < math.inf:
        raise UsageError(f"prune(older_than_s=...): a number of seconds from 0 is needed, not {older_than_s!r}")
    return float(older_than_s)


def has_open_run(newest_first: Iterable[Record]) -> bool:
    """Whether the last run of a session has not ended: it waits for a person, failed, or its process died."""
    for record in newest_first:
        if isinstance(record, RunEnded):
            return False
        if isinstance(record, RunStarted):
            return True
    return False
