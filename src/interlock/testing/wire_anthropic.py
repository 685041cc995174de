"""A scripted step on the wire of Anthropic's Messages API.

Reasoning becomes a signed thinking block, text a text block, each call a tool_use block. Events and fields are those of the
API reference (platform.claude.com/docs/en/build-with-claude/streaming), which puts the stop reason and the token counts into
one message_delta at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from .wire_render import is_chunk, sse

__all__ = ["SIGNATURE", "AnthropicWire", "AnthropicWriter"]

SIGNATURE = "c2NyaXB0ZWQ="
"""Of every thinking block that a script says."""

# Chat completions' words in Anthropic's; any other goes as it is.
_STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "function_call": "tool_use", "length": "max_tokens"}

# platform.claude.com/docs/en/api/errors
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicWire:
    """Messages: an event for each fragment, or one message."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self._body = body

    @property
    def streamed(self) -> bool:
        """As the body asks."""
        return bool(self._body.get("stream"))

    def writer(self) -> AnthropicWriter:
        """For a streamed reply."""
        return AnthropicWriter(self._body.get("model"))

    def whole(self, frames: Sequence[dict[str, Any]], ends: str) -> Any:
        """One message; its stop reason is null where a stream would have ended without one."""
        writer = self.writer()
        for frame in frames:
            if frame.get("type") == "message":
                return frame
            writer.chunk(frame)
        if writer.error is not None:
            return writer.error
        writer.end(ends)
        return writer.message

    def failure(self, status: int, body: Any) -> Any:
        """``{"type": "error", "error": {...}}``, the type by the status; a body in any other form than OpenAI's as it is."""
        fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        error = fields.get("error")
        if not isinstance(error, dict) or "type" in fields:
            return cast("Any", body)
        return _error(status, cast("dict[str, Any]", error).get("message"))


