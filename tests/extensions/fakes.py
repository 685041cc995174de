"""Small stand-ins for what the driver gives to a layer."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.extensions.base import ToolInvocation
from interlock.messages import ToolCall
from interlock.tools import Tool


class Context:
    """A RunContext as far as the built-in layers ask it."""

    def __init__(self, *, session_id: str = "s", run_id: str = "r", memory: Any = None, payloads: dict[str, bytes] | None = None) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.memory = memory
        self.payloads = payloads or {}
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    async def read_payload(self, digest: str) -> bytes | None:
        return self.payloads.get(digest)


def invocation(made: Tool, arguments: dict[str, Any]) -> ToolInvocation:
    """A call whose arguments are this very dictionary, as if a layer had put it there."""
    call = ToolCall(id="call_1", name=made.name, arguments=msgspec.json.encode(arguments).decode())
    made_call = ToolInvocation(call, key="r.0.0", tool=made)
    made_call.arguments = arguments
    return made_call


class Next:
    """A ``call_next`` that counts."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> Any:
        self.calls += 1
        return "ran"
