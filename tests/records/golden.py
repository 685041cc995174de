"""The script that writes golden journals, as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def script() -> Any:
    """scripts/golden.py. It is no part of the package, so it is loaded from its file, once."""
    name = "interlock_golden_script"
    if name not in sys.modules:
        before = list(sys.path)
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "golden.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path[:] = before
    return sys.modules[name]


GOLDEN: Path = script().GOLDEN
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
