"""No path, no link and no swap leads the file tools out of their roots. `make jail` does the same ten thousand times and more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.toolbox.files import file_tools
from jail import World, run


@pytest.mark.parametrize("seed", range(4))
def test_nothing_gets_out_while_links_are_swapped(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    tools: dict[str, Any] = {tool.name: tool for tool in file_tools(world.root)}
    assert run(world, tools, 300) == []


@pytest.mark.parametrize("naive", ["read", "write", "list"])
def test_tools_that_look_first_and_open_then_are_caught(tmp_path: Path, naive: str) -> None:
    """The checker sees what it is there to see: these tools check the path that they open, as many do."""
    world = World(tmp_path, 1)
    tools: dict[str, Any] = {tool.name: tool for tool in file_tools(world.root)}

    def checked(path: str) -> Path:
        whole = world.root / path
        if "\0" in path or ".." in path or "\ud800" in path or not str(whole).startswith(str(world.root)):
            raise tool_failure()
        return whole

    def read_file(path: str) -> str:
        return opened(checked(path), "r")

    def write_file(path: str, content: str, context: None) -> str:
        whole = checked(path)
        return opened(whole, "w", content) if whole.parent.is_dir() and not whole.is_fifo() else "no"

    def list_files(path: str, recursive: bool) -> str:
        whole = checked(path)
        return "\n".join(child.name for child in whole.iterdir()) if whole.is_dir() else "no"

    tools[f"{naive}_files" if naive == "list" else f"{naive}_file"] = {"read": read_file, "write": write_file, "list": list_files}[naive]
    assert any(run(world, tools, 100) for _ in range(15))


def tool_failure() -> Exception:
    from interlock import ToolFailure

    return ToolFailure("no", effect="none")


def opened(path: Path, mode: str, content: str = "") -> str:
    try:
        if path.is_fifo():
            return "no"
        with path.open(mode) as file:
            return file.read() if mode == "r" else str(file.write(content))
    except OSError:
        return "no"
