"""Tools with the schemas of other people: what each vendor is sent, and that one of them does not fail every request."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from interlock import Agent
from interlock.messages import ToolMessage
from interlock.providers.parameters import root_object
from interlock.testing import WireServer, call, calls, text
from interlock.tools import Tool
from scenarios.wires import WIRES

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
REFUSED = {"oneOf", "anyOf", "allOf", "enum", "const", "not"}

# By what is hostile about it: the schema as it is given, and what an OpenAI or an Anthropic model is offered of its root.
SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alternatives of what is required": (
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {"a": TEXT, "b": TEXT}},
    ),
    "a union without a type": (
        {"oneOf": [{"properties": {"a": TEXT, "b": NUMBER}, "required": ["a", "b"]}, {"properties": {"a": NUMBER}, "required": ["a"]}]},
        {"properties": {"a": {"anyOf": [TEXT, NUMBER]}, "b": NUMBER}, "required": ["a"]},
    ),
    "a union of references": (
        {
            "type": "object",
            "anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
            "$defs": {
                "A": {"type": "object", "properties": {"kind": {"const": "a"}, "x": TEXT}, "required": ["kind", "x"]},
                "B": {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
            },
        },
        {"properties": {"kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "x": TEXT}, "required": ["kind"]},
    ),
    "all of several": (
        {"type": "object", "properties": {"a": TEXT}, "allOf": [{"properties": {"b": TEXT}, "required": ["b"]}, {"required": ["a"]}]},
        {"properties": {"a": TEXT, "b": TEXT}, "required": ["b", "a"]},
    ),
    "alternatives within alternatives": (
        {"type": "object", "allOf": [{"oneOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]}]},
        {"properties": {"a": TEXT, "b": TEXT}},
    ),
    "what it must not be": ({"type": "object", "properties": {"a": TEXT}, "not": {"required": ["b"]}}, {"properties": {"a": TEXT}}),
    "a constant": ({"type": "object", "properties": {}, "const": {}}, {"properties": {}}),
    "a few values": ({"type": "object", "properties": {}, "enum": [{}, {"a": 1}]}, {"properties": {}}),
    "a reference to itself": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "anyOf": [{"$ref": "#"}]},
        {"properties": {"next": {"$ref": "#"}}},
    ),
    "a reference to nothing": ({"type": "object", "anyOf": [{"$ref": "#/$defs/None"}, True, 5]}, {"properties": {}}),
    "the root behind a reference": (
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}}},
        {"properties": {"a": TEXT}, "required": ["a"]},
    ),
    "words beside a reference": (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A", "description": "An a."}}, "$defs": {"A": TEXT}},
        {"properties": {"a": {"$ref": "#/$defs/A", "description": "An a."}}},
    ),
    "nullable": (
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"anyOf": [TEXT, {"type": "null"}]}}},
        {"properties": {"a": {"type": ["string", "null"]}, "b": {"anyOf": [TEXT, {"type": "null"}]}}},
    ),
    "properties of the names of keywords": (
        {"type": "object", "properties": {"properties": TEXT, "type": TEXT, "anyOf": TEXT, "required": TEXT}, "required": ["type"]},
        {"properties": {"properties": TEXT, "type": TEXT, "anyOf": TEXT, "required": TEXT}, "required": ["type"]},
    ),
    "nothing at all": ({}, {"properties": {}}),
}


def offered(wire: str, body: dict[str, Any]) -> dict[str, Any]:
    """The schema of the first tool, where the wire has it."""
    (first, *_) = body["tools"]
    match wire:
        case "chat":
            return first["function"]["parameters"]
        case "google":
            return first["functionDeclarations"][0]["parametersJsonSchema"]
        case _:
            return first["parameters" if wire == "responses" else "input_schema"]


def other(n: int) -> int:
    """Another tool.

    Args:
        n: a number
    """
    return n


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_hostile_schema_is_sent_in_a_form_that_the_vendor_takes_and_is_left_as_it_was(wire: str, name: str) -> None:
    given, expected = SCHEMAS[name]
    before = copy.deepcopy(given)
    made = Tool.from_schema(name="odd", description="Odd.", parameters=given, handler=lambda **given: "ran")

    async def main() -> dict[str, Any]:
        async with WireServer([text("Hello.")]) as server:
            async with await Agent.create(WIRES[wire].model(server, True), tools=[made, other]) as agent:
                (await agent.run("Go.")).require()
            return server.requests[0].body

    body = asyncio.run(main())
    sent = offered(wire, body)
    assert given == before
    assert sent["type"] == "object"
    if wire == "google":  # which takes a schema whole (parametersJsonSchema)
        assert {key: sent.get(key) for key in given if key not in ("type", "$ref")} == {
            key: value for key, value in given.items() if key not in ("type", "$ref")
        }
        return
    assert REFUSED.isdisjoint(sent)
    assert {key: sent[key] for key in ("properties", "required") if key in sent} == expected
    assert sent.get("$defs") == given.get("$defs")


@pytest.mark.parametrize("wire", WIRES)
def test_what_a_vendor_was_not_told_is_checked_all_the_same_before_the_handler_runs(wire: str) -> None:
    ran: list[dict[str, Any]] = []
    either, _ = SCHEMAS["alternatives of what is required"]
    made = Tool.from_schema(name="odd", parameters=either, handler=lambda **given: ran.append(given))

    async def main() -> None:
        steps = [calls(call("call_a", "odd", {})), calls(call("call_b", "odd", {"b": "x"})), text("Done.")]
        async with WireServer(steps) as server:
            async with await Agent.create(WIRES[wire].model(server, True), tools=[made]) as agent:
                result = await agent.run("Go.")
        assert [message.failed for message in result.messages if isinstance(message, ToolMessage)] == [True, False]
        assert ran == [{"b": "x"}]

    asyncio.run(main())


def test_a_schema_that_every_vendor_takes_is_sent_itself() -> None:
    plain = SCHEMAS["nullable"][0]
    assert root_object(plain) is plain
    assert json.dumps(root_object(SCHEMAS["all of several"][0])) == json.dumps(root_object(SCHEMAS["all of several"][0]))
