"""A failing script made as small as it can be and still fail: delta debugging over its elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .report import simulate
from .script import Call, Script, elements

_ROWS = ("acts", "moves", "replies", "noted", "answers")
_PLAIN: tuple[dict[str, Any], ...] = (
    {"model_layer": False},
    {"flush_s": 0.0},
    {"same_machine": True},
    {"expires_s": None},
    {"seed": None},
    {"limits": {}},
)


def shrink(script: Script, fails: Callable[[Script], bool] | None = None) -> Script:
    """A script that still fails, of which no single element can be left out or made plainer.

    fails: whether a script fails; without it: whether the checker that complains first about ``script`` complains. A script that does
    not fail is returned as it is.
    """
    if fails is None:
        fails = _same_complaint(script)
    if fails is None or not fails(script):
        return script
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(script):
            if elements(candidate) < elements(script) and fails(candidate):
                script, smaller = candidate, True
                break
    return _without_unused_calls(script, fails)


def _same_complaint(script: Script) -> Callable[[Script], bool] | None:
    complaints = simulate(script).violations
    if not complaints:
        return None
    checker = complaints[0].split(":")[0]
    return lambda candidate: any(said.split(":")[0] == checker for said in simulate(candidate).violations)


def _candidates(script: Script) -> Iterator[Script]:
    """Smaller scripts, the boldest first."""
    for name in _ROWS:
        for row in _shorter(getattr(script, name)):
            yield replace(script, **{name: row})
    for plain in _PLAIN:
        yield replace(script, **plain)
    if script.layers:
        calls = tuple(replace(call, layers=call.layers[:-1] if len(call.layers) == script.layers else call.layers) for call in script.calls)
        yield replace(script, layers=script.layers - 1, calls=calls)
        calls = tuple(replace(call, layers=call.layers[1:]) for call in script.calls)
        yield replace(script, layers=script.layers - 1, calls=calls)
    for place, reply in enumerate(script.replies):
        plainer = [replace(reply, layer="pass"), replace(reply, delay_s=0.0)]
        plainer += [replace(reply, calls=calls) for calls in _shorter(reply.calls)]
        for changed in plainer:
            yield replace(script, replies=_put(script.replies, place, changed))
    for place, call in enumerate(script.calls):
        for changed in _plainer(call):
            yield replace(script, calls=_put(script.calls, place, changed))


def _plainer(call: Call) -> Iterator[Call]:
    yield Call()
    yield replace(call, does="ok")
    yield replace(call, tool="pay")
    yield replace(call, secret=False)
    for place, layer in enumerate(call.layers):
        if layer != "pass":
            yield replace(call, layers=_put(call.layers, place, "pass"))


def _shorter(row: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """``row`` without a half, then without a quarter, down to without one."""
    size = len(row)
    while size := size // 2 if size > 1 else 0:
        for start in range(0, len(row), size):
            yield row[:start] + row[start + size :]
    if len(row) == 1:
        yield ()


def _put(row: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*row[:place], value, *row[place + 1 :])


def _without_unused_calls(script: Script, fails: Callable[[Script], bool]) -> Script:
    """Calls after the last one that is used are not part of what happened."""
    used = [number for reply in script.replies for number in reply.calls]
    used += [call.nested for call in script.calls if call.nested is not None]
    shorter = replace(script, calls=script.calls[: max(used, default=-1) + 1])
    return shorter if fails(shorter) else script
