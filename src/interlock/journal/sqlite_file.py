"""The file of a SQLite journal: creating it, connecting to it, and saying what is wrong with it."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import quote

from ..errors import JournalCorrupt, JournalError

logger = logging.getLogger("interlock.journal")

Durability = Literal["process", "power"]

APPLICATION_ID = 0x494C4B31
"""``ILK1``: what ``file`` and we tell our databases by."""

SCHEMA_VERSION = 2

# The smallest page of SQLite's: no database is shorter.
PAGE_BYTES_MIN = 512

# A group commit must touch few pages, so rows of all sessions are added at the end of one table, whose ids follow one another, and
# no index of (session, seq) stands beside it: with 64 sessions of 1,000 rows that is a page for each of them in each commit (90,000
# rows/s against 170,000). A session's entry says how many rows it has and which is the last, each row which one was before, and the
# entry changes with the rows: WHERE rows = what the writer knows is what refuses a second writer.
# Sessions are numbered: a number is smaller than a name, in every row. The last number given stays, or it would be given again.
SCHEMA = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE,
    owner TEXT NOT NULL DEFAULT '', epoch INTEGER NOT NULL DEFAULT 0, lease_s REAL NOT NULL DEFAULT 0, until REAL NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0, last INTEGER NOT NULL DEFAULT 0, created_at REAL
);
CREATE TABLE log (
    id INTEGER PRIMARY KEY, before INTEGER NOT NULL, session INTEGER NOT NULL REFERENCES sessions, seq INTEGER NOT NULL,
    at REAL NOT NULL, v INTEGER NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL
);
CREATE TABLE payloads (
    session INTEGER NOT NULL REFERENCES sessions, digest TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (session, digest)
);
CREATE VIEW readable AS
    SELECT name AS session, seq, datetime(at, 'unixepoch') AS at, CAST(body AS TEXT) AS record
    FROM log JOIN sessions ON sessions.id = session ORDER BY session, seq;
"""

_creating = threading.Lock()


class Connections(NamedTuple):
    """loop: used on the event-loop thread, never waits for a lock. thread: used in the worker, waits up to busy_s.

    wal_pages: how long the WAL was when they were opened. file: which file they are on, whatever its name is given to later.
    """

    loop: sqlite3.Connection
    thread: sqlite3.Connection
    wal_pages: int
    file: tuple[int, int]

    def close(self) -> None:
        self.loop.close()
        self.thread.close()


def connect(path: str, *, durability: Durability, busy_s: float, pragmas: Mapping[str, str | int]) -> Connections:
    """Open ``path``, creating the file (mode 0600) and its tables if need be. Blocks for up to ``busy_s`` on a lock.

    Raises JournalError for whatever is not, or cannot become, a journal of this version.
    """
    path = os.path.realpath(path)
    try:
        _create(path)
        thread = _connect(path, busy_s)
        try:
            _prepare(thread, path, busy_s)
            thread.execute(f"PRAGMA synchronous={'FULL' if durability == 'power' else 'NORMAL'}")
            loop = _connect(path, 0)
            loop.execute("PRAGMA synchronous=NORMAL")
            for connection in (loop, thread):
                # What is deleted is overwritten with zeros, in pages that were split before, too: deleted means gone.
                connection.execute("PRAGMA secure_delete=ON")
                # With NORMAL a commit only writes, and a checkpoint syncs; so the flusher says when, and in the worker.
                connection.execute("PRAGMA wal_autocheckpoint=0")
                for name, value in pragmas.items():
                    connection.execute(f"PRAGMA {name}={value}")
            wal = f"{path}-wal"
            return Connections(loop, thread, os.path.getsize(wal) // 4096 if os.path.exists(wal) else 0, _file_at(path))
        except BaseException:
            thread.close()
            raise
    except sqlite3.Error as error:
        raise explain(error, path, "opened") from error


def check_there(path: str, connections: Connections) -> None:
    """Raises JournalError unless ``path`` still is the file that was opened.

    SQLite would go on with a file that has no name any more: nobody would find what is stored there, and another process could make a
    new one, and run the same sessions beside us.
    """
    if (found := _file_at(path)) != connections.file:
        fault = "replaced by another one" if found[1] else "deleted or moved"
        raise JournalError(
            f"journal {path}: the file was {fault} while it was open, and nothing more is stored in it; make a new SQLiteJournal"
        )


def _file_at(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _create(path: str) -> None:
    parent = os.path.dirname(path)
    # SQLite gives its -wal and -shm files the mode of the database, so the mode is set where the file is made. The lock:
    # closing any descriptor of a file drops all locks that this process has on it, SQLite's included.
    with _creating:
        if os.path.isdir(path):
            raise JournalError(f"journal {path}: this is a directory; name a file in it")
        if not os.path.isdir(parent):
            fault = "is not a directory" if os.path.exists(parent) else "does not exist"
            raise JournalError(f"journal {path}: the directory {parent} {fault}; create it, or name another file")
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
        except FileExistsError:
            _check_size(path)
            # SQLite would open it for reading only, and not say so before the first write.
            if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise JournalError(
                    f"journal {path}: the file is read-only for this user; change its permissions, or name another file"
                ) from None
        except OSError as error:
            raise JournalError(
                f"journal {path}: it cannot be created ({error.strerror}); choose a place where this user may write"
            ) from error


def _check_size(path: str) -> None:
    """SQLite takes a file that is too short to be a database for a new one, and an empty one as well, whatever its log still has."""
    wal, size = f"{path}-wal", os.path.getsize(path)
    if 0 < size < PAGE_BYTES_MIN:
        raise JournalCorrupt(f"journal {path}: it has {size} bytes, which is no database: it was cut off; restore a copy, or move it away")
    if not size and os.path.exists(wal) and os.path.getsize(wal):
        raise JournalCorrupt(
            f"journal {path}: it is empty, but its write-ahead log is not: it was cut off; restore a copy, or move both away"
        )


def _connect(path: str, busy_s: float) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, path: str, busy_s: float) -> None:
    """Check whose database this is, and make it ours if it is empty.

    Switching to WAL needs the file alone and reports a lock at once, without the busy timeout; so all of it is retried.
    """
    deadline = time.monotonic() + busy_s
    while True:
        try:
            # One snapshot: another process may be making the tables just now, between any two of these reads.
            connection.execute("BEGIN")
            _check_identity(connection, path)
            connection.execute("COMMIT")
            if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
                raise JournalError(f"journal {path}: its file system has no shared memory for a WAL; use a local disk")
            _create_tables(connection, path)
            return
        except sqlite3.OperationalError as error:
            if connection.in_transaction:
                connection.rollback()
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))


