"""What a store does with rows, payloads and listings."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from ..errors import JournalConflict, SessionBusy, UsageError
from ..journal import Journal
from ..messages import UserMessage
from ..records import ModelStepStarted, Row, RunStarted
from .journal_bench import WAIT_S, Bench, Checks, append, data, fails, note

CHECKS = Checks()


@CHECKS.add
async def a_new_session_is_empty(bench: Bench) -> None:
    async with bench.journal() as journal:
        log = journal.session("s")
        assert (log.session_id, log.seq) == ("s", 0)
        assert await log.claim(lease_s=15) == []
        assert await journal.read("s") == []
        assert await journal.sessions() == []


@CHECKS.add
async def append_counts_from_one_and_durable_stores_in_order(bench: Bench) -> None:
    async with bench.journal() as journal:
        log = journal.session("s")
        await log.claim(lease_s=15)
        assert [log.append(note(n), at=float(n)) for n in range(5)] == [1, 2, 3, 4, 5]
        await log.durable()
        rows = await journal.read("s")
        assert rows == [Row("s", n + 1, float(n), rows[0].v, note(n)) for n in range(5)]
        assert data(await journal.read("s", after=3)) == [3, 4]
        assert await journal.read("s", after=9) == []


@CHECKS.add
async def a_wait_stores_what_every_session_has_buffered(bench: Bench) -> None:
    async with bench.journal() as journal:
        one, other = journal.session("one"), journal.session("other")
        seq = append(one, "a", "b")
        append(other, "c")
        await one.durable(seq)
        assert data(await journal.read("one")) == ["a", "b"]
        assert data(await journal.read("other")) == ["c"]
        await one.durable(1)
        await other.durable()


@CHECKS.add
async def many_waiters_at_once_are_all_served(bench: Bench) -> None:
    async def produce(journal: Journal, name: str) -> None:
        log = journal.session(name)
        await log.claim(lease_s=15)
        for n in range(20):
            append(log, n)
            await log.durable()
        await log.release()

    async with bench.journal() as journal:
        await asyncio.gather(*(produce(journal, f"s{n}") for n in range(16)))
        for n in range(16):
            assert data(await journal.read(f"s{n}")) == list(range(20))


@CHECKS.add
async def a_second_journal_object_reads_what_the_first_has_stored(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        log = first.session("s")
        append(log, "a")
        await log.durable()
        assert data(await second.read("s")) == ["a"]


@CHECKS.add
async def ids_may_be_any_text_and_do_not_mix(bench: Bench) -> None:
    ids = ["s", "S", "s ", "", "nul\0", "nul", "nul\0\0", "q'uo\"te", "%_", "émoji 🦜", "a/../b", "line\nbreak", "\ud835 lone", "x" * 5000]
    async with bench.journal() as journal:
        for n, session_id in enumerate(ids):
            log = journal.session(session_id)
            await log.claim(lease_s=15)
            append(log, n)
            await log.release()
        for n, session_id in enumerate(ids):
            assert data(await journal.read(session_id)) == [n], f"session id {session_id[:20]!r}"
        assert len(await journal.sessions()) == len(ids)


@CHECKS.add
async def bodies_may_hold_any_text(bench: Bench) -> None:
    texts = ["W\0s\0l\0", "\\u0000", "🦜 \u2028 é", "'; DROP TABLE log; --", "", "\x7f\x80\ufffd"]
    prompt = RunStarted(run_id="r\0", prompt=UserMessage(content="\0🦜"))
    async with bench.journal() as journal:
        log = journal.session("s")
        append(log, *texts, {"🦜\0": [None, 1.5, True]})
        log.append(prompt, at=2.0)
        await log.durable()
    async with bench.journal() as journal:
        rows = await journal.read("s")
        assert data(rows) == [*texts, {"🦜\0": [None, 1.5, True]}]
        assert rows[-1].record == prompt


@CHECKS.add
async def a_row_of_a_mebibyte_is_stored(bench: Bench) -> None:
    big = "0123456789abcdef" * 65536
    async with bench.journal() as journal:
        log = journal.session("s")
        append(log, big, "after")
        await log.durable()
        assert data(await journal.read("s")) == [big, "after"]


@CHECKS.add
async def a_long_session_is_read_whole(bench: Bench) -> None:
    async with bench.journal() as journal:
        log = journal.session("s")
        for n in range(1500):
            log.append(ModelStepStarted(turn=n, attempt=0), at=1.0)
        await log.durable()
        rows = await journal.read("s")
        assert [row.seq for row in rows] == list(range(1, 1501))
        assert len(await journal.session("s").claim(lease_s=15)) == 1500


@CHECKS.add
async def payloads_are_kept_per_session(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        log = first.session("s")
        await log.claim(lease_s=15)
        log.put_payload("d1", b"\0full")
        assert await log.get_payload("d1") == b"\0full"
        append(log, "a")
        await log.durable()
        log.put_payload("d1", b"\0full")
        log.put_payload("d2", b"")
        await log.durable()
        assert await log.get_payload("d2") == b""
        assert await second.session("s").get_payload("d1") == b"\0full"
        assert await second.session("t").get_payload("d1") is None
        assert await log.get_payload("d3") is None


@CHECKS.add
async def delete_removes_a_session_and_fences_whoever_still_has_it(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        log = first.session("s")
        await log.claim(lease_s=15)
        log.put_payload("d", b"x")
        append(log, "a")
        await log.durable()
        await fails(first.delete("s"), SessionBusy)
        await fails(second.delete("s"), SessionBusy)
        await log.release()
        idle = first.session("s")
        await idle.claim(lease_s=15)
        await idle.release()
        assert await second.delete("s")
        assert not await second.delete("s")
        assert await first.read("s") == []
        assert await first.session("s").get_payload("d") is None
        append(log, "late")
        await fails(log.durable(), JournalConflict)
        anew = second.session("s")
        assert await anew.claim(lease_s=15) == []
        append(anew, "b")
        await anew.durable()
        await anew.release()
        await fails(idle.claim(lease_s=15), JournalConflict)
        assert data(await first.read("s")) == ["b"]


@CHECKS.add
async def tail_yields_stored_rows_and_then_new_ones_of_every_writer(bench: Bench) -> None:
    async with bench.journal() as first, bench.journal() as second:
        log = first.session("s")
        append(log, "a", "b")
        await log.durable()
        async with aclosing(first.tail("s", after=1)) as rows, asyncio.timeout(WAIT_S):
            assert data([await anext(rows)]) == ["b"]
            waiting = asyncio.ensure_future(anext(rows))
            append(log, "c")
            await log.durable()
            assert data([await waiting]) == ["c"]
            other = second.session("s")
            await other.claim(lease_s=15)
            append(other, "d", "e")
            await other.release()
            assert data([await anext(rows), await anext(rows)]) == ["d", "e"]
        async with aclosing(second.tail("new")) as rows, asyncio.timeout(WAIT_S):
            waiting = asyncio.ensure_future(anext(rows))
            await asyncio.sleep(0)
            log = first.session("new")
            append(log, "first")
            await log.durable()
            assert data([await waiting]) == ["first"]


@CHECKS.add
async def sessions_are_listed_newest_first_with_their_state(bench: Bench) -> None:
    async with bench.journal() as journal:
        for n, name in enumerate(["idle", "running", "abandoned"]):
            log = journal.session(name)
            await log.claim(lease_s=30 if name == "running" else 15)
            log.append(note(), at=10.0 + n)
            log.append(note(), at=20.0 + n)
            await (log.release() if name == "idle" else log.durable())
        bench.clock.now += 20
        found = await journal.sessions()
        assert [(info.session_id, info.state) for info in found] == [("abandoned", "abandoned"), ("running", "running"), ("idle", "idle")]
        assert [(info.rows, info.created_at, info.updated_at) for info in found] == [(2, 12.0, 22.0), (2, 11.0, 21.0), (2, 10.0, 20.0)]


@CHECKS.add
async def a_cancelled_wait_still_stores_the_rows(bench: Bench) -> None:
    async with bench.journal() as journal:
        log = journal.session("s")
        append(log, "a")
        waiting = asyncio.ensure_future(log.durable())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        append(log, "b")
        await log.durable()
        assert data(await journal.read("s")) == ["a", "b"]


@CHECKS.add
async def aclose_stores_what_is_buffered_and_may_be_repeated(bench: Bench) -> None:
    async with bench.journal() as journal:
        claimed, free = journal.session("claimed"), journal.session("free")
        await claimed.claim(lease_s=15)
        append(claimed, "a")
        append(free, "b")
        await journal.aclose()
        await journal.aclose()
        await fails(journal.read("free"), UsageError)
    async with bench.journal() as journal:
        assert data(await journal.read("claimed")) == ["a"]
        assert data(await journal.read("free")) == ["b"]
        assert {info.state for info in await journal.sessions()} == {"idle"}
