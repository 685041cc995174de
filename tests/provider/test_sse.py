"""Server-sent events are read the same however the network cuts them."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import ProviderError
from interlock.providers._sse import SSEReader


def read(*blocks: bytes) -> list[bytes]:
    reader = SSEReader()
    events: list[bytes] = []
    for block in blocks:
        events += reader.feed(block)
    return events + reader.end()


STREAMS = {
    "plain": (b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n', [b'{"a":1}', b'{"b":2}', b"[DONE]"]),
    "crlf": (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
    "cr": (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
    "mixed ends": (b"data: one\r\n\ndata: two\r\r\ndata: three\n\n", [b"one", b"two", b"three"]),
    "no space": (b"data:one\n\ndata:  two\n\n", [b"one", b" two"]),
    "comments": (b": hello\n\n: OPENROUTER PROCESSING\n\ndata: one\n\n:\ndata: two\n: three\n\n", [b"one", b"two"]),
    "other fields": (b"event: error\nid: 7\nretry: 10\ndata: one\n\nevent: ping\n\ndatum: x\n\n", [b"one"]),
    "named": (b'event: a\ndata: {"a":1}\n\nevent: b\ndata: {"b":2}\n\nevent: c\ndata: 3', [b'{"a":1}', b'{"b":2}', b"3"]),
    "named, with nothing and with several lines": (b"event: a\n\nevent: b\ndata: 1\ndata: 2\n\nevent: c\ndata: 3\n\n", [b"1\n2", b"3"]),
    "named, then not": (b"event: a\ndata: 1\n\ndata: 2\n\nevent: b\nid: 3\ndata: 3\n\n", [b"1", b"2", b"3"]),
    "named, without data at its end": (b"event: a\ndata: 1\n\nevent: b\ndata:\n\nevent: c\ndata: \n\n", [b"1", b"", b""]),
    "several lines": (b"data: one\ndata: two\ndata\n\ndata: three\n\n", [b"one\ntwo\n", b"three"]),
    "byte order mark": (b"\xef\xbb\xbfdata: one\n\ndata: two\n\n", [b"one", b"two"]),
    "no last blank line": (b"data: one\n\ndata: two", [b"one", b"two"]),
    "no last blank line, ended line": (b"data: one\n\ndata: two\n", [b"one", b"two"]),
    "leading blank lines": (b"\n\n\ndata: one\n\n\n\ndata: two\n\n", [b"one", b"two"]),
    "text of several bytes": ("data: añ😀\n\n".encode(), ["añ😀".encode()]),
    "nothing": (b"", []),
    "only comments": (b": a\n\n: b\n\n", []),
    "no events at all": (b"<html>\n\n</html>\n", []),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_read_the_same_whole_at_every_split_and_byte_by_byte(name: str) -> None:
    stream, events = STREAMS[name]
    assert read(stream) == events
    assert read(*(bytes([byte]) for byte in stream)) == events
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == events, cut


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_characters="\r\n\ufeff"), min_size=1), st.sampled_from(["\n", "\r\n", "\r"])), max_size=8
    ),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_any_events_at_any_splits_come_back(events: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(f"data: {text}{end}{end}" for text, end in events).encode("utf-8", "replace")
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    blocks = [stream[a:b] for a, b in pairwise(bounds)]
    assert read(*blocks) == [text.encode("utf-8", "replace") for text, _ in events]


def test_an_event_is_given_out_as_soon_as_its_blank_line_is_there() -> None:
    reader = SSEReader()
    assert reader.feed(b"data: one\r\n\r") == [b"one"]
    assert reader.feed(b"\ndata: two\n") == []
    assert reader.feed(b"\n") == [b"two"]
    assert reader.end() == []


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 600, b"data: " + b"x" * 90 + b"\n"])
def test_an_event_that_is_too_large_is_an_error_and_not_a_full_memory(piece: bytes) -> None:
    reader = SSEReader(event_bytes_max=1_000)
    with pytest.raises(ProviderError, match="larger than 1,000 bytes") as caught:
        for _ in range(20):
            reader.feed(piece)
    assert not caught.value.retryable


def test_many_events_may_be_larger_together_than_one_may_be() -> None:
    reader = SSEReader(event_bytes_max=100)
    assert sum(len(reader.feed(b"data: " + b"x" * 50 + b"\n\n")) for _ in range(100)) == 100


@pytest.mark.parametrize("line", [b"x", b"data: x\n"])
def test_tiny_blocks_are_read_in_linear_time(line: bytes) -> None:
    def seconds(count: int) -> float:
        reader = SSEReader()
        start = time.process_time()
        for _ in range(count):
            reader.feed(line)
        reader.end()
        return time.process_time() - start

    seconds(100)
    small, large = min(seconds(5_000) for _ in range(3)), min(seconds(50_000) for _ in range(3))
    assert large < 40 * small


@given(
    st.lists(st.sampled_from(["event: a", "event: b", "data: 1", "data: 22", "data:", "data: ", "id: 2", ": c", "", ""]), max_size=24),
    st.lists(st.integers(0, 200), max_size=4),
)
def test_whatever_the_lines_are_whole_blocks_are_read_as_single_bytes_are(lines: list[str], cuts: list[int]) -> None:
    stream = "\n".join(lines).encode() + b"\n\n"
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert read(*(stream[a:b] for a, b in pairwise(places))) == read(*(bytes([byte]) for byte in stream))
