"""What does this model response amount to? Pure; its verdict is recorded, and everyone else only reads it."""

from __future__ import annotations

from collections.abc import Collection, Set

from msgspec.structs import replace

from ..messages import AssistantMessage, StopReason, ToolCall, Usage, clean
from ..messages.arguments import MalformedArguments, parse_arguments
from ..messages.text import NAME_MAX
from ..records import Ending, ModelStepEnded, Outcome, RefusedCall, Verdict
from . import texts
from .recoveries import CONTINUED, DROPPED, EMPTY, INVALID_OUTPUT, LENGTH, MALFORMED, PAUSE, REASONING_ONLY, bound_of, nudge_of
from .state import State

_REFUSALS = {StopReason.CONTENT_FILTER: "content_filter", StopReason.REFUSAL: "refusal"}
_BESIDE = "the answer was not taken: it must be the only call of a reply, given once the results of all other calls are there"
_CUT_OFF = "the call was cut off by the length limit and was not executed; issue it again, shorter or in parts"


def judge(
    state: State,
    message: AssistantMessage,
    stop: StopReason,
    *,
    offered: Collection[str],
    known_ids: Set[str],
    stop_raw: str | None = None,
    usage: Usage | None = None,
    invalid: str = "",
    output_tool: str = "",
) -> ModelStepEnded:
    """The verdict on ``message``, as the record that holds it.

    The stop reason is judged first. offered: the names that this request offered. known_ids: every call id that the
    session has used. invalid: why the text, should it be an answer, is not of the form that was asked for. output_tool: the name of
    the tool by which an answer is given; a call of it that stands alone comes here as text.
    """
    message = _cleaned(state, message)
    ended = _verdict(state, message, stop, offered, known_ids, output_tool)
    if invalid and ended.verdict is Verdict.ANSWER:
        ended = _recover(state, message, stop, INVALID_OUTPUT, nudge=texts.invalid_output_nudge(invalid))
    return replace(ended, stop_raw=clean(stop_raw) if stop_raw else stop_raw, usage=usage)


def _verdict(
    state: State, message: AssistantMessage, stop: StopReason, offered: Collection[str], known_ids: Set[str], output_tool: str
) -> ModelStepEnded:
    text, calls = message.content, message.tool_calls
    if state.ending is not None:
        return _gone(message, stop, state.ending)
    if stop in _REFUSALS:
        return _gone(message, stop, Ending(Outcome.REFUSED, _REFUSALS[stop], text))
    if calls:
        return _tools(state, message, stop, offered, known_ids, output_tool)
    if stop is StopReason.PAUSE:
        return _recover(state, message, stop, PAUSE)
    if stop is StopReason.TOOL_CALLS:
        return _recover(state, message, stop, DROPPED)
    if not text[len(state.partial) :].strip():  # nothing new: a cut answer that is followed by nothing has not been continued
        return _recover(state, message, stop, REASONING_ONLY if message.reasoning.strip() else EMPTY)
    if stop is StopReason.LENGTH:
        return _recover(state, message, stop, LENGTH)
    return ModelStepEnded(message=message, stop=stop, verdict=Verdict.ANSWER, ending=Ending(Outcome.COMPLETED, "answer", text))


def _gone(message: AssistantMessage, stop: StopReason, ending: Ending) -> ModelStepEnded:
    """The message never joins the transcript, and its calls never existed for the model."""
    dropped = tuple(call.name for call in message.tool_calls)
    return ModelStepEnded(message=message, stop=stop, verdict=Verdict.END, joined=False, dropped=dropped, ending=ending)


def _recover(state: State, message: AssistantMessage, stop: StopReason, code: str, *, nudge: str | None = None) -> ModelStepEnded:
    """Ask again within the bound of ``code``; past it, what there is is delivered, marked incomplete."""
    if state.streaks.get(code, 0) < bound_of(state.limits, code):
        continued = code in CONTINUED or (code in (EMPTY, REASONING_ONLY) and bool(state.partial))
        return ModelStepEnded(
            message=message, stop=stop, verdict=Verdict.RETRY, code=code, joined=False, continued=continued, nudge=nudge or nudge_of(code)
        )
    ending = Ending(Outcome.INCOMPLETE, code, message.content)
    joined = bool(message.content.strip())
    message = replace(message, incomplete=True)
    return ModelStepEnded(message=message, stop=stop, verdict=Verdict.END, code=code, joined=joined, ending=ending)


def _tools(
    state: State, message: AssistantMessage, stop: StopReason, offered: Collection[str], known_ids: Set[str], output_tool: str
) -> ModelStepEnded:
    calls = _unique(message.tool_calls, known_ids)
    cut_off = stop is StopReason.LENGTH
    refused = tuple(
        RefusedCall(ordinal, *why)
        for ordinal, call in enumerate(calls)
        if (why := ("cut_off", _CUT_OFF) if cut_off else _refusal(state, call, offered, output_tool)) is not None
    )
    message = replace(message, tool_calls=calls)
    if len(refused) < len(calls):
        return ModelStepEnded(message=message, stop=stop, verdict=Verdict.TOOLS, refused=refused)
    ending = None
    if state.streaks.get(MALFORMED, 0) >= bound_of(state.limits, MALFORMED):
        ending = Ending(Outcome.INCOMPLETE, MALFORMED, message.content)
        message = replace(message, incomplete=True)
    return ModelStepEnded(message=message, stop=stop, verdict=Verdict.TOOLS, code=MALFORMED, refused=refused, ending=ending)


def _refusal(state: State, call: ToolCall, offered: Collection[str], output_tool: str) -> tuple[str, str] | None:
    if output_tool and call.name == output_tool:
        return "output_beside_calls", _BESIDE
    if call.name not in state.traits:
        return "unknown_tool", f"there is no tool named {call.name[:NAME_MAX]!r}; available: {', '.join(sorted(offered)) or 'none'}"
    if call.name not in offered:
        return "not_offered", f"the tool is not available in this turn; available: {', '.join(sorted(offered)) or 'none'}"
    try:
        parse_arguments(call.arguments)
    except MalformedArguments as error:
        return "malformed", f"{error}; send one complete JSON object"
    return None


def _unique(calls: tuple[ToolCall, ...], known_ids: Set[str]) -> tuple[ToolCall, ...]:
    """A wire id that is empty or already used in the session is replaced by a fresh one."""
    used: set[str] = set()
    unique: list[ToolCall] = []
    for call in calls:
        if not call.id or call.id in known_ids or call.id in used:
            number = len(known_ids) + len(unique)
            while (fresh := f"call_{number}") in known_ids or fresh in used:
                number += 1
            call = replace(call, id=fresh)
        used.add(call.id)
        unique.append(call)
    return tuple(unique)


def _clean_call(call: ToolCall) -> ToolCall:
    if call.id.isascii() and call.name.isascii() and call.arguments.isascii():
        return call
    return ToolCall(id=clean(call.id), name=clean(call.name), arguments=clean(call.arguments))


def _cleaned(state: State, message: AssistantMessage) -> AssistantMessage:
    """Text that any store accepts, joined to what an earlier, cut part of the same answer said."""
    calls = tuple(map(_clean_call, message.tool_calls)) if message.tool_calls else ()
    content = state.partial + clean(message.content)
    wire = message.wire
    if state.paused is not None:
        wire = state.paused.joined(wire)
    elif state.partial:
        wire = None  # of text that was joined to an earlier part it says only the end
    return AssistantMessage(content=content, tool_calls=calls, reasoning=clean(message.reasoning), incomplete=False, wire=wire)
