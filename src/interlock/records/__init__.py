"""What happened: the journal's vocabulary. A record is a fact in the past tense; added to, never changed.

State, transcript, trace, usage and resume are all folds over these rows.
"""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from ..errors import RunNotCompleted
from ..messages import AssistantMessage, Effect, Message, StopReason, ToolCall, ToolMessage, Usage, UserMessage
from .given import Payload, Received, Returned
from .limits import Limits
from .questions import SCOPES, Question, Scope

__all__ = [
    "SCOPES",
    "Ending",
    "ExtensionNoted",
    "HandlerStarted",
    "Limits",
    "MessagesImported",
    "ModelStepEnded",
    "ModelStepFailed",
    "ModelStepStarted",
    "Outcome",
    "Payload",
    "Question",
    "QuestionAnswered",
    "Received",
    "ReconcileEnded",
    "ReconcileStarted",
    "Record",
    "RefusedCall",
    "Returned",
    "Row",
    "RunCancelled",
    "RunEnded",
    "RunResult",
    "RunStarted",
    "Scope",
    "SessionForked",
    "SessionOpened",
    "SteeringReceived",
    "ToolLateResult",
    "ToolStepEnded",
    "ToolStepStarted",
    "ToolStepSuspended",
    "Traits",
    "Verdict",
]


class Outcome(enum.Enum):
    """How a run ended. Only COMPLETED has an answer."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    REFUSED = "refused"
    LIMIT = "limit"
    WAITING = "waiting"
    CANCELLED = "cancelled"


class Traits(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the machine must know of a tool.

    parallel: may run beside the other calls of its batch; a tool that may not is a barrier in call order.
    on_crash: ``report`` (a started call whose process died is reported as unknown) or ``rerun`` (it may start again).
    reconcile: after a crash the tool itself is asked first what became of a started call.
    """

    parallel: bool = True
    on_crash: Literal["report", "rerun"] = "report"
    reconcile: bool = False
    timeout_s: float | None = None
    requires_approval: bool = False
    network: bool = False


class Ending(Struct, frozen=True, gc=False):
    """The run will end so, once every call is settled. reason: a stable code."""

    outcome: Outcome
    reason: str
    text: str = ""


class Verdict(enum.Enum):
    """What a model response amounts to."""

    ANSWER = "answer"
    TOOLS = "tools"
    RETRY = "retry"
    END = "end"


class RefusedCall(Struct, frozen=True, gc=False):
    """A call of the response that must not run. ordinal: its place in ``message.tool_calls``."""

    ordinal: int
    code: str
    reason: str


