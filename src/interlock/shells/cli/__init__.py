"""The command line. Needs the extra ``cli``."""

from __future__ import annotations

import os
import signal
import sys
from typing import TextIO

__all__ = ["help_width", "main"]


def main() -> int:
    """Run the command line; returns the exit code where it does not raise SystemExit with it.

    No traceback reaches a user, unless INTERLOCK_DEBUG is set: everything ends as one sentence on stderr and a code of ``exits``.
    """
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print("interlock: the command line needs two more libraries; install them with: pip install 'interlock[cli]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    sys.stdout = _writable(sys.stdout)
    sys.stderr = _writable(sys.stderr)
    try:
        app(prog_name="interlock", terminal_width=help_width())
    finally:  # what is left is the interpreter's own end, which would answer Ctrl-C with a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return 0


def help_width() -> int:
    """How wide help texts are: the terminal, at most 80 columns. (Typer's own least width of 50 would wrap twice in a narrower one.)"""
    from shutil import get_terminal_size

    return max(min(get_terminal_size().columns, 80), 20)


def _writable(stream: TextIO | None) -> TextIO:
    """``stream``, which shows '?' for what its encoding has not got; a sink where the process was started with it closed."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if reconfigure := getattr(stream, "reconfigure", None):
        reconfigure(errors="replace")
    return stream
