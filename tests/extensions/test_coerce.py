"""CoerceArguments: what a model plainly meant, and nothing else."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.extensions.coerce import CoerceArguments, coerce
from interlock.tools import Tool, as_tool

from .fakes import Context, Next, invocation

INTEGER = {"type": "integer"}
NULL = {"type": "null"}
STRING = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "i": INTEGER,
        "n": {"type": "number"},
        "b": {"type": "boolean"},
        "s": STRING,
        "nothing": NULL,
        "ints": {"type": "array", "items": INTEGER},
        "strings": {"type": "array", "items": STRING},
        "any_list": {"type": "array"},
        "o": {"type": "object", "properties": {"x": INTEGER}, "additionalProperties": {"type": "boolean"}},
        "objects": {"type": "array", "items": {"type": "object", "properties": {"x": INTEGER}, "required": ["x"]}},
        "pair": {"type": "array", "prefixItems": [INTEGER, {"type": "boolean"}]},
        "maybe_int": {"anyOf": [INTEGER, NULL]},
        "maybe_string": {"anyOf": [STRING, NULL]},
        "maybe_strings": {"anyOf": [{"type": "array", "items": STRING}, NULL]},
        "int_or_string": {"anyOf": [INTEGER, STRING]},
        "number_or_bool": {"oneOf": [{"type": "number"}, {"type": "boolean"}]},
        "listed": {"type": ["integer", "null"]},
        "nullable": {"type": "integer", "nullable": True},
        "all": {"allOf": [INTEGER, {"minimum": 1}]},
        "enum": {"enum": [1, 2, True, "x", None]},
        "words": {"type": "string", "enum": ["1", "A"]},
        "const": {"const": 7},
        "tree": {"$ref": "#/$defs/tree"},
        "lost": {"$ref": "#/$defs/nowhere"},
        "loop": {"$ref": "#/$defs/loop"},
    },
    "$defs": {
        "tree": {"type": "object", "properties": {"v": INTEGER, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
        "loop": {"$ref": "#/$defs/loop"},
    },
}

DONE = [
    ("i", "5", 5),
    ("i", " -5 ", -5),
    ("i", "+5", 5),
    ("i", "5.0", 5),
    ("i", 5.0, 5),
    ("i", "007", 7),
    ("n", "5", 5),
    ("n", "1.5", 1.5),
    ("n", "-.5e3", -500.0),
    ("b", "true", True),
    ("b", " False ", False),
    ("nothing", "null", None),
    ("ints", "5", [5]),
    ("ints", 5, [5]),
    ("ints", ["5", 6], [5, 6]),
    ("ints", '["5", 6]', [5, 6]),
    ("strings", "one", ["one"]),
    ("strings", '["one"]', ["one"]),
    ("any_list", 5, [5]),
    ("o", '{"x": "5", "y": "true"}', {"x": 5, "y": True}),
    ("o", {"x": 5.0}, {"x": 5}),
    ("objects", {"x": "5"}, [{"x": 5}]),
    ("objects", '[{"x": "5"}]', [{"x": 5}]),
    ("pair", ["1", "true", "2"], [1, True, "2"]),
    ("maybe_int", "5", 5),
    ("maybe_int", "null", None),
    ("maybe_int", "None", None),
    ("maybe_strings", "null", None),
    ("maybe_strings", "a", ["a"]),
    ("number_or_bool", "1.5", 1.5),
    ("number_or_bool", "true", True),
    ("listed", "5", 5),
    ("listed", "null", None),
    ("nullable", "5", 5),
    ("nullable", "null", None),
    ("all", "5", 5),
    ("enum", "2", 2),
    ("enum", "true", True),
    ("const", "7", 7),
    ("const", 7.0, 7),
    ("tree", {"v": "1", "kids": '[{"v": "2", "kids": []}]'}, {"v": 1, "kids": [{"v": 2, "kids": []}]}),
]


@pytest.mark.parametrize(("name", "value", "expected"), DONE, ids=repr)
def test_what_is_meant_is_coerced(name: str, value: Any, expected: Any) -> None:
    before = copy.deepcopy(value)
    got = coerce({name: value}, SCHEMA)[name]
    assert got == expected
    assert type(got) is type(expected)
    assert value == before


LEFT = [
    *(
        ("i", v)
        for v in (5, True, 5.5, "5.5", "five", "", "5e3", "1_000", "٥", "0x5", "9" * 65, 1e300, 2.0**60, math.nan, math.inf, None, [5])
    ),
    *(("n", v) for v in (5, 1.5, "NaN", "inf", "-Infinity", "1e999", "1,5", "", True, math.nan)),
    *(("b", v) for v in (True, 1, 0, "yes", "1", "", None)),
    *(("s", v) for v in ("5", "", 5, None, True, ["a"], '{"x": 1}')),
    *(("ints", v) for v in ([1], [], "[1,", "[NaN]", '{"x": 1}', "x", None, {"x": 1})),
    *(("strings", v) for v in (5, "[1,", None)),
    *(("o", v) for v in ({"x": 1}, "{", "[1]", "x", 5, '{"x": NaN}', None)),
    *(("maybe_int", v) for v in (None, 5, "five", 5.5)),
    *(("maybe_string", v) for v in (None, "null", "None", 5)),
    *(("int_or_string", v) for v in ("5", 5, "null")),
    *(("enum", v) for v in (1, True, "x", "3", None, 3)),
    *(("words", v) for v in ("1", "A", "a", 1)),
    *(("nothing", v) for v in (None, "x", 0)),
    *(("lost", v) for v in ("5", {"x": "5"})),
    *(("loop", v) for v in ("5", None)),
    ("not_in_the_schema", "5"),
]


@pytest.mark.parametrize(("name", "value"), LEFT, ids=lambda value: repr(value)[:30])
def test_what_fits_or_is_not_clear_is_left_as_it_is(name: str, value: Any) -> None:
    arguments = {name: value}
    assert coerce(arguments, SCHEMA) is arguments


def test_later_layers_see_the_coerced_values_and_the_original_stays() -> None:
    def move(x: int, tags: list[str], far: bool = False) -> None: ...

    made = as_tool(move)
    raw = {"x": "5", "tags": "a", "far": "true", "extra": 1}
    call, call_next = invocation(made, raw), Next()
    assert asyncio.run(CoerceArguments().on_tool_call(Context(), call, call_next)) == "ran"
    assert call.arguments == {"x": 5, "tags": ["a"], "far": True, "extra": 1}
    assert dict(call.original_arguments) == {"x": "5", "tags": "a", "far": "true", "extra": 1}


def test_a_bug_in_it_gates_the_call() -> None:
    made = Tool.from_schema(name="x", parameters={"type": "object", "properties": {"a": {"type": "object", "properties": 5}}})
    call_next = Next()
    with pytest.raises(AttributeError):
        asyncio.run(CoerceArguments().on_tool_call(Context(), invocation(made, {"a": {"b": 1}}), call_next))
    assert call_next.calls == 0


def test_a_schema_that_explodes_ends_within_its_bound() -> None:
    branch = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"anyOf": [branch] * 5}}}
    value: Any = "5"
    for _ in range(40):
        value = {"a": value}
    assert coerce(value, schema) is value
    circular: dict[str, Any] = {}
    circular["a"] = circular
    assert coerce(circular, schema) is circular
    endless = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}}}
    assert coerce({"a": "5"}, endless) == {"a": "5"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["5", "null", "true", "[1]", '{"x":1}']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SCHEMA["properties"], "x", "v", "kids"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), JSON, max_size=6))
def test_it_never_raises_never_deletes_and_is_done_after_one_pass(arguments: dict[str, Any]) -> None:
    before = repr(arguments)
    got = coerce(arguments, SCHEMA)
    assert list(got) == list(arguments)
    assert repr(arguments) == before
    assert repr(coerce(got, SCHEMA)) == repr(got)
