"""What the simulator has found in the runtime, as the small scripts that showed it."""

from __future__ import annotations

from interlock.messages import ToolMessage
from interlock.testing.sim import Act, Call, Reply, Script, simulate


def test_a_steer_to_a_session_whose_batch_a_crash_left_open_is_accepted_and_raises_nothing() -> None:
    report = simulate(
        Script(
            calls=(Call("move"), Call("move")),
            replies=(Reply("calls", (0, 1)),),
            acts=(Act("crash", "after", "ToolStepStarted", share=1.0),),
            moves=("run", "steer", "interrupt"),
            layers=0,
        )
    )
    assert report.ok, report
    assert [(command.kind, command.process) for command in report.history.acknowledged[:2]] == [("steer", 2), ("steer", 2)]
    assert [finished.error for finished in report.history.finished] == [None] * len(report.history.finished)


def test_a_call_that_had_started_is_never_said_to_have_done_nothing_because_its_second_entry_was_cancelled() -> None:
    report = simulate(
        Script(
            calls=(Call("look", does="slow"),),
            replies=(Reply("calls", (0,)),),
            acts=(Act("crash", "after", "effect"), Act("cancel", "before", "SessionOpened", nth=2)),
            moves=("run", "resume"),
            layers=0,
            flush_s=0.01,
        )
    )
    assert report.ok, report
    assert len(report.history.handled) == 1
    told = [m for asked in report.history.asked for m in asked.messages if isinstance(m, ToolMessage)]
    assert {message.effect for message in told} == {"unknown"}
