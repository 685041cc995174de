"""Tools that run commands: run_command, run_python, stop_background."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import SandboxUnavailable, ToolFailure, ToolTimeout, UsageError
from ..sandbox import Background, Finished, Level, Sandbox, run
from ..tools import Tool, tool
from ..tools.context import RunContext
from .decoding import output_text
from .identity import lend_identity

__all__ = ["shell_tools"]

# One argument of a program may have 128 KiB on Linux.
COMMAND_BYTES_MAX = 100_000
CODE_BYTES_MAX = 1024 * 1024
TIMEOUT_S = 120
TIMEOUT_S_MAX = 3600
BACKGROUND_MAX = 8
# With the longest characters Linux takes no variable of more.
_VARIABLE_MAX = 32_000
# An output larger than this is made text on another thread: it takes longer than the loop should be held.
_DECODED_HERE = 256 * 1024

# What is handed on of the runtime's own environment, which holds keys. The rest is named with pass_env.
_PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "NVM_DIR"),
    *("JAVA_HOME", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
)
# Nothing pages, opens an editor, asks for a password or a yes; output is plain UTF-8.
_UNATTENDED = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    # Vim takes neither an end of file nor a missing terminal for a reason to end.
    "VIMINIT": "echo 'There is no terminal here. vim -es runs commands without one.' | cquit",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "SUDO_ASKPASS": "/bin/false",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "PYTHONUNBUFFERED": "1",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "LC_ALL": "C.UTF-8",
}


def shell_tools(
    root: str | Path = ".",
    *,
    sandbox: Sandbox | Level | Literal["best"] = "best",
    env: Mapping[str, str] | None = None,
    pass_env: Sequence[str] = (),
    python: str | None = None,
    approval: bool = True,
    timeout_s_max: int = TIMEOUT_S_MAX,
    background_max: int = BACKGROUND_MAX,
) -> tuple[Tool, ...]:
    """run_command, run_python and stop_background, started in ``root``. Never started again after a crash.

    sandbox: a level, or a Sandbox of your own; the default is the strongest that is there. What a command can then reach is in the guide.
    env: variables for every command. pass_env: the names of those of this process that commands get beside the harmless ones; the model
    sets its own in the command, where a policy sees them. python: the interpreter of run_python, by default this one.
    approval: whether a person is asked before each command; False leaves that to a policy. timeout_s_max: seconds; what the model may ask
    for. background_max: how many commands of one session may leave processes running; those of one more are ended at once.

    Raises UsageError if ``root`` is not a directory or ``env`` cannot be an environment, and SandboxUnavailable if the level that is
    demanded is not there.
    """
    where = Path(os.path.realpath(root))
    if not where.is_dir():
        raise UsageError(f"{str(root)!r} is not a directory")
    shell = _Shell(
        where,
        sandbox if isinstance(sandbox, Sandbox) else Sandbox(sandbox),
        {name: os.environ[name] for name in (*_PASSED, *pass_env) if name in os.environ} | _UNATTENDED | _proper(env or {}),
        timeout_s_max=timeout_s_max,
        background_max=background_max,
    )
    if shell.sandbox.isolated:
        lend_identity(shell.sandbox.scratch / "home", where)
    interpreter = python or sys.executable

    async def run_command(context: RunContext, command: str, cwd: str = ".", timeout_s: int = min(TIMEOUT_S, timeout_s_max)) -> str:
        """Run a shell command.

        Args:
            command: What the shell is given. Its standard input is empty and there is no terminal: nothing can ask you anything.
            cwd: The directory to run it in, relative to the working directory.
            timeout_s: After how many seconds it is ended, with everything that it started.
        """
        _check_size("the command", command, COMMAND_BYTES_MAX)
        return await shell.run(context, [*_interpreter(), "-c", command], cwd=cwd, timeout_s=timeout_s)

    async def run_python(context: RunContext, code: str, cwd: str = ".", timeout_s: int = min(TIMEOUT_S, timeout_s_max)) -> str:
        """Run a Python program in a fresh process, which knows nothing of earlier ones. What it prints is the result.

        Args:
            code: The whole program. It finds the project's own modules after sys.path.insert(0, ".").
            cwd: The directory to run it in, relative to the working directory.
            timeout_s: After how many seconds it is ended, with everything that it started.
        """
        _check_size("the program", code, CODE_BYTES_MAX)
        try:
            with shell.sandbox.scratch_file("snippet.py", code) as path:
                return await shell.run(context, [interpreter, "-I", "-u", "-X", "utf8", path], cwd=cwd, timeout_s=timeout_s)
        except OSError as error:
            raise ToolFailure(f"nothing was run: {error}", effect="none") from error

    async def stop_background(context: RunContext, name: str) -> str:
        """End what a command has left running.

        Args:
            name: As the result of that command gives it.
        """
        return await shell.stop(context.session_id, name)

    said = shell.sandbox.describe()
    traits: dict[str, Any] = {"parallel": False, "on_crash": "report", "requires_approval": approval, "network": shell.sandbox.network}
    return (
        tool(**traits, description=f"Run a shell command in the working directory and give back what it prints ({said}).")(run_command),
        tool(**traits, description=f"Run a Python program in a fresh process and give back what it prints ({said}).")(run_python),
        tool(parallel=False, on_crash="report")(stop_background),
    )


class _Shell:
    """What the three tools share: where commands run, under what, and what they have left running, by session."""

    def __init__(self, root: Path, sandbox: Sandbox, env: dict[str, str], *, timeout_s_max: int, background_max: int) -> None:
        self.sandbox = sandbox
        self._root = root
        self._env = env
        self._timeout_s_max = timeout_s_max
        self._background_max = background_max
        self._left: dict[str, dict[str, Background]] = {}
        self._count = 0

    async def run(self, context: RunContext, argv: list[str], *, cwd: str, timeout_s: int) -> str:
        if not 1 <= timeout_s <= self._timeout_s_max:
            raise ToolFailure(f"timeout_s: from 1 to {self._timeout_s_max}, not {timeout_s}", effect="none")
        try:
            done = await run(
                argv,
                cwd=self._directory(cwd),
                env=self._env,
                sandbox=self.sandbox,
                writable=[self._root],
                timeout_s=timeout_s,
                on_progress=context.emit,
            )
        except (OSError, SandboxUnavailable) as error:
            raise ToolFailure(f"nothing was run: {error}", effect="none") from error
        try:
            text = await _shown(done)
            notes = await self._notes(context.session_id, done)
        except BaseException:  # cancelled: nobody will be told of what it has left running
            if done.background is not None:
                done.background.tell()
            raise
        if done.reason == "timeout":
            said = f"timed out after {timeout_s} s, and everything that it had started was ended"
            raise ToolTimeout("\n".join((f"{said} ({self.sandbox.describe()})", *notes, text)), effect="unknown")
        if done.reason == "lost":
            raise ToolFailure("the process that watched over the command was killed; what was left of the command too", effect="unknown")
        return "\n".join((f"[{_ending(done)}; {done.duration_s:.2f} s; {self.sandbox.describe()}]", *notes, text or "[no output]"))

    async def stop(self, session_id: str, name: str) -> str:
        left = self._living(session_id)
        background = left.pop(name, None)
        if background is None:
            known = f"; there is {', '.join(left)}" if left else ", nor anything else"
            raise ToolFailure(f"nothing runs in the background under the name {name!r}{known}", effect="none")
        if not await asyncio.to_thread(background.end):
            left[name] = background
            raise ToolFailure(f"{name} was sent SIGKILL and has not ended yet", effect="unknown")
        return f"{name} was ended"

    async def _notes(self, session_id: str, done: Finished) -> list[str]:
        background = done.background
        if background is None:
            return []
        shown = "; ".join(f"{process.command or '?'} (pid {process.pid})" for process in done.remaining) or "processes that cannot be seen"
        if done.reason != "exited":
            return [f"[Sent SIGKILL and not ended yet: {shown}]"]
        left = self._living(session_id)
        if len(left) >= self._background_max:
            await asyncio.to_thread(background.end)
            return [f"[Ended, because {len(left)} commands have left something running already ({', '.join(left)}): {shown}]"]
        self._count += 1
        left[f"b{self._count}"] = background
        how = f'Its further output is dropped. It ends with stop_background(name="b{self._count}"), or when the agent\'s process does.'
        return [f"[Still running in the background as b{self._count}: {shown}. {how}]"]

    def _living(self, session_id: str) -> dict[str, Background]:
        """What the session has left running and still runs, by name. Sessions without any are forgotten."""
        for session, left in list(self._left.items()):
            for name in [name for name, background in left.items() if not background.alive]:
                del left[name]
            if not left:
                del self._left[session]
        return self._left.setdefault(session_id, {})

    def _directory(self, cwd: str) -> Path:
        try:
            path = Path(os.path.realpath(self._root / cwd))
            found = path.is_dir()
        except (OSError, ValueError) as error:
            raise ToolFailure(f"cwd {cwd!r}: {error}", effect="none") from error
        if not path.is_relative_to(self._root):
            raise ToolFailure(f"cwd {cwd!r} is outside of the working directory", effect="none")
        if not found:
            raise ToolFailure(f"cwd {cwd!r} is not a directory", effect="none")
        return path


def _proper(env: Mapping[str, Any]) -> dict[str, str]:
    for name, value in env.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name + value or len(value) > _VARIABLE_MAX:
            raise UsageError(
                f"env: {name!r} cannot be a variable: names hold no '=', and values are texts without NUL, at most 32,000 characters"
            )
    return dict(env)


def _interpreter() -> list[str]:
    bash = shutil.which("bash")
    return [bash, "--noprofile", "--norc"] if bash else ["/bin/sh"]


async def _shown(done: Finished) -> str:
    if len(done.head) + len(done.tail) > _DECODED_HERE:
        return await asyncio.to_thread(output_text, done.head, done.tail, done.total)
    return output_text(done.head, done.tail, done.total)


def _check_size(what: str, text: str, bytes_max: int) -> None:
    if not text.strip():
        raise ToolFailure(f"{what} is empty", effect="none")
    if "\0" in text:
        raise ToolFailure(f"{what} holds a NUL character", effect="none")
    if len(text.encode("utf-8", "replace")) > bytes_max:
        raise ToolFailure(f"{what} is larger than {bytes_max:,} bytes; write it to a file, and run that", effect="none")


def _ending(done: Finished) -> str:
    if done.code is None or done.code >= 0:
        return f"exit code {done.code}"
    try:
        return f"ended by {signal.Signals(-done.code).name}"
    except ValueError:
        return f"ended by signal {-done.code}"
