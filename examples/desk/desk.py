"""Give the desk to a model of yours: INTERLOCK_MODEL=openai:NAME python desk.py"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path

from interlock import Agent, AgentRunConfig
from interlock.events import RunFinished, StreamRestarted, TextDelta, ToolFinished, ToolStarted
from interlock.messages import text_of
from interlock.shells.demo import what_is_wrong
from interlock.shells.demo.work import SYSTEM_PROMPT, PaymentPolicy, clerk_tools
from interlock.shells.demo.world import lay_out
from interlock.toolbox.readonly import readonly_tools


async def main(model: str) -> int:
    desk = lay_out(Path(tempfile.mkdtemp(prefix="interlock-desk-")), seed=0)
    print(f"The desk: {desk.folder}")
    agent = await Agent.create(
        model,
        config=AgentRunConfig(session_id="desk"),
        tools=[*readonly_tools(desk.folder), *clerk_tools(desk)],
        extensions=[PaymentPolicy()],
        system_prompt=SYSTEM_PROMPT,
        journal=f"sqlite:///{desk.folder}/journal.db",
    )
    wrong: list[str] = []
    async with agent, aclosing(agent.stream("Pay what is due, and write a report.")) as events:
        async for event in events:
            match event:
                case TextDelta(text):
                    print(text, end="", flush=True)
                case ToolStarted():
                    print(f"\n-> {event.call.name} {event.call.arguments}")
                case ToolFinished():
                    print(f"<- {text_of(event.message.content)[:100]}")
                case StreamRestarted():
                    print(f" [withdrawn: {event.reason}]")
                case RunFinished():
                    wrong = what_is_wrong(desk, event.result)
                case _:
                    pass
    print("\nThe ledger is right." if not wrong else "\n" + "\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    if "INTERLOCK_MODEL" not in os.environ:
        sys.exit("set INTERLOCK_MODEL, for example to openai:NAME")
    sys.exit(asyncio.run(main(os.environ["INTERLOCK_MODEL"])))
