"""Every sentence that the runtime itself says to a model."""

from __future__ import annotations

from ..messages import Effect, ToolCall, ToolMessage
from ..messages.text import NAME_MAX

EFFECT_SENTENCE: dict[Effect, str] = {
    "none": "It was not executed; nothing happened.",
    "happened": "The tool itself had completed: its effect happened. Do not repeat it.",
    "unknown": "Its effect is unknown: it may have happened. Check before doing it again.",
}

DROPPED_NUDGE = (
    "Your last reply announced a tool call, but the call itself was not included. "
    "Do not narrate a plan. If a tool is needed, issue the tool call now; otherwise give the final answer."
)
EMPTY_NUDGE = "Your last reply was empty. Reply with the answer, or issue a tool call."
REASONING_NUDGE = "Your last reply held only reasoning. Reply with the answer itself, or issue a tool call."
LENGTH_NUDGE = (
    "Your last reply was cut by a length limit. Continue exactly where it stops, in the middle of the word if need be. "
    "Repeat nothing and add no introduction."
)

REDACTED_REASON = (
    "it had not started when the process that was to run it ended, and its arguments are not in the journal (they were redacted); "
    "issue the call again if it is still needed"
)
NESTED_QUESTION = (
    "a call made by another call cannot wait for a person: {} needs somebody's word, and did not run; called directly it can wait for one"
)


def invalid_output_nudge(problem: str) -> str:
    """What is said after an answer that is not of the form asked for."""
    return f"Your answer is not of the form that was asked for:\n{problem}\nGive the whole answer again, corrected."


NO_EFFECT_SENTENCE = "It had no effect; nothing happened."
"""What is said of a handler that ran and knows that it did nothing."""


def failed_message(call: ToolCall, reason: str, effect: Effect, *, ran: bool = False) -> ToolMessage:
    """The only result of a call that came to nothing: what went wrong, and what that means outside. ran: its handler did."""
    content = (
        f"Tool error ({call.name[:NAME_MAX]}): {reason}\n{NO_EFFECT_SENTENCE if ran and effect == 'none' else EFFECT_SENTENCE[effect]}"
    )
    return ToolMessage(tool_call_id=call.id, name=call.name, content=content, failed=True, effect=effect)
