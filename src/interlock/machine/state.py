"""What the machine knows of a session: enough to say what happens next, and nothing else.

The transcript is not here: it is a view over the same records, and folding it into the state would make a long
session quadratic.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ..messages import ToolCall, Usage, WireCopy
from ..records import Ending, Limits, QuestionAnswered, RefusedCall, Scope, Traits
from .loops import NOTHING_SEEN, Loops


class Phase(enum.Enum):
    """Where the machine is."""

    __hash__ = object.__hash__  # Enum's own runs in Python, and every record looks its phase up

    IDLE = "idle"
    """No run is open."""
    MODEL_DUE = "model_due"
    """The next step is a model step."""
    MODEL_RUNNING = "model_running"
    """A request is under way."""
    TOOLS = "tools"
    """The calls of a batch are pending, running or waiting."""
    ENDING = "ending"
    """How the run ends is decided; it has not been closed."""
    STALLED = "stalled"
    """The model's side failed for good; the run is open and can be resumed."""


class Progress(enum.Enum):
    """How far one call has come."""

    __hash__ = object.__hash__

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    """For a person."""
    LOST = "lost"
    """Its handler had started in a process that is gone."""
    RECONCILING = "reconciling"
    """The tool is being asked what became of it."""
    DONE = "done"


class Call(Struct, frozen=True, kw_only=True):
    """One call of the batch, or a nested one (``parent`` is then the key of the call that made it).

    entered: it has been in the onion, so it counts against ``limits.tool_calls``. starts: how often its handler has
    started. may_start: how often it may; raised only by a reopening, for a tool with ``on_crash="rerun"``.
    started_with: the arguments of the last start; "" if they are not stored as they were. found: what the tool itself said of a lost call.
    asked: how many questions it has been suspended on; question_id, digest, expires_at, scopes, asked_by, answer and its scope are the
    last one's.
    edited: the arguments that a person gave instead of the model's.
    same: a digest that equal calls share; "" where no loop guard looks.
    redacted: its arguments, or the answer to its question, are not stored as they were. forgotten: and the process that knew is gone.
    """

    key: str
    call: ToolCall
    parent: str | None = None
    progress: Progress = Progress.PENDING
    entered: bool = False
    starts: int = 0
    may_start: int = 1
    started_with: str = ""
    found: Literal["", "did_not_happen", "unknown"] = ""
    found_reason: str = ""
    refused: RefusedCall | None = None
    asked: int = 0
    question_id: str = ""
    digest: str = ""
    expires_at: float | None = None
    scopes: tuple[Scope, ...] = ()
    asked_by: str = ""
    answer: Any = None
    scope: Scope | Literal[""] = ""
    edited: str | None = None
    same: str = ""
    redacted: bool = False
    forgotten: bool = False


class State(Struct, frozen=True, gc=False, kw_only=True):
    """The fold of a session's records.

    streaks: re-prompts in a row, by recovery code. partial: the text joined so far of an answer that is being
    continued. paused: the provider's own form of it, if what follows is the rest of the same message.
    pending_input: how many steering messages have not landed. ending: how the run will end. fault: why the run
    stalled, if it did.
    """

    phase: Phase = Phase.IDLE
    epoch: int = 0
    run_id: str = ""
    limits: Limits = Limits()
    traits: dict[str, Traits] = {}
    fingerprint: dict[str, str] = {}
    turn: int = 0
    attempt: int = 0
    requests: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    tokens: int = 0
    """What the last request took, as far as it is known."""
    cost_usd: float = 0.0
    last_cost_usd: float = 0.0
    failures: int = 0
    retry_after_s: float | None = None
    fault: str = ""
    streaks: dict[str, int] = {}
    loops: Loops = NOTHING_SEEN
    partial: str = ""
    paused: WireCopy | None = None
    calls: dict[str, Call] = {}
    unstarted: int = 0
    """How many of the calls may have to be started or settled: those that are neither under way nor done."""
    unsettled: int = 0
    """How many of the calls are not done."""
    unrunnable: int = 0
    """How many of the calls are refused or lost and not settled. The counts spare a large batch from being walked at every record."""
    granted: dict[str, frozenset[str]] = {}
    """What a person has allowed for the session: by tool, the digests of the arguments (``ANY_ARGUMENTS``: whatever they are)."""
    pending_input: int = 0
    interrupt: bool = False
    ending: Ending | None = None


UNDER_WAY = frozenset({Progress.RUNNING, Progress.RECONCILING})
"""What a task of this process is at, and will end by itself."""

DEFAULT_TRAITS = Traits()
ANY_ARGUMENTS = "*"
"""In the place of a digest: whatever the arguments are."""


def traits_of(state: State, call: Call) -> Traits:
    return state.traits.get(call.call.name, DEFAULT_TRAITS)


def with_started_children(state: State) -> frozenset[str]:
    """The calls of which it must not be said that nothing happened, because a call that they made has started its handler."""
    found: set[str] = set()
    for call in state.calls.values():
        parent = call.parent if call.starts else None
        while parent is not None:
            found.add(parent)
            parent = state.calls[parent].parent
    return frozenset(found)


def with_grant(state: State, call: Call, record: QuestionAnswered) -> State:
    """What a person allows for longer is bound to the same arguments as the answer itself, unless it is for the whole tool."""
    if record.scope not in ("session", "tool") or record.answer is not True:
        return state  # what holds in other sessions too is not the session's to remember
    tool, what = call.call.name, ANY_ARGUMENTS if record.scope == "tool" else call.digest
    return replace(state, granted={**state.granted, tool: state.granted.get(tool, frozenset()) | {what}})
