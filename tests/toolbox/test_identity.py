"""A commit in a sandbox is the user's, and nothing else of their configuration gets in."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers import looped
from interlock.sandbox import LEVELS, Level, unavailable
from interlock.toolbox.identity import lend_identity
from interlock.toolbox.shell import shell_tools

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")

CONFIG = """\
[user]
\tname = "Ann \\"the\\\\boss\\" # Müller"
\temail = ann@example.com
\tsigningkey = secret-key
[url "https://ann:secret-token@example.com/"]
\tinsteadOf = https://example.com/
[include]
\tpath = more
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(CONFIG)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", *(name for name in os.environ if name.startswith("GIT_"))):
        monkeypatch.delenv(name, raising=False)
    return home


class Context:
    session_id = "s"

    def emit(self, data: Any) -> None:
        pass


@pytest.mark.parametrize("level", [level for level in LEVELS if level in ("landlock", "bubblewrap")])
@looped
async def test_a_commit_in_a_sandbox_is_the_users_unless_the_project_says_otherwise(level: Level, tmp_path: Path, home: Path) -> None:
    if why := unavailable(level):
        pytest.skip(why)
    root = tmp_path / "root"
    root.mkdir()
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q"], cwd=root, check=True)
    tools: dict[str, Any] = {tool.name: tool for tool in shell_tools(root, sandbox=level)}
    commit = "git commit -q --allow-empty -m x && git log -1 --format='%an <%ae>'"
    run = tools["run_command"]
    assert 'Ann "the\\boss" # Müller <ann@example.com>' in await run(context=Context(), command=commit)
    assert "Keeper <ann@example.com>" in await run(context=Context(), command=f"git config user.name Keeper; {commit}")
    assert "secret" not in await run(context=Context(), command="cat ~/.gitconfig; git config --global --list")


def test_what_is_included_counts_and_the_last_word_holds(tmp_path: Path, home: Path) -> None:
    (home / "more").write_text("[user]\n\temail = later@example.com\n")
    lend_identity(tmp_path, tmp_path / "root")
    assert "later@example.com" in (tmp_path / ".gitconfig").read_text()
    assert "ann@example.com" not in (tmp_path / ".gitconfig").read_text()


def test_a_configuration_that_is_there_stays_and_nobody_is_nobody(tmp_path: Path, home: Path) -> None:
    (tmp_path / ".gitconfig").write_text("mine")
    lend_identity(tmp_path, tmp_path / "root")
    assert (tmp_path / ".gitconfig").read_text() == "mine"
    (tmp_path / ".gitconfig").unlink()
    (home / ".gitconfig").write_text("[core]\n")
    lend_identity(tmp_path, tmp_path / "root")
    assert not (tmp_path / ".gitconfig").exists()


def test_without_git_nothing_happens(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", ".")
    lend_identity(tmp_path, tmp_path / "root")
    assert not (tmp_path / ".gitconfig").exists()


def test_a_git_below_the_root_is_not_started(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in a sandbox may have put it there."""
    planted = tmp_path / "root" / "bin" / "git"
    planted.parent.mkdir(parents=True)
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/escaped\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{planted.parent}{os.pathsep}{os.environ['PATH']}")
    lend_identity(tmp_path, tmp_path / "root")
    assert not (tmp_path / "escaped").exists()
    assert (tmp_path / ".gitconfig").exists()
