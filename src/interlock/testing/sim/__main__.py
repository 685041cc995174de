"""``python -m interlock.testing.sim``: run worlds, say what they met, and make a failing one small."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from .batch import Batch, run_many, write_table
from .report import SimReport, simulate
from .script import Script
from .shrink import shrink


def main(argv: list[str] | None = None) -> int:
    """0: no violation. 1: there is one, and the seed and a minimal script are printed. 2: wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m interlock.testing.sim", description="Simulated worlds, each from one integer.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds (default: 1000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--seed", type=int, help="run only this one, and say what happened in it")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    parser.add_argument("--write", nargs="?", const="docs/guarantees.md", metavar="PAGE", help="put the table between the page's markers")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return _one(simulate(options.seed), trace=options.trace)
    return _many(range(options.first, options.first + max(options.seeds, 1)), jobs=options.jobs, page=options.write)


def _one(report: SimReport, *, trace: bool) -> int:
    print(f"{report.script!r}\n")
    if trace:
        print("\n".join(report.history.trace), end="\n\n")
    print(report)
    print(f"fingerprint {report.fingerprint}")
    if not report.ok:
        _explain(report.script)
    return 0 if report.ok else 1


def _explain(script: Script) -> None:
    small = shrink(script)
    print(f"\nThe smallest script that fails in the same way:\n\n{small!r}\n")
    print("\n".join(simulate(small).history.trace))


def _many(seeds: range, *, jobs: int, page: str | None) -> int:
    began, shown = time.monotonic(), 0.0

    def progress(batch: Batch) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < 1.0 and batch.coverage.worlds < len(seeds):
            return
        shown, done = now, batch.coverage.worlds
        left = (now - began) / done * (len(seeds) - done)
        end = "\r" if sys.stderr.isatty() and done < len(seeds) else "\n"
        print(f"{done:,} of {len(seeds):,} worlds, {batch.failed} violated, {left:.0f} s left   ", end=end, file=sys.stderr, flush=True)

    batch = run_many(seeds, jobs=jobs, progress=progress)
    print(batch.coverage.table())
    missing = batch.coverage.missing()
    if missing:
        print(f"Met less often than 100,000 worlds should: {len(missing)} (the first: {missing[0]})")
    for seed, violations in batch.failures:
        print(f"seed {seed}:", *violations, sep="\n  ")
    if batch.failures:
        print(f"\n{batch.failed} of {len(seeds):,} worlds violated something. One of them, made small:")
        _explain(simulate(batch.failures[0][0]).script)
        return 1
    if page is not None:
        command = f"make sim SEEDS={len(seeds)}"
        said = f"`{command}`, seeds {seeds.start:,} to {seeds.stop - 1:,}: no violation.\n\n"
        write_table(Path(page), said + batch.coverage.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
