"""The gate of the benchmark: counts that a busy machine does not change, and that time is made of.

A number here is what the work needs, not a measurement. Whoever raises one says why in the change that does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest

from helpers import agent_playing, limits
from interlock import Agent, AgentExtension, AgentRunConfig
from interlock.events import TextDelta, ToolCallDelta
from interlock.journal import MemoryJournal
from interlock.journal.memory import MemoryLog
from interlock.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from interlock.model import ModelRequest
from interlock.providers import chat_request
from interlock.providers.chat_reply import ChatReply
from interlock.providers.chat_request import ChatRequestWriter
from interlock.providers.google_reply import GoogleReply
from interlock.testing import ScriptedModel, call, calls, text


async def add(left: int, right: int) -> int:
    """Add two integers."""
    return left + right


def one_tool(many: int = 1) -> list[Any]:
    return [calls(*(call(f"c{i}", "add", {"left": i, "right": 1}) for i in range(many))), text("Done.")]


async def consume(agent: Agent, prompt: str = "Go.") -> None:
    async with aclosing(agent.stream(prompt)) as events:
        async for _ in events:
            pass


# ---- the journal ---------------------------------------------------------------------------------------


@pytest.fixture
def journaled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the journal, in order: ``append`` with the record's type, ``durable``, ``release``."""
    asked: list[str] = []
    append, durable, release = MemoryLog.append, MemoryLog.durable, MemoryLog.release

    def counted_append(self: MemoryLog, record: Any, *, at: float) -> int:
        asked.append(type(record).__name__)
        return append(self, record, at=at)

    async def counted_durable(self: MemoryLog, seq: int | None = None) -> None:
        if self in self._dirty:  # one that finds everything stored costs nothing
            asked.append("durable")
        await durable(self, seq)

    async def counted_release(self: MemoryLog) -> None:
        asked.append("release")
        await release(self)

    monkeypatch.setattr(MemoryLog, "append", counted_append)
    monkeypatch.setattr(MemoryLog, "durable", counted_durable)
    monkeypatch.setattr(MemoryLog, "release", counted_release)
    return asked


def test_a_run_with_one_tool_appends_ten_rows_and_waits_four_times(journaled: list[str]) -> None:
    async def main() -> None:
        async with agent_playing(one_tool(), tools=[add]) as agent:
            await consume(agent)

    asyncio.run(main())
    assert journaled == [
        *("SessionOpened", "RunStarted", "ModelStepStarted", "durable"),  # before the first request
        *("ModelStepEnded", "ToolStepStarted", "HandlerStarted", "durable"),  # before the handler
        *("ToolStepEnded", "ModelStepStarted", "durable"),  # before the second request
        *("ModelStepEnded", "RunEnded", "release"),  # with the lease: the fourth
    ]


def test_a_turn_without_a_call_appends_two_rows(journaled: list[str]) -> None:
    async def main() -> None:
        async with agent_playing([text("One."), text("Two.")]) as agent:
            await consume(agent)
            journaled.clear()
            await consume(agent)

    asyncio.run(main())
    assert journaled == ["RunStarted", "ModelStepStarted", "durable", "ModelStepEnded", "RunEnded", "release"]


@pytest.mark.parametrize("many", [2, 32])
def test_a_parallel_call_appends_three_rows_and_waits_at_most_once(journaled: list[str], many: int) -> None:
    async def main() -> None:
        async with agent_playing(one_tool(many), tools=[add]) as agent:
            await consume(agent)

    asyncio.run(main())
    rows = [asked for asked in journaled if asked not in ("durable", "release")]
    assert len(rows) == 7 + 3 * many
    assert journaled.count("durable") <= 2 + many