class AnthropicWriter:
    """Says one streamed reply. message: the whole of it, as far as it was said. error: what it failed with."""

    def __init__(self, model: Any) -> None:
        self.message: dict[str, Any] = {
            "id": "msg_scripted",
            "type": "message",
            "role": "assistant",
            "model": model if isinstance(model, str) else "scripted",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {},  # a script tells the counts at its end
        }
        self.error: dict[str, Any] | None = None
        self._begun = False
        self._open: int | None = None
        """The block that is being said."""
        self._calls: list[tuple[int | None, int]] = []
        """The index that fragments name, and the block of that call."""
        self._inputs: dict[int, str] = {}
        self._finish: str | None = None
        self._ended = False

    @property
    def _content(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.message["content"])

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """The events that say what a chunk says; any other frame as an event of its own type."""
        if not is_chunk(chunk):
            self._own(chunk)
            return sse(chunk, cast("str | None", chunk.get("type")))
        said = b"" if self._begun else self._event({"type": "message_start", "message": {**self.message, "content": []}})
        self._begun = True
        if isinstance(usage := chunk.get("usage"), dict):
            self._count(cast("dict[str, Any]", usage))
        error = chunk.get("error")
        for choice in cast("list[dict[str, Any]]", chunk.get("choices") or []):
            if choice.get("index"):
                continue
            said += self._delta(cast("dict[str, Any]", choice.get("delta") or choice.get("message") or {}))
            self._finish = choice.get("finish_reason") or self._finish
            error = error or choice.get("error")
        if error:
            fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
            self.error = _error(fields.get("code"), fields.get("message"))
            said += self._event(self.error)
        return said

    def end(self, ends: str) -> bytes:
        """The end of the block that is being said, the stop reason with the token counts, and, after ``done``, message_stop."""
        if self._ended or self.error is not None or not self._begun or (self._finish is None and ends != "done"):
            return b""
        self._ended = True
        said = self._close()
        for place, text in self._inputs.items():
            self._content[place]["input"] = _input(text)
        self.message["stop_reason"] = _STOPS.get(self._finish or ("tool_calls" if self._calls else "stop"), self._finish)
        if self._finish == "refusal":
            self.message["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
        ending = {key: self.message[key] for key in ("stop_reason", "stop_sequence", "stop_details") if key in self.message}
        counted = {"usage": self.message["usage"]} if self.message["usage"] else {}
        said += self._event({"type": "message_delta", "delta": ending, **counted})
        return said + (self._event({"type": "message_stop"}) if ends == "done" else b"")

    def _event(self, event: dict[str, Any]) -> bytes:
        return sse(event, event["type"])

    def _delta(self, delta: dict[str, Any]) -> bytes:
        said = b""
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            said += self._say("thinking", thought)
        if text := delta.get("content"):
            said += self._say("text", text)
        if refusal := delta.get("refusal"):
            self._finish = "refusal"
            said += self._say("text", refusal)
        legacy = delta.get("function_call")
        for fragment in cast("list[dict[str, Any]]", delta.get("tool_calls") or ([{"index": 0, "function": legacy}] if legacy else [])):
            said += self._call(fragment)
        return said

    def _say(self, kind: str, text: str) -> bytes:
        said = b""
        if self._open is None or self._content[self._open]["type"] != kind:
            own = {"signature": ""} if kind == "thinking" else {}
            said = self._begin({"type": kind, kind: "", **own})
        block = self._content[cast("int", self._open)]
        block[kind] += text
        return said + self._piece({"type": f"{kind}_delta", kind: text})

    def _call(self, fragment: dict[str, Any]) -> bytes:
        function = cast("dict[str, Any]", fragment.get("function") or {})
        index, id, name = cast("tuple[int | None, Any, Any]", (fragment.get("index"), fragment.get("id"), function.get("name")))
        place = self._find(index, id, name)
        said = b""
        if place is None:
            said = self._begin({"type": "tool_use", "id": id or "", "name": name or "", "input": {}})
            place = cast("int", self._open)
            self._calls.append((index, place))
            self._inputs[place] = ""
        arguments = function.get("arguments")
        if not arguments:
            return said
        self._inputs[place] += arguments
        return said + self._piece({"type": "input_json_delta", "partial_json": arguments}, place)

    def _find(self, index: int | None, id: str | None, name: str | None) -> int | None:
        """The call that a fragment goes on with, by the rules by which a plain reply is put together."""
        fresh = index is not None and bool(name) and all(one != index for one, _ in self._calls)
        if fresh or (id and all(self._content[place]["id"] != id for _, place in self._calls)):
            return None
        last = self._calls[-1][1] if self._calls else None
        return next((place for one, place in reversed(self._calls) if one == index), last)

    def _begin(self, block: dict[str, Any]) -> bytes:
        said = self._close()
        self._open = len(self._content)
        self._content.append(block)
        return said + self._event({"type": "content_block_start", "index": self._open, "content_block": block})

    def _piece(self, delta: dict[str, Any], place: int | None = None) -> bytes:
        return self._event({"type": "content_block_delta", "index": self._open if place is None else place, "delta": delta})

    def _close(self) -> bytes:
        """The end of the block that is being said; thinking is signed there."""
        place, said = self._open, b""
        if place is None:
            return said
        if self._content[place]["type"] == "thinking":
            self._content[place]["signature"] = SIGNATURE
            said = self._piece({"type": "signature_delta", "signature": SIGNATURE})
        self._open = None
        return said + self._event({"type": "content_block_stop", "index": place})

    def _count(self, usage: dict[str, Any]) -> None:
        """Anthropic counts what a cache was read for apart from the other input."""
        prompt = cast("dict[str, Any]", usage.get("prompt_tokens_details") or {})
        completion = cast("dict[str, Any]", usage.get("completion_tokens_details") or {})
        given, cached, thought = usage.get("prompt_tokens"), prompt.get("cached_tokens"), completion.get("reasoning_tokens")
        counts = {
            "input_tokens": given if given is None or not cached else given - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.get("completion_tokens"),
            "output_tokens_details": None if thought is None else {"thinking_tokens": thought},
        }
        self.message["usage"] = {name: value for name, value in counts.items() if value is not None}

    def _own(self, event: dict[str, Any]) -> None:
        """Put an event of this wire's own into the message, as a client does (accumulate_event of the official SDK)."""
        place: int = event.get("index", 0)
        match event.get("type"):
            case "message_start":
                self.message.update(json.loads(json.dumps(event["message"])))
            case "content_block_start":
                self._content.append(dict(event["content_block"]))
            case "content_block_delta":
                delta = dict(event["delta"])
                match delta.pop("type"):
                    case "input_json_delta":
                        self._inputs[place] = self._inputs.get(place, "") + delta["partial_json"]
                    case "citations_delta":
                        self._content[place]["citations"] = [*(self._content[place].get("citations") or []), delta["citation"]]
                    case _:
                        for name, text in delta.items():
                            self._content[place][name] = (self._content[place].get(name) or "") + text
            case "message_delta":
                self.message.update({name: value for name, value in event["delta"].items() if value is not None})
                self.message["usage"] = {**(self.message["usage"] or {}), **(event.get("usage") or {})}
                for at, text in self._inputs.items():
                    self._content[at]["input"] = _input(text)
            case "error":
                self.error = event
            case _:
                pass


def _error(code: Any, message: Any) -> dict[str, Any]:
    """code: a status, or a word of the test's own."""
    kind = code or "api_error"
    if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()):
        kind = _ERRORS.get(int(code), "api_error" if int(code) >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message or ""}}


def _input(text: str) -> Any:
    """A plain reply holds the input parsed; what is no JSON could not be in one, and goes as the text that it is."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text
