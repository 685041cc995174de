"""An unconditional denial leaves no effect, for every tool that the project ships.

The tools are found and not listed: whatever ``interlock.toolbox`` makes, and whatever an extension brings. A tool without a probe here
fails the test: a probe says how it is made to have its effect, and how that effect is seen in the world.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import interlock.extensions
import interlock.toolbox
from helpers import limits, looped
from interlock import Agent, AgentExtension, Tool
from interlock.extensions.approvals import Approvals
from interlock.extensions.ask_user import AskUser
from interlock.extensions.files import Files
from interlock.extensions.permissions import Permissions, Policy
from interlock.extensions.runtime_tools import RuntimeTools
from interlock.messages import ToolMessage, text_of
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.sandbox import end_background
from interlock.testing import ScriptedModel, call, calls, text
from interlock.toolbox.files import file_tools
from interlock.toolbox.reading import reading_tools
from interlock.toolbox.readonly import readonly_tools
from interlock.toolbox.roots import Roots
from interlock.toolbox.shell import shell_tools
from interlock.toolbox.web import web_tools

SECRET = "harbour-7719"
DENY_ALL = 'version = 1\nname = "nothing"\ndefault = "allow"\n[[deny]]\ntool = "*"\n'


# ---- what there is ----------------------------------------------------------------------------------------------------


def modules_of(package: Any) -> Iterator[Any]:
    yield package
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(info.name)


def makes_tools(function: Any) -> bool:
    try:
        made = get_type_hints(function).get("return")
    except (NameError, TypeError):
        return False
    return made is Tool or Tool in getattr(made, "__args__", ())


def factories() -> dict[str, Any]:
    """Every public function of the toolbox that makes tools, by its dotted name."""
    return {
        f"{module.__name__}.{name}": value
        for module in modules_of(interlock.toolbox)
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__ and makes_tools(value)
    }


def ready_made() -> dict[str, Tool]:
    """Every Tool that a module of the toolbox or of the extensions holds, by its dotted name."""
    return {
        f"{module.__name__}.{name}": value
        for package in (interlock.toolbox, interlock.extensions)
        for module in modules_of(package)
        for name, value in vars(module).items()
        if isinstance(value, Tool)
    }


def bringers() -> dict[str, type[AgentExtension]]:
    """Every extension that brings tools, by its dotted name."""
    return {
        f"{kind.__module__}.{kind.__qualname__}": kind
        for module in modules_of(interlock.extensions)
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, AgentExtension) and kind.__module__ == module.__name__ and "tools" in vars(kind)
        if kind is not AgentExtension
    }


# ---- how each is made, and how its effect is seen --------------------------------------------------------------------

MADE: dict[str, Callable[[Path], Any]] = {
    "interlock.toolbox.readonly.readonly_tools": readonly_tools,
    "interlock.toolbox.files.file_tools": file_tools,
    "interlock.toolbox.reading.reading_tools": lambda root: reading_tools(Roots(root)),
    "interlock.extensions.ask_user.AskUser": lambda _: AskUser(),
    "interlock.extensions.files.Files": Files,
    "interlock.toolbox.shell.shell_tools": lambda root: shell_tools(root, sandbox="none", approval=False),
    "interlock.toolbox.web.web_tools": lambda root: web_tools(connect=lambda address, port: dialled(root)),
    "interlock.extensions.runtime_tools.RuntimeTools": lambda _: RuntimeTools(),
}
"""By the dotted name of a factory or of an extension: it, made for a test in a folder."""


def dialled(root: Path) -> tuple[str, int]:
    """A network that leads nowhere, and remembers that it was used."""
    (root / "dialled").touch()
    return "127.0.0.1", 1


@dataclass
class Probe:
    """arguments: of a call that has the effect. seen: whether it is there, by the world and by what the call gave."""

    arguments: dict[str, Any]
    seen: Callable[[Path, str], bool]
    before: str = ""
    """A tool that is called before: its large result is read on in, or what it left running is ended."""
    before_arguments: dict[str, Any] = field(default_factory=dict[str, Any])


PROBES: dict[str, Probe] = {
    "list_files": Probe({"path": "."}, lambda _, given: "note.txt" in given),
    "read_file": Probe({"path": "note.txt"}, lambda _, given: SECRET in given),
    "search_text": Probe({"text": "harbour"}, lambda _, given: SECRET in given),
    "find_files": Probe({"pattern": "*.txt"}, lambda _, given: "note.txt" in given),
    "write_file": Probe({"path": "new/b.txt", "content": SECRET}, lambda root, _: (root / "new").exists()),
    "edit_file": Probe({"path": "note.txt", "old": "word", "new": "verb"}, lambda root, _: "verb" in (root / "note.txt").read_text()),
    "ask_user": Probe({"question": f"What is {SECRET}?"}, lambda _, given: SECRET in given),
    "read_result": Probe({"call_id": "large"}, lambda _, given: SECRET in given, before="large_result"),
    "fetch_url": Probe({"url": "http://8.8.8.8/"}, lambda root, _: (root / "dialled").exists()),
    "run_command": Probe({"command": "echo made > made"}, lambda root, _: (root / "made").exists()),
    "run_python": Probe({"code": "open('made', 'w').close()"}, lambda root, _: (root / "made").exists()),
    "stop_background": Probe(
        {"name": "b1"},
        lambda root, _: not process_exists(int((root / "pid").read_text())),
        before="run_command",
        before_arguments={"command": "sleep 300 & echo $! > pid"},
    ),
}


def process_exists(pid: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def large_result() -> str:
    """More than a result may have."""
    return f"{SECRET} " * 20_000


def every_tool(root: Path) -> dict[str, tuple[Tool | None, AgentExtension | None]]:
    """The name of each shipped tool: the tool itself, or the extension that brings it."""
    found: dict[str, tuple[Tool | None, AgentExtension | None]] = {}
    for name in factories():
        made = MADE[name](root)
        found |= {each.name: (each, None) for each in (made if isinstance(made, tuple | list) else [made])}
    for name in bringers():
        bringer = MADE[name](root)
        found |= {each.name: (None, bringer) for each in bringer.tools()}
    return found


def test_every_factory_and_every_bringer_of_tools_is_known_here() -> None:
    assert {*factories(), *bringers()} == set(MADE), "a way to tools that this test cannot make: add it to MADE, and a probe for each tool"


def test_every_shipped_tool_has_a_probe(tmp_path: Path) -> None:
    names = set(every_tool(tmp_path))
    assert names == set(PROBES), "a tool without a probe: say how its effect is seen"
    assert {each.name for each in ready_made().values()} <= names
    assert len(names) >= 4


@asynccontextmanager
async def agent_with(name: str, root: Path, extensions: list[AgentExtension]) -> AsyncIterator[tuple[Agent, ScriptedModel]]:
    every = every_tool(root)
    made, bringer = every[name]
    probe = PROBES[name]
    steps: list[Any] = [calls(call("large", probe.before, probe.before_arguments))] if probe.before else []
    model = ScriptedModel([*steps, calls(call("probed", name, probe.arguments)), text("ok")])
    helping = every[probe.before][0] if probe.before in every else None
    tools = [*(each for each in (made, helping) if each is not None), large_result]
    brought = [bringer] if bringer is not None else []
    async with await Agent.create(
        model, tools=tools, extensions=[*brought, *extensions], limits=limits(result_bytes=4096), without=[Approvals]
    ) as agent:
        yield agent, model


async def effect_of(name: str, root: Path, extensions: list[AgentExtension]) -> tuple[bool, list[Any]]:
    (root / "note.txt").write_text(f"the word is {SECRET}\n")
    async with agent_with(name, root, extensions) as (agent, _):
        result = await agent.run("Go.")
        given = [message for message in result.messages if isinstance(message, ToolMessage) and message.tool_call_id == "probed"]
        records = [row.record for row in await agent.session(result.session_id).records()]
    asked = [question.text for question in result.questions]  # to ask a person is an effect too
    try:
        return PROBES[name].seen(root, "".join([*asked, *(text_of(message.content) for message in given)])), records
    finally:
        end_background()


@pytest.mark.parametrize("name", sorted(PROBES))
def test_the_probe_sees_the_effect_of_a_tool_that_may_run(name: str, tmp_path: Path) -> None:
    @looped
    async def main() -> None:
        seen, _ = await effect_of(name, tmp_path, [])
        assert seen, "the probe proves nothing"
        allowing = Policy.parse('version = 1\nname = "all"\n[[allow]]\ntool = "*"\n', root=tmp_path)
        seen, _ = await effect_of(name, tmp_path, [Permissions(allowing)])
        assert seen, "a policy that allows everything is in the way"

    main()


@pytest.mark.parametrize("name", sorted(PROBES))
def test_an_unconditional_denial_leaves_no_effect(name: str, tmp_path: Path) -> None:
    before = PROBES[name].before
    rules = DENY_ALL.replace('tool = "*"', f'tool = "{name}"') if before else DENY_ALL

    @looped
    async def main() -> None:
        seen, records = await effect_of(name, tmp_path, [Permissions(Policy.parse(rules, root=tmp_path))])
        assert not seen
        ended = [record for record in records if isinstance(record, ToolStepEnded) and record.message.tool_call_id == "probed"]
        assert [(record.code, record.effect) for record in ended] == [("vetoed", "none")]
        assert len([record for record in records if isinstance(record, HandlerStarted)]) == (1 if before else 0)

    main()


@pytest.mark.parametrize("name", sorted(PROBES))
def test_nothing_runs_under_a_policy_without_rules(name: str, tmp_path: Path) -> None:
    before = PROBES[name].before
    rules = 'version = 1\nname = "empty"\n' + (f'[[allow]]\ntool = "{before}"\n' if before else "")

    @looped
    async def main() -> None:
        seen, _ = await effect_of(name, tmp_path, [Permissions(Policy.parse(rules, root=tmp_path))])
        assert not seen

    main()
