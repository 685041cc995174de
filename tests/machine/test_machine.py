"""The machine as a whole: the table is complete, and no walk through it starts a call twice, loses one, or gets stuck."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import ProtocolError
from interlock.machine import (
    TRANSITIONS,
    UNDER_WAY,
    CallModel,
    EndRun,
    Phase,
    Progress,
    Reconcile,
    RunTool,
    SettleTool,
    State,
    apply,
    decide,
    fold,
)
from interlock.messages import StopReason
from interlock.records import (
    Ending,
    ExtensionNoted,
    HandlerStarted,
    Limits,
    MessagesImported,
    ModelStepEnded,
    ModelStepStarted,
    Outcome,
    ReconcileEnded,
    ReconcileStarted,
    Record,
    RunCancelled,
    RunEnded,
    SessionForked,
    SessionOpened,
    ToolLateResult,
    ToolStepEnded,
    ToolStepStarted,
    Traits,
)
from machine_facts import (
    TRAITS,
    Story,
    answered,
    failure_of,
    handler_started,
    judged,
    model_failed,
    model_started,
    nested_started,
    opened,
    prompt,
    result_of,
    run_started,
    steering,
    suspended,
    tool_call,
)

# ---- the table -----------------------------------------------------------------------------------


def standing_in(phase: Phase) -> State:
    """A reachable state in ``phase``."""
    story = Story()
    match phase:
        case Phase.IDLE:
            story.add(RunEnded(run_id="r", outcome=Outcome.LIMIT, reason="requests"))
        case Phase.MODEL_DUE:
            pass
        case Phase.MODEL_RUNNING:
            story.add(model_started(story.state))
        case Phase.TOOLS:
            story.replies("", tool_call("a"), tool_call("b")).enters(0)
        case Phase.ENDING:
            story.replies("Hi.")
        case Phase.STALLED:
            story.add(model_started(story.state), model_failed(retryable=False))
    assert story.state.phase is phase
    return story.state


def record_of(kind: type[Any], state: State) -> Record:
    """A record of ``kind`` that could follow ``state``, if any of its kind can."""
    calls = list(standing_in(Phase.TOOLS).calls.values())
    made: dict[type[Any], Any] = {
        SessionOpened: opened(7),
        MessagesImported: MessagesImported(messages=(prompt(),)),
        type(run_started()): run_started(),
        ModelStepStarted: model_started(state),
        ModelStepEnded: judged(standing_in(Phase.MODEL_RUNNING), "Hi."),
        type(model_failed()): model_failed(),
        ToolStepStarted: ToolStepStarted(key=calls[1].key),
        HandlerStarted: handler_started(calls[0]),
        ToolStepEnded: result_of(calls[0]),
        type(suspended(calls[0])): suspended(calls[0]),
        type(answered(calls[0])): answered(calls[0]),
        ReconcileStarted: ReconcileStarted(key=calls[0].key),
        ReconcileEnded: ReconcileEnded(key=calls[0].key, found="unknown"),
        ToolLateResult: ToolLateResult(key="r/0/0"),
        type(steering()): steering(),
        ExtensionNoted: ExtensionNoted(extension="x", version=1, data=1),
        RunCancelled: RunCancelled(),
        RunEnded: RunEnded(run_id="r", outcome=Outcome.COMPLETED, reason="answer"),
        SessionForked: SessionForked(source="x", seq=1, known=1),
    }
    return made[kind]


KINDS = list(Record.__args__)  # type: ignore[attr-defined]
PAIRS = [(phase, kind) for phase in Phase for kind in KINDS]


@pytest.mark.parametrize(("phase", "kind"), PAIRS, ids=[f"{phase.value}-{kind.__name__}" for phase, kind in PAIRS])
def test_every_pair_of_phase_and_record_is_decided_and_the_missing_ones_leave_the_state_as_it_was(phase: Phase, kind: type[Any]) -> None:
    state = standing_in(phase)
    before = msgspec.json.encode(state)
    record = record_of(kind, state)
    row = TRANSITIONS.get((phase, kind))
    if row is None:
        with pytest.raises(ProtocolError, match="cannot follow"):
            apply(state, record)
    elif kind.__name__ in ("QuestionAnswered", "ReconcileStarted", "ReconcileEnded"):
        with pytest.raises(ProtocolError):  # nothing is being asked in this state
            apply(state, record)
    else:
        assert apply(state, record).phase in row[1]
    assert msgspec.json.encode(state) == before


def test_every_target_that_the_table_allows_can_be_reached() -> None:
    """A target that no walk reaches would be a licence for a bug."""
    seen: set[tuple[Phase, type[Any], Phase]] = set()
    for seed in range(400):
        walk = Walk(random.Random(seed))
        for _ in range(40):
            walk.step()
        for before, record, after in walk.passed:
            seen.add((before.phase, type(record), after.phase))
    never = {(phase, kind, target) for (phase, kind), (_, targets) in TRANSITIONS.items() for target in targets} - seen
    # `admit` refuses to steer a run that is ending, and so does the walk.
    assert {(phase.value, kind.__name__, target.value) for phase, kind, target in never} <= {("ending", "SteeringReceived", "model_due")}


# ---- random walks --------------------------------------------------------------------------------


class Walk:
    """One session at random: what the machine wants is started, what runs ends in some way, and the world interferes."""

    def __init__(self, rng: random.Random, limits: Limits | None = None) -> None:
        self.rng = rng
        self.limits = limits or Limits(
            requests=rng.choice([2, 6, 25]),
            tool_calls=rng.choice([None, None, 1, 3]),
            parallel_calls=rng.choice([1, 2, 128]),
            malformed_calls=rng.choice([0, 3]),
        )
        self.state = State()
        self.records: list[Record] = []
        self.passed: list[tuple[State, Record, State]] = []
        self.numbers = 0

    def add(self, record: Record) -> None:
        before, frozen = self.state, msgspec.json.encode(self.state)
        after = apply(before, record)
        assert msgspec.json.encode(before) == frozen
        assert after.phase in TRANSITIONS[before.phase, type(record)][1]
        progress = Counter(call.progress for call in after.calls.values())
        open_calls = len(after.calls) - progress[Progress.DONE]
        under_way = progress[Progress.RUNNING] + progress[Progress.RECONCILING]
        assert (after.unsettled, after.unstarted) == (open_calls, open_calls - under_way)
        self.state = after
        self.records.append(record)
        self.passed.append((before, record, after))

    def step(self, *, faults: bool = True) -> None:
        state, rng = self.state, self.rng
        if faults and rng.random() < 0.2 and self.interfere():
            return
        actions = decide(state)
        if actions:
            self.begin(rng.choice(actions) if state.phase is Phase.TOOLS else actions[0])
        elif state.phase is Phase.IDLE:
            self.add(run_started(self.limits))
        elif state.phase is Phase.STALLED:
            self.add(opened(state.epoch + 1))
        elif state.phase is Phase.MODEL_RUNNING:
            self.model_goes_on(faults)
        else:
            self.tools_go_on(faults)

    def begin(self, action: Any) -> None:
        match action:
            case CallModel():
                self.add(ModelStepStarted(turn=action.turn, attempt=action.attempt))
            case RunTool():
                self.add(ToolStepStarted(key=action.call.key))
            case Reconcile():
                self.add(ReconcileStarted(key=action.call.key))
            case SettleTool() | EndRun():
                self.add(action.record)

    def interfere(self) -> bool:
        state, rng = self.state, self.rng
        kind = rng.choice(["reopen", "steer", "interrupt", "cancel", "note", "late", "fork", "supersede", "import"])
        open_run = state.phase is not Phase.IDLE and state.ending is None
        if kind == "reopen":
            self.add(opened(state.epoch + 1))
        elif kind == "fork":
            self.add(SessionForked(source="x", seq=1, known=1))
        elif kind in ("note", "late"):
            self.add(ExtensionNoted(extension="x", version=1, data=None) if kind == "note" else ToolLateResult(key="r/0/0"))
        elif kind == "import" and state.phase is Phase.IDLE:
            self.add(MessagesImported(messages=(prompt(),)))
        elif kind == "supersede" and state.phase is not Phase.IDLE:
            self.add(RunCancelled(outcome=Outcome.INCOMPLETE, reason="superseded"))
        elif not open_run or kind == "import":
            return False
        elif kind in ("steer", "interrupt"):
            self.add(steering(interrupt=kind == "interrupt"))
        else:
            self.add(RunCancelled())
        return True

    def model_goes_on(self, faults: bool) -> None:
        state, rng = self.state, self.rng
        if not faults:
            self.add(judged(state, "The end."))
            return
        roll = rng.random()
        if roll < 0.15:
            self.add(
                model_failed(
                    retryable=rng.random() < 0.8, kind=rng.choice(["cut", "layer", "limit"]), retry_after_s=rng.choice([None, 3600.0])
                )
            )
        elif roll < 0.2:
            self.add(model_started(state))  # a layer asks again
        else:
            calls = [self.some_call() for _ in range(rng.choice([0, 0, 1, 2, 4]))]
            text, thought = rng.choice(["", "Hi."]), rng.choice(["", "Hm."])
            self.add(judged(state, text, *calls, stop=rng.choice(list(StopReason)), reasoning=thought))

    def some_call(self) -> Any:
        self.numbers += 1
        return tool_call(f"id{self.numbers}", self.rng.choice([*TRAITS, "nowhere"]), self.rng.choice(["{}", "{}", "{}", "["]))

    def tools_go_on(self, faults: bool) -> None:
        state, rng = self.state, self.rng
        asked = [call for call in state.calls.values() if call.progress is Progress.RECONCILING]
        if asked:
            call, found = asked[0], rng.choice(["happened", "did_not_happen", "unknown"])
            self.add(result_of(call) if found == "happened" else ReconcileEnded(key=call.key, found=found))
            return
        running = [call for call in state.calls.values() if call.progress is Progress.RUNNING]
        waiting = [call for call in state.calls.values() if call.progress is Progress.WAITING]
        assert running or waiting, "stuck: nothing runs, nobody is asked, and nothing is to be started"
        if not running:
            call, verdict = rng.choice(waiting), rng.choice(["answer", "answer", "edit", "deny", "expire"])
            self.add(msgspec.structs.replace(answered(call, {"x": 1} if verdict == "edit" else "yes"), verdict=verdict))
            return
        call = rng.choice(running)
        children = [c for c in state.calls.values() if c.parent == call.key]
        if any(c.progress is Progress.RUNNING for c in children):
            call = next(c for c in children if c.progress is Progress.RUNNING)
        roll = rng.random()
        if faults and roll < 0.1 and call.starts < call.may_start and call.parent is None:
            self.add(suspended(call, f"q{len(self.records)}"))
        elif faults and roll < 0.2 and call.key.count("/") < 4:
            self.add(nested_started(call.key, sum(c.parent == call.key for c in state.calls.values()), rng.choice(list(TRAITS))))
        elif call.starts < call.may_start and roll < 0.7:
            self.add(handler_started(call))
        elif rng.random() < 0.3:
            self.add(failure_of(call, "unknown" if call.starts else "none"))
        else:
            ending = Ending(Outcome.COMPLETED, "stop", "done") if faults and rng.random() < 0.1 else None
            self.add(result_of(call, "happened" if call.starts else "none", ending=ending))

    # ---- what must hold of every walk

    def check_history(self) -> None:
        starts: Counter[str] = Counter()
        reopened = sum(isinstance(record, SessionOpened) for record in self.records)
        settled: Counter[str] = Counter()
        run = 0
        for before, record, after in self.passed:
            if before.phase is Phase.IDLE and after.phase is not Phase.IDLE:
                run += 1  # the same keys come again in the next run of a walk
            if isinstance(record, HandlerStarted):
                call = before.calls[record.key]
                starts[f"{run}:{record.key}"] += 1
                rerun = TRAITS[call.call.name].on_crash == "rerun" and call.parent is None
                assert starts[f"{run}:{record.key}"] <= (1 + reopened if rerun else 1)
                assert call.refused is None
                assert record.attempt == starts[f"{run}:{record.key}"] - 1
            if isinstance(record, ToolStepEnded):
                settled[f"{run}:{record.key}"] += 1
                assert settled[f"{run}:{record.key}"] == 1
                started = starts[f"{run}:{record.key}"] > 0
                if started and record.decided_by == "runtime":
                    wanted = "none" if before.calls[record.key].found == "did_not_happen" else "unknown"
                    assert record.effect == wanted, "a handler had started, and the runtime said that nothing happened"
            if before.phase is Phase.TOOLS and after.phase is not Phase.TOOLS:
                assert all(settled[f"{run}:{key}"] == 1 for key in before.calls)

    def check_reopening_here(self) -> None:
        """Whatever the point of death, what follows is honest: not started, finished, or unknown."""
        state = self.state
        if state.phase is Phase.IDLE:
            return
        after = apply(state, opened(state.epoch + 1))
        for key, call in state.calls.items():
            now = after.calls[key]
            child_started = any(c.starts and c.key.startswith(key + "/") for c in state.calls.values())
            traits = TRAITS.get(call.call.name, Traits())
            if call.progress not in UNDER_WAY:
                assert now == call
            elif call.parent is not None:
                assert now.progress is Progress.LOST
            elif call.starts and traits.on_crash == "rerun" and not traits.reconcile:
                assert (now.progress, now.may_start) == (Progress.PENDING, call.starts + 1)
            elif call.starts or child_started:
                assert now.progress is Progress.LOST
            else:
                assert (now.progress, now.may_start) == (Progress.PENDING, 1)
        superseded = after if after.ending is not None else apply(after, RunCancelled(outcome=Outcome.INCOMPLETE, reason="superseded"))
        for _ in range(2 * len(after.calls) + 2):
            for action in decide(superseded)[:1]:
                if isinstance(action, Reconcile):  # a question, which has no effect
                    superseded = apply(superseded, ReconcileStarted(key=action.call.key))
                    superseded = apply(superseded, ReconcileEnded(key=action.call.key, found="unknown"))
                    continue
                assert isinstance(action, SettleTool | EndRun), "a run that is being ended starts nothing"
                if isinstance(action, SettleTool):
                    call = superseded.calls[action.record.key]
                    touched = call.starts or any(c.starts and c.key.startswith(call.key + "/") for c in superseded.calls.values())
                    if call.starts:
                        assert action.record.effect == ("none" if call.found == "did_not_happen" else "unknown")
                    elif not touched:
                        assert action.record.effect == "none"
                superseded = apply(superseded, action.record)
        assert superseded.phase is Phase.IDLE

    def check_it_ends(self) -> None:
        for _ in range(300):
            if self.state.phase is Phase.IDLE:
                return
            self.step(faults=False)
        raise AssertionError(f"it does not end: {self.state}")


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=250, deadline=None)
def test_no_walk_starts_a_call_twice_or_leaves_one_open_or_gets_stuck(seed: int, steps: int) -> None:
    walk = Walk(random.Random(seed))
    for _ in range(steps):
        walk.step()
        walk.check_reopening_here()
    walk.check_it_ends()
    walk.check_history()
    assert fold(walk.records) == walk.state


# ---- single stories ------------------------------------------------------------------------------


def test_a_second_handler_started_is_refused_in_every_guise() -> None:
    story = Story().replies("", tool_call("a", "rerun")).enters(0).handles(0)
    for attempt in (0, 1, 2):
        with pytest.raises(ProtocolError, match="already started"):
            apply(story.state, HandlerStarted(key=story.key(0), attempt=attempt, arguments="{}"))
    story.reopens().enters(0).handles(0)
    with pytest.raises(ProtocolError):
        apply(story.state, handler_started(story.call(0)))


def test_a_reopening_makes_a_started_report_call_unknown_and_leaves_the_others_to_start() -> None:
    story = Story().replies("", tool_call("a"), tool_call("b"), tool_call("c", "rerun"), tool_call("d")).enters(0, 1, 2, 3)
    story.handles(0, 2, 3).settles(3).reopens()
    assert [call.progress for call in story.state.calls.values()] == [Progress.LOST, Progress.PENDING, Progress.PENDING, Progress.DONE]
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    assert (action.record.code, action.record.effect) == ("interrupted", "unknown")


def test_a_started_call_that_was_to_be_rerun_and_is_superseded_is_unknown_and_not_none() -> None:
    story = Story().replies("", tool_call("a", "rerun")).enters(0).handles(0).reopens()
    story.add(RunCancelled(outcome=Outcome.INCOMPLETE, reason="superseded"))
    (action,) = decide(story.state)
    assert isinstance(action, SettleTool)
    assert action.record.effect == "unknown"
    assert "may have happened" in str(action.record.message.content)
    interrupted = Story().replies("", tool_call("a", "rerun")).enters(0).handles(0).reopens().add(steering(interrupt=True))
    (action,) = decide(interrupted.state)
    assert isinstance(action, SettleTool)
    assert action.record.effect == "unknown"


def test_a_nested_call_is_lost_on_reopening_and_a_parent_whose_nested_call_had_started_is_not_entered_again() -> None:
    story = Story().replies("", tool_call("a"), tool_call("b")).enters(0, 1)
    story.add(nested_started(story.key(0)), nested_started(story.key(1), name="rerun"))
    story.add(HandlerStarted(key=f"{story.key(0)}/0", attempt=0, arguments="{}")).reopens()
    progress = {key: call.progress for key, call in story.state.calls.items()}
    assert progress == {"r/0/0": Progress.LOST, "r/0/1": Progress.PENDING, "r/0/0/0": Progress.LOST, "r/0/1/0": Progress.LOST}
    effects = {action.record.key: action.record.effect for action in decide(story.state) if isinstance(action, SettleTool)}
    assert effects == {"r/0/0": "unknown", "r/0/0/0": "unknown", "r/0/1/0": "none"}


def test_a_call_between_two_others_is_unknown_if_the_innermost_had_started() -> None:
    story = Story().replies("", tool_call("a")).enters(0)
    story.add(nested_started("r/0/0"), nested_started("r/0/0/0"), HandlerStarted(key="r/0/0/0/0", attempt=0, arguments="{}")).reopens()
    effects = {action.record.key: action.record.effect for action in decide(story.state) if isinstance(action, SettleTool)}
    assert effects == {"r/0/0": "unknown", "r/0/0/0": "unknown", "r/0/0/0/0": "unknown"}


def test_a_nested_call_does_not_start_without_a_running_parent_and_not_under_a_key_in_use() -> None:
    story = Story().replies("", tool_call("a"), tool_call("b")).enters(0)
    story.add(nested_started(story.key(0)))
    for record in (nested_started(story.key(1)), nested_started("r/9/9"), nested_started(story.key(0))):
        with pytest.raises(ProtocolError):
            apply(story.state, record)


def test_the_streaks_survive_a_reopening_and_start_at_zero_in_the_next_run() -> None:
    story = Story().replies("Plan.", stop=StopReason.TOOL_CALLS).replies("Plan.", stop=StopReason.TOOL_CALLS)
    story.add(model_started(story.state)).reopens()
    assert story.state.streaks == {"dropped_tool_call": 2}
    story.add(RunCancelled(outcome=Outcome.INCOMPLETE, reason="superseded"))
    story.add(RunEnded(run_id="r", outcome=Outcome.INCOMPLETE, reason="superseded"), run_started())
    assert story.state.streaks == {}


def test_the_streaks_are_reset_by_a_call_that_enters_the_onion_and_by_nothing_that_a_call_does_inside_it() -> None:
    story = Story().replies("Plan.", stop=StopReason.TOOL_CALLS).replies("", tool_call("a"), tool_call("b", "nowhere"))
    assert story.state.streaks == {"dropped_tool_call": 1}
    story.add(*(action.record for action in decide(story.state) if isinstance(action, SettleTool)))
    assert story.state.streaks == {"dropped_tool_call": 1}
    assert story.enters(0).state.streaks == {}


def test_a_failed_attempt_is_tried_again_within_its_attempts_and_then_the_run_stalls() -> None:
    story = Story(Limits(model_attempts=3))
    for _ in range(2):
        story.add(model_started(story.state), model_failed())
        assert story.state.phase is Phase.MODEL_DUE
    story.add(model_started(story.state), model_failed())
    assert (story.state.phase, story.state.fault, decide(story.state)) == (Phase.STALLED, "provider_error", ())


def test_an_ending_is_never_replaced_by_a_later_one() -> None:
    story = Story().replies("", tool_call("a"), tool_call("b")).enters(0, 1).handles(0)
    story.add(RunCancelled(outcome=Outcome.LIMIT, reason="deadline"), RunCancelled())
    story.add(result_of(story.call(0), ending=Ending(Outcome.COMPLETED, "stop", "x")), failure_of(story.call(1), "none"))
    (action,) = decide(story.state)
    assert isinstance(action, EndRun)
    assert (action.record.outcome, action.record.reason) == (Outcome.LIMIT, "deadline")
