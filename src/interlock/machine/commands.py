"""May this request from outside become a fact now? Commands may be refused; facts may not."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ..errors import CommandRefused
from ..messages import Message, UserMessage
from ..records import (
    Limits,
    MessagesImported,
    Outcome,
    QuestionAnswered,
    Record,
    RunCancelled,
    RunStarted,
    Scope,
    SteeringReceived,
    Traits,
)
from .state import Phase, Progress, State


class StartRun(Struct, frozen=True, kw_only=True):
    """Begin a run with a prompt, and with everything that decides its course."""

    run_id: str
    prompt: UserMessage
    limits: Limits
    traits: dict[str, Traits]
    fingerprint: dict[str, str] = {}
    parent_session_id: str | None = None


class Steer(Struct, frozen=True, kw_only=True):
    """Say something to the open run; ``interrupt`` supersedes calls that have not started."""

    message: UserMessage
    interrupt: bool = False


class Cancel(Struct, frozen=True, kw_only=True):
    """End the open run with this outcome and reason."""

    outcome: Outcome = Outcome.CANCELLED
    reason: str = "cancelled"


class Answer(Struct, frozen=True, kw_only=True):
    """Answer the open question of a waiting call. at: now, in seconds since 1970. scope: how far a yes reaches beyond this once."""

    question_id: str
    answer: Any
    verdict: Literal["answer", "edit", "deny"] = "answer"
    at: float = 0.0
    scope: Scope | Literal[""] = ""


class Import(Struct, frozen=True, kw_only=True):
    """Append messages from elsewhere, already valid, while no run is open."""

    messages: tuple[Message, ...]
    repairs: tuple[str, ...] = ()


Command = StartRun | Steer | Cancel | Answer | Import


def admit(state: State, command: Command) -> Record:
    """The record that accepts ``command``. Raises CommandRefused; nothing is recorded then.

    A ``StartRun`` on a session with an open run is first answered with the record that ends that run.
    """
    idle = state.phase is Phase.IDLE
    match command:
        case StartRun() if idle:
            return RunStarted(
                run_id=command.run_id,
                prompt=command.prompt,
                limits=command.limits,
                traits=command.traits,
                fingerprint=command.fingerprint,
                parent_session_id=command.parent_session_id,
            )
        case StartRun():
            return RunCancelled(outcome=Outcome.INCOMPLETE, reason=state.fault or "superseded")
        case Import() if idle:
            return MessagesImported(messages=command.messages, repairs=command.repairs)
        case Steer() if not idle and state.ending is None:
            return SteeringReceived(message=command.message, interrupt=command.interrupt)
        case Cancel() if not idle and state.ending is None:
            return RunCancelled(outcome=command.outcome, reason=command.reason)
        case Answer():
            return _answered(state, command)
        case _:
            where = "no run is open" if idle else "the run is ending" if state.ending is not None else "a run is open"
            raise CommandRefused(f"{type(command).__name__.lower()} is not possible: {where}")


def _answered(state: State, command: Answer) -> QuestionAnswered:
    """Taken once: the record makes the question one that is not open any more."""
    id = command.question_id
    call = next((call for call in state.calls.values() if call.question_id == id), None) if id else None
    if call is None:
        raise CommandRefused(f"no open question has the id {id!r}: its run has ended, or it was asked in another session")
    if call.progress is Progress.DONE:
        raise CommandRefused(f"the question {id!r} was answered already, or its call was settled without an answer")
    if call.progress is not Progress.WAITING:
        raise CommandRefused(f"the question {id!r} was answered already; an answer is taken once")
    if call.expires_at is not None and command.at >= call.expires_at:
        raise CommandRefused(f"the question {id!r} has expired, which is a denial: resume() tells the model, and goes on")
    if command.scope and command.scope not in call.scopes:
        offered = ", ".join(("Allow()", *(f"Allow({scope!r})" for scope in call.scopes)))
        raise CommandRefused(f"the question {id!r} does not offer Allow({command.scope!r}): it takes {offered}")
    return QuestionAnswered(key=call.key, question_id=id, answer=command.answer, verdict=command.verdict, scope=command.scope)


def expired(state: State, at: float) -> tuple[QuestionAnswered, ...]:
    """The records that say of every question whose time has passed ``at`` that nobody answered it."""
    return tuple(
        QuestionAnswered(key=call.key, question_id=call.question_id, verdict="expire")
        for call in state.calls.values()
        if call.progress is Progress.WAITING and call.expires_at is not None and at >= call.expires_at
    )
