"""The turn state machine. Pure: no clock, no randomness, no await, no input or output.

Four functions. ``admit``: may this request from outside become a fact now? ``judge``: what does this model
response amount to? ``apply``: what does a fact change? ``decide``: what should be started now?
"""

from __future__ import annotations

from .apply import TRANSITIONS, apply, fold
from .commands import Answer, Cancel, Command, Import, StartRun, Steer, admit, expired
from .decide import Action, CallModel, EndRun, Reconcile, RunTool, SettleTool, at_rest, decide, is_open, is_stalled
from .judge import judge
from .recoveries import INVALID_OUTPUT, RECOVERIES, Recovery, bound_of
from .state import ANY_ARGUMENTS, UNDER_WAY, Call, Phase, Progress, State
from .texts import EFFECT_SENTENCE, NESTED_QUESTION, NO_EFFECT_SENTENCE, failed_message

__all__ = [
    "ANY_ARGUMENTS",
    "EFFECT_SENTENCE",
    "INVALID_OUTPUT",
    "NESTED_QUESTION",
    "NO_EFFECT_SENTENCE",
    "RECOVERIES",
    "TRANSITIONS",
    "UNDER_WAY",
    "Action",
    "Answer",
    "Call",
    "CallModel",
    "Cancel",
    "Command",
    "EndRun",
    "Import",
    "Phase",
    "Progress",
    "Reconcile",
    "Recovery",
    "RunTool",
    "SettleTool",
    "StartRun",
    "State",
    "Steer",
    "admit",
    "apply",
    "at_rest",
    "bound_of",
    "decide",
    "expired",
    "failed_message",
    "fold",
    "is_open",
    "is_stalled",
    "judge",
]
