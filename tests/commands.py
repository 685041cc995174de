"""The command line in this process, in a directory and a home of its own: what a subprocess would do, without its half second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from interlock import Agent, AgentRunConfig, RunContext, Suspended, extension
from interlock.shells.cli import help_width
from interlock.shells.cli.app import app
from interlock.shells.cli.run import SYSTEM_PROMPT
from interlock.shells.cli.settings import Settings
from interlock.testing import ScriptedModel, Step, WireServer, call, calls
from interlock.testing.script import Handler
from interlock.toolbox.readonly import readonly_tools
from threaded import serving

NOWHERE = "http://127.0.0.1:1"
"""A port that nothing listens on."""


class Commands:
    """``commands("run", "hello")`` runs a command; its result has exit_code, stdout and stderr."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self.environment = environment
        self.cwd, self.home = folder / "cwd", folder / "home"
        self.cwd.mkdir()
        self.home.mkdir()
        environment.chdir(self.cwd)
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DEEPSEEK_API_KEY", "INTERLOCK_MODEL", "INTERLOCK_JOURNAL", "INTERLOCK_DEBUG"):
            environment.delenv(name, raising=False)
        for name, value in {
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "INTERLOCK_LOCAL_SERVERS": NOWHERE,
        }.items():
            environment.setenv(name, value)

    def __call__(self, *arguments: str, code: int | None = 0) -> Result:
        """code: the exit code that is expected; None is any."""
        done = CliRunner().invoke(app, list(arguments), prog_name="interlock", terminal_width=help_width())
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert code is None or done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
        return done

    def waits(self, session: str, *, expires_s: float | None = None) -> str:
        """Leave ``session`` waiting for a person, as somebody else's program has: its layer asks first. The question's id."""

        @extension
        async def ask(context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if context.answer else Suspended(f"May I {call.name}?", expires_s=expires_s)

        async def main() -> str:
            settings = Settings.load()
            async with await Agent.create(
                ScriptedModel([calls(call("c1", "list_files"))]),
                config=AgentRunConfig(session_id=session),
                tools=list(readonly_tools(self.cwd)),
                system_prompt=SYSTEM_PROMPT,
                extensions=[ask],
                journal=settings.journal(),
            ) as agent:
                return (await agent.run("What is here?")).questions[0].id

        return asyncio.run(main())

    @contextmanager
    def model(self, steps: Iterable[Step] | Handler) -> Iterator[WireServer]:
        with serving(steps) as server:
            self.environment.setenv("INTERLOCK_MODEL", f"openai-compatible:scripted@{server.base_url}")
            yield server
