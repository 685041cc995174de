"""``interlock resume | answer``: going on with a run that is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...agent import Allow, Deny, Edit
from ...agent.plan import ResumePlan
from ...driver.result import questions_of
from ...errors import CommandRefused, UsageError
from ...extensions.runtime_tools import RuntimeTools
from ...extensions.toolsets import TOOLSETS, toolset
from ...journal.transcript import Transcript
from ...machine import fold, is_open
from ...records import SCOPES, Question, Row
from ..interrupts import run_interruptible
from .asking import Change, change_of, shown_question, verbs
from .jsonl import write_line
from .run import AgentSource, Begin, play, same_again, the_tools
from .settings import Settings
from .store import info_of, rows_of
from .text import console, printable

__all__ = ["Given", "answered", "explained", "resumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The answer on the command line: at most one of them."""

    allow: bool
    session: bool
    tool: bool
    always: bool
    deny: str | None
    edit: str | None
    text: str | None

    def answer(self) -> Any:
        """What is answered; None if nothing is. Raises UsageError for two answers, and for an edit that is no JSON object."""
        given = [name for name in ("allow", *SCOPES, "deny", "edit", "text") if getattr(self, name) not in (None, False)]
        if len(given) > 1:
            raise UsageError(f"one answer, not {len(given)}: --{' and --'.join(given)}")
        if self.edit is not None:
            try:
                return Edit(msgspec.json.decode(self.edit, type=dict[str, Any]))
            except msgspec.MsgspecError as error:
                raise UsageError(f"--edit takes the arguments as one JSON object: {error}") from error
        if self.deny is not None:
            return Deny(self.deny)
        for scope in SCOPES:
            if getattr(self, scope):
                return Allow(scope)
        return Allow() if self.allow else self.text


def resumed(settings: Settings, name: str, *, as_json: bool, agent: str | None = None, dry_run: bool = False) -> int:
    """Go on with the open run of the session ``name``. agent: as ``--agent`` has it."""
    info, rows = rows_of(settings, name)
    if not agent:
        _check_tools(info.session_id, rows, settings)
    begin: Begin = lambda session: session.stream_resume()  # noqa: E731
    return play(lambda: begin, settings, session=info.session_id, as_json=as_json, agent=agent, known=True, dry_run=dry_run)


def explained(settings: Settings, name: str, *, as_json: bool, agent: str | None = None, dry_run: bool = False) -> int:
    """What a resume would do, without doing it."""
    info = info_of(settings, name)
    if info.state == "running":
        raise CommandRefused(f"session {info.session_id} is running: there is nothing to resume")
    source = AgentSource.of(settings, agent, _silent, create=False, dry_run=dry_run)

    async def plan() -> ResumePlan:
        async with await source.make(info.session_id, say=_silent) as made:
            return await made.session(info.session_id).explain()

    found = run_interruptible(plan())
    if as_json:
        write_line(msgspec.to_builtins(found))
        return 0
    out = console()
    for line in found.lines():
        out.print(printable(line), highlight=False, markup=False)
    if not agent and (ready := _set_with(found.missing_tools)):
        out.print(f"The set --tools {ready} has them.", highlight=False, markup=False)
    return 0


def _silent(text: str, *, style: str = "") -> None:
    """Where only the plan is wanted."""


def answered(
    settings: Settings, name: str, question: str | None, given: Given, *, as_json: bool, agent: str | None = None, dry_run: bool = False
) -> int:
    """Give the answer and go on; without one, show what is asked."""
    answer = given.answer()
    info, rows = rows_of(settings, name)
    records = [row.record for row in rows]
    asked = list(questions_of(fold(records), Transcript(records)))
    if not asked:
        raise CommandRefused(f"session {info.session_id} asks nothing")
    if answer is None:
        if question is not None and not (asked := [one for one in asked if one.id == question]):
            raise CommandRefused(f"session {info.session_id} does not ask {question!r}; without --question you see what it asks")
        foreign = [] if agent else _foreign(rows, settings)
        ready = _set_with(foreign)
        foreign = [] if ready else foreign
        options = same_again(settings, agent or ("MODULE:FUNCTION" if foreign else None), dry_run=dry_run, tools=ready)
        change = change_of(() if agent else toolset(ready, Path.cwd()).extensions if ready else the_tools(settings).extensions)
        _show(info.session_id, asked, foreign, change, options, as_json=as_json)
        return 0
    if question is None and len(asked) > 1:
        raise UsageError(f"several questions are open; say which: --question {' or --question '.join(one.id for one in asked)}")
    id = question or asked[0].id
    if not agent:
        _check_tools(info.session_id, rows, settings)

    def begin() -> Begin:
        return lambda session: session.stream_answer(id, answer)

    return play(begin, settings, session=info.session_id, as_json=as_json, agent=agent, known=True, dry_run=dry_run)


def _foreign(rows: list[Row], settings: Settings) -> list[str]:
    """The tools of the open run that the command line does not have: such a run goes on only in the program that has them."""
    ours = {tool.name for tool in RuntimeTools().tools()} | {*the_tools(settings).names}
    return [name for name in fold(row.record for row in rows).traits if name not in ours]


def _set_with(foreign: Sequence[str]) -> str | None:
    """The set of ready-made tools that has all of them; None if there is none, or nothing to look for."""
    if not foreign:
        return None
    return next((name for name in TOOLSETS if {*foreign} <= {*toolset(name, Path.cwd()).names}), None)


def _check_tools(session: str, rows: list[Row], settings: Settings) -> None:
    """Raises CommandRefused if the open run was begun with another set of ready-made tools, and says with which."""
    if is_open(fold(row.record for row in rows)) and (ready := _set_with(_foreign(rows, settings))):
        raise CommandRefused(f"session {session} goes on with the tools that its run was begun with: say --tools {ready}")


def _show(session: str, asked: list[Question], foreign: list[str], change: Change, options: str, *, as_json: bool) -> None:
    out = console()
    for one in asked:
        if as_json:
            write_line(msgspec.to_builtins(one))
            continue
        for line, style in shown_question(one, change="" if "\n" in one.text else change(one), full=True):
            out.print(line, highlight=False, markup=False, style=style)
        how = f"interlock answer {session}{options} --question {one.id} {verbs(one)}"
        if foreign:
            how += f"\n  in the program that has {', '.join(foreign)}: await agent.answer({one.id!r}, True)"
        out.print(printable(f"  {how}"), highlight=False, markup=False, style="dim")
