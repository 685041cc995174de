"""A scripted step on the wire of OpenAI's Responses API.

Text becomes a message item, reasoning a reasoning item with a summary, each call a function_call item. The finish reason
becomes the status: this API has no words of its own for "stop" and "tool_calls", only ``completed``. Events and fields
are those of the API reference (developers.openai.com: Responses, Streaming events).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..messages import StopReason
from ..providers.stops import FAILED, GOES_ON, stop_reason, stop_word
from .wire_render import is_chunk, sse

__all__ = ["ResponsesWire", "ResponsesWriter"]

_INCOMPLETE = {StopReason.LENGTH: "max_output_tokens", StopReason.CONTENT_FILTER: "content_filter"}


class ResponsesWire:
    """Responses: an event for each fragment, items told whole at the end of each, the response told whole at the end."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self._body = body

    @property
    def streamed(self) -> bool:
        """As the body asks."""
        return bool(self._body.get("stream"))

    def writer(self) -> ResponsesWriter:
        """For a streamed reply."""
        return ResponsesWriter()

    def whole(self, frames: Sequence[dict[str, Any]], ends: str) -> Any:
        """One response object, its status missing where a stream would have ended without its last event."""
        writer = ResponsesWriter()
        for frame in frames:
            if is_chunk(frame):
                writer.chunk(frame)
            elif "response" in frame or "output" in frame:
                return frame.get("response", frame)
        if writer.error is not None and not writer.failed:
            return {"error": writer.error}
        writer.end(ends)
        return writer.response

    def failure(self, status: int, body: Any) -> Any:
        """OpenAI's form is this wire's."""
        return body


