"""The layers of a simulated world: what each does with a call or a request is in the script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ...errors import Fatal, ProviderError, ToolFailure
from ...extensions.base import AgentExtension, CallNext, ModelNext, RunContext, Stop, Suspended, ToolInvocation
from ...messages import AssistantMessage, StopReason
from ...model import ModelEvent, ModelRequest, ModelResponse
from ...model import Stop as Stopped
from ...records import ExtensionNoted, Record
from ...records.redaction import with_texts
from .script import SECRET
from .tools import look_at, number_of, process_of


class Vetoed(Exception):
    """A layer forbids a call."""


class LayerError(Exception):
    """A layer fails after it has delegated."""


class SimLayer(AgentExtension):
    """One layer around every tool call. index: its place, from 0 at the outside."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.priority = 100 + index
        self.name = f"layer-{index}"

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        process = process_of(context)
        number = call.original_arguments.get("number", number_of(call.id))
        planned = process.world.script.call(number)
        behaviour = planned.layers[self.index] if self.index < len(planned.layers) else "pass"
        if behaviour == "change" and not planned.secret and process.world.has_entered(number, self.index):
            call.arguments = {**call.arguments, "secret": ""}  # what it is by default: other arguments, the same call
        process.entered(number, self.index, behaviour, arguments=call.arguments_text(), answered=context.answer is not None)
        return await _BEHAVIOUR[behaviour](context, number, call_next)


async def _pass(context: RunContext, number: int, call_next: CallNext) -> Any:
    return await call_next()


async def _veto(context: RunContext, number: int, call_next: CallNext) -> Any:
    raise Vetoed("not today")


async def _raise_after(context: RunContext, number: int, call_next: CallNext) -> Any:
    await call_next()
    raise LayerError("it was done, and then this broke")


async def _swallow(context: RunContext, number: int, call_next: CallNext) -> Any:
    try:
        return await call_next()
    except Exception:
        return "all is well"


async def _twice(context: RunContext, number: int, call_next: CallNext) -> Any:
    await call_next()
    return await call_next()


async def _race(context: RunContext, number: int, call_next: CallNext) -> Any:
    first, second = await asyncio.gather(call_next(), call_next(), return_exceptions=True)
    return second if isinstance(first, BaseException) else first


async def _drop(context: RunContext, number: int, call_next: CallNext) -> Any:
    return "answered without asking"


async def _suspend(context: RunContext, number: int, call_next: CallNext) -> Any:
    if context.answer is None:
        return Suspended(f"may {number} run?", expires_s=process_of(context).world.script.expires_s)
    if context.answer is False:
        raise Vetoed("the person said no")
    return await call_next()


async def _cancel(context: RunContext, number: int, call_next: CallNext) -> Any:
    task = asyncio.ensure_future(call_next())
    task.add_done_callback(look_at)
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return "it took too long"


async def _stop(context: RunContext, number: int, call_next: CallNext) -> Any:
    return Stop("that is enough")


async def _fatal(context: RunContext, number: int, call_next: CallNext) -> Any:
    raise Fatal("stop everything")


async def _fail(context: RunContext, number: int, call_next: CallNext) -> Any:
    return ToolFailure("not like this")


async def _leave(context: RunContext, number: int, call_next: CallNext) -> Any:
    task = asyncio.ensure_future(call_next())
    task.add_done_callback(look_at)
    for _ in range(2):
        await asyncio.sleep(0)
    return "left early"


async def _nest(context: RunContext, number: int, call_next: CallNext) -> Any:
    script = process_of(context).world.script
    nested = script.call(number).nested
    if nested is not None:
        await context.call_tool(script.call(nested).tool, {"number": nested})
    return await call_next()


_BEHAVIOUR = {
    "pass": _pass,
    "veto": _veto,
    "raise_after": _raise_after,
    "swallow": _swallow,
    "twice": _twice,
    "race": _race,
    "drop": _drop,
    "suspend": _suspend,
    "cancel": _cancel,
    "stop": _stop,
    "fatal": _fatal,
    "fail": _fail,
    "leave": _leave,
    "nest": _nest,
    "change": _pass,
}


class SimModelLayer(AgentExtension):
    """A layer around every request."""

    async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: ModelNext) -> AsyncGenerator[ModelEvent, None]:
        behaviour = process_of(context).world.reply_ahead().layer
        match behaviour:
            case "raise":
                raise LayerError("before the request")
            case "drop":
                yield _response("answered without a model")
                return
            case "retry":
                try:
                    async for event in call_next(request):
                        yield event
                except ProviderError:
                    async for event in call_next(request):
                        yield event
                return
            case "again":  # the first answer is thrown away
                async for _ in call_next(request):
                    pass
            case _:
                pass
        async for event in call_next(request):
            yield event
        if behaviour == "raise_after":
            raise LayerError("after the response")


class Discreet(AgentExtension):
    """Takes the secrets of calls out of every record."""

    def redact(self, record: Record) -> Record:
        return with_texts(record, lambda text: "[taken out]" if text.startswith(SECRET) else text.replace(SECRET, "[taken out]"))


class Noter(AgentExtension):
    """Takes a note at the records of some types."""

    def __init__(self, noted: tuple[str, ...]) -> None:
        self.noted = frozenset(noted)

    def on_record(self, context: RunContext, record: Record) -> None:
        if type(record).__name__ in self.noted and not isinstance(record, ExtensionNoted):
            context.note({"at": type(record).__name__})

    def fold(self, memory: Any, record: Record) -> Any:
        return (memory or 0) + 1 if isinstance(record, ExtensionNoted) else memory


def _response(text: str) -> ModelResponse:
    return ModelResponse(message=AssistantMessage(content=text), stop=Stopped(StopReason.STOP))
