"""What every provider demands of a chat-completions request, written apart from the runtime's own idea of it."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def faults(body: dict[str, Any]) -> list[str]:
    """What is wrong with the conversation in ``body``; nothing for a valid one."""
    found: list[str] = []
    waiting: list[str] = []
    used: set[str] = set()
    for place, message in enumerate(body["messages"]):
        role, content = message["role"], message.get("content")
        if role == "tool":
            expected = waiting.pop(0) if waiting else None
            if message.get("tool_call_id") != expected:
                found.append(f"{place}: a result of {message.get('tool_call_id')!r} where one of {expected!r} belongs")
            if not isinstance(content, str):
                found.append(f"{place}: a result that is not text")
            continue
        if waiting:
            found.append(f"{place}: no results for {waiting}")
            waiting = []
        calls = message.get("tool_calls")
        if role not in ("system", "user", "assistant"):
            found.append(f"{place}: the role {role!r}")
        if calls is None or content is not None:
            found += [f"{place}: {fault}" for fault in _content_faults(content)]
        if calls is not None:
            if role != "assistant" or not calls:
                found.append(f"{place}: calls where there may be none")
            for call in calls:
                found += [f"{place}: {fault}" for fault in _call_faults(call, used)]
                used.add(call["id"])
                waiting.append(call["id"])
    if waiting:
        found.append(f"at the end: no results for {waiting}")
    if not body["messages"]:
        found.append("no messages")
    return found


def _content_faults(content: Any) -> list[str]:
    if isinstance(content, str):
        return [] if content.strip() else ["blank content"]
    if not isinstance(content, list) or not content:
        return [f"content that is {content!r}"]
    return ["a blank part" for part in content if part["type"] == "text" and not part["text"].strip()]


def _call_faults(call: dict[str, Any], used: set[str]) -> list[str]:
    found = [] if isinstance(call["id"], str) and call["id"] else [f"a call with the id {call['id']!r}"]
    if call["id"] in used:
        found.append(f"the id {call['id']!r} a second time")
    if not _NAME.fullmatch(call["function"]["name"]):
        found.append(f"a call of {call['function']['name']!r}")
    text = call["function"]["arguments"]
    try:
        if not isinstance(json.loads(text, parse_constant=_refuse), dict):
            found.append(f"arguments that are no object: {text!r}")
    except (TypeError, ValueError):
        found.append(f"arguments that are not JSON: {text!r}")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
