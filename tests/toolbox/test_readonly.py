"""The read-only tools: what a model gets to see, and that it cannot get out of the directory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from interlock import Agent, Tool, ToolFailure, UsageError
from interlock.messages import ToolMessage, text_of
from interlock.testing import ScriptedModel, call, calls, text
from interlock.toolbox import reading, searching
from interlock.toolbox.readonly import readonly_tools


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("the secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    (root / "sub" / "b.txt").write_text("Zwei\n")
    (root / "image.bin").write_bytes(b"\x89PNG\0\0")
    (root / "out").symlink_to("../secret.txt")
    return root


@pytest.fixture
def tools(root: Path) -> dict[str, Tool]:
    return {tool.name: tool for tool in readonly_tools(root)}


def test_a_listing_says_what_each_name_is(tools: dict[str, Tool]) -> None:
    assert tools["list_files"]().splitlines() == ["a.txt (14 bytes)", "image.bin (6 bytes)", "out (a link; not followed)", "sub/"]
    assert "sub/b.txt (5 bytes)" in tools["list_files"](recursive=True).splitlines()
    assert tools["list_files"]("sub").splitlines() == ["sub/b.txt (5 bytes)"]


def test_directories_that_tools_write_are_listed_and_not_entered(root: Path, tools: dict[str, Tool]) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("two")
    lines = tools["list_files"](recursive=True).splitlines()
    assert ".git/" in lines
    assert not any("config" in line for line in lines)
    assert "config" not in tools["search_text"]("two")
    assert "two" in tools["read_file"](".git/config")


def test_a_listing_is_bounded(root: Path, tools: dict[str, Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ENTRIES_MAX", 2)
    lines = tools["list_files"]().splitlines()
    assert len(lines) == 3
    assert "only the first 2" in lines[-1]


def test_a_file_is_read_as_it_is_and_a_part_of_it_says_so(tools: dict[str, Tool]) -> None:
    read = tools["read_file"]
    assert read("a.txt") == "one\ntwo\nthree\n"
    assert read("a.txt", first_line=2, lines=1) == "two\n\n[lines 2 to 2 of 3]"
    assert read("a.txt", first_line=-5) == "one\ntwo\nthree\n"
    with pytest.raises(ToolFailure, match="only 3 lines"):
        read("a.txt", first_line=4)
    with pytest.raises(ToolFailure, match="not a text file"):
        read("image.bin")


def test_a_search_names_file_and_line(tools: dict[str, Tool]) -> None:
    search = tools["search_text"]
    assert search("two") == "a.txt:2: two"
    assert search("zwei", ignore_case=True) == "sub/b.txt:1: Zwei"
    assert search("zwei") == "[no line contains 'zwei']"
    assert search("t", path="a.txt").splitlines() == ["a.txt:2: two", "a.txt:3: three"]
    assert "secret" not in search("the secret").replace("'the secret'", "")
    with pytest.raises(ToolFailure):
        search("")
    with pytest.raises(ToolFailure, match="link"):
        search("secret", path="out")
    with pytest.raises(ToolFailure, match="not a text file"):
        search("PNG", path="image.bin")


def test_a_search_is_bounded(root: Path, tools: dict[str, Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "found_ripgrep", lambda roots: None)  # which looks into fewer files, and so stops later
    (root / "many.txt").write_text("hit\n" * 500)
    assert len(tools["search_text"]("hit").splitlines()) == 201
    monkeypatch.setattr(searching, "SEARCHED_FILES_MAX", 1)
    assert "stopped early" in tools["search_text"]("two")
    monkeypatch.setattr(searching, "SEARCHED_FILES_MAX", 100)
    monkeypatch.setattr(searching, "SEARCHED_BYTES_MAX", 0)
    assert "stopped early" in tools["search_text"]("two")


def test_a_name_that_is_no_text_is_listed_and_harms_nothing(root: Path, tools: dict[str, Tool]) -> None:
    try:
        os.close(os.open(os.fsencode(root) + b"/\xff\xfe.txt", os.O_CREAT | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system has no such names")
    listing = tools["list_files"]()
    listing.encode()
    assert "\N{REPLACEMENT CHARACTER}" in listing
    tools["search_text"]("two").encode()


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "out", "a.txt\0", "sub/../../secret.txt", "\ud800"])
def test_a_model_that_tries_to_get_out_is_told_so_and_nothing_happened(root: Path, path: str) -> None:
    async def run() -> tuple[ToolMessage, ...]:
        arguments = {"path": path}
        model = ScriptedModel(
            [calls(call("c1", "read_file", arguments), call("c2", "list_files", arguments)), text("I cannot.")],
        )
        async with await Agent.create(model, tools=readonly_tools(root)) as agent:
            result = await agent.run("Read it.")
        model.assert_done()
        return tuple(message for message in result.require().messages if isinstance(message, ToolMessage))

    results = asyncio.run(run())
    assert len(results) == 2
    for result in results:
        assert result.failed
        assert result.effect == "none"
        assert "secret" not in text_of(result.content).replace("secret.txt", "")


def test_the_root_must_be_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        readonly_tools(tmp_path / "missing")
