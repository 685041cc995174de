"""The checks of ``check_extension``: each yields what is wrong, in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Fatal, ToolFailure
from ..extensions.base import AgentExtension, Suspended
from ..model import ModelRequest, ModelResponse
from .extension_bench import EVENTS, Came, Context, Inside, Source, entered, invocation, streamed


@dataclass(frozen=True, kw_only=True)
class Bench:
    """factory: makes the extension anew. calls: what is asked for. deps: of the context. wait_s: how long a layer may take."""

    factory: Callable[[], AgentExtension]
    calls: Sequence[tuple[Any, dict[str, Any]]]
    deps: Any
    changes_streams: bool
    wait_s: float

    def context(self, extension: AgentExtension, session_id: str = "one") -> Context:
        return Context(extension, session_id, self.deps)

    async def once(self, number: int, **inside: Any) -> tuple[Came, Inside]:
        """One call through a new instance."""
        extension = self.factory()
        context = self.context(extension)
        inner = Inside(invocation(number, self.calls[number], context), **inside)
        return await self.timed(entered(extension, context, inner)), inner

    async def timed(self, awaitable: Awaitable[Any]) -> Any:
        return await asyncio.wait_for(awaitable, self.wait_s)


Findings = AsyncIterator[str]


# ---- around a tool call ----------------------------------------------------------------------------------


async def goes_through_once(bench: Bench) -> Findings:
    """Whatever the handler does, the layer delegates at most once."""
    for number in range(len(bench.calls)):
        for raises in (None, ToolFailure("it does not work"), OSError("the line broke"), TimeoutError()):
            _, inside = await bench.once(number, raises=raises)
            if inside.entered > 1:
                when = "" if raises is None else f" after the handler raised {type(raises).__name__}"
                yield f"call_next is awaited {inside.entered} times{when}: the second runs nothing and raises AlreadyDelegated"
                return


async def ends_with_its_call(bench: Bench) -> Findings:
    """What the layer started is over when the layer is."""
    for number in range(len(bench.calls)):
        before = asyncio.all_tasks()
        _, inside = await bench.once(number, turns=3)
        running = inside.running
        for _ in range(5):
            await asyncio.sleep(0)
        if inside.late or running:
            yield "the layer returned before what it had called did, or called it afterwards: await call_next() before you return"
        left = asyncio.all_tasks() - before
        if left:
            yield f"{len(left)} task(s) of the layer are still running after its call"
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=bench.wait_s)
        if inside.late or running or left:
            return


async def says_honestly_what_happened(bench: Bench) -> Findings:
    """A veto has a reason and comes before the call; the result of a call that was executed is not lost."""
    for number in range(len(bench.calls)):
        came, inside = await bench.once(number)
        error = came.error
        if isinstance(error, Fatal):
            continue
        if not inside.entered:
            if error is not None and not isinstance(error, Exception):
                yield f"a veto must be an Exception with a reason: {type(error).__name__} looks like a cancelled run"
            elif error is not None and not str(error).strip():
                yield f"the veto has no reason: give {type(error).__name__} a text, which the model is told"
            elif error is None and came.value is None:
                yield "the layer neither delegates nor answers: it returned None (is 'return await call_next()' missing?)"
        elif error is not None:
            yield f"the handler had completed, and the layer {came.said()}: that is no veto, and the model is told that the call failed"
        elif isinstance(came.value, Suspended):
            yield "the layer asks a person after the call was executed: return Suspended before call_next"
        elif came.value is None:
            yield "the layer loses the result: the handler returned something, and the layer None (is a 'return' missing?)"


async def lets_a_cancellation_pass(bench: Bench) -> Findings:
    """A call that is cancelled ends with CancelledError, in every layer, and nothing of it goes on."""
    for number in range(len(bench.calls)):
        extension = bench.factory()
        context = bench.context(extension)
        inside = Inside(invocation(number, bench.calls[number], context), hangs=True)
        task = asyncio.create_task(entered(extension, context, inside))
        begun = asyncio.create_task(inside.begun.wait())
        await asyncio.wait({task, begun}, timeout=bench.wait_s, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if not inside.entered:
            task.cancel()
            await asyncio.wait({task}, timeout=bench.wait_s)
            continue
        task.cancel()
        await asyncio.wait({task}, timeout=bench.wait_s)
        if not task.done():
            yield f"a cancelled call did not end within {bench.wait_s:g} s"
            return
        came = Came(error=asyncio.CancelledError()) if task.cancelled() else task.result()
        if not isinstance(came.error, asyncio.CancelledError):
            yield f"the layer swallowed a cancellation: it {came.said()} instead of letting CancelledError pass"
        if inside.running:
            yield "the call was cancelled, and what the layer had called goes on"
        if not isinstance(came.error, asyncio.CancelledError) or inside.running:
            return


async def serves_many_at_once(bench: Bench) -> Findings:
    """One instance, two sessions, parallel calls: each call ends as it does alone."""
    asked = [(session, number) for session in ("one", "two") for number in range(len(bench.calls))]

    def inside(context: Context, session: str, number: int, turns: int) -> Inside:
        return Inside(invocation(number, bench.calls[number], context), gives=f"result of {number} in {session}", turns=turns)

    async def alone(session: str, number: int) -> tuple[str, Any]:
        extension = bench.factory()
        context = bench.context(extension, session)
        inner = inside(context, session, number, 1)
        came = await bench.timed(entered(extension, context, inner))
        return came.said(), inner.arguments

    first = [await alone(*one) for one in asked]
    if first != [await alone(*one) for one in asked]:
        return  # it is not the same twice, even alone: nothing can be compared
    extension = bench.factory()
    contexts = {session: bench.context(extension, session) for session in ("one", "two")}
    inner = [inside(contexts[session], session, number, 2 + 3 * place % 5) for place, (session, number) in enumerate(asked)]
    entries = [entered(extension, contexts[session], one) for (session, _), one in zip(asked, inner, strict=True)]
    came = await bench.timed(asyncio.gather(*entries))
    for (session, number), expected, found, one in zip(asked, first, came, inner, strict=True):
        if (found.said(), one.arguments) != expected:
            yield (
                f"call {number} of session {session!r} alone {expected[0]}, with {expected[1]}; beside others it {found.said()}, with "
                f"{one.arguments}: keep what belongs to a call in local variables, and what belongs to a session in fold"
            )
            return


# ---- around a model request ------------------------------------------------------------------------------


async def passes_streams_through(bench: Bench) -> Findings:
    """What the provider streams comes out as it is and when it comes, with exactly one response, the last."""
    extension, source = bench.factory(), Source()
    out: list[Any] = []
    ahead = 0
    stream = streamed(extension, bench.context(extension), source)
    try:
        async with asyncio.timeout(bench.wait_s):
            async for event in stream:
                ahead = source.given if not out else ahead
                out.append(event)
    except Exception as error:
        yield f"the layer raised {type(error).__name__} on an ordinary request: {error}"
        return
    finally:
        await stream.aclose()
    responses = [place for place, event in enumerate(out) if isinstance(event, ModelResponse)]
    if responses != [len(out) - 1]:
        yield f"a stream ends with exactly one ModelResponse; this one has {len(responses)}, among {len(out)} events"
    if any(not isinstance(request, ModelRequest) for request in source.asked):
        yield "call_next was given something else than a ModelRequest"
    if bench.changes_streams:
        return
    if out != list(EVENTS):
        place = next((n for n, (a, b) in enumerate(zip(out, EVENTS, strict=False)) if a != b), min(len(out), len(EVENTS)))
        found = repr(out[place]) if place < len(out) else "nothing more"
        expected = repr(EVENTS[place]) if place < len(EVENTS) else "nothing more"
        yield f"the stream is changed at event {place}: {found} instead of {expected} (changes_streams=True says that this is meant)"
    elif ahead > 1:
        yield f"the stream is held back: the first event came out when {ahead} had come in (changes_streams=True says that this is meant)"


async def closes_its_stream(bench: Bench) -> Findings:
    """When the consumer leaves, the layer ends, and so does what it had opened."""
    extension, source = bench.factory(), Source()
    stream = streamed(extension, bench.context(extension), source)
    try:
        await bench.timed(anext(stream))
        await bench.timed(stream.aclose())
    except RuntimeError as error:
        yield f"the layer goes on when its stream is closed ({error}): do not yield in 'except GeneratorExit' or 'finally'"
        return
    except (StopAsyncIteration, TimeoutError) as error:
        yield f"the stream could not be read and closed ({type(error).__name__})"
        return
    except Exception:
        return  # said by another check
    if source.open:
        yield "the inner stream is not closed with the layer's own: read it in 'async with aclosing(call_next(request)) as events'"


async def lets_a_cancelled_stream_end(bench: Bench) -> Findings:
    """A model step that is cancelled ends with CancelledError."""
    extension, source = bench.factory(), Source(hangs_after=2)
    stream = streamed(extension, bench.context(extension), source)
    out: list[Any] = []

    async def read() -> None:
        async for event in stream:
            out.append(event)

    task = asyncio.create_task(read())
    for _ in range(20):
        await asyncio.sleep(0)
    if task.done():
        task.exception()
        return  # it has another source, or failed: said by another check
    task.cancel()
    await asyncio.wait({task}, timeout=bench.wait_s)
    if not task.done():
        yield f"a cancelled model step did not end within {bench.wait_s:g} s"
    elif not task.cancelled():
        error = task.exception()
        how = "ended as if nothing had been" if error is None else f"raised {type(error).__name__}"
        yield f"the layer swallowed a cancellation: the stream {how} instead of letting CancelledError pass"
    await stream.aclose()


async def streams_many_at_once(bench: Bench) -> Findings:
    """One instance, two sessions: each stream is as it is alone."""

    async def read(extension: AgentExtension, session: str) -> list[Any]:
        events = [event.__class__(f"{session}: {event.text}") if hasattr(event, "text") else event for event in EVENTS]  # type: ignore[union-attr]
        out: list[Any] = []
        stream = streamed(extension, bench.context(extension, session), Source(events))
        try:
            async for event in stream:
                out.append(event)
        except Exception as error:
            out.append(f"{type(error).__name__}: {error}")
        finally:
            await stream.aclose()
        return out

    alone = [await bench.timed(read(bench.factory(), session)) for session in ("one", "two")]
    if alone != [await bench.timed(read(bench.factory(), session)) for session in ("one", "two")]:
        return
    extension = bench.factory()
    if list(await bench.timed(asyncio.gather(read(extension, "one"), read(extension, "two")))) != alone:
        yield "two streams at once are not what each is alone: keep what belongs to a stream in local variables"
