"""The wires over which every scenario is played: how a model of each is made, and how its requests read in the form of chat completions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interlock.model import Model
from interlock.providers.anthropic import AnthropicModel
from interlock.providers.google import GoogleModel
from interlock.providers.openai import OpenAIChatModel, OpenAIResponsesModel
from interlock.records import ModelStepEnded, ModelStepFailed, Record, Row, RunEnded, ToolStepEnded
from interlock.testing import WireServer

from .rounds import ForEver, Held, Round, Says, Thinks

if TYPE_CHECKING:
    from .play import Scenario


@dataclass(frozen=True, kw_only=True)
class Wire:
    """model: from the server and whether replies are streamed. chat: a request of this wire as the checks of scenarios read it."""

    model: Callable[[WireServer, bool], Model]
    chat: Callable[[dict[str, Any]], dict[str, Any]]


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    """Items as messages: what was one reply of the model stands in a row, and is one message here."""
    messages: list[dict[str, Any]] = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            output = item["output"]
            text = output if isinstance(output, str) else "\n".join(part["text"] for part in output if part["type"] == "input_text")
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        elif kind == "function_call":
            call = {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "message":
            content = item["content"]
            if item["role"] == "assistant" and not isinstance(content, str):
                content = "".join(part["text"] for part in content)
            messages.append({"role": item["role"], "content": content})
        else:
            assert kind == "reasoning", item
    tools = [{"type": "function", "function": tool} for tool in body.get("tools", ())]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _anthropic(body: dict[str, Any]) -> dict[str, Any]:
    """Blocks as messages: each result and each text of a user's turn is a message of its own."""
    _check_turns(body["messages"])
    messages: list[dict[str, Any]] = [{"role": "system", "content": block["text"]} for block in body.get("system", ())]
    for turn in body["messages"]:
        if turn["role"] == "user":
            messages += map(_of_user, turn["content"])
            continue
        calls = [
            {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
            for block in turn["content"]
            if block["type"] == "tool_use"
        ]
        text = "".join(block["text"] for block in turn["content"] if block["type"] == "text")
        messages.append({"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})})
    tools = [{"type": "function", "function": {**tool, "parameters": tool["input_schema"]}} for tool in body.get("tools", ())]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _of_user(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "tool_result":
        text = "\n".join(part["text"] for part in block.get("content", ()))
        return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    text = block["text"]
    if text.startswith("<system>\n"):
        return {"role": "system", "content": text.removeprefix("<system>\n").removesuffix("\n</system>")}
    return {"role": "user", "content": text}


def _check_turns(turns: list[dict[str, Any]]) -> None:
    """What this API demands beyond chat completions (API reference, messages): turns alternate, no blank text, all results first
    in the turn after their calls, thinking signed."""
    for place, turn in enumerate(turns):
        assert turn["role"] == ("assistant" if place % 2 else "user"), turns
        kinds = [block["type"] for block in turn["content"]]
        assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result") or turn["role"] == "assistant", turn
        assert all(block["text"].strip() for block in turn["content"] if block["type"] == "text"), turn
        assert all(block["signature"] for block in turn["content"] if block["type"] == "thinking"), turn
        asked = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        following = turns[place + 1]["content"] if place + 1 < len(turns) else []
        assert asked == [block["tool_use_id"] for block in following if block["type"] == "tool_result"] or turn["role"] == "user", turns


def _google_as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A part is a message of its own here; calls of one content are one message's."""
    messages: list[dict[str, Any]] = []
    for part in body.get("systemInstruction", {}).get("parts", ()):
        messages.append({"role": "system", "content": part["text"]})
    for content in body["contents"]:
        messages += _google_user(content["parts"]) if content["role"] == "user" else _google_model(content["parts"])
    tools = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool["parametersJsonSchema"]}}
        for tools in body.get("tools", ())
        for tool in tools["functionDeclarations"]
    ]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _google_user(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for part in parts:
        result = part.get("functionResponse")
        if result is not None:
            (text,) = result["response"].values()
            said.append({"role": "tool", "tool_call_id": result["id"], "content": text})
        elif part["text"].startswith("<system>\n"):
            said.append({"role": "system", "content": part["text"].removeprefix("<system>\n").removesuffix("\n</system>")})
        else:
            said.append({"role": "user", "content": part["text"]})
    return said


def _google_model(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for part in parts:
        if "text" in part:
            said.append({"role": "assistant", "content": part["text"]})
            continue
        call = part["functionCall"]
        made = {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": json.dumps(call["args"])}}
        if not said:
            said.append({"role": "assistant", "content": None})
        said[-1].setdefault("tool_calls", []).append(made)
    return said


WIRES: dict[str, Wire] = {
    "chat": Wire(
        model=lambda server, stream: OpenAIChatModel("scripted", base_url=server.base_url, api_key="k", stream=stream),
        chat=lambda body: body,
    ),
    "responses": Wire(
        model=lambda server, stream: OpenAIResponsesModel("scripted", base_url=server.base_url, api_key="k", stream=stream),
        chat=_responses,
    ),
    "anthropic": Wire(
        model=lambda server, stream: AnthropicModel("scripted", base_url=server.base_url, api_key="k", stream=stream),
        chat=_anthropic,
    ),
    "google": Wire(
        model=lambda server, stream: GoogleModel("gemini-3-scripted", base_url=server.base_url, api_key="k", stream=stream),
        chat=_google_as_chat,
    ),
}

# Their point is a call whose arguments are no JSON, and what the model is told about it. A call of Gemini's is whole, or missing.
_BROKEN_CALLS = (
    "a limit cuts the arguments of a call",
    "arguments that are no JSON",
    "arguments that break off",
    "a good call beside a malformed one",
    "a batch of every kind of call",
    "every fault once in one run",
    "a malformed batch, a plan, a malformed batch, and the call",
)

# A call without an id has, on this wire, at least that of its item.
_DIFFERENT = {"responses": {"a call without an id"}, "google": _BROKEN_CALLS}


def can_say(wire: str, scenario: Scenario) -> bool:
    """Whether a wire has words for a scenario, so that it comes to the same as over chat completions.

    Responses has no stop reason that announces a call: ``completed`` is the end of an answer and of a row of calls alike.
    """
    if scenario.name in _DIFFERENT.get(wire, ()):
        return False
    rounds = [*scenario.rounds, *(scenario.beside.rounds if scenario.beside else ())]
    return wire != "responses" or not any(map(_announces_nothing, rounds))


def _announces_nothing(one: Round) -> bool:
    while isinstance(one, Held | ForEver):
        one = one.then if isinstance(one, Held) else one.said
    return isinstance(one, Says | Thinks) and one.finish == "tool_calls"


def facts(rows: list[Row]) -> list[str]:
    """What happened, in order: every record but for what each wire has its own words for (raw stop reason, what usage counts, the
    provider's own copy of a message, what an error says). Calls that run side by side end in any order, so they are sorted."""
    told: list[str] = []
    ended: list[str] = []
    for row in rows:
        record = row.record
        if isinstance(record, ToolStepEnded):
            ended.append(repr((record.message, record.effect, record.decided_by, record.code)))
            continue
        told += [*sorted(ended), *_fact(record)]
        ended.clear()
    return told + sorted(ended)


def _said(arguments: str) -> object:
    """Arguments are what they say, not how they are written; none are an empty object."""
    try:
        return json.loads(arguments.strip() or "{}")
    except ValueError:
        return arguments


def _fact(record: Record) -> list[str]:
    match record:
        case ModelStepEnded():
            said = record.message
            calls = [(call.id, call.name, _said(call.arguments)) for call in said.tool_calls]
            bare = (said.content, calls, said.reasoning, said.incomplete)
            counts = record.usage and (record.usage.input_tokens, record.usage.output_tokens)
            return [repr((bare, counts, record.verdict, record.code, record.joined, record.continued, record.refused, record.nudge))]
        case ModelStepFailed():
            # Inside a 200 Anthropic names an error by its type, and has no number for it.
            status = record.status if record.kind == "http" else None
            return [repr((record.kind, record.retryable, record.retry_after_s, status))]
        case RunEnded():
            return [repr((record.outcome, record.reason, record.text))]
        case _:
            return []
