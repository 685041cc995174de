"""What users met with Anthropic's models, through a whole agent: refusals, cut calls, thinking around tools, the order of results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from helpers import limits
from interlock import Agent, AgentRunConfig, Outcome, RunResult, tool
from interlock.providers.anthropic import AnthropicModel
from interlock.testing import Step, WireServer, call, calls, raw, reasoning, text

from .test_pausing import THOUGHT, says, words
from .test_pausing import call as use


class Board:
    """Tools that say what they ran with. ``slow`` ends only after ``fast``."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.fast_ended = asyncio.Event()

    def tools(self) -> list[Any]:
        board = self

        @tool(parallel=True)
        async def slow(left: int = 0, right: int = 0) -> str:
            """Slow."""
            await board.fast_ended.wait()
            board.ran.append("slow")
            return "from slow"

        @tool(parallel=True)
        async def fast(left: int = 0, right: int = 0) -> str:
            """Fast."""
            board.ran.append("fast")
            board.fast_ended.set()
            return "from fast"

        async def pin(note: str) -> str:
            """Pin a note."""
            board.ran.append(("pin", note))
            return "pinned"

        async def ring() -> str:
            """Ring."""
            board.ran.append("ring")
            return "rung"

        return [slow, fast, pin, ring]


async def converse(
    steps: list[Step], *prompts: str, stream: bool = True, journal: str | None = None, **options: Any
) -> tuple[list[RunResult], list[dict[str, Any]], list[Any]]:
    board = Board()
    async with WireServer(steps) as server:
        results: list[RunResult] = []
        for prompt in prompts:  # each run in an agent of its own, if there is a journal that lasts
            model = AnthropicModel("claude-x", base_url=server.base_url, api_key="k", stream=stream, cache=False, **options)
            config = AgentRunConfig(session_id="s")
            async with await Agent.create(model, tools=board.tools(), config=config, limits=limits(), journal=journal) as agent:
                results.append(await agent.run(prompt))
                if journal is None:
                    results += [await agent.run(more) for more in prompts[1:]]
                    break
        return results, [request.body for request in server.requests], board.ran


both = pytest.mark.parametrize("stream", [True, False])


@both
def test_a_refusal_ends_the_run_refused_is_not_asked_again_and_is_gone_from_the_next_request(stream: bool) -> None:
    refused = says(words("Here is how"), stop="refusal")
    results, bodies, _ = asyncio.run(converse([refused, text("Hello.")], "Bad.", "Good.", stream=stream))
    assert (results[0].outcome, results[0].reason, results[0].text) == (Outcome.REFUSED, "refusal", "Here is how")
    assert results[1].text == "Hello."
    assert [turn["role"] for turn in bodies[1]["messages"]] == ["user"]
    assert [block["text"] for block in bodies[1]["messages"][0]["content"]] == ["Bad.", "Good."]


@both
def test_a_call_that_max_tokens_cut_never_runs_and_goes_back_with_arguments_that_are_an_object(stream: bool) -> None:
    step = calls(call("toolu_1", "pin", '{"note": "/etc/pass'), finish="length")
    results, bodies, ran = asyncio.run(converse([step, text("I see.")], "Pin.", stream=stream))
    assert (ran, results[0].text) == ([], "I see.")
    made, told = bodies[1]["messages"][1:]
    assert made["content"] == [{"type": "tool_use", "id": "toolu_1", "name": "pin", "input": {}}]
    assert told["content"][0]["is_error"] is True
    assert "cut off" in told["content"][0]["content"][0]["text"]


@both
@pytest.mark.parametrize("arguments", ["", " ", "null", '"null"', "{}"])
def test_missing_arguments_run_a_tool_that_needs_none(stream: bool, arguments: str) -> None:
    results, _, ran = asyncio.run(converse([calls(call("toolu_1", "ring", arguments)), text("Done.")], "Ring.", stream=stream))
    assert (ran, results[0].text) == (["ring"], "Done.")


@both
def test_calls_that_come_with_end_turn_run_all_the_same(stream: bool) -> None:
    results, _, ran = asyncio.run(converse([says(use("toolu_1", "fast"), stop="end_turn"), text("Done.")], "Go.", stream=stream))
    assert (ran, results[0].text) == (["fast"], "Done.")


def test_results_stand_in_the_order_of_their_calls_whoever_ended_first() -> None:
    step = says(use("toolu_1", "slow"), use("toolu_2", "fast"), stop="tool_use")
    _, bodies, ran = asyncio.run(converse([step, text("Done.")], "Go."))
    assert ran == ["fast", "slow"]
    told = [(block["tool_use_id"], block["content"][0]["text"]) for block in bodies[1]["messages"][2]["content"]]
    assert told == [("toolu_1", "from slow"), ("toolu_2", "from fast")]


@both
def test_thinking_around_tools_goes_back_byte_for_byte_also_from_the_journal_in_another_process(stream: bool, tmp_path: Path) -> None:
    second = {**THOUGHT, "signature": "Zz+/=="}
    redacted = {"type": "redacted_thinking", "data": "Em=="}
    steps = [
        says(THOUGHT, redacted, words("Let me."), use("toolu_1", "fast"), second, use("toolu_2", "fast"), stop="tool_use"),
        says(THOUGHT, words("It is done."), stop="end_turn"),
        text("Bye."),
    ]
    journal = f"sqlite:///{tmp_path / 'journal.db'}"
    _, bodies, _ = asyncio.run(converse(steps, "Go.", "Thanks.", stream=stream, journal=journal, thinking={"type": "adaptive"}))
    said = [THOUGHT, redacted, words("Let me."), use("toolu_1", "fast"), second, use("toolu_2", "fast")]
    assert bodies[1]["messages"][1]["content"] == said
    assert json.dumps(bodies[2]["messages"][:3]) == json.dumps(bodies[1]["messages"])
    assert bodies[2]["messages"][3]["content"] == [THOUGHT, words("It is done.")]
    assert all(body["thinking"] == {"type": "adaptive"} for body in bodies)


@both
def test_a_reply_of_reasoning_alone_is_asked_for_its_answer_and_its_thinking_is_not_sent_as_text(stream: bool) -> None:
    results, bodies, _ = asyncio.run(converse([reasoning("I ponder."), text("42.")], "Go.", stream=stream))
    assert results[0].text == "42."
    assert "I ponder." not in json.dumps(bodies[1])


def test_tokens_are_summed_over_requests_and_unknown_ones_stay_unknown() -> None:
    def counted(*blocks: dict[str, Any], stop: str, **usage: int) -> Step:
        frames = [frame for frame in says(*blocks, stop=stop).frames if isinstance(frame, dict)]
        return raw(*({**frame, "usage": usage} if frame["type"] == "message_delta" else frame for frame in frames), ends="eof")

    steps = [
        counted(use("toolu_1", "fast"), stop="tool_use", input_tokens=10, cache_read_input_tokens=90, output_tokens=5),
        counted(words("Done."), stop="end_turn", input_tokens=20, cache_creation_input_tokens=80, output_tokens=7),
    ]
    results, _, _ = asyncio.run(converse(steps, "Go."))
    usage = results[0].usage
    assert (usage.input_tokens, usage.output_tokens, usage.requests) == (200, 12, 2)
    assert (usage.cached_input_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (90, 80, None)
