"""File tools that can be talked out of their directory: what others' tools followed, these refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, looped
from interlock.extensions.approvals import Approvals
from interlock.extensions.files import Files
from interlock.messages import ToolMessage, text_of
from interlock.testing import call, calls, text

SECRET = "harbour-7719"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A root that is itself a link, with links out of it, and a sibling whose name begins alike."""
    for name in ("w", "w-secret", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("inside\n" if name == "w" else f"{SECRET}\n")
    real = tmp_path / "w"
    (real / "sub").mkdir()
    (real / "link").symlink_to(tmp_path / "elsewhere")
    (real / "file").symlink_to("../w-secret/x")
    (real / "new").symlink_to(tmp_path / "made-outside")
    (tmp_path / "root").symlink_to("w")
    return tmp_path


PATHS = [
    *("../w-secret/x", "{world}/w-secret/x", "{world}/root-secret/x", "link/x", "file", "new", "link", "sub/../../w-secret/x"),
    *("x\0", "{world}/root/../w-secret/x", "/etc/passwd", "~/x", "file/", "./link/../x"),
]


def every_call(path: str) -> list[Any]:
    arguments: dict[str, dict[str, Any]] = {
        "read_file": {"path": path},
        "write_file": {"path": path, "content": "stolen"},
        "edit_file": {"path": path, "old": SECRET, "new": "stolen"},
        "list_files": {"path": path, "recursive": True},
        "search_text": {"text": "harbour", "path": path},
        "find_files": {"pattern": "*", "path": path},
    }
    return [call(name, name, given) for name, given in arguments.items()]


def seen(world: Path) -> dict[str, str]:
    return {str(path): path.read_text() for folder in ("w-secret", "elsewhere") for path in sorted((world / folder).iterdir())}


@pytest.mark.parametrize("path", PATHS)
@looped
async def test_no_tool_reaches_what_lies_outside_by_any_spelling(world: Path, path: str) -> None:
    given = path.format(world=world)
    before = seen(world)
    async with agent_playing([calls(*every_call(given)), text("No.")], extensions=[Files(world / "root")], without=[Approvals]) as agent:
        result = await agent.run("Try.")
    answers = {message.name: message for message in result.require().messages if isinstance(message, ToolMessage)}
    assert len(answers) == 6
    if path == "~/x":  # a directory called ~, and nobody's home
        assert (world / "w" / "~" / "x").read_text() == "stolen"
    else:
        assert {name: (answer.failed, answer.effect) for name, answer in answers.items()} == dict.fromkeys(answers, (True, "none"))
    assert not any(SECRET in text_of(answer.content) for answer in answers.values())
    assert seen(world) == before
    assert not (world / "made-outside").exists()


@looped
async def test_a_walk_names_links_and_goes_into_none(world: Path) -> None:
    batch = calls(
        call("c1", "list_files", {"recursive": True}),
        call("c2", "search_text", {"text": "harbour"}),
        call("c3", "find_files", {"pattern": "x"}),
    )
    async with agent_playing([batch, text("Done.")], extensions=[Files(world / "root")]) as agent:
        result = await agent.run("Look.")
    listed, searched, found = [text_of(message.content) for message in result.require().messages if isinstance(message, ToolMessage)]
    assert "link (a link; not followed)" in listed
    assert "link/x" not in listed
    assert searched == "[no line contains 'harbour']"
    assert found == "x (7 bytes)"


@looped
async def test_a_root_that_is_itself_a_link_works(world: Path) -> None:
    batch = calls(
        call("c1", "read_file", {"path": "x"}),
        call("c2", "read_file", {"path": str(world / "root" / "x")}),
        call("c3", "write_file", {"path": f"{world}/w/sub/y", "content": "new\n"}),
    )
    async with agent_playing([batch, text("Done.")], extensions=[Files(world / "root")], without=[Approvals]) as agent:
        result = await agent.run("Go.")
    assert [message.failed for message in result.require().messages if isinstance(message, ToolMessage)] == [False] * 3
    assert (world / "w" / "sub" / "y").read_text() == "new\n"
