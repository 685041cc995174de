"""An exact replacement: once, or every one, or nothing and a reason that helps."""

from __future__ import annotations

import time

import pytest

from interlock import ToolFailure
from interlock.toolbox.editing import Edit, edited


def refusal(text: str, edit: Edit) -> str:
    with pytest.raises(ToolFailure) as caught:
        edited("a.py", text, edit)
    assert caught.value.effect == "none"
    return str(caught.value)


def test_what_occurs_once_is_replaced() -> None:
    assert edited("a.py", "one two three", Edit("two", "2")) == "one 2 three"
    assert edited("a.py", "one two", Edit(" two", "")) == "one"


def test_what_occurs_often_is_replaced_only_if_every_one_is_meant() -> None:
    said = refusal("x = 1\ny = x\nz = x\n", Edit("x", "w"))
    assert "occurs 3 times" in said
    assert "on lines 1, 2, 3" in said
    assert edited("a.py", "x = 1\ny = x\n", Edit("x", "w", every=True)) == "w = 1\ny = w\n"
    assert "more than 10 times" in refusal("x\n" * 50, Edit("x", "y"))


def test_an_occurrence_that_overlaps_is_another_one() -> None:
    assert "occurs 2 times" in refusal("aaa", Edit("aa", "b"))


def test_an_empty_text_and_the_same_text_are_refused() -> None:
    assert "old is empty" in refusal("x", Edit("", "y"))
    assert "are the same" in refusal("x", Edit("x", "x"))


def test_other_white_space_is_shown_as_it_stands_there() -> None:
    said = refusal("def f():\n\tif x:\n\t\treturn 1\n", Edit("if x:\n    return 1", "pass"))
    assert "other white space: line 2 on:\n\tif x:\n\t\treturn 1" in said


def test_what_begins_alike_is_shown_as_it_goes_on() -> None:
    said = refusal("a\ndef f():\n    return 2\n", Edit("def f():\n    return 1", "pass"))
    assert "something else below it: line 2 on:\ndef f():\n    return 2" in said
    assert "Not even its first line" in refusal("a\n", Edit("b\n", "c"))
    assert "copy the text exactly" in refusal("a\n", Edit("\n\n\n", "c"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\r\nc\r\n", "1\r\n2\r\nc\r\n"),
        ("a\rb\rc\r", "1\r2\rc\r"),
        ("a\nb\nc\n", "1\n2\nc\n"),
        ("x\na\r\nb\r\n", "x\n1\r\n2\r\n"),  # mixed: as the text that it stands for
        ("x\r\na\nb\n", "x\r\n1\n2\n"),
    ],
)
def test_line_ends_follow_the_file(text: str, expected: str) -> None:
    assert edited("a.txt", text, Edit("a\nb", "1\n2")) == expected


def test_an_edit_with_the_other_line_ends_is_understood() -> None:
    assert edited("a.txt", "a\nb\n", Edit("a\r\nb", "c\r\nd")) == "c\nd\n"


def test_lines_that_are_all_alike_do_not_take_for_ever_either() -> None:
    started = time.process_time()
    with pytest.raises(ToolFailure, match="Its first line stands there"):
        edited("a.txt", "a\n" * 200_000, Edit("a \n" * 100_000 + "b\n", "c"))
    assert time.process_time() - started < 10


def test_a_text_of_one_letter_does_not_take_for_ever() -> None:
    started = time.process_time()
    refusal("a" * 2_000_000, Edit("a" * 100_000, "b"))
    refusal("a\n" * 150_000, Edit("a\n" * 1000 + "b", "b"))
    assert time.process_time() - started < 5
