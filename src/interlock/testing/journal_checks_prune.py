"""What a store deletes because it is old, and what it never does."""

from __future__ import annotations

from ..errors import UsageError
from ..journal import Journal, SessionInfo
from ..messages import UserMessage
from ..records import ExtensionNoted, Outcome, Record, RunEnded, RunStarted, SessionOpened
from .journal_bench import Bench, Checks, data, fails

CHECKS = Checks()

_STARTED = RunStarted(run_id="r", prompt=UserMessage(content="Hi."))
_ENDED = RunEnded(run_id="r", outcome=Outcome.COMPLETED, reason="answer")
_NOTE = ExtensionNoted(extension="test", version=1, data="after")


async def _fill(journal: Journal, name: str, *records: Record, at: float, hold_s: float | None = None) -> None:
    log = journal.session(name)
    await log.claim(lease_s=hold_s or 15)
    for record in records:
        log.append(record, at=at)
    log.put_payload("d", b"full")
    await (log.release() if hold_s is None else log.durable())


def _names(infos: list[SessionInfo]) -> list[str]:
    return [info.session_id for info in infos]


@CHECKS.add
async def prune_deletes_what_is_old_with_its_payloads_the_oldest_first(bench: Bench) -> None:
    async with bench.journal() as journal:
        bench.clock.now = 1000.0
        for name, at in (("b", 200.0), ("a", 100.0), ("new", 901.0), ("edge", 900.0), ("kept", 50.0)):
            await _fill(journal, name, SessionOpened(epoch=1), _STARTED, _ENDED, at=at)
        would = await journal.prune(older_than_s=100, keep=["kept"], dry_run=True)
        assert _names(would) == ["a", "b", "edge"]
        assert (would[0].rows, would[0].updated_at) == (3, 100.0)
        assert len(await journal.sessions()) == 5
        assert _names(await journal.prune(older_than_s=100, keep=["kept"])) == ["a", "b", "edge"]
        assert sorted(_names(await journal.sessions())) == ["kept", "new"]
        assert await journal.read("a") == []
        assert await journal.session("a").get_payload("d") is None
        assert await journal.session("kept").get_payload("d") == b"full"
        assert await journal.prune(older_than_s=100, keep=("kept",)) == []


@CHECKS.add
async def prune_leaves_a_session_with_an_open_run_however_old_it_is(bench: Bench) -> None:
    async with bench.journal() as journal:
        bench.clock.now = 1e6
        await _fill(journal, "open", _STARTED, at=1.0)
        await _fill(journal, "second run is open", _STARTED, _ENDED, _STARTED, _NOTE, SessionOpened(epoch=2), at=1.0)
        await _fill(journal, "ended", _STARTED, _ENDED, _NOTE, SessionOpened(epoch=2), at=1.0)
        await _fill(journal, "never run", _NOTE, at=2.0)
        assert _names(await journal.prune(older_than_s=0)) == ["ended", "never run"]
        assert sorted(_names(await journal.sessions())) == ["open", "second run is open"]


@CHECKS.add
async def prune_leaves_a_session_that_somebody_holds(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        bench.clock.now = 1e6
        await _fill(first, "held", _STARTED, _ENDED, at=1.0, hold_s=15)
        for journal in (first, second):
            assert await journal.prune(older_than_s=0) == []
        bench.clock.now += 20  # the lease is void, and nobody was in the middle of anything
        assert _names(await second.prune(older_than_s=0)) == ["held"]


@CHECKS.add
async def prune_takes_ages_only(bench: Bench) -> None:
    async with bench.journal() as journal:
        await _fill(journal, "s", _STARTED, _ENDED, at=1.0)
        for age in (-1, float("nan"), float("inf"), True, "30d", None):
            try:
                await fails(journal.prune(older_than_s=age), UsageError)  # type: ignore[arg-type]
            except AssertionError as error:
                error.add_note(f"older_than_s={age!r}")
                raise
        assert len(await journal.read("s")) == 2
        assert data(await journal.read("s")) == []
