"""G12: retry scaffolding is on the requests of one streak only, never in the transcript, not even if the process dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from helpers import WIRES, Played, play, said
from interlock import Outcome
from interlock.journal.transcript import Transcript
from interlock.machine import RECOVERIES, fold
from interlock.records import Record
from interlock.testing import Step, call, calls, hold, reasoning, text
from threaded import serving
from wire_rules import faults

wires = pytest.mark.parametrize("wire", WIRES)
NUDGES = {recovery.nudge for recovery in RECOVERIES.values() if recovery.nudge}


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def stall(words: str) -> Step:
    return text(words, finish="tool_calls")


def add_call(id: str = "c1") -> Step:
    return calls(call(id, "add", {"left": 1, "right": 2}))


def run(steps: Any, **options: Any) -> Played:
    return asyncio.run(play(steps, tools=[add], **options))


def scaffolding(body: dict[str, Any]) -> list[tuple[str, str]]:
    """The overlay of a request: its nudges, each with the narration before it, if there is one."""
    messages = said(body)
    return [
        (messages[n - 1][1] if messages[n - 1][0] == "assistant" else "", text) for n, (_, text) in enumerate(messages) if text in NUDGES
    ]


@wires
def test_each_narration_is_followed_by_its_nudge_and_blank_narration_is_left_out(wire: str) -> None:
    played = run([stall("Plan one."), stall(""), text(" \n"), stall("Plan two."), reasoning("Hm."), text("Done.")], wire=wire)
    dropped, empty, thought = (RECOVERIES[code].nudge for code in ("dropped_tool_call", "empty_reply", "reasoning_only"))
    expected = [("Plan one.", dropped), ("", dropped), ("", empty), ("Plan two.", dropped), ("", thought)]
    for number, body in enumerate(played.bodies):
        assert scaffolding(body) == expected[:number]
        assert faults(body) == []
    assert "Hm." not in str(played.bodies)


@wires
@pytest.mark.parametrize("end", [text("Done."), text("Do", finish="content_filter")], ids=["answer", "filter"])
def test_the_scaffolding_is_gone_from_the_next_run_however_the_streak_ended(wire: str, end: Step) -> None:
    played = run([stall("Plan one."), end, text("Again.")], wire=wire, prompts=("Go.", "Go on."))
    assert scaffolding(played.bodies[-1]) == []
    assert "Plan one." not in str(played.bodies[-1])
    assert not NUDGES & {str(m.content) for m in played.results[-1].messages}


def test_the_scaffolding_is_gone_once_a_call_came_and_a_new_streak_begins_with_its_own() -> None:
    played = run([stall("Plan one."), add_call(), stall("Plan two."), text("3")])
    assert [[plan for plan, _ in scaffolding(body)] for body in played.bodies] == [[], ["Plan one."], [], ["Plan two."]]
    assert "Plan one." not in str(played.bodies[2:])


def test_the_last_narration_alone_joins_the_transcript_and_a_cut_answer_that_was_continued_joins_it_once() -> None:
    played = run([*(stall(f"Plan {n}.") for n in range(4)), text("It i", finish="length"), text("s 3.")], prompts=("Go.", "Go on."))
    assert [m.content for m in played.result.messages] == ["Go.", "Plan 3.", "Go on.", "It is 3."]
    assert said(played.bodies[-1])[-2:] == [("assistant", "It i"), ("user", RECOVERIES["length"].nudge)]


def test_the_parts_of_an_answer_are_one_message_of_the_overlay_however_many_they_are() -> None:
    played = run([text("a", finish="length"), text("b", finish="length"), text("c", finish="length"), text("d")])
    overlays = [[content for role, content in said(body) if role == "assistant"] for body in played.bodies]
    assert overlays == [[], ["a"], ["ab"], ["abc"]]
    assert played.result.text == "abcd"


def test_the_scaffolding_is_in_no_transcript_that_is_folded_at_any_moment() -> None:
    steps = [
        stall("Plan one."),
        text(""),
        text("a", finish="length"),
        text("b"),
        stall("Plan two."),
        add_call(),
        stall("Plan three."),
        text("3"),
    ]
    played = run(steps, prompts=("Go.", "Go on."))
    for end in range(len(played.records)):
        seen = Transcript(played.records[:end])
        words = {str(m.content) for m in seen.snapshot()}
        assert not words & {"Plan one.", "Plan two.", "Plan three.", "a", *NUDGES}
        assert all(str(m.content).strip() for m in seen.overlay)


CHILD = """
import asyncio, sys
from interlock import Agent, AgentRunConfig
from interlock.providers.openai import OpenAIChatModel

async def main():
    model = OpenAIChatModel("scripted", base_url=sys.argv[1])
    async with await Agent.create(model, config=AgentRunConfig(session_id="s"), journal=f"sqlite:///{sys.argv[2]}") as agent:
        await agent.run("Go.")

asyncio.run(main())
"""


def killed_in_the_middle_of_a_streak(journal: Path) -> None:
    """A process with two narrations behind it is killed while it waits for the reply to its third request."""
    arrived = threading.Event()
    process: list[subprocess.Popen[bytes]] = []

    def script(body: dict[str, Any]) -> Step:
        number = len(scaffolding(body))
        if number < 2:
            return stall(f"Plan {number}.")
        arrived.set()
        return hold(asyncio.Event())

    with serving(script) as server:
        process.append(subprocess.Popen([sys.executable, "-c", CHILD, server.base_url, str(journal)]))
        try:
            assert arrived.wait(20)
        finally:
            process[0].kill()
            process[0].wait()


def test_a_streak_survives_the_death_of_its_process_in_the_journal_and_the_next_run_starts_at_zero_without_a_trace(tmp_path: Path) -> None:
    journal = tmp_path / "agent.db"
    killed_in_the_middle_of_a_streak(journal)

    steps = [*(stall(f"New plan {n}.") for n in range(3)), add_call(), text("3")]
    played = run(steps, prompts=["Once more."], journal=f"sqlite:///{journal}")

    before: list[Record] = [*played.records]
    second_opening = [n for n, record in enumerate(before) if type(record).__name__ == "SessionOpened"][1]
    assert fold(before[:second_opening]).streaks == {"dropped_tool_call": 2}
    assert fold(before[: second_opening + 1]).streaks == {"dropped_tool_call": 2}
    assert Transcript(before[: second_opening + 1]).overlay != ()
    assert (played.result.outcome, played.result.text, len(played.bodies)) == (Outcome.COMPLETED, "3", 5)
    assert said(played.bodies[0]) == [("user", "Go."), ("user", "Once more.")]
    assert [m.content for m in played.result.messages][:2] == ["Go.", "Once more."]
    assert not NUDGES & {str(m.content) for m in played.result.messages}
    assert "Plan 0." not in str(played.bodies)
