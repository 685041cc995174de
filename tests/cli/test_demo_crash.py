"""``interlock demo crash`` really kills the agent, and really pays ten invoices once each; and it would say so if it had not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from interlock.shells.demo.crash import crash, what_is_wrong
from interlock.shells.demo.crash_bank import Bank, Payment, ten_invoices

COMMAND = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())", "demo", "crash"]


def demo(*options: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=55, check=False, env=environment)


@pytest.mark.parametrize(("seed", "columns"), [(0, 80), (3, 40)])
def test_ten_invoices_are_paid_once_each_over_eleven_kills(seed: int, columns: int, tmp_path: Path) -> None:
    done = demo("--seed", str(seed), "--folder", str(tmp_path), columns=columns)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    invoices = ten_invoices(seed=seed)
    ledger = re.findall(r"^  (INV-\d+) +[\d,.]+ EUR", done.stdout, re.MULTILINE)
    assert sorted(ledger) == sorted(invoice.number for invoice in invoices)
    assert len(re.findall(r"^☠ SIGKILL \d+, process \d+:", done.stdout, re.MULTILINE)) == 11
    flowing = " ".join(done.stdout.split())
    assert "10 payments, none twice, over 11 kills." in flowing
    assert len(re.findall(r"process \d+ reopens the session", flowing)) == 11
    for word in ("finished: INV-", "not started: INV-", "started: INV-", "unknown: INV-"):
        assert word in flowing
    cheques = [invoice for invoice in invoices if invoice.method == "cheque"]
    for invoice in cheques:  # each is one that a crash left unknown
        assert f"{invoice.number}: unknown, and the model was told so; it read the statement" in flowing
    prose = done.stdout.split("Next:")[0].replace(str(tmp_path), "")
    assert max(map(len, prose.splitlines())) <= columns
    assert {path.name for path in tmp_path.iterdir()} == {"journal.db"}
    log = subprocess.run(
        [*COMMAND[:3], "log", f"crash-{seed}", "--journal", f"sqlite:///{tmp_path}/journal.db"], capture_output=True, text=True, check=False
    )
    assert (log.stdout.count("RunStarted"), log.stdout.count("RunEnded")) == (1, 1)
    assert log.stdout.count("SessionOpened") > 5  # some died before they had stored anything


def test_the_screen_in_the_documentation_is_what_is_shown() -> None:
    def plain(text: str) -> str:
        text = re.sub(r"process +\d+", "process N", re.sub(r"\s+", " ", text))
        return re.sub(r"/\S+/journal\.db", "JOURNAL", text)

    with tempfile.TemporaryDirectory() as folder:  # a short path, which no line breaks
        shown = plain(demo("--folder", folder).stdout)
    page = (Path(__file__).parents[2] / "docs" / "crashes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n\$ interlock demo crash\n(.*?)\n\.\.\.\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    for part in blocks[0]:
        assert plain(part).strip() in shown


def test_a_payment_that_was_made_twice_makes_it_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Careless(Bank):
        def book(self, order: dict[str, Any]) -> None:
            super().book(order)
            if len(self.payments) == 4:
                super().book(order)

    assert crash(seed=1, fast=True, folder=tmp_path, bank=Careless()) == 1
    assert re.search(r"✗ INV-\d+ was paid 2 times, not once", capsys.readouterr().out)


def test_every_other_fault_is_said_too() -> None:
    invoices = ten_invoices(seed=0)
    killed = [(place, invoice.number) for invoice in invoices for place in invoice.killed_at]
    good = {"outcome": "COMPLETED", "text": ""}
    paid = [Payment(invoice=i.number, amount_cents=i.amount_cents, method=i.method, key="", pid=0) for i in invoices]
    assert what_is_wrong(invoices, paid, killed, good) == []
    assert "was paid 0 times" in what_is_wrong(invoices, paid[1:], killed, good)[0]
    stranger = Payment(invoice="INV-1", amount_cents=1, method="cheque", key="", pid=0)
    assert what_is_wrong(invoices, [*paid, stranger], killed, good) == ["INV-1 was paid, and was not due"]
    other = Payment(invoice=paid[0].invoice, amount_cents=1, method="cheque", key="", pid=0)
    assert "with a wrong amount" in what_is_wrong(invoices, [other, *paid[1:]], killed, good)[0]
    assert "kills that were planned did not take place" in what_is_wrong(invoices, paid, killed[1:], good)[0]
    assert what_is_wrong(invoices, paid, killed, {"outcome": "LIMIT", "text": ""}) == ["the run ended LIMIT"]


def lives(pid: int) -> bool:
    """Whether the process is there, and more than a memory of one."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_whatever_ends_it_leaves_no_process_behind(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = subprocess.Popen([*COMMAND, "--folder", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids: list[int] = []
    for line in process.stdout:
        pids += map(int, re.findall(r"^process (\d+)", line))
        if "SIGKILL 2" in line:
            break
    process.send_signal(number)
    rest, errors = process.communicate(timeout=20)
    pids += map(int, re.findall(r"^process (\d+)", rest, re.MULTILINE))
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert len(pids) >= 2
    until = time.monotonic() + 10
    while any(map(lives, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not [pid for pid in pids if lives(pid)]


def test_what_cannot_be_played_is_refused(commands: Commands, tmp_path: Path) -> None:
    assert "leave --model out" in commands("demo", "crash", "--model", "openai:x", code=2).stderr
    (tmp_path / "journal.db").touch()
    assert "has a journal already" in commands("demo", "crash", "--folder", str(tmp_path), code=2).stderr
