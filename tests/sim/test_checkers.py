"""Who checks the checkers: for each there is a fault, planted in the runtime or in the world, of which it complains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace

from interlock.driver import context as driver_context
from interlock.driver import run as driver_run
from interlock.driver.session import LiveSession
from interlock.driver.tool_step import ToolStep
from interlock.extensions.onion import Slot
from interlock.journal.transcript import Transcript
from interlock.machine import TRANSITIONS, Phase, State
from interlock.records import HandlerStarted, ModelStepEnded, QuestionAnswered, RunCancelled, SessionOpened, ToolStepEnded, Traits
from interlock.testing.sim import CHECKS, Act, Call, Reply, Script, simulate
from interlock.testing.sim.disk import SimLog
from interlock.testing.sim.layers import Discreet, Vetoed

# The functions of these names hide their modules.
apply_module = import_module("interlock.machine.apply")
decide_module = import_module("interlock.machine.decide")

Plant = Callable[[pytest.MonkeyPatch], None]

ONE = Script(calls=(Call(layers=("pass",)),), replies=(Reply("calls", (0,)),))
CRASHED = Script(
    calls=(Call(layers=("pass",)),), replies=(Reply("calls", (0,)),), acts=(Act("crash", "after", "effect"),), moves=("run", "resume")
)


@dataclass
class Fault:
    script: Script
    plant: Plant


def rerun_everything(patch: pytest.MonkeyPatch) -> None:
    """Every tool is started again after a crash."""
    patch.setattr(apply_module, "traits_of", lambda state, call: Traits(on_crash="rerun"))


def keys_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """The idempotency key changes when the session is opened anew."""
    original = driver_context.Context.idempotency_key
    patch.setattr(driver_context.Context, "idempotency_key", lambda self: f"{original(self)}-{self.epoch}")


def vetoes_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """What a layer raises before it delegates does not keep the call from running."""
    original = Slot.call_next

    async def call_next(self: Any) -> Any:
        try:
            return await original(self)
        except Vetoed:
            while self.inner is not None:
                self = self.inner
            return await self.core()

    patch.setattr(Slot, "call_next", call_next)


def a_denial_is_an_answer_like_any_other(patch: pytest.MonkeyPatch) -> None:
    """A call that was denied may enter its layers again."""

    def answer(state: State, record: Any) -> State:
        return original(state, replace(record, verdict="answer"))

    original, targets = TRANSITIONS[Phase.TOOLS, QuestionAnswered]
    patch.setitem(TRANSITIONS, (Phase.TOOLS, QuestionAnswered), (answer, targets))


def a_redaction_forgets_the_start(patch: pytest.MonkeyPatch) -> None:
    """The record that a handler starts is written as it is."""
    original = Discreet.redact
    patch.setattr(Discreet, "redact", lambda self, record: record if isinstance(record, HandlerStarted) else original(self, record))


def nobody_waits_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    """A handler starts before its record is stored."""

    async def durable(self: Any, seq: int | None = None) -> None: ...

    patch.setattr(SimLog, "durable", durable)


def a_refusal_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A process goes on although the disk has refused its rows."""
    patch.setattr(SimLog, "_check", lambda self: None)


def everything_was_harmless(patch: pytest.MonkeyPatch) -> None:
    """What a crash cut off is said to have had no effect."""
    original = decide_module._settle
    patch.setattr(decide_module, "_settle", lambda call, code, reason, effect, ending=None: original(call, code, reason, "none", ending))


