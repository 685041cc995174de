"""``interlock fork | replay``, as commands with options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .base import Journal, SessionId, perform

if TYPE_CHECKING:
    from .settings import Settings


def fork(
    session: SessionId = None,
    journal: Journal = None,
    at: Annotated[int | None, typer.Option(metavar="SEQ", help="The last record to keep; all of them if left out.")] = None,
    new: Annotated[str | None, typer.Option("--as", metavar="NEW", help="The new session's id; made up if left out.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Fork nothing: list the places where it is sensible.")] = False,
) -> None:
    """Make a new session of the beginning of another one.

    Nothing that was done is undone, and no call of the old session is run again: those that were open get the old session's result, or are
    said to be unknown. The old session stays as it is, and may be running.
    """

    def command(settings: Settings) -> int:
        from .forks import fork as fork_session
        from .forks import places

        return places(settings, session) if listing else fork_session(settings, session, at_seq=at, new=new)

    perform(command, journal=journal)


def replay(
    session: SessionId = None, journal: Journal = None, as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False
) -> None:
    """Check that a session's records follow from one another.

    Nobody is asked. Each request, each call that was entered or settled, each verdict and each end of a run must be what the
    machine decides from the records before it. Layers are not run: agent.replay() does that, in the program that has them.
    Exit code 1: a record differs, and it is named.
    """

    def command(settings: Settings) -> int:
        from .replays import replay as replay_session

        return replay_session(settings, session, as_json=as_json)

    perform(command, journal=journal)
