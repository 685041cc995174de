"""The same script amounts to the same run, streamed in any pieces, as a whole reply, and past the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import WIRES, limits, play
from interlock import AgentRunConfig
from interlock.testing import Step, call, calls, error_object, reasoning, text


async def add(left: int, right: int) -> int:
    """Add."""
    return left + right


def scripts(pieces: int) -> dict[str, list[Step]]:
    """By what is special about it. pieces: into how many chunks texts and arguments are cut."""
    one = call("a", "add", {"left": 1, "right": 2})
    two = call("b", "add", {"left": 3, "right": 4})
    answer = text("It is 3.", usage=(7, 3), pieces=pieces)
    return {
        "usage beside calls": [calls(one, usage=(100, 20), pieces=pieces), answer],
        "no usage beside calls": [calls(one, usage=None, pieces=pieces), answer],
        "text and calls": [calls(one, two, before="Let me add.", pieces=pieces), answer],
        "blank text and a call": [calls(one, before="\n\n", pieces=pieces), answer],
        "a call with the stop reason stop": [calls(one, finish="stop", pieces=pieces), answer],
        "text up to a stop string": [text("First part. ", usage=(5, 4), pieces=pieces)],
        "an answer that opens with a letter": [text("I", pieces=1)],
        "an answer that opens with blanks": [text("  \n It is 3.", pieces=pieces)],
        "reasoning and text": [reasoning("Hm, so.", then="It is 3.", pieces=pieces)],
        "a limit in mid-text": [text("It i", finish="length", pieces=pieces), text("s 3.", pieces=pieces)],
        "a limit in mid-call": [
            calls(call("a", "add", '{"left": 1, "ri'), finish="length", pieces=pieces),
            calls(one, pieces=pieces),
            answer,
        ],
        "a filter": [text("It is", finish="content_filter", pieces=pieces)],
        "a narration": [text("I will add.", finish="tool_calls", pieces=pieces), calls(one, pieces=pieces), answer],
        "nothing, then an answer": [text(""), answer],
        "an error and a second try": [error_object(502, after=text("It i", pieces=pieces)), answer],
        "text that is like a call": [text('<tool_call>{"name": "add"}</tool_call>', pieces=pieces)],
    }


def run(steps: list[Step], wire: str) -> Any:
    config = AgentRunConfig(stop=("END",), max_tokens=64)
    played = asyncio.run(play(steps, tools=[add], wire=wire, config=config, bounds=limits()))
    result = played.result
    bodies = [{key: value for key, value in body.items() if key not in ("stream", "stream_options")} for body in played.bodies]
    ended = sorted((type(record).__name__, str(getattr(record, "code", ""))) for record in played.records)
    return (
        result.outcome,
        result.reason,
        result.text,
        result.messages,
        result.usage,
        played.shown(),
        [body["messages"] for body in bodies],
        ended,
    )


@pytest.mark.parametrize("name", scripts(1))
def test_a_run_is_the_same_streamed_in_one_piece_or_many_as_a_whole_reply_and_past_the_wire(name: str) -> None:
    first, *others = [run(scripts(pieces)[name], wire) for wire in WIRES for pieces in (1, 4)]
    for other in others:
        assert other == first
