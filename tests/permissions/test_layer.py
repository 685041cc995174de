"""``Permissions`` in an agent: on every route to a tool, and whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, looped, play
from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    Allow,
    CommandRefused,
    Deny,
    Edit,
    Outcome,
    RunContext,
    UsageError,
    extension,
)
from interlock.events import ToolFinished
from interlock.extensions.permissions import Denied, Permissions, Policy
from interlock.extensions.urlguard import UrlGuard
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, text

HEAD = 'version = 1\nname = "p"\n'


def permissions(rules: str, *, root: Path | None = None, head: str = HEAD) -> Permissions:
    return Permissions(Policy.parse(head + rules, root=root))


class World:
    """What the tools have done."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def tools(self) -> list[Any]:
        async def run_command(command: str) -> str:
            """Run a command."""
            self.done.append(command)
            return "ran"

        async def delete(path: str) -> str:
            """Delete a file."""
            self.done.append(("delete", path))
            return "gone"

        def read(path: str = "a") -> str:
            """Read a file, in a thread."""
            self.done.append(("read", path))
            return "text"

        return [run_command, delete, read]


def ended(played: Any) -> list[ToolStepEnded]:
    return [record for record in played.records if isinstance(record, ToolStepEnded)]


@looped
async def test_a_denial_is_a_veto_that_names_the_policy_and_siblings_run() -> None:
    world = World()
    step = calls(call("c1", "run_command", {"command": "rm x"}), call("c2", "run_command", {"command": "ls"}))
    guard = permissions('[[allow]]\ntool = "run_command"\ncommand = "ls"\n')
    played = await play([step, text("ok")], tools=world.tools(), extensions=[guard])
    assert world.done == ["ls"]
    first, second = sorted(ended(played), key=lambda record: record.message.tool_call_id)
    assert (first.code, first.effect, first.decided_by) == ("vetoed", "none", "Permissions(p)")
    assert "policy 'p'" in first.message.content
    assert (second.code, second.effect) == ("ok", "happened")
    assert [record.key for record in played.records if isinstance(record, HandlerStarted)] == [second.key]


@looped
async def test_deny_sees_what_the_model_asked_for_and_what_a_layer_made_of_it() -> None:
    """A layer that wraps every command must not hide it from a rule that was written for the command."""

    class Wrap(AgentExtension):
        def __init__(self, to: str) -> None:
            self.to = to

        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            call.arguments["command"] = self.to
            return await call_next()

    for asked, made in (("git push", "wrap git-push-7"), ("git status", "git push")):
        world = World()
        guard = permissions('[[deny]]\ntool = "run_command"\ncommand = "git push"\n', head=HEAD + 'default = "allow"\n')
        played = await play(
            [calls(call("c1", "run_command", {"command": asked})), text("ok")], tools=world.tools(), extensions=[guard, Wrap(made)]
        )
        assert world.done == []
        assert ended(played)[0].code == "vetoed"
    world = World()
    guard = permissions('[[allow]]\ntool = "run_command"\ncommand = "git status"\n')
    await play(
        [calls(call("c1", "run_command", {"command": "git status"})), text("ok")], tools=world.tools(), extensions=[guard, Wrap("rm x")]
    )
    assert world.done == [], "what was allowed is not what would have run"


@looped
async def test_a_call_that_a_layer_replaces_by_another_is_judged_anew() -> None:
    @extension
    async def swap(context: RunContext, call: Any, call_next: Any) -> Any:
        if call.name == "read":
            return await context.call_tool("delete", {"path": call.arguments["path"]})
        return await call_next()

    @extension
    async def rename(context: RunContext, call: Any, call_next: Any) -> Any:
        call.name = "delete"
        return await call_next()

    for layer in (swap, rename):
        world = World()
        guard = permissions('[[allow]]\ntool = "read"\n')
        await play([calls(call("c1", "read", {"path": "a"})), text("ok")], tools=world.tools(), extensions=[guard, layer])
        assert world.done == []