# ---- tasks and turns of the event loop -----------------------------------------------------------------


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its turns."""

    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


async def _tasks_and_turns(loop: CountingLoop, many: int) -> tuple[int, int]:
    made = 0

    class Counted(asyncio.Task[Any]):
        def __init__(self, *args: Any, **options: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*args, **options)

    async with await Agent.create(ScriptedModel([*one_tool(many), *one_tool(many)]), tools=[add], limits=limits()) as agent:
        await consume(agent)  # the first run of a process starts what later ones find
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "Task", Counted)
            loop.set_task_factory(lambda loop, coroutine, **options: Counted(coroutine, loop=loop, **options))
            before = loop.turns
            await agent.run("Go.")
            turns = loop.turns - before
        loop.set_task_factory(None)
    return made, turns


@pytest.mark.parametrize(("many", "tasks"), [(1, 4), (32, 35)])
def test_a_run_makes_one_task_for_itself_and_one_per_step(many: int, tasks: int) -> None:
    loop = CountingLoop()
    try:
        made, turns = loop.run_until_complete(_tasks_and_turns(loop, many))
    finally:
        loop.close()
    assert made == tasks  # the run, two model steps, a step per call
    assert turns <= 8, "one turn per step, and a few to begin and to end"


@pytest.mark.parametrize("many", [1, 32])
def test_a_run_seldom_asks_which_loop_it_runs_in(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """In Python 3.11 each time is a system call."""
    asked, ask = 0, asyncio.get_running_loop

    def counted() -> asyncio.AbstractEventLoop:
        nonlocal asked
        asked += 1
        return ask()

    async def main() -> None:
        async with agent_playing([*one_tool(many), *one_tool(many)], tools=[add]) as agent:
            await consume(agent)
            monkeypatch.setattr(asyncio, "get_running_loop", counted)
            await consume(agent)
            monkeypatch.undo()

    asyncio.run(main())
    assert asked <= 4


def test_a_run_leaves_nothing_for_the_garbage_collector() -> None:
    import gc

    async def main() -> int:
        async with agent_playing([step for _ in range(4) for step in one_tool()], tools=[add]) as agent:
            await consume(agent)
            await asyncio.sleep(0)
            gc.collect()
            gc.disable()
            try:
                for _ in range(3):
                    await consume(agent)
                await asyncio.sleep(0)  # the run's task lets go of it
                return gc.collect()
            finally:
                gc.enable()

    assert asyncio.run(main()) == 0


# ---- what is loaded --------------------------------------------------------------------------------------


def loaded(program: str) -> set[str]:
    """The modules that ``program`` adds to those of a bare interpreter."""
    show = "import sys; before = set(sys.modules)\n{}\nprint(*sorted(set(sys.modules) - before))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    done = subprocess.run([sys.executable, "-c", show.format(program)], capture_output=True, text=True, check=True, env=environment)
    return set(done.stdout.split())


def test_importing_interlock_loads_nothing_else() -> None:
    assert loaded("import interlock") <= {"interlock", "__future__"}


HEAVY = {"aiohttp", "pydantic", "pydantic_core", "yarl", "sqlite3", "rich", "typer", "email", "http", "urllib.request", "docstring_parser"}
LATER = {"json", "pathlib", "hashlib", "queue", "urllib.parse", "ipaddress"}  # each a twentieth or more of what touching Agent costs


def test_touching_agent_loads_no_heavy_module() -> None:
    added = loaded("import interlock; interlock.Agent")
    assert added.isdisjoint(HEAVY | (LATER - loaded("import asyncio, msgspec")))
    assert not [name for name in added if name.startswith("interlock.providers")]
    assert len(added - loaded("import asyncio, msgspec")) <= 60


def test_constructing_an_agent_loads_neither_sqlite_nor_a_shell_nor_a_guard_that_it_does_not_have() -> None:
    program = """
import asyncio
from interlock import Agent
from interlock.providers.openai import OpenAIChatModel
async def main():
    await (await Agent.create(OpenAIChatModel("m", base_url="http://127.0.0.1:1/v1"))).aclose()
