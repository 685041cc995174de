"""The checkers: pure functions over what was seen of a world from outside. Each returns what is wrong, in words; nothing is right.

They trust no code of the runtime beyond the fold: what a valid request is, and what may be said of an effect, is said here anew.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import CommandRefused, Fatal, JournalError, ProtocolError, ProviderError
from ...journal.transcript import Transcript
from ...machine import RECOVERIES, State, apply
from ...messages import AssistantMessage, Message, ToolMessage, UserMessage, text_of
from ...records import (
    HandlerStarted,
    MessagesImported,
    ModelStepEnded,
    ModelStepStarted,
    QuestionAnswered,
    Record,
    Row,
    RunCancelled,
    RunEnded,
    RunStarted,
    SessionOpened,
    SteeringReceived,
    ToolStepEnded,
    ToolStepStarted,
    Verdict,
)
from ...records.codec import decode
from .history import Handled, History
from .layers import LayerError
from .order import ORDER
from .script import SECRET, secret_of
from .tools import RERUN

Check = Callable[[History], Iterator[str]]

CHECKS: dict[str, Check] = {checker.__name__: checker for checker in ORDER}
"""Every checker, by its name, which is the sentence that it proves."""


def check(history: History) -> list[str]:
    """Everything that is wrong with ``history``: the name of the checker, a colon, and what it found."""
    return [f"{name.replace('_', ' ')}: {what}" for name, checker in CHECKS.items() for what in checker(history)]


def _checker(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def _records(history: History) -> Iterator[list[Record]]:
    for rows in history.rows.values():
        yield [row.record for row in rows]


# ---- handlers --------------------------------------------------------------------------------------------


@_checker
def no_handler_starts_twice(history: History) -> Iterator[str]:
    """A report tool's starts once; that of a rerun tool, and of what a rerun call makes, at most once per opening of the session."""
    started = {handled.number for handled in history.handled}
    again = {call.nested for number, call in enumerate(history.script.calls) if call.tool in RERUN and number in started}
    starts: defaultdict[str, list[Handled]] = defaultdict(list)
    for handled in history.handled:
        starts[handled.key].append(handled)
    for these in starts.values():
        if len(these) > 1 and not these[0].rerun and these[0].number not in again:
            yield f"call {these[0].number} started {len(these)} times"
        for epoch, times in Counter(handled.epoch for handled in these).items():
            if times > 1:
                yield f"call {these[0].number} started {times} times in epoch {epoch}"


@_checker
def no_call_is_made_of_two(history: History) -> Iterator[str]:
    """Each call of the model is one call: it never runs under two idempotency keys. (What a handler calls anew when it is rerun is new.)"""
    nested = {call.nested for call in history.script.calls}
    keys: defaultdict[int, set[str]] = defaultdict(set)
    for handled in history.handled:
        if handled.number not in nested:
            keys[handled.number].add(handled.key)
    for number, used in keys.items():
        if len(used) > 1:
            yield f"call {number} ran under {len(used)} keys"


@_checker
def a_veto_leaves_no_effect(history: History) -> Iterator[str]:
    """What a layer forbade, failed, answered or asked about did not start in that entry."""
    refused = {"veto", "drop", "stop", "fatal", "fail"}
    forbidden = {entered.number: entered for entered in history.entered if entered.behaviour in refused}
    for handled in history.handled:
        if handled.number in forbidden:
            yield f"layer {forbidden[handled.number].layer} did {forbidden[handled.number].behaviour} to call {handled.number}, and it ran"


@_checker
def what_a_person_has_denied_is_not_started(history: History) -> Iterator[str]:
    for records in _records(history):
        denied: set[str] = set()
        for record in records:
            if isinstance(record, QuestionAnswered) and record.verdict in ("deny", "expire"):
                denied.add(record.key)
            if isinstance(record, HandlerStarted) and record.key in denied:
                yield f"{record.key} was denied, and its handler started"


@_checker
def what_is_taken_out_is_not_stored_and_no_handler_runs_without_it(history: History) -> Iterator[str]:
    """A redacted secret is in no row of any process; and a handler is told the secret itself or is not started."""
    if not history.script.redacts:
        return
    for lineage in history.lineages:
        for seq, body, _ in lineage.rows:
            if SECRET.encode() in body:
                yield f"row {seq} of process {lineage.process} has a secret"
    edited = "edit" in history.script.answers
    for handled in history.handled:
        wanted = secret_of(handled.number) if history.script.call(handled.number).secret else ""
        if handled.secret != wanted and not (edited and not handled.secret):
            yield f"call {handled.number} ran with {handled.secret!r} instead of {wanted!r}"


@_checker
def no_handler_starts_before_its_record_is_stored(history: History) -> Iterator[str]:
    """When a handler starts, the disk already has the HandlerStarted of that very start: its call, and its process's epoch."""
    for session, rows in history.rows.items():
        keys, starts = _starts(rows)
        for handled in history.handled:
            wanted = (keys.get(handled.call_id), handled.epoch)
            if handled.session == session and not any(start == wanted and seq <= handled.stored for seq, start in starts):
                yield f"call {handled.number} ran in epoch {handled.epoch} before its start was stored"


