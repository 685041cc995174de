"""``make kills N=500``: that many real kills, a table of what they hit, and a non-zero exit if anything was wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from kills.harness import Tally, harness
from kills.points import NAMED, WINDOWS

KILLS_PER_WORLD = 9
OPEN_MIN = 0.9
"""The share of the kills that must hit an open run: others prove little."""
NAMED_MIN = 0.04
"""The share of the kills that each named window must get: 20 of 500."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 if nothing was wrong and the kills were where they should be."""
    parser = argparse.ArgumentParser(prog="make kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how many, at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first world; each further one has the next")
    parser.add_argument("--worlds", type=int, default=0, help="stop after so many worlds, however many kills that were")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    with harness() as played:
        tally, seed = played.tally, chosen.seed
        while tally.killed < chosen.kills and not (chosen.worlds and tally.worlds >= chosen.worlds):
            for sentence in played.play(seed, kills=KILLS_PER_WORLD):
                print(
                    f"\n{sentence}\n  again: make kills ARGS='--seed {seed} --worlds 1' (the same plans; what runs at once may take turns)"
                )
            seed += 1
            _progress(tally, chosen.kills, time.monotonic() - began)
    short = [] if chosen.worlds else shortfalls(tally)
    print(f"\n\n{table(tally)}\n")
    for sentence in short:
        print(sentence)
    print(
        f"{len(tally.violations)} violations in {tally.killed} kills, {time.monotonic() - began:.0f} s, seeds {chosen.seed} to {seed - 1}"
    )
    return 1 if tally.violations or short else 0


def shortfalls(tally: Tally) -> list[str]:
    """What the kills did not hit often enough to prove anything."""
    wanted = NAMED_MIN * tally.killed
    short = [f"too few kills {window}: {tally.kills[window]}, not {wanted:.0f}" for window in NAMED if tally.kills[window] < wanted]
    if tally.open.total() < OPEN_MIN * tally.killed:
        short.append(f"too few kills while a run was open: {tally.open.total()} of {tally.killed}")
    return short


def table(tally: Tally) -> str:
    rows = [("SIGKILL", "kills", "run open")]
    for window, points in WINDOWS.items():
        rows.append((window, str(tally.kills[window]), str(tally.open[window])))
        rows += [(f"  {point}", str(tally.points[point]), "") for point in points]
    rows.append(("all", str(tally.killed), f"{tally.open.total()} ({tally.open.total() / max(tally.killed, 1):.0%})"))
    width = max(len(row[0]) for row in rows)
    lines = [f"{name:<{width}}  {kills:>6}  {is_open:>10}".rstrip() for name, kills, is_open in rows]
    effects = ", ".join(f"{count} {effect}" for effect, count in sorted(tally.effects.items()))
    lines += [
        "",
        f"{tally.worlds} worlds, {tally.lives} processes, {tally.requests} requests, {tally.commands} acknowledgements",
        f"{tally.handlers} handlers began; recorded effects: {effects}",
    ]
    return "\n".join(lines)


def _progress(tally: Tally, wanted: int, took_s: float) -> None:
    line = f"{tally.killed}/{wanted} kills, {tally.worlds} worlds, {len(tally.violations)} violations, {took_s:.0f} s"
    if sys.stdout.isatty():
        print(f"\r{line}", end="", flush=True)
    elif tally.worlds % 10 == 0:
        print(line, flush=True)
