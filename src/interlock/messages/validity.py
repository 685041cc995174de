"""What every provider demands of a conversation, and how one from elsewhere is made to comply."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TypeVar, cast

import msgspec
from msgspec.structs import replace

from . import AssistantMessage, Content, FilePart, ImagePart, Message, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from .text import clean, clean_tree

M = TypeVar("M", bound=Message)


class Ambiguous(ValueError):
    """Results without ids that could belong to more than one call: guessing could swap them."""


class IllTyped(TypeError):
    """A message whose fields are not what they say. The message says which, and what they are."""


def well_typed(message: M) -> M:
    """``message`` with its text mended, lists as tuples, and every field checked, which making it does not do. Raises IllTyped."""
    try:
        made = msgspec.convert(clean_tree(msgspec.to_builtins(message)), type(message))
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise IllTyped(f"{type(message).__name__}: {error}") from error
    parts: object = made.content
    for part in cast("tuple[object, ...]", parts) if isinstance(parts, tuple) else ():
        if isinstance(part, ImagePart | FilePart) and part.url is None and part.data is None:
            raise IllTyped(f"{'an ImagePart' if isinstance(part, ImagePart) else 'a FilePart'} needs a url or data")
    return made


def is_valid(messages: Sequence[Message], *, known_ids: Set[str] = frozenset()) -> bool:
    """Whether each call has exactly one result, in call order, with unique ids not in ``known_ids``, and no message is blank."""
    seen: set[str] = set()
    position, count = 0, len(messages)
    while position < count:
        message = messages[position]
        position += 1
        if isinstance(message, ToolMessage) or _blank(message):
            return False
        if not isinstance(message, AssistantMessage):
            continue
        for call in message.tool_calls:
            result = messages[position] if position < count else None
            if (
                not call.id
                or call.id in seen
                or call.id in known_ids
                or not isinstance(result, ToolMessage)
                or result.tool_call_id != call.id
            ):
                return False
            seen.add(call.id)
            position += 1
    return True


def repair(messages: Sequence[Message], *, known_ids: Set[str] = frozenset()) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """``messages`` made valid, and what had to be mended, in words.

    A missing result becomes one that says that the outcome is unknown; a result without its call, a second result and a
    blank message are left out; results are put in call order; ids that are empty or used twice are replaced.
    Raises Ambiguous for results without ids that could belong to more than one call.
    """
    mender = _Mender(set(known_ids))
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if isinstance(message, ToolMessage):
            mender.said.append(f"left out the result of {message.tool_call_id!r}: no call before it")
        elif isinstance(message, AssistantMessage) and message.tool_calls:
            results: list[ToolMessage] = []
            while position < len(messages) and isinstance(following := messages[position], ToolMessage):
                results.append(following)
                position += 1
            mender.batch(message, results)
        elif _blank(message):
            mender.said.append(f"left out a blank {type(message).__name__}")
        else:
            mender.out.append(_mended(message))
    return tuple(mender.out), tuple(mender.said)


class _Mender:
    def __init__(self, used: set[str]) -> None:
        self.used = used
        self.out: list[Message] = []
        self.said: list[str] = []

    def batch(self, message: AssistantMessage, results: list[ToolMessage]) -> None:
        """One assistant message with calls, and the results that follow it."""
        results = self._with_ids(message, results)
        by_id: dict[str, ToolMessage] = {}
        for result in results:
            if result.tool_call_id in by_id:
                self.said.append(f"left out a second result of {result.tool_call_id!r}")
            elif all(call.id != result.tool_call_id for call in message.tool_calls):
                self.said.append(f"left out the result of {result.tool_call_id!r}: no such call before it")
            else:
                by_id[result.tool_call_id] = result
        calls: list[ToolCall] = []
        paired: list[ToolMessage] = []
        for call in message.tool_calls:
            result = by_id.pop(call.id, None)
            fresh = self._fresh(call)
            calls.append(fresh)
            paired.append(self._result(fresh, result))
        if [result.tool_call_id for result in results] != [call.id for call in message.tool_calls]:
            self.said.append("put the results in the order of their calls")
        text, reasoning = clean(message.content), clean(message.reasoning)
        self.out += [replace(message, content=text, reasoning=reasoning, tool_calls=tuple(calls)), *paired]

    def _with_ids(self, message: AssistantMessage, results: list[ToolMessage]) -> list[ToolMessage]:
        without = [result for result in results if not result.tool_call_id]
        if not without:
            return results
        answered = {result.tool_call_id for result in results}
        open_calls = [call for call in message.tool_calls if call.id not in answered or not call.id]
        if len(without) > 1 or len(open_calls) != 1:
            raise Ambiguous(f"{len(without)} results without an id for {len(open_calls)} calls: they cannot be paired")
        self.said.append(f"gave the one result without an id to the one open call {open_calls[0].id!r}")
        return [replace(result, tool_call_id=open_calls[0].id) if not result.tool_call_id else result for result in results]

    def _fresh(self, call: ToolCall) -> ToolCall:
        call = ToolCall(id=clean(call.id), name=clean(call.name), arguments=clean(call.arguments))
        if not call.id or call.id in self.used:
            number = len(self.used)
            while (name := f"call_{number}") in self.used:
                number += 1
            self.said.append(
                f"gave a call of {call.name!r} the id {name!r}: {'it had none' if not call.id else f'{call.id!r} was used twice'}"
            )
            call = replace(call, id=name)
        self.used.add(call.id)
        return call

    def _result(self, call: ToolCall, result: ToolMessage | None) -> ToolMessage:
        if result is None:
            self.said.append(f"added a result for {call.id!r}: its outcome is unknown")
            content = f"Tool error ({call.name}): no result was recorded\nIts effect is unknown: it may have happened."
            return ToolMessage(tool_call_id=call.id, name=call.name, content=content, failed=True, effect="unknown")
        return replace(result, tool_call_id=call.id, name=clean(result.name) or call.name, content=_cleaned(result.content))


def _blank(message: Message) -> bool:
    content = message.content
    if isinstance(message, AssistantMessage) and (message.tool_calls or message.wire is not None):
        return False
    if isinstance(content, str):
        return not content.strip()
    return all(isinstance(part, TextPart) and not part.text.strip() for part in content)


def _mended(message: SystemMessage | UserMessage | AssistantMessage) -> Message:
    """``message`` as any store accepts it; the same object if it is that already."""
    content = _cleaned(message.content)
    if isinstance(message, AssistantMessage):
        message = message if (reasoning := clean(message.reasoning)) is message.reasoning else replace(message, reasoning=reasoning)
    return message if content is message.content else replace(message, content=content)  # pyright: ignore[reportArgumentType]


def _cleaned(content: Content) -> Content:
    if isinstance(content, str):
        return clean(content)
    if all(not isinstance(part, TextPart) or clean(part.text) is part.text for part in content):
        return content
    return tuple(TextPart(clean(part.text)) if isinstance(part, TextPart) else part for part in content)
