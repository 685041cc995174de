"""The commands and their options. What they do is in a module of its own each, imported when it is needed.

Nothing here imports the runtime: `interlock --help` and completion cost what typer costs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ... import __version__
from .base import (
    DryRun,
    Factory,
    Journal,
    Json,
    Model,
    PolicyFile,
    SessionId,
    ToolSet,
    app,
    config_app,
    examples,
    perform,
    permissions_app,
    sessions_like,
)
from .guards import permissions_check, permissions_explain, permissions_show
from .history import fork, replay
from .waiting import answer, resume

if TYPE_CHECKING:
    from .settings import Settings


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"interlock {__version__}")
        raise typer.Exit


def _keys(incomplete: str) -> Iterable[str]:
    from .settings import SCHEMA

    return [key for key in SCHEMA if key.startswith(incomplete)]


class ExportFormat(enum.StrEnum):
    """What `interlock export` writes."""

    json = "json"
    jsonl = "jsonl"
    markdown = "markdown"


@app.callback(epilog=examples("interlock demo --fast", "interlock sessions"))
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """A runtime for tool-calling agents in which a tool call runs at most once.

    `interlock demo` shows it at work, without a key and without a network.
    """


@app.command(
    epilog=examples(
        'interlock run "Which of these files is the newest?"',
        'git diff | interlock run "Review this change."',
        'interlock run --session chat-42 --deadline 5m "Go on."',
        'interlock run --json "What is in this directory?"',
        'interlock run --policy review.toml "What is in this directory?"',
        'interlock run --tools coding --policy coding.toml "Make the tests pass."',
    )
)
def run(
    prompt: Annotated[str | None, typer.Argument(help="What to do. What is piped in joins it as context.")] = None,
    model: Model = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="The session to continue; a new one if left out.", autocompletion=sessions_like)
    ] = None,
    journal: Journal = None,
    max_requests: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Model requests before exit code 12; 100 unless set.")
    ] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="Time before exit code 12: 90, 90s, 5m, 1h.")] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told first, in place of Interlock's own words.")
    ] = None,
    agent: Factory = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="One event per line, as JSON.")] = False,
    policy: PolicyFile = None,
    tools: ToolSet = None,
) -> None:
    """Run a prompt with ready-made tools for the working directory, or with an agent of yours. Unless --tools says more, they only read.

    On a terminal a call that needs somebody's word is asked about at once. Text goes to stdout, everything else to stderr. Exit codes:
    0 answered, 1 error, 2 usage, 3 refused (busy session), 4 provider, 5 journal, 10 incomplete, 11 refused by the model, 12 limit, 13
    waiting for a person, 129 hangup, 130 Ctrl-C, 141 closed pipe, 143 SIGTERM. Ctrl-C cancels the run and keeps the session; a second one
    ends at once. At a question it leaves the question open.
    """

    def command(settings: Settings) -> int:
        from .run import RunOptions
        from .run import run as run_prompt

        return run_prompt(RunOptions(prompt=prompt, session=session, as_json=as_json, agent=agent, dry_run=dry_run), settings)

    perform(
        command,
        model=model,
        journal=journal,
        policy=policy,
        tools=tools,
        system=system,
        limits__requests=max_requests,
        limits__deadline_s=deadline,
    )


app.command(
    short_help="Go on with a session's open run, or explain it.",
    epilog=examples("interlock resume chat-42 --explain", "interlock resume chat-42"),
)(resume)
app.command(
    epilog=examples("interlock answer chat-42", "interlock answer chat-42 --allow", "interlock answer chat-42 --deny 'not on a Monday'")
)(answer)


class Scene(enum.StrEnum):
    """What `interlock demo` shows."""

    desk = "desk"
    crash = "crash"


@app.command(
    short_help="Watch an agent do a small real job, or being killed.",
    epilog=examples("interlock demo --seed 3 --fast", "interlock demo crash --fast", "interlock demo --model auto"),
)
def demo(
    scene: Annotated[
        Scene, typer.Argument(metavar="SCENE", help="desk: invoices are paid; crash: the agent is killed meanwhile, again and again.")
    ] = Scene.desk,
    seed: Annotated[int, typer.Option(metavar="N", help="Other invoices, and other faults of the model.")] = 0,
    fast: Annotated[bool, typer.Option("--fast", help="Without the pauses that make it readable.")] = False,
    folder: Annotated[
        Path | None, typer.Option(metavar="PATH", help="An empty or new folder to work in; a temporary one if left out.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Give the job to a model of yours instead of the script: a spec, or auto.")
    ] = None,
) -> None:
    """Watch an agent do a small real job: pay what is due, and write a report. Needs no key and no network.

    `interlock demo crash` kills it with SIGKILL while it pays, and shows what every process finds when it reopens the session.
    """

    def command(settings: Settings) -> int:
        if scene is Scene.crash:
            from ...errors import UsageError
            from ..demo.crash import crash

            if model is not None:
                raise UsageError("interlock demo crash plays the model itself: leave --model out")
            return crash(seed=seed, fast=fast, folder=folder)
        from ..demo import demo as play
        from ..finding import AUTO, auto_model

        chosen, found = auto_model(servers=settings.texts("local_servers")) if model == AUTO else (model, "")
        return play(seed=seed, fast=fast, folder=folder, model=chosen, found=found)

    perform(command)


@app.command(short_help="List the sessions and their states.", epilog=examples("interlock sessions", "interlock sessions --json"))
def sessions(
    journal: Journal = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List the sessions: running, waiting for a person, stopped (to be resumed), idle, or abandoned by a process that died."""

    def command(settings: Settings) -> int:
        from .sessions import listing

        return listing(settings, limit=limit, as_json=as_json)

    perform(command, journal=journal)


