"""Reading a reply that is held to one of the forms (see ``forms``), while it comes. No I/O here.

The text of an answer is shown as it comes out of its JSON string, wherever the pieces are cut: an escape, or half a surrogate
pair, is shown with its rest. The arguments of a call are the text that the model wrote, character by character.
"""

from __future__ import annotations

import json
import re

from ..errors import ProviderError
from ..messages import AssistantMessage, StopReason, ToolCall, clean
from ..model import ModelResponse, Stop, TextDelta, ToolCallDelta

__all__ = ["FormReader", "read_form"]

_HEAD = re.compile(r'\s*\{\s*(?:"answer"\s*:\s*(?=["{])|"tool"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{))')
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4}))')
_BEGUN = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")
"""The beginning of an escape, or nothing: its rest may still come."""
_OUTSIDE = re.compile(r'[^"{}\[\]]+')

_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class FormReader:
    """What one reply amounts to so far. ``feed`` its text in pieces.

    name: the tool that is called; None for an answer, and until it is known. complete: the form was read to its end.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.complete = False
        self._value: list[str] = []
        self._rest = ""
        self._step = self._head
        self._depth = 0
        self._quoted = False
        """Inside a string of a value that is taken as it stands."""

    @property
    def value(self) -> str:
        """The answer's text, or the arguments of the call, as far as they came."""
        return "".join(self._value)

    def feed(self, piece: str) -> list[TextDelta | ToolCallDelta]:
        """Take the next piece and return what there is to show of it."""
        self._rest += piece
        shown: list[TextDelta | ToolCallDelta] = []
        while self._rest:
            step = self._step
            text = step()
            if text:
                self._value.append(text)
                shown.append(TextDelta(text) if self.name is None else ToolCallDelta(0, "", self.name, text))
            if self._step == step:
                break  # it has taken what it could
        return shown

    def _head(self) -> str:
        found = _HEAD.match(self._rest)
        if found is None:
            return ""
        if found[1] is not None:
            self.name = clean(str(json.loads(found[1], strict=False)))
        self._rest = self._rest[found.end() :]
        if self._rest[0] == '"':
            self._rest = self._rest[1:]
            self._step = self._string
        else:
            self._step = self._object
        return ""

    def _string(self) -> str:
        """Text, decoded."""
        rest, place, text = self._rest, 0, list[str]()
        while place < len(rest):
            plain = _PLAIN.match(rest, place)
            if plain is not None:
                text.append(plain[0])
                place = plain.end()
            elif rest[place] == '"':
                place += 1
                self._step = self._end
                break
            else:
                character, end = _unescaped(rest, place)
                if end == place:
                    if character:
                        self._step = self._wrong
                    break
                text.append(character)
                place = end
        self._rest = rest[place:]
        return "".join(text)

    def _object(self) -> str:
        """An object, as it stands."""
        rest, place = self._rest, 0
        while place < len(rest):
            part = (_PLAIN if self._quoted else _OUTSIDE).match(rest, place)
            if part is not None:
                place = part.end()
                continue
            character = rest[place]
            if character == "\\":
                if place + 1 == len(rest):
                    break
                place += 1
            elif character == '"':
                self._quoted = not self._quoted
            else:
                self._depth += 1 if character in "{[" else -1
            place += 1
            if not self._depth:
                self._step = self._end
                break
        self._rest = rest[place:]
        return rest[:place]

    def _end(self) -> str:
        """What closes the form: one brace."""
        rest = self._rest.strip()
        if rest == "}":
            self.complete, self._rest = True, ""
            self._step = self._after
        elif rest:
            self._step = self._wrong
        return ""

    def _after(self) -> str:
        if self._rest.strip():
            self.complete = False
            self._step = self._wrong
        return ""

    def _wrong(self) -> str:
        """It is none of the forms, and nothing more of it counts."""
        self._rest = ""
        return ""


def _unescaped(text: str, place: int) -> tuple[str, int]:
    """The character of the escape at ``place``, and where it ends. It ends at ``place`` if its rest is not there yet (``""``), or
    if it is no escape."""
    found = _ESCAPE.match(text, place)
    if found is None:
        return ("" if _BEGUN.fullmatch(text, place) else text[place]), place
    end = found.end()
    if found[1]:
        return _ESCAPED[found[1]], end
    code = int(found[2], 16)
    if 0xD800 <= code <= 0xDBFF:
        low = _ESCAPE.match(text, end)
        if low is None and _BEGUN.fullmatch(text, end):
            return "", place
        if low is not None and low[2] and 0xDC00 <= (second := int(low[2], 16)) <= 0xDFFF:
            return chr(0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)), low.end()
    return clean(chr(code)), end


def read_form(response: ModelResponse) -> ModelResponse:
    """The response that a reply of one of the forms stands for.

    One that a limit has cut off keeps its reason, and what there is of its answer or its call. Raises ProviderError, of kind
    ``malformed``, for one that ended otherwise and is none of the forms: the endpoint did not hold the model to the schema.
    """
    reader = FormReader()
    reader.feed(response.message.content)
    stop = response.stop
    if stop.reason in (StopReason.STOP, StopReason.UNKNOWN, StopReason.TOOL_CALLS):
        if not reader.complete:
            start = response.message.content[:200]
            text = f"the reply does not have the form that was asked for; the endpoint must support JSON schemas: {start!r}"
            raise ProviderError(text, retryable=True, kind="malformed", usage=response.usage)
        stop = Stop(StopReason.STOP if reader.name is None else StopReason.TOOL_CALLS, stop.raw)
    if reader.name is None:
        message = AssistantMessage(content=clean(reader.value), reasoning=response.message.reasoning)
    else:
        call = ToolCall(id="", name=reader.name, arguments=clean(reader.value))
        message = AssistantMessage(content="", tool_calls=(call,), reasoning=response.message.reasoning)
    return ModelResponse(message=message, stop=stop, usage=response.usage)
