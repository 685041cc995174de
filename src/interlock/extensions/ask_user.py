"""``AskUser``: a tool with which the model asks the person in front of it, today or next week."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ..messages import clean
from ..tools import InvalidArguments, Tool
from .base import AgentExtension, CallNext, RunContext, Suspended, ToolInvocation

__all__ = ["ASK_USER", "AskUser"]

QUESTION_CHARACTERS_MAX = 4000
CHOICES_MAX = 20
CHOICE_CHARACTERS_MAX = 300

ASK_USER = Tool.from_schema(
    name="ask_user",
    description=(
        "Ask the user something that only they can know or decide, and wait for the answer. Ask for one thing at a time, and only if you "
        "cannot find it out yourself."
    ),
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string", "description": "The question, with all that is needed to answer it."},
            "choices": {
                "type": "array",
                "items": {"type": "string"},
                "default": [],
                "description": f"Up to {CHOICES_MAX} answers to choose from; the user may still say something else.",
            },
        },
        "required": ["question"],
        "additionalProperties": False,
    },
)


class AskUser(AgentExtension):
    """Brings ``ask_user(question, choices)``: the run waits for a person, and their answer is the tool's result.

    The answer is any text; the number or the text of a choice stands for that choice, ``Allow()`` for yes, and ``Deny(reason)`` for no
    answer.
    expires_s: seconds after which no answer is a denial, which the model is told; None waits for ever.
    """

    # Inside yours and inside the guards, which may forbid to ask: it answers without delegating.
    priority = 940

    def __init__(self, *, expires_s: float | None = None) -> None:
        """Raises UsageError for what is no finite number of seconds."""
        self._expires_s = Suspended("", expires_s).expires_s

    def tools(self) -> Sequence[Tool]:
        return (ASK_USER,)

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if call.tool is not ASK_USER:
            return await call_next()
        try:
            call.tool.bind(call.arguments)
        except InvalidArguments as failure:
            return failure  # an answer, not a veto
        question, choices = clean(call.arguments["question"]), [clean(choice) for choice in call.arguments.get("choices", ())]
        if wrong := _wrong(question, choices):
            return InvalidArguments(wrong)
        if context.answer is None or not context.asked:  # whoever else asked was told that the model may ask, and nothing more
            numbered = [f"  {number}. {choice}" for number, choice in enumerate(choices, 1)]
            return Suspended("\n".join((question, *numbered)), self._expires_s)
        return _told(context.answer, choices)


def _wrong(question: str, choices: Sequence[str]) -> str | None:
    if not question.strip() or len(question) > QUESTION_CHARACTERS_MAX:
        return f"question: 1 to {QUESTION_CHARACTERS_MAX} characters are needed"
    if len(choices) > CHOICES_MAX or any(not choice.strip() or len(choice) > CHOICE_CHARACTERS_MAX for choice in choices):
        return f"choices: up to {CHOICES_MAX} texts of 1 to {CHOICE_CHARACTERS_MAX} characters are needed"
    return None


def _told(answer: Any, choices: Sequence[str]) -> str:
    """The answer, as the model is told it."""
    if answer is True or answer is False:
        return "The user said yes." if answer else "The user said no."
    text = answer if isinstance(answer, str) else msgspec.json.encode(cast("object", answer)).decode()
    if not text.strip():
        return "The user gave an empty answer."
    bare = text.strip()
    chosen = next((choice for choice in choices if choice.strip().casefold() == bare.casefold()), None)
    if chosen is None and bare.isascii() and bare.isdigit() and len(bare) < 4 and 1 <= int(bare) <= len(choices):
        chosen = choices[int(bare) - 1]
    if chosen is not None:
        return f"The user chose: {chosen}"
    return f"The user answered{', and chose none of these' if choices else ''}: {text}"