@app.command(epilog=examples("interlock show", "interlock show chat-42 --full"))
def show(
    session: SessionId = None,
    journal: Journal = None,
    full: Annotated[bool, typer.Option("--full", help="Tool results in full.")] = False,
) -> None:
    """Show a session's transcript."""

    def command(settings: Settings) -> int:
        from .sessions import show as show_session

        return show_session(settings, session, full=full)

    perform(command, journal=journal)


@app.command(epilog=examples("interlock log chat-42", "interlock log chat-42 --json"))
def log(
    session: SessionId = None,
    journal: Journal = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with each new record, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One record per line, as JSON.")] = False,
) -> None:
    """Show a session's records, in the order in which they were written."""

    def command(settings: Settings) -> int:
        from .sessions import log as log_session

        return log_session(settings, session, follow=follow, as_json=as_json)

    perform(command, journal=journal)


@app.command(
    epilog=examples("interlock export chat-42 --format markdown", "interlock export chat-42 --format jsonl --output chat-42.jsonl")
)
def export(
    session: SessionId = None,
    journal: Journal = None,
    format: Annotated[
        ExportFormat, typer.Option(metavar="FORM", help="json: the transcript; jsonl: every record; markdown: to read.")
    ] = ExportFormat.json,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new file; stdout if left out.")] = None,
) -> None:
    """Write a session as a document."""

    def command(settings: Settings) -> int:
        from .sessions import export as export_session

        return export_session(settings, session, form=format.value, output=output)

    perform(command, journal=journal)


app.command(
    epilog=examples("interlock fork chat-42 --list", "interlock fork chat-42 --at 2 --as what-if", "interlock fork chat-42 --as copy")
)(fork)
app.command(epilog=examples("interlock replay chat-42", "interlock replay chat-42 --json"))(replay)


