"""Names by pattern."""

from __future__ import annotations

import time

import pytest

from interlock import ToolFailure
from interlock.toolbox.patterns import name_matcher


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py", ".hidden/a.py"], ["a.pyc", "a.py/b"]),
        ("./*.py", ["a.py"], ["x/a.py"]),
        ("src/*.py", ["src/a.py"], ["src/x/a.py", "a.py", "lib/src/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/a.py", "src/x/y/a.py"], ["a.py", "src/a.pyc"]),
        ("**/test_?.py", ["test_1.py", "a/test_1.py"], ["test_12.py"]),
        ("src/**", ["src/a", "src/a/b"], ["lib/a"]),
        ("**", ["a", "a/b/c"], []),
        ("**/**/a", ["a", "x/a", "x/y/a"], ["b"]),
        ("[ab].txt", ["a.txt", "b.txt"], ["c.txt", "A.txt"]),
        ("[!a].txt", ["b.txt"], ["a.txt"]),
        ("*.{js,ts}", ["a.js", "a.ts"], ["a.jsx", "a.{js,ts}"]),
        ("{a,b/{c,d}}.x", ["a.x", "b/c.x", "b/d.x"], ["c.x"]),
        ("{a}", ["{a}"], ["a"]),
        ("a", ["a", "b/a"], ["b", "a/b"]),
        ("Größe*", ["Größe.txt"], ["Groesse.txt"]),
    ],
)
def test_a_pattern_means_what_it_does_elsewhere(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = name_matcher(pattern)
    assert [path for path in yes if not matches(path)] == []
    assert [path for path in no if matches(path)] == []


@pytest.mark.parametrize("pattern", ["", "  ", "/etc/*", "../*", "a/../b", "x" * 501, "{a,b}" * 10])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        name_matcher(pattern)
    assert caught.value.effect == "none"


def test_no_pattern_takes_for_ever() -> None:
    started = time.process_time()
    assert not name_matcher("*a" * 100 + "b")("a" * 250)
    assert not name_matcher("**/a/" * 40 + "b")("a/" * 500 + "c")
    assert time.process_time() - started < 3
