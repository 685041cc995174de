"""What the crash demo shows: each kill, each resume, and at the end what the bank says."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.text import Text

from ..cli.text import console, printable
from .crash_bank import Invoice, Payment, Place
from .show import command_name
from .world import euros

__all__ = ["CrashShow"]

WIDTH = 100

KILLED: dict[Place, str] = {
    "model": "the model's answer was read, and not yet stored",
    "onion": "{} was in the onion, its handler had not started",
    "ordered": "the bank had the order to pay {}, and had not booked it",
    "booked": "the bank had booked {}, and had not answered",
    "returned": "{} was paid, and its result was not yet stored",
    "asked": "the bank was being asked about {}",
}

# What ``explain`` says of a call that was open: a word, and what follows from it.
OPEN = {
    "finished": ("finished", ""),
    "not_started": ("not started", ""),
    "rerun": ("started", ", and safe to start again"),
    "reconcile": ("started", "; the bank is asked what became of it"),
    "unknown": ("unknown", "; the model is told so, and must look"),
    "refused": ("settled without running", ""),
}


class CrashShow:
    """Prints to stdout. pause_s: after each kill, so that a person can follow."""

    def __init__(self, *, pause_s: float) -> None:
        self._console = console()
        self._pause_s = pause_s
        self._kills = 0

    def line(self, text: str = "", *, style: str = "", indent: int = 0, hang: int = 2) -> None:
        """``text``, broken at spaces to the width of the terminal."""
        width = max(min(self._console.width, WIDTH), 20)
        margin, further = " " * indent, " " * (indent + hang)
        lines = textwrap.wrap(printable(text), width, initial_indent=margin, subsequent_indent=further, break_on_hyphens=False) or [""]
        for one in lines:
            self._console.print(Text(one, style=style))

    def beginning(self, invoices: Sequence[Invoice], journal: Path) -> None:
        self.line(
            "Ten invoices, one agent, and a parent that kills it with SIGKILL, again and again. The model's part is played by a script "
            "behind a local socket, and the bank is a server in the parent. The kills, the agent, its tools and its journal are real.",
            style="bold",
            hang=0,
        )
        cheques = ", ".join(invoice.number for invoice in invoices if invoice.method == "cheque")
        self.line(f"Nobody can be asked about a cheque, so a crash in the middle of one leaves it unknown: {cheques}.", hang=0)
        self.line(f"journal: {journal}", style="dim")
        self.line()

    def starts(self, pid: int) -> None:
        self.line(f"process {pid} starts", style="bold")

    def resumes(self, pid: int, calls: Sequence[dict[str, Any]]) -> None:
        """What the new process finds open, before it does anything about it."""
        self.line(f"process {pid} reopens the session", style="bold")
        for what, (word, further) in OPEN.items():
            if found := ", ".join(_named(call) for call in calls if call["what"] == what):
                self.line(f"{word}: {found}{further}", style="yellow" if further else "dim", indent=2)
        if not calls:
            self.line("nothing was stored of the model's answer: it is asked again", style="dim", indent=2)

    def asked(self, invoice: str, *, booked: bool) -> None:
        became = "it was booked: that is its result" if booked else "it never was: it may start again"
        self.line(f"? {invoice}: the bank says that {became}", style="cyan", indent=2)

    def settled(self, invoice: str, *, effect: str, by: str) -> None:
        if effect == "happened":
            self.line(f"✓ {invoice} is paid" + (", as the bank says" if by == "reconcile" else ""), style="green", indent=2)
        else:
            became = f"{invoice}: whether it was paid is unknown" if effect == "unknown" else f"{invoice} is not paid"
            self.line(f"✗ {became}", style="red", indent=2)

    def looked(self) -> None:
        self.line("? the model reads the statement of cheques", style="cyan", indent=2)

    async def killed(self, pid: int, place: Place, invoice: str) -> None:
        self._kills += 1
        self.line(f"☠ SIGKILL {self._kills}, process {pid}: {KILLED[place].format(invoice)}", style="bold red", hang=4)
        await asyncio.sleep(self._pause_s)

    def ending(
        self,
        invoices: Sequence[Invoice],
        payments: Sequence[Payment],
        cleared: dict[str, list[str]],
        result: dict[str, Any],
        *,
        seed: int,
        journal: Path,
    ) -> None:
        """The answer, the bank's own ledger, what became of the unknowns, and what to type next."""
        style = "bold green" if result["outcome"] == "COMPLETED" else "bold red"
        self.line()
        self.line(f"{result['outcome']}: {result['text']}", style=style)
        self.line()
        self.line("The bank's own ledger", style="bold")
        vendors = {invoice.number: invoice.vendor for invoice in invoices}
        for payment in payments:
            row = f"  {payment.invoice:<7}  {euros(payment.amount_cents):>8} EUR  {payment.method:<8}"
            if self._console.width >= 60:  # or there is no room for the rest
                row += f"  {vendors.get(payment.invoice, '?'):<18}  by process {payment.pid}"
            self._console.print(Text(row.rstrip()))
        counted = Counter(payment.invoice for payment in payments)
        twice = ", ".join(number for number, count in counted.items() if count > 1)
        self.line()
        self.line(f"{len(payments)} payments, {f'twice: {twice}' if twice else 'none twice'}, over {self._kills} kills.", style=style)
        if cleared:
            self.line()
            self.line("Died in the middle of a payment, and how it was cleared up", style="bold")
            for number, steps in cleared.items():
                self.line(f"{number}: {'; '.join(steps)}", indent=2)
        self.line()
        self.line("Next:", style="bold")
        url, command = shlex.quote(f"sqlite:///{quote(str(journal))}"), shlex.quote(command_name())
        self._console.print(Text(f"  {command} log crash-{seed} --journal {url}   (every record)"))
        self._console.print(Text(f"  {command} demo crash --seed {seed + 1}   (other kills)"))
        sys.stdout.flush()


def _named(call: dict[str, Any]) -> str:
    return json.loads(call["arguments"]).get("invoice", call["name"])
