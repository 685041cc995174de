"""The clerk's tools, and the layer that holds the policy. Nothing here knows that the model is a script."""

from __future__ import annotations

import csv
import io
import os
from typing import Any

from ...errors import ToolFailure
from ...extensions.base import AgentExtension, CallNext, RunContext, ToolInvocation
from ...tools import Tool, tool
from .web import fetch_page
from .world import ACCOUNTING_DAY, LEDGER_COLUMNS, Desk, allowed, cents, ledger_rows

SYSTEM_PROMPT = (
    "You are an accounts clerk. Read the policy, the ledger and the invoices, pay what is due, and write a report. "
    "If a payment is refused, do not try it again: name it in the report."
)


def clerk_tools(desk: Desk) -> tuple[Tool, ...]:
    """pay_invoice, write_report and fetch_page, for one desk."""

    # Money: after a crash in the middle nobody may guess, so the model is told that the effect is unknown.
    @tool(on_crash="report", parallel=False)
    def pay_invoice(context: RunContext, invoice: str, vendor: str, amount_cents: int) -> str:
        """Pay one invoice and enter it in the ledger.

        Args:
            invoice: Its number, like INV-123.
            vendor: The vendor, as the invoice says it.
            amount_cents: The whole amount, in cents.
        """
        file = desk.folder / "invoices" / f"{invoice}.txt"
        if "/" in invoice or not file.is_file():
            raise ToolFailure(f"there is no invoice {invoice!r}", effect="none")
        said = dict(line.split(": ", 1) for line in file.read_text(encoding="utf-8").splitlines())
        if said["Vendor"] != vendor or cents(said["Amount"].removesuffix(" EUR")) != amount_cents:
            raise ToolFailure(f"invoice {invoice} says {said['Vendor']}, {said['Amount']}", effect="none")
        if any(row["invoice"] == invoice for row in ledger_rows(desk.ledger)):
            raise ToolFailure(f"invoice {invoice} is already in the ledger", effect="none")
        row = io.StringIO()
        values = (invoice, vendor, amount_cents, ACCOUNTING_DAY, context.idempotency_key()[:16])
        csv.DictWriter(row, LEDGER_COLUMNS, lineterminator="\n").writerow(dict(zip(LEDGER_COLUMNS, values, strict=True)))
        with desk.ledger.open("a", encoding="utf-8") as ledger:
            ledger.write(row.getvalue())
            ledger.flush()
            os.fsync(ledger.fileno())
        return f"paid {invoice}"

    @tool(on_crash="rerun")
    def write_report(text: str) -> str:
        """Write the report, in place of an earlier one.

        Args:
            text: The report, in Markdown.
        """
        desk.report.write_text(text, encoding="utf-8")
        return f"wrote {desk.report.name}"

    return (pay_invoice, write_report, fetch_page)


class PaymentPolicy(AgentExtension):
    """Vetoes a payment that the policy holds for a person, before the handler can start."""

    priority = 50

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.name == "pay_invoice":
            vendor, amount_cents = call.arguments.get("vendor"), call.arguments.get("amount_cents")
            # What cannot be judged is not let through; the arguments were coerced before this layer sees them.
            if not isinstance(vendor, str) or not isinstance(amount_cents, int) or not allowed(vendor, amount_cents):
                raise PermissionError(f"the policy holds a payment of {amount_cents} cents to {vendor} for a person")
        return await call_next()
