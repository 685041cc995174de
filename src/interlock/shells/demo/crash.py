"""``interlock demo crash``: ten invoices are paid while the agent's process is killed again and again, by its parent.

The parent is the world that outlives every process: it plays the model behind a socket, it is the bank, and it decides who dies where.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...errors import UsageError
from ...testing import WireServer
from ..interrupts import run_interruptible
from .crash_bank import Bank, Invoice, Payment, Place, ten_invoices
from .crash_model import PROMPT, Payer
from .crash_show import CrashShow

__all__ = ["crash", "what_is_wrong"]

CONNECT_S = 30.0
"""How long a process may take until it reports."""
LIVES_MAX = 30
"""Processes after which the demo gives up: every kill is planned, and each takes one."""
_PAUSE_S = 0.6


def crash(*, seed: int = 0, fast: bool = False, folder: Path | None = None, bank: Bank | None = None) -> int:
    """Play the crash demo of ``seed`` and return the exit code: 0 if the bank's ledger has every invoice exactly once.

    fast: without the pauses, which are made only on a terminal. folder: for the journal; a temporary one if left out. bank: another
    one. Ctrl-C ends the agent's process too. Raises UsageError for a folder that has a journal already.
    """
    if not hasattr(os, "fork"):
        raise UsageError("interlock demo crash needs a system with fork and SIGKILL: Linux, macOS or another POSIX one")
    folder = Path(tempfile.mkdtemp(prefix="interlock-crash-")) if folder is None else folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error}") from error
    if (folder / "journal.db").exists():
        raise UsageError(f"{folder} has a journal already; the demo begins a new one")
    show = CrashShow(pause_s=0.0 if fast or not sys.stdout.isatty() else _PAUSE_S)
    invoices = ten_invoices(seed=seed)
    parent = _Parent(invoices, bank or Bank(), show, seed=seed, journal=folder / "journal.db")
    show.beginning(invoices, parent.journal)
    result = run_interruptible(parent.play())
    show.ending(invoices, parent.bank.payments, parent.cleared, result, seed=seed, journal=parent.journal)
    wrong = what_is_wrong(invoices, parent.bank.payments, parent.killed, result)
    for sentence in wrong:
        show.line(f"✗ {sentence}", style="bold red")
    return 1 if wrong else 0


def what_is_wrong(
    invoices: Sequence[Invoice], payments: Sequence[Payment], killed: Iterable[tuple[Place, str]], result: dict[str, Any]
) -> list[str]:
    """The sentences that the bank's ledger proves false; none, after a good run."""
    counted, due = Counter(payment.invoice for payment in payments), {invoice.number: invoice for invoice in invoices}
    wrong = [f"{number} was paid {counted[number]} times, not once" for number in due if counted[number] != 1]
    wrong += [f"{number} was paid, and was not due" for number in counted if number not in due]
    wrong += [
        f"{payment.invoice} was paid with a wrong amount"
        for payment in payments
        if payment.invoice in due and payment.amount_cents != due[payment.invoice].amount_cents
    ]
    planned = {(place, invoice.number) for invoice in invoices for place in invoice.killed_at}
    if missing := planned - set(killed):
        wrong.append(f"kills that were planned did not take place: {sorted(missing)}")
    if result["outcome"] != "COMPLETED":
        wrong.append(f"the run ended {result['outcome']}")
    return wrong


