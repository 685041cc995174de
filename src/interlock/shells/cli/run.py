"""``interlock run``: one prompt, to its end."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...agent import Agent, AgentRunConfig, Session
from ...agent.models import vendors
from ...errors import CommandRefused, ProviderError, SessionBusy, UsageError
from ...events import Event, RunFinished, ToolSuspended
from ...extensions.approvals import Approvals
from ...extensions.dryrun import DryRun
from ...extensions.hooks import CommandHook
from ...extensions.permissions import Permissions
from ...extensions.secrets import SECRET_MIN, RedactSecrets
from ...extensions.toolsets import Toolset, toolset
from ...messages import clean
from ...model import Model
from ...records import Outcome, RunResult
from ..finding import AUTO, auto_model
from ..interrupts import INTERRUPTED, run_interruptible
from .asking import Asker, change_of, verbs
from .display import Display
from .exits import OUTCOME_CODES
from .jsonl import JsonLines
from .loading import Factory, factory_named
from .permissions import guards
from .settings import Settings, seconds
from .text import counted

__all__ = [
    "AgentSource",
    "Begin",
    "RunOptions",
    "hooks_of",
    "keys_here",
    "play",
    "run",
    "run_config",
    "same_again",
    "the_model",
    "the_tools",
]

Begin = Callable[[Session], AsyncGenerator[Event, None]]
"""What is to be done with the session."""

STDIN_BYTES_MAX = 1024 * 1024
SYSTEM_PROMPT = (
    "You answer questions about the working directory and about what the user gives you. "
    "You can list, read and search its files; you cannot change anything. Say so if a question needs more than that."
)

CODING_PROMPT = (
    "You work on the project in the working directory. You can list, read, search, write and edit its files and run commands there. "
    "Read before you change, change no more than what was asked for, and run the project's own tests before you say that it is done. "
    "What you may do is decided by a policy and by the user: if something is denied, do not look for a way around it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line was told, beside the settings."""

    prompt: str | None
    session: str | None
    as_json: bool
    agent: str | None = None
    dry_run: bool = False


def run(options: RunOptions, settings: Settings) -> int:
    """Run the prompt and return the exit code. The session's id is printed, so that it can be continued."""

    def begin() -> Begin:
        # Before the event loop, which would not notice a Ctrl-C while stdin is read.
        prompt = _prompt(options.prompt)
        return lambda session: session.stream(prompt)

    session = options.session or uuid.uuid4().hex[:12]
    return play(begin, settings, session=session, as_json=options.as_json, agent=options.agent, dry_run=options.dry_run)


def play(
    begin: Callable[[], Begin],
    settings: Settings,
    *,
    session: str,
    as_json: bool,
    agent: str | None = None,
    known: bool = False,
    dry_run: bool = False,
) -> int:
    """Show the events of what ``begin`` makes of the session, to their end, and return the exit code.

    On a terminal what the run asks meanwhile is asked there. agent: whose tools and layers, as ``--agent`` has it; None is the command
    line's own. known: the session is one that exists. dry_run: no tool is executed.
    """
    display, lines = Display(markdown=settings.of("markdown").value), JsonLines() if as_json else None
    one = _OneRun(session, display, lines, same_again(settings, agent, dry_run=dry_run))
    try:
        stream = begin()
        source = AgentSource.of(settings, agent, one.say, dry_run=dry_run)
        result = run_interruptible(one.main(stream, source, known=known), on_stop=one.stop)
    except Exception as error:
        if isinstance(error, ProviderError):
            one.say(f"the session is kept: interlock resume {session}{one.options} goes on where it stopped", style="yellow")
        if one.lines is not None:
            one.lines.failed(error, session_id=one.session)
        raise
    finally:
        one.display.close()
    return one.finish(result)


