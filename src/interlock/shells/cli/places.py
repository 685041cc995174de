"""Where the command line keeps things: sessions in the user's data directory, settings in the configuration directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote

from ...errors import UsageError

__all__ = ["PROJECT_FILE", "default_journal", "project_file", "user_file"]

PROJECT_FILE = "interlock.toml"


def default_journal(*, create: bool = True) -> str:
    """A SQLite file in the user's data directory, which is created unless ``create`` is False.

    Raises UsageError if that directory cannot be made.
    """
    try:
        folder = _home("XDG_DATA_HOME", ".local/share") / "interlock"
        if create:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as error:  # Path.home() raises RuntimeError where nobody is at home
        raise UsageError(f"there is no place for the journal ({error}); name one with --journal or INTERLOCK_JOURNAL") from error
    return f"sqlite:///{quote(str(folder.absolute() / 'sessions.db'))}"


def user_file() -> Path | None:
    """The user's settings, which need not exist. None where nobody is at home."""
    try:
        return (_home("XDG_CONFIG_HOME", ".config") / "interlock" / "config.toml").absolute()
    except RuntimeError:
        return None


def project_file(start: Path) -> Path | None:
    """The nearest ``interlock.toml`` in ``start`` or above it."""
    return next((folder / PROJECT_FILE for folder in (start, *start.parents) if (folder / PROJECT_FILE).is_file()), None)


def _home(variable: str, usual: str) -> Path:
    if home := os.environ.get(variable):
        return Path(home)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path.home() / usual
