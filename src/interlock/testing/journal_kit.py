"""What every journal store must do, as checks that anyone can run on their own store.

::

    def make(place: str, clock: Clock) -> Journal:
        return MyJournal(f"my://{tmp_path}/{place}", clock=clock)

    @pytest.mark.parametrize("name", JOURNAL_CHECKS)
    def test_my_store(name):
        asyncio.run(JOURNAL_CHECKS[name](Bench(make)))

or all of them at once, without pytest: ``check_journal(make)``. A failed check is an AssertionError.
"""

from __future__ import annotations

import asyncio

from .journal_bench import Bench, Check, Clock, Factory
from .journal_checks_fence import CHECKS as FENCE
from .journal_checks_prune import CHECKS as PRUNE
from .journal_checks_rows import CHECKS as ROWS

__all__ = ["JOURNAL_CHECKS", "Bench", "Clock", "Factory", "check_journal"]

JOURNAL_CHECKS: dict[str, Check] = {**ROWS, **FENCE, **PRUNE}
"""Each check by its name, which is the sentence that it proves."""


def check_journal(make: Factory) -> None:
    """Run every check, each on a store of its own. Raises the first AssertionError (or what the store raised)."""
    for number, (name, check) in enumerate(JOURNAL_CHECKS.items()):
        try:
            asyncio.run(_run(check, Bench(make, f"check-{number}")))
        except Exception as error:
            error.add_note(f"journal check: {name}")
            raise


async def _run(check: Check, bench: Bench) -> None:
    await check(bench)
