"""The sets of ready-made tools, by the names that ``--tools`` and programs use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..errors import UsageError
from ..toolbox.readonly import readonly_tools
from ..toolbox.roots import RootsLike
from ..toolbox.shell import shell_tools
from ..tools import Tool
from .ask_user import AskUser
from .base import AgentExtension, RunContext, ToolInvocation
from .files import Files, readable

__all__ = ["TOOLSETS", "Toolset", "toolset"]


# What holds a program, in the tools that run one.
_PROGRAMS = {"run_command": "command", "run_python": "code"}

Question = Callable[[RunContext, ToolInvocation], Awaitable[bool | str]]


class Toolset(NamedTuple):
    """What ``Agent.create`` is given: ``tools``, and ``extensions`` that bring further ones.

    question: for ``Approvals(when=...)``: what a person is asked before a call, with the change that it would make; None if there is
    nothing to show.
    """

    tools: tuple[Tool, ...] = ()
    extensions: tuple[AgentExtension, ...] = ()
    question: Question | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tools of the set."""
        brought = (made.name for extension in self.extensions for made in extension.tools() if isinstance(made, Tool))
        return (*(tool.name for tool in self.tools), *brought)


def _readonly(roots: RootsLike, asking: bool) -> Toolset:
    return Toolset(tools=readonly_tools(roots))


def _coding(roots: RootsLike, asking: bool) -> Toolset:
    files = Files(roots, approval=asking)

    async def question(context: RunContext, call: ToolInvocation) -> bool | str:
        return await files.question(context, call) or _program(call)

    return Toolset(
        tools=shell_tools(files.roots.first, approval=asking), extensions=(files, AskUser()), question=question if asking else None
    )


def _program(call: ToolInvocation) -> bool | str:
    """A question that shows a program of several lines as such; False for one line, which the arguments show as well."""
    text = str(call.arguments.get(_PROGRAMS.get(call.name, ""), "")).strip("\n")
    return f"May {call.name} run this?\n{readable(text)}" if "\n" in text else False


TOOLSETS: dict[str, Callable[[RootsLike, bool], Toolset]] = {"readonly": _readonly, "coding": _coding}
"""``readonly`` looks at files; ``coding`` also changes them, runs commands, which start in the first root, and may ask the user."""


def toolset(name: str, roots: RootsLike = ".", *, asking: bool = True) -> Toolset:
    """The set called ``name`` for these directories. asking: whether a person is asked before each change and each command; False leaves
    that to a policy. Raises UsageError if there is none, or a root is no readable directory."""
    if name not in TOOLSETS:
        raise UsageError(f"there is no set of tools {name!r}; there are {', '.join(TOOLSETS)}")
    return TOOLSETS[name](roots, asking)
