#!/usr/bin/env python
"""Break the guarantees one by one, and see that a test notices each time.

A mutant is a hand-made fault: a text that occurs exactly once in a file of ``src``, and what replaces it. It is
killed if one of its tests fails. The run succeeds only if the tests pass without a mutant and every mutant is killed.

    python scripts/mutants.py                 all of them
    python scripts/mutants.py G01 onion       those whose id or guarantee begins with one of the words

The format is described in CONTRIBUTING.md. Exit codes: 0 all killed, 1 a mutant survived or cannot be applied,
2 the tests fail without a mutant, or a mutant's entry is wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
# A mutant may hang its test: the limit for one test, and the last resort for all of a mutant's tests together.
TEST_TIMEOUT_S = 20
TIMEOUT_S = 180.0
FIELDS = {"id", "guarantee", "file", "old", "new", "tests"}
COPIED = (
    "src",
    "tests",
    "examples",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Makefile",
    "pyproject.toml",
    "scripts",
    "mutants",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One entry of ``mutants/*.toml``."""

    id: str
    guarantee: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of one mutant. fate: ``killed``, ``survived``, ``stale`` (old text not found once) or ``broken`` (pytest did not run)."""

    mutant: Mutant
    fate: str
    seconds: float
    detail: str = ""


class WrongEntry(Exception):
    """A file under ``mutants`` is not what CONTRIBUTING.md describes."""


def load(folder: Path, words: list[str]) -> list[Mutant]:
    """The mutants of every file in ``folder`` whose id or guarantee begins with one of ``words`` (all, if there are none)."""
    found: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []):
            if set(entry) != FIELDS:
                raise WrongEntry(f"{path.name}: {entry.get('id', '?')}: fields {sorted(set(entry) ^ FIELDS)} are missing or unknown")
            tests = entry.pop("tests")
            mutant = Mutant(**entry, tests=(tests,) if isinstance(tests, str) else tuple(tests))
            if mutant.id in found:
                raise WrongEntry(f"{path.name}: {mutant.id} is there twice")
            if mutant.old == mutant.new or not mutant.tests:
                raise WrongEntry(f"{path.name}: {mutant.id} changes nothing or names no test")
            found[mutant.id] = mutant
    return [m for m in found.values() if not words or any(m.id.startswith(w) or m.guarantee.startswith(w) for w in words)]


def copy_project(target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        elif source.exists():
            shutil.copy2(source, target / name)


def pytest(folder: Path, tests: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``tests`` against the copy in ``folder``: PYTHONPATH comes before the editable installation."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        f"--timeout={TEST_TIMEOUT_S}",
        *options,
        *tests,
    ]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def try_mutant(mutant: Mutant) -> Report:
    began = time.monotonic()

    def report(fate: str, detail: str = "") -> Report:
        return Report(mutant=mutant, fate=fate, seconds=time.monotonic() - began, detail=detail)

    original = (ROOT / mutant.file).read_text(encoding="utf-8") if (ROOT / mutant.file).is_file() else ""
    if (times := original.count(mutant.old)) != 1:
        return report("stale", f"its old text occurs {times} times in {mutant.file}")
    with tempfile.TemporaryDirectory(prefix="interlock-mutant-") as name:
        folder = Path(name)
        copy_project(folder)
        (folder / mutant.file).write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            done = pytest(folder, list(mutant.tests))
        except subprocess.TimeoutExpired:
            return report("killed", "its tests hang")
    if done.returncode == 0:
        return report("survived", f"{' '.join(mutant.tests)} did not notice")
    if done.returncode == 1:
        return report("killed")
    return report("broken", "pytest could not run its tests:\n" + done.stdout[-1500:] + done.stderr[-500:])


def tests_pass_unmutated(mutants: list[Mutant]) -> bool:
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    print(f"Without a mutant: {len(tests)} selections of tests", flush=True)
    with tempfile.TemporaryDirectory(prefix="interlock-mutant-") as name:
        copy_project(Path(name))
        done = pytest(Path(name), tests, "-n", str(WORKERS))
    if done.returncode:
        print(done.stdout[-4000:] + done.stderr[-2000:])
    return done.returncode == 0


def main(words: list[str]) -> int:
    try:
        mutants = load(ROOT / "mutants", words)
    except (WrongEntry, tomllib.TOMLDecodeError, TypeError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    if not mutants:
        print("mutants: there is none" + (f" that begins with {' or '.join(words)}" if words else ""), file=sys.stderr)
        return 2
    if not tests_pass_unmutated(mutants):
        print("mutants: the tests fail without a mutant; nothing can be said of the mutants", file=sys.stderr)
        return 2
    alive: list[Report] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for report in pool.map(try_mutant, mutants):
            detail = f"  {report.detail}" if report.detail else ""
            print(f"{report.fate:<9}{report.mutant.guarantee}  {report.mutant.id}  {report.seconds:.1f} s{detail}", flush=True)
            if report.fate != "killed":
                alive.append(report)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
