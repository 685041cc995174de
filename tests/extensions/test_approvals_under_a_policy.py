"""Approvals, hooks and a policy in one onion: a denial is stronger than any yes, and a policy sees what a hook has edited."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, looped
from interlock import Agent, Allow, Edit, Outcome, tool
from interlock.extensions.approvals import Approvals
from interlock.extensions.hooks import CommandHook
from interlock.extensions.permissions import Permissions
from interlock.messages import ToolMessage
from interlock.testing import ScriptedModel, call, calls, text

POLICY = """
version = 1
name = "till"
default = "allow"

[[deny]]
tool = "pay"
arguments = {to = "Mallory"}
reason = "never Mallory"

[[ask]]
tool = "pay"
reason = "payments are looked at"
"""


class Till:
    def __init__(self, folder: Path) -> None:
        self.paid: list[Any] = []
        self.file = folder / "approvals.toml"
        (folder / "policy.toml").write_text(POLICY)
        self.policy = Permissions(folder / "policy.toml")

        @tool(requires_approval=True)
        async def pay(amount: int, to: str) -> str:
            """Pay."""
            self.paid.append((amount, to))
            return "paid"

        self.tools = [pay]

    def playing(self, *steps: Any, layers: Any = ()) -> Any:
        return agent_playing(list(steps), tools=self.tools, extensions=[self.policy, Approvals(file=self.file), *layers])


def pays(to: str, id: str = "a") -> Any:
    return calls(call(id, "pay", {"amount": 5, "to": to}))


def says(answer: Any) -> CommandHook:
    return CommandHook([sys.executable, "-I", "-S", "-c", f"import sys; sys.stdin.read(); print({json.dumps(answer)!r})"], name="the hook")


@looped
async def test_the_order_is_users_layers_hooks_policies_approvals(tmp_path: Path) -> None:
    till = Till(tmp_path)
    layers = [till.policy, Approvals(), says({"verdict": "allow"})]
    async with await Agent.create(ScriptedModel([]), tools=till.tools, extensions=layers) as agent:
        names = agent.onion()
    assert [name for name in names if name in ("the hook", till.policy.name, "Approvals")] == ["the hook", till.policy.name, "Approvals"]


@looped
async def test_a_policy_and_a_tool_that_ask_are_answered_by_one_yes(tmp_path: Path) -> None:
    till = Till(tmp_path)
    async with till.playing(pays("Ann"), text("Paid.")) as agent:
        (question,) = (await agent.run("Go.")).questions
        assert "payments are looked at" in question.text
        assert question.scopes == ("session", "tool", "always")
        assert (await agent.answer(question.id)).outcome is Outcome.COMPLETED
    assert till.paid == [(5, "Ann")]


@pytest.mark.parametrize("scope", ["session", "tool", "always"])
@looped
async def test_what_was_allowed_for_longer_answers_the_policys_question_and_never_its_denial(tmp_path: Path, scope: Any) -> None:
    till = Till(tmp_path)
    steps = [pays("Ann"), pays("Ann", "b"), pays("Mallory", "c"), text("Done.")]
    async with till.playing(*steps) as agent:
        (question,) = (await agent.run("Go.")).questions
        result = await agent.answer(question.id, Allow(scope))
        assert (result.outcome, till.paid) == (Outcome.COMPLETED, [(5, "Ann"), (5, "Ann")])
        last = [message for message in result.messages if isinstance(message, ToolMessage)][-1]
        assert "never Mallory" in str(last.content)


@looped
async def test_arguments_that_a_person_edits_are_held_against_the_policy(tmp_path: Path) -> None:
    till = Till(tmp_path)
    async with till.playing(pays("Ann"), text("Not.")) as agent:
        (question,) = (await agent.run("Go.")).questions
        result = await agent.answer(question.id, Edit({"amount": 5, "to": "Mallory"}))
        assert (result.outcome, till.paid) == (Outcome.COMPLETED, [])


@pytest.mark.parametrize(("written", "edited"), [("Ann", "Mallory"), ("Mallory", "Ann")])
@looped
async def test_a_denial_holds_for_what_a_hook_has_edited_and_for_what_it_was_before(tmp_path: Path, written: str, edited: str) -> None:
    till = Till(tmp_path)
    hook = says({"verdict": "edit", "arguments": {"amount": 5, "to": edited}})
    async with till.playing(pays(written), text("Not."), layers=[hook]) as agent:
        result = await agent.run("Go.")
    assert (result.outcome, till.paid) == (Outcome.COMPLETED, [])


@looped
async def test_the_file_of_approvals_is_a_policy_that_can_be_read(tmp_path: Path) -> None:
    till = Till(tmp_path)
    async with till.playing(pays("Ann"), text("Paid.")) as agent:
        (question,) = (await agent.run("Go.")).questions
        await agent.answer(question.id, Allow("always"))
    policy = Permissions(till.file).policy
    assert policy.decide("pay", {"amount": 5, "to": "Ann"}, original={"amount": 5, "to": "Ann"}).decision == "allow"
    assert policy.decide("pay", {"amount": 6, "to": "Ann"}, original={"amount": 6, "to": "Ann"}).decision == "deny"


@looped
async def test_an_agent_does_not_write_the_file_of_what_is_allowed_for_good(tmp_path: Path) -> None:
    """Not even where the policy allows every path: it would allow itself what a person is asked about."""
    till = Till(tmp_path)
    (tmp_path / "link").symlink_to(till.file)

    def write_file(path: str, content: str) -> str:
        """Write a file."""
        Path(path).write_text(content)
        return "written"

    till.tools.append(write_file)
    rule = 'version = 1\n[[allow]]\ntool = "pay"\nexact = {amount = 5, to = "Ann"}\n'
    paths = (str(till.file), str(tmp_path / "link"), str(tmp_path / "other"))
    writes = calls(*(call(f"w{n}", "write_file", {"path": path, "content": rule}) for n, path in enumerate(paths)))
    async with till.playing(writes, pays("Ann", "p")) as agent:
        result = await agent.run("Pay Ann.")
    assert result.outcome is Outcome.WAITING
    assert not till.file.exists()
    assert (tmp_path / "other").exists()
    assert till.paid == []
