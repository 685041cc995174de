"""What one run, or every run of an agent, is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_not, itemgetter
from typing import Any, cast

import msgspec

from ..errors import UsageError
from ..messages import clean_tree
from ..model import ModelSettings

_SETTINGS = (
    "temperature",
    "top_p",
    "max_tokens",
    "stop",
    "seed",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "extra",
)
_ID_LENGTH_MAX = 256


@dataclass(frozen=True, kw_only=True, init=False)
class AgentRunConfig:
    """Session, dependencies, model settings and deadline of a run. None means: not set here.

    A config given to ``run`` or ``stream`` is merged over the agent's own, field by field. session_id and run_id are
    generated where neither sets them. deps: anything that tools and layers need (``context.deps``). deadline_s: wall
    clock of the run in seconds; passing it ends the run LIMIT. tool_choice: ``auto``, ``none``, ``required`` or the
    name of a tool. max_tokens: of one response. stop: texts at which the model ends. extra: further fields of the
    request body, as they are.

    Of the settings of the model (from ``temperature`` on) None leaves the provider's own default.

    Raises UsageError for a value of the wrong type.
    """

    session_id: str | None = None
    run_id: str | None = None
    parent_session_id: str | None = None
    deps: Any = None
    deadline_s: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = None
    seed: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    extra: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        parent_session_id: str | None = None,
        deps: Any = None,
        deadline_s: float | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: tuple[str, ...] | list[str] | str | None = None,
        seed: int | None = None,
        tool_choice: str | None = None,
        parallel_tool_calls: bool | None = None,
        reasoning_effort: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        # One is made for each run; a frozen dataclass's own would set field by field past its own lock.
        fields = vars(self)
        fields.update(
            session_id=session_id,
            run_id=run_id,
            parent_session_id=parent_session_id,
            deps=deps,
            deadline_s=deadline_s,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            stop=stop,
            seed=seed,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            reasoning_effort=reasoning_effort,
            extra=extra,
        )
        if session_id is not None:
            check_id(session_id, "session_id")
        if any(map(is_not, _others_in(fields), _NO_OTHERS)):  # in C: most configs say no more than a session
            for name, value in fields.items():
                if value is not None and name not in ("deps", "session_id"):
                    _CHECKS[name](name, value)

    def over(self, base: AgentRunConfig) -> AgentRunConfig:
        """This config where it says something, ``base`` elsewhere. Both were checked when they were made."""
        if base is NOTHING_SAID:
            return self
        merged = object.__new__(AgentRunConfig)
        vars(merged).update(vars(base))
        vars(merged).update({name: value for name, value in vars(self).items() if value is not None})
        return merged

    def settings(self) -> ModelSettings:
        """What of this config is the model's."""
        values = _settings_in(vars(self))
        if values == _NONE_SET:  # in C, once for each run
            return _NO_SETTINGS
        said: dict[str, Any] = {name: value for name, value in zip(_SETTINGS, values, strict=True) if value is not None}
        if "stop" in said:
            said["stop"] = (said["stop"],) if isinstance(said["stop"], str) else tuple(said["stop"])
        return ModelSettings(**said)


_NO_SETTINGS = ModelSettings()
_NONE_SET = (None,) * len(_SETTINGS)
_settings_in = cast("Callable[[dict[str, Any]], tuple[Any, ...]]", itemgetter(*_SETTINGS))


def check_id(value: object, name: str) -> str:
    """Raises UsageError unless ``value`` can name a session or a run: printable text of 1 to 256 characters."""
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string, not {type(value).__name__}")
    if not value or len(value) > _ID_LENGTH_MAX or not value.isprintable():
        raise UsageError(f"{name} must be printable text of 1 to {_ID_LENGTH_MAX} characters, not {value[:40]!r}")
    return value


def _id(name: str, value: Any) -> None:
    check_id(value, name)
    if name == "run_id" and "/" in value:  # the keys of calls are run/turn/ordinal: two runs must never make the same one
        raise UsageError(f"run_id must not contain a slash: {value!r}")


def _number(what: str, *kinds: type, least: float = 0, most: float = 2**63 - 1, endless: bool = False) -> Callable[[str, Any], None]:
    """A check for a number of ``kinds`` in the range; infinity only if ``endless``."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise UsageError(f"AgentRunConfig({name}=...): {what} is needed, not {value!r}")
        if not (least <= value <= most or (endless and value == math.inf)):
            raise UsageError(f"AgentRunConfig({name}=...): {value!r} is out of range")

    return check


def _a(what: str, *kinds: type) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, kinds):
            raise UsageError(f"AgentRunConfig({name}=...): {what} is needed, not {value!r}")

    return check


def _stop(name: str, value: Any) -> None:
    texts: Any = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in cast("list[Any]", texts)):
        raise UsageError(f"AgentRunConfig({name}=...): a string or a list of strings is needed, not {value!r}")


def _extra(name: str, value: Any) -> None:
    _a("a dictionary", dict)(name, value)
    if "messages" in value:
        raise UsageError("AgentRunConfig(extra=...): it cannot hold 'messages': the conversation is the request's own")
    try:
        if not all(isinstance(key, str) for key in value):
            raise TypeError("its keys must be strings")
        msgspec.json.encode(clean_tree(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"AgentRunConfig(extra=...): it must be JSON-able: {error}") from error


_others_in = cast("Callable[[dict[str, Any]], tuple[Any, ...]]", itemgetter("run_id", "parent_session_id", "deadline_s", *_SETTINGS))
_NO_OTHERS = (None,) * (3 + len(_SETTINGS))

_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "run_id": _id,
    "parent_session_id": _id,
    "deadline_s": _number("a number of seconds", int, float, endless=True),
    "temperature": _number("a number", int, float),
    "top_p": _number("a number", int, float),
    "max_tokens": _number("a whole number", int, least=1),
    "stop": _stop,
    "seed": _number("a whole number", int, least=-(2**63)),
    "tool_choice": _a("'auto', 'none', 'required' or a tool's name", str),
    "parallel_tool_calls": _a("True or False", bool),
    "reasoning_effort": _a("a word", str),
    "extra": _extra,
}

NOTHING_SAID = AgentRunConfig()
"""What an agent is given that is given no config."""
