"""Several directories under one name space, and a path in whichever spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock import ToolFailure, UsageError
from interlock.toolbox.roots import Roots


@pytest.fixture
def world(tmp_path: Path) -> Path:
    for name in ("app", "app-secret", "docs"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "a.txt").write_text(f"{name}\n")
    return tmp_path


def read(roots: Roots, path: str) -> tuple[str, bytes]:
    place = roots.at(path)
    return place.shown, place.directory.read(place.path, bytes_max=100)


def test_a_single_root_needs_no_name(world: Path) -> None:
    roots = Roots(world / "app")
    assert roots.names == ()
    for path in ("sub/a.txt", "./sub//a.txt", f"{world}/app/sub/a.txt", f"{world}/app/./sub/a.txt"):
        assert read(roots, path) == ("sub/a.txt", b"app\n")
    assert [entry.path for entry in roots.walk(".", skip=frozenset())] == ["sub", "sub/a.txt"]
    assert [entry.path for entry in roots.walk(f"{world}/app/sub", skip=frozenset())] == ["sub/a.txt"]


def test_several_roots_are_the_first_part_of_a_path(world: Path) -> None:
    for roots in (Roots([world / "app", world / "docs"]), Roots({"app": world / "app", "docs": str(world / "docs")})):
        assert roots.names == ("app", "docs")
        assert read(roots, "docs/sub/a.txt") == ("docs/sub/a.txt", b"docs\n")
        assert read(roots, f"{world}/app/sub/a.txt") == ("app/sub/a.txt", b"app\n")
        assert [entry.path for entry in roots.entries(".")] == ["app", "docs"]
        walked = [entry.path for entry in roots.walk("", skip=frozenset())]
        assert walked == ["app", "app/sub", "app/sub/a.txt", "docs", "docs/sub", "docs/sub/a.txt"]
        assert [entry.path for entry in roots.entries("docs/sub")] == ["docs/sub/a.txt"]
        assert [roots.above(path) for path in (".", "docs", f"{world}/docs/sub")] == ["", "docs/", "docs/sub/"]


@pytest.mark.parametrize(
    "path",
    [
        *("{world}/app-secret/sub/a.txt", "{world}/ap", "{world}/app/../app-secret/sub/a.txt", "app-secret/sub/a.txt"),
        *("app/../docs/sub/a.txt", "../app/sub/a.txt", "/", "{world}", "sub/a.txt", "//{world}/app-secret"),
        *("app\0/sub", "docs/sub/a.txt\0"),
    ],
)
def test_what_lies_beside_a_root_is_refused(world: Path, path: str) -> None:
    roots = Roots([world / "app", world / "docs"])
    with pytest.raises(ToolFailure) as caught:
        read(roots, path.format(world=world))
    assert caught.value.effect == "none"
    assert len(str(caught.value)) < 500


def test_a_root_that_is_itself_a_link_works_by_both_of_its_names(world: Path) -> None:
    (world / "link").symlink_to("app")
    roots = Roots(world / "link")
    for path in ("sub/a.txt", f"{world}/link/sub/a.txt", f"{world}/app/sub/a.txt"):
        assert read(roots, path) == ("sub/a.txt", b"app\n")


def test_a_root_inside_another_one_is_the_nearer(world: Path) -> None:
    roots = Roots({"all": world, "app": world / "app"})
    assert read(roots, f"{world}/app/sub/a.txt")[0] == "app/sub/a.txt"
    assert read(roots, f"{world}/docs/sub/a.txt")[0] == "all/docs/sub/a.txt"


def test_the_roots_must_be_directories_with_different_names(world: Path) -> None:
    (world / "other" / "app").mkdir(parents=True)
    with pytest.raises(UsageError, match="same name"):
        Roots([world / "app", world / "other" / "app"])
    for wrong in ([], {}, {"": world}, {"a/b": world}, {"..": world}, {"a\n": world}, world / "missing", [world / "missing"]):
        with pytest.raises(UsageError):
            Roots(wrong)
