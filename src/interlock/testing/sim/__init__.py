"""The simulator: whole sessions of the shipped runtime, in virtual time, with every fault that a seed can think of.

::

    report = simulate(4711)
    assert report.ok, report

Only the clock, the disk and the model are replaced. One integer is one world, always the same one.
"""

from __future__ import annotations

from .batch import Batch, run_many
from .checks import CHECKS, check
from .coverage import Coverage
from .disk import SimDisk, SimJournal
from .generate import CRASH_POINTS, script_of
from .history import History
from .loop import SimLoop
from .report import SimReport, simulate
from .script import BEHAVIOURS, HANDLERS, Act, Call, Reply, Script
from .shrink import shrink
from .world import SimWorld

__all__ = [
    "BEHAVIOURS",
    "CHECKS",
    "CRASH_POINTS",
    "HANDLERS",
    "Act",
    "Batch",
    "Call",
    "Coverage",
    "History",
    "Reply",
    "Script",
    "SimDisk",
    "SimJournal",
    "SimLoop",
    "SimReport",
    "SimWorld",
    "check",
    "run_many",
    "script_of",
    "shrink",
    "simulate",
]
