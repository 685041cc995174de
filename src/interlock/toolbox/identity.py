"""Who the user is to git, for commands that do not see the user's home."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .programs import program_outside

__all__ = ["lend_identity"]

_TIMEOUT_S = 5.0


def lend_identity(home: Path, root: Path) -> None:
    """Give ``home`` a git configuration with the name and the address of the user's own, and nothing else of it: there may be passwords.

    Without them a commit fails, and whoever makes it is tempted to invent some. What the project's own configuration says comes first.
    Nothing happens if there is a configuration already, or nobody to lend from. root: where commands write, and no git is started from.
    """
    path = home / ".gitconfig"
    values = _values(program_outside("git", [root]))
    if not values or path.exists():
        return
    lines = ["[user]", *(f'\t{name} = "{_escaped(value)}"' for name, value in values.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")


def _values(git: str | None) -> dict[str, str]:
    if git is None:
        return {}
    command = [git, "config", "--global", "--includes", "--null", "--get-regexp", r"^user\.(name|email)$"]
    try:
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    entries = (entry.partition("\n") for entry in done.stdout.decode("utf-8", "surrogateescape").split("\0"))
    return {key.removeprefix("user."): value for key, _, value in entries if value and "\n" not in value}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
