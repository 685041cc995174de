"""A scripted step as Gemini says it: ``generateContent``, and ``streamGenerateContent`` with ``alt=sse``.

What this wire cannot say is said as Gemini would: a call comes whole or not at all, so one whose arguments never become
JSON is missing, and the reply ends with ``MALFORMED_FUNCTION_CALL`` (or ``MAX_TOKENS``, if the script says ``length``). A reply
with calls ends with ``STOP``. The finish reason and the tokens are in the last event. Source: https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from .wire_render import is_chunk, sse

__all__ = ["GoogleEvents", "GoogleWire"]

_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY", "error": "MALFORMED_RESPONSE"}

# https://ai.google.dev/gemini-api/docs/troubleshooting
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GoogleWire:
    """Gemini's wire, streamed or not as the path asks."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self._path = path

    @property
    def streamed(self) -> bool:
        """As the path asks."""
        return self._path.endswith(":streamGenerateContent")

    def writer(self) -> GoogleEvents:
        """For a streamed reply."""
        return GoogleEvents()

    def whole(self, frames: Sequence[dict[str, Any]], ends: str) -> Any:
        """One response: what the events of a stream say, its texts joined."""
        events = GoogleEvents()
        said = [event for frame in frames for event in events.of(frame)]
        return _joined([*said, *events.last(ends)])

    def failure(self, status: int, body: Any) -> Any:
        """Google's error object for OpenAI's; anything else as it is."""
        said = cast("dict[str, Any]", body).get("error") if isinstance(body, dict) else None
        if not isinstance(said, dict) or "type" not in said:
            return cast("Any", body)
        said = cast("dict[str, Any]", said)
        return {"error": {"code": status, "message": said.get("message"), "status": _STATUS.get(status, "UNKNOWN")}}


