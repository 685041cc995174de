"""The checks of what must be pure: ``fold``, ``redact``, ``redact_deltas``, ``instructions``; and of what must not raise."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from ..extensions.base import AgentExtension
from ..messages import UserMessage
from ..records import Record, RunStarted
from ..records.codec import encode
from ..records.redaction import what_changed
from ..tools import as_tool
from .extension_bench import alike
from .extension_checks import Bench, Findings
from .extension_records import sample_records

TEXTS = ("Good morning, harbour.", "one\ntwo three", '{"key": "sk-a1b2c3d4e5f6g7h8i9j0"} and more', "ä☃" * 5)


def _records(extension: AgentExtension, run_id: str = "run") -> tuple[Record, ...]:
    return sample_records(run_id, extension.name)


def _kind(value: object) -> str:
    return type(value).__name__


async def folds_purely(bench: Bench) -> Findings:
    """The same records give the same memory, in every instance; neither the memory before nor the record is changed."""
    extension, other = bench.factory(), bench.factory()
    memory: Any = None
    beside: Any = None
    for record, elsewhere in zip(_records(extension), _records(extension, "elsewhere"), strict=True):
        before, written = copy.deepcopy(memory), encode(record)
        try:
            after, again = extension.fold(memory, record), extension.fold(copy.deepcopy(before), record)
            far = other.fold(copy.deepcopy(before), record)
            beside = extension.fold(beside, elsewhere)
        except Exception as error:
            yield f"fold raised {_kind(error)} on {_kind(record)}: {error}; it is told of every record of every session"
            return
        if inspect.isawaitable(after):
            yield "fold must be a plain function"
            after.close() if inspect.iscoroutine(after) else None
            return
        if not alike(memory, before):
            yield f"fold changed the memory that it was given, at {_kind(record)}: return a new one"
            return
        if encode(record) != written:
            yield f"fold changed the record, a {_kind(record)}"
            return
        if not alike(after, again) or not alike(after, far):
            yield f"fold gave two different memories of the same records, at {_kind(record)}: it must depend on nothing else"
            return
        memory = after
    alone: Any = None
    for record in _records(bench.factory()):
        alone = other.fold(alone, record)
    if not alike(alone, memory):
        yield "fold mixes two sessions: what it remembers must be in the memory that it returns, not in the extension"


async def redacts_purely(bench: Bench) -> Findings:
    """A record becomes the same record each time, changed only where it may be, and stays so."""
    extension, other = bench.factory(), bench.factory()
    for record in _records(extension):
        written = encode(record)
        try:
            after, again, far = extension.redact(record), extension.redact(record), other.redact(record)
            twice = extension.redact(after)
        except Exception as error:
            yield f"redact raised {_kind(error)} on {_kind(record)}: {error}; nothing would be written any more"
            return
        if encode(record) != written:
            yield f"redact changed the record that it was given, a {_kind(record)}: return a new one"
            return
        if wrong := what_changed(record, after):
            yield f"redact changed what must stay of {_kind(record)}: {wrong}"
            return
        if encode(after) != encode(again) or encode(after) != encode(far):
            yield f"redact gave two different records for the same {_kind(record)}: it must depend on nothing else"
            return
        if encode(twice) != encode(after):
            yield f"redact changes again what it has redacted before, a {_kind(record)}"
            return


async def filters_purely(bench: Bench) -> Findings:
    """However a stream is cut into pieces, the same text is shown, and it is the text that is stored."""
    extension = bench.factory()
    for text in TEXTS:
        shown: set[str] = set()
        for size in (len(text), 1, 2, 7):
            one = extension.redact_deltas()
            if one is None:
                return
            try:
                pieces = [one.feed(text[start : start + size]) for start in range(0, len(text), size)]
                shown.add("".join((*pieces, one.end())))
            except Exception as error:
                yield f"the filter of redact_deltas raised {_kind(error)}: {error}"
                return
        if len(shown) > 1:
            yield f"redact_deltas shows {text!r} differently when it comes in other pieces: {sorted(shown)}"
            return
        stored = extension.redact(RunStarted(run_id="run", prompt=UserMessage(content=text)))
        if isinstance(stored, RunStarted) and {stored.prompt.content} != shown:
            yield f"redact_deltas shows {shown.pop()!r} where redact stores {stored.prompt.content!r}"
            return


async def is_told_without_harm(bench: Bench) -> Findings:
    """``on_record``, ``instructions`` and ``tools`` do not raise, and say the same each time."""
    extension = bench.factory()
    context = bench.context(extension)
    for record in _records(extension):
        try:
            said: object = extension.on_record(context, record)
        except Exception as error:
            yield f"on_record raised {_kind(error)} on {_kind(record)}: {error}"
            return
        if inspect.iscoroutine(said):
            said.close()
            yield "on_record must be a plain function, which does not block"
            return
    try:
        first, second = extension.instructions(context), extension.instructions(context)
        names = [[as_tool(item).name for item in extension.tools()] for _ in range(2)]
    except Exception as error:
        yield f"instructions or tools raised {_kind(error)}: {error}"
        return
    if first is not None and not isinstance(first, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        yield f"instructions must give text or None, not {_kind(first)}"
    elif first != second:
        yield "instructions says something else the second time: providers cache by prefix"
    if names[0] != names[1] or len(set(names[0])) != len(names[0]):
        yield "tools must give the same tools each time, each name once"
