"""What a rule may ask of a call, each in two strengths: ``may_hold`` as widely as it makes sense, ``holds`` for certain."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from ...errors import UsageError
from ...toolbox.addresses import parse
from ...toolbox.netcheck import Allow, Target, UnsafeUrl
from .commands import CommandPattern, Grant, may_run
from .facts import Facts
from .globs import glob_regex
from .paths import PathPattern

__all__ = [
    "ArgumentIs",
    "CommandIs",
    "Comparison",
    "Condition",
    "ExactlyThese",
    "HostIs",
    "PathIs",
    "comparison",
    "like_value",
    "same_value",
]


class Condition(Protocol):
    """A part of a rule. Both answers are reasons to show; None is no."""

    def may_hold(self, facts: Facts) -> str | None:
        """Whether it may be so, in words."""
        ...

    def holds(self, facts: Facts) -> str | None:
        """Whether it is so for certain, in words."""
        ...


@dataclass(frozen=True)
class PathIs:
    """argument: which one; None is every argument with a path's name (``facts.PATH_NAMES``)."""

    patterns: tuple[PathPattern, ...]
    argument: str | None = None

    def _paths(self, facts: Facts) -> list[Any]:
        return facts.paths if self.argument is None else facts.texts(facts.arguments.get(self.argument))

    def may_hold(self, facts: Facts) -> str | None:
        for path in self._paths(facts):
            for pattern in self.patterns:
                if pattern.may_be(facts.readings(path)):
                    return f"the path {path!r} is, or may be, {pattern.text!r}"
        return None

    def holds(self, facts: Facts) -> str | None:
        paths = self._paths(facts)
        if paths and all(any(pattern.covers(path) for pattern in self.patterns) for path in paths):
            return (
                f"{'the path is' if len(paths) == 1 else 'every path is'} in {', '.join(repr(pattern.text) for pattern in self.patterns)}"
            )
        return None


@dataclass(frozen=True)
class HostIs:
    """Over every URL in the arguments, and every argument with a host's name. entries: as ``toolbox.netcheck.Allow`` reads them."""

    entries: tuple[str, ...]
    named: Allow = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "named", Allow(self.entries))

    def _names(self, target: Target) -> bool:
        if self.named.names(target):
            return True
        address = parse(target.host) if target.host else None
        return address is not None and self.named.covers(address)

    def may_hold(self, facts: Facts) -> str | None:
        try:
            hit = next((target for target in facts.hosts if self._names(target)), None)
        except (UnsafeUrl, ValueError) as error:
            return f"it leads to a host that cannot be told: {error}"
        return None if hit is None else f"it leads to {hit.host or hit.scheme!r}"

    def holds(self, facts: Facts) -> str | None:
        try:
            hosts = facts.hosts
            good = bool(hosts) and all(map(self._names, hosts))
        except (UnsafeUrl, ValueError):
            return None
        return f"it leads only to {', '.join(dict.fromkeys(target.host or target.scheme for target in hosts))}" if good else None


@dataclass(frozen=True)
class CommandIs:
    """argument: which one; None is every argument with a command's name (``facts.COMMAND_NAMES``).

    features and redirects: what an allow rule allows beside the commands. To allow, the commands of several rules are looked at
    together (see ``engine``), so that ``holds`` says only that there is a command.
    """

    patterns: tuple[CommandPattern, ...]
    argument: str | None = None
    features: frozenset[str] = frozenset()
    redirects: tuple[PathPattern, ...] = ()

    def may_hold(self, facts: Facts) -> str | None:
        for script in facts.scripts(self.argument):
            if why := may_run(script, self.patterns):
                return why
        return None

    def holds(self, facts: Facts) -> str | None:
        return "there is a command" if facts.scripts(self.argument) else None

    @property
    def grant(self) -> Grant:
        return Grant(self.patterns, self.features, lambda path: any(pattern.covers(path) for pattern in self.redirects))


@dataclass(frozen=True)
class ExactlyThese:
    """The whole arguments, nothing more and nothing less."""

    arguments: dict[str, Any]

    def may_hold(self, facts: Facts) -> str | None:
        same = like_value(self.arguments, facts.given) or like_value(self.arguments, facts.arguments)
        return "the arguments are exactly these" if same else None

    def holds(self, facts: Facts) -> str | None:
        return "the arguments are exactly these" if same_value(self.arguments, facts.given) else None


