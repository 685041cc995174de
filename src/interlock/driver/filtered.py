"""The deltas of one model step, through the filters of the extensions that redact them: what one holds back is not shown yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ..errors import UsageError
from ..events import ReasoningDelta, StreamRestarted, TextDelta, ToolCallDelta
from ..extensions.base import TextFilter
from .setup import Parts

if TYPE_CHECKING:
    from ..model import ModelEvent
    from .run import Run


def filtered_of(run: Run) -> Filtered:
    """The filters for the next model step: anew, unless it continues the answer of the one before."""
    session = run.session
    if session.filtered is None or not session.state.partial:
        session.filtered = Filtered(run.parts)
    return session.filtered


Lane = tuple[type[Any], int]
"""What belongs together: the text, the reasoning, or the arguments of one call."""


class Filtered:
    """A filter of each extension for each lane, made when the lane begins."""

    __slots__ = ("_lanes", "_last", "_makers")

    def __init__(self, parts: Parts) -> None:
        self._makers = tuple((parts.extensions[index].name, parts.extensions[index].redact_deltas) for index in parts.filters)
        self._lanes: dict[Lane, tuple[tuple[str, TextFilter], ...]] = {}
        self._last: dict[Lane, Any] = {}

    def restart(self) -> None:
        """What was shown is withdrawn: what is held back is not shown any more, either."""
        self._lanes.clear()
        self._last.clear()

    def feed(self, event: ModelEvent) -> ModelEvent | None:
        """What of ``event`` can be shown now; None if nothing can. Raises UsageError if a filter fails."""
        if isinstance(event, ToolCallDelta):
            lane, text = (ToolCallDelta, event.index), event.arguments
            event = replace(event, name=self.whole(event.name))
        elif isinstance(event, TextDelta | ReasoningDelta):
            lane, text = (type(event), 0), event.text
        else:
            if isinstance(event, StreamRestarted):
                self.restart()
            return event
        self._last[lane] = event
        for name, one in self._filters(lane):
            text = _text(name, one.feed, text)
        return _with(event, text) if text or isinstance(event, ToolCallDelta) else None

    def rest(self) -> Iterator[ModelEvent]:
        """The stream has ended: what was held back of it."""
        for lane, filters in self._lanes.items():
            if rest := _rest(filters):
                yield _with(self._last[lane], rest)
        self.restart()

    def whole(self, text: str) -> str:
        """A text that comes in one piece."""
        filters = self._made()
        for name, one in filters:
            text = _text(name, one.feed, text) + _text(name, one.end)
        return text

    def _filters(self, lane: Lane) -> tuple[tuple[str, TextFilter], ...]:
        if lane not in self._lanes:
            self._lanes[lane] = self._made()
        return self._lanes[lane]

    def _made(self) -> tuple[tuple[str, TextFilter], ...]:
        made: list[tuple[str, TextFilter]] = []
        for name, maker in self._makers:
            try:
                one = maker()
            except Exception as error:
                raise _failed(name) from error
            if one is not None:
                made.append((name, one))
        return tuple(made)


def _rest(filters: tuple[tuple[str, TextFilter], ...]) -> str:
    """What one filter lets go of at its end, the next one has not seen yet."""
    text = ""
    for name, one in filters:
        text = (_text(name, one.feed, text) if text else "") + _text(name, one.end)
    return text


def _text(name: str, step: Callable[..., object], *text: str) -> str:
    try:
        made = step(*text)
    except Exception as error:  # its text may hold what was to be taken out: the cause has it, the message does not
        raise _failed(name) from error
    if not isinstance(made, str):
        raise UsageError(f"redact_deltas of extension {name} gave {type(made).__name__}, not text; nothing more is shown")
    return made


def _failed(name: str) -> UsageError:
    return UsageError(f"redact_deltas of extension {name} raised; nothing more is shown")


def _with(event: Any, text: str) -> ModelEvent:
    return cast("ModelEvent", replace(event, arguments=text) if isinstance(event, ToolCallDelta) else replace(event, text=text))
