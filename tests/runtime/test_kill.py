"""G11, as far as a new run goes: whatever ``kill -9`` left open is settled honestly, and nothing runs twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from helpers import Played, play
from interlock import Outcome
from interlock.machine import fold
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, SessionOpened, ToolStepEnded
from interlock.testing import Step, call, calls, text
from mortal import POINTS, kill_at, payment
from threaded import serving
from wire_rules import faults

# By the point of the kill: the lines of the ledger, and what becomes of the two calls (None: they never existed).
AFTERWARDS: dict[str, tuple[list[str], list[tuple[str, str]] | None]] = {
    "end of the model step": ([], None),
    "response buffered": ([], None),  # it was not in the journal yet
    "in the onion": ([], None),  # nothing has waited for the journal since the response came
    "A in the handler": ([], [("interrupted", "unknown"), ("superseded", "none")]),
    "A in the handler, B in the onion": ([], [("interrupted", "unknown"), ("superseded", "none")]),
    "A in the handler, which may rerun": ([], [("interrupted", "unknown"), ("superseded", "none")]),
    "A after the effect": (["A"], [("interrupted", "unknown"), ("superseded", "none")]),
    "after the handler": (["A"], [("interrupted", "unknown"), ("superseded", "none")]),
    "result buffered": (["A"], [("interrupted", "unknown"), ("superseded", "none")]),  # nor was this
    "B in the handler": (["A"], [("ok", "happened"), ("interrupted", "unknown")]),
}


def pay_two() -> Step:
    return calls(call("a", "pay", {"invoice": "A"}), call("b", "pay", {"invoice": "B"}))


def run_anew(point: str, journal: Path, ledger: Path) -> Played:
    made = play(
        [text("All right.")], tools=[payment(ledger, point)], prompts=["And now?"], journal=f"sqlite:///{journal}", session_id="mortal"
    )
    return asyncio.run(made)


def test_every_point_of_the_harness_has_its_expectation() -> None:
    assert set(AFTERWARDS) == set(POINTS)


@pytest.mark.parametrize("point", AFTERWARDS)
def test_a_new_run_settles_what_a_killed_process_left_open_and_nothing_runs_twice(point: str, tmp_path: Path) -> None:
    journal, ledger = tmp_path / "agent.db", tmp_path / "ledger"
    ledger.touch()
    with serving([pay_two()]) as server:
        kill_at(point, base_url=server.base_url, journal=journal, ledger=ledger)
    lines, settled = AFTERWARDS[point]
    assert ledger.read_text().split() == lines

    played = run_anew(point, journal, ledger)

    assert (played.result.outcome, played.result.text) == (Outcome.COMPLETED, "All right.")
    assert ledger.read_text().split() == lines
    assert [fault for body in played.bodies for fault in faults(body)] == []
    ended = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert [(record.code, record.effect) for record in ended] == (settled or [])
    told = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert [(m.failed, m.effect) for m in told] == [(code != "ok", effect) for code, effect in settled or []]
    for message in (m for m in told if m.failed):
        assert "may have happened" in message.content if message.effect == "unknown" else "nothing happened" in message.content
    started = sum(effect != "none" for _, effect in settled or [])
    assert sum(isinstance(record, HandlerStarted) for record in played.records) == started
    assert sum(isinstance(record, SessionOpened) for record in played.records) == 2
    assert fold(played.records).phase.value == "idle"
