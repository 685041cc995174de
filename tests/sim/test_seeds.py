"""A fixed set of simulated worlds: no checker has anything to say, and one seed is one world."""

from __future__ import annotations

from functools import cache

import pytest

from interlock.testing.sim import BEHAVIOURS, Batch, Coverage, SimReport, batch, run_many, script_of, simulate

PORTIONS = range(0, 600, 100)


@cache
def portion(start: int) -> Batch:
    return run_many(range(start, start + PORTIONS.step), jobs=1)


@pytest.mark.parametrize("start", PORTIONS)
def test_no_checker_has_anything_to_say_of_these_worlds(start: int) -> None:
    assert portion(start).failures == []
    assert portion(start).coverage.worlds == PORTIONS.step


def test_these_worlds_meet_nearly_every_row_of_the_transition_table_and_every_behaviour() -> None:
    coverage = Coverage()
    for start in PORTIONS:
        coverage.add(portion(start).coverage)
    assert len(coverage.missing(rows_min=1, cells_min=0)) <= 3, "rows that 100,000 worlds meet 1,000 times"
    assert all(coverage.behaviours[behaviour] for behaviour in BEHAVIOURS)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_one_seed_is_one_world(seed: int) -> None:
    def seen(report: SimReport) -> object:
        return report.fingerprint, report.violations, report.history.trace

    assert script_of(seed) == script_of(seed)
    assert seen(simulate(seed)) == seen(simulate(seed))


def test_two_seeds_are_two_worlds() -> None:
    assert len({simulate(seed).fingerprint for seed in range(20)}) == 20


def test_the_sum_over_several_processes_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SIZE", 10)
    assert run_many(range(30), jobs=2) == run_many(range(30), jobs=1)
