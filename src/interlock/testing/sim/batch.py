"""Many worlds on every core."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from .coverage import Coverage
from .report import simulate

SIZE = 200
"""Seeds that one worker takes at a time."""
FAILURES_MAX = 20
"""Failures that are kept in words; all are counted."""
COLLECT_EVERY = 50
"""Worlds between two collections of garbage, which is off while one runs."""

BEGIN = "<!-- simulator -->"
END = "<!-- end of simulator -->"


@dataclass(slots=True)
class Batch:
    """What many worlds have come to. failures: (seed, what was violated), the first of them. failed: how many there were."""

    coverage: Coverage = field(default_factory=Coverage)
    failures: list[tuple[int, tuple[str, ...]]] = field(default_factory=list[tuple[int, tuple[str, ...]]])
    failed: int = 0

    def add(self, other: Batch) -> None:
        """Join ``other`` to it."""
        self.coverage.add(other.coverage)
        self.failures = sorted([*self.failures, *other.failures])[:FAILURES_MAX]
        self.failed += other.failed


def run_many(seeds: range, *, jobs: int, progress: Callable[[Batch], None] = lambda batch: None) -> Batch:
    """Run every seed, in ``jobs`` processes. progress: told after each portion. The sum does not depend on ``jobs``.

    With more than one job, a script that calls this needs ``if __name__ == "__main__":``. Raises BrokenProcessPool without it.
    """
    portions = [seeds[start : start + SIZE] for start in range(0, len(seeds), SIZE)]
    total = Batch()
    for batch in _batches(portions, jobs):
        total.add(batch)
        progress(total)
    return total


def _batches(portions: list[range], jobs: int) -> Iterator[Batch]:
    if jobs <= 1 or len(portions) == 1:
        yield from map(run_portion, portions)
        return
    # Not multiprocessing.Pool: where workers cannot start, it would make new ones for ever.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(portions)), mp_context=context) as pool:
        for made in as_completed([pool.submit(run_portion, portion) for portion in portions]):
            yield made.result()


def run_portion(seeds: range) -> Batch:
    """Some worlds, in this process."""
    batch = Batch()
    for done, seed in enumerate(seeds):
        report = simulate(seed)
        batch.coverage.add(report.coverage())
        if not report.ok:
            batch.failed += 1
            batch.failures.append((seed, report.violations))
        if done % COLLECT_EVERY == 0:
            gc.collect()
    return batch


def write_table(path: Path, text: str) -> None:
    """Put ``text`` between the two markers of a page. Raises ValueError if they are not there."""
    page = path.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{path}: the markers {BEGIN} and {END} must be there once each")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}", encoding="utf-8")
