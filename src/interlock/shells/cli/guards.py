"""``interlock permissions check | explain | show``, as commands with options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .base import Json, PolicyFile, perform

if TYPE_CHECKING:
    from .settings import Settings


def permissions_check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A policy file.")],
    as_json: Annotated[bool, typer.Option("--json", help="One example per line, as JSON.")] = False,
) -> None:
    """Check a policy file, and run its examples.

    Exit codes: 0 all is well, 1 an example does not come true, 2 the file has a mistake, which is named with its line.
    """

    def command(settings: Settings) -> int:
        from .permissions import check

        return check(file, as_json=as_json)

    perform(command)


def permissions_explain(
    tool: Annotated[str, typer.Argument(help="The tool that would be called.")],
    arguments: Annotated[str, typer.Argument(metavar="ARGS", help="Its arguments, as one JSON object.")] = "{}",
    original: Annotated[str | None, typer.Option(metavar="ARGS", help="What the model asked for, if a layer has edited it since.")] = None,
    policy: PolicyFile = None,
    as_json: Json = False,
) -> None:
    """Say what a policy says of one call: the verdict, the rule, why, and every command in it. Nothing is run.

    Exit codes: 0 allowed, 1 denied, 13 a person would be asked, 2 usage.
    """

    def command(settings: Settings) -> int:
        from .permissions import explain

        return explain(settings, tool, arguments, original, as_json=as_json)

    perform(command, policy=policy)


def permissions_show(policy: PolicyFile = None, as_json: Json = False) -> None:
    """Show the policies that hold, rule by rule, and the safety floor that is below each of them."""

    def command(settings: Settings) -> int:
        from .permissions import show

        return show(settings, as_json=as_json)

    perform(command, policy=policy)
