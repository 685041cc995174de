"""Searching: the same lines with ripgrep and without it, within bounds, and nothing of what ripgrep says unseen."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from interlock import ToolFailure
from interlock.toolbox import ripgrep, searching
from interlock.toolbox.directory import Directory, Entry
from interlock.toolbox.roots import Roots
from interlock.toolbox.searching import Search, search

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ripgrep is started in /proc/self/fd")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("needle of the secret\n")
    root = tmp_path / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "a.txt").write_text("one needle\nNEEDLE two\nnothing\n")
    (root / "src" / "a.py").write_text("needle = 1\n")
    (root / "src" / "deep" / ".hidden").write_text("a needle in hay\n")
    (root / ".git" / "config").write_text("needle\n")
    (root / ".gitignore").write_text("ignored.txt\n")
    (root / "ignored.txt").write_text("needle\n")
    (root / "wide.txt").write_bytes(b"\xff\xfe" + "a needle, wide\n".encode("utf-16-le"))
    (root / "latin.txt").write_bytes("größer needle\n".encode("latin-1"))
    (root / "image.bin").write_bytes(b"needle\0\0")
    (root / "late.txt").write_bytes(b"x" * 9000 + b"\0 needle\n")
    (root / "huge.txt").write_bytes(b"needle\n" + b"x" * (searching.SEARCHED_FILE_BYTES_MAX))
    (root / "out").symlink_to("../secret.txt")
    (root / "updir").symlink_to("..")
    return root


LARGE = "[1 file of more than 2,097,152 bytes not searched]"


def found(root: Path, text: str, path: str = ".", **options: bool | str) -> list[str]:
    """The lines but for that about the large file, which is another test's."""
    lines = search(Roots(root), Search(text, **options), path).splitlines()  # type: ignore[arg-type]
    return [line for line in lines if line != LARGE]


NEEDLES = [
    "a.txt:1: one needle",
    "ignored.txt:1: needle",
    "late.txt:1: ...",
    "latin.txt:1: größer needle",
    "src/a.py:1: needle = 1",
    "src/deep/.hidden:1: a needle in hay",
    "wide.txt:1: a needle, wide",
]


def without_late(lines: list[str]) -> list[str]:
    """The long line is cut around the match; that is another test's."""
    return [line[:15] if line.startswith("late.txt") else line for line in lines]


def test_every_text_file_is_searched_and_nothing_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "found_ripgrep", lambda roots: None)
    assert without_late(found(root, "needle")) == NEEDLES


def the_real_one() -> str:
    program = ripgrep.found_ripgrep()
    if program is None:
        pytest.skip("there is no ripgrep here")
    return program


