"""What a run amounts to, as its caller sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ProtocolError
from ..journal.transcript import Transcript
from ..machine import INVALID_OUTPUT, Progress, State, at_rest
from ..messages import Usage
from ..records import Outcome, Question, RunEnded, RunResult
from .session import LiveSession

if TYPE_CHECKING:
    from ..tools.output import OutputType

_HAVE_OUTPUT = frozenset({(Outcome.COMPLETED, "answer"), (Outcome.COMPLETED, "stop"), (Outcome.INCOMPLETE, INVALID_OUTPUT)})


def result_of(session: LiveSession, record: RunEnded, usage: Usage, cost_usd: float | None, output: OutputType | None) -> RunResult:
    """The result of a run that has just ended with ``record``. What a layer's ``Stop`` ended may not be of the form asked for: then
    there is no output."""
    transcript = session.transcript
    value, problems = None, ()
    if output is not None and (record.outcome, record.reason) in _HAVE_OUTPUT:
        value, problems = output.check(record.text)
    return RunResult(
        outcome=record.outcome,
        reason=record.reason,
        text=record.text,
        session_id=session.session_id,
        run_id=record.run_id,
        message=transcript.last,
        messages=transcript.messages,
        usage=usage,
        cost_usd=cost_usd,
        output=value,
        output_errors=problems if record.outcome is Outcome.INCOMPLETE else (),
    )


def result_at_rest(session: LiveSession, usage: Usage, *, driven: bool) -> RunResult:
    """The result of a run that is still open: WAITING for a person, or merely accepted. driven: everything that could start has."""
    outcome, transcript = at_rest(session.state), session.transcript
    questions = questions_of(session.state, transcript)
    if driven and outcome is Outcome.WAITING and not questions:
        raise ProtocolError(f"session {session.session_id!r} is at rest in the middle of a batch, and waits for nobody")
    return RunResult(
        outcome=outcome or Outcome.INCOMPLETE,
        reason="question" if outcome is Outcome.WAITING else "open",
        text="",
        session_id=session.session_id,
        run_id=session.state.run_id,
        message=transcript.last,
        messages=transcript.snapshot(),
        usage=usage,
        cost_usd=cost_of(session.state),
        questions=questions,
    )


def cost_of(state: State) -> float | None:
    """Dollars of the run, if there is a limit of them. Of tokens that no provider has reported they are unknown, and not 0."""
    usage = state.usage
    known = usage.input_tokens is not None or usage.output_tokens is not None
    return state.cost_usd if state.limits.cost_usd is not None and known else None


def questions_of(state: State, transcript: Transcript) -> tuple[Question, ...]:
    """The questions that are open, in call order."""
    waiting = [call for call in state.calls.values() if call.progress is Progress.WAITING]
    return tuple(
        Question(
            id=call.question_id,
            key=call.key,
            call=call.call,
            text=asked.question,
            arguments=asked.arguments,
            expires_at=asked.expires_at,
            scopes=asked.scopes,
            asked_by=asked.asked_by,
        )
        for call in waiting
        if (asked := transcript.questions.get(call.question_id)) is not None
    )
