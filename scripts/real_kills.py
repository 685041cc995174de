"""Kill agents with SIGKILL, many times, and look whether anything was lost or done twice. Run by ``make kills``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    sys.exit(import_module("kills.command").main())