def results_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The transcript leaves the results of calls out."""
    patch.setitem(Transcript._SAYS, ToolStepEnded, lambda self, record: None)


def nudges_stay(patch: pytest.MonkeyPatch) -> None:
    """A re-prompt joins the transcript."""
    original = Transcript._SAYS[ModelStepEnded]

    def say(self: Any, record: Any) -> None:
        original(self, record)
        self.messages = (*self.messages, *self.overlay)

    patch.setitem(Transcript._SAYS, ModelStepEnded, say)


def the_result_is_cut(patch: pytest.MonkeyPatch) -> None:
    """The caller gets less than the transcript."""
    original = driver_run.result_of
    patch.setattr(driver_run, "result_of", lambda *args: replace(original(*args), messages=original(*args).messages[1:]))


def commands_are_waved_through(patch: pytest.MonkeyPatch) -> None:
    """A steer is acknowledged and forgotten."""

    async def command(self: Any, command: Any) -> None: ...

    patch.setattr(driver_run.Run, "command", command)


def the_live_state_drifts(patch: pytest.MonkeyPatch) -> None:
    """What a process has in memory is not what its records say."""
    original = LiveSession.commit

    def commit(self: Any, record: Any) -> int:
        seq = original(self, record)
        self.state = replace(self.state, requests=self.state.requests + 1)
        return seq

    patch.setattr(LiveSession, "commit", commit)


def a_row_is_lost(patch: pytest.MonkeyPatch) -> None:
    """The disk loses the second row of a session."""
    original = SimLog.store
    patch.setattr(SimLog, "store", lambda self, rows: original(self, [row for row in rows if row[0] != 2]))
    patch.setattr(SimLog, "_why_not", lambda self, rows: None)


def cancelling_forgets_the_calls(patch: pytest.MonkeyPatch) -> None:
    """A cancelled run ends at once, whatever its calls are doing."""

    def cancel(state: State, record: Any) -> State:
        return replace(original(state, record), phase=Phase.ENDING)

    original, _ = TRANSITIONS[Phase.TOOLS, RunCancelled]
    patch.setitem(TRANSITIONS, (Phase.TOOLS, RunCancelled), (cancel, frozenset({Phase.ENDING})))


def a_bug_comes_out(patch: pytest.MonkeyPatch) -> None:
    """Something that is documented nowhere reaches the caller."""

    def build_request(*args: Any) -> Any:
        raise ZeroDivisionError

    patch.setattr(driver_run, "build_request", build_request)


def runs_never_end(patch: pytest.MonkeyPatch) -> None:
    """The machine does not want the run closed."""
    patch.setitem(decide_module._DECIDERS, Phase.ENDING, lambda state: ())


def serial_calls_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Every call is taken for one that may run beside others when it is decided what starts."""
    original = decide_module.traits_of
    patch.setattr(decide_module, "traits_of", lambda state, call: replace(original(state, call), parallel=True))


def calls_are_left_behind(patch: pytest.MonkeyPatch) -> None:
    """A call that ends does not end the ones that it made."""

    async def end_nested(self: Any) -> None: ...

    patch.setattr(ToolStep, "_end_nested", end_nested)


def an_answer_is_for_any_arguments(patch: pytest.MonkeyPatch) -> None:
    """A person's yes to one thing is taken for a yes to another."""
    patch.setattr(ToolStep, "answer", property(lambda self: self.asked.answer))


def what_was_given_up_was_harmless(patch: pytest.MonkeyPatch) -> None:
    """A call that did not stop in time is said to have had no effect."""
    original = driver_run.given_up

    def given_up(call: Any) -> ToolStepEnded:
        record = original(call)
        return replace(record, effect="none", message=replace(record.message, effect="none"))

    patch.setattr(driver_run, "given_up", given_up)


def a_session_is_opened_once(patch: pytest.MonkeyPatch) -> None:
    """A process that comes back to a session goes on in the epoch of whoever had it meanwhile."""

    def commit(self: Any, record: Any, finish: Any = None) -> Any:
        return record if isinstance(record, SessionOpened) and self._opened else original(self, record, finish)

    original = LiveSession.commit
    patch.setattr(LiveSession, "commit", commit)


