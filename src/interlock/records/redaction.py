"""What of a record may be taken out before it is written, and what must stay as it is.

Texts, arguments, answers and notes are free: ``FREE`` names the fields. So is the name of a tool that the model has invented, which is text
like any other. Everything else decides what happens next, and keeps its
value: kinds, keys, ids, names, counts, codes, effects. A record that a hook has changed is checked against that, field by field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..messages import AssistantMessage, FilePart, ImagePart, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage, WireCopy
from ..messages.text import NAME_MAX
from . import (
    Ending,
    ExtensionNoted,
    HandlerStarted,
    MessagesImported,
    ModelStepEnded,
    ModelStepFailed,
    QuestionAnswered,
    ReconcileEnded,
    Record,
    RefusedCall,
    Returned,
    RunEnded,
    ToolLateResult,
    ToolStepSuspended,
)
from .codec import decode, encode

__all__ = ["FREE", "marked", "what_changed", "with_texts"]

R = TypeVar("R")

FREE: dict[type[Any], frozenset[str]] = {
    SystemMessage: frozenset({"content"}),
    UserMessage: frozenset({"content"}),
    AssistantMessage: frozenset({"content", "reasoning", "wire"}),
    ToolMessage: frozenset({"content"}),
    ToolCall: frozenset({"arguments"}),
    TextPart: frozenset({"text"}),
    ImagePart: frozenset({"url", "data"}),
    FilePart: frozenset({"url", "data", "name"}),
    WireCopy: frozenset({"body"}),
    Ending: frozenset({"text"}),
    RefusedCall: frozenset({"reason"}),
    MessagesImported: frozenset({"repairs"}),
    ModelStepEnded: frozenset({"stop_raw", "nudge", "dropped"}),
    ModelStepFailed: frozenset({"message"}),
    HandlerStarted: frozenset({"arguments"}),
    ReconcileEnded: frozenset({"reason"}),
    Returned: frozenset({"content"}),
    ToolStepSuspended: frozenset({"question", "arguments"}),
    QuestionAnswered: frozenset({"answer"}),
    ToolLateResult: frozenset({"content"}),
    ExtensionNoted: frozenset({"data"}),
    RunEnded: frozenset({"text"}),
}
"""By class, the fields that a redaction may change. What is not here it may not."""

_JSON_TEXT = frozenset({(WireCopy, "body"), *((kind, "arguments") for kind in (ToolCall, HandlerStarted, ToolStepSuspended))})


def with_texts(record: R, change: Callable[[str], str]) -> R:
    """``record`` with ``change`` applied to every text that is free: prompts, answers, arguments, results, questions, notes.

    Arguments are read as JSON first, so that ``change`` sees each string in them as it is, keys included; where they are no JSON
    it sees the raw text. A part in which nothing changes stays the same object. The provider's own form of a message goes when
    anything of the message changes: it says the same again.
    """
    if isinstance(record, ModelStepEnded) and (invented := _invented(record)):
        record = _renamed(record, invented, change)
    return cast("R", _texts(record, change))


def _invented(record: ModelStepEnded) -> frozenset[int]:
    """The calls, by their place, of tools that do not exist: their names decide nothing."""
    return frozenset(refusal.ordinal for refusal in record.refused if refusal.code == "unknown_tool")


def _renamed(record: ModelStepEnded, invented: frozenset[int], change: Callable[[str], str]) -> ModelStepEnded:
    """``record`` with the names of those calls changed, also where they are repeated, perhaps cut off, in the reason of the refusal."""
    old = record.message.tool_calls
    made = tuple(replace(call, name=_text(call.name, change)) if n in invented else call for n, call in enumerate(old))
    if made == old:
        return record
    said = {n: (repr(old[n].name[:NAME_MAX]), repr(made[n].name[:NAME_MAX])) for n in invented}
    refused = tuple(
        replace(refusal, reason=refusal.reason.replace(*said[refusal.ordinal])) if refusal.ordinal in said else refusal
        for refusal in record.refused
    )
    return replace(record, message=replace(record.message, tool_calls=made, wire=None), refused=refused)


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        made = tuple(_texts(item, change) for item in items)
        return made if any(a is not b for a, b in zip(items, made, strict=True)) else items
    if not isinstance(value, Struct):
        return value
    kind = type(value)
    free, changed = FREE.get(kind, frozenset[str]()), dict[str, Any]()
    for field in kind.__struct_fields__:
        before = getattr(value, field)
        if field not in free:
            after = _texts(before, change)
        elif (kind, field) in _JSON_TEXT:
            after = _json_text(before, change)
        else:
            after = _tree(before, change)
        if after is not before:
            changed[field] = after
    if changed and kind is AssistantMessage:
        changed["wire"] = None
    return replace(value, **changed) if changed else value


def _json_text(text: str, change: Callable[[str], str]) -> str:
    try:
        before = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return _text(text, change)
    after = _tree(before, change)
    return text if after == before else msgspec.json.encode(after).decode()


def _tree(value: Any, change: Callable[[str], str]) -> Any:
    """A free field: text, parts, or anything JSON-able."""
    if isinstance(value, str):
        return _text(value, change)
    if isinstance(value, Struct):
        return _texts(value, change)
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        made: Any = {_tree(key, change): _tree(item, change) for key, item in pairs.items()}
    elif isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        made = [_tree(item, change) for item in items]
        made = tuple(made) if isinstance(value, tuple) else made
    else:
        return value
    return made if made != value else value  # pyright: ignore[reportUnknownVariableType]


def _text(text: str, change: Callable[[str], str]) -> str:
    made = change(text)
    return text if made == text else made


def what_changed(before: Record, after: object) -> str:
    """Why ``after`` may not be written in the place of ``before``; "" if it may."""
    if type(after) is not type(before):
        return f"it became a {type(after).__name__}"
    if isinstance(before, ModelStepEnded) and isinstance(after, ModelStepEnded):
        before = _with_names_of(after, before)
    if wrong := _fixed(before, after, type(before).__name__):
        return wrong
    try:
        body = encode(after)
        whole = encode(decode(body)) == body
    except Exception as error:  # whatever a field of a wrong type leads to
        return f"it cannot be stored ({type(error).__name__})"
    return "" if whole else "it would not be read back as it is"


def _with_names_of(after: ModelStepEnded, before: ModelStepEnded) -> ModelStepEnded:
    """``before`` with the invented names that ``after`` has: there they may differ, as long as they are names."""
    calls, others, invented = before.message.tool_calls, after.message.tool_calls, _invented(before)
    if not invented or len(calls) != len(others):
        return before
    pairs = enumerate(zip(calls, others, strict=True))
    made = tuple(replace(a, name=b.name) if n in invented and str(b.name).strip() else a for n, (a, b) in pairs)
    return replace(before, message=replace(before.message, tool_calls=made))


def _fixed(before: Any, after: Any, place: str) -> str:
    """The first field that differs although it must not, in words, or ""."""
    if before is after:
        return ""
    if type(before) is not type(after):
        return f"{place} must stay as it is"
    if isinstance(before, tuple) and isinstance(after, tuple):
        pairs = list(zip(cast("tuple[Any, ...]", before), cast("tuple[Any, ...]", after), strict=False))
        if len(before) != len(after):  # pyright: ignore[reportUnknownArgumentType]
            return f"{place} must stay as it is"
        return next((found for n, (a, b) in enumerate(pairs) if (found := _fixed(a, b, f"{place}[{n}]"))), "")
    if not isinstance(before, Struct):
        return "" if before == after else f"{place} must stay as it is"
    kind = type(before)
    free = FREE.get(kind, frozenset[str]())
    for field in kind.__struct_fields__:
        a, b = getattr(before, field), getattr(after, field)
        if field not in free:
            if found := _fixed(a, b, f"{place}.{field}"):
                return found
        elif isinstance(a, str) and not isinstance(b, str):  # bytes would be stored as other text than they are here
            return f"{place}.{field} must stay text"
    return ""


def _unsigned(before: Any, after: Any) -> Any:
    return replace(after, wire=None) if isinstance(after, AssistantMessage) and after != before else after


def marked(before: R, after: R) -> R:
    """``after``, saying itself what of ``before`` must not be taken from it when a call is to be run: arguments, and answers.

    A message that a hook has changed loses the provider's own form of it, should the hook have forgotten that.
    """
    if isinstance(before, ModelStepEnded) and isinstance(after, ModelStepEnded):
        pairs = zip(before.message.tool_calls, after.message.tool_calls, strict=True)
        redacted = tuple(ordinal for ordinal, (a, b) in enumerate(pairs) if a.arguments != b.arguments)
        return replace(after, redacted=redacted, message=_unsigned(before.message, after.message))
    if isinstance(before, MessagesImported) and isinstance(after, MessagesImported):
        return replace(after, messages=tuple(map(_unsigned, before.messages, after.messages)))
    if isinstance(before, HandlerStarted) and isinstance(after, HandlerStarted):
        return replace(after, redacted=before.arguments != after.arguments)
    if isinstance(before, QuestionAnswered) and isinstance(after, QuestionAnswered):
        return replace(after, redacted=before.answer != after.answer)
    return after
