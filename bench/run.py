"""Measure Interlock against a bare loop: ``python bench/run.py [--quick] [--samples N] [--rows NAME ...] [--json]``.

Both do the same work against the same scripted server on the loopback. Every sample is a process of its own, the two sides take
turns, several times within each sample of runs, and the table shows the medians. The numbers are CPU time, except for the rows per
second of the durable append.
Exit codes: 0, or 1 with ``--strict`` if a row misses its target.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # this directory last: profile.py must not hide the standard library's

import argparse
import json
import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

from harness import Row, choose, pair, server


@dataclass(frozen=True)
class Result:
    """bare, ours, ratio: medians; of the ratios of two samples that were made side by side, not the ratio of the medians."""

    row: Row
    bare: float
    ours: float
    ratio: float

    @property
    def verdict(self) -> str:
        target, row = self.row.target, self.row
        if target is None:
            return "-"
        value = self.ours if row.absolute else self.ratio
        return "ok" if (value >= target if row.more_is_better else value <= target) else "miss"

    @property
    def target(self) -> str:
        target, row = self.row.target, self.row
        if target is None:
            return "-"
        if row.absolute:
            return f"<= {target:g} us"
        return f">= {target:.0%}" if row.more_is_better else f"<= {target:g}x"

    def cells(self) -> tuple[str, ...]:
        row = self.row
        ratio = f"{self.ratio:.0%}" if row.more_is_better else f"{self.ratio:.2f}x"
        return (row.name, row.what, _shown(self.bare, row.unit), _shown(self.ours, row.unit), ratio, self.target, self.verdict)

    def as_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "row": row.name,
            "what": row.what,
            "unit": row.unit,
            "bare": self.bare,
            "ours": self.ours,
            "ratio": self.ratio,
            "target": row.target,
            "verdict": self.verdict,
        }


def _shown(value: float, unit: str) -> str:
    if unit == "rows/s":
        return f"{value:,.0f}/s"
    if value >= 1e6:
        return f"{value / 1e6:.2f} s"
    return f"{value / 1e3:.3g} ms" if value >= 100 else f"{value:.2f} us"


def measure(row: Row, port: int, samples: int, quick: bool) -> Result:
    pairs = [pair(row, port, quick=quick, bare_first=number % 2 == 0) for number in range(samples)]
    bare, ours = zip(*pairs, strict=True)
    return Result(row, median(bare), median(ours), median(b / a if a else float("nan") for a, b in pairs))


def place() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "msgspec", "pydantic"))
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}"


def table(results: list[Result]) -> str:
    """As Markdown, so that it can be put into a document as it is."""
    head = ("row", "work", "bare", "Interlock", "ratio", "target", "")
    lines = [head, *(result.cells() for result in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure Interlock against a bare loop.")
    parser.add_argument("--samples", type=int, metavar="N", help="processes per side and row (5; 3 with --quick)")
    parser.add_argument("--quick", action="store_true", help="less work per process: a look, not a measurement")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="only the rows whose names begin so")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a row misses its target")
    options = parser.parse_args()
    samples = options.samples or (3 if options.quick else 5)
    rows = choose(options.rows)
    results: list[Result] = []
    with server() as port:
        for row in rows:
            began = time.perf_counter()
            results.append(measure(row, port, samples, options.quick))
            print(f"{len(results)}/{len(rows)}  {'  '.join(results[-1].cells())}  ({time.perf_counter() - began:.0f} s)", file=sys.stderr)
    if options.json:
        print(json.dumps({"on": place(), "samples": samples, "rows": [result.as_json() for result in results]}, indent=2))
    else:
        print(f"{place()}; medians of {samples}\n\n{table(results)}")
    return 1 if options.strict and any(result.verdict == "miss" for result in results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
