"""A plan is not an answer; what was cut, filtered or malformed never runs; scaffolding leaves no trace."""

from __future__ import annotations

from typing import Any

from interlock import Outcome

from .checks import answered, effect, ended, never_sent, ran, requests, result_of, user_said
from .play import Scenario
from .rounds import Calls, Chunks, ForEver, Says, Thinks, Torn

DONE = Says("All done.")
FULL = "The full answer is forty-two."
CHARGE = Calls(("c1", "charge", {"amount": 5}))
PLAN = Says("Let me charge the card now.", finish="tool_calls")
NOTHING = Chunks(({"t": ""}, {"f": "stop"}, {"u": (5, 0)}))
ONLY_THOUGHT = Thinks("THINK hard")
PROMPT = "Please charge the card."
CHARGED = (ran("charge", {"amount": 5}), answered("All done."))
NOT_RUN = (ran("charge"), effect("c1", "none"), answered("All done."))


def _scenario(name: str, rounds: Any, *checks: Any, **rest: Any) -> Scenario:
    count = [] if isinstance(rounds[-1], ForEver) else [requests(len(rounds))]
    return Scenario(name=name, rounds=rounds, checks=(*checks, *count), **rest)


_DROPPED = [
    _scenario("a plan, then the call, then the answer", (PLAN, CHARGE, DONE), *CHARGED, user_said(3, PROMPT)),
    _scenario(
        "nothing but plans",
        (ForEver(PLAN),),
        requests(4),
        ran("charge"),
        ended(Outcome.INCOMPLETE, "dropped_tool_call", "Let me charge the card now."),
    ),
    _scenario(
        "the nudges are gone when the streak ends, and in the next run",
        (PLAN, PLAN, CHARGE, DONE, Says("Second.")),
        *CHARGED,
        answered("Second.", turn=1),
        user_said(4, PROMPT),
        user_said(5, PROMPT, "And now?"),
        prompts=(PROMPT, "And now?"),
    ),
    _scenario(
        "three plans, a call, three plans, a call, the answer",
        (PLAN, PLAN, PLAN, CHARGE, PLAN, PLAN, PLAN, CHARGE, DONE),
        answered("All done."),
    ),
    _scenario(
        "a plan that is only thought",
        (Thinks("I must charge", finish="tool_calls"), CHARGE, DONE),
        *CHARGED,
    ),
    _scenario("an empty reply, then the answer", (NOTHING, DONE), answered("All done.")),
    _scenario("nothing but empty replies", (ForEver(NOTHING),), requests(3), ended(Outcome.INCOMPLETE, "empty_reply", "")),
    _scenario(
        "nothing but reasoning",
        (ForEver(ONLY_THOUGHT),),
        requests(3),
        ended(Outcome.INCOMPLETE, "reasoning_only", ""),
        never_sent("THINK"),
    ),
    _scenario("reasoning, then the answer", (ONLY_THOUGHT, Says(FULL)), answered(FULL)),
    _scenario(
        "text before a call is no part of the answer", (Calls(("c1", "charge", {"amount": 5}), before="I will charge now."), DONE), *CHARGED
    ),
    _scenario(
        "a text that sounds like a plan is the answer all the same",
        (Says("Let me charge the card now."),),
        answered("Let me charge the card now."),
    ),
]

_CUT = [
    _scenario(
        "a limit cuts an answer, which is continued without a seam",
        (Says("The total of your order is one hundr", finish="length"), Says("ed euros.")),
        answered("The total of your order is one hundr", "ed euros."),
    ),
    _scenario(
        "a limit cuts an answer twice",
        (Says("One ", finish="length"), Says("two ", finish="length"), Says("three.")),
        answered("One ", "two ", "three."),
    ),
    _scenario(
        "a limit cuts every continuation",
        (Says("a", finish="length"), Says("b", finish="length"), Says("c", finish="length"), Says("d", finish="length")),
        ended(Outcome.INCOMPLETE, "length", "a", "b", "c", "d"),
    ),
    _scenario(
        "a limit cuts the arguments of a call",
        (Calls(("c1", "charge", '{"amount": 1'), finish="length"), DONE),
        *NOT_RUN,
        result_of("c1", "cut off"),
    ),
    _scenario("a limit comes after a complete call", (Calls(("c1", "charge", {"amount": 5}), finish="length"), DONE), *NOT_RUN),
    _scenario(
        "a filter hides a complete call",
        (Calls(("c1", "charge", {"amount": 5}), before="Now I", finish="content_filter"),),
        ran("charge"),
        ended(Outcome.REFUSED, "content_filter", "Now I"),
    ),
]

