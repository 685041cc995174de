"""A file is written whole or not at all, over what was looked at, and never through a link."""

from __future__ import annotations

import errno
import gc
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock import ToolFailure
from interlock.toolbox import writing
from interlock.toolbox.directory import Directory
from interlock.toolbox.writing import rewrite
from rights import drop, unprivileged


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "outside").mkdir()
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("old")
    return root


def put(root: Path, path: str, data: bytes = b"new", *, create: bool = True, make: Callable[[bytes | None], bytes] | None = None) -> Any:
    return rewrite(Directory(root), path, make or (lambda _: data), bytes_max=1000, create=create)


def everything(root: Path) -> dict[str, str]:
    """Every name below, with what it is and holds."""
    return {
        str(path.relative_to(root)): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text() if path.is_file() else "/"
        for path in sorted(root.rglob("*"))
    }


def test_a_file_is_replaced_and_made_and_nothing_else_is_left(root: Path) -> None:
    assert put(root, "a.txt") == (b"old", b"new")
    assert put(root, "sub/deep/er/b.txt") == (None, b"new")
    assert everything(root) == {"a.txt": "new", "sub": "/", "sub/deep": "/", "sub/deep/er": "/", "sub/deep/er/b.txt": "new"}


def test_the_mode_stays_and_a_new_file_gets_what_the_umask_leaves(root: Path) -> None:
    (root / "a.txt").chmod(0o4751)
    mask = os.umask(0o027)
    try:
        put(root, "a.txt")
        put(root, "b.txt")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o751
    assert stat.S_IMODE((root / "b.txt").stat().st_mode) == 0o640


