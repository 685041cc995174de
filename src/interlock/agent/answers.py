"""What a person may say to a question, besides plain values."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from ..errors import UsageError
from ..machine import Answer
from ..messages import clean, clean_tree
from ..records import SCOPES


class Allow(Struct, frozen=True):
    """Yes, to exactly these arguments. The layer that asked reads True as ``context.answer``.

    scope: ``"once"``; ``"session"``, every call of this tool with these very arguments in this session; ``"tool"``, every call of this
    tool in this session, whatever its arguments; ``"always"``, these very arguments in every session. A question takes those that it
    offers (``question.scopes``).
    """

    scope: Literal["once", "session", "tool", "always"] = "once"


class Deny(Struct, frozen=True):
    """No. The call is settled without running, and the model is told ``reason``; no layer is asked again."""

    reason: str = ""


class Edit(Struct, frozen=True):
    """Not so, but with these ``arguments`` (a JSON object). The call enters its layers anew with them, without an answer: whoever asked
    asks again."""

    arguments: dict[str, Any]


def answer_of(question_id: object, answer: object, *, at: float) -> Answer:
    """The command that gives ``answer`` at ``at`` (seconds since 1970). Raises UsageError for what cannot be one."""
    if not isinstance(question_id, str):
        raise UsageError(f"question_id must be a string, not {type(question_id).__name__}")
    for kind in (Allow, Deny, Edit):
        if answer is kind:
            raise UsageError(f"the answer is the class {kind.__name__}; make an instance of it: {kind.__name__}(...)")
    match answer:
        case Allow("once"):
            return Answer(question_id=question_id, answer=True, at=at)
        case Allow(scope):
            if scope not in SCOPES:
                raise UsageError(f"Allow(scope): 'once', {', '.join(map(repr, SCOPES))} are possible, not {scope!r}")
            return Answer(question_id=question_id, answer=True, at=at, scope=scope)
        case Deny():
            return Answer(question_id=question_id, answer=clean(_text(answer.reason)), verdict="deny", at=at)
        case Edit():
            if not isinstance(answer.arguments, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"Edit(arguments): a dict is needed, not {type(cast('object', answer.arguments)).__name__}")
            return Answer(question_id=question_id, answer=_plain(answer.arguments), verdict="edit", at=at)
        case _:
            return Answer(question_id=question_id, answer=_plain(answer), at=at)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"Deny(reason): text is needed, not {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(clean_tree(value)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"the answer must be JSON-able: {error}") from error
