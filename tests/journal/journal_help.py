"""What the journal's tests share: records, and other processes that are told what to do over their pipes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from interlock.journal import SessionLog
from interlock.journal.sqlite import SQLiteJournal
from interlock.records import ExtensionNoted, Row

WAIT_S = 30.0


def note(data: Any = None) -> ExtensionNoted:
    return ExtensionNoted(extension="test", version=1, data=data)


def append(log: SessionLog, *data: Any) -> int:
    for item in data:
        log.append(note(item), at=1.5)
    return log.seq


def data_of(rows: list[Row]) -> list[Any]:
    return [row.record.data for row in rows if isinstance(row.record, ExtensionNoted)]


def raw(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path, isolation_level=None))


async def fill(path: Path, *data: object, session: str = "s") -> None:
    journal = SQLiteJournal(path)
    append(journal.session(session), *data)
    await journal.aclose()


PRELUDE = """
import asyncio, os, sys
from interlock.errors import *
from interlock.journal.sqlite import SQLiteJournal
from interlock.records import ExtensionNoted
def note(data): return ExtensionNoted(extension="test", version=1, data=data)
def say(text): print(text, flush=True)
def hear(): return sys.stdin.readline()
path = sys.argv[1]
"""


class Program:
    """Another Python process that runs ``body`` (``path`` is the database), spoken to by lines. within: a command that starts it."""

    def __init__(self, body: str, path: Path, within: Sequence[str] = ()) -> None:
        program = PRELUDE + textwrap.dedent(body)
        tests = str(Path(__file__).parents[1])
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])},
        )

    def hear(self) -> str:
        """Its next line; if it has ended instead, what it said on stderr."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(self.process.communicate(timeout=WAIT_S)[1])
        return line

    def say(self, text: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait for its end, which must be a good one."""
        _, errors = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, errors


@contextmanager
def program(body: str, path: Path, *, within: Sequence[str] = ()) -> Iterator[Program]:
    other = Program(body, path, within)
    try:
        yield other
    finally:
        other.process.kill()
        other.process.communicate()
