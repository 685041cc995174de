"""``check_extension``: whether an extension keeps the promises that the runtime relies on, with clear words where it does not.

::

    async def test_my_layer():
        (await check_extension(lambda: MyLayer(limit=3))).require()

Every hook is called as the runtime calls it, with stand-ins for what lies further in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..extensions.base import AgentExtension
from . import extension_checks as layers
from . import extension_checks_pure as pure
from .extension_bench import CALLS
from .extension_checks import Bench

__all__ = ["EXTENSION_CHECKS", "ExtensionVerdict", "Finding", "check_extension"]

EXTENSION_CHECKS: dict[str, tuple[tuple[str, ...], Callable[[Bench], AsyncIterator[str]]]] = {
    "goes through once": (("on_tool_call",), layers.goes_through_once),
    "ends with its call": (("on_tool_call",), layers.ends_with_its_call),
    "says honestly what happened": (("on_tool_call",), layers.says_honestly_what_happened),
    "lets a cancellation pass": (("on_tool_call",), layers.lets_a_cancellation_pass),
    "serves many at once": (("on_tool_call",), layers.serves_many_at_once),
    "passes streams through": (("on_model_request",), layers.passes_streams_through),
    "closes its stream": (("on_model_request",), layers.closes_its_stream),
    "lets a cancelled stream end": (("on_model_request",), layers.lets_a_cancelled_stream_end),
    "streams many at once": (("on_model_request",), layers.streams_many_at_once),
    "folds purely": (("fold",), pure.folds_purely),
    "redacts purely": (("redact",), pure.redacts_purely),
    "filters purely": (("redact_deltas",), pure.filters_purely),
    "is told without harm": (("on_record", "instructions", "tools"), pure.is_told_without_harm),
}
"""Each check by its name, with the hooks that it is about: one that the extension does not override is not looked at."""


@dataclass(frozen=True)
class Finding:
    """What is wrong. check: the name of the check. problem: a sentence for whoever wrote the extension."""

    check: str
    problem: str

    def __str__(self) -> str:
        return f"{self.check}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class ExtensionVerdict:
    """name: the extension's. checks: those that were made, which depend on the hooks that it has. findings: what was wrong."""

    name: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.findings

    def require(self) -> None:
        """Raise AssertionError with every finding unless ``passed``."""
        if self.findings:
            raise AssertionError("\n".join((f"{self.name} does not keep what the runtime relies on:", *map(str, self.findings))))


async def check_extension(
    factory: Callable[[], AgentExtension],
    *,
    calls: Sequence[tuple[Any, dict[str, Any]]] = (),
    changes_streams: bool = False,
    deps: Any = None,
    wait_s: float = 5.0,
) -> ExtensionVerdict:
    """Check every hook that the extension overrides. Runs no tool and asks no model.

    factory: makes the extension, anew each time it is called, with the same configuration. calls: tools and arguments to call beside
    the built-in ones, ``[(my_tool, {"amount": 3})]``, for a layer that looks at particular tools. changes_streams: it is meant to
    change what a model streams. deps: ``context.deps``. wait_s: how long anything may take.

    Raises UsageError if ``factory`` does not make an AgentExtension; whatever else is wrong is a finding.
    """
    extension: Any = factory()
    if not isinstance(extension, AgentExtension):
        raise UsageError(f"check_extension takes a function that makes an AgentExtension, not {type(extension).__name__}")
    bench = Bench(factory=factory, calls=(*CALLS, *calls), deps=deps, changes_streams=changes_streams, wait_s=wait_s)
    made: list[str] = []
    findings: list[Finding] = []
    for name, (hooks, check) in EXTENSION_CHECKS.items():
        if any(_overrides(extension, hook) for hook in hooks):
            made.append(name)
            findings += [Finding(name, problem) for problem in await _found(check, bench)]
    return ExtensionVerdict(name=extension.name, checks=tuple(made), findings=tuple(findings))


async def _found(check: Callable[[Bench], AsyncIterator[str]], bench: Bench) -> list[str]:
    found: list[str] = []
    try:
        async for problem in check(bench):
            found.append(problem)
    except TimeoutError:
        found.append(f"it took longer than {bench.wait_s:g} s")
    except asyncio.CancelledError:
        raise
    except Exception as error:  # other people's code, in a place where it was not expected to raise
        found.append(f"{type(error).__name__} came out of it: {error}")
    return found


def _overrides(extension: AgentExtension, hook: str) -> bool:
    return getattr(type(extension), hook) is not getattr(AgentExtension, hook) or hook in vars(extension)
