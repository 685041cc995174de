"""Real processes, killed by SIGKILL: nothing twice, nothing lost. ``make kills`` does the same five hundred times."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.records import HandlerStarted, Row, RunEnded, ToolStepEnded
from kills import command
from kills.checks import Journal, unfinished, violations
from kills.harness import Tally, harness
from kills.life import Plan
from kills.points import NAMED, WINDOWS
from kills.world import Entry, Said, World, prompt
from kills.zygote import Zygote
from threaded import serving

KILLS = 40


def test_over_real_kills_no_report_handler_begins_twice_and_nothing_acknowledged_is_lost() -> None:
    with harness() as played:
        tally = played.tally
        while tally.killed < KILLS and not tally.violations:
            played.play(tally.worlds, kills=command.KILLS_PER_WORLD)
    assert tally.violations == []
    # Few enough kills here that a busy machine shifts those at random instants; five hundred are held to nine in ten.
    assert tally.open.total() >= 0.7 * tally.killed
    assert all(tally.kills[window] for window in NAMED)


# ---- the checks would notice ---------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    rows: tuple[Row, ...]
    before: tuple[Row, ...]
    entries: tuple[Entry, ...]
    bodies: tuple[dict[str, Any], ...]
    said: tuple[Said, ...]

    def wrong(self) -> list[str]:
        return list(violations(Journal(self.rows), self.before, self.entries, self.bodies, self.said))


@pytest.fixture(scope="module")
def lived() -> Iterator[Evidence]:
    """What one undisturbed life of a world leaves behind: a run with pays and sends, whose ledger and journal agree."""
    with tempfile.TemporaryDirectory() as name, Zygote() as zygote:
        world = World(0, Path(name))
        world.jobs[0] = [["pay", "send", "note"], ["post"]]
        with serving(world.step) as server:
            plan = Plan(
                journal=str(world.journal),
                ledger=str(world.ledger),
                base_url=server.base_url,
                control=zygote.control,
                world=world.name,
                do="run",
                prompt=prompt(0),
                run_id="run-0",
                steer="And mind this.",
            )
            process = zygote.start(plan)
            heard: list[dict[str, Any]] = []
            while (one := process.hear()) is not None:
                heard.append(one)
            assert process.end() == 0, heard
        rows = tuple(world.rows())
        said = tuple(Said(1, one["what"], one) for one in heard if one["what"] in ("steered", "result"))
        assert [one.what for one in said] == ["steered", "result"]
        yield Evidence(rows, rows, tuple(world.entries()), tuple(world.bodies), said)


def test_an_undisturbed_world_has_no_violation(lived: Evidence) -> None:
    assert lived.wrong() == []
    assert list(unfinished(Journal(lived.rows))) == []
    assert Counter(entry.what for entry in lived.entries) == {"began": 4, "happened": 4}


def again(lived: Evidence, tool: str) -> Evidence:
    """A handler of ``tool`` that began a second time."""
    return replace(lived, entries=(*lived.entries, next(entry for entry in lived.entries if (entry.what, entry.tool) == ("began", tool))))


def changed(lived: Evidence, kind: type[Any], change: Callable[[Any], Any], *, which: int = 0) -> Evidence:
    """Another journal, in which one record of ``kind`` is not what it was."""
    place = [n for n, row in enumerate(lived.rows) if isinstance(row.record, kind)][which]
    rows = list(lived.rows)
    rows[place] = rows[place]._replace(record=change(rows[place].record))
    return replace(lived, rows=tuple(rows), before=tuple(rows))


def told(lived: Evidence, change: Callable[[list[dict[str, Any]]], object]) -> Evidence:
    """Another last request."""
    body = msgspec.json.decode(msgspec.json.encode(lived.bodies[-1]))
    change(body["messages"])
    return replace(lived, bodies=(*lived.bodies[:-1], body))


def as_effect(effect: str) -> Callable[[Any], Any]:
    def change(record: Any) -> Any:
        message = msgspec.structs.replace(record.message, effect=effect)
        return msgspec.structs.replace(record, effect=effect, message=message)

    return change


def failed(record: Any) -> Any:
    return msgspec.structs.replace(record, message=msgspec.structs.replace(record.message, failed=True))


PLANTED: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "a report handler began twice": (lambda lived: again(lived, "pay"), "the handler of pay c0-0-0 began 2 times"),
    "a rerun handler began unrecorded": (lambda lived: again(lived, "note"), "began 2 times, and the journal knows of 1"),
    "an effect that did not happen": (
        lambda lived: replace(lived, entries=tuple(entry for entry in lived.entries if entry.what == "began")),
        "happened was recorded, and it had not",
    ),
    "an effect that is denied": (
        lambda lived: changed(lived, ToolStepEnded, as_effect("none")),
        "none was recorded, and its handler had begun",
    ),
    "an effect that is not told": (
        lambda lived: changed(lived, ToolStepEnded, lambda record: msgspec.structs.replace(record, effect="unknown")),
        "the record says unknown, and the model is told happened",
    ),
    "a completed call that is only called failed": (
        lambda lived: changed(lived, ToolStepEnded, failed),
        "the model is not told that the tool itself had completed",
    ),
    "a row that is gone": (lambda lived: replace(lived, rows=lived.rows[:-1]), "rows that were stored before have changed, or are gone"),
    "a result that is gone": (
        lambda lived: replace(lived, rows=lived.rows[:-1], before=()),
        "the result {",
    ),
    "a message that is gone": (
        lambda lived: replace(lived, said=(*lived.said, Said(1, "steered", {"text": "And that."}))),
        "the accepted message 'And that.' was lost",
    ),
    "an answer that is gone": (
        lambda lived: replace(lived, said=(*lived.said, Said(1, "answered", {"question": "q"}))),
        "the accepted answer to q was lost",
    ),
    "a cancellation that is gone": (
        lambda lived: replace(lived, said=(*lived.said, Said(1, "cancelled"))),
        "an accepted cancellation was lost",
    ),
    "a result that was never recorded": (
        lambda lived: told(lived, lambda messages: messages[-1].update(content="made up")),
        "that is not in the journal: 'made up'",
    ),
    "a request without a result": (lambda lived: told(lived, lambda messages: messages.pop()), "a request is not valid"),
    "a handler's second start": (
        lambda lived: changed(lived, HandlerStarted, lambda record: msgspec.structs.replace(record, attempt=1)),
        "the journal does not fold",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_the_checks_notice(what: str, lived: Evidence) -> None:
    plant, sentence = PLANTED[what]
    assert any(sentence in wrong for wrong in plant(lived).wrong()), plant(lived).wrong()


def test_a_run_that_did_not_end_is_noticed(lived: Evidence) -> None:
    assert any(
        "were started" in wrong for wrong in unfinished(Journal([row for row in lived.rows if not isinstance(row.record, RunEnded)]))
    )


def test_kills_that_miss_the_windows_are_no_proof() -> None:
    tally = Tally(kills=Counter(dict.fromkeys(WINDOWS, 80)), open=Counter(dict.fromkeys(WINDOWS, 80)))
    assert command.shortfalls(tally) == []
    tally.kills[NAMED[0]] = 10
    tally.open.clear()
    assert len(command.shortfalls(tally)) == 2
