"""Programs that the tools start outside of any sandbox, and who may have put them there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

__all__ = ["program_outside"]


def program_outside(name: str, roots: Iterable[str | os.PathLike[str]]) -> str | None:
    """Where the program is on PATH; None if it is not there.

    What lies below one of ``roots``, or leads there, is passed over, and so are relative places: the environment of a project is often on
    PATH, and a command in a sandbox can write there. What it had put there would be started without one.
    """
    real = [os.path.realpath(root) for root in roots]
    found = shutil.which(name, path=os.pathsep.join(entry for entry in os.get_exec_path() if _is_outside(entry, real)))
    return found if found is not None and _is_outside(found, real) else None


def _is_outside(path: str, roots: list[str]) -> bool:
    real = os.path.realpath(path)
    return os.path.isabs(path) and not any(os.path.commonpath((real, root)) == root for root in roots)
