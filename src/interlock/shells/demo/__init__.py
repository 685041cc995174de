"""``interlock demo``: an agent at a desk of real files. Only the model's part is played, by a script behind a loopback socket."""

from __future__ import annotations

import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from urllib.parse import quote

from ...agent import Agent, AgentRunConfig
from ...errors import UsageError
from ...events import RunFinished
from ...model import Model
from ...providers.openai import OpenAIChatModel
from ...records import Limits, RunResult
from ...testing import WireServer
from ...toolbox.readonly import readonly_tools
from ..interrupts import run_interruptible
from .clerk import Clerk
from .show import Show
from .work import SYSTEM_PROMPT, PaymentPolicy, clerk_tools
from .world import Desk, lay_out, ledger_rows

__all__ = ["demo", "what_is_wrong"]

_FIRST_LINE = "The model's part is played by a script behind a local socket. The agent, tools, layers, files and journal are real."
_PROMPT = "Pay what is due, and write a report."
_PAUSE_S = 0.1


def demo(*, seed: int = 0, fast: bool = False, folder: Path | None = None, model: str | None = None, found: str = "") -> int:
    """Play the demo of ``seed`` in ``folder`` and return the exit code: 0 if every due invoice is in the ledger exactly once.

    fast: without the pauses, which are made only on a terminal. folder: must be empty or not exist; a temporary one if left out.
    model: a spec, which gets the same job in place of the script; found: where it is from, for the first line.
    Raises UsageError for a folder that holds something, and ProviderError if the model's side fails for good.
    """
    show = Show(pause_s=0.0 if fast or model or not sys.stdout.isatty() else _PAUSE_S)
    show.line(
        _FIRST_LINE if model is None else f"The model is {model}{f' ({found})' if found else ''}. Everything else is as real.", style="bold"
    )
    desk = lay_out(_empty(folder), seed=seed)
    show.desk(desk)
    with show.warnings():
        work = _scripted(desk, seed=seed, show=show) if model is None else _work(model, desk, seed=seed, show=show)
        result = run_interruptible(work)
    show.ending(desk, result, seed=seed)
    wrong = what_is_wrong(desk, result)
    for sentence in wrong:
        show.line(f"✗ {sentence}", style="bold red")
    return 1 if wrong else 0


def what_is_wrong(desk: Desk, result: RunResult) -> list[str]:
    """The sentences that the ledger and the report on the disk prove false; none, after a good run."""
    rows = [row["invoice"] for row in ledger_rows(desk.ledger)]
    wrong = [f"{number} is in the ledger {rows.count(number)} times, not once" for number in desk.payable if rows.count(number) != 1]
    wrong += [f"{number} was paid against the policy" for number in desk.held if number in rows]
    if extra := set(rows) - {*desk.payable, *desk.held, *desk.already_paid}:
        wrong.append(f"the ledger has payments that were not due: {', '.join(sorted(extra))}")
    if not desk.report.exists():
        wrong.append("there is no report")
    if result.outcome.name != "COMPLETED":
        wrong.append(f"the run ended {result.outcome.name} ({result.reason})")
    return wrong


async def _scripted(desk: Desk, *, seed: int, show: Show) -> RunResult:
    async with WireServer(Clerk(seed=seed)) as server:
        model = OpenAIChatModel("scripted-clerk", base_url=server.base_url, api_key="none")
        return await _work(model, desk, seed=seed, show=show, limits=Limits(backoff_s=0.05))


async def _work(model: Model | str, desk: Desk, *, seed: int, show: Show, limits: Limits | None = None) -> RunResult:
    agent = await Agent.create(
        model,
        config=AgentRunConfig(session_id=f"desk-{seed}"),
        tools=[*readonly_tools(desk.folder), *clerk_tools(desk)],
        extensions=[PaymentPolicy()],
        system_prompt=SYSTEM_PROMPT,
        journal=f"sqlite:///{quote(str(desk.journal))}",
        limits=limits or Limits(requests=60),
    )
    try:
        async with aclosing(agent.stream(_PROMPT)) as events:
            async for event in events:
                await show.event(event)
                if isinstance(event, RunFinished):
                    return event.result
    finally:
        await agent.aclose()
    raise AssertionError("a stream that ends by itself ends with RunFinished")


def _empty(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="interlock-desk-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error}") from error
    if occupied:
        raise UsageError(f"{folder} is not empty; the demo writes only into a folder of its own")
    return folder.absolute()