def _create_tables(connection: sqlite3.Connection, path: str) -> None:
    if _version(connection) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    _check_identity(connection, path)
    if _version(connection) != SCHEMA_VERSION:
        for statement in SCHEMA.split(";\n")[:-1]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _check_identity(connection: sqlite3.Connection, path: str) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = _version(connection)
    if application == APPLICATION_ID:
        if version != SCHEMA_VERSION:
            raise JournalError(f"journal {path}: {other_schema(version)}")
    elif application or version or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise JournalError(f"journal {path}: this is the database of another application; name another file")


def other_schema(version: int) -> str:
    """What to say of a journal whose tables are not of SCHEMA_VERSION."""
    if version > SCHEMA_VERSION:
        return f"written by a newer version of Interlock (schema {version}, this one knows {SCHEMA_VERSION}); upgrade"
    return (
        f"written by an older version of Interlock (schema {version}, this one knows {SCHEMA_VERSION}); "
        "`interlock export` of that version takes its sessions out, and a new file begins anew"
    )


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def scrub(connection: sqlite3.Connection, *, path: str) -> None:
    """After a deletion: write the zeros through to the file, and empty the write-ahead log, which still has the old pages.

    Waits for readers of other processes, as long as for any lock. If one reads on, it says so in a WARNING.
    """
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        logger.warning(
            "journal %s: another process is reading it, so what was deleted stays in its write-ahead log until that is emptied next", path
        )


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else's lock is all that is wrong."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def _code(error: sqlite3.Error) -> int:
    # Errors of the module itself ("Cannot operate on a closed database") carry no code.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


_ADVICE = {
    sqlite3.SQLITE_BUSY: "another process keeps it locked; end that process, or give more time with busy_s",
    sqlite3.SQLITE_LOCKED: "another connection keeps it locked; end what uses it, or give more time with busy_s",
    sqlite3.SQLITE_PROTOCOL: "too many processes open it at once; give more time with busy_s",
    sqlite3.SQLITE_FULL: "the disk (or the quota) is full; free some space, then resume",
    sqlite3.SQLITE_READONLY: "the file or its directory is read-only for this user; change that, or name another file",
    sqlite3.SQLITE_PERM: "this user may not access it; change its permissions, or name another file",
    sqlite3.SQLITE_AUTH: "this user may not access it; change its permissions, or name another file",
    sqlite3.SQLITE_CANTOPEN: "the file or its directory cannot be opened by this user; check both and their permissions",
    sqlite3.SQLITE_IOERR: "the disk failed; check it, then resume",
    sqlite3.SQLITE_NOTADB: "this is no SQLite database; name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "its pages are damaged; restore a copy, or save what is left with `sqlite3 FILE .recover`",
    sqlite3.SQLITE_TOOBIG: "a row is larger than SQLite stores; lower limits.result_store_bytes",
    sqlite3.SQLITE_NOMEM: "there is no memory left; free some, then resume",
}


def explain(error: sqlite3.Error, path: str, what: str) -> JournalError:
    """``error`` as ours: which file, what could not be done, why, and what to do about it. JournalCorrupt for damage."""
    code = _code(error)
    kind = JournalCorrupt if code == sqlite3.SQLITE_CORRUPT else JournalError
    advice = _ADVICE.get(code, "see the cause")
    return kind(f"journal {path}: it could not be {what}: {advice} (SQLite: {error})")
