"""A denial holds on every route to a tool: however the reply came, after a crash, in a fork, beside a structured answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from field.test_veto import writers
from helpers import looped
from interlock import Agent, tool
from interlock.extensions.permissions import Permissions, Policy
from interlock.messages import ToolMessage
from interlock.providers.fallback import FallbackModel
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import ScriptedModel, WireServer, call, calls, text
from reopened import left_behind, reopened

HEAD = 'version = 1\nname = "p"\ndefault = "allow"\n'


def policy(denied: str = "") -> Permissions:
    return Permissions(Policy.parse(HEAD + (f'[[deny]]\ntool = "{denied}"\n' if denied else '[[deny]]\ntool = "nothing"\n')))


@dataclass
class Answer:
    said: str


def refusals(messages: Any) -> list[str]:
    return [str(m.content).splitlines()[0] for m in messages if isinstance(m, ToolMessage) and m.failed]


@pytest.mark.parametrize("kind", sorted(set(writers(Path())) - {"relay"}))
@pytest.mark.parametrize("route", ["streamed", "plain", "fallback"])
@looped
async def test_a_denied_tool_leaves_no_effect_however_the_reply_came(route: str, kind: str, tmp_path: Path) -> None:
    effect = tmp_path / "effect"
    async with WireServer([calls(call("a", kind), call("b", kind)), text("I could not.")]) as server:
        model: Any = OpenAIChatModel("m", base_url=server.base_url, api_key="k", stream=route != "plain")
        if route == "fallback":
            nobody = OpenAIChatModel("gone", base_url="http://127.0.0.1:1/v1", api_key="k")
            model = FallbackModel([nobody, model])
        async with await Agent.create(model, tools=list(writers(effect).values()), extensions=[policy("write*")]) as agent:
            result = await agent.run("Write it.")
    assert result.text == "I could not."
    assert len(refusals(result.messages)) == 2
    assert all(line.startswith(f"Tool error ({kind}): policy 'p' denies") for line in refusals(result.messages))
    assert not effect.exists()


@looped
async def test_a_denied_tool_leaves_no_effect_beside_a_structured_answer(tmp_path: Path) -> None:
    effect = tmp_path / "effect"
    script = [calls(call("a", "write_async"), call("z", "final_answer", {"said": "no"})), calls(call("y", "final_answer", {"said": "no"}))]
    options: dict[str, Any] = {"tools": list(writers(effect).values()), "extensions": [policy("write*")], "output": Answer}
    async with await Agent.create(ScriptedModel(script), **options) as agent:
        result = await agent.run("Write it.")
    assert result.output == Answer("no")
    assert any("policy 'p' denies" in line for line in refusals(result.messages))
    assert not effect.exists()


@looped
async def test_a_call_that_may_start_again_after_a_crash_is_judged_by_the_policy_that_there_is_now() -> None:
    started: list[int] = []
    inside = asyncio.Event()

    @tool(on_crash="rerun")
    async def write() -> str:
        """Write."""
        started.append(1)
        inside.set()
        if len(started) == 1:
            await asyncio.sleep(3600)
        return "written"

    journal = await left_behind([calls(call("a", "write"))], at=inside, tools=[write], extensions=[policy()])
    async with reopened(journal, [text("Then not.")], tools=[write], extensions=[policy("write")]) as agent:
        result = await agent.resume()
    assert len(started) == 1
    assert "policy 'p' denies" in refusals(result.messages)[0]


@looped
async def test_a_denied_tool_leaves_no_effect_in_a_fork_nor_when_another_tool_calls_it(tmp_path: Path) -> None:
    effect = tmp_path / "effect"
    script = [calls(call("a", "relay")), text("I could not."), calls(call("b", "write_async"), call("c", "relay")), text("Nor here.")]
    tools, journal = list(writers(effect).values()), f"sqlite:///{tmp_path}/j.db"
    async with await Agent.create(ScriptedModel(script), tools=tools, extensions=[policy("write*")], journal=journal) as agent:
        await agent.run("Write it.")
        result = await (await agent.fork()).run("Write it there.")
    assert result.text == "Nor here."
    assert len(refusals(result.messages)) >= 2
    assert not effect.exists()
