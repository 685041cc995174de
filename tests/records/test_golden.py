"""Records for ever: the journal of every version, as it was written once, is read as it was meant."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from helpers import limits
from interlock import Agent, AgentRunConfig, Outcome, __version__
from interlock.journal import MemoryJournal, SQLiteJournal
from interlock.journal.health import health
from interlock.journal.memory import MemoryStore
from interlock.messages import Message, Part
from interlock.messages.validity import is_valid
from interlock.records import ModelStepEnded, QuestionAnswered, Record, RunEnded, ToolStepEnded, Verdict
from interlock.records.codec import VERSION, encode
from interlock.testing import ScriptedModel, repeat, text
from records.golden import GOLDEN, VERSIONS, script

golden = script()


def agrees(now: Any, then: Any, place: str = "") -> list[str]:
    """Where ``now`` lacks, or has otherwise, what was said then. What a view has learned to say since does not matter."""
    if isinstance(then, dict):
        if not isinstance(now, dict):
            return [f"{place}: {now!r}, not an object"]
        return [wrong for key, value in then.items() for wrong in agrees(now.get(key, "(nothing)"), value, f"{place}/{key}")]
    if isinstance(then, list):
        if not isinstance(now, list) or len(now) != len(then):
            return [f"{place}: {now!r}, not {then!r}"]
        return [wrong for number, pair in enumerate(zip(now, then, strict=True)) for wrong in agrees(*pair, f"{place}/{number}")]
    return [] if now == then and type(now) is type(then) else [f"{place}: {now!r}, not {then!r}"]


def expected(version: str) -> dict[str, Any]:
    return json.loads((GOLDEN / version / "expected.json").read_bytes())


@pytest.mark.parametrize("version", VERSIONS)
def test_nobody_has_touched_the_golden_journal_of_a_version(version: str) -> None:
    assert (GOLDEN / version / "SHA256SUMS").read_text() == golden.sums(GOLDEN / version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_golden_journal_of_every_version_folds_to_what_it_was_written_with(version: str) -> None:
    sessions = golden.read_rows(GOLDEN / version)
    assert set(sessions) == set(expected(version))
    for name, said in expected(version).items():
        now = json.loads(json.dumps(golden.views(sessions[name])))
        assert agrees(now, said, name) == []
        assert [row.seq for row in sessions[name]] == list(range(1, len(said["states"]) + 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_of_the_present_schema_is_written_again_byte_by_byte(version: str) -> None:
    rows = [row for rows in golden.read_rows(GOLDEN / version).values() for row in rows]
    for line, row in zip(golden.read_lines(GOLDEN / version), rows, strict=True):
        assert (line.session, line.seq) == (row.session, row.seq)
        if line.v == VERSION:
            assert encode(row.record) == bytes(line.body)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sqlite_file_of_every_version_holds_the_same(version: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / version / "journal.db", tmp_path))

    async def check() -> None:
        sessions = golden.read_rows(GOLDEN / version)
        journal = SQLiteJournal(path)
        assert {info.session_id: info.rows for info in await journal.sessions()} == {name: len(rows) for name, rows in sessions.items()}
        for name, rows in sessions.items():
            assert await journal.read(name) == rows
        payloads = golden.read_payloads(GOLDEN / version)
        assert payloads
        for line in payloads:
            assert await journal.session(line.session).get_payload(line.digest) == line.data
            assert hashlib.sha256(line.data).hexdigest() == line.digest
        await journal.aclose()

    path.chmod(0o600)
    assert [finding.state for finding in health(str(path))] == ["ok"]
    asyncio.run(check())


def from_memory(version: str, tmp_path: Path) -> Any:
    store = MemoryStore()
    store.rows = golden.read_rows(GOLDEN / version)
    for line in golden.read_payloads(GOLDEN / version):
        store.payloads.setdefault(line.session, {})[line.digest] = line.data
    return MemoryJournal(store)


def from_sqlite(version: str, tmp_path: Path) -> Any:
    return SQLiteJournal(shutil.copy(GOLDEN / version / "journal.db", tmp_path))


@pytest.mark.parametrize("make", [from_memory, from_sqlite])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_session_of_every_version_can_be_gone_on_with(version: str, make: Any, tmp_path: Path) -> None:
    """Open runs included: they are settled, and every request is valid."""

    async def scenario() -> None:
        journal, model = make(version, tmp_path), ScriptedModel([repeat(text("I remember."))])
        async with await Agent.create(model, journal=journal, limits=limits()) as agent:
            for name, said in expected(version).items():
                result = await agent.run("And now?", config=AgentRunConfig(session_id=name))
                assert (result.outcome, result.text) == (Outcome.COMPLETED, "I remember.")
                assert is_valid(model.requests[-1].messages)
                if said["state"]["phase"] == "idle":
                    now = json.loads(json.dumps(golden.views(await journal.read(name))))["transcript"]
                    assert agrees(now[: len(said["transcript"])], said["transcript"], name) == []
        await journal.aclose()

    asyncio.run(scenario())


def test_the_journal_of_this_version_has_every_kind_of_record_and_every_verdict_and_outcome() -> None:
    """If this fails because there is a new kind: play it in scripts/golden_sessions.py, and run `make golden`."""
    assert __version__ in VERSIONS
    records: list[Any] = [row.record for rows in golden.read_rows(GOLDEN / __version__).values() for row in rows]
    assert {type(record) for record in records} == set(get_args(Record))
    steps = [record for record in records if isinstance(record, ModelStepEnded)]
    assert {step.verdict for step in steps} == set(Verdict)
    assert any(step.continued for step in steps)
    assert any(step.redacted for step in steps)
    assert any(step.dropped for step in steps)
    ended = [record for record in records if isinstance(record, RunEnded)]
    assert {record.outcome for record in ended} == set(Outcome) - {Outcome.WAITING}
    settled = [record for record in records if isinstance(record, ToolStepEnded)]
    assert {record.effect for record in settled} == {"none", "happened", "unknown"}
    assert any(record.payload for record in settled)
    assert any(record.ending for record in settled)
    answered = [record for record in records if isinstance(record, QuestionAnswered)]
    assert {record.verdict for record in answered} == {"answer", "edit", "deny", "expire"}
    phases = {said["state"]["phase"] for said in expected(__version__).values()}
    assert phases >= {"idle", "tools", "stalled"}


def values(value: Any) -> Iterator[tuple[str, str, bool]]:
    """(class, field, whether it is as it is by default) of every object in ``value``."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(type(value)):
            item = getattr(value, field.name)
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield type(value).__name__, field.name, item == default
            yield from values(item)
    elif isinstance(value, tuple | list):
        yield from (found for item in value for found in values(item))
    elif isinstance(value, dict):
        yield from (found for item in value.values() for found in values(item))


