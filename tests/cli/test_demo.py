"""The demo does a real job: whatever the seed, each due invoice is in the ledger once, and nothing that the policy holds."""

from __future__ import annotations

import csv
import filecmp
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interlock.shells.demo.clerk import Clerk
from interlock.shells.demo.world import lay_out
from threaded import serving

ROOT = Path(__file__).parents[2]
INTERLOCK = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())"]

# What goes wrong whatever the seed, and what catches it.
ON_THE_WAY = [
    ("G05", "the model announced a call and sent none"),
    ("G02", "UrlGuard vetoed fetch_page"),
    ("G06", "half a pay_invoice, cut off by a limit, did not run"),
    ("G01", "the model sent the same call twice; it is one call"),
    ("G07", "the model gave two calls one id"),
    ("G02", "PaymentPolicy vetoed pay_invoice"),
    ("G04", "pay_invoice raised; the model is told what it changed: none"),
    ("G06", "the stream died in the middle of a sentence"),
]


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*INTERLOCK, "demo", *options], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("seed", range(4))
def test_every_due_invoice_is_paid_once_and_nothing_else(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "a desk? %20"
    began = time.monotonic()
    done = demo("--seed", str(seed), "--folder", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < 10
    assert done.stderr == ""

    first, *rest = done.stdout.splitlines()
    assert "script" in first
    assert "socket" in first
    caught = [line for line in rest if "caught by G" in line]
    for guarantee, what in ON_THE_WAY:
        assert any(line.startswith(f"  ! caught by {guarantee}: {what}") for line in caught), what
    assert sum("G02" in line for line in caught) == 3
    assert len(caught) >= len(ON_THE_WAY) + 3
    assert any(f"session desk-{seed}" in line for line in rest)
    suggested = [shlex.split(line.split("   (")[0])[1:] for line in rest if " --journal " in line]
    assert [arguments[0] for arguments in suggested] == ["show", "log"]
    for arguments in suggested:
        shown = subprocess.run([*INTERLOCK, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert (shown.returncode, "Pay what is due" in shown.stdout) == (0, True), shown.stderr

    (again := tmp_path / "again").mkdir()
    desk = lay_out(again, seed=seed)
    assert desk.payable
    assert len(desk.held) == 2
    with (folder / "ledger.csv").open(newline="") as file:
        paid = [row["invoice"] for row in csv.DictReader(file)]
    assert sorted(paid) == sorted([*desk.payable, *desk.already_paid])
    report = (folder / "report.md").read_text()
    assert all(number in report for number in (*desk.payable, *desk.held))
    assert (folder / "journal.db").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = demo("--folder", str(tmp_path))
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_example_is_the_desk_of_seed_0(tmp_path: Path) -> None:
    desk = lay_out(tmp_path, seed=0)
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    same, different, missing = filecmp.cmpfiles(tmp_path, ROOT / "examples" / "desk", names, shallow=False)
    assert (sorted(same), different, missing) == (sorted(names), [], [])
    assert len(names) == len(desk.invoices) + 2


def test_the_example_program_gives_the_desk_to_any_model() -> None:
    with serving(Clerk(seed=0)) as server:
        environment = {**os.environ, "INTERLOCK_MODEL": f"openai-compatible:clerk@{server.base_url}"}
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "desk" / "desk.py")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The ledger is right." in done.stdout
