"""The journal port. A journal is an append-only log per session; (session, seq) is its primary key and its fence.

``append`` gives a record its seq and returns at once; only ``durable`` waits. Rows of one session reach the
store in order, without gaps; any wait flushes what is buffered, of every session (group commit).
A failure past the store's own retries poisons the session's log: its buffered rows are dropped, every later
``append`` and ``durable`` raises, and the session must be opened anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Literal, Protocol

from msgspec import Struct

from ..records import Record, Row

SessionState = Literal["running", "idle", "abandoned"]


class SessionInfo(Struct, frozen=True, kw_only=True):
    """One session, as a listing shows it.

    rows: how many records. created_at, updated_at: seconds since 1970. state: ``running`` if a live process holds
    the lease, ``abandoned`` if a dead one or an expired lease does, ``idle`` otherwise.
    """

    session_id: str
    rows: int
    created_at: float
    updated_at: float
    state: SessionState
    owner: str = ""


class SessionLog(Protocol):
    """One session's log in this process. Not shared between threads. One handle per session and journal object.

    (A second handle is a second writer: it cannot claim while the first holds the session, and of two that append without
    a claim the later flush is a conflict.)
    """

    @property
    def session_id(self) -> str: ...

    @property
    def seq(self) -> int:
        """The last seq appended or read, buffered rows included; 0 for a new session."""
        ...

    async def claim(self, *, lease_s: float) -> list[Row]:
        """Take the session for this journal object, and return the rows after ``seq`` (which moves to the last of them).

        A lease that another owner holds is void once it is older than its lease_s, or if that owner was a process of
        this machine that no longer lives. The lease is written with the next flush and renewed in the background until
        ``release``; if another owner's was written first, that flush fails with SessionBusy. Raises SessionBusy if a live
        owner holds it, JournalConflict if the session was deleted since this handle read it, JournalCorrupt, JournalError.
        """
        ...

    def append(self, record: Record, *, at: float) -> int:
        """Buffer ``record`` and return its seq.

        Raises what poisoned the log, if it is; UsageError, before the record has a seq, if it cannot be written as JSON.
        """
        ...

    async def durable(self, seq: int | None = None) -> None:
        """Return once every row up to ``seq`` (default: all, a new lease included) is stored.

        Raises JournalConflict or SessionBusy if another owner has the session now, JournalError if the store failed; the
        log is poisoned then.

        If the caller is cancelled the rows are still stored.
        """
        ...

    async def release(self) -> None:
        """Flush, and give the lease up in the same transaction: instead of a last ``durable``, not after it.

        Raises what ``durable`` would for the rows that this flush could not store; never for a log that was poisoned before.
        """
        ...

    def put_payload(self, digest: str, data: bytes) -> None:
        """Buffer a full copy, stored with the next flush, before the rows buffered after it. Idempotent per digest."""
        ...

    async def get_payload(self, digest: str) -> bytes | None: ...


class Journal(Protocol):
    """A store of sessions. One object per process and store; it may serve many event-loop tasks at once."""

    async def open(self) -> None:
        """Connect, and create what is missing. Idempotent. Raises JournalError (with what to do), JournalCorrupt."""
        ...

    def session(self, session_id: str) -> SessionLog:
        """A handle, without I/O."""
        ...

    async def read(self, session_id: str, *, after: int = 0) -> list[Row]:
        """The stored rows after ``after``, in order. Raises JournalCorrupt for a damaged row or a gap."""
        ...

    def tail(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Row, None]:
        """The stored rows after ``after``, then each new one as it is stored, in any process. Ends only by being closed."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """Newest first."""
        ...

    async def delete(self, session_id: str) -> bool:
        """Remove a session with its payloads; whether there was one. Raises SessionBusy while a live owner runs it."""
        ...

    async def prune(self, *, older_than_s: float, keep: Collection[str] = (), dry_run: bool = False) -> list[SessionInfo]:
        """Delete the sessions whose last record is at least ``older_than_s`` seconds old, and return them, the oldest first.

        Never one with an open run (it waits for a person, failed, or its process died), one that a live owner holds, one that
        cannot be read, or one of ``keep``. dry_run: only return them. Raises UsageError for what is no age, JournalError; what was
        deleted before that stays deleted.
        """
        ...

    async def aclose(self) -> None:
        """Flush, release every lease, disconnect. Idempotent. Raises (once disconnected) if buffered rows could not be stored."""
        ...
