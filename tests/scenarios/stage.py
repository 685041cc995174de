"""Where a scenario is played: tools that say what they did, and layers of every kind of behaviour."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from interlock import AlreadyDelegated, Fatal, Stop, Tool, ToolFailure, tool
from interlock.extensions.base import AgentExtension, extension
from interlock.messages import SystemMessage

from .words import Words


class Stage:
    """What happened in one play. bodies: every request as the model received it. ran: every start of a handler.

    log: what layers and handlers said they did, in order.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.bodies: list[dict[str, Any]] = []
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.log: list[str] = []
        self.spans: list[tuple[float, float]] = []
        self.faults: list[BaseException] = []
        self.running = asyncio.Event()
        self._gates: dict[str, asyncio.Event] = {}
        self._loop = asyncio.get_running_loop()

    def gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def start(self, name: str, **arguments: Any) -> None:
        """A handler's first line; from any thread."""
        self.ran.append((name, arguments))
        self.log.append(f"run {name}")
        self._loop.call_soon_threadsafe(self.running.set)

    def tool(self, name: str) -> Tool:
        return tool(getattr(Handlers(self), name), name=self.words.tool(name), parallel=not name.startswith("serial_"))


class Handlers:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._both = threading.Barrier(2)

    async def charge(self, amount: int) -> str:
        """Charge the card."""
        self._stage.start("charge", amount=amount)
        return f"charged {amount}"

    async def add(self, a: int, b: int) -> str:
        """Add."""
        self._stage.start("add", a=a, b=b)
        return f"sum={a + b}"

    async def ping(self) -> str:
        """Ping."""
        self._stage.start("ping")
        return "pong"

    async def boom(self, x: int) -> str:
        """Explode."""
        self._stage.start("boom", x=x)
        fault = ValueError("BOOM-42 handler failed")
        self._stage.faults.append(fault)
        raise fault

    def sync_boom(self, x: int) -> str:
        """Explode in a thread."""
        self._stage.start("sync_boom", x=x)
        raise ValueError("BOOM-42 handler failed")

    async def meet(self, who: str) -> str:
        """Come back only when another call of this tool runs as well."""
        stage = self._stage
        stage.start("meet", who=who)
        if sum(name == "meet" for name, _ in stage.ran) == 2:
            stage.gate("met").set()
        await stage.gate("met").wait()
        return f"{who} met"

    def sync_meet(self, who: str) -> str:
        """The same in threads."""
        self._stage.start("sync_meet", who=who)
        self._both.wait(5)
        return f"{who} met"

    async def long_job(self, x: int) -> str:
        """A job that never ends by itself."""
        self._stage.start("long_job", x=x)
        try:
            await asyncio.Event().wait()
        finally:
            self._stage.log.append("long_job left")
        return "done"

    async def gated(self, x: int) -> str:
        """A job that ends when the gate ``job`` opens."""
        self._stage.start("gated", x=x)
        await self._stage.gate("job").wait()
        return f"job {x} done"

    async def serial_gated(self, x: int) -> str:
        """The same, but nothing runs beside it."""
        return await self.gated(x)

    async def cancels_itself(self, x: int) -> str:
        """Raise CancelledError."""
        self._stage.start("cancels_itself", x=x)
        raise asyncio.CancelledError("by itself")

    async def exits(self, x: int) -> str:
        """Raise SystemExit."""
        self._stage.start("exits", x=x)
        raise SystemExit(3)

    async def interrupts(self, x: int) -> str:
        """Raise KeyboardInterrupt."""
        self._stage.start("interrupts", x=x)
        raise KeyboardInterrupt("ctrl-c")

    async def fatal(self, x: int) -> str:
        """Raise Fatal."""
        self._stage.start("fatal", x=x)
        raise Fatal("FATAL-1")

    async def declines(self, x: int) -> str:
        """Say what to fix."""
        self._stage.start("declines", x=x)
        raise ToolFailure("give a smaller x", effect="none")

    async def unspeakable(self, x: int) -> object:
        """Return what no text can stand for."""
        self._stage.start("unspeakable", x=x)
        return {"lock": threading.Lock()}

    async def big(self, x: int) -> str:
        """Return 5 MB."""
        self._stage.start("big", x=x)
        return "z" * (5 * 2**20)


