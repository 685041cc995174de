"""One world, run and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...extensions.base import AgentExtension
from .checks import check
from .coverage import Coverage, coverage_of
from .generate import script_of
from .history import History
from .script import Script
from .world import SimWorld


@dataclass(frozen=True, slots=True)
class SimReport:
    """What became of one world. seed: None for a script that was given. violations: one line each; none is well.

    fingerprint: a digest of everything that happened, the same whenever the same script is run.
    """

    seed: int | None
    script: Script
    violations: tuple[str, ...]
    fingerprint: str
    history: History

    @property
    def ok(self) -> bool:
        """Whether every checker was content."""
        return not self.violations

    def coverage(self) -> Coverage:
        """What this world has met."""
        return coverage_of(self.history)

    def __str__(self) -> str:
        where = f"seed {self.seed}" if self.seed is not None else repr(self.script)
        return f"{where}: " + ("\n  ".join(("", *self.violations)) if self.violations else "no violation")


def simulate(
    world: int | Script, *, tools: Sequence[Any] = (), extensions: Callable[[], Sequence[AgentExtension]] = tuple[AgentExtension]
) -> SimReport:
    """Run one world to its end, and let every checker look at it. Synchronous; takes no time of any clock but the processor's.

    world: an integer, from which a script is made, or a Script. tools: further tools, for calls of a Script to name. extensions: makes
    further extensions for each process. Raises nothing for a violation: look at the report.
    """
    script = script_of(world) if isinstance(world, int) else world
    history = SimWorld(script, tools=tools, extensions=extensions).run()
    seed = world if isinstance(world, int) else None
    return SimReport(seed, script, tuple(check(history)), history.fingerprint(), history)
