"""``CommandHook``: a program of yours decides about each tool call. Whatever goes wrong with it is a denial."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from subprocess import PIPE
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import UsageError
from ..messages import reason_of
from .approvals import ask
from .base import AgentExtension, CallNext, RunContext, ToolInvocation

__all__ = ["CommandHook"]

# An answer is a verdict and perhaps the arguments of one call; a hook that writes more is not answering.
ANSWER_BYTES_MAX = 256 * 1024
# What a denial repeats of what the hook said on stderr.
SAID_CHARACTERS_MAX = 500
SAID_BYTES_MAX = 4096
# How long its output may stay open once the hook itself has ended and its process group is killed.
CLOSING_S = 1.0


class _Allow(Struct, tag_field="verdict", tag="allow", forbid_unknown_fields=True):
    pass


class _Ask(Struct, tag_field="verdict", tag="ask", forbid_unknown_fields=True):
    question: str


class _Deny(Struct, tag_field="verdict", tag="deny", forbid_unknown_fields=True):
    reason: str


class _Edit(Struct, tag_field="verdict", tag="edit", forbid_unknown_fields=True):
    arguments: dict[str, Any]


_ANSWER = msgspec.json.Decoder(_Allow | _Ask | _Deny | _Edit)


class CommandHook(AgentExtension):
    """Runs ``argv`` for each tool call, gives it the call as JSON on stdin, and does what it answers on stdout, one JSON object.

    It gets ``session_id``, ``run_id``, ``call_id``, ``tool``, ``arguments`` (as they are now) and ``original_arguments`` (the model's). It
    answers ``{"verdict": "allow"}``, ``{"verdict": "ask", "question": "..."}``, ``{"verdict": "deny", "reason": "..."}`` or
    ``{"verdict": "edit", "arguments": {...}}``, which replaces all arguments; and exits with 0. Everything else is a denial that names the
    hook and says why: a missing program, another exit code, a signal, no answer within ``timeout_s`` (wall clock), output that is no
    such object, is not UTF-8 or is too long, a stdin that is closed before the call is read.

    tools: patterns of tool names (``*`` and ``?``), of which one must match; None is every tool. There is no shell: ``argv`` is run as it
    is, in the working directory and with the environment of this process, in a process group of its own, which is killed once the hook
    has ended, is out of time, or the run is cancelled.

    Its place is inside your layers and outside the policy, which sees what a hook has edited.
    """

    priority = 900

    def __init__(
        self, argv: Sequence[str], *, timeout_s: float = 30.0, tools: Collection[str] | None = None, name: str | None = None
    ) -> None:
        if not _texts(argv) or any("\0" in part for part in argv):
            raise UsageError(f"CommandHook(argv): a list of a program and its arguments is needed, not {argv!r}")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < float("inf"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"CommandHook(timeout_s=...): seconds are needed, more than 0, not {timeout_s!r}")
        if tools is not None and not _texts(tools):
            raise UsageError(f"CommandHook(tools=...): a list of patterns of tool names, or None for every tool, is needed, not {tools!r}")
        self.argv = tuple(argv)
        self.timeout_s = float(timeout_s)
        self.patterns = None if tools is None else tuple(tools)
        self.name = name or f"hook {' '.join(argv)}"

    def look(self, tools: Collection[str]) -> tuple[str, bool]:
        """What this hook guards of ``tools``, in a sentence, and whether anything about that is wrong."""
        from shutil import which  # only agents with a hook need it

        what = "every tool" if self.patterns is None else f"tools like {', '.join(self.patterns)}"
        unused = [one for one in self.patterns or () if not any(fnmatchcase(tool, one) for tool in tools)]
        if which(self.argv[0]) is None:
            return f"{self.name} is asked about {what}, and its program cannot be found: each of these calls is denied", True
        if unused:
            return f"{self.name} is asked about {what}; no tool of this agent is like {', '.join(unused)}", True
        return f"{self.name} is asked about {what}", False

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if self.patterns is not None and not any(fnmatchcase(call.name, pattern) for pattern in self.patterns):
            return await call_next()
        match await self._answer(context, call):
            case _Deny(reason):
                raise self._denied(reason.strip() or "denied")
            case _Ask(question):
                suspended = ask(context, call, question=question.strip() or f"May {call.name} run?", grants=("session",))
                if suspended is not None:
                    return suspended
            case _Edit(arguments):
                call.arguments = arguments
            case _Allow():
                pass
        return await call_next()

    async def _answer(self, context: RunContext, call: ToolInvocation) -> _Allow | _Ask | _Deny | _Edit:
        about = {
            "session_id": context.session_id,
            "run_id": context.run_id,
            "call_id": call.id,
            "tool": call.name,
            "arguments": call.arguments,
            "original_arguments": dict(call.original_arguments),
        }
        try:
            given = msgspec.json.encode(about)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._denied(f"the call cannot be shown to it: {reason_of(error)}") from error
        said = await self._run(given)
        call.arguments = msgspec.json.decode(given)["arguments"]  # what it was shown is what goes on, whatever others did meanwhile
        try:
            said.decode()  # JSON may be read without that, and what is no UTF-8 inside it be something else than it seems
            return _ANSWER.decode(said)
        except UnicodeDecodeError as error:
            raise self._denied("its answer is not UTF-8") from error
        except msgspec.MsgspecError as error:
            raise self._denied(f"its answer cannot be understood: {error}" if said.strip() else "it did not answer") from error

    def _denied(self, why: str) -> PermissionError:
        return PermissionError(f"{self.name}: {why}")

    # ---- the process -----------------------------------------------------------------------------------

    async def _run(self, given: bytes) -> bytes:
        """What the program writes to stdout. Raises PermissionError. However this ends, nothing of its process group runs any more."""
        loop = asyncio.get_running_loop()
        talk = _Talk(loop)
        try:
            process, _ = await loop.subprocess_exec(lambda: talk, *self.argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
        except (OSError, ValueError) as error:
            raise self._denied(f"it cannot be started: {reason_of(error)}") from error
        try:
            talk.give(process, given)
            await asyncio.wait({talk.ended}, timeout=self.timeout_s)
            timed_out = not talk.ended.done()
            if not timed_out:
                _kill(process)  # what it has started and left behind may hold its output open
                await asyncio.wait({talk.all_said, talk.all_given}, timeout=CLOSING_S)
        finally:
            await _end(process, talk)
        if talk.too_much:
            raise self._denied(f"its answer has more than {ANSWER_BYTES_MAX:,} bytes")
        if timed_out:
            raise self._denied(f"it did not answer within {self.timeout_s:g} s")
        if code := process.get_returncode():
            raise self._denied(f"it {_how_ended(code)}{_said(talk.errors)}")
        if not talk.complete:
            raise self._denied("it ended, and something that it has started holds its output open")
        if talk.unread:
            raise self._denied("it closed its stdin before it had read the call")
        return bytes(talk.out)


class _Talk(asyncio.SubprocessProtocol):
    """What passes between a hook and us. ended: it has, or has said too much; all_said: its stdout is closed; complete: and by itself.

    all_given: its stdin is closed; unread: not because all of the call was written to it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended, self.all_said, self.all_given, self.gone = (loop.create_future() for _ in range(4))
        self.out, self.errors = bytearray(), bytearray()
        self.too_much = self.complete = self._giving = False
        self.unread = True

    def give(self, process: asyncio.SubprocessTransport, given: bytes) -> None:
        stdin: Any = process.get_pipe_transport(0)
        if stdin is not None and not stdin.is_closing():  # what is written to one that was closed meanwhile is lost without a word
            self._giving = True
            stdin.write(given)
            stdin.write_eof()  # once it is all written

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self.errors += data[: SAID_BYTES_MAX - len(self.errors)]
        elif not self.too_much:
            self.out += data
            if len(self.out) > ANSWER_BYTES_MAX:
                self.too_much = True
                _set(self.ended)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.unread = exc is not None or not self._giving
            _set(self.all_given)
        elif fd == 1:
            self.complete = True
            _set(self.all_said)

    def process_exited(self) -> None:
        _set(self.ended)
        _set(self.gone)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _end(process: asyncio.SubprocessTransport, talk: _Talk) -> None:
    """Kill the process group, and wait until the hook is gone. It is killed first, so that a cancellation meanwhile does not leave it."""
    complete = talk.complete
    if not talk.gone.done():
        _kill(process)
    process.close()
    try:
        await asyncio.wait({talk.gone}, timeout=CLOSING_S)
    finally:
        talk.complete = complete  # and not because it was closed here


def _kill(process: asyncio.SubprocessTransport) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.get_pid(), signal.SIGKILL)


def _texts(value: Any) -> bool:
    """Whether it is a list of texts, none of them empty at its beginning."""
    texts: list[Any] = [] if isinstance(value, str) or not hasattr(value, "__iter__") else list(value)
    return bool(texts) and all(isinstance(text, str) for text in texts) and bool(texts[0])


def _how_ended(code: int) -> str:
    if code > 0:
        return f"exited with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _said(errors: bytearray) -> str:
    """What it said on stderr, on one line, for a person and for the model."""
    text = re.sub(r"\s+", " ", errors.decode("utf-8", "replace")).strip()
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return f": {shown[:SAID_CHARACTERS_MAX]}" if shown else ""