@looped
async def test_a_call_that_a_tool_makes_is_judged_too() -> None:
    world = World()

    async def outer(context: RunContext, path: str) -> str:
        """Calls another tool."""
        try:
            return await context.call_tool("delete", {"path": path})
        except Denied as denied:
            return f"{denied.policy}: {denied.verdict is not None}"

    guard = permissions('[[allow]]\ntool = "outer"\n')
    played = await play([calls(call("c1", "outer", {"path": "a"})), text("ok")], tools=[*world.tools(), outer], extensions=[guard])
    assert world.done == []
    assert [record.message.content for record in ended(played)][-1] == "p: True"


# Where it goes wrong, and which of the two calls cannot be checked then.
BROKEN: dict[str, tuple[str, set[str]]] = {
    "the decision": ("interlock.extensions.permissions.policy.Policy.decide", {"c1", "c2"}),
    "a rule": ("interlock.extensions.permissions.policy.Rule.is_for", {"c1", "c2"}),
    "the floor": ("interlock.extensions.permissions.engine.floor", {"c1", "c2"}),
    "the tool's schema": ("interlock.extensions.permissions.extension.defaults_of", {"c1", "c2"}),
    "the copy": ("interlock.extensions.base.copy.deepcopy", {"c1", "c2"}),
    "the grammar": ("interlock.extensions.permissions.facts.read_script", {"c1"}),
    "asking": ("interlock.extensions.permissions.extension.ask", {"c1"}),
    "a path": ("interlock.extensions.permissions.paths.os.path.realpath", {"c2"}),
}


def _raise(*_: Any, **__: Any) -> Any:
    raise KeyError("the registry is down")


