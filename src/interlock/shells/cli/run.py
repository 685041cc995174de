"""``interlock run``: one prompt, to its end."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from ...agent import Agent, AgentRunConfig, Session
from ...errors import CommandRefused, ProviderError, UsageError
from ...events import Event, RunFinished
from ...messages import clean
from ...records import Outcome, RunResult
from ...toolbox.readonly import readonly_tools
from ..finding import AUTO, auto_model
from ..interrupts import run_interruptible
from .display import Display
from .exits import OUTCOME_CODES
from .jsonl import JsonLines
from .settings import Settings
from .text import counted

__all__ = ["Begin", "RunOptions", "play", "run", "run_config", "the_agent", "the_model"]

Begin = Callable[[Session], AsyncGenerator[Event, None]]
"""What is to be done with the session."""

STDIN_BYTES_MAX = 1024 * 1024
SYSTEM_PROMPT = (
    "You answer questions about the working directory and about what the user gives you. "
    "You can list, read and search its files; you cannot change anything. Say so if a question needs more than that."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line was told, beside the settings."""

    prompt: str | None
    session: str | None
    as_json: bool


def run(options: RunOptions, settings: Settings) -> int:
    """Run the prompt and return the exit code. The session's id is printed, so that it can be continued."""

    def begin() -> Begin:
        # Before the event loop, which would not notice a Ctrl-C while stdin is read.
        prompt = _prompt(options.prompt)
        return lambda session: session.stream(prompt)

    return play(begin, settings, session=options.session or uuid.uuid4().hex[:12], as_json=options.as_json)


def play(begin: Callable[[], Begin], settings: Settings, *, session: str, as_json: bool) -> int:
    """Show the events of what ``begin`` makes of the session, to their end, and return the exit code."""
    one = _OneRun(session, Display(markdown=settings.of("markdown").value), JsonLines() if as_json else None)
    try:
        stream, model, journal = begin(), the_model(settings, one.say), settings.journal()
        result = run_interruptible(one.main(stream, settings, model=model, journal=journal), on_stop=one.stop)
    except Exception as error:
        if isinstance(error, ProviderError):
            one.say(f"the session is kept: interlock resume {session} goes on where it stopped", style="yellow")
        if one.lines is not None:
            one.lines.failed(error, session_id=one.session)
        raise
    finally:
        one.display.close()
    return one.finish(result)


class _OneRun:
    def __init__(self, session: str, display: Display, lines: JsonLines | None) -> None:
        self.session = session
        self.display = display
        self.lines = lines
        self._agent: Agent | None = None
        self._begun = False
        self._signal: int | None = None
        self._cancelling: asyncio.Task[None] | None = None

    async def main(self, begin: Begin, settings: Settings, *, model: str, journal: str) -> RunResult:
        agent = self._agent = await the_agent(settings, self.session, model=model, journal=journal)
        if self.lines is None:
            self.display.show_warnings()
        try:
            async with aclosing(begin(agent.session(self.session))) as events:
                async for event in events:
                    self._begun = True
                    self._show(event)
                    if isinstance(event, RunFinished):
                        return event.result
        finally:
            await agent.aclose()
        raise AssertionError("a stream that ends by itself ends with RunFinished")

    def stop(self, code: int) -> bool:
        """The first signal: the run is cancelled as a person would, through the journal. Before it has begun there is nothing to keep."""
        self._signal = code
        if self._agent is None or not self._begun:
            return False
        self.say("stopping; once more ends at once")
        self._cancelling = asyncio.get_running_loop().create_task(self._cancel(self._agent))
        return True

    def finish(self, result: RunResult) -> int:
        """The last lines, and the exit code."""
        code = OUTCOME_CODES[result.outcome]
        if result.outcome is Outcome.CANCELLED:
            code = self._signal or code
            self.say(f'cancelled; the session is kept: interlock run --session {self.session} "..." continues it', style="yellow")
        for question in result.questions:
            self.say(f"to answer: interlock answer {self.session} --question {question.id} --allow (or --deny REASON)", style="yellow")
        usage = result.usage
        tokens = "" if usage.output_tokens is None else f", {(usage.input_tokens or 0) + usage.output_tokens:,} tokens"
        self.say(f"session {self.session}: {counted(usage.requests, 'request')}, {counted(usage.tool_calls, 'tool call')}{tokens}")
        return code

    async def _cancel(self, agent: Agent) -> None:
        try:
            await agent.cancel()
        except CommandRefused:
            pass  # it has ended by itself meanwhile

    def _show(self, event: Event) -> None:
        if self.lines is not None:
            self.lines.event(event, signal_code=self._signal)
        else:
            self.display.event(event)

    def say(self, text: str, *, style: str = "dim") -> None:
        """A line for a person; none where a program reads."""
        if self.lines is None:
            self.display.notice(text, style=style)


async def the_agent(settings: Settings, session: str, *, model: str, journal: str) -> Agent:
    """The agent of the command line: read-only tools for the working directory."""
    return await Agent.create(
        model,
        config=run_config(settings, session),
        tools=list(readonly_tools(Path.cwd())),
        system_prompt=settings.text("system") or SYSTEM_PROMPT,
        journal=journal,
        limits=settings.limits(),
    )


def run_config(settings: Settings, session: str) -> AgentRunConfig:
    """The session, and what the settings say of each request."""
    return AgentRunConfig(
        session_id=session,
        temperature=settings.of("request.temperature").value,
        max_tokens=settings.of("request.max_tokens").value,
        reasoning_effort=settings.of("request.reasoning_effort").value,
    )


def the_model(settings: Settings, say: Callable[[str], None]) -> str:
    """The spec to use; ``say`` is told where it is from, if that is not what the user has just typed or set.

    Raises UsageError if none is set, or ``auto`` finds none.
    """
    here = settings.of("model")
    if here.value is None:
        raise UsageError(
            "which model? Give --model or set INTERLOCK_MODEL, to openai:NAME, to openai-compatible:NAME@http://host/v1, or to auto, "
            "which looks for a key or a local server. `interlock models` lists all forms; `interlock demo` needs no model."
        )
    if here.value == AUTO:
        spec, where = auto_model(servers=settings.texts("local_servers"))
        say(f"model {spec} (found: {where})")
        return spec
    if here.layer == "project":  # somebody else may have written that file, and it decides who reads the conversation
        say(f"model {here.value} (set by {here.where})")
    return here.value


def _prompt(argument: str | None) -> str:
    """The prompt, with what was piped in below it. Raises UsageError if there is neither, or too much."""
    parts = [clean(argument)] if argument and argument.strip() else []
    if piped := _piped():
        parts.append(f"<stdin>\n{piped}\n</stdin>" if parts else piped)
    if not parts:
        raise UsageError('what should be done? interlock run "..."')
    return "\n\n".join(parts)


def _piped() -> str:
    """What a pipe or a file gives us on stdin; nothing for a terminal, /dev/null or a closed stdin."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return ""
    data = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        raise UsageError(f"more than {STDIN_BYTES_MAX:,} bytes on stdin; give the file's name in the prompt instead")
    return data.decode("utf-8", "replace").strip()