class SessionOpened(Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """A process took the session over; whatever ran before is not running now. epoch: counts takeovers from 1."""

    epoch: int
    version: str = ""


class SessionForked(Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """The rows before this one are those of another session, ``source``, up to its ``seq``. Their effects are not undone.

    known: how many rows of the source were looked at for what had become of the calls that were open at ``seq``; the
    results that follow this record are what was found.
    """

    source: str
    seq: int
    known: int


class MessagesImported(Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """Messages from elsewhere joined the transcript, already valid. repairs: what had to be mended, in words."""

    messages: tuple[Message, ...]
    repairs: tuple[str, ...] = ()


class RunStarted(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """A prompt was accepted. Everything that decides the run's course is recorded with it.

    fingerprint: what of the agent may be another when the run is resumed: ``model`` by its name; ``system`` (the prompt) and
    ``tool NAME`` (name, description, schema) and ``policy NAME`` (its text) by a digest; ``dry run`` where no tool is executed.
    """

    run_id: str
    prompt: UserMessage
    limits: Limits = Limits()
    traits: dict[str, Traits] = {}
    fingerprint: dict[str, str] = {}
    parent_session_id: str | None = None


class ModelStepStarted(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """A request is about to be sent. dismissed: the answer to the last one, if a layer asks again although there was one."""

    turn: int
    attempt: int
    dismissed: Received | None = None


class ModelStepEnded(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """A response ended with terminal evidence.

    message: as judged: call ids made unique, continued text joined. verdict and code: what it amounts to.
    refused: calls that must not run. dropped: names of calls that never existed for the model.
    nudge: what the next request says after it (an overlay, never in the transcript).
    redacted: the calls, by their place, whose arguments are not stored as the model gave them: only the process that heard it knows.
    joined: whether the message is part of the transcript. continued: the answer is being continued: the message holds its
    text so far, and what follows is joined to it without a seam. received: the provider's answer, if a layer changed it.
    """

    message: AssistantMessage
    stop: StopReason
    stop_raw: str | None = None
    usage: Usage | None = None
    verdict: Verdict
    code: str = ""
    joined: bool = True
    continued: bool = False
    refused: tuple[RefusedCall, ...] = ()
    dropped: tuple[str, ...] = ()
    redacted: tuple[int, ...] = ()
    nudge: str | None = None
    ending: Ending | None = None
    received: Received | None = None
    cost_usd: float | None = None


class ModelStepFailed(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """An attempt came to nothing. kind: ``layer``, ``cancelled``, ``limit``, or a ProviderError's kind."""

    kind: str
    message: str = ""
    retryable: bool = False
    retry_after_s: float | None = None
    status: int | None = None
    usage: Usage | None = None
    cost_usd: float | None = None


class ToolStepStarted(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """A call entered the onion. call and parent: only for a call that a layer or a handler made itself; inside: the handler did."""

    key: str
    call: ToolCall | None = None
    parent: str | None = None
    inside: bool = False


class HandlerStarted(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """The handler is about to run. At most one per call; the machine refuses another. arguments: the effective ones, JSON.

    redacted: they are not stored as they were.
    """

    key: str
    attempt: int
    arguments: str
    redacted: bool = False


class ToolStepEnded(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """A call was settled. message: its only result. code: ``ok``, ``failed``, ``vetoed``, ``answered``, ...

    decided_by: ``handler``, the name of a layer, or ``runtime``. payload: the full copy of a capped result.
    ending: the run ends with this call. returned: what the handler itself gave, if that is something else.
    unentered: it was cancelled after its ``ToolStepStarted``, and before any layer saw it.
    """

    key: str
    message: ToolMessage
    effect: Effect = "none"
    decided_by: str = "handler"
    code: str = "ok"
    payload: Payload | None = None
    ending: Ending | None = None
    returned: Returned | None = None
    unentered: bool = False


class ReconcileStarted(Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """After a crash, the tool is being asked what became of a call whose handler had started."""

    key: str


class ReconcileEnded(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """The tool could not give the call a result: it did not happen, or nobody knows. One that happened is a ``ToolStepEnded``."""

    key: str
    found: Literal["did_not_happen", "unknown"]
    reason: str = ""


class ToolStepSuspended(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """A layer wants a person's word before the handler starts.

    arguments: the exact ones it asked about, JSON with sorted keys; digest: their SHA-256, hexadecimal. expires_at: seconds
    since 1970 after which no answer is a denial; None is never. scopes: how far beyond this once it may be allowed.
    asked_by: the layer that asked.
    """

    key: str
    question_id: str
    question: str
    digest: str
    arguments: str = ""
    expires_at: float | None = None
    scopes: tuple[Scope, ...] = ()
    asked_by: str = ""


class QuestionAnswered(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A person answered, or did not in time.

    verdict: ``answer`` (the call enters the onion again, and the layer that asked decides what ``answer`` means), ``edit`` (the
    same with ``answer`` as its arguments, and no answer: they are asked about anew), ``deny`` (the call is settled without
    running; ``answer`` is the reason), ``expire`` (a denial, because nobody answered). redacted: ``answer`` is not stored as it was.
    scope: how far a yes reaches beyond this once, from this record on; "" is no further.
    """

    key: str
    question_id: str
    answer: Any = None
    verdict: Literal["answer", "edit", "deny", "expire"] = "answer"
    redacted: bool = False
    scope: Scope | Literal[""] = ""


class ToolLateResult(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """A handler that had been given up came back. Legal in every phase; changes nothing but what is known."""

    key: str
    failed: bool = False
    content: str = ""


class SteeringReceived(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """New input during a run. interrupt: supersede what has not started."""

    message: UserMessage
    interrupt: bool = False


class ExtensionNoted(Struct, frozen=True, kw_only=True, tag=True):
    """Something that an extension wants remembered; it reads it back in its own fold."""

    extension: str
    version: int
    data: Any


class RunCancelled(Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """The run must end: cancelled, left by its consumer, past its deadline, or superseded by a new run."""

    outcome: Outcome = Outcome.CANCELLED
    reason: str = "cancelled"


class RunEnded(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag=True):
    """The run is over, every call is settled."""

    run_id: str
    outcome: Outcome
    reason: str
    text: str = ""


Record = (
    SessionOpened
    | MessagesImported
    | RunStarted
    | ModelStepStarted
    | ModelStepEnded
    | ModelStepFailed
    | ToolStepStarted
    | HandlerStarted
    | ToolStepEnded
    | ReconcileStarted
    | ReconcileEnded
    | ToolStepSuspended
    | QuestionAnswered
    | ToolLateResult
    | SteeringReceived
    | ExtensionNoted
    | RunCancelled
    | RunEnded
    | SessionForked
)


class Row(NamedTuple):
    """A record in its envelope. seq: from 1, without gaps, per session. at: seconds since 1970, UTC. v: the schema's version."""

    session: str
    seq: int
    at: float
    v: int
    record: Record


class RunResult(Struct, frozen=True, kw_only=True):
    """How a run ended.

    reason: a stable code (``answer``, ``dropped_tool_call``, ``requests``, ``deadline``, ...).
    text: the answer if COMPLETED; the partial text if INCOMPLETE or REFUSED; otherwise empty.
    message: the last assistant message of the run, if one joined the transcript. messages: the whole transcript.
    usage: of this run; what the provider did not say is None. cost_usd: of this run, if ``limits.cost_usd`` is set.
    questions: what a WAITING run waits for.
    output: the answer in the form that ``Agent.create(output=...)`` asked for, if the run COMPLETED. output_errors: what was wrong with the
    last answer, if it ended INCOMPLETE ``invalid_output``.
    """

    outcome: Outcome
    reason: str
    text: str
    session_id: str
    run_id: str
    message: AssistantMessage | None = None
    messages: tuple[Message, ...] = ()
    usage: Usage = Usage()
    cost_usd: float | None = None
    output: Any = None
    output_errors: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()

    def require(self) -> RunResult:
        """This result, if the run COMPLETED. Raises RunNotCompleted otherwise."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise RunNotCompleted(f"the run ended {self.outcome.name} ({self.reason}), without an answer", result=self)
