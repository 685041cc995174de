"""A hook that is spelled wrongly is refused, and an agent for scripts closes itself."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import agent_playing, looped
from interlock import Agent, AgentExtension, UsageError
from interlock.testing import ScriptedModel, text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_tool_calls", "on_tool_call"),
        ("on_toolcall", "on_tool_call"),
        ("on_tool_cal", "on_tool_call"),
        ("on_model_requests", "on_model_request"),
        ("on_Records", "on_record"),
        ("instruction", "instructions"),
    ],
)
def test_a_misspelt_hook_is_refused_and_the_right_name_is_said(name: str, meant: str) -> None:
    kind = type("Guard", (AgentExtension,), {name: lambda self: None})
    with pytest.raises(UsageError, match=f"Guard has a method {name}.*is {meant} meant"):
        Agent.create_sync(ScriptedModel([]), extensions=[kind()])


def test_a_misspelt_hook_of_a_base_class_is_refused_too() -> None:
    base = type("Base", (AgentExtension,), {"on_tool_calls": lambda self: None})
    with pytest.raises(UsageError, match="on_tool_call meant"):
        Agent.create_sync(ScriptedModel([]), extensions=[type("Guard", (base,), {})()])


@looped
async def test_other_methods_and_attributes_are_left_alone() -> None:
    class Mine(AgentExtension):
        on_tool_cals = 3

        def _on_tool_calls(self) -> None: ...
        def on_error(self) -> None: ...
        def folded(self) -> None: ...
        def on_timeout(self) -> None: ...
        def fold(self, memory: Any, record: Any) -> Any:
            return memory

    async with agent_playing([text("Hi.")], extensions=[Mine()]) as agent:
        assert (await agent.run("Hello.")).text == "Hi."


def test_an_agent_for_scripts_closes_itself() -> None:
    model = ScriptedModel([text("Hi.")])
    with Agent.create_sync(model) as agent:
        assert agent.run_sync("Hello.").text == "Hi."
    assert model.closed
    with pytest.raises(UsageError):
        agent.run_sync("Again.")


@looped
async def test_an_agent_made_by_create_says_that_it_needs_async_with() -> None:
    async with agent_playing([]) as agent:
        with pytest.raises(UsageError, match="use async with"):
            agent.__enter__()
