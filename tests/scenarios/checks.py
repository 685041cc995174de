"""What must have come of a scenario: each check returns None, or what is wrong in one line."""

from __future__ import annotations

import json
from typing import Any

from interlock import Outcome

from .play import Check, Play


def answered(*texts: str, turn: int = 0) -> Check:
    """The run is COMPLETED with these texts, joined without a seam."""
    return ended(Outcome.COMPLETED, "answer", *texts, turn=turn)


def ended(outcome: Outcome, reason: str, *texts: str, turn: int = 0) -> Check:
    def check(play: Play) -> str | None:
        want = "".join(play.words.text(text) for text in texts)
        seen = play.turns[turn]
        if seen.result is None:
            return f"run {turn} has no result but {seen.error!r}"
        got = (seen.result.outcome, seen.result.reason, seen.result.text)
        return None if got == (outcome, reason, want) else f"run {turn} ended {got}, not {(outcome, reason, want)}"

    return check


def raised(kind: type[BaseException], *words: str, turn: int = 0) -> Check:
    """The caller got this exception, and its message has these words."""

    def check(play: Play) -> str | None:
        error = play.turns[turn].error
        good = type(error) is kind and all(word in str(error) for word in words)
        return None if good else f"run {turn} raised {error!r} with result {play.turns[turn].result!r}"

    return check


def ran(tool: str, *arguments: dict[str, Any]) -> Check:
    """The handler was started with exactly these arguments, once each."""

    def check(play: Play) -> str | None:
        got = [args for name, args in play.stage.ran if name == tool]
        same = sorted(got, key=repr) == sorted(arguments, key=repr)
        return None if same else f"{tool} ran with {got}, not with {list(arguments)}"

    return check


def results(play: Play) -> dict[str, str]:
    """What the model was told of each call, by the last request that says it."""
    return {m["tool_call_id"]: m["content"] for body in play.bodies for m in body["messages"] if m["role"] == "tool"}


def result_of(id: str, *parts: str, text: str = "") -> Check:
    """The model got one result for the call, which has these parts (as they are) and ``text`` (in the scenario's words)."""

    def check(play: Play) -> str | None:
        got = results(play).get(play.words.id(id))
        wanted = [*parts, *([play.words.text(text)] if text else [])]
        if got is None:
            return f"no result for {id!r}; there are {results(play)}"
        missing = [part for part in wanted if part not in got]
        return f"the result of {id!r} is {got[:300]!r}; it lacks {missing}" if missing else None

    return check


def not_in_result(id: str, part: str) -> Check:
    def check(play: Play) -> str | None:
        got = results(play).get(play.words.id(id), "")
        return f"the result of {id!r} has {part!r}: {got!r}" if part in got else None

    return check


def effect(id: str, want: str, turn: int = 0) -> Check:
    """What the transcript says of the outside."""

    def check(play: Play) -> str | None:
        result = play.turns[turn].result
        said = [m.effect for m in result.messages if getattr(m, "tool_call_id", None) == play.words.id(id)] if result else []
        return None if said == [want] else f"the effect of {id!r} is {said}, not {want!r}"

    return check


def requests(count: int) -> Check:
    return lambda play: None if len(play.bodies) == count else f"{len(play.bodies)} requests, not {count}"


def user_said(request: int, *texts: str) -> Check:
    """The user's messages of that request (counted from 1) are exactly these."""

    def check(play: Play) -> str | None:
        got = [m["content"] for m in play.bodies[request - 1]["messages"] if m["role"] == "user"]
        want = [play.words.text(text) for text in texts]
        return None if got == want else f"request {request}: the user said {got}, not {want}"

    return check


def roles(request: int, *want: str) -> Check:
    """The roles of that request's messages, in order, by their first letters."""

    def check(play: Play) -> str | None:
        got = "".join(m["role"][0] for m in play.bodies[request - 1]["messages"])
        return None if got == "".join(want) else f"request {request}: roles {got}, not {''.join(want)}"

    return check


def never_sent(text: str) -> Check:
    def check(play: Play) -> str | None:
        found = [n for n, body in enumerate(play.bodies, 1) if text in json.dumps(body["messages"], ensure_ascii=False)]
        return f"{text!r} is in requests {found}" if found else None

    return check


def logged(*want: str) -> Check:
    return lambda play: None if play.stage.log == list(want) else f"what happened: {play.stage.log}, not {list(want)}"


def logged_among(*want: str) -> Check:
    return lambda play: None if all(line in play.stage.log for line in want) else f"{play.stage.log} lacks some of {list(want)}"


def same_exception_everywhere(play: Play) -> str | None:
    faults = play.stage.faults
    return None if len({id(fault) for fault in faults}) == 1 < len(faults) else f"not one exception object: {faults}"


def used(tokens_in: int | None, tokens_out: int | None, turn: int = 0) -> Check:
    def check(play: Play) -> str | None:
        result = play.turns[turn].result
        got = (result.usage.input_tokens, result.usage.output_tokens) if result else None
        return None if got == (tokens_in, tokens_out) else f"usage {got}, the server said {(tokens_in, tokens_out)}"

    return check


def largest_request(bytes_max: int) -> Check:
    def check(play: Play) -> str | None:
        size = max(len(json.dumps(body)) for body in play.bodies)
        return None if size <= bytes_max else f"a request of {size:,} bytes"

    return check
