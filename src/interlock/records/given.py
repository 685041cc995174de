"""What lies behind a result: its full copy, and what was given before a layer made something else of it."""

from __future__ import annotations

from msgspec import Struct

from ..messages import AssistantMessage, Content, StopReason


class Payload(Struct, frozen=True, gc=False):
    """Where the full copy of a result lies: its content hash and its size in bytes (UTF-8)."""

    digest: str
    size: int


class Received(Struct, frozen=True, gc=False):
    """What the provider had answered, where a layer then changed it. A replay gives it to the layers again."""

    message: AssistantMessage
    stop: StopReason


class Returned(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a handler itself gave, where the result does not say it. A replay gives it to the layers again.

    content: as a result's; None if it is the result's own. json: the value was not text, and its JSON is the content. error: the
    class of the exception that the handler raised (``module:name``, Python's own by the name alone); its text is then the content.
    payload: the full copy of a capped content.
    """

    content: Content | None = None
    json: bool = False
    error: str = ""
    payload: Payload | None = None
