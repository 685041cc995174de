"""The durable append: 64 producers of rows, each of which waits until its own are on the disk.

The bare side is what the standard library's ``sqlite3`` does when nothing stands around it: a WAL with
``synchronous=FULL``, one thread, the rows ready as tuples, and one transaction for what all producers have written in one
round. It has no event loop, no lease, no encoding and nobody to wake: the ceiling of a group commit, not a rival.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time

BODY = b'{"type":"tool_step_ended","key":"run-0123456789ab:0:0","message":{"tool_call_id":"call_000123_0","name":"add","content":"3"}}'


async def bare(path: str, *, producers: int, rows: int, rounds: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE log (session INTEGER, seq INTEGER, at REAL, v INTEGER, body BLOB, PRIMARY KEY (session, seq))")
    began = time.perf_counter()
    for number in range(rounds):
        batch = [(session, number * rows + row, 1.5, 1, BODY) for session in range(producers) for row in range(rows)]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", batch)
        connection.execute("COMMIT")
    spent = time.perf_counter() - began
    connection.close()
    return producers * rows * rounds / spent


async def ours(path: str, *, producers: int, rows: int, rounds: int) -> float:
    from interlock.journal import SQLiteJournal
    from interlock.messages import ToolMessage
    from interlock.records import ToolStepEnded

    message = ToolMessage(tool_call_id="call_000123_0", name="add", content="3")
    record = ToolStepEnded(key="run-0123456789ab:0:0", message=message, effect="happened", decided_by="handler", code="ok")
    journal = SQLiteJournal(path, durability="power")
    await journal.open()
    logs = [journal.session(f"session-{number}") for number in range(producers)]
    for log in logs:
        await log.claim(lease_s=60.0)
        await log.durable()

    async def produce(log: object) -> None:
        append, durable = log.append, log.durable  # type: ignore[attr-defined]
        for _ in range(rounds):
            for _ in range(rows):
                append(record, at=1.5)
            await durable()

    began = time.perf_counter()
    await asyncio.gather(*map(produce, logs))
    spent = time.perf_counter() - began
    await journal.aclose()
    return producers * rows * rounds / spent
