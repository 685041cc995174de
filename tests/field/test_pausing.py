"""A provider that pauses in the middle of a message, because a tool of its own is at work, gets back what it said as it said it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from helpers import limits
from interlock import Agent, AgentExtension, AgentRunConfig, Outcome
from interlock.errors import ProviderError
from interlock.messages import AssistantMessage, WireCopy
from interlock.providers.anthropic import AnthropicModel
from interlock.testing import Step, WireServer, cut, raw, text

SIGNATURE = "Eq+/=="
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "encrypted_content": "Q=="}],
}


def says(*blocks: dict[str, Any], stop: str) -> Step:
    """A reply of whole blocks, which comes the same streamed and plain."""
    message = {"id": "msg", "type": "message", "role": "assistant", "model": "claude-x", "content": [], "stop_reason": None, "usage": {}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        events += [{"type": "content_block_start", "index": index, "content_block": block}, {"type": "content_block_stop", "index": index}]
    ending = {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 3}}
    return raw(*events, ending, {"type": "message_stop"}, ends="eof")


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def call(id: str, name: str = "add") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {"left": 1, "right": 2}}


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


class Seen(AgentExtension):
    def __init__(self) -> None:
        self.names: list[str] = []

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        self.names.append(call.name)
        return await call_next()


async def converse(
    steps: list[Step], *prompts: str, stream: bool = True, journal: str | None = None, bounds: Any = None
) -> tuple[Any, ...]:
    seen = Seen()
    async with WireServer(steps) as server:
        model = AnthropicModel("claude-x", base_url=server.base_url, api_key="k", stream=stream, cache=False)
        config = AgentRunConfig(session_id="s")
        async with await Agent.create(
            model, tools=[add], extensions=[seen], config=config, limits=bounds or limits(), journal=journal
        ) as agent:
            results = [await agent.run(prompt) for prompt in prompts]
        return results, [request.body["messages"] for request in server.requests], seen.names


@pytest.mark.parametrize("stream", [True, False])
def test_the_parts_of_a_message_go_back_together_and_the_answer_is_all_of_their_text(stream: bool) -> None:
    steps = [
        says(THOUGHT, words("I look. "), SEARCH, stop="pause_turn"),
        says(FOUND, words("I look on. "), stop="pause_turn"),
        says(words("It is 3."), stop="end_turn"),
        text("You are welcome."),
    ]
    results, requests, seen = asyncio.run(converse(steps, "Look.", "Thanks.", stream=stream))
    assert (results[0].outcome, results[0].text) == (Outcome.COMPLETED, "I look. I look on. It is 3.")
    first = [THOUGHT, words("I look. "), SEARCH]
    second = [*first, FOUND, words("I look on. ")]
    assert [turn["role"] for turn in requests[1]] == ["user", "assistant"]
    assert requests[1][-1]["content"] == first
    assert requests[2][-1]["content"] == second
    assert requests[3][1]["content"] == [*second, words("It is 3.")]
    assert seen == []
    answer = results[0].messages[-1]
    assert isinstance(answer, AssistantMessage)
    assert not answer.incomplete


def test_a_pause_before_anything_was_said_is_not_an_empty_reply() -> None:
    steps = [says(THOUGHT, SEARCH, stop="pause_turn"), says(FOUND, words("It is 3."), stop="end_turn")]
    results, requests, _ = asyncio.run(converse(steps, "Look."))
    assert results[0].text == "It is 3."
    assert [turn["content"] for turn in requests[1]] == [[words("Look.")], [THOUGHT, SEARCH]]


def test_a_message_that_pauses_and_then_calls_a_tool_of_ours_goes_back_whole_before_the_result() -> None:
    steps = [
        says(THOUGHT, SEARCH, stop="pause_turn"),
        says(FOUND, {**THOUGHT, "signature": "Zz=="}, call("toolu_1"), stop="tool_use"),
        says(THOUGHT, words("It is 3."), stop="end_turn"),
        text("Bye."),
    ]
    results, requests, seen = asyncio.run(converse(steps, "Look.", "Thanks."))
    assert results[0].text == "It is 3."
    assert requests[3][3]["content"] == [THOUGHT, words("It is 3.")]  # the next message has nothing of the one that paused
    assert requests[2][1]["content"] == [THOUGHT, SEARCH, FOUND, {**THOUGHT, "signature": "Zz=="}, call("toolu_1")]
    assert requests[2][2]["content"][0]["tool_use_id"] == "toolu_1"
    assert seen == ["add"]


def test_a_hosted_call_beside_one_of_ours_waits_for_our_result_and_stays_in_its_place() -> None:
    steps = [says(THOUGHT, SEARCH, call("toolu_1"), stop="tool_use"), says(FOUND, words("It is 3."), stop="end_turn"), text("Bye.")]
    results, requests, _ = asyncio.run(converse(steps, "Look.", "Thanks."))
    assert [result.text for result in results] == ["It is 3.", "Bye."]
    assert requests[1][1]["content"] == [THOUGHT, SEARCH, call("toolu_1")]
    assert requests[2][3]["content"] == [FOUND, words("It is 3.")]


def test_past_the_bound_the_run_is_incomplete_and_the_next_request_holds_no_hosted_call_without_its_result() -> None:
    steps = [says(THOUGHT, words(f"Look {number}. "), SEARCH, stop="pause_turn") for number in range(2)]
    results, requests, _ = asyncio.run(converse([*steps, text("Fine.")], "Look.", "Stop.", bounds=limits(pauses=1)))
    assert (results[0].outcome, results[0].reason, results[0].text) == (Outcome.INCOMPLETE, "pause", "Look 0. Look 1. ")
    assert results[1].text == "Fine."
    assert requests[2][1]["content"] == [words("Look 0. Look 1. ")]


def test_a_cut_after_a_pause_asks_again_with_the_same_part(tmp_path: Path) -> None:
    steps = [says(THOUGHT, SEARCH, stop="pause_turn"), cut(after="It i"), says(FOUND, words("It is 3."), stop="end_turn")]
    results, requests, _ = asyncio.run(converse(steps, "Look.", journal=f"sqlite:///{tmp_path / 'journal.db'}"))
    assert results[0].text == "It is 3."
    assert requests[2] == requests[1]


def test_a_session_that_ends_in_a_pause_goes_on_from_its_journal(tmp_path: Path) -> None:
    journal = f"sqlite:///{tmp_path / 'journal.db'}"

    async def main() -> list[Any]:
        async with WireServer([says(THOUGHT, SEARCH, stop="pause_turn"), cut(), says(FOUND, words("It is 3."), stop="end_turn")]) as server:
            for bounds in (limits(model_attempts=1), limits()):
                model = AnthropicModel("claude-x", base_url=server.base_url, api_key="k", cache=False)
                config = AgentRunConfig(session_id="s")
                async with await Agent.create(model, config=config, limits=bounds, journal=journal) as agent:
                    if bounds.model_attempts == 1:
                        with pytest.raises(ProviderError):
                            await agent.run("Look.")
                    else:
                        assert (await agent.resume()).text == "It is 3."
            return [request.body["messages"] for request in server.requests]

    requests = asyncio.run(main())
    assert requests[2] == requests[1]
    assert requests[2][-1]["content"] == [THOUGHT, SEARCH]


# ---- joining the parts ------------------------------------------------------------------------------------------


def wire(body: Any, api: str = "anthropic") -> WireCopy:
    return WireCopy(api=api, model="m", body=json.dumps(body))


def test_forms_of_a_message_are_joined_in_order_and_only_within_one_api() -> None:
    one = wire([{"a": 1}])
    assert one.joined(None) == one
    joined = one.joined(wire([{"b": 2}, {"c": 3}]))
    assert joined is not None
    assert json.loads(joined.body) == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert one.joined(wire([])) == one
    assert one.joined(wire([{"b": 2}], api="gemini")) is None
    assert one.joined(wire({"b": 2})) is None
