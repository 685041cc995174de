"""Whether a SQLite journal is in order, without opening it for writing: no record is added, changed or waited for."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from typing import Literal, NamedTuple
from urllib.parse import quote

from ..errors import JournalCorrupt
from .sqlite_file import APPLICATION_ID, SCHEMA_VERSION, other_schema
from .sqlite_rows import check

__all__ = ["Finding", "health"]

# More problems than a person reads; a damaged file can have one for each page.
PROBLEMS_MAX = 5


class Finding(NamedTuple):
    """One thing that was looked at. state: ``ok``, ``note`` (worth knowing) or ``broken`` (a run would fail)."""

    state: Literal["ok", "note", "broken"]
    what: str


def health(path: str) -> Iterator[Finding]:
    """What is to be said of the file at ``path``. Reads all of it, page by page with its indexes (``PRAGMA integrity_check``) and record by
    record: some seconds per gigabyte."""
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
    if version != SCHEMA_VERSION:
        yield Finding("broken", f"{path}: {other_schema(version)}")
        return
    problems = [row[0] for row in connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})") if row[0] != "ok"]
    if problems:
        yield Finding(
            "broken", f"{path}: damaged: {'; '.join(problems)}; restore a copy, or save what is left with `sqlite3 FILE .recover`"
        )
        return
    damaged = 0
    for finding in _damage(connection):
        damaged += 1
        yield Finding("broken", f"{path}: {finding}")
        if damaged == PROBLEMS_MAX:
            yield Finding("broken", f"{path}: these are the first {PROBLEMS_MAX} of its problems; there may be more")
            break
    if damaged:
        return
    sessions, records = connection.execute("SELECT (SELECT count(name) FROM sessions), (SELECT count(*) FROM log)").fetchone()
    yield Finding("ok", f"{path}: integrity_check ok, {sessions} sessions, {records:,} records, {os.path.getsize(path) / 1e6:,.1f} MB")


def _damage(connection: sqlite3.Connection) -> Iterator[str]:
    """What the file's own structure does not tell: each session up to its first record that is not what was written."""
    whole = True
    for (name,) in connection.execute("SELECT name FROM sessions WHERE name IS NOT NULL ORDER BY id").fetchall():
        try:
            check(connection, name)
        except JournalCorrupt as error:
            whole = False
            yield f"{error}; the records before it are whole"
    orphans = "SELECT count(*) FROM log LEFT JOIN sessions ON sessions.id = session WHERE name IS NULL OR (? AND seq > rows)"
    if count := connection.execute(orphans, (whole,)).fetchone()[0]:
        yield f"{count} records belong to no session: a row of the table of sessions is missing or of another time; restore a copy"
    for name, digest, data in connection.execute("SELECT name, digest, data FROM payloads JOIN sessions ON id = session"):
        if len(digest) == 64 and hashlib.sha256(data).hexdigest() != digest:
            yield f"session {name!r}: the full copy {digest[:12]}... of a result was changed after it was written"