FAULTS: dict[str, Fault] = {
    "no_handler_starts_twice": Fault(CRASHED, rerun_everything),
    "no_call_is_made_of_two": Fault(
        Script(
            calls=(Call("look"),),
            replies=(Reply("calls", (0,)),),
            layers=0,
            acts=(Act("crash", "after", "effect"),),
            moves=("run", "resume"),
        ),
        keys_of_the_epoch,
    ),
    "a_veto_leaves_no_effect": Fault(Script(calls=(Call(layers=("veto",)),), replies=(Reply("calls", (0,)),)), vetoes_are_ignored),
    "what_a_person_has_denied_is_not_started": Fault(
        Script(calls=(Call(layers=("suspend",)),), replies=(Reply("calls", (0,)),), answers=("deny",)), a_denial_is_an_answer_like_any_other
    ),
    "what_is_taken_out_is_not_stored_and_no_handler_runs_without_it": Fault(
        Script(calls=(Call(secret=True),), replies=(Reply("calls", (0,)),), redacts=True), a_redaction_forgets_the_start
    ),
    "no_handler_starts_before_its_record_is_stored": Fault(ONE, nobody_waits_for_the_disk),
    "a_process_whose_append_lost_does_nothing": Fault(
        Script(
            calls=(Call(layers=("pass",)),),
            replies=(Reply("calls", (0,)),),
            acts=(Act("freeze", "after", "ToolStepStarted", last_s=30.0),),
            moves=("run", "run"),
        ),
        a_refusal_is_not_noticed,
    ),
    "what_is_said_of_an_effect_is_true": Fault(CRASHED, everything_was_harmless),
    "every_request_is_valid": Fault(ONE, results_are_forgotten),
    "scaffolding_is_never_in_the_transcript": Fault(Script(replies=(Reply("dropped"),)), nudges_stay),
    "the_rows_give_the_transcript_that_was_shown": Fault(ONE, the_result_is_cut),
    "every_accepted_command_is_stored": Fault(
        Script(calls=(Call(),), replies=(Reply("calls", (0,)),), acts=(Act("steer", "after", "HandlerStarted"),)),
        commands_are_waved_through,
    ),
    "the_fold_of_the_records_is_the_live_state": Fault(ONE, the_live_state_drifts),
    "the_stored_rows_follow_from_each_other": Fault(ONE, a_row_is_lost),
    "every_call_is_settled_once_before_its_run_ends": Fault(
        Script(calls=(Call(does="slow"),), replies=(Reply("calls", (0,)),), acts=(Act("cancel", "after", "HandlerStarted"),)),
        cancelling_forgets_the_calls,
    ),
    "a_caller_gets_a_result_or_an_error_that_is_documented": Fault(ONE, a_bug_comes_out),
    "without_further_faults_the_session_comes_to_rest": Fault(ONE, runs_never_end),
    "a_serial_call_runs_beside_no_other": Fault(
        Script(calls=(Call(does="slow"), Call("move")), replies=(Reply("calls", (0, 1)),)), serial_calls_wait_for_nobody
    ),
    "no_call_outlives_the_call_that_made_it": Fault(
        Script(calls=(Call(does="nest_left", nested=1), Call(does="slow")), replies=(Reply("calls", (0,)),)), calls_are_left_behind
    ),
    "an_answer_is_given_for_the_arguments_that_were_asked_about": Fault(
        Script(calls=(Call(layers=("change", "suspend")),), replies=(Reply("calls", (0,)),), layers=2), an_answer_is_for_any_arguments
    ),
    "whoever_writes_after_another_process_opens_the_session_anew": Fault(
        # Another process runs while the first waits; what comes late of the first one's call is written by the first one.
        Script(calls=(Call("wait", does="stubborn"),), replies=(Reply("calls", (0,)),), moves=("run", "switch", "run", "wait")),
        a_session_is_opened_once,
    ),
}


def test_there_is_a_fault_for_every_checker() -> None:
    assert set(FAULTS) == set(CHECKS)


@pytest.mark.parametrize("checker", FAULTS)
def test_each_checker_complains_of_its_fault_and_of_nothing_without_it(checker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[checker]
    assert simulate(fault.script).violations == ()
    fault.plant(monkeypatch)
    complaints = {said.split(":")[0] for said in simulate(fault.script).violations}
    assert checker.replace("_", " ") in complaints


def test_what_is_said_of_a_call_that_did_not_stop_in_time_is_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(calls=(Call(does="stubborn"),), replies=(Reply("calls", (0,)),), acts=(Act("cancel", "after", "effect"),))
    report = simulate(script)
    assert report.ok, report
    assert [m.effect for row in report.history.rows["s"] if isinstance(row.record, ToolStepEnded) for m in [row.record.message]] == [
        "unknown"
    ]
    what_was_given_up_was_harmless(monkeypatch)
    assert any("'none' was said, and the handler had acted" in said for said in simulate(script).violations)


@pytest.mark.parametrize(
    ("checker", "plant"),
    [
        ("a serial call runs beside no other", serial_calls_wait_for_nobody),
        ("no call outlives the call that made it", calls_are_left_behind),
        ("an answer is given for the arguments that were asked about", an_answer_is_for_any_arguments),
        ("whoever writes after another process opens the session anew", a_session_is_opened_once),
        ("what is said of an effect is true", what_was_given_up_was_harmless),
    ],
)
def test_chance_meets_the_fault(checker: str, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(said.startswith(checker) for seed in range(1500) for said in simulate(seed).violations)
