"""The text that a model is shown of a command's output."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.sandbox.kept import HeadAndTail
from interlock.toolbox.decoding import output_text


def whole(data: bytes) -> str:
    return output_text(data, b"", len(data))


def kept(data: bytes, head_max: int, tail_max: int, piece: int = 7) -> str:
    output = HeadAndTail(head_max, tail_max)
    for at in range(0, len(data), piece):
        output.add(data[at : at + piece])
    return output_text(*output.parts(), output.total)


@pytest.mark.parametrize("text", ["", "plain\n", "grüße 😀 \u4f60\u597d\n", "tab\there\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_is_text_in_every_unicode_encoding_that_says_which_it_is(text: str, encoding: str) -> None:
    assert whole(text.encode(encoding)) == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_known_by_its_nuls(encoding: str) -> None:
    text = "Microsoft Windows [Version 10]\nC:\\>\n"
    assert whole(text.encode(encoding)) == text


def test_bytes_that_are_no_text_are_shown_as_such_beside_the_rest() -> None:
    assert whole(b"caf\xe9 au lait\n") == "caf\ufffd au lait\n"
    assert whole(b"a line of text\x00 and a bell\x07\n") == "a line of text\ufffd and a bell\ufffd\n"


@pytest.mark.parametrize("data", [bytes(1000), b"\x7fELF" + bytes(range(256)) * 10, b"\xff" * 100])
def test_binary_data_is_named_and_not_shown(data: bytes) -> None:
    assert whole(data).startswith(f"[{len(data):,} bytes of binary output")


def test_colours_titles_and_carriage_returns_are_gone() -> None:
    assert whole(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b(Bplain\r\n10%\r20%\n") == "red plain\n10%\n20%\n"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b]0;a title that never ends\nand all the rest\n", "0;a title that never ends\nand all the rest\n"),
        (b"\x1bP1;2q#0;2;0;0;0picture\x1b\\after\n", "after\n"),
        ("\x9b31mred\x9b0m \x9d0;title\x9cplain\n".encode(), "red plain\n"),
        ("one\x85two\n".encode(), "one\ufffdtwo\n"),
    ],
)
def test_no_sequence_hides_more_than_itself_and_none_is_handed_on(data: bytes, shown: str) -> None:
    assert whole(data) == shown


PIECES = [b"\r", b"\x1b]", b"\x1b[1;1", "\x9d".encode(), "\x9b1".encode(), b"\x1bP x", b"\x1b ", b"\xff\xfe", b"\xe2\x82", b"a\0"]


@pytest.mark.parametrize("piece", PIECES)
def test_the_time_grows_with_the_output_and_no_faster(piece: bytes) -> None:
    def seconds(size: int) -> float:
        data = b"start " + piece * (size // len(piece))
        began = time.thread_time()
        whole(data)
        return time.thread_time() - began

    small = max(min(seconds(100_000) for _ in range(3)), 0.001)
    assert seconds(1_000_000) < small * 40  # a hundred times, if it grew with the square


@settings(max_examples=40)
@given(text=st.text(min_size=1, max_size=200).filter(str.strip), head=st.integers(8, 40), tail=st.integers(8, 40), piece=st.integers(1, 50))
def test_no_character_is_cut_where_bytes_were_dropped(text: str, head: int, tail: int, piece: int) -> None:
    data = ("é😀\u4f60" * 20 + text.encode("utf-8", "ignore").decode() + "é😀\u4f60" * 20).encode()
    shown = kept(data, head, tail, piece)
    first, notice, last = shown.split("\n[... ")[0], "bytes were dropped here", shown.split("...]\n")[1]
    assert notice in shown
    assert data.decode().startswith(first)
    assert data.decode().endswith(last)
    assert len(first.encode()) > head - 4
    assert len(last.encode()) > tail - 4


def test_utf_16_stays_aligned_where_bytes_were_dropped() -> None:
    data = ("\ufeff" + "abcdefghij" * 10).encode("utf-16-le")
    assert kept(data, 20, 11).endswith("...]\nfghij")


@given(chunks=st.lists(st.binary(max_size=30), max_size=30), head=st.integers(0, 50), tail=st.integers(0, 50))
def test_what_is_kept_is_the_head_and_the_tail(chunks: list[bytes], head: int, tail: int) -> None:
    output, data = HeadAndTail(head, tail), b"".join(chunks)
    for chunk in chunks:
        output.add(chunk)
    first, last = output.parts()
    assert output.total == len(data)
    assert first == data[:head]
    assert last == data[head:][max(0, len(data[head:]) - tail) :]
    if tail:
        assert data.endswith(output.newest(5))
