"""What an adapter keeps of a session, so that each message and each set of tools is encoded once, whatever the wire.

It lives in ``request.scratch``, which is the session's. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UsageError
from ..messages import Message, UserMessage
from ..model import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from .common import carried

__all__ = ["EncodedHistory", "SessionCache", "Sessions"]

Encode = Callable[[Message, tuple[ToolSpec, ...]], bytes]
"""One message as the wire has it, ``b""`` if it has nothing to say. The tools: those offered, whose names are sent as they are."""


Head = Callable[[ModelSettings, tuple[ToolSpec, ...], OutputSpec | None], bytes]
"""Everything of a body but its messages, from all that it depends on."""


class EncodedHistory:
    """The encoded messages of one conversation. Comparing tuples is by identity first, in C, so a longer history of
    the same messages costs one comparison and its tail; an edit anywhere costs the messages that are new."""

    __slots__ = ("_encode", "_encoded", "_messages", "_some_left_out")

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._messages: tuple[Message, ...] = ()
        self._encoded: list[bytes] = []
        self._some_left_out = False

    def encode(self, messages: tuple[Message, ...], offered: tuple[ToolSpec, ...] = ()) -> bytes:
        """The JSON of ``messages``, without the brackets around it."""
        encoded = self.each(messages, offered)
        return b",".join(filter(None, encoded) if self._some_left_out else encoded)

    def each(self, messages: tuple[Message, ...], offered: tuple[ToolSpec, ...] = ()) -> list[bytes]:
        """The same, one entry for each message (``b""``: nothing to say), for a wire that groups them. Not to be changed."""
        old, encoded = self._messages, self._encoded
        if messages is not old:
            kept = len(old)
            known: dict[int, bytes] = {}
            if messages[:kept] != old:
                kept = _common_prefix(old, messages)
                known = dict(zip(map(id, old[kept:]), encoded[kept:], strict=True))  # ``old`` is alive, so ids are unique
            tail: list[bytes] = []
            for place, message in enumerate(messages[kept:], kept + 1):
                data = known.get(id(message))
                tail.append(self._one(message, offered, messages, place) if data is None else data)
            encoded[kept:] = tail
            self._messages = messages
            self._some_left_out = self._some_left_out or b"" in tail
        return encoded

    def _one(self, message: Message, offered: tuple[ToolSpec, ...], messages: tuple[Message, ...], later: int) -> bytes:
        """Raises UsageError for a prompt with a file that this wire cannot carry. Once there is a newer prompt that file is named in a
        line of text instead: its own run has failed over it and said so, and no later run may fail over it again."""
        try:
            return self._encode(message, offered)
        except UsageError:
            if not isinstance(message, UserMessage) or not any(isinstance(other, UserMessage) for other in messages[later:]):
                raise
            content = carried(message.content, lambda part: self._encode(UserMessage(content=(part,)), offered))
            return self._encode(UserMessage(content=content), offered)


def _common_prefix(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """How many first messages are equal, by halving: each step compares slices in C."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class SessionCache:
    """What one model has encoded of one session. head: everything of the body but the messages, as the writer made it."""

    __slots__ = ("head", "history", "output", "settings", "tools")

    def __init__(self, encode: Encode) -> None:
        self.head = b""
        self.tools: tuple[ToolSpec, ...] | None = None
        self.settings = ModelSettings()
        self.output: OutputSpec | None = None
        self.history = EncodedHistory(encode)


class Sessions:
    """The caches of one model, one in each session's ``request.scratch``.

    head: makes the head of a body; called once for all sessions that have equal settings, tools and form of the answer.
    """

    __slots__ = ("_head", "_last")

    def __init__(self, head: Head) -> None:
        self._head = head
        self._last: tuple[tuple[ToolSpec, ...], ModelSettings, OutputSpec | None, bytes] | None = None
        """The newest head: a new session of the same agent has the same."""

    def of(self, request: ModelRequest, owner: object, encode: Encode) -> SessionCache:
        """The cache of this request's session, its head up to date. owner: the key in ``request.scratch``, so that two
        models of a session do not mix."""
        cache = request.scratch.get(owner)
        if not isinstance(cache, SessionCache):
            cache = request.scratch[owner] = SessionCache(encode)
        tools, settings, output = request.tools, request.settings, request.output
        same = cache.tools is tools and cache.settings is settings and cache.output is output
        if not (same or (cache.tools, cache.settings, cache.output) == (tools, settings, output)):
            # Equal, not the same: each session has a tuple of its own, of the same specs, which compare by identity first.
            if self._last is None or self._last[:3] != (tools, settings, output):
                self._last = (tools, settings, output, self._head(settings, tools, output))
            cache.tools, cache.settings, cache.output, cache.head = self._last
        return cache
