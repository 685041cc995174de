"""Checkers of what may be beside what, and of who may write after whom: pure functions, as those in ``checks``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...records import Record, Row, SessionOpened, ToolStepEnded, ToolStepStarted
from ...records.codec import decode
from .history import Handled, History
from .tools import SERIAL


def a_serial_call_runs_beside_no_other(history: History) -> Iterator[str]:
    """No handler starts while that of another call runs, if either of them is serial; unless the other call has its result, and was left
    behind. What a handler or a layer calls is part of its call."""
    nested = {call.nested for call in history.script.calls}
    for handled in history.handled:
        beside = [other for other in handled.beside if other.call_id != handled.call_id and other.number not in nested]
        if handled.number in nested or not beside:
            continue
        settled = _settled(history.rows.get(handled.session, [])[: handled.stored])
        for other in beside:
            if other.call_id not in settled and (_serial(history, handled) or _serial(history, other)):
                yield f"call {handled.number} started beside call {other.number}"


def _serial(history: History, handled: Handled) -> bool:
    return history.script.call(handled.number).tool in SERIAL


def _settled(rows: list[Row]) -> set[str]:
    return {row.record.message.tool_call_id for row in rows if isinstance(row.record, ToolStepEnded)}


def no_call_outlives_the_call_that_made_it(history: History) -> Iterator[str]:
    """In the epoch in which it was made. What a crash has left behind is settled in any order."""
    for rows in history.rows.values():
        made: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            match row.record:
                case SessionOpened():
                    made.clear()
                case ToolStepStarted() if row.record.parent:
                    made[row.record.parent].add(row.record.key)
                case ToolStepEnded():
                    for left in sorted(made.pop(row.record.key, ())):
                        yield f"{row.record.key} ended before {left}, which it had made"
                    for others in made.values():
                        others.discard(row.record.key)
                case _:
                    pass


def an_answer_is_given_for_the_arguments_that_were_asked_about(history: History) -> Iterator[str]:
    """A layer that asks is shown an answer only if it, or another layer, has asked about the very arguments that it sees."""
    asked: set[tuple[int, str]] = set()
    for entered in history.entered:
        if entered.behaviour != "suspend":
            continue
        about = (entered.number, entered.arguments)
        if not entered.answered:
            asked.add(about)
        elif about not in asked:
            yield f"layer {entered.layer} was shown an answer for call {entered.number} with {entered.arguments}, which nobody had seen"


def whoever_writes_after_another_process_opens_the_session_anew(history: History) -> Iterator[str]:
    """The first record of a process, and its first one after rows of others, is a SessionOpened: an epoch has one writer."""
    for lineage in history.lineages:
        ours_before = False
        for seq, body, ours in lineage.rows:
            if ours and not ours_before:
                record: Record = decode(body)
                if not isinstance(record, SessionOpened):
                    yield f"process {lineage.process} wrote seq {seq}, a {type(record).__name__}, in an epoch of another's"
            ours_before = ours


ORDER = (
    a_serial_call_runs_beside_no_other,
    no_call_outlives_the_call_that_made_it,
    an_answer_is_given_for_the_arguments_that_were_asked_about,
    whoever_writes_after_another_process_opens_the_session_anew,
)
