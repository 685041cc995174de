"""The onion: how the layers of the two boundaries are put together, and what each boundary hangs on a layer.

On the tool boundary each layer gets one ``Slot``: it enforces one delegation, finds who vetoed and who decided, and latches the values that
no outer layer may swallow. On the model boundary every stream that any layer opens is owned, and closed, by its step.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import current_task
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from ..errors import AlreadyDelegated, Fatal, UsageError
from ..messages import reason_of
from .base import Stop, Suspended, ToolInvocation

logger = logging.getLogger("interlock.tools")

Enter = Callable[[], Awaitable[Any]]


class Layer:
    """One hook of one extension, ready to be entered: its name, the bound hook, its context."""

    __slots__ = ("context", "hook", "name")

    def __init__(self, name: str, hook: Callable[..., Any], context: Any) -> None:
        self.name = name
        self.hook = hook
        self.context = context


class Chain:
    """One tool call on its way through its layers, and what became of it.

    vetoed_by: the layer that raised before delegating. decided_by: who made the value or the error that came out.
    latched: a ``Suspended`` or ``Stop`` that a layer returned. asked_about: the arguments at that moment; asked_by: that layer. fatal: a
    ``Fatal`` that came up; no layer can swallow it. said: what of a text may be logged.
    """

    __slots__ = (
        *("asked_about", "asked_by", "cut_off", "decided_by", "drain_s", "error", "fatal", "invocation", "latched", "passing"),
        *("said", "task", "value", "vetoed_by"),
    )

    def __init__(self, invocation: ToolInvocation, *, drain_s: float, said: Callable[[str], str] = str) -> None:
        self.invocation = invocation
        self.drain_s = drain_s
        self.said = said
        self.task: asyncio.Task[Any] | None = None
        """The task that the outermost layer is entered in: whoever enters says it."""
        self.cut_off = False
        """Whether a layer has left behind something that did not stop: the handler may not start any more, and what it says is no end."""
        self.vetoed_by: str | None = None
        self.decided_by = "handler"
        self.latched: Suspended | Stop | None = None
        self.asked_about = self.asked_by = ""
        self.passing: Any = _NOTHING
        """The value that comes up now and that a layer may pass on without a second look."""
        self.fatal: Fatal | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def conclude(self, value: Any, error: BaseException | None, by: str) -> None:
        """What came out of the innermost, made ``by`` the handler or the runtime; of no account once it has been cut off."""
        if not self.cut_off:
            self.value, self.error, self.decided_by = value, error, by

    def enter(self, layers: Sequence[Layer], core: Enter) -> Awaitable[Any]:
        """Go through ``layers`` to ``core``. Returns or raises what comes out of the outermost."""
        # One after the other, in plain sight: to make and to set the fields of an object of another kind costs a tenth of a layer.
        outer: Slot | None = None
        for layer in reversed((_OUTSIDE, *layers)):
            slot = Slot()
            slot.chain = self
            slot.layer = layer
            slot.inner = outer
            slot.delegated = None
            slot.running = None
            if outer is None:
                slot.core = core
            outer = slot
        assert outer is not None
        outer.hook = _OnItsStack
        return outer.call_next()


class _Nowhere(Chain):
    """Where what a layer has left behind goes on to: the call goes on without it."""

    __slots__ = ()


_OUTSIDE = Layer("the runtime", lambda *_: None, None)
"""Whoever calls the outermost layer."""


class _OnItsStack:
    cr_running = True


_EAGER = sys.version_info >= (3, 12)
"""Whether a task may begin on the stack of whoever creates it. In such a Python to ask for the current task costs next to nothing."""


class Slot:
    """One layer's place in one call.

    The layer's ``call_next`` runs what is further in: the next layer's hook and what is to be concluded from how that ended,
    in one coroutine. So a layer costs one frame of ours beside its own.

    inner: the next one further in; None for the innermost, which enters ``core``. hook: the layer's coroutine.
    delegated: whether it has, and None as long as it may: not any more once it has ended.
    running: the task that ``call_next`` runs in, if that is not the layer's own.
    """

    __slots__ = ("chain", "core", "delegated", "hook", "inner", "layer", "running")
    chain: Chain
    layer: Layer
    inner: Slot | None
    core: Enter
    hook: Any
    delegated: bool | None
    running: asyncio.Task[Any] | None

    async def call_next(self) -> Any:
        """What the layer calls ``call_next``. One-shot; over when its layer is."""
        if self.delegated is not None:
            raise AlreadyDelegated(f"{self.layer.name}: " + ("call_next was already awaited" if self.delegated else "its call has ended"))
        self.delegated = True
        chain = self.chain
        try:
            # On its stack, so in its task; before Python 3.12 to ask for the task costs as much as all the rest of a layer.
            own = self.hook.cr_running and not (_EAGER and current_task() is not chain.task)
        except AttributeError:  # an awaitable of another kind
            own = False
        if not own:
            self.running = current_task()
        inner = self.inner
        try:
            if inner is not None:
                layer = inner.layer
                try:
                    inner.hook = hook = layer.hook(layer.context, chain.invocation, inner.call_next)
                    value = await hook
                except BaseException as error:
                    if inner.running is not None:  # first, for what it raises as it ends is not what comes up
                        await inner.stop_runaway()
                    inner.raised(error)
                    raise
                finally:
                    if inner.delegated is None:
                        inner.delegated = False
                    if inner.running is not None:
                        await inner.stop_runaway()
                if value is chain.passing and inner.delegated:
                    return value
                return inner.returned(value)
            value = await self.core()
            if not isinstance(value, _LATCHED) and not chain.cut_off:  # those count only once a layer returns them
                chain.passing = value
            return value
        finally:
            if not own:
                self.running = None

    def raised(self, error: BaseException) -> None:
        chain, name = self.chain, self.layer.name
        if isinstance(chain, _Nowhere):
            return
        if error is not chain.error:
            chain.error, chain.decided_by, chain.vetoed_by = error, name, None
        chain.passing = _NOTHING
        if isinstance(error, Fatal) and chain.fatal is None:
            chain.fatal = error
        if self.delegated or not isinstance(error, Exception) or isinstance(error, Fatal):
            return  # not a veto: it had delegated, it was cancelled, or it stops the whole run
        chain.vetoed_by = name
        reason = chain.said(reason_of(error))
        if not reason.isprintable():  # it may come from the model: a line break must not look like another line of the log
            reason = repr(reason)[1:-1]
        logger.warning("Middleware %s vetoed tool %s: %s", name, chain.invocation.name, reason)

    def returned(self, value: Any) -> Any:
        chain = self.chain
        if isinstance(chain, _Nowhere):
            return value
        if value is not chain.value or chain.error is not None or not self.delegated:
            chain.value, chain.error, chain.decided_by, chain.vetoed_by = value, None, self.layer.name, None
        if isinstance(value, Stop | Suspended) and chain.latched is None:
            if isinstance(value, Suspended) and self.delegated:
                error = UsageError(f"{self.layer.name} returned Suspended after it had delegated: the call may have run")
                chain.error, chain.decided_by, chain.passing = error, self.layer.name, _NOTHING
                raise error
            chain.latched = value
            chain.asked_about, chain.asked_by = chain.invocation.arguments_text(), self.layer.name
        chain.passing = value
        return value

    async def stop_runaway(self) -> None:
        """The layer left while what it had called still runs in a task of the layer's own: a handler never outlives its call."""
        task, self.running = self.running, None
        if task is None or task is asyncio.current_task():
            return
        task.cancel()
        task.add_done_callback(_look_at)
        try:
            await asyncio.wait({task}, timeout=self.chain.drain_s)
        finally:
            if not task.done():
                self._cut_off()

    def _cut_off(self) -> None:
        """What the layer left behind does not stop: from here on it enters nothing, and has no part in how the call ends."""
        chain = self.chain
        chain.cut_off = True
        nowhere = _Nowhere(chain.invocation, drain_s=chain.drain_s)
        inner = self.inner
        while inner is not None:
            inner.chain = nowhere
            if inner.delegated is None:
                inner.delegated = False
            inner = inner.inner


