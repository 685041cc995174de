"""Where the time of a row goes: ``python bench/profile.py ROW [--who bare] [--how cprofile|instructions] [--top N]``.

``sampling`` (the default) asks a hundred times per tenth of a second of CPU time which Python frame runs, and names it
with the C code that it called; ``cprofile`` counts calls as well, and makes Python code look dearer than it is;
``instructions`` counts what the processor executes per unit of the row, for both sides, with valgrind if that is
installed: slow, and the same on a busy machine.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # this directory last: this very file must not hide the standard library's

import argparse
import json
import re
import shutil
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from harness import Row, choose, instructions, sample, server

INTERLOCK = f"{Path(__file__).resolve().parent.parent / 'src' / 'interlock'}/"
PACKAGES = f"{sysconfig.get_path('purelib')}/"
STANDARD = f"{sysconfig.get_path('stdlib')}/"


def part_of(file: str) -> str:
    """The part that a file belongs to: a room of ours, a package, a module of the standard library."""
    if file.startswith(INTERLOCK):
        return "interlock." + file.removeprefix(INTERLOCK).split("/")[0].removesuffix(".py")
    for root in (PACKAGES, STANDARD):
        if file.startswith(root):
            return file.removeprefix(root).split("/")[0].removesuffix(".py")
    return "bench" if "/bench/" in file else file


def place_of(file: str) -> str:
    for root in (INTERLOCK, PACKAGES, STANDARD):
        file = file.removeprefix(root)
    return file


def report(frames: Iterable[tuple[str, str, int, int]], top: int) -> None:
    parts: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for file, name, line, count in frames:
        parts[part_of(file)] += count
        functions[f"{name}  {place_of(file)}:{line}"] += count
    total = parts.total() or 1
    for title, counts, shown in (("part", parts, 12), ("function", functions, top)):
        print(f"\n  share  {title}")
        for name, count in counts.most_common(shown):
            print(f"{count / total:7.1%}  {name}")


def by_sampling(row: Row, who: str, port: int, top: int, n: int) -> None:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        value = sample(row, who, port, prof=file.name, n=n)["value"]
        frames = json.loads(Path(file.name).read_text())
    print(f"{row.name}, {who}: {value:.2f} {row.unit}; {sum(frame[3] for frame in frames)} samples")
    report(frames, top)


def by_cprofile(row: Row, who: str, port: int, top: int, n: int) -> None:
    import pstats

    with tempfile.NamedTemporaryFile(suffix=".prof") as file:
        sample(row, who, port, prof=file.name, how="cprofile", n=n)
        stats = pstats.Stats(file.name)
    stats.sort_stats("tottime").print_stats(top)


def by_imports(row: Row, who: str, port: int, top: int) -> None:
    """What the first process of the row imports: each module's own time, and that of each package."""
    lines = sample(row, who, port, prof="imports", n=1)["imports"]
    found = [(name.strip(), int(own)) for own, name in re.findall(r"import time: +(\d+) \| +\d+ \|( +\S+)", str(lines))]
    packages: Counter[str] = Counter()
    for name, own in found:
        packages[name.split(".")[0]] += own
    print(f"{row.name}, {who}: {len(found)} modules, {sum(own for _, own in found) / 1e3:.1f} ms of importing\n\n     ms  package")
    for name, own in packages.most_common(15):
        print(f"{own / 1e3:7.1f}  {name}")
    print("\n     ms  module")
    for name, own in sorted(found, key=lambda item: -item[1])[:top]:
        print(f"{own / 1e3:7.1f}  {name}")


def by_instructions(row: Row, port: int) -> None:
    if shutil.which("valgrind") is None:
        raise SystemExit("--how instructions needs valgrind")
    bare, ours = (instructions(row, who, port) for who in ("bare", "ours"))
    print(f"{row.name}: bare {bare:,.0f} instructions, Interlock {ours:,.0f}, {ours / bare:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of a row goes.")
    parser.add_argument("row")
    parser.add_argument("--who", choices=("ours", "bare"), default="ours")
    parser.add_argument("--how", choices=("sampling", "cprofile", "instructions"), default="sampling")
    parser.add_argument("--top", type=int, default=30, metavar="N")
    options = parser.parse_args()
    (row, *_) = choose([options.row])
    with server() as port:
        if options.how == "instructions":
            by_instructions(row, port)
        elif row.kind == "process":
            by_imports(row, options.who, port, options.top)
        elif options.how == "cprofile":
            by_cprofile(row, options.who, port, options.top, row.n)
        else:
            by_sampling(row, options.who, port, options.top, row.n * 4 if row.kind == "runs" else row.n)


if __name__ == "__main__":
    main()