def same_again(settings: Settings, agent: str | None, *, dry_run: bool, tools: str | None = None) -> str:
    """The options that a command needs to go on as this one did: those that were given, and not those that are set for good.

    tools: the set that it needs instead.
    """
    given = {key: settings.text(key) for key in ("model", "tools", "policy", "journal") if settings.of(key).layer == "flag"}
    if tools is not None:
        given["tools"] = tools
    flags = [("--agent", agent), *((f"--{key}", value) for key, value in given.items())]
    options = "".join(f" {flag} {shlex.quote(value)}" for flag, value in flags if value)
    return f"{options} --dry-run" if dry_run else options


class _OneRun:
    def __init__(self, session: str, display: Display, lines: JsonLines | None, options: str) -> None:
        self.session = session
        self.display = display
        self.lines = lines
        self.options = options
        self._agent: Agent | None = None
        self._asker: Asker | None = None
        self._begun = False
        self._signal: int | None = None
        self._cancelling: asyncio.Task[None] | None = None

    async def main(self, begin: Begin, source: AgentSource, *, known: bool) -> RunResult:
        agent = self._agent = await source.make(self.session, say=self.say)
        if source.dry_run:
            self.say("dry run: every guard is asked, and no tool is executed")
        if self.lines is None:
            self.display.show_warnings()
            if Asker.possible():
                self._asker = Asker(self.say, approvals=str(source.settings.approvals()), change=change_of(agent.parts.extensions))
        for guard in agent.parts.extensions:
            if isinstance(guard, Permissions):
                self.say(f"{guard.policy} holds")
        try:
            if known and not await agent.rows(self.session):
                raise UsageError(f"the agent keeps its sessions elsewhere than {source.journal}, where {self.session} is: give --journal")
            session = agent.session(self.session)
            result = await self._played(begin(session))
            while result.outcome is Outcome.WAITING and self._asker is not None:
                question = result.questions[0]
                answer = await self._asker.answer(question)
                if answer is None:
                    self.display.asked(question.id)
                    self.display.event(RunFinished(result=result))
                    break
                result = await self._answered(session, question.id, answer)
            return result
        finally:
            await agent.aclose()

    async def _answered(self, session: Session, question_id: str, answer: object) -> RunResult:
        try:
            return await self._played(session.stream_answer(question_id, answer))
        except SessionBusy:
            raise
        except CommandRefused as refused:  # its time was up meanwhile, or somebody else was quicker
            self.say(str(refused), style="yellow")
            return await self._played(session.stream_resume())

    async def _played(self, events: AsyncGenerator[Event, None]) -> RunResult:
        async with aclosing(events):
            async for event in events:
                self._begun = True
                if isinstance(event, RunFinished):
                    if self._asker is None or event.result.outcome is not Outcome.WAITING:
                        self._show(event)
                    return event.result
                if self._asker is None or not isinstance(event, ToolSuspended):  # the asker shows it all
                    self._show(event)
        raise AssertionError("a stream that ends by itself ends with RunFinished")

    def stop(self, code: int) -> bool:
        """The first signal: the run is cancelled as a person would, through the journal. Before it has begun there is nothing to keep."""
        self._signal = code
        if self._asker is not None and self._asker.leave():
            return True
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
            self.say(
                f'cancelled; the session is kept: interlock run{self.options} --session {self.session} "..." continues it', style="yellow"
            )
        if result.outcome is Outcome.WAITING and self._signal not in (None, INTERRUPTED):
            code = self._signal
        for question in result.questions:
            which = f"--question {question.id} {verbs(question)}"
            self.say(f"to answer: interlock answer {self.session}{self.options} {which}", style="yellow")
        usage = result.usage
        tokens = "" if usage.output_tokens is None else f", {(usage.input_tokens or 0) + usage.output_tokens:,} tokens"
        self.say(f"session {self.session}: {counted(usage.requests, 'request')}, {counted(usage.tool_calls, 'tool call')}{tokens}")
        return code

    async def _cancel(self, agent: Agent) -> None:
        try:
            await agent.session(self.session).cancel()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSource:
    """Where the agent of a command comes from. factory: the user's own; else it is the command line's. model: a spec; None if the factory
    says. journal: where sessions are kept, if the factory does not say. dry_run: no tool is executed."""

    settings: Settings
    model: Model | str | None
    journal: str
    factory: Factory | None = None
    dry_run: bool = False

    @classmethod
    def of(
        cls, settings: Settings, agent: str | None, say: Callable[..., None], *, create: bool = True, dry_run: bool = False
    ) -> AgentSource:
        """Raises UsageError for a factory that cannot be loaded, and if no model is set."""
        factory = factory_named(agent) if agent is not None else None
        model = the_model(settings, say) if factory is None or settings.of("model").value is not None else None
        return cls(settings=settings, model=model, journal=settings.journal(create=create), factory=factory, dry_run=dry_run)

    async def make(self, session: str, *, say: Callable[..., None]) -> Agent:
        """The agent, with the hooks and policies of the settings and what was allowed for good. Raises UsageError where one could not
        hold."""
        settings = self.settings
        made = await self.factory() if self.factory is not None else _own(settings)
        hooks, held = hooks_of(settings), guards(settings)
        if isinstance(made, Agent):
            wanted = {"the settings have hooks": hooks, "a policy must hold": held, "a dry run is asked for": self.dry_run}
            for why in (why for why, what in wanted.items() if what):  # a guard that does not hold would be worse than none
                raise UsageError(f"{why}, which cannot be put into a finished agent: let its function return keywords")
            return made
        options: dict[str, Any] = {"model": self.model, "journal": self.journal, "limits": settings.limits(), **made}
        extensions: list[Any] = [*options.get("extensions", ()), *hooks, *held, *([DryRun()] if self.dry_run else [])]
        if not any(isinstance(one, Approvals) for one in extensions) and Approvals not in options.get("without", ()):
            extensions.append(Approvals(file=settings.approvals()))
        config = run_config(settings, session)
        options |= {"extensions": extensions, "config": config.over(options["config"]) if options.get("config") else config}
        if options["model"] is None:
            raise UsageError("which model? The factory names none: give --model or set INTERLOCK_MODEL")
        agent = await Agent.create(**options)
        for hook in hooks:
            sentence, wrong = hook.look(tuple(agent.parts.tools))
            say(sentence, style="bold yellow" if wrong else "dim")
        return agent


