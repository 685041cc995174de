"""What a person is asked, and how far a yes may reach."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

from ..messages import ToolCall

Scope = Literal["session", "tool", "always"]
"""How far a yes reaches beyond this once. ``session``: the same tool with the same arguments, for the rest of the session; ``tool``: the
same tool, whatever its arguments, for the rest of the session; ``always``: the same tool with the same arguments, in later sessions too."""
SCOPES: tuple[Scope, ...] = get_args(Scope)


class Question(Struct, frozen=True, gc=False, kw_only=True):
    """What a person is asked. id: what ``answer`` takes.

    call: as the model made it. arguments: the exact ones that an answer is about, JSON with sorted keys. expires_at: seconds since
    1970 after which no answer is a denial; None is never. scopes: what ``Allow(scope)`` may say beside "once". asked_by: the layer
    that asked.
    """

    id: str
    key: str
    call: ToolCall
    text: str
    arguments: str = ""
    expires_at: float | None = None
    scopes: tuple[Scope, ...] = ()
    asked_by: str = ""
