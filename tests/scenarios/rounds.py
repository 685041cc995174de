"""What the model says in one reply, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.testing import Step, call, calls, cut, eof, error, error_object, hold, raw, reasoning, text

from .stage import Stage

Usage = tuple[int, int] | None


class Round:
    """One reply. ``step`` is the same for the scripted server, in the stage's words."""

    def step(self, stage: Stage) -> Step:
        raise NotImplementedError


@dataclass(frozen=True)
class Says(Round):
    """A text."""

    text: str
    finish: str | None = "stop"
    usage: Usage = (20, 7)

    def step(self, stage: Stage) -> Step:
        return text(stage.words.text(self.text), finish=self.finish, usage=self.usage)


@dataclass(frozen=True)
class Thinks(Round):
    """Reasoning, and perhaps a text."""

    text: str
    then: str = ""
    finish: str | None = "stop"

    def step(self, stage: Stage) -> Step:
        words = stage.words
        return reasoning(words.text(self.text), then=words.text(self.then), finish=self.finish)


class Calls(Round):
    """Calls, each an (id, tool, arguments); arguments are an object, or raw text. ``{n}`` in an id is the request's number."""

    def __init__(
        self, *made: tuple[str, str, Mapping[str, Any] | str], before: str = "", finish: str = "tool_calls", usage: Usage = (10, 5)
    ) -> None:
        self.made = made
        self.before = before
        self.finish = finish
        self.usage = usage

    def step(self, stage: Stage) -> Step:
        words = stage.words
        number = str(len(stage.bodies))
        made = [call(words.id(id.replace("{n}", number)), words.tool(name), arguments) for id, name, arguments in self.made]
        return calls(*made, before=words.text(self.before), finish=self.finish, usage=self.usage)


@dataclass(frozen=True)
class Chunks(Round):
    """Chunks in short form: ``t`` text, ``r`` reasoning, ``c`` call fragments (index, id, name, arguments), ``f`` a finish
    reason, ``u`` usage, ``none`` a chunk without choices, ``error`` an error object."""

    chunks: tuple[dict[str, Any], ...]
    ends: str = "done"

    def step(self, stage: Stage) -> Step:
        return raw(*(_chunk(stage, chunk) for chunk in self.chunks), ends=self.ends)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Torn(Round):
    """The connection breaks after ``chunks`` chunks of what would have been said; None is all but its end."""

    after: Round
    chunks: int | None = None

    def step(self, stage: Stage) -> Step:
        return cut(after=self.after.step(stage), chunks=self.chunks)


@dataclass(frozen=True)
class Trails(Round):
    """The reply ends in good order, but without its end: no finish reason, no [DONE]."""

    after: Round

    def step(self, stage: Stage) -> Step:
        return eof(after=self.after.step(stage))


@dataclass(frozen=True)
class Explodes(Round):
    """An error object inside a 200, after some text."""

    code: int | str | None
    after: str = ""
    message: str = "upstream exploded"

    def step(self, stage: Stage) -> Step:
        return error_object(self.code, self.message, after=stage.words.text(self.after))


@dataclass(frozen=True)
class Status(Round):
    """An HTTP error."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def step(self, stage: Stage) -> Step:
        return error(self.status, headers=self.headers)


@dataclass(frozen=True)
class Held(Round):
    """The beginning of ``after``, then silence until the stage's gate of that name opens, then ``then``."""

    gate: str
    then: Round
    after: str = ""

    def step(self, stage: Stage) -> Step:
        words = stage.words
        return hold(stage.gate(self.gate), then=self.then.step(stage), after=words.text(self.after))


@dataclass(frozen=True)
class ForEver(Round):
    """The same reply to this and every further request; the last round of a scenario."""

    said: Round

    def step(self, stage: Stage) -> Step:
        return self.said.step(stage)


def _chunk(stage: Stage, short: dict[str, Any]) -> dict[str, Any]:
    words = stage.words
    delta: dict[str, Any] = {}
    if "t" in short:
        delta["content"] = words.text(short["t"])
    if "r" in short:
        delta["reasoning_content"] = words.text(short["r"])
    if "c" in short:
        delta["tool_calls"] = [_fragment(stage, *fragment) for fragment in short["c"]]
    whole: dict[str, Any] = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    if "error" in short:
        return {"error": short["error"]}
    if "u" in short:
        prompt, completion = short["u"]
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {**whole, "choices": [], "usage": usage}
    if "none" in short:
        return {**whole, "choices": []}
    return {**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": short.get("f")}]}


def _fragment(stage: Stage, index: int | None, id: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    function: dict[str, Any] = {}
    if name is not None:
        function["name"] = stage.words.tool(name)
    if arguments is not None:
        function["arguments"] = arguments
    fragment: dict[str, Any] = {"type": "function", "function": function}
    if index is not None:
        fragment["index"] = index
    if id is not None:
        fragment["id"] = stage.words.id(id)
    return fragment
