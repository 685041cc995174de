"""The world outside the crash demo: ten invoices, and a bank that lives in another process than the agent.

The bank books whatever it is told to, as often as it is told: nothing here would hide a second payment.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from .world import VENDORS, euros

__all__ = ["Bank", "Invoice", "Payment", "Place", "ask", "ten_invoices"]

Place = Literal["model", "onion", "ordered", "booked", "returned", "asked"]
"""Where the agent's process is killed: when the model's answer is read and not stored; in the onion, before the handler; when the bank has
the order; when it has booked it, and not answered; when the handler has returned and its result is not stored; while the bank is asked."""

_KILLED_AT: tuple[Place, ...] = ("model", "onion", "ordered", "booked", "returned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """method: by ``transfer``, which the bank can be asked about, or by ``cheque``, about which nobody can be asked. killed_at: where the
    agent dies while it pays this one."""

    number: str
    vendor: str
    amount_cents: int
    method: Literal["transfer", "cheque"]
    killed_at: tuple[Place, ...]

    def line(self) -> str:
        """As the prompt has it."""
        return f"{self.number}: {euros(self.amount_cents)} EUR to {self.vendor} by {self.method}"


def ten_invoices(*, seed: int) -> tuple[Invoice, ...]:
    """Each place twice, in an order of the seed's; cheques where a crash leaves most to find out; and one that dies twice."""
    rng = random.Random(f"crash {seed}")
    places: list[Place] = [*_KILLED_AT, *_KILLED_AT]
    rng.shuffle(places)
    cheques = {places.index(place) for place in ("ordered", "booked", "returned")}
    asked = rng.choice([place for place, name in enumerate(places) if name in ("ordered", "booked") and place not in cheques])
    first = rng.randint(100, 900)
    return tuple(
        Invoice(
            number=f"INV-{first + place}",
            vendor=rng.choice(VENDORS),
            amount_cents=rng.randint(1_000, 500_000),
            method="cheque" if place in cheques else "transfer",
            killed_at=(name, "asked") if place == asked else (name,),
        )
        for place, name in enumerate(places)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """One line of the bank's ledger. key: the idempotency key that came with the order. pid: the process that sent it."""

    invoice: str
    amount_cents: int
    method: str
    key: str
    pid: int


class Bank:
    """A server on a loopback port. Use it with ``async with``.

    reached: asked at each place that the bank can see, with the invoice; False means that whoever sent the order is dead by now, and
    an order that is not booked is dropped.
    """

    def __init__(self) -> None:
        self.payments: list[Payment] = []
        self.reached: Callable[[Place, str], Awaitable[bool]] | None = None
        self._orders: dict[str, str] = {}
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    def book(self, order: dict[str, Any]) -> None:
        self.payments.append(Payment(**order))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if line := await reader.readline():
                reply = await self._reply(json.loads(line))
                if reply is not None:
                    writer.write(json.dumps(reply).encode() + b"\n")
                    await writer.drain()
        except ConnectionError:
            pass  # whoever asked is dead; that is what this is about
        finally:
            writer.close()

    async def _reply(self, request: dict[str, Any]) -> Any:
        match request:
            case {"pay": order}:
                self._orders[order["key"]] = order["invoice"]
                if not await self._reach("ordered", order["invoice"]):
                    return None
                self.book(order)
                return "booked" if await self._reach("booked", order["invoice"]) else None
            case {"became": key}:
                if not await self._reach("asked", self._orders.get(key, "")):
                    return None
                return any(payment.key == key for payment in self.payments)
            case _:
                return [payment.invoice for payment in self.payments if payment.method == "cheque"]

    async def _reach(self, place: Place, invoice: str) -> bool:
        return self.reached is None or await self.reached(place, invoice)


async def ask(port: int, request: dict[str, Any]) -> Any:
    """One question to the bank. Raises ConnectionError if it does not answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionError("the bank did not answer")
    return json.loads(line)