_MALFORMED = [
    _scenario(
        "a tool that does not exist",
        (Calls(("c1", "no_such_tool", {"x": 1})), DONE),
        result_of("c1", "there is no tool named", "nothing happened"),
        answered("All done."),
    ),
    _scenario(
        "nothing but tools that do not exist",
        (ForEver(Calls(("k{n}", "no_such_tool", {"x": 1}))),),
        requests(4),
        ended(Outcome.INCOMPLETE, "malformed_tool_call", ""),
    ),
    _scenario("arguments that are no JSON", (Calls(("c1", "charge", "amount is 5")), DONE), *NOT_RUN, result_of("c1", "not valid JSON")),
    _scenario("arguments that break off", (Calls(("c1", "charge", '{"amount": 10')), DONE), *NOT_RUN, result_of("c1", "not valid JSON")),
    _scenario("arguments that are a list", (Calls(("c1", "charge", "[5]")), DONE), *NOT_RUN, result_of("c1", "array")),
    _scenario(
        "an argument of the wrong type", (Calls(("c1", "charge", {"amount": "lots"})), DONE), *NOT_RUN, result_of("c1", "amount", "integer")
    ),
    _scenario("an argument is missing", (Calls(("c1", "charge", {})), DONE), *NOT_RUN, result_of("c1", "amount")),
    _scenario("an argument too many", (Calls(("c1", "charge", {"amount": 5, "note": "x"})), DONE), *NOT_RUN, result_of("c1", "note")),
    _scenario("an argument that can be coerced", (Calls(("c1", "charge", {"amount": "5"})), DONE), *CHARGED),
    _scenario("a fraction where a whole number is wanted", (Calls(("c1", "charge", {"amount": 5.5})), DONE), *NOT_RUN),
    _scenario(
        "a call without an id",
        (Chunks(({"c": [(0, None, "charge", "")]}, {"c": [(0, None, None, '{"amount": 5}')]}, {"f": "tool_calls"})), DONE),
        *CHARGED,
    ),
    _scenario(
        "two calls whose fragments alternate",
        (
            Chunks(
                (
                    {"c": [(0, "c1", "charge", "")]},
                    {"c": [(1, "c2", "add", "")]},
                    {"c": [(0, None, None, '{"amo')]},
                    {"c": [(1, None, None, '{"a": 2,')]},
                    {"c": [(0, None, None, 'unt": 5}'), (1, None, None, ' "b": 3}')]},
                    {"f": "tool_calls"},
                )
            ),
            DONE,
        ),
        *CHARGED,
        ran("add", {"a": 2, "b": 3}),
        result_of("c1", "charged 5"),
        result_of("c2", "sum=5"),
        tools=("charge", "add"),
    ),
    _scenario(
        "an id that comes again in a later turn",
        (CHARGE, Calls(("c1", "charge", {"amount": 6})), DONE),
        ran("charge", {"amount": 5}, {"amount": 6}),
        answered("All done."),
    ),
    _scenario(
        "an id that comes twice in one reply",
        (Calls(("c1", "charge", {"amount": 5}), ("c1", "charge", {"amount": 6})), DONE),
        ran("charge", {"amount": 5}, {"amount": 6}),
        answered("All done."),
        plain=False,  # the scripted server tells the calls of a plain reply apart by their ids
    ),
    _scenario(
        "no arguments for a tool that wants none",
        (Chunks(({"c": [(0, "c1", "ping", "")]}, {"f": "tool_calls"})), DONE),
        ran("ping", {}),
        result_of("c1", "pong"),
        answered("All done."),
        tools=("ping",),
    ),
    _scenario(
        "a good call beside a malformed one",
        (Calls(("c1", "charge", {"amount": 5}), ("c2", "charge", "{"), ("c3", "no_such_tool", {})), DONE),
        *CHARGED,
        result_of("c1", "charged 5"),
        result_of("c2", "not valid JSON"),
        result_of("c3", "there is no tool"),
    ),
    _scenario("stop with a call in it", (Calls(("c1", "charge", {"amount": 5}), finish="stop"), DONE), *CHARGED),
    _scenario("the call, cut, and then whole", (Torn(Calls(("c1", "charge", {"amount": 1}))), CHARGE, DONE), *CHARGED),
]

SCENARIOS = [*_DROPPED, *_CUT, *_MALFORMED]