def _starts(rows: list[Row]) -> tuple[dict[str, str], list[tuple[int, tuple[str | None, int]]]]:
    """The key of every call by its id, and (seq, (key, epoch)) of every HandlerStarted."""
    keys: dict[str, str] = {}
    starts: list[tuple[int, tuple[str | None, int]]] = []
    run, turn, epoch = "", 0, 0
    for row in rows:
        match row.record:
            case SessionOpened():
                epoch = row.record.epoch
            case RunStarted():
                run = row.record.run_id
            case ModelStepStarted():
                turn = row.record.turn
            case ModelStepEnded():
                keys.update((call.id, f"{run}/{turn}/{ordinal}") for ordinal, call in enumerate(row.record.message.tool_calls))
            case ToolStepStarted() if row.record.call is not None:
                keys[row.record.call.id] = row.record.key
            case HandlerStarted():
                starts.append((row.seq, (row.record.key, epoch)))
            case _:
                pass
    return keys, starts


@_checker
def a_process_whose_append_lost_does_nothing(history: History) -> Iterator[str]:
    for handled in history.handled:
        if handled.refused:
            yield f"process {handled.process} ran call {handled.number}, whose start the disk had refused"


@_checker
def what_is_said_of_an_effect_is_true(history: History) -> Iterator[str]:
    """``none`` is never said of a call whose handler has acted; ``happened`` only of one that completed; a failure of none that did."""
    acted: defaultdict[str, list[Handled]] = defaultdict(list)
    for handled in history.handled:
        acted[handled.call_id].append(handled)
    for records in _records(history):
        for record in records:
            if not isinstance(record, ToolStepEnded):
                continue
            message, seen = record.message, acted.get(record.message.tool_call_id, [])
            if record.effect != message.effect:
                yield f"{record.key}: the record says {record.effect}, the model was told {message.effect}"
            if record.effect == "none" and any(handled.acted for handled in seen):
                yield f"{record.key}: 'none' was said, and the handler had acted"
            found = record.decided_by == "reconcile"  # the tool was asked, and says what it has done, not whether its handler returned
            if record.effect == "happened" and not any(handled.acted if found else handled.ended == "completed" for handled in seen):
                yield f"{record.key}: 'happened' was said, and no handler had completed"
            if message.failed and message.effect not in ("none", "happened", "unknown"):
                yield f"{record.key}: it failed, and nothing was said of its effect"
            if message.failed and "nothing happened" in text_of(message.content) and any(handled.acted for handled in seen):
                yield f"{record.key}: the model was told that nothing happened, and the handler had acted"


# ---- requests and the transcript ---------------------------------------------------------------------------


@_checker
def every_request_is_valid(history: History) -> Iterator[str]:
    for asked in history.asked:
        yield from faults_of(asked.messages)


def faults_of(messages: tuple[Message, ...]) -> Iterator[str]:
    """What a provider would refuse: results that are missing, doubled, out of order or of no call; ids used twice; blank messages;
    a call whose arguments are no JSON object and which a model is not told to have failed."""
    seen: set[str] = set()
    due: list[str] = []
    broken: set[str] = set()
    for place, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if not due or message.tool_call_id != due[0]:
                yield f"message {place} is a result of {message.tool_call_id!r}; due is {due[0] if due else 'none'!r}"
            else:
                due.pop(0)
            if message.tool_call_id in broken and not message.failed:
                yield f"message {place} says that {message.tool_call_id!r} ran, whose arguments are no JSON object"
            continue
        if due:
            yield f"message {place} comes before the results of {due}"
            due = []
        if not text_of(message.content).strip() and not (isinstance(message, AssistantMessage) and message.tool_calls):
            yield f"message {place} is blank"
        for call in message.tool_calls if isinstance(message, AssistantMessage) else ():
            if not call.id or call.id in seen:
                yield f"the id {call.id!r} is used twice"
            seen.add(call.id)
            due.append(call.id)
            if not _is_object(call.arguments):
                broken.add(call.id)
    if due:
        yield f"nothing says what became of {due}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@_checker
def scaffolding_is_never_in_the_transcript(history: History) -> Iterator[str]:
    nudges = {recovery.nudge for recovery in RECOVERIES.values() if recovery.nudge}
    shown: list[tuple[Message, ...]] = [Transcript(records).snapshot() for records in _records(history)]
    shown += [finished.result.messages for finished in history.finished if finished.result is not None]
    for messages in shown:
        for message in messages:
            if isinstance(message, UserMessage) and text_of(message.content) in nudges:
                yield f"{message.content!r} is in the transcript"


@_checker
def the_rows_give_the_transcript_that_was_shown(history: History) -> Iterator[str]:
    """A result's messages are those of the rows up to the end of its run."""
    ends: dict[tuple[str, str], tuple[Message, ...]] = {}
    for session, rows in history.rows.items():
        transcript = Transcript()
        for row in rows:
            transcript.add(row.record)
            if isinstance(row.record, RunEnded):
                ends[session, row.record.run_id] = transcript.messages
    for finished in history.finished:
        result = finished.result
        if result is None or result.outcome.value == "waiting" or result.reason == "open":
            continue
        if (session_run := (result.session_id, result.run_id)) not in ends:
            yield f"{result.run_id} was said to have ended, and the journal does not say so"
        elif result.messages != ends[session_run]:
            yield f"the transcript that {result.run_id} returned is not that of its rows"


