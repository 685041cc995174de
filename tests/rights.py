"""Tests of missing rights, which root has: the process takes those of nobody in particular for as long as they run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A directory that others may enter; ``drop`` then takes this process's rights away until the end of the block."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    user = os.geteuid()
    try:
        yield directory
    finally:
        os.seteuid(user)
        directory.chmod(0o755)
        shutil.rmtree(directory)


def drop() -> None:
    """Be nobody, if this process is root. What it will need must have been imported."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
