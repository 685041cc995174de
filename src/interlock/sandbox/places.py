"""Where programs are: what a command must be able to read so that it can run anything at all, and nothing of a person's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["DEVICES", "SETTINGS", "SYSTEM", "managers", "programs"]

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store", "/gnu/store", "/sys"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"),  # where /etc/resolv.conf leads
)
"""The system's own programs and settings. What is not there is left out."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")

SETTINGS = tuple(
    f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr", "driver", "dynamic_debug", "pressure")
)
"""What of ``/proc`` is the machine's, and not a process's: with the first of them root can have the kernel run a program."""

# Version managers keep programs in the home, and what PATH leads to is only their front. None of these holds a password by its nature.
_MANAGERS = {
    "PYENV_ROOT": ".pyenv",
    "RBENV_ROOT": ".rbenv",
    "RUSTUP_HOME": ".rustup",
    "NVM_DIR": ".nvm",
    "VOLTA_HOME": ".volta",
    "ASDF_DATA_DIR": ".asdf",
    "SDKMAN_DIR": ".sdkman",
}
_SHARES = (".local/share/uv", ".local/share/pipx", ".local/share/mise")


def managers() -> dict[str, str]:
    """Where the version managers that are there keep their programs, by the variable that says so."""
    places = {name: os.environ.get(name) or str(_home() / place) for name, place in _MANAGERS.items()}
    return {name: place for name, place in places.items() if os.path.isdir(place)}


def programs() -> list[str]:
    """Directories with programs beside ``SYSTEM``: this Python's, those on PATH, and the version managers'. One on PATH that holds the
    home is none of them."""
    home = os.path.realpath(_home())
    python = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)))
    on_path = [path for path in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(path) and not _holds(path, home)]
    shares = [str(_home() / place) for place in _SHARES]
    return [path for path in dict.fromkeys((*python, *on_path, *managers().values(), *shares)) if os.path.exists(path)]


def _holds(path: str, home: str) -> bool:
    real = os.path.realpath(path)
    return os.path.commonpath((real, home)) == real


def _home() -> Path:
    return Path(os.path.expanduser("~"))
