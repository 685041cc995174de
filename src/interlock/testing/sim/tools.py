"""The tools of a simulated world, and those of a user in it: the world counts each start."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...errors import ToolFailure
from ...extensions.base import RunContext
from ...tools import Reconciled, Tool, as_tool, did_not_happen, happened, tool, unknown
from ...tools.context import current_tool_call_id

if TYPE_CHECKING:
    from .process import SimProcess

LINGER_S = 40.0
"""How long a handler goes on that does not stop when it is cancelled."""


here: ContextVar[SimProcess] = ContextVar("interlock_sim_process_object")
"""The process that the present code belongs to, for what gets no context."""


def process_of(context: RunContext) -> SimProcess:
    """The process in which a layer or a handler runs."""
    return context.deps


async def _handle(number: int, context: RunContext, secret: str) -> Any:
    """The body of every tool: it acts on the world once, before, after or instead of failing."""
    process = process_of(context)
    world, call = process.world, process.world.script.call(number)
    call_id, key = current_tool_call_id() or "", context.idempotency_key()
    begun = process.handler_started(number, call_id, key, epoch=context.epoch, rerun=call.tool in RERUN)
    begun.secret = secret
    try:
        if call.does == "fail_none":
            raise ToolFailure("the card was refused", effect="none")
        if call.does in ("slow", "stubborn"):
            await asyncio.sleep(0.1)
        # Where it acts, not where it starts: it may have been frozen in between.
        if context.epoch < world.fenced.get(key, 0):
            raise ToolFailure("another process has taken over", effect="none")
        begun.acted = True
        world.point(process, "after", "effect")
        if call.does != "stubborn":  # which nothing stops from here on
            await asyncio.sleep(0)
        value = await _rest_of(call.does, number, call.nested, context)
        begun.ended = "completed"
        process.say(f"completed {number}")
        return value
    except BaseException:
        begun.ended = begun.ended or "raised"
        raise


async def _rest_of(does: str, number: int, nested: int | None, context: RunContext) -> Any:
    """What a handler does after its effect."""
    match does:
        case "raise":
            raise ValueError("a bad day")
        case "fail":
            raise ToolFailure("only half of it went through")
        case "nest" if nested is not None:
            return {"nested": await context.call_tool(process_of(context).world.script.call(nested).tool, {"number": nested})}
        case "nest_left" if nested is not None:
            task = asyncio.ensure_future(context.call_tool(process_of(context).world.script.call(nested).tool, {"number": nested}))
            task.add_done_callback(look_at)
            for _ in range(3):
                await asyncio.sleep(0)
        case "stubborn":
            await _linger(LINGER_S)
        case "cancelled":
            raise asyncio.CancelledError
        case "exit":
            raise SystemExit(3)
        case "big":
            return "x" * 3000
        case _:
            pass
    return f"done {number}"


def look_at(task: asyncio.Future[Any]) -> None:
    """What comes of it is nobody's any more."""
    if not task.cancelled():
        task.exception()


async def _linger(seconds: float) -> None:
    """Sleep, whatever cancels it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


@tool
async def pay(number: int, context: RunContext, secret: str = "") -> Any:
    """Pay. Beside others; never again after a crash."""
    return await _handle(number, context, secret)


@tool(parallel=False)
async def move(number: int, context: RunContext, secret: str = "") -> Any:
    """Move. Alone; never again after a crash."""
    return await _handle(number, context, secret)


@tool(on_crash="rerun")
async def look(number: int, context: RunContext, secret: str = "") -> Any:
    """Look. Beside others; again after a crash."""
    return await _handle(number, context, secret)


@tool(on_crash="rerun", parallel=False)
async def count(number: int, context: RunContext, secret: str = "") -> Any:
    """Count. Alone; again after a crash."""
    return await _handle(number, context, secret)


@tool(timeout_s=0.5)
async def wait(number: int, context: RunContext, secret: str = "") -> Any:
    """Wait. Given up after half a second."""
    return await _handle(number, context, secret)


async def _found(key: str, arguments: dict[str, Any]) -> Reconciled:
    """What a tool says when it is asked what became of a call: the truth, unless the script has it fail.

    That nothing was done can only be said if nothing will be: from then on the world lets no older epoch act under the key.
    """
    process = here.get()
    world, call = process.world, process.world.script.call(arguments["number"])
    await asyncio.sleep(0)
    if call.does == "raise":
        raise ValueError("the ledger cannot be read")
    if call.does == "slow":
        await asyncio.sleep(3600.0)
    process.say(f"asked about {arguments['number']}")
    if any(handled.acted for handled in world.history.handled if handled.key == key):
        return happened(f"done {arguments['number']}")
    if call.does == "fail":
        return unknown("the ledger says nothing")
    world.fenced[key] = process.epoch()
    return did_not_happen()


@tool(reconcile=_found)
async def book(number: int, context: RunContext, secret: str = "") -> Any:
    """Book. Beside others; asked about after a crash, never again."""
    return await _handle(number, context, secret)


@tool(on_crash="rerun", reconcile=_found)
async def sync(number: int, context: RunContext, secret: str = "") -> Any:
    """Synchronize. Beside others; asked about after a crash, and again if nothing was done."""
    return await _handle(number, context, secret)


TOOLS: tuple[Tool, ...] = (pay, move, look, count, wait, book, sync)
RERUN = frozenset({"look", "count", "sync"})
SERIAL = frozenset({"move", "count"})


def watched(item: Any, process: SimProcess) -> Tool:
    """A tool of the user's, whose starts the world counts. A plain function runs on the loop: there are no threads here."""
    made = as_tool(item)
    inner = made.handler
    if inner is None:
        return made

    async def handler(*args: Any, **kwargs: Any) -> Any:
        call_id = current_tool_call_id() or ""
        rerun = made.traits.on_crash == "rerun"
        begun = process.handler_started(number_of(call_id), call_id, call_id, epoch=process.epoch(), rerun=rerun)
        begun.acted = True
        try:
            value = inner(*args, **kwargs)
            value = await value if inspect.isawaitable(value) else value
        except BaseException as error:
            begun.acted = not (isinstance(error, ToolFailure) and error.effect == "none")
            begun.ended = "raised"
            raise
        begun.ended = "completed"
        return value

    return replace(made, handler=handler, is_async=True)


def number_of(call_id: str) -> int:
    """The number of the call to which the model gave this id; -1 for an id that is not its own."""
    digits = call_id[1:].split(".")[0]
    return int(digits) if call_id.startswith("c") and digits.isdigit() else -1
