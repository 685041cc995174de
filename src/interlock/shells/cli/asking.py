"""Asking a person on the terminal whether a call may run."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...agent import Allow, Deny, Edit
from ...extensions.ask_user import ASK_USER, AskUser
from ...extensions.base import AgentExtension
from ...extensions.files import Files
from ...records import Question
from .text import visible

__all__ = ["Asker", "Change", "change_of", "question_lines", "shown_arguments", "shown_question", "verbs"]

Say = Callable[..., None]
Change = Callable[[Question], str]
"""What the call of a question would change now, as a person reads it; "" if nothing can be shown. It may block."""
Answer = Allow | Deny | Edit | str
LINES_MAX = 20
# Of one line of the arguments; a longer one is cut until all of it is asked for.
CHARACTERS_MAX = 400
# Of one line of a question. Those of a policy hold the arguments, which may be a whole file; they are shown below as well.
QUESTION_CHARACTERS_MAX = 1000
# Editors show a tab as white space; an escape in each line of a Makefile or a Go program would hide what is asked.
TAB, SHOWN_TAB = "\t", "    "


class Asker:
    """Reads a person's answers, a line each, while the event loop runs. say: shows a line, with a style. change: what is shown below a
    question that does not show it itself.

    Nothing that was typed before a question was shown is taken for its answer.
    """

    def __init__(self, say: Say, *, approvals: str, change: Change = lambda _: "") -> None:
        self._say = say
        self._change = change
        self._approvals = approvals
        self._leaving: asyncio.Event | None = None
        self._editing = False

    @staticmethod
    def possible() -> bool:
        """Whether somebody sits there: what is asked is seen, and what is typed is read."""
        return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))  # pyright: ignore[reportUnnecessaryComparison]

    def leave(self) -> bool:
        """Ctrl-C, or the terminal is closed: go on without an answer. False if nothing is being asked."""
        if self._leaving is None:
            return False
        if not self._editing:  # else the editor has heard it, too
            self._leaving.set()
        return True

    async def answer(self, question: Question) -> Answer | None:
        """What the person says; None if they leave it open."""
        self._leaving = asyncio.Event()
        try:
            change = "" if "\n" in question.text else await asyncio.to_thread(self._change, question)
            termios.tcflush(0, termios.TCIFLUSH)
            if _is_free(question):
                return await self._said(question)
            self._show(question, change)
            return await self._read(question, change)
        finally:
            self._leaving = None

    async def _said(self, question: Question) -> str | Deny | None:
        """An answer in words, to a question that a model asks."""
        for line, style in question_lines(question.call.name, question.text):
            self._say(line, style=style)
        for line in ("  type the answer, or the number of a choice", "  /deny REASON  no answer, and the model is told why"):
            self._say(line, style="")
        self._say(_LEAVES, style="dim")
        while (line := await self._line("your answer: ")) is not None:
            word, _, rest = line.strip().partition(" ")
            if word == "/deny":
                return Deny(rest.strip())
            if word:
                return line.strip()
        return None

    def _show(self, question: Question, change: str, *, full: bool = False) -> None:
        for line, style in shown_question(question, change=change, full=full):
            self._say(line, style=style)
        for key, meaning in _keys(question, self._approvals):
            self._say(f"  {key}  {meaning}", style="")
        self._say(_LEAVES, style="dim")

    async def _read(self, question: Question, change: str) -> Answer | None:
        tool = visible(question.call.name)
        while (line := await self._line(f"{tool}? ")) is not None:
            key, _, rest = line.strip().partition(" ")
            offered = dict(_keys(question, self._approvals))
            match key.lower():
                case "f" | "full":
                    self._show(question, change, full=True)
                case "y" | "yes" if not rest:
                    return Allow()
                case "s" if "s" in offered and not rest:
                    return Allow("session")
                case "t" if "t" in offered and not rest:
                    return Allow("tool")
                case "a" if "a" in offered and not rest:
                    return Allow("always")
                case "r" if "r" in offered and rest.strip():
                    return rest.strip()
                case "d" | "n" | "no":
                    reason = rest or await self._line("why? (the model is told; Enter for no reason) ")
                    if reason is not None:
                        return Deny(reason.strip())
                    return None
                case "e":
                    if (edited := await self._edited(question, rest)) is not None:
                        return edited
                case _:
                    self._say(f"one of {', '.join(offered)} is needed", style="yellow")
        return None

    async def _edited(self, question: Question, typed: str) -> Edit | None:
        text = typed or await self._from_editor(question)
        if not text:
            text = await self._line("the arguments as one JSON object: ") or ""
        if not text.strip():
            self._say("nothing is changed", style="yellow")
            return None
        try:
            return Edit(msgspec.json.decode(text, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            self._say(f"not one JSON object ({error}); nothing is changed", style="yellow")
            return None

    async def _from_editor(self, question: Question) -> str:
        """What VISUAL or EDITOR makes of the arguments; "" without one, or if it fails."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            return ""
        with tempfile.NamedTemporaryFile("w+", encoding="utf-8", prefix="interlock-", suffix=".json") as file:
            file.write(_indented(question.arguments) + "\n")
            file.flush()
            self._editing = True
            try:
                process = await asyncio.create_subprocess_exec(*shlex.split(editor), file.name)
                return _read(file.name) if await process.wait() == 0 else ""
            except (OSError, ValueError) as error:
                self._say(f"{editor}: {error}", style="yellow")
                return ""
            finally:
                self._editing = False

    async def _line(self, prompt: str) -> str | None:
        """One line, without its end; None at the end of the input, or when the person leaves."""
        leaving, loop = self._leaving, asyncio.get_running_loop()
        assert leaving is not None
        sys.stderr.write(prompt)
        sys.stderr.flush()
        typed: asyncio.Future[bytes] = loop.create_future()

        def readable() -> None:
            loop.remove_reader(0)
            try:
                data = os.read(0, 65536)  # a terminal gives a line at a time
            except OSError:
                data = b""
            if not typed.done():
                typed.set_result(data)

        loop.add_reader(0, readable)
        left = asyncio.ensure_future(leaving.wait())
        try:
            await asyncio.wait({typed, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(0)
            left.cancel()
        data = typed.result() if typed.done() else b""
        if not data:
            sys.stderr.write("\n")
            return None
        return data.decode("utf-8", "replace").rstrip("\r\n")


def change_of(extensions: Iterable[AgentExtension]) -> Change:
    """What the file tools among ``extensions`` would change, for a question of a layer that knows nothing of files."""
    files = next((one for one in extensions if isinstance(one, Files)), None)
    if files is None:
        return lambda question: ""
    return lambda question: files.change(question.call.name, msgspec.json.decode(question.arguments or "{}", type=dict[str, Any]))


_LEAVES = "  Ctrl-D leaves the question open"
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def _is_free(question: Question) -> bool:
    """Whether a model asks, and any words are the answer; a policy that asks about the tool asks for a yes."""
    return question.call.name == ASK_USER.name and question.asked_by == AskUser.__name__


def _keys(question: Question, approvals: str) -> Iterator[tuple[str, str]]:
    tool, scopes = visible(question.call.name), question.scopes
    yield "y", "yes, this once, with exactly these arguments"
    if "session" in scopes:
        yield "s", f"yes, and whenever {tool} is called with exactly these arguments in this session"
    if "tool" in scopes:
        yield "t", f"yes, and whenever {tool} is called in this session, WHATEVER its arguments"
    if "always" in scopes:
        yield "a", f"yes, and with exactly these arguments in every session: a rule in {visible(approvals)}"
    if not scopes:
        yield "r", "reply in words (r TEXT), to a layer that asks for some"
    yield "e", "edit the arguments; you are asked about them again"
    yield "d", "deny it, and tell the model why"
    yield "f", "show the arguments in full"


def verbs(question: Question) -> str:
    """The options of ``interlock answer`` that it takes."""
    if _is_free(question):
        return "--text ANSWER (or --deny REASON)"
    longer = {"session": "--session", "tool": "--tool", "always": "--always"}
    words = [longer[scope] for scope in question.scopes] or ["--text TEXT"]
    return f"--allow (or {', '.join([*words, '--edit JSON', '--deny REASON'])})"


def question_lines(name: str, text: str, *, by: str = "", change: str = "", full: bool = False) -> Iterator[tuple[str, str]]:
    """What is asked about a call of the tool ``name``, and below it ``change``, each line with a style. All but the first stand behind a
    bar, so that none can be taken for the terminal's own; a very long one is cut in its middle unless all of it is asked for. by: the layer
    that asks."""
    first, *more = (line if full else _cut(line) for line in text.split("\n"))
    yield f"? {visible(name)}: {visible(first)}{f' (asked by {visible(by)})' if by else ''}", "yellow"
    for line in (*more, *(change.split("\n") if change else ())):
        yield f"  | {visible(line.replace(TAB, SHOWN_TAB))}".rstrip(), _DIFF_STYLES.get(line[:1], "")


def shown_question(question: Question, *, change: str = "", full: bool = False) -> Iterator[tuple[str, str]]:
    """The lines that say what is asked, each with a style. Nothing in them is obeyed by a terminal, and nothing is invisible."""
    yield from question_lines(question.call.name, question.text, by=question.asked_by, change=change, full=full)
    yield from ((f"  {line}", "bold") for line in shown_arguments(question.arguments, full=full))
    if _canonical(question.call.arguments) != _canonical(question.arguments):
        yield "  changed since the model wrote them:", "yellow"
        yield from ((f"  {line}", "dim") for line in shown_arguments(question.call.arguments, full=full))
    if question.expires_at is not None:
        left = question.expires_at - time.time()
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(question.expires_at))
        yield (f"  an answer is taken until {when}" if left > 0 else f"  it expired at {when}, which is a denial"), "dim"


def shown_arguments(arguments: str, *, full: bool = False) -> list[str]:
    """JSON, indented; what cannot be seen is written as an escape, and what is cut says how much that is."""
    lines = [visible(line) for line in _indented(arguments).split("\n")]
    if full:
        return lines
    shown = [
        line if len(line) <= CHARACTERS_MAX else f"{line[:CHARACTERS_MAX]} [... {len(line) - CHARACTERS_MAX:,} more characters]"
        for line in lines
    ]
    if len(shown) > LINES_MAX:
        shown = [*shown[:LINES_MAX], f"[... {len(lines) - LINES_MAX:,} more lines]"]
    return shown


def _cut(line: str) -> str:
    """The end stays: there a policy says why it asks."""
    half, out = QUESTION_CHARACTERS_MAX // 2, len(line) - QUESTION_CHARACTERS_MAX
    return line if out <= 0 else f"{line[:half]} [... {out:,} more characters ...] {line[-half:]}"


def _read(path: str) -> str:
    """By its name, because many editors write a new file in its place."""
    return Path(path).read_text(encoding="utf-8")


def _indented(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), indent=2, ensure_ascii=False)
    except ValueError:
        return arguments


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except ValueError:
        return arguments
