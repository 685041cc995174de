"""Whether a provider would take a request: written from the providers' documentation, knowing nothing of the runtime."""

from __future__ import annotations

import json
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = ("system", "user", "assistant", "tool")


def complaints(body: dict[str, Any]) -> list[str]:
    """Everything that is wrong with one chat-completions request."""
    messages = body["messages"]
    wrong = [f"message {place}: {why}" for place, message in enumerate(messages) for why in _of_message(message)]
    wrong += _of_pairs(messages)
    if not any(message["role"] == "user" for message in messages):
        wrong.append("no user message")
    if messages and messages[-1]["role"] == "assistant":
        wrong.append("the assistant has the last word")
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    if len(set(names)) != len(names):
        wrong.append(f"a tool is offered twice: {names}")
    wrong += [f"tool {name!r} is no name" for name in names if not _NAME.fullmatch(name)]
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        wrong.append(f"half a surrogate pair: {error}")
    return wrong


def _of_message(message: dict[str, Any]) -> list[str]:
    role, content = message["role"], message.get("content")
    if role not in _ROLES:
        return [f"role {role!r}"]
    if role == "tool":
        return [] if isinstance(content, str) else [f"a tool result that is no text: {content!r}"]
    if role == "assistant" and message.get("tool_calls"):
        wrong = [why for call in message["tool_calls"] for why in _of_call(call)]
        return wrong if content is None or content.strip() else [*wrong, "a blank text beside calls"]
    if isinstance(content, list):
        return [f"a blank part in {content!r}" for part in content if part["type"] == "text" and not part["text"].strip()]
    return [] if isinstance(content, str) and content.strip() else [f"a blank {role} message"]


def _of_call(call: dict[str, Any]) -> list[str]:
    wrong: list[str] = []
    if not call["id"]:
        wrong.append("a call without an id")
    if not _NAME.fullmatch(call["function"]["name"]):
        wrong.append(f"a call of {call['function']['name']!r}")
    try:
        value = json.loads(call["function"]["arguments"])
    except ValueError:
        value = None
    if not isinstance(value, dict):
        wrong.append(f"arguments {call['function']['arguments']!r} are no JSON object")
    return wrong


def _of_pairs(messages: list[dict[str, Any]]) -> list[str]:
    """Each call has exactly one result, right after its message and in call order; no id is used twice."""
    wrong: list[str] = []
    seen: set[str] = set()
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        if message["role"] == "tool":
            wrong.append(f"message {place - 1}: a result without its call")
            continue
        asked = [call["id"] for call in message.get("tool_calls") or ()]
        wrong += [f"the id {id!r} is used twice" for id in {id for id in asked if id in seen or asked.count(id) > 1}]
        seen.update(asked)
        answered: list[str] = []
        while place < len(messages) and messages[place]["role"] == "tool":
            if not asked:
                break
            answered.append(messages[place]["tool_call_id"])
            place += 1
        if answered != asked:
            wrong.append(f"message {place - 1}: calls {asked}, results {answered}")
    return wrong
