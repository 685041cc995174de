"""A program that tests start in order to kill it: one run of an agent that stands still at a chosen point.

    python mortal.py POINT BASE_URL JOURNAL LEDGER

It says ``here`` on its standard output when it has reached the point, and waits there for ever. ``kill_at`` does all of that.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

POINTS = (
    "end of the model step",
    "response buffered",
    "in the onion",
    "A in the handler",
    "A in the handler, B in the onion",
    "A in the handler, which may rerun",
    "A after the effect",
    "after the handler",
    "result buffered",
    "B in the handler",
)

# What the tool is like, where it is not like the others.
TRAITS: dict[str, dict[str, Any]] = {
    "A in the handler, B in the onion": {"parallel": True},
    "A in the handler, which may rerun": {"parallel": False, "on_crash": "rerun"},
}


def kill_at(point: str, *, base_url: str, journal: Path, ledger: Path) -> None:
    """Start the program, wait until it stands at ``point``, and kill it with SIGKILL."""
    process = start(point, base_url=base_url, journal=journal, ledger=ledger)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
    finally:
        process.kill()
        rest, errors = process.communicate()
    assert said == "here\n", (said, rest, errors)


def start(point: str, *, base_url: str, journal: Path, ledger: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, point, base_url, str(journal), str(ledger)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.PIPE)


def payment(ledger: Path, point: str = "", reached: Any = None) -> Any:
    """The tool ``pay``, whose effect is a line in the world's own ledger. One call at a time, except where two are wanted."""
    from interlock import tool

    @tool(**TRAITS.get(point, {"parallel": False}))
    async def pay(invoice: str) -> str:
        """Pay an invoice."""
        if reached is not None:
            await reached(f"{invoice} in the handler")
        with ledger.open("a") as file:
            file.write(f"{invoice}\n")
        if reached is not None:
            await reached(f"{invoice} after the effect")
        return f"paid {invoice}"

    return pay


async def live(point: str, base_url: str, journal: str, ledger: Path) -> None:
    from interlock import Agent, AgentExtension, AgentRunConfig
    from interlock.providers.openai import OpenAIChatModel
    from interlock.records import ModelStepEnded, ToolStepEnded

    async def reached(place: str) -> None:
        if place == point.partition(",")[0]:
            print("here", flush=True)
            await asyncio.Event().wait()

    class Watch(AgentExtension):
        async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
            await reached("in the onion")
            if point.endswith("B in the onion") and call.arguments["invoice"] == "B":
                await asyncio.Event().wait()
            value = await call_next()
            await reached("after the handler")
            return value

        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            async for event in call_next(request):
                yield event
            await reached("end of the model step")

        def on_record(self, context: Any, record: Any) -> None:
            places = {ModelStepEnded: "response buffered", ToolStepEnded: "result buffered"}
            if places.get(type(record)) == point:
                print("here", flush=True)
                os.read(0, 1)  # the whole process stands still: what is buffered stays buffered

    model = OpenAIChatModel("scripted", base_url=base_url)
    tools = [payment(ledger, point, reached)]
    config = AgentRunConfig(session_id="mortal")
    async with await Agent.create(model, tools=tools, extensions=[Watch()], config=config, journal=f"sqlite:///{journal}") as agent:
        await agent.run("Pay what is due.")
    print("it came to an end")


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