Layer = Callable[[Stage], AgentExtension]


class LayerBug(RuntimeError):
    """A mistake in a layer."""


def on_tool(name: str, hook: Callable[..., Any], *, only: str | None = None) -> Layer:
    """A layer around tool calls. hook: ``async (stage, context, call, call_next)``. only: the one tool that it looks at."""

    def make(stage: Stage) -> AgentExtension:
        async def on_tool_call(context: Any, call: Any, call_next: Any) -> Any:
            if only is not None and call.name != stage.words.tool(only):
                return await call_next()
            return await hook(stage, context, call, call_next)

        return extension(on_tool_call, name=name)

    return make


async def _passes(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
    return await call_next()


PASSES = on_tool("passes", _passes)


def logs(name: str, **only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        stage.log.append(f"before {name}")
        try:
            return await call_next()
        finally:
            stage.log.append(f"after {name}")

    return on_tool(name, hook, **only)


def vetoes(text: str = "VETO-77 denied by policy", **only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        raise PermissionError(stage.words.text(text))

    return on_tool("vetoes", hook, **only)


def answers(text: str = "VETO-77 denied by policy", **only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        return stage.words.text(text)

    return on_tool("answers", hook, **only)


def stops(text: str, **only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        await call_next()
        return Stop(stage.words.text(text))

    return on_tool("stops", hook, **only)


def raises_after(**only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        await call_next()
        raise LayerBug("LAYER-BUG-99 after delegation")

    return on_tool("raises_after", hook, **only)


def sees_errors(**only: Any) -> Layer:
    """Passes, and keeps the exception objects that reach it."""

    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception as error:
            stage.faults.append(error)
            raise

    return on_tool("sees_errors", hook, **only)


def replaces_errors(**only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ValueError as error:
            raise LayerBug("LAYER-BUG-98 while handling") from error

    return on_tool("replaces_errors", hook, **only)


def swallows(text: str = "FALLBACK-55", **only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception:
            return stage.words.text(text)

    return on_tool("swallows", hook, **only)


def edits(arguments: Mapping[str, Any], **only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        call.arguments = {**call.arguments, **arguments}
        return await call_next()

    return on_tool("edits", hook, **only)


def wraps(**only: Any) -> Layer:
    async def hook(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
        return f"TRANSFORMED<{await call_next()}>"

    return on_tool("wraps", hook, **only)


async def _again(stage: Stage, call_next: Any) -> None:
    try:
        await call_next()
        stage.log.append("second call ran")
    except AlreadyDelegated:
        stage.log.append("second call refused")


async def _twice(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
    value = await call_next()
    await _again(stage, call_next)
    return value


async def _races(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
    """Two at once; only one gets through."""
    results = await asyncio.gather(call_next(), call_next(), return_exceptions=True)
    stage.log.append(f"{sum(isinstance(result, AlreadyDelegated) for result in results)} refused")
    return next(result for result in results if not isinstance(result, AlreadyDelegated))


async def _after_a_fault(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
    """A retry, as one would write it elsewhere."""
    try:
        return await call_next()
    except Exception:
        return await call_next()


async def _drops(stage: Stage, context: Any, call: Any, call_next: Any) -> Any:
    """Delegates in a task that it does not wait for."""
    task = asyncio.ensure_future(call_next())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await stage.running.wait()
    return "left early"


TWICE = on_tool("twice", _twice)
RACES = on_tool("races", _races)
RETRIES = on_tool("retries", _after_a_fault)
DROPS = on_tool("drops", _drops)


class Traces(AgentExtension):
    """A layer around model requests, as in the first example of the documentation."""

    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        request = replace(request, messages=(*request.messages, SystemMessage(content="Trace this request.")))
        async with aclosing(call_next(request)) as events:
            async for event in events:
                yield event


def TRACES(stage: Stage) -> AgentExtension:
    return Traces()


class Retries(AgentExtension):
    """Asks the model once more itself when the exchange fails."""

    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        try:
            async for event in call_next(request):
                yield event
        except Exception:
            async for event in call_next(request):
                yield event


def ASKS_AGAIN(stage: Stage) -> AgentExtension:
    return Retries()