asyncio.run(main())
"""
    others = {"interlock.shells", "interlock.testing", "interlock.extensions.permissions", "interlock.extensions.hooks"}
    assert loaded(program).isdisjoint({"sqlite3", "rich", "typer", "docstring_parser", *others})


# ---- a streamed chunk --------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}).encode()


CALL = {"tool_calls": [{"index": 0, "id": "c0", "type": "function", "function": {"name": "write", "arguments": ""}}]}
FRAGMENT = {"tool_calls": [{"index": 0, "function": {"arguments": "0123456789"}}]}


@contextmanager
def blocks_kept() -> Iterator[Callable[[], int]]:
    """How many more memory blocks there are than at the start. Without the collector, whose passes would be seen as frees."""
    import gc

    gc.collect()
    gc.disable()
    start = sys.getallocatedblocks()
    try:
        yield lambda: sys.getallocatedblocks() - start
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("payload", "kind", "kept_max"),
    [
        (chunk({"content": "word "}), TextDelta, 1.1),  # the text itself
        (chunk(FRAGMENT), ToolCallDelta, 1.1),  # the fragment itself
    ],
)
def test_a_chunk_leaves_one_object_behind_and_shows_one_event(payload: bytes, kind: type[Any], kept_max: float) -> None:
    reply, many, shown = ChatReply(), 5000, 0
    reply.take(chunk(CALL if kind is ToolCallDelta else {"role": "assistant", "content": ""}))
    for _ in range(100):
        reply.take(payload)
    with blocks_kept() as kept:
        for _ in range(many):
            for event in reply.take(payload):
                assert type(event) is kind
                shown += 1
        count = kept()
    assert shown == many
    assert count / many <= kept_max


def test_a_chunk_of_gemini_leaves_one_object_behind_and_shows_one_event() -> None:
    candidate = {"index": 0, "content": {"role": "model", "parts": [{"text": "word "}]}}
    payload = json.dumps({"candidates": [candidate], "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 7}}).encode()
    reply, many = GoogleReply("m"), 5000
    for _ in range(100):
        reply.take(payload)
    with blocks_kept() as kept:
        shown = sum(len(reply.take(payload)) for _ in range(many))
        count = kept()
    assert shown == many
    assert count / many <= 1.1


@pytest.mark.parametrize("kind", [TextDelta, ToolCallDelta])
def test_an_event_of_a_chunk_is_invisible_to_the_garbage_collector(kind: type[Any]) -> None:
    """A burst of tracked objects would start a collection every 700 chunks."""
    import gc

    event = kind("x") if kind is TextDelta else kind(0, "c0", "write", "x")
    assert not gc.is_tracked(event)


# ---- what is encoded -----------------------------------------------------------------------------------------


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """The messages that were turned into JSON, in order."""
    messages: list[Message] = []
    encode = chat_request.encode_message

    def counted(message: Message, *more: Any) -> bytes:
        messages.append(message)
        return encode(message, *more)

    monkeypatch.setattr(chat_request, "encode_message", counted)
    return messages


def test_a_request_at_history_200_encodes_only_what_is_new(encoded: list[Message]) -> None:
    writer, owner, scratch = ChatRequestWriter("m", stream=True, max_tokens_field="max_tokens"), object(), dict[Any, Any]()
    history: tuple[Message, ...] = (UserMessage(content="Go."),)
    for turn in range(100):
        asked = AssistantMessage(content="", tool_calls=(ToolCall(id=f"c{turn}", name="add", arguments='{"left": 1, "right": 2}'),))
        history = (*history, asked, ToolMessage(tool_call_id=f"c{turn}", name="add", content="3"))
        encoded.clear()
        writer.body(ModelRequest(messages=history, scratch=scratch), owner)
        assert len(encoded) == (3 if turn == 0 else 2)


def test_a_long_run_encodes_each_message_once(encoded: list[Message]) -> None:
    rounds = 50

    async def main() -> None:
        steps = [calls(call(f"c{i}", "add", {"left": i, "right": 1})) for i in range(rounds)]
        async with agent_playing([*steps, text("Done.")], tools=[add], bounds=limits(requests=100), system_prompt="Add.") as agent:
            await consume(agent)

    asyncio.run(main())
    assert len(encoded) == 2 + 2 * rounds  # the system prompt, the prompt, and each round's call and result
    assert len({id(message) for message in encoded}) == len(encoded)


def test_the_tools_are_encoded_once_for_all_sessions_of_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[int] = []
    head = ChatRequestWriter._head

    def counted(self: ChatRequestWriter, settings: Any, tools: Any, output: Any) -> bytes:
        heads.append(len(tools))
        return head(self, settings, tools, output)

    monkeypatch.setattr(ChatRequestWriter, "_head", counted)

    async def main() -> None:
        async with await Agent.create(ScriptedModel(one_tool() * 3), tools=[add], limits=limits()) as agent:
            for session in "abc":
                await agent.session(session).run("Go.")

    asyncio.run(main())
    assert heads == [1]


# ---- a layer ---------------------------------------------------------------------------------------------------


class ToolsOnly(AgentExtension):
    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        return await call_next()


def test_a_layer_on_tools_is_not_entered_by_a_stream_and_costs_no_row(journaled: list[str]) -> None:
    async def main() -> None:
        async with await Agent.create(
            ScriptedModel(one_tool()),
            tools=[add],
            extensions=[ToolsOnly()],
            journal=MemoryJournal(),
            limits=limits(),
            config=AgentRunConfig(session_id="s"),
        ) as agent:
            assert agent.parts.model_layers == ()
            await consume(agent)

    asyncio.run(main())
    assert len([asked for asked in journaled if asked not in ("durable", "release")]) == 10