def _look_at(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more: its exception is not to be reported as lost."""
    if not task.cancelled():
        task.exception()


_LATCHED = (Stop, Suspended)
_NOTHING = object()

Stream = Callable[[Any], AsyncIterator[Any]]


class OwnedStreams:
    """Every stream that a model step has opened, closed innermost first, whatever the layers forget."""

    __slots__ = ("_closed", "_readers", "_sources", "_streams")

    def __init__(self) -> None:
        self._streams: list[AsyncIterator[Any]] = []
        self._sources: list[AsyncIterator[Any]] = []
        self._readers: set[asyncio.Task[Any]] = set()
        self._closed = False

    def through(self, layers: Sequence[Layer], core: Stream) -> Stream:
        """``core`` behind ``layers``, of which the first is outermost."""
        handler = core
        for layer in reversed(layers):
            handler = self._link(layer, handler)
        return handler

    def _link(self, layer: Layer, inner: Stream) -> Stream:
        def enter(request: Any) -> AsyncIterator[Any]:
            return self.own(layer.hook(layer.context, request, inner))

        return enter

    def own(self, stream: AsyncIterator[Any], *, source: bool = False) -> AsyncIterator[Any]:
        """``source``: it is the provider's own."""
        self._streams.append(stream)
        if source:
            self._sources.append(stream)
        return stream

    async def close_sources(self) -> None:
        """Close what the provider streams, and let nothing more be sent. One that is being read just now is cancelled instead."""
        self._closed = True
        for stream in self._sources:
            await _close(stream)

    def read_by(self, task: asyncio.Task[Any] | None) -> None:
        """``task`` is about to read from the provider. Raises UsageError once the step has ended: nothing is sent then."""
        if self._closed:
            raise UsageError("call_next: the model step that this belongs to has ended")
        if task is not None:
            self._readers.add(task)

    async def aclose(self) -> None:
        """Close all. Innermost first, so that the provider's socket does not wait for a layer's slow ``finally``."""
        self._closed = True
        own = asyncio.current_task() if self._readers else None
        for task in self._readers:
            if task is not own:  # a layer's own, which nobody else may end
                task.cancel()
        for stream in reversed(self._streams):
            await _close(stream)
        self._streams.clear()


async def _close(stream: AsyncIterator[Any]) -> None:
    close = getattr(stream, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except RuntimeError as error:
        # It is being iterated, in a task that was cancelled, which closes it.
        logger.debug("a stream was still being iterated when it was to be closed: %s", error)
    except Exception:
        logger.exception("a layer raised while its stream was being closed")
