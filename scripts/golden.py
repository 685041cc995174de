"""The golden journal of this version: what it has once written, every later version must read as it was meant.

    python scripts/golden.py            write tests/golden/VERSION/, which must not exist
    python scripts/golden.py --force    write it anew: only while CHANGELOG.md does not list the version as released

In the directory: ``journal.jsonl`` (each row as the store holds it: v and the very bytes of the body), ``payloads.jsonl``, ``journal.db``
(the same as a SQLite journal), ``expected.json`` (what the views made of it), and ``SHA256SUMS``. tests/records/test_golden.py reads
them all, of every version.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from golden_sessions import World, play_all

from interlock import __version__
from interlock.journal.spans import spans
from interlock.journal.sqlite import SQLiteJournal
from interlock.journal.transcript import Transcript
from interlock.journal.usage import usage_by_run
from interlock.machine import State, apply
from interlock.records import Row
from interlock.records.codec import decode, encode

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
CHANGELOG = ROOT / "CHANGELOG.md"


class Line(msgspec.Struct):
    """One line of journal.jsonl."""

    session: str
    seq: int
    at: float
    v: int
    body: msgspec.Raw


class PayloadLine(msgspec.Struct):
    """One line of payloads.jsonl. data: base64."""

    session: str
    digest: str
    data: bytes


def views(rows: Sequence[Row]) -> dict[str, Any]:
    """What a session's rows amount to, as plain values."""
    states = list(accumulate((row.record for row in rows), apply, initial=State()))
    return {
        "transcript": msgspec.to_builtins(Transcript(row.record for row in rows).snapshot()),
        "usage": {run: msgspec.to_builtins(usage) for run, usage in usage_by_run(rows).items()},
        "spans": msgspec.to_builtins(spans(rows)),
        "states": [_brief(state) for state in states[1:]],
        "state": _state(states[-1]),
    }


def _brief(state: State) -> str:
    """The phase after one record, and how far each call has come."""
    return " ".join((state.phase.value, *(f"{key}={call.progress.value}" for key, call in state.calls.items())))


def _state(state: State) -> dict[str, Any]:
    names = ("run_id", "epoch", "turn", "attempt", "requests", "tool_calls", "failures", "fault", "streaks", "partial", "pending_input")
    calls = {
        key: {name: getattr(call, name) for name in ("entered", "starts", "may_start", "question_id", "redacted")}
        for key, call in state.calls.items()
    }
    return {
        **{name: getattr(state, name) for name in names},
        "phase": state.phase.value,
        "usage": msgspec.to_builtins(state.usage),
        "limits": msgspec.to_builtins(state.limits),
        "ending": msgspec.to_builtins(state.ending),
        "calls": calls,
    }


# ---- reading -------------------------------------------------------------------------------------


def read_lines(folder: Path) -> list[Line]:
    """The rows of a golden journal, as they are stored."""
    decoder = msgspec.json.Decoder(Line)
    return [decoder.decode(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()]


def read_rows(folder: Path) -> dict[str, list[Row]]:
    """The same by session, decoded."""
    sessions: dict[str, list[Row]] = {}
    for line in read_lines(folder):
        record = decode(bytes(line.body), v=line.v, where=f"{folder.name}: {line.session}, seq {line.seq}")
        sessions.setdefault(line.session, []).append(Row(line.session, line.seq, line.at, line.v, record))
    return sessions


def read_payloads(folder: Path) -> list[PayloadLine]:
    decoder = msgspec.json.Decoder(PayloadLine)
    return [decoder.decode(line) for line in (folder / "payloads.jsonl").read_bytes().splitlines()]


def sums(folder: Path) -> str:
    """The text that SHA256SUMS must have."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names)


# ---- writing -------------------------------------------------------------------------------------


def is_released(version: str, changelog: str) -> bool:
    """Whether the changelog has a section of the version."""
    return re.search(rf"^## \[?{re.escape(version)}\]?(\s|$)", changelog, re.MULTILINE) is not None


def check_writable(folder: Path, *, force: bool, changelog: str) -> str:
    """Why ``folder`` may not be written, or nothing."""
    if not folder.exists():
        return ""
    if is_released(folder.name, changelog):
        return f"{folder} is the golden journal of a released version: it never changes. Raise the version first."
    if not force:
        return f"{folder} exists. Its version is not released yet, so --force (make golden) may write it anew."
    return ""


def write(folder: Path, worlds: dict[str, World]) -> None:
    """Write every file of a golden journal into ``folder``, in the place of what is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        new = Path(made) / folder.name
        new.mkdir()
        rows = [row for world in worlds.values() for row in world.rows]
        lines = [Line(row.session, row.seq, row.at, row.v, msgspec.Raw(encode(row.record))) for row in rows]
        payloads = [
            PayloadLine(s, d, data) for world in worlds.values() for s, kept in world.store.payloads.items() for d, data in kept.items()
        ]
        _write_lines(new / "journal.jsonl", lines)
        _write_lines(new / "payloads.jsonl", payloads)
        expected = {name: views(world.rows) for name, world in worlds.items()}
        (new / "expected.json").write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=1) + b"\n")
        asyncio.run(_write_database(new / "journal.db", rows, payloads))
        (new / "journal.db").chmod(0o644)  # it holds nobody's conversation
        (new / "SHA256SUMS").write_text(sums(new))
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


def _write_lines(path: Path, lines: Iterable[msgspec.Struct]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


async def _write_database(path: Path, rows: Sequence[Row], payloads: Sequence[PayloadLine]) -> None:
    journal = SQLiteJournal(path)
    await journal.open()
    logs = {name: journal.session(name) for name in dict.fromkeys(row.session for row in rows)}
    for payload in payloads:
        logs[payload.session].put_payload(payload.digest, payload.data)
    for row in rows:
        logs[row.session].append(row.record, at=row.at)
    await journal.aclose()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
    connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="replace the golden journal of a version that is not released")
    options = parser.parse_args(arguments)
    folder = GOLDEN / __version__
    if refusal := check_writable(folder, force=options.force, changelog=CHANGELOG.read_text(encoding="utf-8")):
        print(refusal, file=sys.stderr)
        return 1
    worlds = asyncio.run(play_all())
    write(folder, worlds)
    kinds = {type(row.record).__name__ for world in worlds.values() for row in world.rows}
    records = sum(len(world.rows) for world in worlds.values())
    print(f"wrote {folder.relative_to(ROOT)}: {len(worlds)} sessions, {records} records of {len(kinds)} kinds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
