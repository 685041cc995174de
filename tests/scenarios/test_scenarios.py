"""Every scenario, played four ways: streamed, with plain replies, on a SQLite journal, and with every word replaced."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from . import at_once, faults, layers, mixtures, replies
from .play import Play, Scenario, play
from .wires import WIRES, can_say, facts
from .words import RandomWords, Words

SCENARIOS: list[Scenario] = [*layers.SCENARIOS, *replies.SCENARIOS, *faults.SCENARIOS, *at_once.SCENARIOS, *mixtures.SCENARIOS]
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
PLAIN = [scenario for scenario in SCENARIOS if scenario.plain]
# A play waits for events, never for time; this is for one that hangs.
SECONDS = 10


def played(
    scenario: Scenario, words: Words, *, streamed: bool, plain: bool = False, folder: Path | None = None, wire: str = "chat"
) -> Play:
    async def main() -> Play:
        async with asyncio.timeout(SECONDS):
            return await play(scenario, words, streamed=streamed, plain=plain, folder=folder, wire=wire)

    return asyncio.run(main())


def test_every_scenario_has_a_name_of_its_own() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)


@EACH
def test_streamed(scenario: Scenario) -> None:
    assert played(scenario, Words(), streamed=True).complaints() == []


@pytest.mark.parametrize("scenario", PLAIN, ids=lambda scenario: scenario.name)
def test_with_plain_replies(scenario: Scenario) -> None:
    assert played(scenario, Words(), streamed=False, plain=True).complaints() == []


@EACH
def test_on_a_sqlite_journal(scenario: Scenario, tmp_path: Path) -> None:
    assert played(scenario, Words(), streamed=True, folder=tmp_path).complaints() == []


@EACH
def test_with_random_names_ids_and_texts(scenario: Scenario) -> None:
    seed = random.randrange(2**32)
    print(f"{seed=}")
    streamed = bool(seed % 2) or not scenario.plain
    assert played(scenario, RandomWords(seed), streamed=streamed, plain=not streamed).complaints() == []


OTHERS = [(wire, scenario) for wire in WIRES if wire != "chat" for scenario in SCENARIOS if can_say(wire, scenario)]


@pytest.mark.parametrize(("wire", "scenario"), OTHERS, ids=[f"{wire}-{scenario.name}" for wire, scenario in OTHERS])
def test_over_another_wire_it_comes_to_the_same(wire: str, scenario: Scenario) -> None:
    chat = played(scenario, Words(), streamed=True)
    other = played(scenario, Words(), streamed=True, wire=wire)
    assert other.complaints() == []
    assert facts(other.rows) == facts(chat.rows)
    if scenario.plain:
        assert played(scenario, Words(), streamed=False, plain=True, wire=wire).complaints() == []


def test_a_wire_leaves_out_few_scenarios() -> None:
    assert all(sum(can_say(wire, scenario) for scenario in SCENARIOS) >= 0.9 * len(SCENARIOS) for wire in WIRES)