@pytest.mark.parametrize("part", list(BROKEN))
def test_whatever_goes_wrong_while_a_call_is_checked_is_a_denial_that_names_the_policy(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    guard = permissions(
        '[[ask]]\ntool = "*"\narguments = {command = "ask*"}\n[[allow]]\ntool = "*"\npath = "**"\n[[allow]]\ntool = "run_command"\n'
    )
    where, denied = BROKEN[part]

    @looped
    async def main() -> None:
        command = "ask me" if part == "asking" else "ls -la"
        step = calls(call("c1", "run_command", {"command": command}), call("c2", "delete", {"path": "a"}))
        async with await Agent.create(
            ScriptedModel([step, text("ok")]), tools=world.tools(), extensions=[guard], without=[UrlGuard]
        ) as agent:
            monkeypatch.setattr(where, _raise)
            result = await agent.run("Go.")
            monkeypatch.undo()
        said = {message.tool_call_id: message for message in result.messages if isinstance(message, ToolMessage)}
        for id, message in said.items():
            assert message.failed == (id in denied), message.content
            assert not message.failed or ("policy 'p'" in message.content and "the registry is down" in message.content)

    main()
    assert world.done == ([] if denied == {"c1", "c2"} else [("delete", "a")] if denied == {"c1"} else ["ls -la"])


@looped
async def test_a_tool_that_no_rule_knows_is_denied_under_an_allow_list() -> None:
    world = World()
    await play(
        [calls(call("c1", "delete", {"path": "a"}), call("c2", "read")), text("ok")],
        tools=world.tools(),
        extensions=[permissions('[[allow]]\ntool = "read"\n')],
    )
    assert world.done == [("read", "a")]


@looped
async def test_the_tool_s_defaults_count() -> None:
    world = World()
    await play(
        [calls(call("c1", "read")), text("ok")], tools=world.tools(), extensions=[permissions('[[allow]]\ntool = "read"\npath = "b"\n')]
    )
    assert world.done == []


# ---- ask ------------------------------------------------------------------------------------------------------------

ASKS = '[[ask]]\ntool = "delete"\nexpires = 60\nreason = "it is gone then"\n[[deny]]\ntool = "delete"\npath = "keep/**"\n'


@looped
async def test_ask_waits_for_a_person_and_the_rules_hold_for_what_they_answer() -> None:
    for answer, done in ((Allow(), [("delete", "a")]), (Deny("no"), []), (Edit({"path": "keep/a"}), []), ("perhaps", [])):
        world = World()
        model = ScriptedModel([calls(call("c1", "delete", {"path": "a"})), text("ok")])
        async with agent_playing(model, tools=world.tools(), extensions=[permissions(ASKS)]) as agent:
            waiting = await agent.run("Go.")
            assert waiting.outcome is Outcome.WAITING
            (question,) = waiting.questions
            assert "policy 'p'" in question.text
            assert "it is gone then" in question.text
            assert question.expires_at is not None
            result = await agent.answer(question.id, answer)
            assert answer == "perhaps" or result.outcome is Outcome.COMPLETED
        assert world.done == done


@looped
async def test_edited_arguments_are_asked_about_again() -> None:
    world = World()
    model = ScriptedModel([calls(call("c1", "delete", {"path": "a"})), text("ok")])
    async with agent_playing(model, tools=world.tools(), extensions=[permissions(ASKS)]) as agent:
        waiting = await agent.run("Go.")
        again = await agent.answer(waiting.questions[0].id, Edit({"path": "b"}))
        assert again.outcome is Outcome.WAITING
        await agent.answer(again.questions[0].id, Allow())
    assert world.done == [("delete", "b")]


@looped
async def test_a_policy_that_became_stricter_meanwhile_holds_for_what_was_allowed(tmp_path: Path) -> None:
    world, journal = World(), f"sqlite:///{tmp_path}/j.db"
    config = AgentRunConfig(session_id="s")
    script = [calls(call("c1", "delete", {"path": "a"})), text("ok")]
    async with await Agent.create(
        ScriptedModel(script), config=config, tools=world.tools(), extensions=[permissions(ASKS)], journal=journal
    ) as agent:
        waiting = await agent.run("Go.")
    stricter = permissions('[[deny]]\ntool = "delete"\npath = "a"\n' + ASKS)
    async with await Agent.create(
        ScriptedModel(script[1:]), config=config, tools=world.tools(), extensions=[stricter], journal=journal
    ) as agent:
        await agent.answer(waiting.questions[0].id, Allow())
    assert world.done == []


@looped
async def test_a_run_does_not_go_on_without_the_policy_that_it_was_begun_under(tmp_path: Path) -> None:
    world, journal = World(), f"sqlite:///{tmp_path}/j.db"
    config = AgentRunConfig(session_id="s")
    script = [calls(call("c1", "delete", {"path": "a"})), text("ok")]
    async with await Agent.create(
        ScriptedModel(script), config=config, tools=world.tools(), extensions=[permissions(ASKS)], journal=journal
    ) as agent:
        waiting = await agent.run("Go.")
    other = permissions('[[allow]]\ntool = "*"\n', head='version = 1\nname = "q"\n')
    for extensions in ([], [other]):
        async with await Agent.create(
            ScriptedModel([text("ok")]), config=config, tools=world.tools(), extensions=extensions, journal=journal
        ) as agent:
            with pytest.raises(CommandRefused, match="begun under the policy p"):
                await agent.resume()
            with pytest.raises(CommandRefused, match="begun under the policy p"):
                await agent.answer(waiting.questions[0].id, Allow())
            assert (await agent.explain()).missing_policies == ("p",)
    assert world.done == []


@looped
async def test_a_policy_that_is_another_one_when_a_run_goes_on_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world, journal = World(), f"sqlite:///{tmp_path}/j.db"
    config = AgentRunConfig(session_id="s")
    script = [calls(call("c1", "delete", {"path": "a"})), text("ok")]
    async with await Agent.create(
        ScriptedModel(script), config=config, tools=world.tools(), extensions=[permissions(ASKS)], journal=journal
    ) as agent:
        await agent.run("Go.")
    changed = permissions(ASKS + "# another text\n")
    async with await Agent.create(ScriptedModel([]), config=config, tools=world.tools(), extensions=[changed], journal=journal) as agent:
        await agent.resume()
    assert any("the policy p was" in record.getMessage() for record in caplog.records)


# ---- where it stands --------------------------------------------------------------------------------------------------


@looped
async def test_no_layer_of_a_user_s_stands_further_in_than_the_policy() -> None:
    class Inner(AgentExtension):
        priority = 901

    class Level(AgentExtension):
        priority = 900

    for layer in (Inner(), Level()):
        with pytest.raises(UsageError, match="900 and above lie inside the guards"):
            await Agent.create(ScriptedModel([]), extensions=[permissions(""), layer])
    moved = permissions("")
    moved.priority = 50
    with pytest.raises(UsageError, match="it must see the arguments that run"):
        await Agent.create(ScriptedModel([]), extensions=[moved])
    with pytest.raises(UsageError, match="two policies named 'p'"):
        await Agent.create(ScriptedModel([]), extensions=[permissions(""), permissions("")])


@looped
async def test_several_policies_must_each_allow_a_call() -> None:
    world = World()
    other = permissions('[[allow]]\ntool = "*"\npath = "a"\n', head='version = 1\nname = "q"\n')
    await play(
        [calls(call("c1", "read", {"path": "a"}), call("c2", "read", {"path": "b"}), call("c3", "delete", {"path": "a"})), text("ok")],
        tools=world.tools(),
        extensions=[permissions('[[allow]]\ntool = "read"\n'), other],
    )
    assert world.done == [("read", "a")]


@looped
async def test_the_policy_is_said_when_an_agent_is_made_and_in_its_onion(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = permissions('[[deny]]\ntool = "delte"\n[[allow]]\ntool = "read"\n')
    with caplog.at_level(logging.INFO, logger="interlock.permissions"):
        async with agent_playing([text("ok")], tools=World().tools(), extensions=[guard]) as agent:
            await agent.run("Go.")
            names = agent.onion()
    said = [record.getMessage() for record in caplog.records if record.name == "interlock.permissions"]
    assert said == [
        f"policy 'p' ({guard.policy.digest}): 1 deny, 0 ask, 1 allow; otherwise deny holds for every tool call",
        "policy 'p': deny rule 1 (policy:3) is about no tool of this agent (delte)",
    ]
    assert names[-3:] == ("Permissions(p)", "RuntimeTools", "UrlGuard")
    assert "   900  Permissions(p)  (on_tool_call)" in capsys.readouterr().out


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a Policy or its file is needed, not int"):
        Permissions(5)  # type: ignore[arg-type]
    file = tmp_path / "p.toml"
    file.write_text(HEAD)
    assert Permissions(file).policy == Permissions(str(file)).policy


@looped
async def test_what_is_checked_is_what_runs_whatever_another_layer_does_meanwhile() -> None:
    """A layer further out keeps the dictionary that it has put there; it is changed while a guard further in waits."""
    shared = {"command": "ls"}
    world = World()

    @extension
    async def keep(context: RunContext, call: Any, call_next: Any) -> Any:
        call.arguments = shared
        return await call_next()

    class Slow(UrlGuard):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            await asyncio.sleep(0)
            shared["command"] = "rm x"
            return await super().on_tool_call(context, call, call_next)

    guard = permissions('[[allow]]\ntool = "run_command"\ncommand = "ls"\n')
    step = calls(call("c1", "run_command", {"command": "ls"}))
    await play([step, text("ok")], tools=world.tools(), extensions=[guard, keep, Slow()])
    assert world.done == ["ls"]


@pytest.mark.parametrize("how", ["in place", "anew"])
@looped
async def test_nobody_changes_the_arguments_after_the_policy_has_looked(how: str) -> None:
    """A layer further out goes on in a task of its own, with the call itself, while a guard further in waits; that guard tries, too."""
    world = World()
    held: list[Any] = []
    refused: list[str] = []

    def swap(call: Any) -> None:
        if how == "in place":
            call.arguments["command"] = "rm x"
            return
        try:
            call.arguments = {"command": "rm x"}
        except UsageError as error:
            refused.append(str(error))

    @extension
    async def keep(context: RunContext, call: Any, call_next: Any) -> Any:
        held.append(call)
        return await call_next()

    async def outside() -> None:
        swap(held[0])

    class Slow(UrlGuard):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            await asyncio.create_task(outside())
            swap(call)
            return await super().on_tool_call(context, call, call_next)

    guard = permissions('[[allow]]\ntool = "run_command"\ncommand = "ls"\n')
    step = calls(call("c1", "run_command", {"command": "ls"}))
    await play([step, text("ok")], tools=world.tools(), extensions=[guard, keep, Slow()])
    assert world.done == ["ls"]
    assert len(refused) == (2 if how == "anew" else 0)


@looped
async def test_the_event_says_who_denied() -> None:
    played = await play([calls(call("c1", "read")), text("ok")], tools=World().tools(), extensions=[permissions("")])
    (finished,) = played.of(ToolFinished)
    assert (finished.code, finished.decided_by, finished.effect) == ("vetoed", "Permissions(p)", "none")
