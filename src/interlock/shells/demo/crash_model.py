"""The model's part in the crash demo, played by a script that sees only what a model would see: the request's body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...messages import ToolCall
from ...testing import Step, call, calls, text
from .clerk import Seen, seen_in
from .world import cents

__all__ = ["PROMPT", "Payer"]

PROMPT = "Pay each of these invoices once:\n"
BATCH = 4

_LINE = re.compile(r"(\S+): (\S+) EUR to .* by (transfer|cheque)")


class Payer:
    """Called with each request's body. It pays what is open, a few at a time; before it pays again what may have happened, it looks."""

    def __call__(self, body: Mapping[str, Any]) -> Step:
        seen = seen_in(body["messages"])
        prompt = next(message["content"] for message in body["messages"] if message["role"] == "user")
        invoices = [match.groups() for line in prompt.splitlines() if (match := _LINE.fullmatch(line))]
        became = {number: _became(seen, number) for number, _, _ in invoices}
        if "unknown" in became.values():
            return calls(call(f"call-{len(seen)}", "read_statement"))
        due = [invoice for invoice in invoices if became[invoice[0]] == "open"]
        if due:
            return calls(*(_payment(f"call-{len(seen) + place}", *invoice) for place, invoice in enumerate(due[:BATCH])))
        return text(f"All {len(invoices)} invoices are paid.")


def _became(seen: list[Seen], number: str) -> str:
    """``paid``, ``open``, or ``unknown``: what the newest result about an invoice says."""
    found = "open"
    for name, arguments, result in seen:
        if name == "read_statement" and found == "unknown":
            found = "paid" if number in result.splitlines() else "open"
        elif arguments.get("invoice") == number:
            found = "unknown" if "may have happened" in result else "paid" if result == f"paid {number}" else "open"
    return found


def _payment(id: str, number: str, amount: str, method: str) -> ToolCall:
    name = "transfer" if method == "transfer" else "send_cheque"
    return call(id, name, {"invoice": number, "amount_cents": cents(amount)})
