"""``check_extension``: our own extensions pass it, all of them, and each kind of bad one does not, for the reason that is its own."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, get_args

import pytest

import interlock.extensions
from interlock import AgentExtension, Fatal, Stop, Suspended, ToolFailure, UsageError
from interlock.agent.assembly import DEFAULTS
from interlock.events import TextDelta
from interlock.extensions.budget import Budget
from interlock.extensions.hooks import CommandHook
from interlock.extensions.secrets import RedactSecrets
from interlock.machine import apply
from interlock.machine.state import State
from interlock.messages import SystemMessage
from interlock.records import ModelStepEnded, Record, RunStarted
from interlock.records.redaction import with_texts
from interlock.testing import check_extension
from interlock.testing.extension_kit import EXTENSION_CHECKS
from interlock.testing.extension_records import sample_records


def pay(amount: float) -> str:
    """Pay."""
    return "paid"


PAYS = [(pay, {"amount": 3}), (pay, {"amount": 4})]
# Ours that need something to be made. Everything else is made without arguments.
MADE: dict[type[AgentExtension], list[Callable[[], AgentExtension]]] = {
    Budget: [
        lambda: Budget("pay", calls=100, sum="amount", at_most=500, per="session"),
        lambda: Budget(calls=100),
        lambda: Budget("pay", calls=0),
    ],
    CommandHook: [lambda: CommandHook(["true"])],
    RedactSecrets: [RedactSecrets, lambda: RedactSecrets(["harbour"], ["g.."])],
}


def ours() -> Iterator[Any]:
    """Every extension in the room, found and not listed: one that is added later is checked too."""
    for info in pkgutil.iter_modules(interlock.extensions.__path__, "interlock.extensions."):
        module = importlib.import_module(info.name)
        for name, kind in sorted(vars(module).items()):
            if isinstance(kind, type) and issubclass(kind, AgentExtension) and kind is not AgentExtension and kind.__module__ == info.name:
                for number, factory in enumerate(MADE.get(kind, [kind])):
                    yield pytest.param(factory, id=f"{name}-{number}")


@pytest.mark.parametrize("factory", list(ours()))
def test_our_own_extensions_keep_what_the_runtime_relies_on(factory: Callable[[], AgentExtension]) -> None:
    verdict = asyncio.run(check_extension(factory, calls=PAYS))
    verdict.require()
    assert verdict.checks
    assert verdict.passed


def test_the_extensions_that_are_found_are_all_that_are_made_and_the_defaults() -> None:
    found = {str(param.id).rpartition("-")[0] for param in ours()}
    assert found >= {kind.__name__ for kind in (*MADE, *DEFAULTS)} | {"DryRun"}


def test_the_sample_is_a_session_with_every_kind_of_record() -> None:
    state = State()
    for record in sample_records():
        state = apply(state, record)
    assert {type(record) for record in sample_records()} == set(get_args(Record))


# ---- good ones, of every verb ----------------------------------------------------------------------------


class Good(AgentExtension):
    """Everything at once, and well."""

    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        request = replace(request, messages=(*request.messages, SystemMessage(content="Be kind.")))
        async with aclosing(call_next(request)) as events:
            async for event in events:
                yield event

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        call.arguments["text"] = str(call.arguments.get("text")).upper()
        await asyncio.sleep(0)
        context.note({"seen": call.key})
        return f"{call.arguments['text']}: {await call_next()}"

    def fold(self, memory: Any, record: Record) -> Any:
        return (memory or 0) + 1

    def redact(self, record: Record) -> Record:
        return with_texts(record, lambda text: text.replace("probe", "[gone]"))


@pytest.mark.parametrize(
    "verb",
    [
        lambda: Suspended("may it?"),
        lambda: Stop("enough"),
        lambda: ToolFailure("say whom"),
        lambda: "answered",
        lambda: (_ for _ in ()).throw(PermissionError("not today")),
        lambda: (_ for _ in ()).throw(Fatal("pull the plug")),
    ],
)
def test_every_verb_of_a_layer_is_fine(verb: Callable[[], Any]) -> None:
    class Layer(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            return verb()

    asyncio.run(check_extension(Layer)).require()


def test_a_good_extension_passes_and_a_rescue_is_no_fault() -> None:
    class Rescue(Good):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            try:
                return await call_next()
            except OSError as error:
                return f"try tomorrow: {error}"

    for kind in (Good, Rescue):
        verdict = asyncio.run(check_extension(kind))
        verdict.require()
        assert len(verdict.checks) >= 11


# ---- bad ones ----------------------------------------------------------------------------------------------


class Bad(AgentExtension):
    """A base for layers that get one thing wrong."""


class Retries(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except OSError:
            return await call_next()


class Twice(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        first = await call_next()
        with suppress(Exception):
            await call_next()
        return first


class Races(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        results = await asyncio.gather(call_next(), call_next(), return_exceptions=True)
        return next(one for one in results if not isinstance(one, BaseException))


class Forgets(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        self.task = asyncio.ensure_future(call_next())
        await asyncio.sleep(0)
        return "started"


class CallsLate(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        async def later() -> None:
            await asyncio.sleep(0)
            with suppress(Exception):
                await call_next()

        self.task = asyncio.ensure_future(later())
        return "later"


class LeavesATask(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        self.task = asyncio.ensure_future(asyncio.sleep(60))
        return await call_next()


class Wordless(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        raise PermissionError


class CancelsForAVeto(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        raise asyncio.CancelledError


class VetoesAfterwards(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        result = await call_next()
        if result:
            raise PermissionError("not that result")
        return result


class AsksAfterwards(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        await call_next()
        return Suspended("was that right?")


class ForgetsToReturn(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        await call_next()


class ForgetsEverything(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        pass


class SwallowsCancellation(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return "all is well"


class Shields(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        return await asyncio.shield(asyncio.ensure_future(call_next()))


class NeverEnds(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except asyncio.CancelledError:
            await asyncio.sleep(60)
            raise


class KeepsTheCall(Bad):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        self.call = call
        await asyncio.sleep(0)
        return f"{self.call.id}: {await call_next()}"


class KeepsTheSession(Bad):
    def __init__(self) -> None:
        self.sessions: list[str] = []

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        if context.session_id not in self.sessions:
            self.sessions.append(context.session_id)
        if self.sessions[0] != context.session_id:
            raise PermissionError(f"{self.sessions[0]} was here first")
        return await call_next()


class Shouts(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async with aclosing(call_next(request)) as events:
            async for event in events:
                yield TextDelta(event.text.upper()) if isinstance(event, TextDelta) else event


class HoldsBack(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async with aclosing(call_next(request)) as events:
            kept = [event async for event in events]
        for event in kept:
            yield event


class LosesTheResponse(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async with aclosing(call_next(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    yield event


class Refuses(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        raise PermissionError("no requests today")
        yield


class NoRequest(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async with aclosing(call_next(request.messages)) as events:
            async for event in events:
                yield event


class LeavesOpen(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        self.kept = call_next(request)
        async for event in self.kept:
            yield event


class GoesOn(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async with aclosing(call_next(request)) as events:
            try:
                async for event in events:
                    yield event
            except GeneratorExit:
                yield TextDelta("but wait")


class SwallowsStreamCancellation(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async with aclosing(call_next(request)) as events:
            with suppress(asyncio.CancelledError):
                async for event in events:
                    yield event


class MixesStreams(Bad):
    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async with aclosing(call_next(request)) as events:
            async for event in events:
                self.event = event
                await asyncio.sleep(0)
                yield self.event


class FoldsInPlace(Bad):
    def fold(self, memory: Any, record: Record) -> Any:
        memory = memory if memory is not None else []
        memory.append(type(record).__name__)
        return memory


class FoldsItself(Bad):
    count = 0

    def fold(self, memory: Any, record: Record) -> Any:
        self.count += 1
        return self.count


class FoldsByChance(Bad):
    def fold(self, memory: Any, record: Record) -> Any:
        return random.random()


class FoldsBySession(Bad):
    def __init__(self) -> None:
        self.runs: dict[str, str] = {}

    def fold(self, memory: Any, record: Record) -> Any:
        if isinstance(record, RunStarted):
            self.runs["now"] = record.run_id
        return self.runs.get("now")


class FoldsPartly(Bad):
    def fold(self, memory: Any, record: Record) -> Any:
        return record.key  # type: ignore[union-attr]


class RedactsByChance(Bad):
    def redact(self, record: Record) -> Record:
        return with_texts(record, lambda text: str(random.random()))


class RedactsAgain(Bad):
    def redact(self, record: Record) -> Record:
        return with_texts(record, lambda text: f"<{text}>")


class RedactsIds(Bad):
    def redact(self, record: Record) -> Record:
        import msgspec

        return msgspec.structs.replace(record, run_id="x") if isinstance(record, RunStarted) else record


class RedactsPartly(Bad):
    def redact(self, record: Record) -> Record:
        if isinstance(record, ModelStepEnded):
            raise ValueError("no model step")
        return record


class Chunked:
    def __init__(self, change: Callable[[str], str]) -> None:
        self.change = change

    def feed(self, text: str) -> str:
        return self.change(text)

    def end(self) -> str:
        return ""


class FiltersPieces(Bad):
    def redact(self, record: Record) -> Record:
        return with_texts(record, lambda text: text.replace("harbour", "[port]"))

    def redact_deltas(self) -> Any:
        return Chunked(lambda text: text.replace("harbour", "[port]"))


class ShowsMore(FiltersPieces):
    def redact_deltas(self) -> Any:
        return Chunked(lambda text: text)


class RecordsBadly(Bad):
    def on_record(self, context: Any, record: Record) -> None:
        raise ValueError("what is that?")


class InstructsByChance(Bad):
    def instructions(self, context: Any) -> str:
        return str(random.random())


class BringsTwice(Bad):
    def tools(self) -> Any:
        return [pay, pay]


BAD: dict[type[AgentExtension], tuple[str, str]] = {
    Retries: ("goes through once", "after the handler raised OSError"),
    Twice: ("goes through once", "call_next is awaited 2 times:"),
    Races: ("goes through once", "call_next is awaited 2 times:"),
    Forgets: ("ends with its call", "the layer returned before what it had called did"),
    CallsLate: ("ends with its call", "or called it afterwards"),
    LeavesATask: ("ends with its call", "1 task(s) of the layer are still running"),
    Wordless: ("says honestly what happened", "the veto has no reason"),
    CancelsForAVeto: ("says honestly what happened", "looks like a cancelled run"),
    VetoesAfterwards: ("says honestly what happened", "the handler had completed, and the layer raised PermissionError: not that result"),
    AsksAfterwards: ("says honestly what happened", "asks a person after the call was executed"),
    ForgetsToReturn: ("says honestly what happened", "the layer loses the result"),
    ForgetsEverything: ("says honestly what happened", "neither delegates nor answers"),
    SwallowsCancellation: ("lets a cancellation pass", "it returned 'all is well' instead"),
    Shields: ("lets a cancellation pass", "what the layer had called goes on"),
    NeverEnds: ("lets a cancellation pass", "did not end within"),
    KeepsTheCall: ("serves many at once", "keep what belongs to a call in local variables"),
    KeepsTheSession: ("serves many at once", "one was here first"),
    Shouts: ("passes streams through", "changed at event 1: TextDelta(text='GOOD ') instead of TextDelta(text='Good ')"),
    HoldsBack: ("passes streams through", "held back: the first event came out when 7 had come in"),
    LosesTheResponse: ("passes streams through", "exactly one ModelResponse; this one has 0"),
    Refuses: ("passes streams through", "raised PermissionError on an ordinary request"),
    NoRequest: ("passes streams through", "something else than a ModelRequest"),
    LeavesOpen: ("closes its stream", "async with aclosing(call_next(request))"),
    GoesOn: ("closes its stream", "goes on when its stream is closed"),
    SwallowsStreamCancellation: ("lets a cancelled stream end", "the stream ended as if nothing had been"),
    MixesStreams: ("streams many at once", "two streams at once are not what each is alone"),
    FoldsInPlace: ("folds purely", "changed the memory that it was given"),
    FoldsItself: ("folds purely", "two different memories"),
    FoldsByChance: ("folds purely", "two different memories"),
    FoldsBySession: ("folds purely", "two different memories of the same records"),
    FoldsPartly: ("folds purely", "fold raised AttributeError on SessionOpened"),
    RedactsByChance: ("redacts purely", "two different records"),
    RedactsAgain: ("redacts purely", "changes again what it has redacted"),
    RedactsIds: ("redacts purely", "changed what must stay of RunStarted"),
    RedactsPartly: ("redacts purely", "redact raised ValueError on ModelStepEnded"),
    FiltersPieces: ("filters purely", "differently when it comes in other pieces"),
    ShowsMore: ("filters purely", "where redact stores 'Good morning, [port].'"),
    RecordsBadly: ("is told without harm", "on_record raised ValueError on SessionOpened"),
    InstructsByChance: ("is told without harm", "providers cache by prefix"),
    BringsTwice: ("is told without harm", "each name once"),
}


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.__name__)
def test_each_kind_of_bad_extension_is_found_for_its_own_reason(kind: Callable[[], AgentExtension]) -> None:
    check, words = BAD[kind]  # type: ignore[index]
    verdict = asyncio.run(check_extension(kind, wait_s=0.2))
    found = [finding.problem for finding in verdict.findings if finding.check == check]
    assert any(words in problem for problem in found), verdict.findings
    with pytest.raises(AssertionError, match=check):
        verdict.require()


def test_there_is_a_bad_extension_for_every_check() -> None:
    assert {check for check, _ in BAD.values()} == set(EXTENSION_CHECKS)


def test_every_bad_extension_of_this_file_is_in_the_table() -> None:
    assert set(Bad.__subclasses__()) | set(FiltersPieces.__subclasses__()) == set(BAD)


def test_a_layer_that_says_that_it_changes_streams_may_do_so() -> None:
    for kind in (Shouts, HoldsBack):
        asyncio.run(check_extension(kind, changes_streams=True)).require()


def test_a_layer_that_looks_at_one_tool_is_seen_when_that_tool_is_given() -> None:
    class OnlyPay(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            result = await call_next()
            return None if call.name == "pay" else result

    assert asyncio.run(check_extension(OnlyPay)).passed
    assert not asyncio.run(check_extension(OnlyPay, calls=PAYS)).passed


def test_what_is_no_extension_is_refused() -> None:
    with pytest.raises(UsageError, match="makes an AgentExtension, not str"):
        asyncio.run(check_extension(lambda: "hello"))  # type: ignore[arg-type, return-value]
