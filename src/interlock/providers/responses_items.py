"""The output items of OpenAI's Responses API: what each says, and what of it only the API's own form can hold.

Source: the API reference at developers.openai.com (Responses, the Response object, ``output``) and the types of the
official SDK (``openai.types.responses``), which are generated from the vendor's specification. No I/O here.
"""

from __future__ import annotations

import json
from typing import Any, cast

__all__ = ["arguments_of", "has_refusal", "id_of", "is_plain", "is_unanswered", "parts_of", "reasoning_of", "text_of_item"]

# Items that want an answer from the client in a form that tools here do not have. They are not sent back: without that
# answer the API refuses the whole request ("No tool output found for ...").
_FOR_CLIENT = frozenset({"computer_call", "local_shell_call", "shell_call", "apply_patch_call", "custom_tool_call"})


def parts_of(item: dict[str, Any], field: str, kind: str, text: str = "text") -> list[str]:
    """The text of each part of ``kind`` in an item's ``field``."""
    parts = item.get(field)
    if isinstance(parts, str):
        return [parts] if kind == "output_text" else []  # an input message's short form, which some servers answer with
    if not isinstance(parts, list):
        return []
    found: list[str] = []
    for part in cast("list[Any]", parts):
        if isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            if fields.get("type") == kind and isinstance(said := fields.get(text), str):
                found.append(said)
    return found


def text_of_item(item: dict[str, Any]) -> str:
    """The text of a message, a refusal's words included, in order; ``""`` of any other item."""
    if item.get("type") != "message":
        return ""
    return "".join([*parts_of(item, "content", "output_text"), *parts_of(item, "content", "refusal", "refusal")])


def has_refusal(item: dict[str, Any]) -> bool:
    """Whether a message refuses, in whatever words."""
    return item.get("type") == "message" and bool(parts_of(item, "content", "refusal", "refusal"))


def reasoning_of(item: dict[str, Any]) -> list[str]:
    """The parts of a reasoning item that can be read: its summary, or the reasoning itself (open models)."""
    if item.get("type") != "reasoning":
        return []
    return [*parts_of(item, "summary", "summary_text"), *parts_of(item, "content", "reasoning_text")]


def arguments_of(item: dict[str, Any]) -> str:
    """A call's arguments as JSON text; an object where text belongs is written as text."""
    arguments = item.get("arguments")
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def id_of(item: dict[str, Any]) -> str:
    """The id that a call's result has to name."""
    for name in ("call_id", "id"):
        if isinstance(found := item.get(name), str) and found:
            return found
    return ""


def is_plain(item: dict[str, Any]) -> bool:
    """Whether text and calls say all that an item says. A message's ``phase`` and a call's ``namespace`` have to go back too."""
    kind = item.get("type")
    if kind == "function_call":
        return not item.get("namespace")
    if kind != "message" or item.get("phase"):
        return False
    parts = cast("list[Any]", item.get("content") or [])
    return all(isinstance(part, dict) and not cast("dict[str, Any]", part).get("annotations") for part in parts)


def is_unanswered(item: dict[str, Any]) -> bool:
    """Whether an item waits for something from the client that it will not get."""
    kind = item.get("type")
    return kind in _FOR_CLIENT or (kind == "tool_search_call" and item.get("execution") == "client")