# ---- the journal -------------------------------------------------------------------------------------------


@_checker
def every_accepted_command_is_stored(history: History) -> Iterator[str]:
    """Each command that was acknowledged is a row, and was one when it was acknowledged."""
    for acknowledged in history.acknowledged:
        rows = history.rows.get("s", [])[: acknowledged.stored]
        if not any(_holds(row.record, acknowledged.kind, acknowledged.mark, row.seq) for row in rows):
            yield f"{acknowledged.kind} {acknowledged.mark} was acknowledged and is not stored"


def _holds(record: Record, kind: str, mark: str, seq: int) -> bool:
    match record:
        case RunStarted():
            return kind == "run" and record.prompt.content == mark
        case SteeringReceived():
            return kind == "steer" and record.message.content == mark
        case QuestionAnswered():
            return kind == "answer" and record.question_id == mark
        case MessagesImported():
            return kind == "import" and any(message.content == mark for message in record.messages)
        case RunCancelled():
            return kind == "cancel" and seq > int(mark)
        case _:
            return False


@_checker
def the_fold_of_the_records_is_the_live_state(history: History) -> Iterator[str]:
    """After every append, of every process: what it had in memory is what the encoded records give."""
    for lineage in history.lineages:
        state, at = State(), 0
        seen = iter(lineage.states)
        wanted = next(seen, None)
        for seq, body, _ in lineage.rows:
            while wanted is not None and wanted[0] < seq:
                if wanted[0] == at and wanted[1] != state:
                    yield f"process {lineage.process}: after seq {at} the live state is not the fold"
                wanted = next(seen, None)
            try:
                state, at = apply(state, decode(body)), seq
            except ProtocolError as error:
                yield f"process {lineage.process} appended what cannot follow: {error}"
                return
        while wanted is not None:
            if wanted[0] == at and wanted[1] != state:
                yield f"process {lineage.process}: after seq {at} the live state is not the fold"
            wanted = next(seen, None)


@_checker
def the_stored_rows_follow_from_each_other(history: History) -> Iterator[str]:
    for session, rows in history.rows.items():
        state = State()
        for expected, row in enumerate(rows, start=1):
            if row.seq != expected:
                yield f"{session}: seq {row.seq} is where {expected} should be"
            try:
                state = apply(state, row.record)
            except ProtocolError as error:
                yield f"{session}: seq {row.seq} cannot follow: {error}"
                return


@_checker
def every_call_is_settled_once_before_its_run_ends(history: History) -> Iterator[str]:
    for records in _records(history):
        run, turn, due = "", 0, dict[str, int]()
        for record in records:
            match record:
                case RunStarted():
                    run, turn, due = record.run_id, 0, {}
                case ModelStepEnded() if record.verdict is Verdict.TOOLS:
                    due = {call.id: 0 for call in record.message.tool_calls}
                    if len(due) != len(record.message.tool_calls):
                        yield f"{run}: two calls of turn {turn} have the same id"
                    turn += 1
                case ToolStepStarted() if record.call is not None:
                    due[record.call.id] = 0
                case ToolStepEnded():
                    due[record.message.tool_call_id] = due.get(record.message.tool_call_id, 0) + 1
                    if due[record.message.tool_call_id] > 1:
                        yield f"{record.key} was settled twice"
                case RunEnded():
                    open_calls = [call for call, times in due.items() if not times]
                    if open_calls:
                        yield f"{run} ended, and nothing says what became of {open_calls}"
                    due = {}
                case _:
                    pass


# ---- the caller --------------------------------------------------------------------------------------------

_EXPECTED = (CommandRefused, JournalError, ProviderError, Fatal, LayerError, asyncio.CancelledError, SystemExit)


@_checker
def a_caller_gets_a_result_or_an_error_that_is_documented(history: History) -> Iterator[str]:
    for finished in history.finished:
        if finished.error is not None and (not isinstance(finished.error, _EXPECTED) or isinstance(finished.error, ProtocolError)):
            yield f"{finished.move} raised {type(finished.error).__name__}: {finished.error}"
    for problem in history.problems:
        yield f"nobody was told: {problem}"


@_checker
def without_further_faults_the_session_comes_to_rest(history: History) -> Iterator[str]:
    if history.unfinished:
        yield history.unfinished


def finished_kinds(history: History) -> Counter[str]:
    """How many moves ended in which way: outcomes and errors, by name."""
    kinds: Counter[str] = Counter()
    for finished in history.finished:
        kinds[_kind(finished.result, finished.error)] += 1
    return kinds


def _kind(result: Any, error: BaseException | None) -> str:
    if error is not None:
        return type(error).__name__
    return result.outcome.value if result is not None else "done"
