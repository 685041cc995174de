"""Thousands of hostile paths through the file tools, over worlds of links, while a thread swaps them: nothing may get out.

``make jail N=10000``: so many calls, a new world after each thousand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from interlock.toolbox.files import file_tools  # noqa: E402
from interlock.toolbox.ripgrep import found_ripgrep  # noqa: E402
from jail import World, run  # noqa: E402  (the tests' own)

PER_WORLD = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started, left, seed, escapes = time.monotonic(), options.calls, options.seed, 0
    while left > 0:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), seed)
            for escape in run(world, {tool.name: tool for tool in file_tools(world.root)}, min(left, PER_WORLD)):
                print(f"seed {seed}: {escape}")
                escapes += 1
        left -= PER_WORLD
        seed += 1
    how = "with" if found_ripgrep() else "without"
    spent = time.monotonic() - started
    print(f"{options.calls:,} calls in {seed - options.seed} worlds, {how} ripgrep, {spent:.0f} s: {escapes or 'no'} escapes")
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())
