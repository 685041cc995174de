"""The agent's side of the crash demo. Each life is a process of its own: it opens the session and goes on, until it is done or dead.

``python -m`` of this module is their nursery: it has everything imported, forks a life for each line of JSON on its standard input,
and says on its standard output which process that is, and later how it ended. A life reports in lines of JSON over a socket; after
one that says where it is ``at`` it stands still until it hears ``go``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, cast
from urllib.parse import quote

from ...agent import Agent, AgentRunConfig
from ...errors import NothingToResume, ToolFailure
from ...extensions.base import AgentExtension, CallNext, ModelNext, RunContext, ToolInvocation
from ...messages.arguments import parse_arguments
from ...model import ModelEvent, ModelRequest, ModelResponse
from ...providers.openai import OpenAIChatModel
from ...records import ModelStepEnded, Record, ToolStepEnded
from ...tools import Reconciled, Tool, did_not_happen, happened, tool
from .crash_bank import ask

PAYING = ("transfer", "send_cheque")


class Line:
    """The way to the parent. Without the parent a life ends where it next reports, and says nothing to anybody."""

    def __init__(self, port: int) -> None:
        try:
            self._socket = socket.create_connection(("127.0.0.1", port))
        except OSError:
            os._exit(1)
        self._heard = self._socket.makefile("rb")

    def say(self, what: str, **more: Any) -> None:
        try:
            self._socket.sendall(json.dumps({"what": what, **more}).encode() + b"\n")
        except OSError:
            os._exit(1)

    def stand_still(self, place: str, invoices: list[str]) -> None:
        """The whole process waits, so that what it has not stored stays so."""
        self.say("at", place=place, invoices=invoices)
        try:
            heard = self._heard.readline()
        except OSError:
            heard = b""
        if not heard:
            os._exit(1)


def bank_tools(port: int, say: Callable[..., None]) -> tuple[Tool, ...]:
    """Two ways to pay, and the statement. What a crash in the middle means is different for each."""

    async def pay(context: RunContext, method: str, invoice: str, amount_cents: int) -> str:
        order = {"invoice": invoice, "amount_cents": amount_cents, "method": method, "key": context.idempotency_key(), "pid": os.getpid()}
        try:
            await ask(port, {"pay": order})
        except ConnectionError as error:
            raise ToolFailure(f"the bank cannot be reached: {error}") from error
        return f"paid {invoice}"

    async def became(key: str, arguments: dict[str, Any]) -> Reconciled:
        """Asked after a crash, before anything else is done. The bank knows every order by its key."""
        booked = await ask(port, {"became": key})
        say("asked", invoice=arguments["invoice"], booked=booked)
        return happened(f"paid {arguments['invoice']}") if booked else did_not_happen()

    # The bank can be asked: so a payment that it never booked may be started again, and one that it has booked is done.
    @tool(parallel=False, on_crash="rerun", reconcile=became)
    async def transfer(context: RunContext, invoice: str, amount_cents: int) -> str:
        """Pay an invoice by bank transfer.

        Args:
            invoice: Its number.
            amount_cents: The whole amount, in cents.
        """
        return await pay(context, "transfer", invoice, amount_cents)

    # Nobody can be asked about a cheque: after a crash in the middle its effect is unknown, and the model must find out.
    @tool(parallel=False, on_crash="report")
    async def send_cheque(context: RunContext, invoice: str, amount_cents: int) -> str:
        """Pay an invoice by cheque.

        Args:
            invoice: Its number.
            amount_cents: The whole amount, in cents.
        """
        return await pay(context, "cheque", invoice, amount_cents)

    @tool(on_crash="rerun")
    async def read_statement() -> str:
        """The invoices whose cheques have been sent, one a line."""
        return "\n".join(await ask(port, {"statement": True})) or "(none)"

    return (transfer, send_cheque, read_statement)


class Witness(AgentExtension):
    """Says where the process is, and what was recorded. Outermost, so that nothing is done behind its back."""

    priority = -200

    def __init__(self, line: Line) -> None:
        self._line = line

    async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: ModelNext) -> AsyncIterator[ModelEvent]:
        response: ModelResponse | None = None
        async for event in call_next(request):
            if isinstance(event, ModelResponse):
                response = event
            yield event
        if response is not None:
            calls = response.message.tool_calls
            self._line.stand_still("model", [parse_arguments(call.arguments)["invoice"] for call in calls if call.name in PAYING])

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.name not in PAYING:
            return await call_next()
        invoice = str(call.arguments.get("invoice"))
        self._line.stand_still("onion", [invoice])
        value = await call_next()
        self._line.stand_still("returned", [invoice])
        return value

    def fold(self, memory: Any, record: Record) -> Any:
        """Which call is about which invoice, over all lives."""
        if not isinstance(record, ModelStepEnded):
            return memory
        calls, known = record.message.tool_calls, cast("dict[str, str]", memory or {})
        return {**known, **{call.id: parse_arguments(call.arguments).get("invoice", "") for call in calls}}

    def on_record(self, context: RunContext, record: Record) -> None:
        if isinstance(record, ToolStepEnded):
            message = record.message
            invoice = context.memory[message.tool_call_id]
            self._line.say("settled", name=message.name, invoice=invoice, effect=record.effect, by=record.decided_by)


async def live(order: dict[str, Any]) -> None:
    line = Line(order["control"])
    async with await Agent.create(
        OpenAIChatModel("scripted-clerk", base_url=order["base_url"], api_key="none"),
        config=AgentRunConfig(session_id=order["session"]),
        tools=bank_tools(order["bank"], line.say),
        extensions=[Witness(line)],
        journal=f"sqlite:///{quote(order['journal'])}",
    ) as agent:
        try:
            plan = await agent.explain()
        except NothingToResume:
            line.say("starts")
            result = await agent.run(order["prompt"])
        else:
            open_calls = [{"what": call.what, "name": call.call.name, "arguments": call.call.arguments} for call in plan.run.calls]
            line.say("resumes", calls=open_calls)
            result = await agent.resume()
    line.say("result", outcome=result.outcome.name, text=result.text)


def nursery() -> None:
    """Fork a life for each order, one after the other, until there are no more orders."""
    bank_tools(0, print)  # their schemas load what a tool needs; nothing is called
    while order := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            _live_and_die(json.loads(order))
        try:
            print(pid, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        except BrokenPipeError:
            os._exit(1)  # nobody is left who would read it


def _live_and_die(order: dict[str, Any]) -> NoReturn:
    """In the child. Files, threads and the event loop are all made after the fork."""
    try:
        asyncio.run(live(order))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    nursery()
