"""What the simulated worlds have met: counted by each, added up, and set out as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...errors import ProtocolError
from ...machine import TRANSITIONS, State, apply
from ...records.codec import decode
from .checks import finished_kinds
from .generate import CRASH_POINTS
from .history import History
from .script import BEHAVIOURS

ROWS_MIN = 1000
CELLS_MIN = 100


@dataclass(slots=True)
class Coverage:
    """Counts over any number of worlds; they can be added. transitions: (phase, record) of each record that a live process applied.

    crossings: (layer behaviour, when, what): worlds in which a layer did that to a call and a process was killed at that point.
    """

    worlds: int = 0
    processes: int = 0
    calls: int = 0
    starts: int = 0
    requests: int = 0
    appends: int = 0
    crashes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    transitions: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    crossings: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    behaviours: Counter[str] = field(default_factory=Counter[str])
    endings: Counter[str] = field(default_factory=Counter[str])
    acts: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: Coverage) -> None:
        """Count what ``other`` has counted, too."""
        for name in ("worlds", "processes", "calls", "starts", "requests", "appends"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("crashes", "transitions", "crossings", "behaviours", "endings", "acts"):
            getattr(self, name).update(getattr(other, name))

    def missing(self, *, rows_min: int = ROWS_MIN, cells_min: int = CELLS_MIN) -> list[str]:
        """What was met less often than it should be: rows of the transition table, and behaviours at crash points."""
        short = [
            f"{phase} + {record}: {self.transitions[phase, record]} of {rows_min}"
            for phase, record in _table()
            if self.transitions[phase, record] < rows_min
        ]
        short += [
            f"{behaviour} x {when} {what}: {self.crossings[behaviour, when, what]} of {cells_min}"
            for behaviour in BEHAVIOURS
            for when, what in CRASH_POINTS
            if self.crossings[behaviour, when, what] < cells_min
        ]
        return short

    def table(self) -> str:
        """All of it, as Markdown."""
        cells = [self.crossings[behaviour, when, what] for behaviour in BEHAVIOURS for when, what in CRASH_POINTS]
        rarest = min((self.transitions[row] for row in _table()), default=0)
        lines = [
            "| what | how many |",
            "|---|---:|",
            f"| simulated worlds | {self.worlds:,} |",
            f"| processes | {self.processes:,} |",
            f"| of them killed | {sum(self.crashes.values()):,} |",
            f"| records appended | {self.appends:,} |",
            f"| requests to a model | {self.requests:,} |",
            f"| tool calls that entered a layer or a handler | {self.calls:,} |",
            f"| handlers started | {self.starts:,} |",
            f"| rows of the transition table | {len(_table())}, the rarest met {rarest:,} times |",
            f"| layer behaviours x crash points | {len(BEHAVIOURS)} x {len(CRASH_POINTS)}, the rarest met {min(cells):,} times |",
            "",
            "| phase | record | met |",
            "|---|---|---:|",
            *(f"| `{phase}` | `{record}` | {self.transitions[phase, record]:,} |" for phase, record in _table()),
            "",
            "| killed | " + " | ".join(f"`{behaviour}`" for behaviour in BEHAVIOURS) + " |",
            "|---|" + "---:|" * len(BEHAVIOURS),
        ]
        for when, what in CRASH_POINTS:
            counts = " | ".join(f"{self.crossings[behaviour, when, what]:,}" for behaviour in BEHAVIOURS)
            lines.append(f"| {when} `{what}` | {counts} |")
        return "\n".join(lines) + "\n"


def _table() -> list[tuple[str, str]]:
    return [(phase.value, record.__name__) for phase, record in TRANSITIONS]


def coverage_of(history: History) -> Coverage:
    """What one world has met."""
    coverage = Coverage(
        worlds=1,
        processes=len({lineage.process for lineage in history.lineages}),
        calls=len({entered.number for entered in history.entered} | {handled.number for handled in history.handled}),
        starts=len(history.handled),
        requests=len(history.asked),
        endings=finished_kinds(history),
    )
    for lineage in history.lineages:
        state = State()
        for _, body, ours in lineage.rows:
            record = decode(body)
            if ours:
                coverage.appends += 1
                coverage.transitions[state.phase.value, type(record).__name__] += 1
            try:
                state = apply(state, record)
            except ProtocolError:
                break
    coverage.crashes.update(history.crashes)
    done = {entered.behaviour for entered in history.entered}
    coverage.behaviours.update(done)
    for when, what in set(history.crashes):
        coverage.crossings.update((behaviour, when, what) for behaviour in done)
    return coverage
