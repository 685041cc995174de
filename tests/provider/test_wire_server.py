"""The scripted models are strict: they fail for a request too many, a step too many, and an expectation that does not hold."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import interlock.testing
from interlock.errors import ProviderError, UsageError
from interlock.messages import UserMessage
from interlock.model import Model, ModelEvent, ModelRequest, ModelResponse, TextDelta
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import (
    ScriptedModel,
    Step,
    WireServer,
    call,
    calls,
    cut,
    eof,
    error,
    error_object,
    hold,
    raw,
    reasoning,
    repeat,
    text,
    when,
)

from .conftest import Run

REQUEST = ModelRequest(messages=(UserMessage(content="hi"),))


async def ask(model: Model) -> list[ModelEvent]:
    return [event async for event in model.stream(REQUEST)]


async def outcome(model: Model) -> Any:
    """The events, or what the error says of itself."""
    try:
        return await ask(model)
    except ProviderError as failure:
        return failure.kind, failure.status, failure.retryable, failure.retry_after_s


async def against_wire(steps: Any, requests: int, *, stream: bool = True) -> list[Any]:
    async with WireServer(steps) as server:
        model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", stream=stream)
        try:
            return [await outcome(model) for _ in range(requests)]
        finally:
            await model.aclose()


async def against_memory(steps: Any, requests: int) -> list[Any]:
    model = ScriptedModel(steps)
    found = [await outcome(model) for _ in range(requests)]
    model.assert_done()
    return found


BOTH = pytest.mark.parametrize("play", [against_wire, against_memory], ids=["wire", "memory"])


@BOTH
def test_a_step_that_is_never_asked_for_fails(run: Run, play: Any) -> None:
    with pytest.raises(AssertionError, match="1 of 2 steps were never asked for"):
        run(play([text("a"), text("b")], 1))


@BOTH
def test_a_request_that_was_not_expected_fails(run: Run, play: Any) -> None:
    with pytest.raises(AssertionError, match="request 2 was not expected"):
        run(play([text("a")], 2))


@BOTH
def test_the_last_step_may_repeat_and_may_go_unused(run: Run, play: Any) -> None:
    assert len(run(play([text("a"), repeat(text("b"))], 4))) == 4
    assert len(run(play([text("a"), repeat(text("b"))], 1))) == 1
    with pytest.raises(UsageError, match="last step"):
        run(play([repeat(text("a")), text("b")], 1))


def at_least_two_messages(body: dict[str, Any]) -> bool:
    return len(body["messages"]) > 1


def is_asserted(body: dict[str, Any]) -> None:
    assert not body["messages"], "there are messages"


@BOTH
def test_an_expectation_that_does_not_hold_fails(run: Run, play: Any) -> None:
    run(play([when(lambda body: body["messages"][0]["content"] == "hi", text("a"))], 1))
    with pytest.raises(AssertionError, match="'at_least_two_messages' does not hold"):
        run(play([when(at_least_two_messages, text("a"))], 1))
    with pytest.raises(AssertionError, match="there are messages"):
        run(play([when(is_asserted, text("a"))], 1))


@BOTH
def test_a_function_may_decide_the_step(run: Run, play: Any) -> None:
    async def slowly(body: dict[str, Any]) -> Step:
        await asyncio.sleep(0)
        return text(body["messages"][0]["content"] + "!")

    for handler in (lambda body: text(body["messages"][0]["content"] + "!"), slowly):
        [events] = run(play(handler, 1))
        assert events[-1].message.content == "hi!"


def steps() -> list[Step]:
    """One of each."""
    gate = asyncio.Event()
    gate.set()
    return [
        text("hello world"),
        calls(call("c1", "add", {"a": 1}), call("c2", "add", '{"b'), before="hm"),
        reasoning("think", then="ok"),
        raw({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}]}),
        error(429, "slow", headers={"Retry-After": "3"}),
        error(400),
        error_object(429, after="par"),
        error_object(502, shape="choice"),
        error_object(shape="finish"),
        cut(after="hello"),
        cut(after=calls(call("c1", "add", {"a": 1})), chunks=2),
        eof(after="hello"),
        hold(gate, after="before ", then=text("after")),
        hold(gate, then=error(503)),
    ]


def test_a_script_means_the_same_in_memory_and_on_the_wire(run: Run) -> None:
    count = len(steps())
    assert run(against_memory(steps(), count)) == run(against_wire(steps(), count))


def test_a_script_means_the_same_streamed_and_plain(run: Run) -> None:
    count = len(steps())
    streamed, plain = run(against_wire(steps(), count)), run(against_wire(steps(), count, stream=False))
    assert [found[-1] for found in streamed] == [found[-1] for found in plain]


def test_in_memory_plain_events_and_exceptions_are_played_as_they_are(run: Run) -> None:
    async def main() -> None:
        events = await ask(ScriptedModel([text("42")]))
        model = ScriptedModel([events, [TextDelta("x"), ProviderError("boom", kind="cut")]])
        assert await ask(model) == events
        with pytest.raises(ProviderError, match="boom"):
            await ask(model)
        assert [request.messages for request in model.requests] == [REQUEST.messages] * 2
        assert model.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
        model.assert_done()
        assert isinstance(model, Model)

    run(main())


def test_a_stream_that_is_left_is_counted_as_closed(run: Run) -> None:
    async def main() -> None:
        model = ScriptedModel([text("one two", pieces=2)])
        events = model.stream(REQUEST)
        await anext(events)
        assert model.open_streams == 1
        await events.aclose()
        assert model.open_streams == 0

    run(main())


def test_a_gate_holds_the_reply_until_it_is_set(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with WireServer([hold(gate, after="one ", then=text("two"))]) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
            events = model.stream(REQUEST)
            shown = ""
            while shown != "one ":
                event = await anext(events)
                assert isinstance(event, TextDelta)
                shown += event.text
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            assert not following.done()
            assert not server.requests[0].finished.is_set()
            gate.set()
            assert isinstance(await following, TextDelta)
            *_, last = [event async for event in events]
            assert isinstance(last, ModelResponse)
            assert last.message.content == "one two"
            await server.requests[0].finished.wait()
            assert not server.requests[0].disconnected.is_set()
            await model.aclose()

    run(main())


def test_each_request_is_recorded_as_it_came(run: Run) -> None:
    async def main() -> None:
        async with WireServer([text("a")]) as server:
            before = asyncio.get_running_loop().time()
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", headers={"X-Team": "blue"})
            await ask(model)
            [request] = server.requests
            assert request.path == "/v1/chat/completions"
            assert request.headers["x-team"] == "blue"
            assert request.headers["authorization"] == "Bearer k"
            assert request.body["model"] == "m"
            assert before <= request.at <= asyncio.get_running_loop().time()
            assert (server.connections, server.open_connections) == (1, 1)
            await model.aclose()

    run(main())


def test_an_exception_in_the_block_is_not_hidden_by_the_script(run: Run) -> None:
    async def main() -> None:
        async with WireServer([text("a")]):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main())


def test_a_handler_that_fails_ends_the_reply_and_the_script(run: Run) -> None:
    def broken(body: dict[str, Any]) -> Step:
        raise ValueError("broken handler")

    with pytest.raises(AssertionError, match="broken handler"):
        run(against_wire(broken, 1))


def test_the_scripted_model_in_memory_needs_no_http_client() -> None:
    code = "import sys, interlock.testing.model; from interlock.testing import text; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "False"


def test_everything_promised_is_there() -> None:
    for name in interlock.testing.__all__:
        assert getattr(interlock.testing, name) is not None
    assert set(interlock.testing.__all__) <= set(dir(interlock.testing))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        interlock.testing.nothing  # noqa: B018
