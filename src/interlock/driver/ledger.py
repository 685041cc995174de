"""The journal that is being replayed: what may happen now, what must happen next, and whether what happens is what is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from ..errors import Diverged, JournalError
from ..records import (
    ExtensionNoted,
    HandlerStarted,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    ReconcileEnded,
    ReconcileStarted,
    Record,
    Row,
    RunCancelled,
    RunEnded,
    SessionForked,
    SessionOpened,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
)
from .likeness import described, same

MODEL = (ModelStepStarted, ModelStepEnded, ModelStepFailed, RunEnded)
CALL = (ToolStepStarted, HandlerStarted, ToolStepEnded, ToolStepSuspended, ReconcileStarted, ReconcileEnded)
"""What comes about by itself: the line of model steps, and each call for itself. All else came from outside."""


class Halt(JournalError):
    """Nothing further can be recorded in this replay: it differs, or the process that is replayed ended here."""


class Ledger:
    """The rows, and how far the replay has come.

    window: rows before this place may come about now; there the next thing from outside is due. Steps that may not go on yet
    wait in ``until``. Among themselves, the steps of a batch may come about in another order than they did.
    """

    def __init__(self, rows: Sequence[Row], session_id: str) -> None:
        self.rows = rows
        self.session_id = session_id
        self.window = 0
        self.diverged: Diverged | None = None
        self._place = 0
        self._segment = 0
        self._used = bytearray(len(rows))
        self._outside = bytearray(len(rows))
        self._own: dict[str, deque[int]] = {}
        self._batch: dict[str, deque[int]] = {}
        self._noted: list[int] = []
        self._owed: Counter[bytes] = Counter()
        self._waiters: list[asyncio.Future[None]] = []
        self._index()

    def _index(self) -> None:
        forked = False
        for place, row in enumerate(self.rows):
            record = row.record
            forked = isinstance(record, SessionForked) or (forked and not isinstance(record, SessionOpened))
            if isinstance(record, ExtensionNoted):
                self._noted.append(place)
            elif forked or not isinstance(record, (*MODEL, *CALL)):
                self._outside[place] = True
            else:
                key = key_of(record)
                self._own.setdefault(key, deque()).append(place)
                if key:
                    self._batch.setdefault(root_of(key), deque()).append(place)

    # ---- how far it is -------------------------------------------------------------------------------

    def place(self) -> int:
        """The first row that has not come about; notes are not waited for."""
        while self._place < len(self.rows) and (self._used[self._place] or isinstance(self.rows[self._place].record, ExtensionNoted)):
            self._place += 1
        return self._place

    def open_window(self) -> int:
        """Everything up to the next thing from outside may come about now. Returns that place."""
        place = self.place()
        self.window = next((i for i in range(place, len(self.rows)) if self._outside[i] and not self._used[i]), len(self.rows))
        self._segment = next((i for i in range(place, len(self.rows)) if self.is_boundary(i)), len(self.rows))
        return self.window

    def is_boundary(self, place: int) -> bool:
        """Whether another process begins there: nothing of the one before goes on."""
        return isinstance(self.rows[place].record, SessionOpened | SessionForked)

    def is_used(self, place: int) -> bool:
        return bool(self._used[place])

    def use(self, place: int) -> Record:
        """That row has come about. Returns its record."""
        self._used[place] = True
        return self.rows[place].record

    def clock(self) -> float:
        """The time of the row that is due."""
        return self.rows[min(self.place(), len(self.rows) - 1)].at if self.rows else 0.0

    # ---- what may happen -----------------------------------------------------------------------------

    def next(self, key: str) -> int | None:
        """The next row of the call ``key`` (of the line of model steps for ``""``) in this process."""
        return self._first(self._own.get(key))

    def due(self, key: str) -> Any:
        """The record of that row, if it may come about now."""
        place = self.next(key)
        return self.rows[place].record if place is not None and place < self.window else None

    def may_enter(self, key: str, let_in: bool) -> bool:
        """Whether the call may go into its layers: its handler started then, or something of it is due."""
        first = self._first(self._batch.get(root_of(key)))
        if first is None:
            return let_in
        place = self.next(key)
        record = self.rows[place].record if place is not None else None
        if isinstance(record, ToolStepEnded) and record.unentered:
            return False  # until the run is cancelled
        if let_in or isinstance(record, HandlerStarted):
            return True
        return first < self.window and (first == self.place() or not self._is_last_word(first))

    def may_end(self, key: str) -> bool:
        """Whether the handler of ``key`` may come to its end. If that ends the run, everything else must have come about before."""
        place = self.next(key)
        record = self.rows[place].record if place is not None else None
        if place is None or place >= self.window or not isinstance(record, ToolStepEnded) or record.code == "cancelled":
            return False  # a cancelled one ends when it is cancelled
        return place == self.place() or not self._is_last_word(place)

    def _is_last_word(self, place: int) -> bool:
        record, after = self.rows[place].record, self.rows[place + 1].record if place + 1 < len(self.rows) else None
        stops = isinstance(after, RunCancelled) and after.reason == "fatal"
        return stops or (isinstance(record, ToolStepEnded) and record.ending is not None)

    def made_by(self, parent: str) -> Iterator[tuple[int, ToolStepStarted]]:
        """The calls, due now, that the call ``parent`` makes itself."""
        for place in self._batch.get(root_of(parent), ()):
            if place >= self.window:
                return
            record = self.rows[place].record
            if not self._used[place] and isinstance(record, ToolStepStarted) and record.parent == parent:
                yield place, record

    def _first(self, places: deque[int] | None) -> int | None:
        while places and self._used[places[0]]:
            places.popleft()
        return places[0] if places and places[0] < self._segment else None

    # ---- what does happen ----------------------------------------------------------------------------

    def find(self, record: Record) -> int:
        """The place of ``record``. Raises Halt if there is none: it differs from what is recorded, or its process ended before it."""
        if self.diverged is not None:
            raise self.halt()
        if isinstance(record, RunCancelled):
            return self._cancellation(record)
        key = key_of(record)
        place = self.next(key)
        if place is None:
            rest = self._first(self._batch.get(root_of(key))) if key else None
            if rest is None:
                raise self.halt()
            self.differs(rest, described(record))
        elif not same(self.rows[place].record, record):
            self.differs(place, described(record))
        else:
            return place
        raise self.halt()

    def _cancellation(self, record: RunCancelled) -> int:
        place = self.place()
        for i in range(place, self._segment):
            known = self.rows[i].record
            if isinstance(known, RunCancelled) and not self._used[i] and known.reason == record.reason:
                return i
        if self._segment == len(self.rows) or place < self._segment:
            self.differs(min(place, len(self.rows) - 1), described(record))
        raise self.halt()

    def note(self, record: ExtensionNoted) -> bool:
        """A layer notes something. Whether it is to be remembered: not if it was put in from the journal before."""
        said = note_key(record)
        if self._owed[said]:
            self._owed[said] -= 1
            return False
        for place in self._noted:
            if place >= self._segment:
                break
            if not self._used[place] and note_key(cast("ExtensionNoted", self.rows[place].record)) == said:
                self.use(place)
                break
        return True

    def notes(self, before: int) -> Iterator[ExtensionNoted]:
        """The notes before that place that nobody has made."""
        while self._noted and self._noted[0] < before:
            place = self._noted.pop(0)
            if not self._used[place]:
                record = cast("ExtensionNoted", self.use(place))
                self._owed[note_key(record)] += 1
                yield record

    def differs(self, place: int, found: str) -> Diverged:
        """Keep the first difference, and return it."""
        if self.diverged is None:
            row = self.rows[place]
            expected = described(row.record)
            self.diverged = Diverged(
                f"session {self.session_id!r}, seq {row.seq}: the journal holds {expected}; in the replay {found}",
                seq=row.seq,
                expected=expected,
                found=found,
            )
            self.bump()
        return self.diverged

    def halt(self) -> Halt:
        return Halt("the replay differs from its journal" if self.diverged is not None else "the process that is replayed ended here")

    # ---- waiting -------------------------------------------------------------------------------------

    def bump(self) -> None:
        """Something has changed: whoever waits looks again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def change(self) -> None:
        """Return when something has changed."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def until(self, ready: Callable[[], bool]) -> None:
        """Return when ``ready`` says so, and raise what it raises."""
        while not ready():
            await self.change()


def key_of(record: Any) -> str:
    return getattr(record, "key", "")


def root_of(key: str) -> str:
    """The call of the model's own that ``key`` is, or was made by: run, turn, ordinal."""
    return "/".join(key.split("/", 3)[:3])


def note_key(record: ExtensionNoted) -> bytes:
    return msgspec.json.encode((record.extension, record.data), order="sorted")
