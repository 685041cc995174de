"""What was seen from outside while a world ran: all that the checkers look at."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ...machine import State
from ...messages import Message
from ...records import Row, RunResult
from .script import Script


@dataclass(slots=True)
class Handled:
    """One start of a handler, as the outside world counts it.

    number: of the call in the script. key: the idempotency key. stored: how many rows of the session the disk had then. refused:
    whether the disk had refused the record of this start. acted: the handler has had its effect. ended: ``""`` while
    it runs, ``completed`` or ``raised``. secret: what it was told that is not to be written down. beside: whose handlers were running
    in the same process and epoch when it started.
    """

    process: int
    session: str
    number: int
    call_id: str
    key: str
    epoch: int
    rerun: bool
    stored: int
    refused: bool
    acted: bool = False
    ended: str = ""
    secret: str = ""
    beside: tuple[Handled, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Entered:
    """A layer did ``behaviour`` to call ``number``. started: how many handler starts the world had seen before.

    arguments: those of the call when it came to the layer, as JSON. answered: whether a person's answer to them was there.
    """

    process: int
    number: int
    layer: int
    behaviour: str
    started: int
    arguments: str
    answered: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the model got it."""

    process: int
    session: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A command that returned without an error. kind: ``run``, ``steer``, ``cancel``, ``answer``, ``import``. mark: what tells it apart."""

    process: int
    kind: str
    mark: str
    stored: int


@dataclass(frozen=True, slots=True)
class Finished:
    """What a caller got: a result or an error."""

    process: int
    move: str
    result: RunResult | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class Lineage:
    """What one log of one process has read and appended, in order, and the live state that was seen after each.

    rows: (seq, encoded or read record, whether this process appended it). states: (seq, state after that record).
    """

    process: int
    session: str
    rows: list[tuple[int, bytes, bool]] = field(default_factory=list[tuple[int, bytes, bool]])
    states: list[tuple[int, State]] = field(default_factory=list[tuple[int, State]])


@dataclass(slots=True)
class History:
    """One world, from the outside. rows: of each session, as the disk has them at the end. calm_at: from where on no fault was injected.

    trace: every step in words, from which the fingerprint is made. points: how often each point was passed. crashes: where a process
    was killed. problems: exceptions that nobody looked at. unfinished: why the liveness phase did not come to an end, if it did not.
    """

    script: Script
    handled: list[Handled] = field(default_factory=list[Handled])
    entered: list[Entered] = field(default_factory=list[Entered])
    asked: list[Asked] = field(default_factory=list[Asked])
    acknowledged: list[Acknowledged] = field(default_factory=list[Acknowledged])
    finished: list[Finished] = field(default_factory=list[Finished])
    lineages: list[Lineage] = field(default_factory=list[Lineage])
    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    points: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    crashes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    problems: list[str] = field(default_factory=list[str])
    unfinished: str = ""
    trace: list[str] = field(default_factory=list[str])

    def fingerprint(self) -> str:
        """A digest of everything that happened, in its order."""
        digest = hashlib.blake2b(digest_size=16)
        for line in self.trace:
            digest.update(line.encode())
            digest.update(b"\n")
        return digest.hexdigest()


def in_words(value: Any) -> str:
    """``value`` in the trace: nothing in it may depend on an address."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return str(value)
