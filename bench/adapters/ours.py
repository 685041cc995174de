"""Interlock through its public surface, as a user would write it: the default extensions, every event taken."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from interlock import Agent, AgentExtension, AgentRunConfig, Limits
from interlock.events import TextDelta
from interlock.providers.openai import OpenAIChatModel


async def add(left: int, right: int) -> int:
    """Add two integers"""
    return left + right


async def write(text: str) -> int:
    """Write text"""
    return len(text)


class ToolLayer(AgentExtension):
    """Does nothing around a tool call."""

    def __init__(self, number: int) -> None:
        self.name = f"tool-layer-{number}"

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        return await call_next()


class ChunkLayer(AgentExtension):
    """Passes every chunk of a model's stream on."""

    def __init__(self, number: int) -> None:
        self.name = f"chunk-layer-{number}"

    async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
        async for event in call_next(request):
            yield event


class A:
    """The same face as the bare loop's. journal: as ``Agent.create`` takes it."""

    def __init__(self, base: str, layers: int = 0, chunk_layers: int = 0, journal: str | None = None) -> None:
        self.base, self.layers, self.chunk_layers, self.journal = base, layers, chunk_layers, journal
        self.agent: Agent | None = None
        self.runs = 0

    async def open(self) -> Agent:
        if self.agent is None:
            layers = [*map(ToolLayer, range(self.layers)), *map(ChunkLayer, range(self.chunk_layers))]
            self.agent = await Agent.create(
                OpenAIChatModel("gpt-test", base_url=self.base, api_key="k"),
                tools=[add, write],
                system_prompt="You are helpful.",
                limits=Limits(requests=100_000),  # the longest row makes 801 of them in one run
                extensions=layers,
                journal=self.journal,
            )
        return self.agent

    async def run(self, prompt: str) -> tuple[str, int]:
        """One run in a session of its own: the text that was shown, and in how many pieces."""
        agent = await self.open()
        self.runs += 1
        shown: list[str] = []
        async with aclosing(agent.stream(prompt, config=AgentRunConfig(session_id=f"s{self.runs}"))) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    shown.append(event.text)
        return "".join(shown), len(shown)

    async def close(self) -> None:
        if self.agent is not None:
            await self.agent.aclose()
