"""What a scripted model says: one ``Step`` per request, built by small functions. Used by WireServer and ScriptedModel.

A step is a row of frames in the form of the chat-completions wire; one step serves streamed and plain requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from ..errors import UsageError
from ..messages import ToolCall

__all__ = [
    "Frame",
    "Handler",
    "Script",
    "Step",
    "assemble",
    "call",
    "calls",
    "cut",
    "eof",
    "error",
    "error_object",
    "hold",
    "raw",
    "reasoning",
    "repeat",
    "text",
    "when",
]

Frame = dict[str, Any] | bytes | asyncio.Event
"""A chunk, bytes to be sent as they are, or a gate: the step waits there until the event is set."""

Usage = tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one request is answered with. Make it with the functions of this module.

    ends: ``done`` (``[DONE]``, then the end), ``eof`` (a clean end without it), ``cut`` (the connection is torn).
    status: an HTTP error instead, with ``body`` and ``headers``.
    """

    frames: tuple[Frame, ...] = ()
    ends: Literal["done", "eof", "cut"] = "done"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    expects: Callable[[dict[str, Any]], object] | None = None
    repeats: bool = False


Handler = Callable[[dict[str, Any]], Step | Awaitable[Step]]


def text(content: str, *, finish: str | None = "stop", usage: Usage = (10, 5), pieces: int = 3) -> Step:
    """An answer in ``pieces`` chunks. finish None leaves the finish reason out; usage None the token counts."""
    return Step(frames=(*map(_content, _pieces(content, pieces)), *_end(finish, usage)))


def reasoning(content: str, *, then: str = "", finish: str | None = "stop", usage: Usage = (10, 5), pieces: int = 3) -> Step:
    """Reasoning in its own field, then the text ``then``, if any."""
    thoughts = [_chunk({"reasoning_content": piece}) for piece in _pieces(content, pieces)]
    return Step(frames=(*thoughts, *map(_content, _pieces(then, pieces)), *_end(finish, usage)))


def call(id: str, name: str, arguments: Mapping[str, Any] | str | None = None) -> ToolCall:
    """One call for ``calls``. arguments: an object, or raw text exactly as the model wrote it, valid or not."""
    given = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}), ensure_ascii=False)
    return ToolCall(id=id, name=name, arguments=given)


