"""RunContext, as the driver implements it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import UsageError
from ..events import ToolProgress
from ..messages import Usage, clean, clean_tree
from ..records import ExtensionNoted, Scope
from .identity import idempotency_key
from .nested import call_nested
from .tool_step import ToolStep, current_step

if TYPE_CHECKING:
    from .run import Run

T = TypeVar("T")

# How deep an on_record may answer its own notes with notes: a chain of extensions, but not one without end.
NOTES_NESTED_MAX = 8


class Context:
    """The run, for one extension (``index`` is its place in the onion) or for the handlers (``index`` is None)."""

    __slots__ = ("_index", "_loop", "_run")

    def __init__(self, run: Run, index: int | None) -> None:
        self._run = run
        self._index = index
        self._loop = run.loop

    @property
    def session_id(self) -> str:
        return self._run.session.session_id

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def deps(self) -> Any:
        return self._run.config.deps

    @property
    def answer(self) -> Any:
        step = current_step.get()
        return step.answer if step is not None else None

    @property
    def asked(self) -> bool:
        step, index = current_step.get(), self._index
        return step is not None and index is not None and step.asked.asked_by == clean(self._run.parts.extensions[index].name)

    @property
    def granted(self) -> tuple[Scope, ...]:
        step = current_step.get()
        return step.granted if step is not None else ()

    @property
    def memory(self) -> Any:
        return self._run.session.memories.get(self._index) if self._index is not None else None

    @property
    def usage(self) -> Usage:
        return self._run.usage()

    @property
    def epoch(self) -> int:
        return self._run.session.state.epoch

    def find(self, kind: type[T]) -> T | None:
        return next((extension for extension in self._run.parts.extensions if isinstance(extension, kind)), None)

    def clock(self) -> float:
        return self._run.parts.clock()

    def idempotency_key(self) -> str:
        return idempotency_key(self.session_id, self._step("idempotency_key").identity)

    def note(self, data: Any) -> None:
        if self._index is None:
            raise UsageError("context.note belongs to extensions: a handler has no memory of its own")
        self._check_here("note")
        run = self._run
        if run.session.run is not run:
            raise UsageError("context.note: the run that this context belongs to is over")
        if run.noting >= NOTES_NESTED_MAX:
            raise UsageError("context.note: on_record notes something at every note; let it look at the record's type first")
        extension = run.parts.extensions[self._index]
        try:
            msgspec.json.encode(data := clean_tree(data))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"context.note takes JSON-able data: {error}") from error
        run.noting += 1
        try:
            run.session.commit(ExtensionNoted(extension=extension.name, version=extension.version, data=data))
        finally:
            run.noting -= 1

    def emit(self, data: Any) -> None:
        event = ToolProgress(call_id=self._step("emit").call.id, data=clean_tree(data))
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._run.emit_progress(event)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._run.emit_progress, event)

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        self._check_here("call_tool")
        return await call_nested(self._run, self._step("call_tool"), name, arguments or {})

    async def read_payload(self, digest: str) -> bytes | None:
        return await self._run.session.log.get_payload(digest)

    def _check_here(self, what: str) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            raise UsageError(f"context.{what} belongs to the event loop of its run: it cannot be used from another thread or loop")

    def _step(self, what: str) -> ToolStep:
        step = current_step.get()
        if step is None or step.closed:
            raise UsageError(f"context.{what} is possible only while a tool call runs, in its layers and its handler")
        return step
