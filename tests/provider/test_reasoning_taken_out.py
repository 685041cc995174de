"""Reasoning that a layer takes out of a message does not reach the provider again, by whichever wire it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from interlock import Agent
from interlock.extensions.base import AgentExtension
from interlock.messages import AssistantMessage
from interlock.model import Model, ModelEvent, ModelRequest
from interlock.providers.anthropic import AnthropicModel
from interlock.providers.google import GoogleModel
from interlock.providers.openai import OpenAIResponsesModel
from interlock.records.redaction import with_texts
from interlock.testing import WireServer, raw, text
from interlock.testing.wire_render import sse

SECRET = "the password is 1234"

ANTHROPIC: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": SECRET, "signature": "c2ln"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"left": 1}},
    ],
    "stop_reason": "tool_use",
}
CALL: dict[str, Any] = {"functionCall": {"name": "add", "args": {"left": 1}}, "thoughtSignature": "c2ln"}
GOOGLE: dict[str, Any] = {
    "candidates": [
        {
            "content": {"role": "model", "parts": [{"text": SECRET, "thought": True, "thoughtSignature": "c2ln"}, CALL]},
            "finishReason": "STOP",
        }
    ]
}
RESPONSES: dict[str, Any] = {
    "object": "response",
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": SECRET}], "encrypted_content": "c2ln"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"left": 1}'},
    ],
}
WIRES: dict[str, tuple[type[AnthropicModel | GoogleModel | OpenAIResponsesModel], dict[str, Any]]] = {
    "anthropic": (AnthropicModel, ANTHROPIC),
    "google": (GoogleModel, GOOGLE),
    "responses": (OpenAIResponsesModel, {"type": "response.completed", "response": RESPONSES}),
}


def add(left: int) -> int:
    """Add one."""
    return left + 1


class Hides(AgentExtension):
    async def on_model_request(self, context: Any, request: ModelRequest, call_next: Any) -> AsyncGenerator[ModelEvent, None]:
        hidden = (with_texts(message, lambda said: said.replace(SECRET, "[hidden]")) for message in request.messages)
        async with aclosing(call_next(replace(request, messages=tuple(hidden)))) as events:
            async for event in events:
                yield event


async def second_request(wire: str, *extensions: AgentExtension) -> tuple[str, list[Any]]:
    made, reply = WIRES[wire]
    async with WireServer([raw(sse(reply)), text("It is 2.")]) as server:
        model: Model = made("gemini-3-pro", base_url=server.base_url, api_key="k")
        async with await Agent.create(model, tools=[add], extensions=extensions) as agent:
            result = await agent.run("Go.")
    assert result.text == "It is 2."
    return str(server.requests[1].body), [message.wire for message in result.messages if isinstance(message, AssistantMessage)]


@pytest.mark.parametrize("wire", WIRES)
def test_a_layer_that_redacts_what_was_thought_keeps_it_from_going_back_and_the_transcript_as_it_was(wire: str) -> None:
    sent, kept = asyncio.run(second_request(wire, Hides()))
    assert SECRET not in sent
    assert "c2ln" not in sent
    assert kept[0] is not None


@pytest.mark.parametrize("wire", WIRES)
def test_what_was_thought_goes_back_where_no_layer_takes_it_out(wire: str) -> None:
    sent, _ = asyncio.run(second_request(wire))
    assert SECRET in sent
    assert "c2ln" in sent
