"""A short life of a session with every kind of record, in an order that the machine accepts."""

from __future__ import annotations

from ..messages import AssistantMessage, StopReason, ToolCall, ToolMessage, UserMessage
from ..records import (
    Ending,
    ExtensionNoted,
    HandlerStarted,
    MessagesImported,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    Outcome,
    QuestionAnswered,
    ReconcileEnded,
    ReconcileStarted,
    Record,
    RefusedCall,
    RunCancelled,
    RunEnded,
    RunStarted,
    SessionForked,
    SessionOpened,
    SteeringReceived,
    ToolLateResult,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
    Traits,
    Verdict,
)


def sample_records(run_id: str = "run", noted_by: str = "somebody") -> tuple[Record, ...]:
    """A call that works, one that is vetoed, one that waits for a person and is lost in a crash, one that is refused; then an answer,
    and a second run that is cancelled. noted_by: the extension whose note there is."""
    asked = tuple(ToolCall(id=f"call-{n}", name="probe", arguments=f'{{"text":"number {n}"}}') for n in range(3))
    unknown = ToolCall(id="call-3", name="unheard_of", arguments="{}")
    works, vetoed, waits, refused = (f"{run_id}/0/{n}" for n in range(4))
    return (
        SessionOpened(epoch=1, version="1"),
        MessagesImported(messages=(UserMessage(content="Before."), AssistantMessage(content="Yes?")), repairs=("one was mended",)),
        RunStarted(run_id=run_id, prompt=UserMessage(content="Probe it."), traits={"probe": Traits(reconcile=True)}),
        ModelStepStarted(turn=0, attempt=0),
        ModelStepFailed(kind="server", message="try again", retryable=True),
        ModelStepStarted(turn=0, attempt=1),
        ModelStepEnded(
            message=AssistantMessage(content="I probe.", reasoning="It may work.", tool_calls=(*asked, unknown)),
            stop=StopReason.TOOL_CALLS,
            verdict=Verdict.TOOLS,
            refused=(RefusedCall(3, "unknown_tool", "there is no tool named 'unheard_of'"),),
        ),
        _ended(refused, unknown, "unknown_tool", "none"),
        ToolStepStarted(key=works),
        HandlerStarted(key=works, attempt=0, arguments=asked[0].arguments),
        ExtensionNoted(extension=noted_by, version=1, data={"seen": [works], "text": "a note"}),
        _ended(works, asked[0], "ok", "happened"),
        ToolStepStarted(key=vetoed),
        _ended(vetoed, asked[1], "vetoed", "none"),
        ToolStepStarted(key=waits),
        ToolStepSuspended(key=waits, question_id="q", question="May it?", digest="d", arguments=asked[2].arguments, expires_at=2e9),
        QuestionAnswered(key=waits, question_id="q", answer=True),
        ToolStepStarted(key=waits),
        HandlerStarted(key=waits, attempt=0, arguments=asked[2].arguments),
        SessionOpened(epoch=2, version="1"),
        ReconcileStarted(key=waits),
        ReconcileEnded(key=waits, found="unknown", reason="nobody knows"),
        _ended(waits, asked[2], "interrupted", "unknown"),
        ToolLateResult(key=waits, content="it was done after all"),
        SteeringReceived(message=UserMessage(content="Be quick.")),
        ModelStepStarted(turn=1, attempt=0),
        ModelStepEnded(
            message=AssistantMessage(content="It is probed."),
            stop=StopReason.STOP,
            verdict=Verdict.ANSWER,
            ending=Ending(Outcome.COMPLETED, "answer", "It is probed."),
        ),
        RunEnded(run_id=run_id, outcome=Outcome.COMPLETED, reason="answer", text="It is probed."),
        RunStarted(run_id=f"{run_id}-2", prompt=UserMessage(content="And again.")),
        RunCancelled(outcome=Outcome.CANCELLED, reason="cancelled"),
        RunEnded(run_id=f"{run_id}-2", outcome=Outcome.CANCELLED, reason="cancelled"),
        SessionForked(source="another", seq=30, known=31),
    )


def _ended(key: str, call: ToolCall, code: str, effect: str) -> ToolStepEnded:
    failed = code != "ok"
    content = f"Tool error ({call.name}): {code}" if failed else "it works"
    message = ToolMessage(tool_call_id=call.id, name=call.name, content=content, failed=failed, effect=effect)  # pyright: ignore[reportArgumentType]
    by = {"ok": "handler", "vetoed": "Guard"}.get(code, "runtime")
    return ToolStepEnded(key=key, message=message, effect=effect, decided_by=by, code=code)  # pyright: ignore[reportArgumentType]
