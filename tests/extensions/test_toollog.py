"""ToolLog: one entry and one line per call, whatever became of it."""

from __future__ import annotations

import logging

import pytest

from interlock.extensions.toollog import ToolLog
from interlock.messages import Effect, ToolMessage
from interlock.records import Outcome, RunEnded, SessionOpened, ToolStepEnded, ToolStepStarted

from .fakes import Context


def ended(key: str, *, code: str = "ok", effect: Effect = "happened", decided_by: str = "handler", tool: str = "add") -> ToolStepEnded:
    message = ToolMessage(tool_call_id=f"id-{key}", name=tool, content="x", failed=code != "ok", effect=effect)
    return ToolStepEnded(key=key, message=message, effect=effect, decided_by=decided_by, code=code)


def test_a_call_is_timed_between_its_start_and_its_end() -> None:
    log, context = ToolLog(), Context()
    log.on_record(context, ToolStepStarted(key="k"))
    context.now += 2.5
    log.on_record(context, ended("k"))
    [entry] = log.entries
    assert (entry.session_id, entry.run_id, entry.key, entry.call_id, entry.tool) == ("s", "r", "k", "id-k", "add")
    assert (entry.code, entry.failed, entry.effect, entry.decided_by) == ("ok", False, "happened", "handler")
    assert (entry.started_at, entry.duration_s) == (1000.0, 2.5)


@pytest.mark.parametrize("code", ["vetoed", "malformed", "unknown_tool", "superseded"])
def test_a_call_that_never_started_has_an_entry_and_no_duration(code: str) -> None:
    log = ToolLog()
    log.on_record(Context(), ended("k", code=code, effect="none", decided_by="runtime"))
    [entry] = log.entries
    assert (entry.code, entry.failed, entry.duration_s) == (code, True, 0.0)


def test_each_call_is_one_line_at_info(caplog: pytest.LogCaptureFixture) -> None:
    log = ToolLog()
    with caplog.at_level(logging.INFO, logger="interlock.tools"):
        log.on_record(Context(), ended("k"))
        log.on_record(Context(), ended("k2", tool="evil\nWARNING all is lost"))
    assert caplog.messages[0] == "tool add (call id-k) ok in 0.000 s, effect happened, decided by handler"
    assert len(caplog.messages) == 2
    assert "\n" not in caplog.messages[1]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_sessions_with_equal_keys_do_not_mix() -> None:
    log, one, two = ToolLog(), Context(session_id="one"), Context(session_id="two")
    two.now = 2000.0
    for context in (one, two):
        log.on_record(context, ToolStepStarted(key="k"))
    one.now += 1
    two.now += 2
    for context in (one, two):
        log.on_record(context, ended("k"))
    assert [(entry.session_id, entry.duration_s) for entry in log.entries] == [("one", 1.0), ("two", 2.0)]


@pytest.mark.parametrize("record", [RunEnded(run_id="r", outcome=Outcome.CANCELLED, reason="cancelled"), SessionOpened(epoch=2)])
def test_calls_of_a_dead_run_are_forgotten(record: RunEnded | SessionOpened) -> None:
    log, context = ToolLog(), Context()
    log.on_record(context, ToolStepStarted(key="k"))
    log.on_record(context, record)
    context.now += 60
    log.on_record(context, ended("k"))
    assert log.entries[0].duration_s == 0.0
    assert not any(vars(log)["_started"].values())


def test_the_entries_are_bounded() -> None:
    log = ToolLog(entries_max=3)
    for number in range(5):
        log.on_record(Context(), ended(str(number)))
    assert [entry.key for entry in log.entries] == ["2", "3", "4"]
    assert ToolLog().entries.maxlen == 10_000
