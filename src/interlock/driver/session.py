"""One session as this process has it: its log, the state and the views folded from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import JournalError, UsageError
from ..journal.base import SessionLog
from ..journal.transcript import SAYING, Transcript
from ..machine import ANY_ARGUMENTS, Call, State, apply
from ..messages import reason_of
from ..records import Record, Row, Scope, SessionOpened
from .identity import sha256
from .setup import Parts

if TYPE_CHECKING:
    from .filtered import Filtered
    from .redact import Redactor
    from .run import Run

logger = logging.getLogger("interlock.driver")

R = TypeVar("R", bound=Record)


class LiveSession:
    """The one writer of a session in this process. ``state`` is ``fold`` of everything appended, at any time.

    scratch: where adapters keep what they have encoded. run: the live run, if there is one. lost: what is known here can
    no longer be trusted; the session must be read anew. filtered: what holds back the end of an answer that is being continued.
    """

    __slots__ = (
        "_opened",
        "_parts",
        "_redactor",
        "contexts",
        "filtered",
        "log",
        "lost",
        "memories",
        "run",
        "scratch",
        "session_id",
        "state",
        "transcript",
    )

    def __init__(self, session_id: str, log: SessionLog, parts: Parts) -> None:
        self.session_id = session_id
        self.log = log
        self.state = State()
        self.transcript = Transcript()
        self.scratch: dict[Any, Any] = {}
        self.run: Run | None = None
        self.contexts: Sequence[Any] = ()
        """The live run's, one for each extension."""
        self.memories: dict[int, Any] = dict.fromkeys(parts.folders)
        self._parts = parts
        self._redactor: Redactor | None = None
        self.filtered: Filtered | None = None
        self._opened = False
        self.lost = False
        if parts.redactors:
            from .redact import Redactor  # most agents redact nothing, and need not load how it is done

            self._redactor = Redactor(parts)

    async def claim(self, *, lease_s: float, version: str) -> None:
        """Take the session for this process and catch up with what others have written. Raises SessionBusy, JournalError."""
        rows: list[Row] = await self.log.claim(lease_s=lease_s)
        for row in rows:
            self.state, self.memories = apply(self.state, row.record), self._folded(row.record)
            self.transcript.add(row.record)
        if rows or not self._opened:
            self.commit(SessionOpened(epoch=self.state.epoch + 1, version=version))
            self._opened = True

    async def give_up(self) -> None:
        """Give the lease up after a failure, which is what the caller hears of."""
        try:
            await self.log.release()
        except JournalError as error:
            logger.debug("the lease could not be given up: %s", error)

    def check_run_id(self, run_id: str) -> None:
        """Raises UsageError for one that was used: calls of two runs would have the same keys, and idempotency keys."""
        if run_id in self.transcript.runs:
            raise UsageError(
                f"run_id {run_id!r} was used in session {self.session_id!r} before, and the calls of both runs would have the same keys: "
                "leave it out to have a new one made"
            )

    def reopen(self, *, version: str) -> None:
        """Say that whatever ran before is not running now, although this process has not changed."""
        self.commit(SessionOpened(epoch=self.state.epoch + 1, version=version))

    def commit(self, record: R, finish: Callable[[R], R] | None = None) -> R:
        """Redact, check, enqueue, apply. Returns the record as it is written. finish: the last touch to what was redacted.

        Raises ProtocolError or UsageError (nothing was recorded), JournalError. After a redaction that failed the run has failed, too.
        """
        given, redactor, parts = record, self._redactor, self._parts
        if redactor is not None:
            record = self._redacted(record, redactor)
        if finish is not None:
            record = finish(record)
        after, kind = apply(self.state, record), type(record)
        memories = self._folded(record) if kind in parts.folds else self.memories
        self.log.append(record, at=parts.clock())
        self.state, self.memories = after, memories
        if kind in SAYING:
            self.transcript.add(record)
        if redactor is not None:
            redactor.keep(given, record, after)
        if kind in parts.told and self.contexts:
            self._tell(record)
        return record

    def _tell(self, record: Record) -> None:
        for index, hook in self._parts.told[type(record)]:
            try:
                hook(self.contexts[index], record)
            except Exception:
                logger.exception("an extension's on_record raised; the record stands")

    def _redacted(self, record: R, redactor: Redactor) -> R:
        try:
            return redactor.redacted(record)
        except UsageError as error:
            self._cannot_redact(error)
            raise

    def _cannot_redact(self, error: UsageError) -> None:
        self.lost = True
        if self.run is not None:  # neither a layer nor a handler may swallow it
            self.run.fail(error)

    def shown(self, data: Any) -> Any:
        """What of ``data`` may be shown or logged. Raises UsageError if a redaction fails, and then the run has failed, too."""
        if self._redactor is None:
            return data
        try:
            return self._redactor.shown(data)
        except UsageError as error:
            self._cannot_redact(error)
            raise

    def said(self, text: str) -> str:
        """The same for a line of a log, which must not raise."""
        try:
            return self.shown(text)
        except UsageError:
            return "(withheld: it could not be redacted)"

    def lasting(self, scopes: tuple[Scope, ...], arguments: str) -> tuple[Scope, ...]:
        """``scopes`` without "always", if a redaction takes something out of ``arguments``: a file would keep what no record may have."""
        return scopes if self.said(arguments) == arguments else tuple[Scope, ...](scope for scope in scopes if scope != "always")

    def digest(self, key: str, arguments: str) -> str:
        """What binds an answer to the exact ``arguments`` of the call ``key``: their SHA-256, as hexadecimal digits."""
        salt = b"" if self._redactor is None else self._redactor.salt(key)
        return sha256(salt + arguments.encode("utf-8", "surrogatepass"))

    def granted(self, tool: str, digest: Callable[[], str]) -> tuple[Scope, ...]:
        """What a person has allowed of ``tool`` in this session that covers arguments of this digest."""
        allowed = self.state.granted.get(tool)
        if not allowed:
            return ()
        covers: tuple[tuple[Scope, str], ...] = (("session", digest()), ("tool", ANY_ARGUMENTS))
        return tuple(scope for scope, what in covers if what in allowed)

    def real(self, call: Call) -> Call:
        """``call`` with its real arguments and answer, where a redaction has taken them out of what is stored."""
        return call if self._redactor is None else self._redactor.real(call)

    def _folded(self, record: Record) -> dict[int, Any]:
        """Every extension's memory after ``record``. An extension that cannot remember must not be trusted to guard: it fails loudly."""
        memories = folded = self.memories
        for index, fold in self._parts.folds.get(type(record), ()):
            try:
                memory = fold(memories[index], record)
                if memory is not memories[index]:  # most records are nothing to most extensions
                    folded = {**folded, index: memory}
            except Exception as error:
                name, what = self._parts.extensions[index].name, type(record).__name__
                raise UsageError(f"the fold of extension {name} raised on {what}: {reason_of(error)}; it must be pure and total") from error
        return folded
