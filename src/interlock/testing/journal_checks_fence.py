"""How a store keeps two writers of one session apart."""

from __future__ import annotations

import asyncio

from ..errors import JournalConflict, SessionBusy
from ..journal import SessionLog
from .journal_bench import Bench, Checks, append, data, fails, refuses

CHECKS = Checks()


@CHECKS.add
async def of_two_writers_the_second_gets_a_conflict(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        a, b = first.session("s"), second.session("s")
        append(a, "a1", "a2")
        append(b, "b1")
        await a.durable()
        await fails(b.durable(), JournalConflict)
        refuses(b)
        await fails(b.durable(), JournalConflict)
        await b.release()
        assert data(await first.read("s")) == ["a1", "a2"]
        append(a, "a3")
        await a.durable()
        assert data(await second.read("s")) == ["a1", "a2", "a3"]


@CHECKS.add
async def a_conflict_poisons_one_session_and_no_other(bench: Bench) -> None:
    async with bench.journal() as journal:
        winner, loser, other = journal.session("s"), journal.session("s"), journal.session("t")
        append(winner, "winner")
        await winner.durable()
        append(loser, "loser", "loser")
        append(other, "other")
        await other.durable()
        await fails(loser.durable(), JournalConflict)
        assert data(await journal.read("t")) == ["other"]
        assert data(await journal.read("s")) == ["winner"]
        anew = journal.session("s")
        assert data(await anew.claim(lease_s=15)) == ["winner"]
        append(anew, "anew")
        await anew.durable()


@CHECKS.add
async def a_live_lease_keeps_others_out(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        holder, other = first.session("s"), second.session("s")
        await holder.claim(lease_s=15)
        append(holder, "a")
        await holder.durable()
        await fails(other.claim(lease_s=15), SessionBusy)
        append(other, "b")
        await fails(other.durable(), JournalConflict)
        await holder.release()
        later = second.session("s")
        assert data(await later.claim(lease_s=15)) == ["a"]
        await later.release()


@CHECKS.add
async def of_two_claimers_exactly_one_wins(bench: Bench) -> None:
    async def run(log: SessionLog, name: str) -> bool:
        try:
            await log.claim(lease_s=15)
            append(log, name)
            await log.durable()
        except (SessionBusy, JournalConflict):
            return False
        return True

    async with bench.journal() as first, bench.journal() as second:
        logs = [first.session("s"), second.session("s")]
        won = await asyncio.gather(*(run(log, str(n)) for n, log in enumerate(logs)))
        assert sorted(won) == [False, True]
        assert data(await first.read("s")) == [str(won.index(True))]


@CHECKS.add
async def a_stale_writer_is_fenced_even_before_the_taker_appends(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        stale, taker = first.session("s"), second.session("s")
        await stale.claim(lease_s=15)
        append(stale, "a")
        await stale.durable()
        bench.clock.now += 16
        assert data(await taker.claim(lease_s=15)) == ["a"]
        await taker.durable()
        append(stale, "late")
        await fails(stale.durable(), JournalConflict)
        append(taker, "b")
        await taker.durable()
        await stale.release()
        append(taker, "c")
        await taker.release()
        assert data(await first.read("s")) == ["a", "b", "c"]


@CHECKS.add
async def a_lease_of_a_closed_journal_object_is_void(bench: Bench) -> None:
    async with bench.journal() as second:
        async with bench.journal() as first:
            log = first.session("s")
            await log.claim(lease_s=1e6)
            append(log, "a")
        anew = second.session("s")
        assert data(await anew.claim(lease_s=15)) == ["a"]


@CHECKS.add
async def release_stores_the_last_rows_and_gives_the_lease_up(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        log, other = first.session("s"), second.session("s")
        for n in range(3):
            assert data(await log.claim(lease_s=15)) == ([f"other {n - 1}"] if n else [])
            append(log, f"log {n}")
            await log.release()
            assert data(await other.claim(lease_s=15)) == [f"log {n}"]
            append(other, f"other {n}")
            await other.release()
        assert len(await first.read("s")) == 6


@CHECKS.add
async def a_claim_may_be_repeated_and_returns_only_what_is_new(bench: Bench) -> None:
    async with bench.journal() as journal:
        log = journal.session("s")
        assert await log.claim(lease_s=15) == []
        append(log, "a")
        assert await log.claim(lease_s=15) == []
        await log.release()
        assert await log.claim(lease_s=15) == []
        assert log.seq == 1
        append(log, "b")
        await log.release()
        assert data(await journal.session("s").claim(lease_s=15)) == ["a", "b"]


@CHECKS.add
async def an_empty_claim_leaves_nothing_behind(bench: Bench) -> None:
    async with bench.journal() as journal:
        log = journal.session("s")
        await log.claim(lease_s=15)
        await log.release()
        await log.release()
        assert await journal.sessions() == []
        assert not await journal.delete("s")