# Counted from the records, and never in one.
COUNTED = {("Usage", "requests"), ("Usage", "tool_calls")}


def test_the_journal_of_this_version_says_something_in_every_field_that_a_record_can_have() -> None:
    """If this fails because there is a new field: play it in scripts/golden_sessions.py, and run `make golden`."""
    found = [found for rows in golden.read_rows(GOLDEN / __version__).values() for row in rows for found in values(row.record)]
    said = {(kind, field) for kind, field, default in found if not default}
    assert {(kind, field) for kind, field, _ in found} - said == COUNTED
    assert {kind for kind, _ in said} >= {kind.__name__ for kind in (*get_args(Record), *get_args(Message), *get_args(Part))}


# ---- the script ----------------------------------------------------------------------------------


def test_a_release_never_changes_its_golden_journal(tmp_path: Path) -> None:
    released = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n## 0.1.0\n"
    for version in ("0.1.0", "0.2.0"):
        assert golden.check_writable(tmp_path / version, force=False, changelog=released) == ""  # there is none yet
        (tmp_path / version).mkdir()
        for force in (False, True):
            assert "released version: it never changes" in golden.check_writable(tmp_path / version, force=force, changelog=released)
    for version in ("0.1", "0.2.0.dev1", "0.3.0"):
        (tmp_path / version).mkdir()
        assert "--force" in golden.check_writable(tmp_path / version, force=False, changelog=released)
        assert golden.check_writable(tmp_path / version, force=True, changelog=released) == ""


def test_the_script_refuses_to_write_over_what_is_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = golden.sums(GOLDEN / __version__)
    assert golden.main([]) == 1
    assert __version__ in capsys.readouterr().err
    monkeypatch.setattr(golden, "is_released", lambda version, changelog: True)
    assert golden.main(["--force"]) == 1
    assert "never changes" in capsys.readouterr().err
    assert golden.sums(GOLDEN / __version__) == before


def test_the_script_writes_the_same_bytes_every_time(tmp_path: Path) -> None:
    made: list[bytes] = []
    for folder in (tmp_path / "one", tmp_path / "two", tmp_path / "two"):
        golden.write(folder, asyncio.run(golden.play_all()))
        assert (folder / "SHA256SUMS").read_text() == golden.sums(folder)
        made.append(b"".join((folder / name).read_bytes() for name in ("journal.jsonl", "payloads.jsonl", "expected.json")))
    assert len(set(made)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
