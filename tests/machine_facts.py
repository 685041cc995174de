"""Records as short words, for tests of the machine and of the views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from interlock.machine import Call, State, failed_message, fold, judge
from interlock.messages import AssistantMessage, Effect, StopReason, ToolCall, ToolMessage, Usage, UserMessage
from interlock.records import (
    HandlerStarted,
    Limits,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    QuestionAnswered,
    Record,
    RunStarted,
    SessionOpened,
    SteeringReceived,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
    Traits,
)

TRAITS = {
    "free": Traits(),
    "serial": Traits(parallel=False),
    "rerun": Traits(on_crash="rerun"),
    "serial_rerun": Traits(parallel=False, on_crash="rerun"),
    "asked": Traits(reconcile=True),
    "asked_rerun": Traits(parallel=False, on_crash="rerun", reconcile=True),
}
OFFERED = frozenset(TRAITS)


def prompt(text: str = "Go.") -> UserMessage:
    return UserMessage(content=text)


def opened(epoch: int = 1) -> SessionOpened:
    return SessionOpened(epoch=epoch)


def run_started(limits: Limits | None = None) -> RunStarted:
    return RunStarted(run_id="r", prompt=prompt(), limits=limits or Limits(), traits=TRAITS)


def tool_call(id: str, name: str = "free", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def judged(
    state: State,
    text: str = "",
    *calls: ToolCall,
    stop: StopReason = StopReason.STOP,
    reasoning: str = "",
    offered: Iterable[str] = OFFERED,
    known_ids: Iterable[str] = (),
    usage: Usage | None = None,
) -> ModelStepEnded:
    message = AssistantMessage(content=text, tool_calls=calls, reasoning=reasoning)
    return judge(state, message, stop, offered=frozenset(offered), known_ids=frozenset(known_ids), usage=usage)


def model_started(state: State) -> ModelStepStarted:
    return ModelStepStarted(turn=state.turn, attempt=state.attempt)


def model_failed(*, retryable: bool = True, kind: str = "cut", retry_after_s: float | None = None) -> ModelStepFailed:
    return ModelStepFailed(kind=kind, retryable=retryable, retry_after_s=retry_after_s)


def result_of(call: Call, effect: Effect = "happened", **more: Any) -> ToolStepEnded:
    message = ToolMessage(tool_call_id=call.call.id, name=call.call.name, content="done", effect=effect)
    return ToolStepEnded(key=call.key, message=message, effect=effect, **more)


def failure_of(call: Call, effect: Effect = "unknown", **more: Any) -> ToolStepEnded:
    return ToolStepEnded(key=call.key, message=failed_message(call.call, "no", effect), effect=effect, code="failed", **more)


def handler_started(call: Call) -> HandlerStarted:
    return HandlerStarted(key=call.key, attempt=call.starts, arguments="{}")


def nested_started(parent: str, number: int = 0, name: str = "free") -> ToolStepStarted:
    return ToolStepStarted(key=f"{parent}/{number}", call=tool_call(f"{parent}.{number}", name), parent=parent)


def suspended(call: Call, question_id: str = "q") -> ToolStepSuspended:
    return ToolStepSuspended(key=call.key, question_id=question_id, question="Really?", digest="d")


def answered(call: Call, answer: Any = True) -> QuestionAnswered:
    return QuestionAnswered(key=call.key, question_id=call.question_id, answer=answer)


def steering(text: str = "Wait.", *, interrupt: bool = False) -> SteeringReceived:
    return SteeringReceived(message=prompt(text), interrupt=interrupt)


class Story:
    """A session as it is being told: every record is applied as it is appended."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.records: list[Record] = []
        self.state = State()
        self.add(opened(), run_started(limits))

    def add(self, *records: Record) -> Story:
        from interlock.machine import apply

        for record in records:
            self.state = apply(self.state, record)
            self.records.append(record)
        return self

    def replies(self, text: str = "", *calls: ToolCall, **more: Any) -> Story:
        return self.add(model_started(self.state)).add(judged(self.state, text, *calls, **more))

    def enters(self, *ordinals: int) -> Story:
        return self.add(*(ToolStepStarted(key=self.key(ordinal)) for ordinal in ordinals))

    def handles(self, *ordinals: int) -> Story:
        for ordinal in ordinals:
            self.add(handler_started(self.call(ordinal)))
        return self

    def settles(self, *ordinals: int) -> Story:
        for ordinal in ordinals:
            self.add(result_of(self.call(ordinal)))
        return self

    def reopens(self) -> Story:
        return self.add(opened(self.state.epoch + 1))

    def key(self, ordinal: int) -> str:
        return f"r/{self.state.turn}/{ordinal}"

    def call(self, ordinal: int) -> Call:
        return self.state.calls[self.key(ordinal)]

    def folded(self) -> State:
        return fold(self.records)
