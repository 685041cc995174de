"""RuntimeTools: reading on in a result that was capped."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from interlock.errors import ToolFailure
from interlock.extensions.runtime_tools import READ_BYTES_MAX, READ_RESULT, RuntimeTools
from interlock.messages import ToolMessage, UserMessage
from interlock.records import Limits, Payload, Record, RunStarted, ToolStepEnded
from interlock.tools import as_tool

from .fakes import Context, Next, invocation

TEXT = "a€😀\n" * 20_000
DATA = TEXT.encode()


def step(call_id: str, payload: Payload | None) -> ToolStepEnded:
    return ToolStepEnded(key="k", message=ToolMessage(tool_call_id=call_id, name="t", content="..."), payload=payload)


def started(result_bytes: int) -> RunStarted:
    return RunStarted(run_id="r", prompt=UserMessage(content="x"), limits=Limits(result_bytes=result_bytes))


def context(*records: Record, payloads: dict[str, bytes] | None = None) -> Context:
    memory: Any = None
    for record in records:
        memory = RuntimeTools().fold(memory, record)
    return Context(memory=memory, payloads={"d": DATA} if payloads is None else payloads)


CAPPED = step("call_9", Payload("d", len(DATA)))


def read(where: Context, **arguments: Any) -> Any:
    call_next = Next()
    answer = asyncio.run(RuntimeTools().on_tool_call(where, invocation(READ_RESULT, arguments), call_next))
    assert call_next.calls == 0
    return answer


def test_it_is_offered_only_once_a_result_was_capped() -> None:
    [made] = RuntimeTools().tools()
    assert made.available is not None
    assert not made.available(context())
    assert not made.available(context(started(1000), step("call_1", None)))
    assert made.available(context(started(1000), CAPPED))


def test_reading_on_gives_the_whole_text_without_gap_or_overlap() -> None:
    where, offset, whole = context(CAPPED), 0, ""
    for _ in range(100):
        header, text = read(where, call_id="call_9", offset=offset, limit=10_001).split("\n", 1)
        assert f"of {len(DATA)}" in header
        whole += text
        following = re.search(r"next offset (\d+)", header)
        if following is None:
            assert "the end" in header
            break
        offset = int(following[1])
    assert whole == TEXT


def test_an_offset_inside_a_character_begins_with_that_character() -> None:
    assert read(context(CAPPED), call_id="call_9", offset=2, limit=3).split("\n", 1)[1] == "€"


def test_the_smallest_limit_still_makes_progress() -> None:
    assert read(context(CAPPED), call_id="call_9", offset=1, limit=-5).split("\n", 1)[1] == "€"
    assert read(context(CAPPED), call_id="call_9", offset=4, limit=0).split("\n", 1)[1] == "😀"


@pytest.mark.parametrize("result_bytes", [512, 4096, 64 * 1024])
def test_an_answer_is_never_capped_itself(result_bytes: int) -> None:
    answer = read(context(started(result_bytes), CAPPED), call_id="call_9", limit=10**9)
    assert len(answer.encode()) <= min(result_bytes, READ_BYTES_MAX + 256)


def test_an_offset_past_the_end_says_so() -> None:
    assert f"has {len(DATA)} bytes" in read(context(CAPPED), call_id="call_9", offset=10**9)


def test_an_unknown_id_is_a_failure_that_names_the_known_ones() -> None:
    failure = read(context(CAPPED), call_id="call_1")
    assert isinstance(failure, ToolFailure)
    assert failure.effect == "none"
    assert "call_9" in str(failure)
    assert isinstance(read(context(), call_id="call_1"), ToolFailure)


def test_a_copy_that_is_gone_and_wrong_arguments_are_failures_and_no_vetoes() -> None:
    assert "no longer stored" in str(read(context(CAPPED, payloads={}), call_id="call_9"))
    for arguments in ({}, {"call_id": 3}, {"call_id": "call_9", "offset": "x"}, {"call_id": "call_9", "more": 1}):
        assert isinstance(read(context(CAPPED), **arguments), ToolFailure)


def test_other_tools_pass_through_even_with_the_same_name() -> None:
    def read_result(call_id: str) -> str:
        return call_id

    call_next = Next()
    answer = asyncio.run(RuntimeTools().on_tool_call(context(CAPPED), invocation(as_tool(read_result), {"call_id": "x"}), call_next))
    assert (answer, call_next.calls) == ("ran", 1)


def test_the_fold_leaves_the_old_memory_as_it_was() -> None:
    extension = RuntimeTools()
    first = extension.fold(None, CAPPED)
    second = extension.fold(first, step("call_10", Payload("e", 5)))
    assert list(first.results) == ["call_9"]
    assert list(second.results) == ["call_9", "call_10"]