class GoogleEvents:
    """Says one reply. A call's fragments are kept until it is whole; the finish reason and the tokens until the end."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        """The calls that are not said yet."""
        self._called = False
        self._lost = False
        self._refused = False
        self._own = False
        """The script has events of this wire, and so it says itself how they end."""
        self._finish: str | None = None
        self._tokens: dict[str, Any] | None = None

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """The events of one frame."""
        return b"".join(map(sse, self.of(chunk)))

    def end(self, ends: str) -> bytes:
        """The last event, with the finish reason and the tokens."""
        return b"".join(map(sse, self.last(ends)))

    def of(self, frame: dict[str, Any]) -> list[dict[str, Any]]:
        """One frame as responses of this wire."""
        if not is_chunk(frame):
            self._own = True
            return [frame]
        if frame.get("error"):
            return [*self._flush(), {"error": _error(frame["error"])}]
        if usage := frame.get("usage"):
            self._tokens = _tokens(usage)
        events: list[dict[str, Any]] = []
        for choice in frame.get("choices") or ():
            if not choice.get("index"):
                events += self._choice(choice)
        return events or ([] if frame.get("choices") or frame.get("usage") else [_response([])])

    def last(self, ends: str) -> list[dict[str, Any]]:
        """What is still to be said. ends: ``done`` ends the reply well even if no frame had a finish reason."""
        finish = self._finish or ("stop" if ends == "done" and not self._own else None)
        if finish is None:
            return [_response(None, tokens=self._tokens)] if self._tokens else []
        return [*self._flush(), _response(None, finish=self._word(finish), tokens=self._tokens)]

    def _choice(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        if choice.get("error"):
            return [*self._flush(), {"error": _error(choice["error"])}]
        delta: dict[str, Any] = choice.get("delta") or {}
        said: list[dict[str, Any]] = []
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            said.append({"text": thought, "thought": True})
        if text := delta.get("content"):
            said.append({"text": text})
        if refusal := delta.get("refusal"):
            self._refused = True
            said.append({"text": refusal})
        events = [*self._flush(), _response(said)] if said else []
        for fragment in delta.get("tool_calls") or ():
            self._fragment(fragment)
        finish = choice.get("finish_reason")
        if finish:
            self._finish = finish
        return events

    def _fragment(self, fragment: dict[str, Any]) -> None:
        """One fragment of a call; those of several calls may alternate, so none is said before something else is."""
        function: dict[str, Any] = fragment.get("function") or {}
        index, id, name = fragment.get("index"), fragment.get("id") or "", function.get("name") or ""
        fresh = bool(index is not None and name) and all(call["index"] != index for call in self._calls)
        opens = fresh or (id and all(call["id"] != id for call in self._calls))
        call = None if opens else next((call for call in reversed(self._calls) if call["index"] == index), None)
        if call is None:
            call = cast("dict[str, Any]", {"index": index, "id": id, "name": name, "arguments": ""})
            self._calls.append(call)
        call["arguments"] += function.get("arguments") or ""

    def _flush(self) -> list[dict[str, Any]]:
        """The calls that are whole by now."""
        calls, self._calls = self._calls, []
        parts = [part for part in map(self._part, calls) if part is not None]
        self._called = self._called or bool(parts)
        self._lost = self._lost or len(parts) < len(calls)
        return [_response(parts)] if parts else []

    def _part(self, call: dict[str, Any]) -> dict[str, Any] | None:
        said: dict[str, Any] = {"name": call["name"]}
        if call["arguments"].strip():
            try:
                said["args"] = json.loads(call["arguments"])
            except ValueError:
                return None
        if call["id"]:
            said["id"] = call["id"]
        return {"functionCall": said}

    def _word(self, finish: str) -> str:
        if self._refused:
            return "SAFETY"
        if finish in ("tool_calls", "function_call", "stop"):
            missing = self._lost or (finish != "stop" and not self._called)
            return "MALFORMED_FUNCTION_CALL" if missing else "STOP"
        return _FINISH.get(finish, finish.upper())


def _response(parts: list[dict[str, Any]] | None, *, finish: str | None = None, tokens: dict[str, Any] | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    if finish is not None:
        candidate["finishReason"] = finish
    response: dict[str, Any] = {"candidates": [candidate] if len(candidate) > 1 else []}
    if tokens is not None:
        response["usageMetadata"] = tokens
    return {**response, "modelVersion": "scripted", "responseId": "scripted"}


def _error(error: Any) -> dict[str, Any]:
    """A word in place of a number is the status: that is where this wire has its words."""
    if not isinstance(error, dict):
        return {"message": str(error)}
    said = cast("dict[str, Any]", error)
    code = said.get("code")
    made: dict[str, Any] = {"message": said.get("message")}
    if isinstance(code, int):
        return {"code": code, **made, "status": _STATUS.get(code, "UNKNOWN")}
    word = code or said.get("type")
    return {**made, "status": word} if word else made


def _tokens(usage: dict[str, Any]) -> dict[str, Any]:
    prompt: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    completion: dict[str, Any] = usage.get("completion_tokens_details") or {}
    thoughts, made = completion.get("reasoning_tokens"), usage.get("completion_tokens")
    named = {
        "promptTokenCount": usage.get("prompt_tokens"),
        "cachedContentTokenCount": prompt.get("cached_tokens"),
        "candidatesTokenCount": made if made is None else made - (thoughts or 0),
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": usage.get("total_tokens"),
    }
    return {name: value for name, value in named.items() if value is not None}


def _joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The one response that says the same as these."""
    parts: list[dict[str, Any]] = []
    candidate: dict[str, Any] = {"index": 0}
    response: dict[str, Any] = {}
    for event in events:
        if event.get("error"):
            return {"error": event["error"]}
        response.update({name: value for name, value in event.items() if name != "candidates"})
        for said in event.get("candidates") or ():
            if said.get("index"):
                continue
            candidate.update({name: value for name, value in said.items() if name != "content"})
            content: dict[str, Any] = said.get("content") or {}
            said_parts: list[dict[str, Any]] = content.get("parts") or []
            for part in said_parts:
                before = parts[-1] if parts else {}
                if _plain(part) and _plain(before) and part.get("thought") == before.get("thought"):
                    parts[-1] = {**before, "text": before["text"] + part["text"]}
                else:
                    parts.append(part)
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    return {"candidates": [candidate] if len(candidate) > 1 else [], **response}


def _plain(part: dict[str, Any]) -> bool:
    """Whether a part is only text, which may be joined with its neighbour's."""
    return "text" in part and part.keys() <= {"text", "thought"}
