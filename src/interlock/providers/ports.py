"""The two halves of a wire: a writer, which makes requests, and a reply, which reads them. Neither does I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..messages import Usage
from ..model import ModelRequest, ModelResponse, ReasoningDelta, TextDelta, ToolCallDelta

__all__ = ["Delta", "WireReply", "WireWriter"]

Delta = TextDelta | ReasoningDelta | ToolCallDelta


class WireWriter(Protocol):
    """Makes the requests of one model. What belongs to a session it keeps in ``request.scratch``."""

    def path(self, request: ModelRequest) -> str:
        """Where the request goes, below the base URL; a query after ``?`` is added to the base URL's own."""
        ...

    def body(self, request: ModelRequest, owner: object) -> bytes:
        """The whole body. owner: the key in ``request.scratch``. Raises UsageError for what the wire cannot say."""
        ...


class WireReply(Protocol):
    """Reads one reply. ``take`` each event's data in order, or a whole JSON reply; ``response`` once it has ended.

    done: nothing follows. finished: there is terminal evidence, and little may follow. said: something was said that is
    not shown (the reader of the stream resets it; a keep-alive never sets it).
    """

    done: bool
    finished: bool
    said: bool

    @property
    def usage(self) -> Usage | None:
        """The tokens that were reported so far."""
        ...

    @property
    def begun(self) -> bool:
        """Whether anything at all of a message was read."""
        ...

    def take(self, payload: bytes, *, last: bool = False) -> Sequence[Delta]:
        """Take the data of one event and return what there is to show of it.

        last: this is the whole reply, or the stream ended without this event's blank line, so that it may be a fragment.
        Raises ProviderError: ``error_object`` for an error inside the reply, ``malformed`` for what is no JSON, ``cut``.
        """
        ...

    def response(self) -> ModelResponse:
        """The whole reply. Raises ProviderError: ``cut`` without terminal evidence, ``error_object`` if the provider failed."""
        ...
