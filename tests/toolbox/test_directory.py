"""A Directory cannot be left, whatever the path says and whatever is swapped in meanwhile."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from interlock import ToolFailure, UsageError
from interlock.toolbox.directory import Directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key.txt").write_text("the secret")
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("inside")
    (root / "sub" / "deep" / "b.txt").write_text("deep inside")
    return root


def test_files_below_the_root_are_read(root: Path) -> None:
    directory = Directory(root)
    assert directory.read("a.txt", bytes_max=100) == b"inside"
    assert directory.read("./sub//deep/./b.txt", bytes_max=100) == b"deep inside"
    assert [entry.path for entry in directory.entries(".")] == ["a.txt", "sub"]
    assert [entry.path for entry in directory.walk("")] == ["a.txt", "sub", "sub/deep", "sub/deep/b.txt"]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "sub/../../secret.txt",
        "sub/..",
        "..",
        "/etc/passwd",
        "/a.txt",
        "//etc/passwd",
        "a.txt\0",
        "\0",
        "sub/\0/../a.txt",
        "a.txt/b",
        "missing.txt",
        "x" * 300,
        "x/" * 5000,
        "\ud800",
        "sub",
        "",
        ".",
    ],
)
def test_what_is_no_file_below_the_root_is_refused_without_effect(root: Path, path: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        Directory(root).read(path, bytes_max=100)
    assert caught.value.effect == "none"
    assert len(str(caught.value)) < 400


def test_links_are_not_followed_wherever_they_stand_and_wherever_they_lead(root: Path) -> None:
    (root / "file-out").symlink_to("../secret.txt")
    (root / "file-in").symlink_to("a.txt")
    (root / "dir-out").symlink_to("../outside", target_is_directory=True)
    (root / "dir-in").symlink_to("sub", target_is_directory=True)
    (root / "loop").symlink_to("loop")
    (root / "sub" / "up").symlink_to("..")
    directory = Directory(root)
    for path in ("file-out", "file-in", "dir-out/key.txt", "dir-in/deep/b.txt", "loop", "sub/up/a.txt"):
        with pytest.raises(ToolFailure, match="link"):
            directory.read(path, bytes_max=100)
    for path in ("dir-out", "dir-in", "sub/up"):
        with pytest.raises(ToolFailure):
            directory.entries(path)
    kinds = {entry.path: entry.kind for entry in directory.walk(".")}
    assert kinds["dir-out"] == kinds["file-out"] == kinds["loop"] == kinds["sub/up"] == "link"
    assert not any("key.txt" in path for path in kinds)


def test_special_files_are_refused_and_do_not_hang(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(ToolFailure, match="not a regular file"):
        Directory(root).read("pipe", bytes_max=100)


def test_who_waits_at_the_other_end_of_a_pipe_is_not_woken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a pipe, if only for a moment, lets its writer go on into nothing; so it is not opened at all."""
    os.mkfifo(root / "waited-for")
    directory, really, opened = Directory(root), os.open, []

    def noticed(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        opened.append(path)
        return really(path, flags, *more, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", noticed)
    with pytest.raises(ToolFailure, match="not a regular file"):
        directory.read("waited-for", bytes_max=10)
    assert opened == ["."]


def test_a_file_larger_than_asked_for_is_refused(root: Path) -> None:
    with pytest.raises(ToolFailure, match="larger than 5 bytes"):
        Directory(root).read("a.txt", bytes_max=5)
    assert Directory(root).read("a.txt", bytes_max=6) == b"inside"


def test_replacing_the_root_changes_nothing(root: Path) -> None:
    directory = Directory(root)
    root.rename(root.parent / "moved")
    root.symlink_to(root.parent / "outside")
    assert directory.read("a.txt", bytes_max=100) == b"inside"
    with pytest.raises(ToolFailure):
        directory.read("key.txt", bytes_max=100)


def test_a_link_that_is_swapped_in_while_reading_never_leads_out(root: Path) -> None:
    """A directory and a link to the outside take turns under one name; whoever wins, no read sees the outside."""
    (root / "swap").mkdir()
    (root / "swap" / "key.txt").write_text("inside")
    (root / "link").symlink_to("../outside", target_is_directory=True)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "swap", root / "aside")
            os.rename(root / "link", root / "swap")
            os.rename(root / "swap", root / "link")
            os.rename(root / "aside", root / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes] = set()
    try:
        directory = Directory(root)
        for _ in range(3000):
            try:
                seen.add(directory.read("swap/key.txt", bytes_max=100))
            except ToolFailure:
                continue
    finally:
        stop.set()
        thread.join()
    assert seen <= {b"inside"}


def test_no_descriptor_is_left_open(root: Path) -> None:
    fds = Path("/dev/fd")
    gc.collect()  # what other tests have let go of is not closed meanwhile
    before = len(os.listdir(fds))
    directory = Directory(root)
    for path in ("a.txt", "sub/deep/b.txt", "missing", "sub", "sub/missing/x"):
        try:
            directory.read(path, bytes_max=100)
        except ToolFailure:
            continue
    list(directory.walk("."))
    directory.close()
    directory.close()
    assert len(os.listdir(fds)) == before
    with pytest.raises(UsageError, match="closed"):
        directory.read("a.txt", bytes_max=100)


@pytest.mark.parametrize("wrong", ["missing", "a.txt", "\0", ""])
def test_a_root_that_is_no_directory_is_a_usage_error(root: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.chdir(root)
    with pytest.raises(UsageError, match="not a directory"):
        Directory(wrong)
