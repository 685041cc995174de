"""The exit codes: 0 only for an answer, one code for everything else that can happen."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from ...errors import CommandRefused, InterlockError, JournalError, ProtocolError, ProviderError, UsageError
from ...records import Outcome
from ..interrupts import HUNG_UP, INTERRUPTED, TERMINATED, Stopped

__all__ = ["BROKEN_PIPE", "ERROR_CODES", "OUTCOME_CODES", "SIGNAL_CODES", "error_code", "guarded", "sentence"]

OUTCOME_CODES = {
    Outcome.COMPLETED: 0,
    Outcome.INCOMPLETE: 10,
    Outcome.REFUSED: 11,
    Outcome.LIMIT: 12,
    Outcome.WAITING: 13,
    Outcome.CANCELLED: INTERRUPTED,
}
# The first class that fits.
ERROR_CODES: dict[type[BaseException], int] = {
    UsageError: 2,
    CommandRefused: 3,
    ProviderError: 4,
    JournalError: 5,
    Exception: 1,
}
SIGNAL_CODES = (HUNG_UP, INTERRUPTED, TERMINATED)
# What a shell reports for a process that SIGPIPE ended: whoever read our output has left.
BROKEN_PIPE = 141


def error_code(error: BaseException) -> int:
    """The exit code of an exception."""
    return next((code for kind, code in ERROR_CODES.items() if isinstance(error, kind)), 1)


def sentence(error: BaseException) -> str:
    """``error`` for a person: what happened, and whose fault it is where the class does not say so."""
    if isinstance(error, ProtocolError):
        return f"{error} (a fault of Interlock, or a damaged journal: interlock doctor)"
    if isinstance(error, ProviderError):
        return f"the model's side failed: {error}"
    if isinstance(error, InterlockError):
        return str(error)
    return f"{type(error).__name__}: {error} (unexpected; INTERLOCK_DEBUG=1 shows where)"


def guarded(command: Callable[[], int]) -> int:
    """Run ``command`` and return its exit code; whatever it raises becomes a sentence on stderr and a code.

    With INTERLOCK_DEBUG set, exceptions pass through.
    """
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        # The process is on its way out; a further Ctrl-C would only add a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return stop.code if isinstance(stop, Stopped) else INTERRUPTED
    except BrokenPipeError:
        # Python would flush both once more on its way out, and complain.
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, 1)
        os.dup2(nobody, 2)
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get("INTERLOCK_DEBUG"):
            raise
        print(f"interlock: {_printable(sentence(error))}", file=sys.stderr)
        return error_code(error)
    return code


def _printable(text: str) -> str:
    from .text import printable

    return printable(text)
