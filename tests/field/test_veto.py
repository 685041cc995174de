"""A veto is judged by what is in the world afterwards, for every kind of tool there is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import play
from interlock import Outcome, RunContext, Tool, extension, tool
from interlock.extensions.base import CallNext, ToolInvocation
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.testing import call, calls, text


@extension(name="never")
async def never(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
    """Refuses every call but the one whose only purpose is to call the others."""
    if call.name != "relay":
        raise PermissionError("not today")
    return await call_next()


def writers(path: Path) -> dict[str, Any]:
    """Every kind of tool, each of which writes ``path``."""

    def write() -> None:
        path.write_text("written")

    async def write_async() -> None:
        """Write."""
        write()

    def write_in_a_thread() -> None:
        """Write."""
        write()

    @tool(parallel=False, timeout_s=10, on_crash="rerun", network=True)
    async def write_with_every_trait() -> None:
        """Write."""
        write()

    class Desk:
        async def write_as_a_method(self) -> None:
            """Write."""
            write()

    async def handler(**arguments: Any) -> None:
        write()

    async def relay(context: RunContext) -> str:
        """Write by way of another tool."""
        try:
            await context.call_tool("write_async")
        except PermissionError:
            return "refused"
        return "written"

    from_schema = Tool.from_schema(name="write_from_schema", parameters={"type": "object"}, handler=handler)
    return {
        "write_async": write_async,
        "write_in_a_thread": write_in_a_thread,
        "write_with_every_trait": write_with_every_trait,
        "write_as_a_method": Desk().write_as_a_method,
        "write_from_schema": from_schema,
        "relay": relay,
    }


KINDS = sorted(writers(Path()))


@pytest.mark.parametrize("kind", KINDS)
def test_an_unconditional_veto_leaves_no_file_behind_whatever_kind_of_tool_would_write_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    played = asyncio.run(play([calls(call("c1", kind)), text("I may not.")], tools=writers(path).values(), extensions=[never]))
    assert not path.exists()
    assert played.result.outcome is Outcome.COMPLETED
    assert "vetoed" in [record.code for record in played.records if isinstance(record, ToolStepEnded)]
    assert len([record for record in played.records if isinstance(record, HandlerStarted)]) == (kind == "relay")


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_veto_each_of_these_tools_writes_the_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    asyncio.run(play([calls(call("c1", kind)), text("Done.")], tools=writers(path).values()))
    assert path.read_text() == "written"


@pytest.mark.parametrize("wire", ["memory", "streamed", "plain"])
def test_a_tool_of_the_registry_that_was_left_out_of_this_request_answers_that_it_is_not_available(wire: str, tmp_path: Path) -> None:
    path = tmp_path / "file"

    @extension
    async def read_only(context: Any, request: Any, call_next: Any) -> Any:
        async for event in call_next(replace(request, tools=())):
            yield event

    steps = [calls(call("c1", "write_async")), text("I cannot.")]
    played = asyncio.run(play(steps, tools=writers(path).values(), extensions=[read_only], wire=wire))
    (result,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert all("tools" not in body for body in played.bodies)
    assert (result.failed, result.effect) == (True, "none")
    assert "not available" in str(result.content)
    assert not path.exists()