class _Parent:
    """Has one life started after the other, and kills each where its invoice says so.

    cleared: by invoice, how what was open was settled.
    """

    def __init__(self, invoices: Sequence[Invoice], bank: Bank, show: CrashShow, *, seed: int, journal: Path) -> None:
        self.bank = bank
        self.journal = journal
        self.killed: list[tuple[Place, str]] = []
        self.cleared: dict[str, list[str]] = {}
        self._planned = {(place, invoice.number) for invoice in invoices for place in invoice.killed_at}
        self._order = {"session": f"crash-{seed}", "journal": str(journal), "prompt": PROMPT + "\n".join(map(Invoice.line, invoices))}
        self._show = show
        self._life: _Life | None = None
        self._connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        bank.reached = self._reached

    async def play(self) -> dict[str, Any]:
        """Until a life comes to its end by itself: what it said last."""
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(WireServer(Payer()))
            await stack.enter_async_context(self.bank)
            control = await asyncio.start_server(self._connect, "127.0.0.1", 0)
            stack.callback(control.close)
            self._order |= {"base_url": server.base_url, "bank": self.bank.port, "control": control.sockets[0].getsockname()[1]}
            nursery = await stack.enter_async_context(_nursery())
            for _ in range(LIVES_MAX):
                result = await self._live(nursery)
                if result is not None:
                    return result
        raise UsageError(f"the demo did not come to its end in {LIVES_MAX} processes")

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected.put_nowait((reader, writer))

    async def _live(self, nursery: asyncio.subprocess.Process) -> dict[str, Any] | None:
        """One process, from its start to its end. What it said last, or None if it was killed."""
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(json.dumps(self._order).encode() + b"\n")
        pid = int(await nursery.stdout.readline())
        dead = asyncio.create_task(nursery.stdout.readline())
        said: dict[str, Any] = {}
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await self._connected.get()
            self._life = _Life(pid, dead, writer)
            while line := await reader.readline():
                said = json.loads(line)
                await self._hear(said)
            writer.close()
            code = int(await asyncio.shield(dead))
        except TimeoutError:
            raise UsageError(f"the agent's process {pid} does not report") from None
        finally:
            dead.cancel()
        if code == -signal.SIGKILL:
            return None
        if code or said.get("what") != "result":
            raise UsageError(f"the agent's process {pid} ended with the code {code}; what it said is above")
        return said

    async def _hear(self, said: dict[str, Any]) -> None:
        show, life = self._show, self._life
        assert life is not None
        match said:
            case {"what": "at", "place": place, "invoices": invoices}:
                if await self._spared(cast("Place", place), invoices):
                    life.writer.write(b"go\n")
            case {"what": "starts"}:
                show.starts(life.pid)
            case {"what": "resumes", "calls": calls}:
                show.resumes(life.pid, calls)
                for call in calls:
                    if call["what"] == "unknown":
                        self._clear(json.loads(call["arguments"])["invoice"], "unknown, and the model was told so")
            case {"what": "asked", "invoice": invoice, "booked": booked}:
                show.asked(invoice, booked=booked)
                self._clear(invoice, f"the bank was asked, and had {'booked it' if booked else 'not booked it, so it was started again'}")
            case {"what": "settled"}:
                self._settled(said)
            case _:
                pass

    def _settled(self, said: dict[str, Any]) -> None:
        if said["name"] == "read_statement":
            self._show.looked()
            booked = [payment.invoice for payment in self.bank.payments]
            for number, steps in self.cleared.items():
                if steps[-1].startswith("unknown"):
                    steps.append(
                        "it read the statement, and the cheque was " + ("there" if number in booked else "not there, so it sent one")
                    )
        else:
            self._show.settled(said["invoice"], effect=said["effect"], by=said["by"])

    def _clear(self, invoice: str, step: str) -> None:
        steps = self.cleared.setdefault(invoice, [])
        if step not in steps:  # it is found open again by each process that dies before it is settled
            steps.append(step)

    async def _reached(self, place: Place, invoice: str) -> bool:
        """The bank's question whether whoever sent an order still lives."""
        return await self._spared(place, [invoice])

    async def _spared(self, place: Place, invoices: Sequence[str]) -> bool:
        """Kill the process, if it is planned here; whether it was left alone."""
        invoice = next((invoice for invoice in invoices if (place, invoice) in self._planned), None)
        life = self._life
        if invoice is None or life is None:
            return True
        self._planned.discard((place, invoice))
        self.killed.append((place, invoice))
        os.kill(life.pid, signal.SIGKILL)
        await asyncio.shield(life.dead)
        await self._show.killed(life.pid, place, invoice)
        return False


@dataclass(frozen=True, slots=True)
class _Life:
    """The process that is alive. dead: done when it is not any more."""

    pid: int
    dead: asyncio.Task[bytes]
    writer: asyncio.StreamWriter


@asynccontextmanager
async def _nursery() -> AsyncGenerator[asyncio.subprocess.Process]:
    """The process that forks the lives. What they say on their standard error is shown. Leaving it leaves none of them."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "interlock.shells.demo.crash_life"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the parent's, who then ends the others
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own: that is itself, and whichever life there is
        await process.wait()