def _own(settings: Settings) -> dict[str, Any]:
    """The agent of the command line: a set of ready-made tools for the working directory."""
    made = the_tools(settings)
    approvals = [Approvals(when=made.question, file=settings.approvals())] if made.question is not None else []
    secrets = [RedactSecrets(keys_here())] if settings.of("redact").value else []
    return {
        "tools": made.tools,
        "extensions": [*secrets, *made.extensions, *approvals],
        "system_prompt": settings.text("system") or (CODING_PROMPT if "write_file" in made.names else SYSTEM_PROMPT),
    }


def keys_here() -> list[str]:
    """The keys of providers that the environment holds. Other secrets are found by their form."""
    variables = {vendor.key_variable for vendor in vendors()}
    held = (os.environ.get(variable, "").strip() for variable in variables if variable is not None)
    return [key for key in held if len(key) >= SECRET_MIN]


def the_tools(settings: Settings) -> Toolset:
    """The ready-made tools that are set, for the working directory. Where a policy holds, it decides what is asked about, and without one
    each change and each command is. Raises UsageError if there is no such set."""
    return toolset(settings.text("tools") or "readonly", Path.cwd(), asking=not settings.policies())


def hooks_of(settings: Settings) -> list[CommandHook]:
    """The programs that decide about each call, in the order of the settings."""
    made: list[CommandHook] = []
    for one in settings.of("hooks").value:
        timeout = one.get("timeout", 30.0)
        timeout_s = seconds(timeout) if isinstance(timeout, str) else timeout
        made.append(CommandHook(one["command"], tools=one.get("tools"), timeout_s=timeout_s))
    return made


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