class ResponsesWriter:
    """Says one streamed reply. response: the whole of it, as far as it was said."""

    def __init__(self) -> None:
        self.response: dict[str, Any] = {
            "id": "resp_scripted",
            "object": "response",
            "created_at": 0,
            "model": "scripted",
            "status": None,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }
        self.error: Any = None
        self.failed = False
        """The error is the response's own, and not an event beside it."""
        self._number = 0
        self._open: dict[str, Any] | None = None
        """The message or reasoning that is being said. Calls stay open to the end: their fragments may alternate."""
        self._calls: list[tuple[int | None, dict[str, Any]]] = []
        self._finish: str | None = None
        self._ended = False

    @property
    def _output(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.response["output"])

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """The events that say what a chunk says; any other frame as an event of its own type."""
        if not is_chunk(chunk):
            return sse(chunk, cast("str | None", chunk.get("type")))
        said = b"" if self._number else self._event("response.created", response={**self.response, "status": "in_progress"})
        if isinstance(usage := chunk.get("usage"), dict):
            self._count(cast("dict[str, Any]", usage))
        if error := chunk.get("error"):
            self.error = error
            return said + self._event("error", **_error_event(_fields(error)))
        for choice in cast("list[dict[str, Any]]", chunk.get("choices") or []):
            if choice.get("index"):
                continue
            said += self._delta(cast("dict[str, Any]", choice.get("delta") or choice.get("message") or {}))
            reason = choice.get("finish_reason")
            if reason and stop_word(reason) not in GOES_ON:
                self._finish = reason
            if choice.get("error") or (reason and stop_word(reason) in FAILED):
                self.failed, self.error = True, choice.get("error") or {"code": "server_error", "message": f"finish reason {reason!r}"}
                said += self.end("eof")
        return said

    def end(self, ends: str) -> bytes:
        """The items that are still open, and the last event, if there is to be one."""
        if self._ended or (self._finish is None and not self.failed and (ends != "done" or self.error is not None)):
            return b""
        self._ended = True
        reason = StopReason.STOP if self._finish is None else stop_reason(self._finish)
        said = b""
        if reason is StopReason.REFUSAL and not self.failed:
            said += self._say("message", "refusal", "response.refusal", "")
        said += self._close()
        for _, item in self._calls:
            place = self._output.index(item)
            where = {"item_id": item["id"], "output_index": place}
            said += self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"])
            said += self._done(item)
        if self.failed:
            self.response.update(status="failed", error=self.error)
        elif reason in _INCOMPLETE:
            self.response.update(status="incomplete", incomplete_details={"reason": _INCOMPLETE[reason]})
        else:
            self.response.update(status="completed")
        return said + self._event(f"response.{self.response['status']}", response=self.response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        said = b""
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            said += self._say("reasoning", "summary_text", "response.reasoning_summary_text", thought)
        if text := delta.get("content"):
            said += self._say("message", "output_text", "response.output_text", text)
        if refusal := delta.get("refusal"):
            said += self._say("message", "refusal", "response.refusal", refusal)
        legacy = delta.get("function_call")
        for fragment in cast("list[dict[str, Any]]", delta.get("tool_calls") or ([{"index": 0, "function": legacy}] if legacy else [])):
            said += self._call(fragment)
        return said

    def _say(self, kind: str, part_kind: str, event: str, text: str) -> bytes:
        """A fragment of a message or of reasoning, its item and its part begun where they are not."""
        said, item = b"", self._open
        field, key = ("summary", "text") if kind == "reasoning" else ("content", "refusal" if part_kind == "refusal" else "text")
        if item is None or item["type"] != kind:
            said += self._close()
            own = {"role": "assistant"} if kind == "message" else {}
            item = self._open = {"id": f"{kind[:3]}_{len(self._output)}", "type": kind, "status": "in_progress", field: [], **own}
            said += self._added(item)
        parts = cast("list[dict[str, Any]]", item[field])
        if not parts or parts[-1]["type"] != part_kind:
            parts.append({"type": part_kind, key: "", **({"annotations": [], "logprobs": []} if part_kind == "output_text" else {})})
            said += self._event(f"{_part_event(item)}.added", **self._where(item, parts), part=parts[-1])
        parts[-1][key] += text
        more: dict[str, Any] = {"logprobs": []} if part_kind == "output_text" else {}
        return said + self._event(f"{event}.delta", **self._where(item, parts), delta=text, **more) if text else said

    def _where(self, item: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
        index = "summary_index" if item["type"] == "reasoning" else "content_index"
        return {"item_id": item["id"], "output_index": self._output.index(item), index: len(parts) - 1}

    def _call(self, fragment: dict[str, Any]) -> bytes:
        function = cast("dict[str, Any]", fragment.get("function") or {})
        index, id, name = cast("tuple[int | None, Any, Any]", (fragment.get("index"), fragment.get("id"), function.get("name")))
        said, item = b"", self._find(index, id, name)
        if item is None:
            said += self._close()
            place = len(self._output)
            item = {"id": f"fc_{place}", "type": "function_call", "status": "in_progress", "call_id": id or "", "name": name or ""}
            item["arguments"] = ""
            self._calls.append((index, item))
            said += self._added(item)
        arguments = function.get("arguments")
        if arguments:
            item["arguments"] += arguments
            where = {"item_id": item["id"], "output_index": self._output.index(item)}
            said += self._event("response.function_call_arguments.delta", **where, delta=arguments)
        return said

    def _find(self, index: int | None, id: str | None, name: str | None) -> dict[str, Any] | None:
        """The call that a fragment goes on with, by the rules by which a plain reply is put together."""
        fresh = index is not None and bool(name) and all(one != index for one, _ in self._calls)
        if fresh or (id and all(item["call_id"] != id for _, item in self._calls)):
            return None
        last = self._calls[-1][1] if self._calls else None
        return next((item for one, item in reversed(self._calls) if one == index), last)

    def _added(self, item: dict[str, Any]) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _close(self) -> bytes:
        """The end of the message or reasoning that is being said, and of its parts."""
        item, self._open = self._open, None
        if item is None:
            return b""
        said, parts = b"", cast("list[dict[str, Any]]", item.get("summary") or item.get("content") or [])
        for number, part in enumerate(parts, 1):
            where, kind = self._where(item, parts[:number]), part["type"]
            key = "refusal" if kind == "refusal" else "text"
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            said += self._event(
                f"response.{'reasoning_summary_text' if kind == 'summary_text' else kind}.done", **where, **{key: part[key]}, **more
            )
            said += self._event(f"{_part_event(item)}.done", **where, part=part)
        return said + self._done(item)

    def _done(self, item: dict[str, Any]) -> bytes:
        item["status"] = "completed"
        return self._event("response.output_item.done", output_index=self._output.index(item), item=item)

    def _count(self, usage: dict[str, Any]) -> None:
        given, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
        prompt, completion = _fields(usage.get("prompt_tokens_details")), _fields(usage.get("completion_tokens_details"))
        self.response["usage"] = {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens", 0), "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", 0)},
            "total_tokens": (given or 0) + (made or 0),
        }


def _part_event(item: dict[str, Any]) -> str:
    return "response.reasoning_summary_part" if item["type"] == "reasoning" else "response.content_part"


def _error_event(error: dict[str, Any]) -> dict[str, Any]:
    """An error in the words of this API's ``error`` event, whose ``type`` is its own: a kind without a code is the code."""
    code = error.get("code") if error.get("code") is not None else error.get("type")
    more = {name: value for name, value in error.items() if name not in ("code", "type")}
    return {"message": "", "param": None, **more, "code": None if code is None else str(code)}


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"message": value}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