def test_ripgrep_changes_nothing_of_the_result(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = the_real_one()
    (root.parent / "rc").write_text("--invert-match\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(root.parent / "rc"))
    with Directory(root).descriptor(".") as fd:
        hinted = ripgrep.candidates(program, fd, "needle", ignore_case=False, skip=searching.SKIPPED, file_bytes_max=10**6)
    assert hinted is not None
    assert {"a.txt", "src/deep/.hidden", "wide.txt", "latin.txt", "late.txt", "ignored.txt"} <= hinted
    assert not hinted & {".git/config", "huge.txt", "out", "updir/secret.txt"}
    cases: list[tuple[str, str, dict[str, bool]]] = [
        *(("needle", path, {}) for path in (".", "src", "src/deep", "a.txt")),
        *((text, ".", {"ignore_case": True}) for text in ("needle", "NeeDLe", "größer")),
        *((text, ".", {}) for text in ("--files", "[", "größer", "no such text", "needle = ", "e n")),
    ]
    with_it = [found(root, text, path, **options) for text, path, options in cases]
    monkeypatch.setattr(searching, "found_ripgrep", lambda roots: None)
    assert with_it == [found(root, text, path, **options) for text, path, options in cases]


def fake(root: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A program in ripgrep's place."""
    folder = root.parent / "bin"
    folder.mkdir()
    program = folder / "rg"
    program.write_text(f"#!{sys.executable} -I\nimport os, sys, time\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def say(*names: str) -> str:
    return f"sys.stdout.buffer.write(b''.join(os.fsencode(name) + b'\\0' for name in {names!r}))"


@linux
def test_what_ripgrep_names_is_looked_at_by_us(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = ("./out", "./updir/secret.txt", "../secret.txt", "/etc/passwd", "./src", "./missing", "./image.bin")
    fake(root, monkeypatch, say(*hostile, "./a.txt"))
    assert found(root, "needle") == ["a.txt:1: one needle"]
    assert found(root, "nothing", "src") == ["[no line contains 'nothing']"]


@linux
@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(2)",
        "os.kill(os.getpid(), 9)",
        "while True: sys.stdout.write('x' * 65536)",
        f"{say('./a.txt')}; sys.stdout.flush(); os._exit(2)",
    ],
)
def test_a_ripgrep_that_fails_is_done_without(root: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    fake(root, monkeypatch, f"sys.stderr.close()\n{body}")
    assert without_late(found(root, "needle")) == NEEDLES


@linux
def test_a_ripgrep_that_hangs_is_killed_and_done_without(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(root, monkeypatch, f"open({str(root.parent / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(20)")
    program = ripgrep.found_ripgrep()
    assert program is not None
    with Directory(root).descriptor(".") as fd:
        assert ripgrep.candidates(program, fd, "x", ignore_case=False, skip=(), file_bytes_max=10, timeout_s=1.0) is None
    with pytest.raises(ProcessLookupError):
        os.kill(int((root.parent / "pid").read_text()), 0)


@linux
def test_ripgrep_gets_no_input_no_configuration_and_no_secret(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = root.parent / "seen"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", "/dev/null")
    fake(
        root,
        monkeypatch,
        "seen = (sorted(os.environ), sys.stdin.read(), os.getcwd(), sys.argv[1:], os.getsid(0) == os.getpid())\n"
        f"open({str(seen)!r}, 'w').write(repr(seen))",
    )
    found(root, "-e", "src")
    names, stdin, folder, arguments, own_session = eval(seen.read_text())
    assert set(names) <= {"PATH", "LC_CTYPE"}
    assert (stdin, folder, own_session) == ("", str(root / "src"), True)
    assert "--no-config" in arguments
    assert arguments[-3:] == ["--regexp", "-e", "./"]


def test_a_program_of_the_working_directory_is_not_ripgrep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rg").write_text("#!/bin/sh\n")
    (tmp_path / "rg").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".::bin")
    assert ripgrep.found_ripgrep() is None


@linux
@pytest.mark.parametrize("how", ["on PATH", "by a link of the directory", "by a link of the program"])
def test_a_program_below_a_root_is_not_ripgrep_wherever_path_says_it_is(root: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A command in a sandbox can write there: an environment below the project is on PATH of whoever has activated it."""
    inside, outside = root / ".venv" / "bin", root.parent / "bin"
    inside.mkdir(parents=True)
    (inside / "rg").write_text(f"#!/bin/sh\ntouch {root.parent}/escaped\n")
    (inside / "rg").chmod(0o755)
    if how == "by a link of the program":
        outside.mkdir()
        (outside / "rg").symlink_to(inside / "rg")
    elif how == "by a link of the directory":
        outside.symlink_to(inside)
    monkeypatch.setenv("PATH", str(inside if how == "on PATH" else outside))
    assert without_late(found(root, "needle")) == NEEDLES
    assert not (root.parent / "escaped").exists()


@pytest.mark.parametrize("with_it", [True, False])
def test_what_is_too_large_to_be_searched_is_said(root: Path, monkeypatch: pytest.MonkeyPatch, with_it: bool) -> None:
    if not with_it:
        monkeypatch.setattr(searching, "found_ripgrep", lambda roots: None)
    assert search(Roots(root), Search("needle", files="*.py"), ".") == "src/a.py:1: needle = 1"
    assert search(Roots(root), Search("no such text"), ".").splitlines() == ["[no line contains 'no such text']", LARGE]
    (root / "src" / "log").write_bytes(b"x" * (searching.SEARCHED_FILE_BYTES_MAX + 1))
    said = search(Roots(root), Search("needle"), ".").splitlines()
    assert said[-1] == "[2 files of more than 2,097,152 bytes not searched]"
    with pytest.raises(ToolFailure, match="larger than 2,097,152 bytes"):
        search(Roots(root), Search("needle"), "src/log")


@pytest.mark.parametrize("linked", [False, True])
def test_a_program_in_a_root_is_not_started(linked: bool, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "venv"
    folder.mkdir()
    (folder / "rg").write_text(f"#!/bin/sh\necho > {root.parent / 'started'}\n")
    (folder / "rg").chmod(0o755)
    if linked:
        (root.parent / "bin").mkdir()
        (root.parent / "bin" / "rg").symlink_to(folder / "rg")
        folder = root.parent / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert without_late(found(root, "needle")) == NEEDLES
    assert not (root.parent / "started").exists()


def test_only_files_of_a_name_are_searched(root: Path) -> None:
    assert found(root, "needle", files="*.py") == ["src/a.py:1: needle = 1"]
    assert found(root, "needle", "src", files="*.py") == ["src/a.py:1: needle = 1"]
    assert found(root, "needle", str(root / "src"), files="deep/*") == ["src/deep/.hidden:1: a needle in hay"]
    assert found(root, "needle", files="src/**/.h*") == ["src/deep/.hidden:1: a needle in hay"]


def test_a_pattern_is_searched_for_in_linear_time(root: Path) -> None:
    pytest.importorskip("re2")
    assert found(root, r"^n\w+ =", is_pattern=True) == ["src/a.py:1: needle = 1"]
    assert found(root, r"NEEDLE \w+$", is_pattern=True, files="*.txt") == ["a.txt:2: NEEDLE two"]
    assert found(root, "gr.ßer", is_pattern=True) == ["latin.txt:1: größer needle"]
    assert found(root, "(?i)GRÖSS|größ", is_pattern=True) == ["latin.txt:1: größer needle"]
    assert found(root, "^nEEdle$", is_pattern=True, ignore_case=True) == ["ignored.txt:1: needle"]
    assert found(root, "zzz+", is_pattern=True) == ["[no line matches 'zzz+']"]
    (root / "evil.txt").write_text("a" * 100_000 + "!\n")
    started = time.process_time()
    assert found(root, "(a+)+$", "evil.txt", is_pattern=True) == ["[no line matches '(a+)+$']"]
    assert time.process_time() - started < 5


@pytest.mark.parametrize("pattern", ["(", "a{9999}", r"(a)\1", "(?=a)", "x" * 1001, "\ud800("])
def test_what_is_no_pattern_is_refused(root: Path, pattern: str) -> None:
    pytest.importorskip("re2")
    with pytest.raises(ToolFailure, match="pattern") as caught:
        found(root, pattern, is_pattern=True)
    assert caught.value.effect == "none"


def test_without_the_library_a_pattern_is_refused_and_a_text_is_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ToolFailure, match=r"interlock\[tools\]"):
        found(root, "a+", is_pattern=True)
    assert found(root, "needle = 1") == ["src/a.py:1: needle = 1"]


def test_a_long_line_is_cut_around_what_was_found(root: Path) -> None:
    [line] = found(root, "needle", "late.txt")
    assert "needle" in line
    assert len(line) < 350
    (root / "long.txt").write_text("needle" + "x" * 5000 + "\n")
    [line] = found(root, "needle", "long.txt")
    assert line.startswith("long.txt:1: needlexxx")
    assert len(line) < 350


def test_a_search_has_an_end_in_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SEARCH_S", -1.0)
    assert found(root, "needle") == ["[stopped early: there is too much to search; name a directory further down]"]


def test_a_search_ends_in_time_in_a_tree_without_a_single_file_to_look_into(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "many" / "empty" / "directories").mkdir(parents=True)
    looked: list[str] = []
    entries = Directory.entries

    def slowly(self: Directory, path: str) -> list[Entry]:
        looked.append(path)
        clock[0] += 20.0
        return entries(self, path)

    clock = [0.0]
    monkeypatch.setattr(Directory, "entries", slowly)
    monkeypatch.setattr(searching, "found_ripgrep", lambda roots: None)
    monkeypatch.setattr(searching.time, "monotonic", lambda: clock[0])
    assert found(root, "needle", "many")[-1].startswith("[stopped early")
    assert looked == ["many", "many/empty"]


def test_only_files_that_are_looked_into_count(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SEARCHED_FILES_MAX", 2)
    monkeypatch.setattr(searching, "found_ripgrep", lambda roots: None)
    assert found(root, "needle", files="*.py") == ["src/a.py:1: needle = 1"]


def test_a_kelvin_sign_is_no_k(root: Path) -> None:
    (root / "k.txt").write_text("\N{KELVIN SIGN}\n")
    assert found(root, "k", "k.txt", ignore_case=True) == ["[no line contains 'k']"]
    (root / "k.txt").write_text("ÄRGER\n")
    assert found(root, "ärger", "k.txt", ignore_case=True) == ["k.txt:1: ÄRGER"]
