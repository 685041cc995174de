"""The model's part, played by a script: it sees exactly what a model would see, the request's body, and decides from that alone.

It is as careless as a model: it tries to pay what the policy holds, announces a plan instead of carrying it out, asks for an address inside
the house, sends half a payment, sends one twice and two under one id, misreads an amount, and breaks off in the middle of its report. Where
the seed says so it also narrates, says nothing, sends broken JSON, or answers with an error.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...messages.arguments import MalformedArguments, parse_arguments
from ...testing import Step, call, calls, cut, error, text
from .world import cents, euros

# 169.254.169.254, where clouds keep a machine's credentials, written as one number.
DISGUISED = "http://2852039166/latest/meta-data/"
FAULTS = ("narration", "cut", "malformed", "overload", "empty")
STAGES = ("read", "pay", "report", "answer")


class Seen(NamedTuple):
    """One tool call and its result, as the transcript shows them."""

    name: str
    arguments: dict[str, Any]
    result: str


class Clerk:
    """Called with each request's body. Every seed's slips happen once each, at their stage; the faults of a seed come on top of them:
    three neighbours in FAULTS, each at a stage of its own, once."""

    def __init__(self, *, seed: int) -> None:
        stages = random.Random(f"faults {seed}").sample(STAGES, 3)
        self._faults: dict[str, str] = {stage: FAULTS[(seed + place) % len(FAULTS)] for place, stage in enumerate(stages)}
        self._slips: dict[str, list[str]] = {"look": ["plan"], "pay": ["url", "half", "repeat"], "report": ["cut"]}

    def __call__(self, body: Mapping[str, Any]) -> Step:
        seen = seen_in(body["messages"])
        stage, step = _next(seen)
        if fault := self._faults.pop(stage, None):
            return _faulty(fault, seen)
        if slips := self._slips.get(stage):
            return _slip(slips.pop(0), seen)
        return step


def _faulty(fault: str, seen: list[Seen]) -> Step:
    match fault:
        case "narration":
            return text("Let me do that now.", finish="tool_calls")
        case "cut":
            return cut(after="The work is going well, and next I am about to")
        case "malformed":
            return calls(call(f"call-{len(seen)}", "write_report", '{"text": "# Repo'))
        case "empty":
            return text("")
        case _:
            return error(503, "overloaded")


def _slip(slip: str, seen: list[Seen]) -> Step:
    match slip:
        case "plan":
            plan = "My plan: I list the desk, read the policy, the ledger and every invoice, pay what is due, and write the report."
            return text(plan, finish="tool_calls")
        case "url":
            return _calls(seen, "fetch_page", [{"url": DISGUISED}], before="One vendor is new to me; I look it up first.")
        case "half":
            first = _due(seen)[0]["Invoice"]
            return calls(call(f"call-{len(seen)}", "pay_invoice", f'{{"invoice": "{first}", "vendor": "'), finish="length")
        case "cut":
            return cut(after="The desk is in order, and I am about to write")
        case _:
            return _careless_payments(seen)


def _careless_payments(seen: list[Seen]) -> Step:
    """Every payment, the first one twice, the first two under one id, and one amount with a digit too few."""
    listed = _files(seen)["policy.md"].split("## Vendors")[1]
    payments = [_payment(invoice) for invoice in _due(seen)]
    payments.sort(key=lambda payment: (payment["vendor"] not in listed, payment["amount_cents"]))
    misread, *payments = payments
    payments.append({**misread, "amount_cents": misread["amount_cents"] // 10})
    same = f"call-{len(seen)}"
    made = [call(same if place < 2 else f"{same}-{place}", "pay_invoice", payment) for place, payment in enumerate(payments)]
    return calls(made[0], *made, before="These are due.")


def _next(seen: list[Seen]) -> tuple[str, Step]:
    """What an honest, careless clerk does next."""
    done = {name for name, _, result in seen if not result.startswith("Tool error")}
    if "list_files" not in done:
        return "look", _calls(seen, "list_files", [{"path": ".", "recursive": True}], before="I will look at the desk first.")
    if "read_file" not in done:
        files = [line.split(" (")[0] for line in _result(seen, "list_files").splitlines() if line.endswith("bytes)")]
        wanted = [file for file in files if file.endswith((".txt", ".md", ".csv"))]
        return "read", _calls(seen, "read_file", [{"path": file} for file in wanted])
    due = _due(seen)
    tried = {arguments["invoice"]: result for name, arguments, result in seen if name == "pay_invoice" and "invoice" in arguments}
    # What was refused for a wrong amount is tried again; what was vetoed is not.
    missing = [invoice for invoice in due if (number := invoice["Invoice"]) not in tried or f"invoice {number} says" in tried[number]]
    if missing:
        return "pay", _calls(seen, "pay_invoice", [_payment(invoice) for invoice in missing], before="These are due.")
    if "write_report" not in done:
        return "report", _calls(seen, "write_report", [{"text": _report(due, tried)}])
    paid = sum(not result.startswith("Tool error") for result in tried.values())
    held = len(tried) - paid
    return "answer", text(f"I paid {paid} invoices and left {held} for a person. The report is in report.md.")


def _calls(seen: list[Seen], name: str, each: list[dict[str, Any]], *, before: str = "") -> Step:
    """One call of ``name`` for each dictionary of arguments, with ids that the transcript has not seen."""
    return calls(*(call(f"call-{len(seen) + place}", name, arguments) for place, arguments in enumerate(each)), before=before)


def _payment(invoice: dict[str, str]) -> dict[str, Any]:
    amount = cents(invoice["Amount"].removesuffix(" EUR"))
    return {"invoice": invoice["Invoice"], "vendor": invoice["Vendor"], "amount_cents": amount}


def _due(seen: list[Seen]) -> list[dict[str, str]]:
    """The invoices that are due and not in the ledger, from the files as they were read."""
    files = _files(seen)
    day = next(line for line in files["policy.md"].splitlines() if line.startswith("Accounting day: ")).split(": ")[1]
    ledger = {row["invoice"] for row in csv.DictReader(files["ledger.csv"].splitlines())}
    invoices = [dict(line.split(": ", 1) for line in files[path].splitlines()) for path in sorted(files) if path.startswith("invoices/")]
    return [invoice for invoice in invoices if invoice["Due"] <= day and invoice["Invoice"] not in ledger]


def _files(seen: list[Seen]) -> dict[str, str]:
    return {str(arguments.get("path")): result for name, arguments, result in seen if name == "read_file"}


def _report(due: list[dict[str, str]], tried: Mapping[Any, str]) -> str:
    paid = [invoice for invoice in due if not tried[invoice["Invoice"]].startswith("Tool error")]
    lines = ["# Report", "", "| invoice | vendor | amount | |", "|---|---|---|---|"]
    for invoice in due:
        word = "paid" if invoice in paid else "held for a person"
        lines.append(f"| {invoice['Invoice']} | {invoice['Vendor']} | {invoice['Amount']} | {word} |")
    total = sum(cents(invoice["Amount"].removesuffix(" EUR")) for invoice in paid)
    return "\n".join([*lines, "", f"Paid in all: {euros(total)} EUR", ""])


def seen_in(messages: list[dict[str, Any]]) -> list[Seen]:
    """Every tool call of a conversation, in order."""
    results = {message["tool_call_id"]: str(message["content"]) for message in messages if message["role"] == "tool"}
    return [
        Seen(made["function"]["name"], _arguments(made["function"]["arguments"]), results.get(made["id"], ""))
        for message in messages
        for made in message.get("tool_calls") or ()
    ]


def _arguments(raw: str) -> dict[str, Any]:
    try:
        return parse_arguments(raw)
    except MalformedArguments:
        return {}


def _result(seen: list[Seen], name: str) -> str:
    return next(result for tool, _, result in reversed(seen) if tool == name)
