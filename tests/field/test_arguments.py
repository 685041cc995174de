"""Calls as vendors really stream them, from the socket to the handler: how many there are, when they run, and with what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import WIRES, Played, limits, play
from interlock import Agent, AgentRunConfig, Outcome, ProviderError
from interlock.events import ToolCallDelta, ToolStarted
from interlock.messages import ToolMessage
from interlock.providers.openai import OpenAIChatModel
from interlock.records import HandlerStarted, RunEnded, ToolStepEnded
from interlock.testing import Step, WireServer, call, calls, cut, eof, raw, repeat, text
from wire_rules import faults

Piece = tuple[int | None, str | None, str | None, str | None]


def streamed(*pieces: Piece, finish: str = "tool_calls") -> Step:
    """A reply whose chunks carry one fragment each: (index, id, name, arguments)."""
    return raw(*map(fragment, pieces), {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})


def fragment(piece: Piece) -> dict[str, Any]:
    index, id, name, arguments = piece
    made = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [made]}, "finish_reason": None}]}


class Board:
    """A tool with one argument, which keeps what it was given, and one without."""

    def __init__(self) -> None:
        self.pinned: list[str] = []
        self.rang = 0

    async def pin(self, note: str) -> str:
        """Pin a note."""
        self.pinned.append(note)
        return f"pinned {note}"

    async def ring(self) -> str:
        """Ring."""
        self.rang += 1
        return "rung"


def run(*steps: Step, **options: Any) -> tuple[Played, Board]:
    board = Board()
    return asyncio.run(play(steps, tools=[board.pin, board.ring], **{"wire": "streamed", **options})), board


# By what the vendor does: the fragments, and the notes that must be pinned.
STREAMS: dict[str, tuple[list[Piece], list[str]]] = {
    "two whole calls, both index 0": ([(0, "a", "pin", '{"note":"x"}'), (0, "b", "pin", '{"note":"y"}')], ["x", "y"]),
    "the same, without an index": ([(None, "a", "pin", '{"note":"x"}'), (None, "b", "pin", '{"note":"y"}')], ["x", "y"]),
    "both index 0, interleaved by id": (
        [(0, "a", "pin", '{"note"'), (0, "b", "pin", '{"note"'), (0, "a", None, ':"x"}'), (0, "b", None, ':"y"}')],
        ["x", "y"],
    ),
    "both index 0, one after the other in pieces": (
        [(0, "a", "pin", '{"no'), (0, None, None, 'te":"x"}'), (0, "b", "pin", '{"no'), (0, None, None, 'te":"y"}')],
        ["x", "y"],
    ),
    "two calls alike": ([(0, "a", "pin", '{"note":"x"}'), (1, "b", "pin", '{"note":"x"}')], ["x", "x"]),
    "id and name first, then only arguments": (
        [(0, "a", "pin", ""), (0, None, None, '{"no'), (0, None, None, 'te":'), (0, None, None, '"x"}')],
        ["x"],
    ),
    "the last brace with a name and no id": ([(0, "a", "pin", '{"note":"x"'), (0, None, "pin", "}")], ["x"]),
    "the name on every chunk": ([(0, "a", "pin", '{"note"'), (0, "a", "pin", ":"), (0, "a", "pin", '"x"}')], ["x"]),
    "an empty delta after the arguments were whole": ([(0, "a", "pin", ""), (0, "a", None, '{"note":"x"}'), (0, "a", "pin", "")], ["x"]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_streamed_call_runs_once_with_its_full_arguments_however_its_vendor_cuts_it(name: str) -> None:
    pieces, pinned = STREAMS[name]
    played, board = run(streamed(*pieces), text("Done."))
    assert (board.pinned, played.result.text) == (pinned, "Done.")
    assert len(played.result.messages) == 3 + len(pinned)
    assert [fault for body in played.bodies for fault in faults(body)] == []


def test_a_call_whose_arguments_are_whole_is_not_dispatched_before_the_reply_has_ended() -> None:
    async def main() -> None:
        gate, board = asyncio.Event(), Board()
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        pieces: list[Piece] = [(0, "a", "pin", ""), (0, None, None, '{"note":"x"}')]
        step = raw(*map(fragment, pieces), gate, fragment((0, "a", None, "")), end)
        async with WireServer([step, text("Done.")]) as server:
            model = OpenAIChatModel("scripted", base_url=server.base_url)
            async with await Agent.create(model, tools=[board.pin], limits=limits()) as agent:
                seen: list[str] = []
                async for event in agent.stream("Go."):
                    seen.append(type(event).__name__)
                    if isinstance(event, ToolCallDelta) and event.arguments:
                        for _ in range(20):
                            await asyncio.sleep(0)
                        assert board.pinned == []
                        gate.set()
                assert board.pinned == ["x"]
                assert seen.count(ToolStarted.__name__) == 1

    asyncio.run(main())


# ---- no arguments, and what is none ------------------------------------------------------------------

NO_ARGUMENTS = ["", "  \n", "null", '"null"', None]
NO_OBJECT = ["[]", '["x"]', "3", "true", '"x"', "{", '{"note": "x"']


@pytest.mark.parametrize("wire", ["streamed", "plain"])
@pytest.mark.parametrize("arguments", NO_ARGUMENTS)
def test_missing_arguments_run_a_tool_that_needs_none_and_are_refused_by_one_that_needs_some(wire: str, arguments: str | None) -> None:
    step = streamed((0, "a", "ring", arguments), (1, "b", "pin", arguments))
    played, board = run(step, text("Done."), text("Hello."), wire=wire, prompts=("Go.", "Hi."))
    rung, pinned = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert (board.rang, board.pinned) == (1, [])
    assert (rung.failed, rung.content) == (False, "rung")
    assert (pinned.failed, pinned.effect) == (True, "none")
    assert "note" in str(pinned.content)
    assert [fault for body in played.bodies for fault in faults(body)] == []
    sent = [one["function"]["arguments"] for one in played.bodies[-1]["messages"][1]["tool_calls"]]
    assert sent == ["{}", "{}"]


@pytest.mark.parametrize("wire", ["streamed", "plain"])
@pytest.mark.parametrize("arguments", NO_OBJECT)
def test_arguments_that_are_no_object_are_a_failed_result_for_any_tool_and_valid_when_they_are_sent_back(wire: str, arguments: str) -> None:
    step = streamed((0, "a", "ring", arguments), (1, "b", "pin", arguments))
    played, board = run(step, text("Sorry."), text("Hello."), wire=wire, prompts=("Go.", "Hi."))
    results = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert (board.rang, board.pinned) == (0, [])
    assert [(m.failed, m.effect) for m in results] == [(True, "none")] * 2
    assert [fault for body in played.bodies for fault in faults(body)] == []
    assert [one.arguments for one in played.result.messages[1].tool_calls] == [arguments] * 2  # type: ignore[union-attr]


# ---- cut in the middle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("end", [cut, eof])
def test_a_call_that_is_cut_in_its_arguments_for_ever_never_runs_and_leaves_nothing_behind(wire: str, end: Any) -> None:
    half = end(after=calls(call("a", "pin", '{"note": "x"}')), chunks=2)
    played, board = run(half, half, half, half, text("Hello."), wire=wire, prompts=("Go.", "Hi."))
    (failure,) = played.errors
    assert isinstance(failure, ProviderError)
    assert board.pinned == []
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]
    first, _ = [record for record in played.records if isinstance(record, RunEnded)]
    assert (first.outcome, first.reason) == (Outcome.INCOMPLETE, "provider_error")
    assert [message["role"] for message in played.bodies[-1]["messages"]] == ["user", "user"]


@pytest.mark.parametrize("wire", WIRES)
def test_a_call_that_a_length_limit_cut_says_so_by_a_code_and_by_the_words_that_it_was_not_executed(wire: str) -> None:
    played, board = run(calls(call("a", "pin", '{"note": "x'), finish="length"), text("I see."), wire=wire)
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ended.code, ended.effect, board.pinned) == ("cut_off", "none", [])
    assert "was not executed" in str(ended.message.content)
    assert "was not executed" in played.bodies[1]["messages"][-1]["content"]


def test_a_limit_that_always_cuts_the_call_ends_incomplete_and_nothing_ran() -> None:
    cut_off = calls(call("", "pin", '{"note": "x'), finish="length")
    played, board = run(repeat(cut_off), config=AgentRunConfig(max_tokens=16))
    assert (played.result.outcome, played.result.reason) == (Outcome.INCOMPLETE, "malformed_tool_call")
    assert (board.pinned, len(played.bodies)) == ([], 4)
