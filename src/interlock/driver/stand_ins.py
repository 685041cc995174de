"""The model and the tools of a replay: they ask nobody, and answer what the journal holds."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Protocol, cast

import msgspec

from ..errors import Fatal, ProviderError, ToolFailure, ToolTimeout
from ..extensions.base import Stop, Suspended
from ..machine import State
from ..messages import Content, reason_of, text_of
from ..model import ModelEvent, ModelRequest, ModelResponse
from ..model import Stop as ModelStop
from ..records import (
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    Payload,
    QuestionAnswered,
    Received,
    ReconcileEnded,
    ReconcileStarted,
    Returned,
    ToolStepEnded,
)
from ..tools import Bound, Tool, did_not_happen, happened, unknown
from ..tools.result import ResultNotSerializable, to_content
from ..tools.workers import PoolFull
from .identity import idempotency_key, identity_of
from .ledger import Ledger
from .nested import call_nested
from .returned import NO_TEXT
from .tool_step import ToolStep, current_step

ASKED_AGAIN = "this request was not answered, and a layer asked again"


class _NoWorker(PoolFull):
    def __init__(self, reason: str) -> None:
        ToolFailure.__init__(self, reason, effect="none")


class Payloads(Protocol):
    """Where full copies are read."""

    async def get_payload(self, digest: str) -> bytes | None: ...


class StandInModel:
    """Answers each request with what the journal says was answered, as soon as it says so."""

    def __init__(self, ledger: Ledger, state: Callable[[], State]) -> None:
        self._ledger = ledger
        self._state = state

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Raises ProviderError where the exchange failed."""
        ledger = self._ledger
        try:
            await ledger.until(lambda: ledger.due("") is not None)
        except asyncio.CancelledError:
            place = ledger.next("")
            if place is None or not isinstance(ledger.rows[place].record, ModelStepEnded):
                raise  # else its last word came just before
        place = ledger.next("")
        record = ledger.rows[place].record if place is not None else None
        match record:
            case ModelStepEnded():
                yield response_of(record, self._state())
            case ModelStepFailed(kind="layer"):
                raise Exception(record.message)
            case ModelStepFailed():
                raise ProviderError(
                    record.message,
                    kind=record.kind,
                    retryable=record.retryable,
                    retry_after_s=record.retry_after_s,
                    status=record.status,
                    usage=record.usage,
                )
            case ModelStepStarted(dismissed=Received() as answer):
                yield ModelResponse(message=answer.message, stop=ModelStop(answer.stop))
            case _:
                raise ProviderError(ASKED_AGAIN, retryable=True, kind="cut")

    async def aclose(self) -> None:
        """There is nothing to close."""


def response_of(record: ModelStepEnded, state: State) -> ModelResponse:
    """What the provider must have said for ``record`` to come of it."""
    if record.received is not None:
        return ModelResponse(message=record.received.message, stop=ModelStop(record.received.stop, record.stop_raw), usage=record.usage)
    content = record.message.content.removeprefix(state.partial)  # the record has the whole of a continued answer
    message = msgspec.structs.replace(record.message, content=content, incomplete=False)
    return ModelResponse(message=message, stop=ModelStop(record.stop, record.stop_raw), usage=record.usage)


# ---- tools ---------------------------------------------------------------------------------------------


def stand_in_tool(tool: Tool, ledger: Ledger, payloads: Payloads) -> Tool:
    """``tool`` with its name, schema and traits, and with the journal's answers in place of its handler."""

    def bind(arguments: dict[str, Any]) -> Bound:
        bound, step = tool.bind(arguments), current_step.get()
        record = ledger.due(step.key) if step is not None else None
        if isinstance(record, ToolStepEnded) and record.code == "no_worker":
            raise _NoWorker(_reason(record, text_of(record.message.content)))
        return bound

    async def handler(*args: Any, **named: Any) -> Any:
        step = current_step.get()
        assert step is not None
        return await _Handler(step, ledger, payloads).run()

    return msgspec.structs.replace(
        tool,
        traits=msgspec.structs.replace(tool.traits, timeout_s=None),
        handler=handler,
        is_async=True,
        binder=cast("Any", bind),
        context_at=(),
        takes_self=False,
        reconcile=_reconciler(ledger, payloads),
    )


class _Handler:
    """One start of one handler: makes the calls that it made, and ends as it ended."""

    def __init__(self, step: ToolStep, ledger: Ledger, payloads: Payloads) -> None:
        self._step = step
        self._ledger = ledger
        self._payloads = payloads
        self._made: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> Any:
        ledger, key = self._ledger, self._step.key
        try:
            await ledger.until(self._is_over)
        except asyncio.CancelledError:
            for task in self._made.values():
                task.cancel()
            place = ledger.next(key)
            record = ledger.rows[place].record if place is not None else None
            if not isinstance(record, ToolStepEnded) or record.code == "cancelled":
                raise  # else it came to its end all the same
        place = ledger.next(key)
        record = ledger.rows[place].record if place is not None else None
        if not isinstance(record, ToolStepEnded):  # a layer goes on after it, and the process dies before the result
            return ""
        return await outcome_of(record, self._payloads)

    def _is_over(self) -> bool:
        others = False
        for place, record in self._ledger.made_by(self._step.key):
            if not record.inside:
                others = True
            elif place not in self._made:
                assert record.call is not None
                arguments = msgspec.json.decode(record.call.arguments)
                self._made[place] = asyncio.create_task(self._call(record.call.name, arguments))
        if any(not task.done() for task in self._made.values()):
            return False
        return others or self._ledger.may_end(self._step.key)

    async def _call(self, name: str, arguments: dict[str, Any]) -> None:
        # What comes of it the handler knew; here it is only recorded.
        with contextlib.suppress(Exception):
            await call_nested(self._step.run, self._step, name, arguments)
        self._ledger.bump()


