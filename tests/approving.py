"""A program that asks for approval and answers, started in processes of its own so that tests can kill them.

    python approving.py ACTION BASE_URL JOURNAL LEDGER [QUESTION]

``ask`` runs until it waits, ``ask unstored`` stops while the question is only buffered, ``answer`` waits for a line and answers,
``answer and die`` answers and stands still once the effect is there. It says ``here ...`` when it is where it should be.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOUR_S = 3600.0


def start(action: str, *, base_url: str, journal: Path, ledger: Path, question: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, __file__, action, base_url, str(journal), str(ledger), question]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.PIPE)


def said(process: subprocess.Popen[str]) -> str:
    """What it says when it is there."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("here"), (line, process.communicate()[1])
    return line.removeprefix("here").strip()


def killed(action: str, **options: Any) -> str:
    """Start it, and kill it with SIGKILL where it stands; what it said."""
    process = start(action, **options)
    try:
        return said(process)
    finally:
        process.kill()
        process.communicate()


def payment(ledger: Path, *, dies: bool = False) -> Any:
    from interlock import tool

    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        with ledger.open("a") as file:
            file.write(f"{amount}\n")
        if dies:
            await stand_still()
        return f"paid {amount}"

    return pay


async def stand_still(words: str = "") -> None:
    print("here", words, flush=True)
    await asyncio.Event().wait()


async def agent_of(
    base_url: str, journal: str, ledger: Path, *, dies: bool = False, clock: Callable[[], float] | None = None, extensions: Any = ()
) -> Any:
    from interlock import Agent, AgentRunConfig
    from interlock.extensions.approvals import Approvals
    from interlock.providers.openai import OpenAIChatModel

    model, config = OpenAIChatModel("scripted", base_url=base_url), AgentRunConfig(session_id="desk")
    options: dict[str, Any] = {"clock": clock} if clock else {}
    layers = [Approvals(expires_s=5 * HOUR_S), *extensions]
    return await Agent.create(
        model, config=config, tools=[payment(ledger, dies=dies)], extensions=layers, journal=f"sqlite:///{journal}", **options
    )


async def main(action: str, base_url: str, journal: str, ledger: Path, question: str) -> None:
    from interlock import AgentExtension, Allow, CommandRefused
    from interlock.records import ToolStepSuspended

    class Unstored(AgentExtension):
        def on_record(self, context: Any, record: Any) -> None:
            if isinstance(record, ToolStepSuspended):
                print("here", record.question_id, flush=True)
                os.read(0, 1)

    extensions = [Unstored()] if action == "ask unstored" else []
    async with await agent_of(base_url, journal, ledger, dies=action == "answer and die", extensions=extensions) as agent:
        if action.startswith("ask"):
            waiting = await agent.run("Pay.")
            await stand_still(waiting.questions[0].id)
        if action == "answer":
            print("here", flush=True)
            sys.stdin.readline()
        try:
            result = await agent.answer(question, Allow())
        except CommandRefused as refused:
            print("here", type(refused).__name__, flush=True)
        else:
            print("here", result.outcome.name, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5]))
