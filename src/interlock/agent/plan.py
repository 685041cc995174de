"""What a resume would do, for a person to read before it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ..driver.reopening import changes, lost_dry_run, missing_policies, missing_tools
from ..driver.setup import Parts
from ..errors import NothingToResume
from ..machine import fold
from ..machine.prospect import CallProspect, Prospect, prospect
from ..records import Limits, Row

_SAYS = {
    "finished": "finished: its result stands",
    "not_started": "not started: it never ran, and may start now",
    "rerun": "started, but declared safe to start again",
    "reconcile": "started; the tool is asked what became of it",
    "unknown": "unknown: it had started and may have happened; the model is told so, and it is not run again",
    "waiting": "waits for an answer to the question",
    "refused": "settled without running",
}
_THEN = {"model": "Then the model is asked.", "end": "Then the run ends, without a further request.", "wait": "Then the run waits."}


class ResumePlan(Struct, frozen=True, kw_only=True):
    """What ``resume`` would do. missing_tools, missing_policies,
    lost_dry_run: why it is refused here. changes: what is different from when the run began, a
    sentence each."""

    session_id: str
    run: Prospect
    missing_tools: tuple[str, ...] = ()
    missing_policies: tuple[str, ...] = ()
    lost_dry_run: bool = False
    changes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The plan in words, a line each."""
        run = self.run
        requests = "1 request" if run.requests == 1 else f"{run.requests} requests"
        yield f"Run {run.run_id} of session {self.session_id}, turn {run.turn + 1}, {requests} so far."
        yield from (_line(call) for call in run.calls)
        if self.missing_policies:
            yield f"Refused here: the run was begun under the policy {', '.join(self.missing_policies)}, which this agent does not hold."
            return
        if self.missing_tools:  # so nothing of the above happens here, and what else is different does not matter
            yield f"Refused here: this agent does not have {', '.join(self.missing_tools)}. A program that has them can go on."
            return
        if self.lost_dry_run:
            yield "Refused here: the run was begun as a dry run, and this agent would execute what is still open."
            return
        yield _THEN[run.next]
        yield from (f"Different now: {change}." for change in self.changes)


def _line(call: CallProspect) -> str:
    attempt = f" (attempt {call.attempt})" if call.what == "rerun" else ""
    question = f" {call.question_id}" if call.question_id else ""
    return f"  {call.call.name} {call.call.arguments}: {_SAYS[call.what]}{question}{attempt}"


def plan_of(session_id: str, rows: Sequence[Row], parts: Parts, limits: Limits) -> ResumePlan:
    """Raises NothingToResume if ``rows`` hold no open run."""
    state = fold(row.record for row in rows)
    run = prospect(state, parts.clock())
    if run is None:
        raise NothingToResume(f"session {session_id!r} has no open run")
    return ResumePlan(
        session_id=session_id,
        run=run,
        missing_tools=missing_tools(state, parts),
        missing_policies=missing_policies(state, parts),
        lost_dry_run=lost_dry_run(state, parts),
        changes=changes(state, parts, limits),
    )
