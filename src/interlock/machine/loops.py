"""The loop guard: the same call with the same end, again and again. Judged on digests and typed outcomes, never on words.

A step is a call (tool and arguments, as canonical JSON) with how it ended (its code, and its result or failure). A step that has not been
met before in the run is progress; steps that were are counted until there is some. So one call repeated, two calls in turn and any
longer round are the same thing, and a call whose result changes is no loop. What a call did outside is counted apart, and
progress does not excuse it.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..messages import ToolCall
from ..messages.arguments import MalformedArguments, parse_arguments
from ..records import Limits, ToolStepEnded, Traits

LOOP = "loop"


class Seen(Struct, frozen=True, gc=False):
    """How a call ended last. end: a digest. times: how often it ended so, since ``progress`` was what it is."""

    end: str
    failed: bool
    times: int
    progress: int


class Loops(Struct, frozen=True, gc=False):
    """What the guard remembers of a run. seen: by call. effects: how often each call may have done something. progress: how many steps
    were new."""

    seen: dict[str, Seen] = {}
    effects: dict[str, int] = {}
    progress: int = 0


NOTHING_SEEN = Loops()


def guards(limits: Limits) -> bool:
    """Whether any of the guard's bounds is set; without one it costs nothing."""
    return limits.repeated_results is not None or limits.repeated_failures is not None or limits.repeated_effects is not None


def sameness(call: ToolCall) -> str:
    """The digest that two calls share if they are the same: tool and arguments, whatever the order of keys, spaces and escapes."""
    try:
        arguments = msgspec.json.encode(parse_arguments(call.arguments), order="sorted")
    except (MalformedArguments, UnicodeEncodeError, RecursionError):
        arguments = call.arguments.encode("utf-8", "surrogatepass")
    return _digest(call.name.encode("utf-8", "surrogatepass") + b"\0" + arguments)


def remembered(loops: Loops, same: str, record: ToolStepEnded, traits: Traits) -> Loops:
    """``loops`` after the call ``same`` has ended as ``record`` says."""
    end, failed = _end(record), record.message.failed
    last, progress = loops.seen.get(same), loops.progress
    if last is None or last.end != end:
        progress, times = progress + 1, 1
    else:
        times = 1 + (last.times if last.progress == progress else 1)
    loops = Loops({**loops.seen, same: Seen(end, failed, times, progress)}, loops.effects, progress)
    if record.effect == "none" or traits.on_crash == "rerun":  # what may be started again at will does no harm twice
        return loops
    return replace(loops, effects={**loops.effects, same: loops.effects.get(same, 0) + 1})


class Watch:
    """The guard's eye on one batch. under_way: how many of the same calls are in the onion now, and may end in any way."""

    __slots__ = ("_limits", "_loops", "_under_way")

    def __init__(self, limits: Limits, loops: Loops, under_way: Counter[str]) -> None:
        self._limits = limits
        self._loops = loops
        self._under_way = under_way

    def verdict(self, same: str, traits: Traits) -> str:
        """``start``; ``hold``, until it is known how the same calls before it end; or why the call is not to run, in words."""
        limits, under_way = self._limits, self._under_way[same]
        last, done = self._loops.seen.get(same), self._loops.effects.get(same, 0)
        times = 0 if last is None else last.times if last.progress == self._loops.progress else 1
        bounds = ((limits.repeated_results, False, "given the same result"), (limits.repeated_failures, True, "failed in the same way"))
        for bound, failed, words in bounds:
            before = times if last is not None and last.failed is failed else 0
            if bound is not None and before + under_way >= bound:
                return "hold" if under_way else _why(words, before)
        bound = limits.repeated_effects
        if bound is not None and traits.on_crash != "rerun" and done + under_way >= bound:
            return "hold" if under_way else _why("been executed", done)
        return "start"

    def started(self, same: str) -> None:
        """One more of them is under way."""
        self._under_way[same] += 1


def _why(words: str, times: int) -> str:
    return f"the same call has {words} {times} time{'s' if times != 1 else ''} in this run; it is not executed again, and the run ends"


def _end(record: ToolStepEnded) -> str:
    """How it ended. A capped result names its own call: its full copy is what is compared."""
    if record.payload is not None:
        return _digest(f"{record.code}\0{record.payload.digest}".encode())
    return _digest(msgspec.json.encode((record.code, record.message.content)))


def _digest(data: bytes) -> str:
    import hashlib  # 1 ms, and few runs are guarded

    return hashlib.blake2b(data, digest_size=12).hexdigest()
