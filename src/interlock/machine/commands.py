"""May this request from outside become a fact now? Commands may be refused; facts may not."""

from __future__ import annotations

from typing import Any

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
    fingerprint: str = ""
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
    """Answer the open question of a waiting call."""

    question_id: str
    answer: Any


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
            for call in state.calls.values():
                if call.progress is Progress.WAITING and call.question_id == command.question_id:
                    return QuestionAnswered(key=call.key, question_id=command.question_id, answer=command.answer)
            raise CommandRefused(f"no open question has the id {command.question_id!r}")
        case _:
            where = "no run is open" if idle else "the run is ending" if state.ending is not None else "a run is open"
            raise CommandRefused(f"{type(command).__name__.lower()} is not possible: {where}")