@dataclass(frozen=True)
class Comparison:
    """One test of one value. numeric: of numbers; to deny, also of a text that reads as one. wide: to deny, this is enough, too."""

    words: str
    test: Callable[[Any], bool]
    numeric: bool = False
    wide: Callable[[Any], bool] | None = None

    def holds(self, value: Any, *, loose: bool) -> bool:
        if not self.numeric:
            return self.test(value) or (loose and self.wide is not None and self.wide(value))
        number = _number(value, loose=loose)
        return number is not None and self.test(number)


@dataclass(frozen=True)
class ArgumentIs:
    """The argument ``name`` passes every test. absent: what it is when the argument is not there."""

    name: str
    tests: tuple[Comparison, ...]
    absent: bool = False

    def _holds(self, facts: Facts, *, loose: bool) -> str | None:
        if self.name not in facts.arguments:
            return f"{self.name} is not given" if self.absent else None
        if self.absent:
            return None
        value = facts.arguments[self.name]
        values: list[Any] = [value, *cast("list[Any]", value)] if loose and isinstance(value, list) else [value]
        hit = any(all(test.holds(each, loose=loose) for test in self.tests) for each in values)
        return f"{self.name} is {' and '.join(test.words for test in self.tests)}" if hit else None

    def may_hold(self, facts: Facts) -> str | None:
        return self._holds(facts, loose=True)

    def holds(self, facts: Facts) -> str | None:
        return self._holds(facts, loose=False)


def _number(value: Any, *, loose: bool) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if loose and isinstance(value, str) and re.fullmatch(r"[-+]?[0-9_]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?", value.strip()):
        return float(value.strip().replace("_", "").strip() or 0)
    return None


def same_value(one: object, other: object) -> bool:
    """JSON equality: true is not 1, and 1.0 is not 1."""
    same_type = type(one) is type(other)
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return left.keys() == right.keys() and all(same_value(left[key], right[key]) for key in left)
    if isinstance(one, list) and isinstance(other, list):
        mine, theirs = cast("list[Any]", one), cast("list[Any]", other)
        return len(mine) == len(theirs) and all(map(same_value, mine, theirs))
    return same_type and one == other


def like_value(one: object, other: object) -> bool:
    """Whether a tool might take one for the other: 1 is 1.0 and "1", and case and blanks around do not matter."""
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return left.keys() == right.keys() and all(like_value(left[key], right[key]) for key in left)
    if isinstance(one, list) and isinstance(other, list):
        mine, theirs = cast("list[Any]", one), cast("list[Any]", other)
        return len(mine) == len(theirs) and all(map(like_value, mine, theirs))
    one, other = cast("Any", one), cast("Any", other)
    numbers = _number(one, loose=True), _number(other, loose=True)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    return _bare(one) == _bare(other)


def _bare(value: object) -> str:
    return str(value).strip().casefold()


def comparison(key: str, value: object) -> Comparison:
    """The test that a policy file writes as ``key = value``. Raises UsageError for what is none."""
    if key in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise UsageError(f"{key} takes a number, not {value!r}")
        words, test = _NUMBERS[key]
        return Comparison(f"{words} {value}", partial(test, value), numeric=True)
    if key in ("equals", "not"):
        shown = repr(value)
        if key == "not":
            return Comparison(f"not {shown}", lambda found: not same_value(found, value))
        return Comparison(f"equal to {shown}", partial(same_value, value), wide=partial(like_value, value))
    if key == "in":
        if not isinstance(value, list) or not value:
            raise UsageError("in takes a list of values that is not empty")
        options = cast("list[Any]", value)
        return Comparison(
            f"one of {options!r}",
            lambda found: any(same_value(found, option) for option in options),
            wide=lambda found: any(like_value(found, option) for option in options),
        )
    if key == "like":
        if not isinstance(value, str) or not value:
            raise UsageError(f"like takes a pattern, not {value!r}")
        regex, folded = glob_regex(value), glob_regex(value.casefold())
        return Comparison(
            f"like {value!r}",
            lambda found: isinstance(found, str) and regex.fullmatch(found) is not None,
            wide=lambda found: folded.fullmatch(str(found).strip().casefold()) is not None,
        )
    raise UsageError(f"{key} is no comparison: there are min, max, above, below, equals, not, in, like and absent")


_NUMBERS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "min": ("at least", operator.le),
    "max": ("at most", operator.ge),
    "above": ("above", operator.lt),
    "below": ("below", operator.gt),
}
