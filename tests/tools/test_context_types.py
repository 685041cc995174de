"""A context whose dependencies have a type."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from interlock import Agent, AgentRunConfig, RunContext
from interlock.testing import ScriptedModel, call, calls, text


@dataclass
class Till:
    cents: int = 5


async def count(context: RunContext[Till]) -> int:
    """Count the money."""
    return context.deps.cents


def test_a_handler_may_say_the_type_of_its_dependencies_and_the_model_is_not_shown_the_parameter() -> None:
    async def main() -> None:
        model = ScriptedModel([calls(call("c", "count", {})), text("5 cents.")])
        async with await Agent.create(model, tools=[count], config=AgentRunConfig(deps=Till())) as agent:
            result = await agent.run("How much?")
        assert [m.content for m in result.messages[-2:]] == ["5", "5 cents."]
        assert model.requests[0].tools[0].parameters.get("properties", {}) == {}

    asyncio.run(main())