@app.command(epilog=examples("interlock delete chat-42 --yes"))
def delete(
    session: Annotated[str, typer.Argument(help="A session, or the beginning of its id.", autocompletion=sessions_like)],
    journal: Journal = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a session and everything in it, for good."""

    def command(settings: Settings) -> int:
        from .sessions import delete as delete_session

        return delete_session(settings, session, yes=yes)

    perform(command, journal=journal)


@app.command(epilog=examples("interlock prune --older-than 30d --dry-run", "interlock prune --older-than 30d --keep chat-42 --yes"))
def prune(
    older_than: Annotated[str, typer.Option("--older-than", metavar="TIME", help="Since the last record: 12h, 30d.")],
    journal: Journal = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="ID", help="Not this one; may be repeated.", autocompletion=sessions_like)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the sessions that ended long ago, for good.

    Never one that is running, waits for a person, or was left open by a process that died: those are ended or deleted by name.
    """

    def command(settings: Settings) -> int:
        from .sessions import prune as prune_sessions

        return prune_sessions(settings, older_than=older_than, keep=keep or (), dry_run=dry_run, yes=yes)

    perform(command, journal=journal)


@app.command(short_help="Show the layers around requests and tool calls.", epilog=examples("interlock onion", "interlock onion --json"))
def onion(as_json: Json = False, policy: PolicyFile = None) -> None:
    """Show the layers around every model request and every tool call, outermost first."""

    def command(settings: Settings) -> int:
        from .layers import onion as print_onion

        return print_onion(settings, as_json=as_json)

    perform(command, policy=policy)


@app.command(short_help="Show models' names, keys and local servers.", epilog=examples("interlock models", "interlock models --json"))
def models(as_json: Json = False) -> None:
    """Show how models are named, which keys are set, and which local servers answer."""

    def command(settings: Settings) -> int:
        from .models import models as list_models

        return list_models(settings, as_json=as_json)

    perform(command)


@app.command(short_help="Check keys, endpoints, the journal and the rest.", epilog=examples("interlock doctor", "interlock doctor --json"))
def doctor(as_json: Annotated[bool, typer.Option("--json", help="One check per line, as JSON.")] = False) -> None:
    """Check versions, settings, keys, endpoints, local servers, the journal and the onion.

    Keys are said to be set or not, and never shown. Exit code 1 means that something that a run needs is broken.
    """
    from .exits import guarded

    def command() -> int:
        from .doctor import doctor as check

        return check(as_json=as_json)

    raise typer.Exit(guarded(command))


@config_app.command("show", epilog=examples("interlock config show", "interlock config show --json"))
def config_show(as_json: Json = False) -> None:
    """Show every setting with its value, and where that comes from."""

    def command(settings: Settings) -> int:
        from .config import show as show_settings

        return show_settings(settings, as_json=as_json)

    perform(command)


@config_app.command(
    "explain",
    short_help="Explain one setting.",
    epilog=examples("interlock config explain model", "interlock config explain limits.requests --json"),
)
def config_explain(
    key: Annotated[str, typer.Argument(help="A setting, such as limits.requests.", autocompletion=_keys)],
    as_json: Json = False,
) -> None:
    """Explain one setting: its value, where it comes from, what it means, what else set it, and how to set it."""

    def command(settings: Settings) -> int:
        from .config import explain

        return explain(settings, key, as_json=as_json)

    perform(command)


permissions_app.command(
    "check", short_help="Check a policy file and run its examples.", epilog=examples("interlock permissions check review.toml")
)(permissions_check)
permissions_app.command(
    "explain",
    short_help="Say what a policy says of one call.",
    epilog=examples(
        """interlock permissions explain run_command '{"command": "git log | head -n 3"}' --policy review.toml""",
        """interlock permissions explain read_file '{"path": "src/app.py"}' --policy review.toml --json""",
    ),
)(permissions_explain)
permissions_app.command(
    "show",
    short_help="Show the policies and the safety floor.",
    epilog=examples("interlock permissions show", "interlock permissions show --policy review.toml"),
)(permissions_show)
