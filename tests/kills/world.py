"""The world outside: it outlives every process. A model that follows a script, a ledger of what handlers did, and what was said."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from interlock.journal.sqlite_rows import read
from interlock.records import Row
from interlock.testing import Step, call, calls, text
from kills.life import TRAITS

JOBS = 3


@dataclass(frozen=True)
class Entry:
    """One line of the ledger. call: the id of the tool call, which the scripted model gives to no other."""

    what: str
    tool: str
    item: str
    call: str
    key: str
    pid: int


@dataclass(frozen=True)
class Said:
    """What a life acknowledged, and which one it was."""

    life: int
    what: str
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


class World:
    """Made from a seed: three jobs, each a prompt that the model answers with two or three batches of calls and then a text."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.name = f"world-{seed}"
        self.journal, self.ledger = folder / f"{self.name}.db", folder / f"{self.name}.ledger"
        self.bodies: list[dict[str, Any]] = []
        """Every request that came, whole."""
        self.said: list[Said] = []
        """Everything that was acknowledged."""
        rng = random.Random(f"world {seed}")
        self.jobs = [[_batch(rng) for _ in range(rng.randint(2, 3))] for _ in range(JOBS)]

    def step(self, body: dict[str, Any]) -> Step:
        """What the model says: the next batch of the newest job, as far as the conversation shows."""
        self.bodies.append(body)
        messages = body["messages"]
        place, job = max((n, int(m[1])) for n, message in enumerate(messages) if (m := _JOB.fullmatch(str(message["content"]))))
        done = sum(bool(message.get("tool_calls")) for message in messages[place:])
        batches = self.jobs[job]
        if done >= len(batches):
            return text(f"Job {job} is done.")
        return calls(*(call(f"c{job}-{done}-{n}", name, {"item": f"item {job}-{done}-{n}"}) for n, name in enumerate(batches[done])))

    def entries(self) -> list[Entry]:
        if not self.ledger.exists():
            return []
        return [Entry(**json.loads(line)) for line in self.ledger.read_text().splitlines()]

    def rows(self) -> list[Row]:
        """What is stored, read past the runtime's own connections, and without tidying up after the process that died."""
        if not self.journal.exists():
            return []
        found: list[Row] = []
        with closing(sqlite3.connect(f"file:{quote(str(self.journal))}?mode=ro", uri=True)) as connection:
            try:
                found = read(connection, self.name)
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):  # it died before it had made them
                    raise
        return found


_JOB = re.compile(r"Job (\d+)\.")


def prompt(job: int) -> str:
    return f"Job {job}."


def _batch(rng: random.Random) -> list[str]:
    return rng.choices(list(TRAITS), k=rng.randint(1, 3))
