"""Hostile text and large results, on their whole way: argument, handler, journal, next request, views."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from helpers import play
from interlock import Agent, AgentRunConfig, Limits, Outcome, RunContext, extension
from interlock.extensions.base import CallNext, ToolInvocation
from interlock.extensions.toollog import ToolLog
from interlock.journal.spans import spans
from interlock.messages import ToolMessage
from interlock.providers.openai import OpenAIChatModel
from interlock.records import ExtensionNoted, ToolStepEnded
from interlock.testing import WireServer, call, calls, text

LONE, MENDED = "half \ud835 alone", "half \ufffd alone"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_half_a_surrogate_pair_is_replaced_once_at_the_boundary_wherever_it_comes_in(store: str, stream: bool, tmp_path: Path) -> None:
    """In the prompt, in arguments, in results, in the name of a tool, in what a layer notes; hashed, stored, sent and traced."""
    heard: list[str] = []
    keys: list[str] = []

    async def hear(what: str, context: RunContext) -> str:
        """Hear."""
        heard.append(what)
        keys.append(context.idempotency_key())
        return LONE + "x" * 5000  # too large: kept under its digest

    @extension(name="noting")
    async def noting(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        context.note({LONE: LONE})
        return await call_next()

    log = ToolLog()
    journal = "memory:" if store == "memory" else f"sqlite:///{tmp_path / 'j.db'}"

    async def main() -> None:
        asked = calls(call("c1", "hear", json.dumps({"what": LONE})), call("c2", f"name {LONE}", "{}"), before=LONE)
        read = calls(call("c3", "read_result", {"call_id": "c1"}))
        async with WireServer([asked, read, text(LONE), text("Hello.")]) as server:
            model = OpenAIChatModel("scripted", base_url=server.base_url, stream=stream)
            config = AgentRunConfig(session_id="s", extra={"metadata": {"user": LONE}})
            options: dict[str, Any] = {
                "tools": [hear],
                "extensions": [noting, log],
                "journal": journal,
                "limits": Limits(result_bytes=1000),
            }
            async with await Agent.create(model, config=config, **options) as agent:
                result = await agent.run(LONE)
                assert (result.outcome, result.text) == (Outcome.COMPLETED, MENDED)
                assert heard == [MENDED]
                assert await agent.messages("s") == result.messages
                assert MENDED in str([m.content for m in result.messages if isinstance(m, ToolMessage) and m.tool_call_id == "c3"])
                rows = await agent.session("s").records()
                noted = [row.record.data for row in rows if isinstance(row.record, ExtensionNoted) and row.record.extension == "noting"]
                assert noted[0] == {MENDED: MENDED}
                assert {"hear", f"name {MENDED}"} <= {span.name for span in spans(rows)}
                assert f"name {MENDED}" in {entry.tool for entry in log.entries}
                assert (await agent.run("Again.")).text == "Hello."
            for request in server.requests:
                json.dumps(request.body, ensure_ascii=False).encode()  # raises for a lone surrogate
                assert request.body["metadata"] == {"user": MENDED}
                assert request.body["messages"][0]["content"] == MENDED

    asyncio.run(main())
    assert keys[0].isascii()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("given", ["W\0s\0l\0", r"literal \u0000, written out"])
def test_a_result_with_nul_bytes_is_stored_as_it_is_and_the_run_and_the_next_process_go_on(store: str, given: str, tmp_path: Path) -> None:
    async def native() -> str:
        """Run a native tool."""
        return given

    journal = "memory:" if store == "memory" else f"sqlite:///{tmp_path / 'j.db'}"
    first = asyncio.run(play([calls(call("c1", "native")), text("Done.")], tools=[native], journal=journal, wire="streamed"))
    (result,) = [m for m in first.result.messages if isinstance(m, ToolMessage)]
    assert (result.content, result.failed, first.result.text) == (given, False, "Done.")
    assert first.bodies[1]["messages"][-1]["content"] == given
    if store == "sqlite":
        second = asyncio.run(play([text("Still here.")], tools=[native], journal=journal, wire="streamed"))
        assert [m["content"] for m in second.bodies[0]["messages"] if m["role"] == "tool"] == [given]


LINES = "".join(f"line {n:06d} äö😀\n" for n in range(100_000))
ROWS = [{"n": n, "text": "äö😀"} for n in range(80_000)]


@pytest.mark.parametrize("value", [LINES, ROWS], ids=["text", "json"])
@pytest.mark.parametrize("where", ["handler", "thread", "layer", "nested"])
def test_two_megabytes_meet_the_same_cap_wherever_they_come_from(where: str, value: Any) -> None:
    text_of = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    size = len(text_of.encode())
    assert size > 2_000_000

    async def dump() -> Any:
        """Dump."""
        return value

    def dump_in_a_thread() -> Any:
        """Dump."""
        return value

    async def relay(context: RunContext) -> Any:
        """Dump what another dumps."""
        return await context.call_tool("dump")

    @extension
    async def layer(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if where == "layer":
            return value
        return await call_next()

    name = {"thread": "dump_in_a_thread", "nested": "relay"}.get(where, "dump")
    played = asyncio.run(
        play([calls(call("big", name)), text("done")], tools=[dump, dump_in_a_thread, relay], extensions=[layer], wire="streamed")
    )
    shown = played.bodies[1]["messages"][-1]["content"]
    assert len(shown.encode()) <= Limits().result_bytes
    assert "\ufffd" not in shown
    assert "are left out here" in shown
    (record,) = [record for record in played.records if isinstance(record, ToolStepEnded) and record.message.tool_call_id == "big"]
    assert record.payload is not None
    assert record.payload.size >= size
    assert f"of {record.payload.size} bytes" in shown
    assert 'read_result(call_id="big"' in shown
    assert "read_result" in [spec["function"]["name"] for spec in played.bodies[1]["tools"]]
    assert played.result.text == "done"
