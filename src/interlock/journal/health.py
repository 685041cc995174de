"""Whether a SQLite journal is in order, without opening it for writing: no record is added, changed or waited for."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from typing import Literal, NamedTuple
from urllib.parse import quote

from .sqlite_file import APPLICATION_ID, SCHEMA_VERSION

__all__ = ["Finding", "health"]

# More problems than a person reads; a damaged file can have one for each page.
PROBLEMS_MAX = 5


class Finding(NamedTuple):
    """One thing that was looked at. state: ``ok``, ``note`` (worth knowing) or ``broken`` (a run would fail)."""

    state: Literal["ok", "note", "broken"]
    what: str


def health(path: str) -> Iterator[Finding]:
    """What is to be said of the file at ``path``. Reads all of it (``PRAGMA quick_check``): about a second per gigabyte."""
    if not os.path.exists(path):
        yield Finding("note", f"{path} does not exist yet; the first run makes it")
        return
    try:
        connection = sqlite3.connect(f"file:{quote(os.path.realpath(path))}?mode=ro", uri=True, timeout=1.0)
        try:
            yield from _checked(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        yield Finding("broken", f"{path}: it cannot be read ({error})")
        return
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        yield Finding("note", f"{path}: others may read it (mode {mode:04o}); chmod 600 keeps conversations private")
    if not os.access(path, os.W_OK):
        yield Finding("broken", f"{path}: this user may not write it")


def _checked(connection: sqlite3.Connection, path: str) -> Iterator[Finding]:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        yield Finding("broken", f"{path}: this is no journal of Interlock's")
        return
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        yield Finding("broken", f"{path}: written by a newer version of Interlock (schema {version}); upgrade")
        return
    problems = [row[0] for row in connection.execute(f"PRAGMA quick_check({PROBLEMS_MAX})") if row[0] != "ok"]
    if problems:
        yield Finding(
            "broken", f"{path}: damaged: {'; '.join(problems)}; restore a copy, or save what is left with `sqlite3 FILE .recover`"
        )
        return
    sessions, records = connection.execute("SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM log)").fetchone()
    yield Finding("ok", f"{path}: quick_check ok, {sessions} sessions, {records:,} records, {os.path.getsize(path) / 1e6:,.1f} MB")