async def outcome_of(record: ToolStepEnded, payloads: Payloads) -> Any:
    """What the handler gave or raised for ``record`` to come of it."""
    returned = record.returned or Returned()
    own = returned.content is None
    content = await _full(record.message.content if own else returned.content, record.payload if own else returned.payload, payloads)
    if returned.error == "Suspended":
        return Suspended(question="")
    if returned.error == NO_TEXT or record.code == "unserializable":
        return object()
    if returned.error:
        text = text_of(content)
        _raise(returned.error, _reason(record, text) if own else text, record)
    value = _from_json(content) if returned.json and isinstance(content, str) else list(content) if isinstance(content, tuple) else content
    return Stop(value) if record.ending is not None and record.ending.reason == "stop" and record.decided_by == "handler" else value


async def _full(content: Content | None, payload: Payload | None, payloads: Payloads) -> Content:
    data = await payloads.get_payload(payload.digest) if payload is not None and not isinstance(content, tuple) else None
    return (content or "") if data is None else data.decode("utf-8", "replace")


def _from_json(text: str) -> Any:
    """The value, if its JSON is exactly ``text`` again; a Decimal or a date is text, although its class is not."""
    try:
        value = msgspec.json.decode(text)
        return value if to_content(value) == text else text
    except (msgspec.DecodeError, ResultNotSerializable):
        return text


def _reason(record: ToolStepEnded, text: str) -> str:
    """The reason in the sentence that the model was told."""
    return text.removeprefix(f"Tool error ({record.message.name[:200]}): ").rpartition("\n")[0]


def _raise(name: str, reason: str, record: ToolStepEnded) -> None:
    match name.removeprefix("interlock.errors:"):
        case "ToolTimeout" if record.code == "timeout":  # else it was another call's
            raise ToolTimeout(reason, effect=record.effect)
        case "ToolFailure":
            raise ToolFailure(reason, effect=record.effect)
        case "Fatal":
            raise Fatal(reason)
        case "asyncio.exceptions:CancelledError":
            raise asyncio.CancelledError(*([reason] if reason != "CancelledError" else []))
        case _:
            raise _exception(name, reason)


def _exception(name: str, reason: str) -> Exception:
    """An exception of the class ``name`` whose text is ``reason``; of one that is called so where that cannot be made."""
    module, _, qualified = name.rpartition(":")
    kind: Any = sys.modules.get(module or "builtins")
    for part in qualified.split("."):
        kind = getattr(kind, part, None)
    known = isinstance(kind, type) and issubclass(kind, Exception)
    for made in _instances(kind, reason) if known and not module.startswith("interlock.") else ():
        if reason_of(made) == reason:
            return made
    # What stops everything (SystemExit, KeyboardInterrupt) does so here as a Fatal would: nothing may end the event loop.
    base = Fatal if qualified in ("SystemExit", "KeyboardInterrupt") else Exception
    return cast("Exception", type(qualified.rpartition(".")[2], (base,), {})(*([] if reason == qualified else [reason])))


def _instances(kind: Any, reason: str) -> Iterator[Exception]:
    """The ways to make one that may have this text; which its ``__init__`` may make impossible."""
    given: list[tuple[Any, ...]] = [(reason,), ()]
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        given.insert(1, (ast.literal_eval(reason),))  # KeyError("x") says 'x'
    for make in (kind, kind.__new__):
        for arguments in given:
            with contextlib.suppress(Exception):
                yield make(*arguments) if make is kind else make(kind, *arguments)


def _keys_of(ledger: Ledger, key: str) -> set[str]:
    """The idempotency keys that the call has had: a person may have given it other arguments."""
    answers = [row.record for row in ledger.rows if isinstance(row.record, QuestionAnswered) and row.record.key == key]
    edits = [msgspec.json.encode(answer.answer).decode() for answer in answers if answer.verdict == "edit"]
    return {idempotency_key(ledger.session_id, identity_of(key, edited)) for edited in (None, *edits)}


def _reconciler(ledger: Ledger, payloads: Payloads) -> Callable[..., Any]:
    async def reconcile(identity: str, arguments: dict[str, Any]) -> Any:
        key = next(
            row.record.key
            for row in ledger.rows
            if isinstance(row.record, ReconcileStarted) and identity in _keys_of(ledger, row.record.key)
        )
        await ledger.until(lambda: ledger.due(key) is not None)
        record = ledger.due(key)
        if isinstance(record, ReconcileEnded):
            return did_not_happen() if record.found == "did_not_happen" else unknown(record.reason)
        return happened(await outcome_of(record, payloads))

    return reconcile
