"""What the commands share: the program, their common options, and how one is run. Nothing here imports the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from .settings import Settings

app = typer.Typer(
    name="interlock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: it needs no rich, reads the same in a pipe and in 40 columns, and its examples can be copied.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What is set, where, and what it means.")
app.add_typer(config_app, name="config")
permissions_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What tools may do: check, explain and show policies.")
app.add_typer(permissions_app, name="permissions")


def examples(*lines: str) -> str:
    """Shown as they are under the options; the tests run each one."""
    return "\n\n".join(["\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in lines)])


def perform(command: Callable[[Settings], int], **flags: object) -> NoReturn:
    """Run ``command`` with the settings. flags: by key, a dot written as two underscores; None is not given."""
    from .exits import guarded
    from .settings import Settings

    def guided() -> int:
        return command(Settings.load({key.replace("__", "."): value for key, value in flags.items()}))

    raise typer.Exit(guarded(guided))


def sessions_like(incomplete: str) -> Iterable[str]:
    """For completion: nothing at all where anything is wrong, for nobody asked a question."""
    try:
        from .sessions import ids
        from .settings import Settings

        return [found for found in ids(Settings.load()) if found.startswith(incomplete)]
    except Exception:
        return []


Model = Annotated[str | None, typer.Option(metavar="SPEC", help="openai:NAME, ..., or auto; see interlock models. [env: INTERLOCK_MODEL]")]
PolicyFile = Annotated[str | None, typer.Option("--policy", metavar="FILE", help="What tools may do. [env: INTERLOCK_POLICY]")]
ToolSet = Annotated[
    str | None, typer.Option("--tools", metavar="SET", help="readonly; or coding: change files, run commands. [env: INTERLOCK_TOOLS]")
]
Journal = Annotated[str | None, typer.Option(metavar="URL", help="Where sessions are kept, as a URL. [env: INTERLOCK_JOURNAL]")]
Factory = Annotated[
    str | None,
    typer.Option(
        "--agent", metavar="MODULE:FUNCTION", help="Your own agent: what makes it, in a module or a file.py. It is imported and run."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask every guard, and execute no tool.")]
SessionId = Annotated[
    str | None, typer.Argument(help="A session, or the beginning of its id; the newest if left out.", autocompletion=sessions_like)
]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON.")]