def calls(*made: ToolCall, before: str = "", finish: str | None = "tool_calls", usage: Usage = (10, 5), pieces: int = 3) -> Step:
    """Tool calls, each opened by its id and name and continued by ``pieces`` fragments of its arguments, after ``before``."""
    frames: list[Frame] = [*map(_content, _pieces(before, pieces))]
    for index, one in enumerate(made):
        opening = {"index": index, "id": one.id, "type": "function", "function": {"name": one.name, "arguments": ""}}
        frames.append(_chunk({"tool_calls": [opening]}))
        for piece in _pieces(one.arguments, pieces):
            frames.append(_chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    return Step(frames=(*frames, *_end(finish, usage)))


def raw(*frames: Frame, ends: Literal["done", "eof", "cut"] = "done") -> Step:
    """Exactly these chunks, bytes and gates."""
    return Step(frames=frames, ends=ends)


def error(status: int, message: str = "scripted error", *, headers: Mapping[str, str] | None = None, body: Any = None) -> Step:
    """An HTTP error. body: instead of the usual error object; anything JSON-able, or bytes."""
    if not 300 <= status <= 599:
        raise UsageError(f"error(): {status} is not an HTTP error status")
    given = {"error": {"message": message, "type": "scripted", "code": None}} if body is None else body
    return Step(status=status, headers=dict(headers or {}), body=given)


def error_object(
    code: int | str | None = None,
    message: str = "scripted error",
    *,
    after: Step | str = "",
    shape: Literal["top", "choice", "finish"] = "top",
) -> Step:
    """An error inside an HTTP 200, after some text.

    shape: ``top``: a top-level ``error``; ``choice``: ``error`` within the choice; ``finish``: only the finish reason ``error``.
    """
    said = {"message": message, "code": code}
    delta = {"role": "assistant", "content": ""}
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": "error"}
    shapes: dict[str, dict[str, Any]] = {
        "top": {"error": said, "choices": []},
        "choice": {"choices": [{**choice, "error": said}], "usage": None},
        "finish": {"choices": [choice], "usage": None},
    }
    chunk = shapes[shape]
    return Step(frames=(*_beginning(after), chunk), ends="eof")


def cut(*, after: Step | str = "", chunks: int | None = None) -> Step:
    """The connection is torn after what ``after`` says without its end, or after its first ``chunks`` chunks."""
    return Step(frames=_beginning(after, chunks), ends="cut")


def eof(*, after: Step | str = "", chunks: int | None = None) -> Step:
    """As ``cut``, but the reply ends in good order, only without a finish reason and ``[DONE]``."""
    return Step(frames=_beginning(after, chunks), ends="eof")


def hold(gate: asyncio.Event, *, then: Step | None = None, after: Step | str = "") -> Step:
    """Say the beginning of ``after``, wait until ``gate`` is set (or the client is gone), then play ``then``.

    Before the first frame not even the HTTP head is sent; ``raw(b"", gate)`` sends the head and then waits.
    """
    following = then or text("")
    return replace(following, frames=(*_beginning(after), gate, *following.frames))


def repeat(step: Step) -> Step:
    """The last step of a script, for this and every further request. It may also go unused."""
    return replace(step, repeats=True)


def when(expects: Callable[[dict[str, Any]], object], step: Step) -> Step:
    """``step``, if ``expects(body)`` is true for the request; otherwise, or if it raises AssertionError, the script fails."""
    return replace(step, expects=expects)


class Script:
    """The strict order of steps: a request beyond them, or a step never asked for, is a failure.

    steps: a row of steps, or a function from the request's body to a step.
    """

    def __init__(self, steps: Iterable[Step] | Handler) -> None:
        self._handler: Handler | None = steps if callable(steps) else None
        self._steps: list[Step] = [] if callable(steps) else list(steps)
        self._next = 0
        self.failures: list[str] = []
        for step in self._steps[:-1]:
            if step.repeats:
                raise UsageError("repeat() can only be the last step of a script")

    async def step(self, body: dict[str, Any]) -> Step:
        """The step for this request. A failure is kept for ``assert_done`` and answered with HTTP 400."""
        number = self._next + 1
        if self._handler is not None:
            try:
                made = self._handler(body)
                step = made if isinstance(made, Step) else await made
            except Exception as error:  # whatever a test's own function raises fails the script, and is seen there
                return self.fail(f"request {number}: the handler raised {type(error).__name__}: {error}")
        elif self._next < len(self._steps):
            step = self._steps[self._next]
        elif self._steps and self._steps[-1].repeats:
            step = self._steps[-1]
        else:
            return self.fail(f"request {number} was not expected: the script has {len(self._steps)} steps")
        self._next = number
        return self._checked(step, body, number)

    def _checked(self, step: Step, body: dict[str, Any], number: int) -> Step:
        if step.expects is None:
            return step
        try:
            if step.expects(body):
                return step
            why = f"expectation {getattr(step.expects, '__name__', step.expects)!r} does not hold"
        except AssertionError as error:
            why = str(error) or "an assertion failed"
        return self.fail(f"request {number}: {why}")

    def fail(self, why: str) -> Step:
        """Keep a failure, and what the request that caused it is answered with."""
        self.failures.append(why)
        return error(400, f"script: {why}")

    def assert_done(self) -> None:
        """Raise AssertionError if a request was not expected, an expectation failed, or a step was never asked for."""
        unused = [step for step in self._steps[self._next :] if not step.repeats]
        problems = [*self.failures]
        if unused:
            problems.append(f"{len(unused)} of {len(self._steps)} steps were never asked for")
        if problems:
            raise AssertionError("script: " + "; ".join(problems))


def assemble(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The plain reply that says the same as these chunks."""
    made: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": "assistant", "content": None}
    reply: dict[str, Any] = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": "scripted"}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": None}
    for chunk in chunks:
        reply.update({key: value for key, value in chunk.items() if key in ("usage", "error", "x_groq") and value is not None})
        for part in cast("list[dict[str, Any]]", chunk.get("choices") or []):
            if part.get("index"):
                continue
            choice.update({key: value for key, value in part.items() if key in ("finish_reason", "error") and value is not None})
            for key, value in cast("dict[str, Any]", part.get("delta") or {}).items():
                if key == "tool_calls":
                    _join_calls(made, value or [])
                elif value is not None and key != "role":
                    before = message.get(key)
                    message[key] = value if before is None else before + value
    if made:
        message["tool_calls"] = [{key: value for key, value in one.items() if key != "index"} for one in made]
    return reply if reply.get("error") else {**reply, "choices": [choice]}


def _join_calls(made: list[dict[str, Any]], fragments: list[dict[str, Any]]) -> None:
    for fragment in fragments:
        index: int | None = fragment.get("index")
        function: dict[str, Any] = fragment.get("function") or {}
        # A name on an unused index opens a call whatever its id is: ids may be equal, or missing.
        fresh = bool(index is not None and function.get("name")) and all(one["index"] != index for one in made)
        opens = fresh or (fragment.get("id") and all(one.get("id") != fragment["id"] for one in made))
        target = None if opens else next((one for one in reversed(made) if one["index"] == index), made[-1] if made else None)
        if target is None:
            made.append({"index": index, "id": fragment.get("id"), "type": "function", "function": {"arguments": "", **function}})
            continue
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            target["function"]["arguments"] += arguments


def _beginning(after: Step | str, chunks: int | None = None) -> tuple[Frame, ...]:
    """The frames of ``after`` without finish reason and usage, at most ``chunks`` of them."""
    step = text(after, pieces=2 if len(after) > 1 else 1) if isinstance(after, str) else after
    frames = [frame for frame in step.frames if not (isinstance(frame, dict) and _is_end(frame))]
    return tuple(frames[:chunks])


def _is_end(chunk: dict[str, Any]) -> bool:
    return not chunk.get("choices") or bool(chunk["choices"][0].get("finish_reason"))


def _end(finish: str | None, usage: Usage) -> list[Frame]:
    frames: list[Frame] = [] if finish is None else [_chunk({}, finish)]
    if usage is not None:
        frames.append(
            {**_chunk({}), "choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}}
        )
    return frames


def _content(piece: str) -> dict[str, Any]:
    return _chunk({"content": piece})


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}


def _pieces(content: str, count: int) -> list[str]:
    size = max(1, -(-len(content) // max(1, count)))
    return [content[start : start + size] for start in range(0, len(content), size)]
