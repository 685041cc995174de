"""Tools made of functions: what a model is shown, what is accepted, what is refused and how."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from interlock.errors import Fatal, UsageError
from interlock.records import Traits
from interlock.tools import InvalidArguments, RunContext, Tool, as_tool, tool

if TYPE_CHECKING:
    import interlock.tools as hidden

CONTEXT: Any = object()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


class Options(TypedDict):
    deep: bool


class Node(BaseModel):
    title: str
    properties: dict[str, int] = {}
    type: Literal["leaf", "branch"] = "leaf"
    children: list[Node] = Field(default=[], title="Kids")


def call(made: Tool, /, **arguments: Any) -> Any:
    return made.invoke(made.bind(arguments), CONTEXT)


def refusal(made: Tool, arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        made.bind(arguments)
    assert caught.value.effect == "none"
    return str(caught.value)


def add(left: int, right: int = 3) -> int:
    """Add two numbers.

    The sum is exact.

    Args:
        left: The first one.
        right: The second one.

    Returns:
        Their sum.
    """
    return left + right


# --- what a model is shown


def test_the_schema_and_the_texts_come_from_signature_and_docstring() -> None:
    made = as_tool(add)
    assert made.name == "add"
    assert made.description == "Add two numbers.\n\nThe sum is exact.\n\nReturns: Their sum."
    assert made.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["left"],
        "properties": {
            "left": {"type": "integer", "description": "The first one."},
            "right": {"type": "integer", "description": "The second one.", "default": 3},
        },
    }
    assert made.spec is made.spec
    assert made.spec.parameters is made.parameters


NUMPY = """Do it.

Parameters
----------
first, second : int
    A number.
"""
REST = """Do it.

