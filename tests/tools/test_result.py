"""What the transcript keeps of a raw result, and how much of it."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import subprocess
import sys
import types
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, field_serializer

from interlock.messages import FilePart, ImagePart, TextPart, text_of
from interlock.tools.result import IMAGE_BYTES_MAX, ResultNotSerializable, boundary, cap, to_content


class Colour(str, enum.Enum):  # noqa: UP042 the older form is what users have
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any = None


class Model(BaseModel):
    when: datetime.date
    inner: list[int] = []


class Stubborn(BaseModel):
    x: int = 1

    @field_serializer("x")
    def refuse(self, value: int) -> int:
        raise RuntimeError("no")


class Wire(msgspec.Struct, tag="wire", rename="camel"):
    some_value: int
    gone: int | msgspec.UnsetType = msgspec.UNSET


DAY = datetime.date(2026, 1, 31)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain \x00 text", "plain \x00 text"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        (math.nan, "null"),
        ([1, math.inf, {"a": -math.inf}], '[1,null,{"a":null}]'),
        ([], "[]"),
        ({}, "{}"),
        ((1, "é"), '[1,"é"]'),
        ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", 1}), '[1,"b"]'),
        ({1: "a", None: "b", False: "c", 1.5: "d"}, '{"1":"a","null":"b","false":"c","1.5":"d"}'),
        ({Colour.RED: 1, DAY: 2, uuid.UUID(int=1): 3}, '{"red":1,"2026-01-31":2,"00000000-0000-0000-0000-000000000001":3}'),
        ({math.nan: 1}, '{"null":1}'),
        (Colour.RED, "red"),
        (Level.LOW, "1"),
        ([Colour.RED, Level.LOW], '["red",1]'),
        (Pair(1, Pair({"k": DAY})), '{"left":1,"right":{"left":{"k":"2026-01-31"},"right":null}}'),
        (Model(when=DAY, inner=[1]), '{"when":"2026-01-31","inner":[1]}'),
        ([Model(when=DAY)], '[{"when":"2026-01-31","inner":[]}]'),
        (RootModel[list[int]]([1]), "[1]"),
        (Wire(1), '{"type":"wire","someValue":1}'),
        (DAY, "2026-01-31"),
        (datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC), "2026-01-31T12:00:00+00:00"),
        (datetime.time(12, 30), "12:30:00"),
        (datetime.timedelta(seconds=90), "PT90S"),
        (decimal.Decimal("1.50"), "1.50"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (b"text \xc3\xa9", "text é"),
        (b"\xff\x00", "(2 bytes of binary data, base64) /wA="),
        ([bytearray(b"x")], '["x"]'),
        (range(3), "[0,1,2]"),
        (collections.deque([1]), "[1]"),
        (types.MappingProxyType({"a": 1}), '{"a":1}'),
        (types.SimpleNamespace(a=1), '{"a":1}'),
        (10**30, "1" + "0" * 30),
        (TextPart("a"), (TextPart("a"),)),
        ([TextPart("a\ud800"), "b", ImagePart(url="u")], (TextPart("a\ufffd"), TextPart("b"), ImagePart(url="u"))),
        ("\ud83d\ude00 \ud835", "😀 \ufffd"),
        ({"\ud835": ["\ud835"]}, '{"\ufffd":["\ufffd"]}'),
    ],
    ids=lambda value: "a frozenset" if isinstance(value, frozenset) else ascii(value)[:40],  # whose order is chance
)
def test_a_result_becomes_text_or_parts(value: Any, expected: Any) -> None:
    assert to_content(value) == expected


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "result: type object"),
        ({"a": [1, {"b": object()}]}, "result.a[1].b: type object"),
        (Pair(1, [lambda: 1]), "result.right[0]: type function"),
        ((n for n in ()), "result: type generator"),
        ([Pair], "result[0]: type type"),
        ({"a": {(1, 2): 3}}, "result.a: a key is a tuple"),
        ([TextPart("a"), 3], "result[1]: a int among message parts"),
        (Stubborn(), "Stubborn cannot be dumped: Pydantic"),
        (1j, "result: type complex"),
        (circular(), "refers to itself"),
    ],
    ids=lambda value: ascii(value)[:30] if isinstance(value, str) else "",
)
def test_what_has_no_text_is_refused_by_place_and_type(value: Any, words: str) -> None:
    with pytest.raises(ResultNotSerializable) as caught:
        to_content(value)
    assert words in str(caught.value)
    assert "0x" not in str(caught.value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters())
    | st.binary(max_size=5)
    | st.dates()
    | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet=st.characters(), max_size=3) | st.integers(), inner, max_size=3)
        | st.builds(Pair, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_a_result_can_always_be_stored(value: Any) -> None:
    content = to_content(value)
    assert isinstance(content, str)
    content.encode()
    if isinstance(value, (list, dict)):
        json.loads(content)


def test_pydantic_is_not_loaded_for_a_result() -> None:
    code = "import sys; from interlock.tools.result import to_content; print(to_content({'a': {1}})); assert 'pydantic' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == '{"a":[1]}\n'


# --- the cap


def capped(text: str, limit: int) -> tuple[str, bytes | None]:
    content, full = cap(text, limit_bytes=limit, call_id="call_1")
    assert isinstance(content, str)
    return content, full


def test_what_fits_is_left_alone() -> None:
    text = "é" * 300
    assert capped(text, 600) == (text, None)
    assert capped("short", 10_000) == ("short", None)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="aé€😀\n", min_size=200, max_size=900), st.integers(512, 700))
def test_a_capped_text_keeps_both_ends_within_the_limit(unit: str, limit: int) -> None:
    text = unit + "x" * 700
    content, full = capped(text, limit)
    assert full == text.encode()
    assert len(content.encode()) <= limit
    head, rest = content.split("\n[... ", 1)
    tail = rest.split(" ...]\n", 1)[1]
    assert text.startswith(head)
    assert text.endswith(tail)
    left_out = len(full) - len(head.encode()) - len(tail.encode())
    assert f"{left_out} of {len(full)} bytes" in rest
    assert f'read_result(call_id="call_1", offset={len(head.encode())}, ' in rest


def test_a_two_megabyte_result_is_capped_and_kept_whole() -> None:
    text = "😀" * 500_000
    content, full = capped(text, 64 * 1024)
    assert len(content.encode()) <= 64 * 1024
    assert full is not None
    assert len(full) == 2_000_000


def test_a_call_id_of_any_length_does_not_break_the_cap() -> None:
    content, _ = cap("a" * 2000, limit_bytes=512, call_id="c" * 1000)
    assert isinstance(content, str)
    assert len(content) <= 512
    assert "are left out here" in content


def test_the_text_of_parts_is_capped_as_one_and_images_stay() -> None:
    image = ImagePart(data="A" * 100_000, media_type="image/png")
    content, full = cap((image, TextPart("a" * 400), image, TextPart("b" * 400)), limit_bytes=512, call_id="c")
    assert full == b"a" * 400 + b"b" * 400
    assert content[0] == content[2] == image
    assert isinstance(content[1], TextPart)
    assert len(content[1].text.encode()) <= 512
    assert len(content) == 3


def test_an_image_that_is_too_large_is_replaced_by_a_note() -> None:
    content, full = cap((ImagePart(data="A" * (IMAGE_BYTES_MAX + 1), media_type="image/png"),), limit_bytes=512, call_id="c")
    assert full is None
    assert isinstance(content[0], TextPart)
    assert "image/png" in content[0].text


def test_a_boundary_is_never_inside_a_character() -> None:
    data = "a€b".encode()
    assert [boundary(data, at) for at in range(-1, 8)] == [0, 0, 1, 1, 1, 4, 5, 5, 5]
    assert [boundary(data, at, forward=True) for at in range(6)] == [0, 1, 4, 4, 4, 5]


def test_a_file_is_a_part_like_an_image_and_a_large_one_is_named_and_not_kept() -> None:
    small = FilePart(data="JVBERi0=", media_type="application/pdf", name="a\ud800.pdf")
    content = to_content(["see", small])
    assert content == (TextPart("see"), FilePart(data="JVBERi0=", media_type="application/pdf", name="a\ufffd.pdf"))
    shown, full = cap(to_content([FilePart(data="A" * 10_000_000, media_type="application/pdf")]), limit_bytes=1024, call_id="c")
    assert full is None
    assert "A file (application/pdf, 10000000 bytes of base64) was too large" in text_of(shown)
