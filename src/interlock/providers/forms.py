"""Tools for a model that has none: what it is told of them, and the one JSON schema that its reply is held to.

A reply is one object: ``{"tool": NAME, "arguments": {...}}`` or ``{"answer": TEXT}``. The name comes first, so that a reader
knows what follows before it comes. The conversation goes as text, by one rule per message, for the chat templates of small
models know no tools and demand that user and assistant take turns:

System: those in front are the system message, together with the tools; a later one is text of the user's, after ``System:``.
User: its text; images and files are named in a line. Assistant: the form that the model itself is held to, one line for each
call. Tool: text of the user's, after ``Result of NAME:``. What one role says in a row is one message. No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec

from ..errors import UsageError
from ..messages import AssistantMessage, Content, Message, SystemMessage, TextPart, ToolMessage, UserMessage, clean_tree
from ..messages.arguments import wire_arguments
from ..model import ModelRequest, OutputSpec, ToolSpec
from .common import described, named_choice

__all__ = ["as_text", "reply_schema"]

_ANSWER: dict[str, Any] = {"type": "string"}

# They explain and do not constrain; the model reads them in what it is told of the tools.
_PROSE = frozenset({"title", "description", "default", "examples", "deprecated", "discriminator", "$schema", "$id", "$comment"})

# Keywords whose value is a mapping of names to schemas, and those whose value is no schema.
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "required", "type"})
_JOINED = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


def as_text(request: ModelRequest, *, grammar: bool = False) -> tuple[ModelRequest, bool]:
    """``request`` for a model without tools, and whether its reply has one of the forms; otherwise it is text, as it stands.

    grammar: ask by llama.cpp's ``grammar`` field, which can forbid white space between the tokens, and not by ``response_format``.
    Raises UsageError for ``stop`` beside tools: such words would end the JSON in the middle.
    """
    settings, output = request.settings, request.output
    tools, answers = _offered(request)
    settings = msgspec.structs.replace(settings, tool_choice=None, parallel_tool_calls=None)
    if not tools:
        if output is not None:
            output = OutputSpec(name=output.name, schema=_bare(output.schema, "#"))
        return replace(request, messages=_messages(request, ()), tools=(), settings=settings, output=output), False
    if settings.stop:
        raise UsageError("ModelSettings.stop cannot be kept beside tools by a model that is held to a JSON schema: leave it out")
    schema = reply_schema(tools, output if answers else None, answers=answers)
    output = OutputSpec(name="reply", schema=schema)
    if grammar:
        compact = {"x-guidance": {"whitespace_flexible": False, "lenient": True}, **schema}
        settings = msgspec.structs.replace(
            settings, extra={**settings.extra, "grammar": f"%llguidance {{}}\nstart: %json {_json(compact)}"}
        )
        output = None
    return replace(request, messages=_messages(request, tools, answers=answers), tools=(), settings=settings, output=output), True


def reply_schema(tools: tuple[ToolSpec, ...], output: OutputSpec | None = None, *, answers: bool = True) -> dict[str, Any]:
    """The schema of a reply: a call of one of ``tools`` or, where it ``answers``, text or what ``output`` demands."""
    defs: dict[str, Any] = {}
    forms: list[dict[str, Any]] = []
    for place, tool in enumerate(tools):
        defs[f"tool{place}"] = _bare(tool.parameters, f"#/$defs/tool{place}")
        forms.append(_object(tool={"const": tool.name}, arguments={"$ref": f"#/$defs/tool{place}"}))
    if answers and output is not None:
        defs["output"] = _bare(output.schema, "#/$defs/output")
        forms.append(_object(answer={"$ref": "#/$defs/output"}))
    elif answers:
        forms.append(_object(answer=_ANSWER))
    return {"anyOf": forms, "$defs": defs}


def _offered(request: ModelRequest) -> tuple[tuple[ToolSpec, ...], bool]:
    """The tools that may be called now, and whether the reply may be an answer."""
    choice, tools = request.settings.tool_choice, request.tools
    if not tools or choice is None or choice == "auto":
        return tools, True
    named = named_choice(choice, tools)
    if named is not None:
        return tuple(tool for tool in tools if tool.name == named), False
    return (tools, False) if choice == "required" else ((), True)


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _bare(schema: Mapping[str, Any], root: str, *, closed: bool = True) -> dict[str, Any]:
    """A schema without prose, as a part of a larger one. root: where it stands there, which its references are to.

    closed: an object has the properties that it names, unless it says otherwise, for a small model would invent more.
    """
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _PROSE:
            continue
        if word == "$ref" and isinstance(value, str):
            value = root + value[1:] if value.startswith("#") else value
        elif word in _MAPS and isinstance(value, dict):
            value = {name: _part(part, root) for name, part in cast("dict[str, Any]", value).items()}
        elif word not in _VALUES:
            value = _part(value, root, closed=word != "allOf")
        made["anyOf" if word == "oneOf" and "anyOf" not in schema else word] = value
    if closed and "properties" in made and _JOINED.isdisjoint(made):
        made.setdefault("additionalProperties", False)
    return made


def _part(value: Any, root: str, *, closed: bool = True) -> Any:
    if isinstance(value, dict):
        return _bare(cast("dict[str, Any]", value), root, closed=closed)
    if isinstance(value, list):
        return [_part(part, root, closed=closed) for part in cast("list[Any]", value)]
    return value


def _messages(request: ModelRequest, tools: tuple[ToolSpec, ...], *, answers: bool = True) -> tuple[Message, ...]:
    """The conversation as text. tools: those that the model may call; none, and its own earlier words go as they are."""
    said = [_said(message, bool(tools), request.output is not None) for message in request.messages]
    front = next((place for place, message in enumerate(request.messages) if not isinstance(message, SystemMessage)), len(said))
    system = [message.content for message in request.messages[:front] if isinstance(message, SystemMessage)]
    if tools:
        system.append(_told(tools, answers))
    turns: list[tuple[str, list[str]]] = [("system", system)]
    for role, text in said[front:]:
        if not text.strip():
            continue
        if turns[-1][0] == role:
            turns[-1][1].append(text)
        else:
            turns.append((role, [text]))
    made: list[Message] = []
    for role, texts in turns:
        text = "\n\n".join(filter(str.strip, texts))
        if role == "user":
            made.append(UserMessage(content=text))
        elif text:
            made.append(SystemMessage(content=text) if role == "system" else AssistantMessage(content=text))
    return tuple(made)


def _said(message: Message, formed: bool, structured: bool) -> tuple[str, str]:
    match message:
        case SystemMessage():
            return "user", f"System: {message.content}" if message.content.strip() else ""
        case UserMessage():
            return "user", _plain(message.content)
        case ToolMessage():
            return "user", f"Result of {message.name}:\n{_plain(message.content)}"
        case AssistantMessage():
            lines: list[str] = []
            if message.content.strip():
                spoken = formed and not message.tool_calls
                lines.append(_json({"answer": _value(message.content, structured)}) if spoken else message.content)
            # The arguments as they came, for they are JSON already.
            lines += [f'{{"tool":{_json(call.name)},"arguments":{wire_arguments(call.arguments)}}}' for call in message.tool_calls]
            return "assistant", "\n".join(lines)


def _value(content: str, structured: bool) -> Any:
    """An earlier answer as the form has it: an object where the answer is one."""
    if structured:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return content
        return value if isinstance(value, dict) else content  # pyright: ignore[reportUnknownVariableType]
    return content


def _plain(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else described(part) for part in content)


def _told(tools: tuple[ToolSpec, ...], answers: bool) -> str:
    """What the system message says of the tools and of the form of a reply."""
    lines = ["You have these tools:"]
    lines += [f"- {tool.name}: {' '.join(tool.description.split())} Arguments (JSON schema): {_json(tool.parameters)}" for tool in tools]
    lines.append('Reply with one JSON object and nothing else. To call a tool: {"tool":"NAME","arguments":{...}}')
    if answers:
        lines.append('To answer the user: {"answer":"your words"}')
    lines.append("The result of a call comes in the next message. Never make one up.")
    return "\n".join(lines)


def _json(value: Any) -> str:
    return json.dumps(clean_tree(value), ensure_ascii=False, separators=(",", ":"))