:param first: A number.
:param second: A number.
"""


@pytest.mark.parametrize("docstring", [NUMPY, REST, NUMPY.replace("\n", "\n    ")])
def test_numpy_and_rest_docstrings_describe_the_arguments(docstring: str) -> None:
    def do(first: int, second: int) -> None: ...

    do.__doc__ = docstring
    made = as_tool(do)
    assert made.description == "Do it."
    assert {p["description"] for p in made.parameters["properties"].values()} == {"A number."}


@pytest.mark.parametrize(
    "docstring", ["", "   ", "Args:\n", "Args:\n  :::\n ---\n", ":param", "Parameters\n---\n\x00", None, "One\n\nReturns\n"]
)
def test_a_docstring_that_cannot_be_parsed_never_fails(docstring: str | None) -> None:
    def do(first: int) -> None: ...

    do.__doc__ = docstring
    assert as_tool(do).bind({"first": 1}).kwargs == {"first": 1}


def test_a_field_wins_over_the_docstring_and_may_be_the_default() -> None:
    def find(
        a: Annotated[int, Field(gt=0, description="from the field")] = 1,
        b: int = Field(5, description="from the default"),
        c: list[int] = Field(default_factory=list),  # noqa: B008 the pattern under test
        d: Annotated[str, Field(alias="from")] = "x",
    ) -> Any:
        """Find.

        Args:
            a: from the docstring
            b: from the docstring
        """
        return a, b, c, d

    made = as_tool(find)
    properties = made.parameters["properties"]
    assert properties["a"] == {"type": "integer", "exclusiveMinimum": 0, "default": 1, "description": "from the field"}
    assert properties["b"]["description"] == "from the default"
    assert "required" not in made.parameters
    assert call(made) == (1, 5, [], "x")
    assert call(made, **{"from": "y"})[3] == "y"
    assert "a: should be greater than 0, got -1" in refusal(made, {"a": -1})


def is_valid_schema(schema: Any, root: dict[str, Any]) -> bool:
    """The part of the JSON Schema meta-schema that a wrong tidying would break."""
    if isinstance(schema, bool):
        return True
    assert isinstance(schema, dict), schema
    assert "title" not in schema or isinstance(schema["title"], dict)
    if "$ref" in schema:
        assert schema["$ref"].split("/")[-1] in root["$defs"]
    kinds = {"string", "integer", "number", "boolean", "null", "array", "object"}
    assert schema.get("type", "object") in kinds
    properties = schema.get("properties", {})
    assert set(schema.get("required", ())) <= set(properties)
    inner = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return all(is_valid_schema(one, root) for one in inner)


def names(
    schema: str,
    copy: int,
    json: dict[str, Any],
    model_config: str,
    class_: int,
    self: int,
    _x: int,
    properties: list[Any],
    title: str,
    type: str,
) -> Any:
    return locals()


def recursive(node: Node, other: Node | None = None) -> Any: ...
def positional(a: int, b: int = 1, c: int = 2, /, *, k: int, d: list[int] = []) -> Any:  # noqa: B006
    return a, b, c, k, d


def kinds(e: Colour, p: Point, t: Options, d: datetime.date, at: datetime.datetime, raw: bytes, price: decimal.Decimal) -> Any:
    return e, p, t, d, at, raw, price


def unions(
    a: int | str | None, b: list[int | Point], c: tuple[int, str], d: Literal["x", 3], e: dict[str, list[Node]] | None = None
) -> Any: ...
def defaults(
    a: object = object(), b: float = math.nan, c: frozenset[int] = frozenset({1}), d: Any = add, e: str = "\ud835", f: Colour = Colour.RED
) -> Any: ...
def bare(x, y=None):
    return x, y


def nothing() -> str:
    return "done"


def documented(node: Node = Node(title="root"), when: datetime.date = datetime.date(2026, 1, 31)) -> Any:  # noqa: B008
    """Do.

    Args:
        node: a reference with words beside it
        when: a day
    """


def deep(matrix: list[list[dict[str, tuple[int, ...]]]], callback_name: Annotated[str, Field(pattern="^a")] = "a") -> Any: ...
def context_first(context: RunContext, x: int, /) -> Any:
    return context, x


def context_hidden(x: int, *, context: hidden.RunContext) -> Any:
    return context, x


def context_optional(x: int, context: RunContext | None = None) -> Any:
    return context, x


HOSTILE = [
    *(names, recursive, positional, kinds, unions, defaults, bare, nothing, documented, deep),
    *(context_first, context_hidden, context_optional, Point, Node, functools.partial(positional, 1), functools.partial(names, schema="s")),
]


@pytest.mark.parametrize("function", HOSTILE, ids=lambda fn: getattr(fn, "__name__", "partial"))
def test_a_hostile_signature_gives_a_valid_schema(function: Callable[..., Any]) -> None:
    made = as_tool(function) if not isinstance(function, functools.partial) else tool(function, name="partial")
    assert made.parameters["type"] == "object"
    assert made.parameters["additionalProperties"] is False
    assert is_valid_schema(made.parameters, made.parameters)
    assert msgspec.json.decode(msgspec.json.encode(made.parameters)) == made.parameters
    assert "context" not in made.parameters["properties"]


def test_a_property_called_title_or_properties_stays() -> None:
    node = as_tool(recursive).parameters["$defs"]["Node"]
    assert list(node["properties"]) == ["title", "properties", "type", "children"]
    assert node["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []}


def test_the_classes_of_the_user_are_left_as_they_were() -> None:
    before = Node.model_json_schema()
    as_tool(recursive).parameters["$defs"].clear()
    assert Node.model_json_schema() == before


# --- what the handler gets


def test_parameters_of_any_name_reach_the_handler() -> None:
    arguments: dict[str, Any] = {"schema": "s", "copy": 1, "json": {}, "model_config": "m", "class_": 2, "self": 3}
    arguments |= {"_x": 4, "properties": [1], "title": "t", "type": "y"}
    made = as_tool(names)
    assert made.invoke(made.bind(arguments), CONTEXT) == arguments


def test_positional_only_parameters_are_filled_up() -> None:
    assert call(as_tool(positional), a=1, c=5, k=0) == (1, 1, 5, 0, [])


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    made = as_tool(positional)
    call(made, a=1, k=0)[4].append("left behind")
    assert call(made, a=1, k=0)[4] == []


def test_json_becomes_the_types_of_the_signature() -> None:
    got = call(as_tool(kinds), e="red", p={"x": 1}, t={"deep": True}, d="2026-01-31", at="2026-01-31T12:00:00Z", raw="hi", price="1.50")
    at = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    assert got == (Colour.RED, Point(1, 2), {"deep": True}, datetime.date(2026, 1, 31), at, b"hi", decimal.Decimal("1.50"))


@pytest.mark.parametrize("function", [context_first, context_hidden, context_optional])
def test_the_context_is_filled_in_and_not_shown(function: Callable[..., Any]) -> None:
    assert call(as_tool(function), x=1) == (CONTEXT, 1)
    assert "unknown argument" in refusal(as_tool(function), {"x": 1, "context": 2})


def test_types_of_the_enclosing_function_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        a: int

    @tool
    def use(value: Local) -> Any:
        return value

    assert call(use, value={"a": 1}) == Local(1)


def test_a_partial_hides_what_it_binds() -> None:
    made = tool(functools.partial(positional, k=9), name="bound")
    assert "k" not in made.parameters["properties"]
    assert call(made, a=1)[3] == 9


class Box:
    """A box."""

    def __init__(self, start: int = 1) -> None:
        self.start = start

    @tool
    def more(self, x: int) -> int:
        """More."""
        return self.start + x

    @classmethod
    @tool
    def kind(cls, x: int) -> str:
        return f"{cls.__name__}{x}"

    @staticmethod
    @tool
    def plain(x: int) -> int:
        return x

    async def later(self, x: int) -> int:
        return self.start * x

    async def __call__(self, question: str) -> str:
        return question


def test_methods_classes_and_callable_objects_are_tools() -> None:
    box = Box(5)
    assert call(box.more, x=1) == 6
    assert call(as_tool(box.kind), x=1) == "Box1"
    assert call(as_tool(box.plain), x=1) == 1
    assert asyncio.run(call(as_tool(box.later), x=2)) == 10
    assert asyncio.run(call(as_tool(box), question="why")) == "why"
    assert call(as_tool(Box), start=7).start == 7
    assert call(as_tool(Point), x=1) == Point(1, 2)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(add, False), (Box().later, True), (Box(), True), (Box, False), (functools.partial(Box().later, x=1), True), (Box().more, False)],
)
def test_whether_a_handler_is_async_is_known(function: Callable[..., Any], expected: bool) -> None:
    assert as_tool(function).is_async is expected


def test_a_decorated_function_stays_a_function() -> None:
    assert tool(add)(1, 2) == 3
    assert as_tool(made := tool(add)) is made


# --- what is refused when a tool is made


def gen() -> Any:
    yield 1


async def agen() -> Any:
    yield 1


def stars(*args: int) -> None: ...
def double_stars(**options: int) -> None: ...
def unknown_name(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def no_schema(x: int, error: UsageError) -> None: ...
def takes_function(fn: Callable[[int], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (gen, ["gen", "generator", "list"]),
        (agen, ["agen", "generator"]),
        (stars, ["stars", "*args", "list parameter"]),
        (double_stars, ["double_stars", "**options", "dict parameter"]),
        (unknown_name, ["unknown_name", "'x'", "Nowhere"]),
        (no_schema, ["no_schema", "'error'"]),
        (takes_function, ["takes_function", "'fn'"]),
        (lambda x: x, ["lambda", "name="]),
        (Box.more, ["more", "instance.more"]),
        (Box.later, ["later", "instance.later"]),
        (max, ["max", "signature"]),
        (3, ["3"]),
        (None, ["None"]),
        ("add", ["'add'"]),
        ([add], ["list"]),
        (classmethod(add), ["@classmethod above @tool"]),
    ],
)
def test_what_cannot_be_a_tool_is_a_usage_error_that_says_why(function: Any, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        as_tool(function)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        *({"name": "my tool!"}, {"name": ""}, {"name": "é"}, {"name": "x" * 65}, {"name": "a\n"}, {"name": 3}, {"description": 3}),
        *({"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": True}, {"timeout_s": math.nan}, {"timeout_s": math.inf}, {"timeout_s": "5"}),
        *({"parallel": 1}, {"network": None}, {"requires_approval": "yes"}, {"on_crash": "retry"}, {"reconcile": 3}, {"available": True}),
    ],
    ids=repr,
)
def test_wrong_options_are_a_usage_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        tool(**options)(add)


def test_a_wrong_name_comes_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="my_tool"):
        tool(add, name="my tool!")


def test_options_become_traits() -> None:
    made = tool(
        *(add,),
        parallel=False,
        on_crash="rerun",
        timeout_s=2,
        reconcile=gen,
        requires_approval=True,
        network=True,
        name="sum",
        description="S",
    )
    assert made.traits == Traits(parallel=False, on_crash="rerun", timeout_s=2.0, reconcile=True, requires_approval=True, network=True)
    assert (made.name, made.description, made.reconcile) == ("sum", "S", gen)


# --- strict validation


@pytest.mark.parametrize("value", [True, 5.5, 5.0, "5", None, [], {}, math.nan, math.inf])
def test_what_is_no_integer_is_refused(value: Any) -> None:
    assert "left" in refusal(as_tool(add), {"left": value})


def test_every_problem_is_named_in_words() -> None:
    text = refusal(as_tool(add), {"right": "lots", "colour": 1})
    assert "right: expected an integer, got 'lots'" in text
    assert "left: required, but missing" in text
    assert "colour: unknown argument; the known ones are left, right" in text
    assert "unknown argument; there are none" in refusal(as_tool(nothing), {"x": 1})


def test_a_problem_deep_inside_is_located() -> None:
    text = refusal(as_tool(recursive), {"node": {"title": "a", "children": [{"title": 3}, {"titel": "x"}]}})
    assert "node.children[0].title: expected a string, got 3" in text
    assert "node.children[1].title: required, but missing" in text
    assert "a: expected an integer or a string, got []" in refusal(as_tool(unions), {"a": [], "b": [], "c": [1, "a"], "d": "x"})


def test_a_long_value_is_shortened_in_the_message() -> None:
    assert len(refusal(as_tool(add), {"left": "x" * 10_000})) < 200


def circular() -> Any:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", datetime.date(2026, 1, 1), 1j, {1: 2}, {("a",): 1}, circular(), [[math.nan]]])
def test_what_a_layer_puts_in_that_is_no_json_is_refused_and_located(value: Any) -> None:
    def take(anything) -> None: ...

    assert "anything" in refusal(as_tool(take), {"anything": value})


def test_an_integer_too_long_to_be_written_is_refused() -> None:
    assert "JSON" in refusal(as_tool(bare), {"x": 10**5000})


def test_lone_surrogates_are_cleaned_and_tuples_are_arrays() -> None:
    bound = as_tool(bare).bind({"x": "\ud835", "y": ("a", 1)})
    assert bound.kwargs == {"x": "\ufffd", "y": ["a", 1]}
    assert bound.json == '{"x":"\ufffd","y":["a",1]}'


class Picky(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def check(cls, value: int) -> int:
        if value == 1:
            raise ValueError("one is not enough")
        if value == 2:
            raise KeyError("a bug")
        if value == 3:
            raise Fatal("stop")
        return value


def test_a_validator_of_the_user_speaks_to_the_model_and_its_bugs_start_nothing() -> None:
    def take(it: Picky) -> None: ...

    made = as_tool(take)
    assert "it.value: one is not enough, got 1" in refusal(made, {"it": {"value": 1}})
    assert "KeyError" in refusal(made, {"it": {"value": 2}})
    with pytest.raises(Fatal):
        made.bind({"it": {"value": 3}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(alphabet=st.characters(categories=["Cs"]), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3) | st.tuples(inner),
    max_leaves=8,
)
MADE = [as_tool(function) for function in (add, recursive, kinds, unions, bare)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(MADE), st.dictionaries(st.sampled_from(["left", "right", "node", "a", "b", "x", "e", "zz"]), JSON, max_size=4))
def test_binding_raises_nothing_but_invalid_arguments(made: Tool, arguments: dict[str, Any]) -> None:
    try:
        bound = made.bind(arguments)
    except InvalidArguments as error:
        str(error).encode()
    else:
        assert isinstance(msgspec.json.decode(bound.json), dict)


# --- tools from a schema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Search",
    "properties": {
        "q": {"type": "string"},
        "n": {"type": ["integer", "null"]},
        "kind": {"enum": ["a", "b"]},
        "tree": {"$ref": "#/$defs/tree"},
    },
    "required": ["q"],
    "additionalProperties": False,
    "$defs": {"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
}


def test_a_tool_from_a_schema_checks_and_hands_over_its_own_copy() -> None:
    async def handle(**arguments: Any) -> Any:
        return arguments

    made = Tool.from_schema(name="search", parameters=SCHEMA, handler=handle)
    assert made.is_async
    arguments = {"q": "x", "n": None, "tree": {"kids": [{"kids": []}]}}
    got = asyncio.run(call(made, **arguments))
    assert got == arguments
    assert got["tree"] is not arguments["tree"]
    assert made.parameters is not SCHEMA


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "q: required, but missing"),
        ({"q": 1}, "q: expected a string, got 1"),
        ({"q": "x", "z": 1}, "z: unknown argument; the known ones are q, n, kind, tree"),
        ({"q": "x", "n": True}, "n: expected an integer or null, got true"),
        ({"q": "x", "n": 5.0}, "n: expected an integer or null, got 5.0"),
        ({"q": "x", "kind": "c"}, "kind: expected 'a' or 'b', got 'c'"),
        ({"q": "x", "tree": {"kids": [{"kids": 3}]}}, "tree.kids[0].kids: expected an array, got 3"),
    ],
)
def test_a_tool_from_a_schema_refuses_what_does_not_fit(arguments: dict[str, Any], words: str) -> None:
    assert words in refusal(Tool.from_schema(name="search", parameters=SCHEMA), arguments)


def test_a_tool_from_a_schema_may_want_the_context() -> None:
    def handle(context: RunContext, **arguments: Any) -> Any:
        return context, arguments

    assert call(Tool.from_schema(name="search", parameters=SCHEMA, handler=handle), q="x") == (CONTEXT, {"q": "x"})


@pytest.mark.parametrize(
    "schema", [[], "x", None, {"type": "string"}, {"type": "object", "properties": []}, {"type": "object", "default": object()}]
)
def test_a_schema_of_something_else_is_a_usage_error(schema: Any) -> None:
    with pytest.raises(UsageError):
        Tool.from_schema(name="x", parameters=schema)


def test_a_schema_without_properties_and_one_behind_a_reference_become_objects() -> None:
    assert Tool.from_schema(name="x", parameters={}).parameters == {"type": "object", "properties": {}}
    made = Tool.from_schema(name="x", parameters={"$ref": "#/$defs/a", "$defs": {"a": SCHEMA}})
    assert made.parameters["required"] == ["q"]
    assert "$ref" not in made.parameters


def test_a_schema_that_explodes_is_given_up() -> None:
    branch = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"anyOf": [branch] * 4}}}
    value: Any = 1
    for _ in range(30):
        value = {"a": value}
    assert "too complex" in refusal(Tool.from_schema(name="x", parameters=schema), value)


def test_a_tool_without_a_handler_cannot_be_invoked() -> None:
    made = Tool.from_schema(name="x", parameters={})
    with pytest.raises(UsageError, match="on_tool_call"):
        made.invoke(made.bind({}), CONTEXT)


def test_importing_tools_loads_no_heavy_library() -> None:
    code = "import sys, interlock.tools, interlock.extensions.runtime_tools; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"pydantic", "docstring_parser"})
