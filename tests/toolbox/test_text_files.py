"""Files as text: every encoding comes back as the bytes it was, and a difference is what `diff` says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interlock import ToolFailure
from interlock.toolbox.text_files import as_text, diff_of, lines_of, newline_of, to_bytes, with_newlines

TEXT = "Größe: 5 €\n"


@pytest.mark.parametrize(
    ("data", "encoding", "note"),
    [
        (TEXT.encode(), "utf-8", ""),
        (TEXT.encode("utf-8-sig"), "utf-8", ""),
        (b"\xff\xfe" + TEXT.encode("utf-16-le"), "utf-16-le", "[UTF-16-LE with a byte order mark]"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "utf-16-be", "[UTF-16-BE with a byte order mark]"),
    ],
)
def test_an_encoding_is_read_and_written_back_byte_for_byte(data: bytes, encoding: str, note: str) -> None:
    text = as_text("a.txt", data)
    assert (text.text, text.encoding, text.note) == (TEXT, encoding, note)
    assert to_bytes("a.txt", text.text, text) == data


def test_what_is_not_utf_8_is_read_as_latin_1_and_says_so() -> None:
    data = "Größe für Müller\n".encode("latin-1")
    text = as_text("a.txt", data)
    assert text.text == "Größe für Müller\n"
    assert "Latin-1" in text.note
    assert to_bytes("a.txt", text.text, text) == data
    with pytest.raises(ToolFailure, match=r"LATIN-1, which has no character U\+20AC") as caught:
        to_bytes("a.txt", "5 €", text)
    assert caught.value.effect == "none"


def test_a_few_wrong_bytes_in_utf_8_do_not_make_it_another_encoding() -> None:
    data = "Größe für Müller, 5 €\n".encode() + b"\xff!\n"
    text = as_text("a.txt", data)
    assert text.text.startswith("Größe für Müller, 5 €\n")
    assert text.note == "[1 byte is not UTF-8, and shown as \N{REPLACEMENT CHARACTER}]"
    assert to_bytes("a.txt", text.text, text) == data


@pytest.mark.parametrize("data", [b"\x89PNG\0\0", b"\xff\xfe\0", b"\xfe\xff\xd8\0", "UTF-32".encode("utf-32"), "x".encode("utf-32-be")])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(ToolFailure) as caught:
        as_text("a.bin", data)
    assert caught.value.effect == "none"


@given(st.binary(max_size=60))
def test_whatever_is_read_as_text_can_be_written_back_unchanged(data: bytes) -> None:
    try:
        text = as_text("a", data)
    except ToolFailure:
        return
    assert to_bytes("a", text.text, text) == data


def test_lines_end_where_editors_end_them() -> None:
    assert lines_of("a\nb\r\nc\rd\x0b\x0c\x1c\x85\u2028e") == ["a\n", "b\r\n", "c\r", "d\x0b\x0c\x1c\x85\u2028e"]
    assert lines_of("") == []


def test_the_line_ends_of_a_file_are_told_unless_they_differ() -> None:
    assert [newline_of(text) for text in ("a\nb\n", "a\r\nb", "a\rb", "a", "a\nb\r\n", "a\r\n\r")] == ["\n", "\r\n", "\r", None, None, None]
    assert with_newlines("a\nb\r\nc", "\r\n") == "a\r\nb\r\nc"
    assert with_newlines("a\r\nb", "\n") == "a\nb"
    assert with_newlines("a\nb\r\n", "\r") == "a\rb\r"
    assert with_newlines("a\nb\r\n", None) == "a\nb\r\n"


def test_a_difference_names_its_lines() -> None:
    before = "".join(f"{n}\n" for n in range(1, 21))
    assert diff_of("a.txt", before, before.replace("10\n", "ten\n")) == (
        "--- a.txt\n+++ a.txt\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13"
    )
    assert diff_of("a.txt", before, before) == ""
    assert diff_of("a.txt", "", "x\n").splitlines()[2:] == ["@@ -0,0 +1 @@", "+x"]
    assert "\\ No newline at end of file" in diff_of("a.txt", "x\n", "x")


def test_a_very_large_difference_is_told_in_numbers() -> None:
    said = diff_of("a.txt", "keep\n" + "a\n" * 3000, "keep\n" + "b\n" * 4000)
    assert said.splitlines()[2] == "[3,000 lines from line 2 on became 4,000 lines]"


LINES = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)


@settings(deadline=None, max_examples=60)
@example(list("aabbaba"), list("aababababa"))
@given(LINES, LINES)
def test_a_difference_can_be_applied_by_patch(before: list[str], after: list[str]) -> None:
    patch = shutil.which("patch")
    if patch is None:
        pytest.skip("there is no patch")
    import tempfile

    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    said = diff_of("a.txt", old, new)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.txt"
        file.write_text(old)
        if said:
            subprocess.run([patch, "-s", "-p0", "-E"], input=said + "\n", text=True, cwd=folder, check=True, capture_output=True)
        assert (file.read_text() if file.exists() else "") == new
