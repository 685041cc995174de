"""A profile of a region of this process: samples of the innermost Python frame by CPU time, or cProfile's counts."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

INTERVAL_S = 0.001


@contextmanager
def profiler(path: str, how: str) -> Iterator[None]:
    """Write the profile of the body to ``path``. how: ``sampling`` distorts little; ``cprofile`` counts calls, too."""
    if how == "cprofile":
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
        try:
            yield
        finally:
            profile.disable()
            profile.dump_stats(path)
        return
    seen: Counter[tuple[str, str, int]] = Counter()

    def sample(_: int, frame: FrameType | None) -> Any:
        if frame is not None:
            code = frame.f_code
            seen[code.co_filename, code.co_qualname, code.co_firstlineno] += 1

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        Path(path).write_text(json.dumps([[*where, count] for where, count in seen.items()]))
