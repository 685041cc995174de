"""Everything Interlock raises, as one tree. The class says whose fault it is and what to do about it.

::

    InterlockError
    ├── UsageError              you called us wrongly; nothing happened
    │   └── AlreadyDelegated    a layer awaited call_next a second time; nothing ran
    ├── CommandRefused          not possible in this state; nothing was recorded
    │   ├── SessionBusy         another run of this session is alive, here or elsewhere
    │   └── NothingToResume     the session has no open run
    ├── ProviderError           the model's side failed
    ├── RunNotCompleted         what RunResult.require() raises when there is no answer
    ├── JournalError            the journal cannot be read or written; nothing further was started
    │   ├── JournalConflict     another process owns this session now; stop
    │   └── JournalCorrupt      a row cannot be read back
    ├── ToolFailure             a tool tells the model, in its own words, what to fix
    │   └── ToolTimeout         the handler ran out of time
    ├── Fatal                   a layer or a tool stops everything; goes to the caller
    ├── SandboxUnavailable      the demanded isolation is not there
    ├── Diverged                a replay differs from its journal
    └── ProtocolError           our bug or a damaged journal; never caught
"""

from __future__ import annotations

from typing import Any, Literal

Effect = Literal["none", "happened", "unknown"]
"""What a tool call did outside: nothing, its whole effect, or we cannot know."""

__all__ = [
    "AlreadyDelegated",
    "CommandRefused",
    "Diverged",
    "Effect",
    "Fatal",
    "InterlockError",
    "JournalConflict",
    "JournalCorrupt",
    "JournalError",
    "NothingToResume",
    "ProtocolError",
    "ProviderError",
    "RunNotCompleted",
    "SandboxUnavailable",
    "SessionBusy",
    "ToolFailure",
    "ToolTimeout",
    "UsageError",
]


class InterlockError(Exception):
    """The root of everything that Interlock raises on purpose."""


class UsageError(InterlockError):
    """Interlock was called wrongly. Nothing happened; fix the call."""


class AlreadyDelegated(UsageError):
    """A layer awaited ``call_next`` a second time, or after its call had ended. Nothing ran."""


class CommandRefused(InterlockError):
    """The request is not possible in the session's present state. Nothing was recorded."""


class SessionBusy(CommandRefused):
    """A run of this session is alive, in this process or in another one that holds a fresh lease."""


class NothingToResume(CommandRefused):
    """The session is unknown, or has no open run."""


class ProviderError(InterlockError):
    """A model exchange failed.

    retryable: whether the same request may succeed later.
    retry_after_s: how long the provider asked us to wait, in seconds, if it did.
    status: the HTTP status (or the status hidden in an error body), if there was one.
    kind: ``"http"``, ``"error_object"`` (inside a 200), ``"cut"`` (the stream ended without terminal
    evidence), ``"connect"``, ``"timeout"`` or ``"malformed"`` (not what the protocol says).
    code: the provider's own word for it, if there was one.
    usage: the tokens (a ``Usage``) that the provider had reported before it failed.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
        kind: str = "http",
        code: str | None = None,
        usage: Any = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.status = status
        self.kind = kind
        self.code = code
        self.usage = usage


class RunNotCompleted(InterlockError):
    """``RunResult.require()`` was called on a run that has no answer. ``result`` is that run."""

    def __init__(self, message: str, *, result: Any) -> None:
        super().__init__(message)
        self.result = result


class JournalError(InterlockError):
    """The journal could not be read or written. No handler was started after it."""


class JournalConflict(JournalError):
    """Another process has appended to this session. This one must stop; its buffered records are dropped."""


class JournalCorrupt(JournalError):
    """A stored row cannot be read back as a record. The message names the session and the seq."""


class ToolFailure(InterlockError):
    """Raised by a handler (or returned by a layer) to tell the model what to fix, in the tool's own words.

    effect: what the tool knows about its outside effect. ``None`` means unknown once a handler has
    started, and none when a layer returns it without delegating.
    """

    def __init__(self, message: str, *, effect: Effect | None = None) -> None:
        if effect not in (None, "none", "happened", "unknown"):
            raise UsageError(f"ToolFailure: effect must be 'none', 'happened' or 'unknown', not {effect!r}")
        super().__init__(message)
        self.effect: Effect | None = effect


class ToolTimeout(ToolFailure):
    """The handler ran out of its ``timeout_s``. Its effect is unknown: it may still happen."""


class Fatal(InterlockError):
    """Raised by a layer or a handler to stop the run and reach the caller of ``run()`` as it is."""


class SandboxUnavailable(InterlockError):
    """A demanded isolation level is not available here. Nothing ran."""


class Diverged(InterlockError):
    """A replay came to something that its journal does not hold.

    seq: the row at which they differ first. expected: what the journal holds there, in words; found: what the replay came to.
    """

    def __init__(self, message: str, *, seq: int = 0, expected: str = "", found: str = "") -> None:
        super().__init__(message)
        self.seq = seq
        self.expected = expected
        self.found = found


class ProtocolError(InterlockError):
    """A record that cannot follow the ones before it: a bug of ours or a damaged journal. Never caught."""
