"""``interlock resume | answer``, as commands with options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .base import DryRun, Factory, Journal, Model, PolicyFile, ToolSet, perform, sessions_like

if TYPE_CHECKING:
    from .settings import Settings

__all__ = ["answer", "resume"]


def resume(
    session: Annotated[str, typer.Argument(help="A session, or the beginning of its id.", autocompletion=sessions_like)],
    explain: Annotated[bool, typer.Option("--explain", help="Say what would happen to each open call, and do nothing.")] = False,
    model: Model = None,
    journal: Journal = None,
    agent: Factory = None,
    as_json: Annotated[bool, typer.Option("--json", help="One event per line, as JSON; the plan as one object.")] = False,
    policy: PolicyFile = None,
    tools: ToolSet = None,
    dry_run: DryRun = False,
) -> None:
    """Go on with a session's open run: after a crash, a failure of the model's side, or a question that has expired.

    A call that had started in a process that is gone is not started again; what became of it is found out or said to be unknown.
    Exit codes as for run; 3 if there is nothing to resume.
    """

    def command(settings: Settings) -> int:
        from .going_on import explained, resumed

        return (explained if explain else resumed)(settings, session, as_json=as_json, agent=agent, dry_run=dry_run)

    perform(command, model=model, journal=journal, policy=policy, tools=tools)


def answer(
    session: Annotated[str, typer.Argument(help="A session, or the beginning of its id.", autocompletion=sessions_like)],
    question: Annotated[str | None, typer.Option(metavar="ID", help="Which question; needed if several are open.")] = None,
    allow: Annotated[bool, typer.Option("--allow", help="Yes, this once, to exactly these arguments.")] = False,
    for_session: Annotated[bool, typer.Option("--session", help="Yes, and to these arguments in the rest of this session.")] = False,
    for_tool: Annotated[bool, typer.Option("--tool", help="Yes, and to every call of the tool in this session.")] = False,
    always: Annotated[bool, typer.Option("--always", help="Yes, and to these arguments in every session.")] = False,
    deny: Annotated[str | None, typer.Option(metavar="REASON", help="No; the model is told the reason.")] = None,
    edit: Annotated[str | None, typer.Option(metavar="JSON", help="Not so, but with these arguments; they are asked about.")] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Anything else, for the one that asked.")] = None,
    model: Model = None,
    journal: Journal = None,
    agent: Factory = None,
    as_json: Annotated[bool, typer.Option("--json", help="One event per line, as JSON; questions as one object each.")] = False,
    policy: PolicyFile = None,
    tools: ToolSet = None,
    dry_run: DryRun = False,
) -> None:
    """Answer a question of a session that waits, and go on with its run. Without an answer: show what is asked.

    Exit codes as for run; 3 if the question is not open.
    """

    def command(settings: Settings) -> int:
        from .going_on import Given, answered

        given = Given(allow=allow, session=for_session, tool=for_tool, always=always, deny=deny, edit=edit, text=text)
        return answered(settings, session, question, given, as_json=as_json, agent=agent, dry_run=dry_run)

    perform(command, model=model, journal=journal, policy=policy, tools=tools)