def test_an_owner_stays_where_this_process_may_give_it(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    os.chown(root / "a.txt", 1234, 4321)
    put(root, "a.txt")
    assert ((root / "a.txt").stat().st_uid, (root / "a.txt").stat().st_gid) == (1234, 4321)


def test_links_are_refused_dangling_or_not_and_wherever_they_lead(root: Path) -> None:
    (root / "out").symlink_to("../secret.txt")
    (root / "in").symlink_to("a.txt")
    (root / "dangling").symlink_to("../new.txt")
    (root / "away").symlink_to("../outside")
    (root / "loop").symlink_to("loop")
    before = everything(root.parent)
    for path in ("out", "in", "dangling", "loop", "away/x.txt", "away/deep/x.txt", "loop/x"):
        for create in (True, False):
            with pytest.raises(ToolFailure, match="link") as caught:
                put(root, path, create=create)
            assert caught.value.effect == "none"
    assert everything(root.parent) == before


@pytest.mark.parametrize(
    "path", ["", ".", "sub", "sub/", "../x", "sub/../../x", "/etc/x", "x\0", "\ud800", "\ud800/x", "a.txt/x", "x" * 300, "pipe"]
)
def test_what_is_no_file_below_the_root_is_not_written(root: Path, path: str) -> None:
    os.mkfifo(root / "pipe")
    names = sorted(os.listdir(root))
    with pytest.raises(ToolFailure) as caught:
        put(root, path)
    assert caught.value.effect == "none"
    assert sorted(os.listdir(root)) == names
    assert not os.listdir(root / "sub")


def test_a_file_that_must_be_there_is_not_made(root: Path) -> None:
    with pytest.raises(ToolFailure, match="no such file"):
        put(root, "b.txt", create=False)
    with pytest.raises(ToolFailure, match="no such file"):
        put(root, "missing/b.txt", create=False)
    assert everything(root) == {"a.txt": "old", "sub": "/"}


def test_the_same_content_is_not_written_again(root: Path) -> None:
    before = (root / "a.txt").stat()
    assert put(root, "a.txt", b"old") == (b"old", b"old")
    after = (root / "a.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_refusal_by_who_makes_the_content_leaves_no_directory_behind(root: Path) -> None:
    def refuse(present: bytes | None) -> bytes:
        raise ToolFailure("no", effect="none")

    with pytest.raises(ToolFailure, match="no"):
        put(root, "one/two/b.txt", make=refuse)
    assert everything(root) == {"a.txt": "old", "sub": "/"}


def test_a_directory_that_somebody_else_uses_meanwhile_stays(root: Path) -> None:
    def refuse(present: bytes | None) -> bytes:
        (root / "one" / "mine.txt").write_text("mine")
        raise ToolFailure("no", effect="none")

    with pytest.raises(ToolFailure, match="no"):
        put(root, "one/two/b.txt", make=refuse)
    assert everything(root) == {"a.txt": "old", "one": "/", "one/mine.txt": "mine", "sub": "/"}


@pytest.mark.parametrize("how", ["content", "replaced", "link", "gone"])
def test_what_changes_while_the_content_is_made_is_not_overwritten(root: Path, how: str) -> None:
    def meanwhile(present: bytes | None) -> bytes:
        assert present == b"old"
        if how == "content":
            (root / "a.txt").write_text("theirs")
        else:
            (root / "a.txt").unlink()
        if how == "replaced":
            (root / "a.txt").write_text("old")
        elif how == "link":
            (root / "a.txt").symlink_to("../secret.txt")
        return b"new"

    with pytest.raises(ToolFailure) as caught:
        put(root, "a.txt", make=meanwhile)
    assert caught.value.effect == "none"
    expected = {"content": "theirs", "replaced": "old", "link": "-> ../secret.txt"}
    assert everything(root) == {"sub": "/"} | ({"a.txt": expected[how]} if how in expected else {})
    assert (root.parent / "secret.txt").read_text() == "the secret"


@pytest.mark.parametrize("how", ["file", "dangling link", "directory"])
@pytest.mark.parametrize("hard_links", [True, False])
def test_what_is_made_meanwhile_where_nothing_was_is_not_overwritten(
    root: Path, how: str, hard_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", _no_link)

    def meanwhile(present: bytes | None) -> bytes:
        assert present is None
        if how == "file":
            (root / "b.txt").write_text("theirs")
        elif how == "directory":
            (root / "b.txt").mkdir()
        else:
            (root / "b.txt").symlink_to("../new.txt")
        return b"new"

    with pytest.raises(ToolFailure, match="somebody else") as caught:
        put(root, "b.txt", make=meanwhile)
    assert caught.value.effect == "none"
    expected = {"file": "theirs", "directory": "/", "dangling link": "-> ../new.txt"}
    assert everything(root) == {"a.txt": "old", "b.txt": expected[how], "sub": "/"}
    assert not (root.parent / "new.txt").exists()


def _no_link(*args: Any, **named: Any) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_a_file_system_without_hard_links_gets_its_file_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _no_link)
    put(root, "b.txt")
    assert everything(root) == {"a.txt": "old", "b.txt": "new", "sub": "/"}


def test_without_hard_links_the_name_is_taken_before_the_file_gets_it_and_free_again_if_that_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _no_link)
    seen: list[dict[str, str]] = []

    def rename(*args: Any, **named: Any) -> None:
        seen.append(everything(root))
        with pytest.raises(FileExistsError):
            (root / "b.txt").touch(exist_ok=False)
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(ToolFailure, match=r"b\.txt"):
        put(root, "b.txt")
    assert [names["b.txt"] for names in seen] == [""]
    assert everything(root) == {"a.txt": "old", "sub": "/"}


@pytest.mark.parametrize("broken", ["fsync", "rename", "fchmod"])
def test_a_disk_that_fails_leaves_the_old_file_and_nothing_beside_it(root: Path, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(writing.os, broken, fail)
    with pytest.raises(ToolFailure, match="no space left") as caught:
        put(root, "a.txt")
    assert caught.value.effect == "none"
    assert everything(root) == {"a.txt": "old", "sub": "/"}


def test_an_interruption_leaves_nothing_beside_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing.os, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        put(root, "a.txt")
    assert everything(root) == {"a.txt": "old", "sub": "/"}


def test_a_reader_sees_the_old_content_or_the_new(root: Path) -> None:
    with (root / "a.txt").open() as reader:
        put(root, "a.txt")
        assert reader.read() == "old"
    assert (root / "a.txt").read_text() == "new"


def test_another_name_of_the_same_file_keeps_the_old_content(root: Path) -> None:
    os.link(root / "a.txt", root.parent / "same.txt")
    put(root, "a.txt")
    assert (root.parent / "same.txt").read_text() == "old"


def test_a_file_that_this_process_may_not_write_is_refused_although_it_could_be_replaced() -> None:
    with unprivileged() as directory:
        directory.chmod(0o777)
        (directory / "a.txt").write_text("old")
        (directory / "a.txt").chmod(0o444)
        drop()
        with pytest.raises(ToolFailure, match="permission denied"):
            put(directory, "a.txt")
        assert everything(directory) == {"a.txt": "old"}


def test_a_directory_that_may_not_be_written_is_a_refusal() -> None:
    with unprivileged() as directory:
        (directory / "a.txt").write_text("old")
        (directory / "a.txt").chmod(0o666)
        directory.chmod(0o555)
        drop()
        for path in ("a.txt", "b.txt", "sub/b.txt"):
            with pytest.raises(ToolFailure, match="permission denied") as caught:
                put(directory, path)
            assert caught.value.effect == "none"
        assert everything(directory) == {"a.txt": "old"}


def test_a_file_that_is_too_large_is_not_looked_at(root: Path) -> None:
    (root / "a.txt").write_text("x" * 1001)
    with pytest.raises(ToolFailure, match="larger than 1,000 bytes"):
        put(root, "a.txt")


def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "out").symlink_to("../secret.txt")
    gc.collect()  # or what an earlier test has left is closed in between
    before = len(os.listdir("/dev/fd"))
    directory = Directory(root)
    for path in ("a.txt", "sub/x/y/b.txt", "out", "sub", "a.txt/b", "\ud800/x"):
        try:
            rewrite(directory, path, lambda _: b"new", bytes_max=100, create=True)
        except ToolFailure:
            continue
    directory.close()
    assert len(os.listdir("/dev/fd")) == before


def test_a_directory_that_is_taken_away_meanwhile_is_a_refusal(root: Path) -> None:
    def meanwhile(present: bytes | None) -> bytes:
        (root / "sub").rmdir()
        return b"new"

    with pytest.raises(ToolFailure) as caught:
        put(root, "sub/b.txt", make=meanwhile)
    assert caught.value.effect == "none"


def test_a_file_beside_that_somebody_has_taken_away_is_no_other_failure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*args: Any, **named: Any) -> None:
        for path in root.glob(".interlock-*"):
            path.unlink()
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(writing.os, "fsync", take)
    with pytest.raises(ToolFailure, match="no space left"):
        put(root, "a.txt")
