"""What must be true of a world at any time, whatever was killed when. It asks the ledger, the journal and the wire, never the runtime.

(The fold of the journal is asked only which call has which key: that it folds at all is one of the checks.)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from interlock.errors import ProtocolError
from interlock.machine import State, apply
from interlock.messages import text_of
from interlock.records import (
    HandlerStarted,
    QuestionAnswered,
    Row,
    RunCancelled,
    RunEnded,
    RunStarted,
    SteeringReceived,
    ToolStepEnded,
    ToolStepSuspended,
)
from kills.life import TRAITS
from kills.world import Entry, Said
from wire_rules import faults


@dataclass
class Journal:
    """The stored rows, by what the checks ask of them. calls: the id of each call by its key."""

    rows: Sequence[Row]
    state: State = field(default_factory=State)
    calls: dict[str, str] = field(default_factory=dict[str, str])
    fault: str = ""

    def __post_init__(self) -> None:
        try:
            for row in self.rows:
                self.state = apply(self.state, row.record)
                self.calls.update((key, call.call.id) for key, call in self.state.calls.items())
        except ProtocolError as error:
            self.fault = str(error)

    def of(self, kind: type[Any]) -> list[Any]:
        return [row.record for row in self.rows if isinstance(row.record, kind)]


def violations(
    journal: Journal, before: Sequence[Row], entries: Sequence[Entry], bodies: Sequence[dict[str, Any]], said: Sequence[Said]
) -> Iterator[str]:
    """Sentences that are wrong; none, if all is well. before: the rows as they were read the last time."""
    if journal.fault:
        yield f"the journal does not fold: {journal.fault}"
        return
    if list(journal.rows[: len(before)]) != list(before):
        yield "rows that were stored before have changed, or are gone"
    yield from _handlers(journal, entries)
    yield from _effects(journal, entries)
    yield from _requests(journal, bodies)
    yield from _acknowledged(journal, said)


def unfinished(journal: Journal) -> Iterator[str]:
    """What is wrong with a world that should be at its end."""
    ended = {record.message.tool_call_id for record in journal.of(ToolStepEnded)}
    yield from (f"call {call} has no result" for call in journal.calls.values() if call not in ended)
    started, over = [r.run_id for r in journal.of(RunStarted)], [r.run_id for r in journal.of(RunEnded)]
    if started != over:
        yield f"the runs {started} were started and {over} have ended"


def _handlers(journal: Journal, entries: Sequence[Entry]) -> Iterator[str]:
    """No handler of a report tool began twice; none began that the journal does not know of."""
    recorded = Counter(journal.calls[record.key] for record in journal.of(HandlerStarted))
    keys: dict[str, set[str]] = {}
    for call, count in Counter(entry.call for entry in entries if entry.what == "began").items():
        mine = [entry for entry in entries if entry.call == call]
        keys[call] = {entry.key for entry in mine}
        traits = TRAITS[mine[0].tool]
        if traits.get("reconcile") and sum(entry.what == "happened" for entry in mine) > 1:
            yield f"{mine[0].tool} {call} happened, as its tool could have said, and was done again"
        if traits.get("on_crash") != "rerun" and count > 1:
            yield f"the handler of {mine[0].tool} {call} began {count} times"
        if count > recorded[call]:
            yield f"the handler of {mine[0].tool} {call} began {count} times, and the journal knows of {recorded[call]}"
        if len(keys[call]) != 1:
            yield f"call {call} had {len(keys[call])} idempotency keys"
    if len(set[str]().union(*keys.values())) != sum(map(len, keys.values())):
        yield "two calls had one idempotency key"


def _effects(journal: Journal, entries: Sequence[Entry]) -> Iterator[str]:
    """What was recorded of each call against what the ledger says."""
    started = {journal.calls[record.key] for record in journal.of(HandlerStarted)}
    began = {entry.call for entry in entries}
    happened = {entry.call for entry in entries if entry.what == "happened"}
    results = Counter[str]()
    for record in journal.of(ToolStepEnded):
        call = record.message.tool_call_id
        results[call] += 1
        if record.effect != record.message.effect:
            yield f"{call}: the record says {record.effect}, and the model is told {record.message.effect}"
        if record.effect == "none" and call in (happened if TRAITS[record.message.name].get("reconcile") else began):
            yield f"{call}: none was recorded, and its handler had begun"
        if record.effect == "happened" and call not in happened:
            yield f"{call}: happened was recorded, and it had not"
        if record.effect == "unknown" and call not in started:
            yield f"{call}: unknown was recorded of a handler that certainly had not started"
        if record.message.failed and record.effect == "happened" and "The tool itself had completed" not in text_of(record.message.content):
            yield f"{call}: a layer failed, or the run was cancelled, and the model is not told that the tool itself had completed"
    yield from (f"{call} has {count} results" for call, count in results.items() if count > 1)


def _requests(journal: Journal, bodies: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Every request is valid, and says nothing that was not stored before it was sent."""
    results = {record.message.tool_call_id: text_of(record.message.content) for record in journal.of(ToolStepEnded)}
    prompts = {text_of(record.prompt.content) for record in journal.of(RunStarted)}
    prompts |= {text_of(record.message.content) for record in journal.of(SteeringReceived)}
    for body in bodies:
        yield from (f"a request is not valid: {fault}" for fault in faults(body))
        for message in body["messages"]:
            if message["role"] == "tool" and results.get(message["tool_call_id"]) != message["content"]:
                yield f"the model was told a result of {message['tool_call_id']} that is not in the journal: {message['content']!r}"
            if message["role"] == "user" and message["content"] not in prompts:
                yield f"the model was told {message['content']!r}, which is not in the journal"


def _acknowledged(journal: Journal, said: Sequence[Said]) -> Iterator[str]:
    """Whatever a process acknowledged is stored, although it was killed."""
    steered = {text_of(record.message.content) for record in journal.of(SteeringReceived)}
    ended = {(record.run_id, record.outcome.value) for record in journal.of(RunEnded)}
    asked = {record.question_id for record in journal.of(ToolStepSuspended)}
    answered = {record.question_id for record in journal.of(QuestionAnswered)}
    cancels = sum(one.what == "cancelled" for one in said)
    if cancels > sum(record.outcome.value == "cancelled" for record in journal.of(RunCancelled)):
        yield "an accepted cancellation was lost"
    for one in said:
        more = one.more
        if one.what == "steered" and more["text"] not in steered:
            yield f"the accepted message {more['text']!r} was lost"
        if one.what == "answered" and more["question"] not in answered:
            yield f"the accepted answer to {more['question']} was lost"
        if one.what == "result" and more["outcome"] != "waiting" and (more["run_id"], more["outcome"]) not in ended:
            yield f"the result {json.dumps(dict(more))} was given, and is not in the journal"
        if one.what == "result" and not asked.issuperset(more["questions"]):
            yield f"the questions {more['questions']} were asked, and are not in the journal"
