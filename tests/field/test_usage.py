"""Tokens are counted once per request and summed over attempts; a wait that a provider asks for is kept, or refused at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from helpers import limits, play
from interlock import Agent, Limits, Outcome, ProviderError
from interlock.events import RecoveryStarted, RunFinished, TextDelta
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import Step, WireServer, call, calls, cut, error, raw, repeat, text


def chunk(content: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **more}


def tokens(given: int | None, made: int | None) -> dict[str, Any]:
    return {"prompt_tokens": given, "completion_tokens": made}


# By how a vendor reports them: the chunks of a reply, and what they amount to.
REPORTS: dict[str, tuple[list[dict[str, Any]], tuple[int | None, int | None]]] = {
    "on a last chunk without choices": ([chunk("Hi"), chunk("", "stop"), {"choices": [], "usage": tokens(10, 5)}], (10, 5)),
    "cumulative, on every chunk": (
        [chunk("H", usage=tokens(10, 1)), chunk("i", usage=tokens(10, 3)), chunk("", "stop", usage=tokens(10, 5))],
        (10, 5),
    ),
    "twice at the end": ([chunk("Hi", "stop", usage=tokens(10, 5)), {"choices": [], "usage": tokens(10, 5)}], (10, 5)),
    "not at all": ([chunk("Hi"), chunk("", "stop")], (None, None)),
    "as null": ([chunk("Hi", usage=None), chunk("", "stop", usage=None)], (None, None)),
    "with null fields": ([chunk("Hi"), chunk("", "stop", usage=tokens(None, None))], (None, None)),
    "with one null field": ([chunk("Hi"), chunk("", "stop", usage=tokens(10, None))], (10, None)),
    "as zero": ([chunk("Hi"), chunk("", "stop", usage=tokens(0, 0))], (0, 0)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_last_report_of_a_request_counts_once_and_unknown_is_none_and_not_zero(name: str) -> None:
    chunks, (given, made) = REPORTS[name]
    usage = asyncio.run(play([raw(*chunks)], wire="streamed")).result.usage
    assert (usage.input_tokens, usage.output_tokens, usage.requests) == (given, made, 1)
    twice = asyncio.run(play([raw(*chunks), raw(*chunks)], wire="streamed", prompts=("Go.", "Again.")))
    assert [(result.usage.input_tokens, result.usage.output_tokens) for result in twice.results] == [(given, made)] * 2


@pytest.mark.parametrize("wire", ["streamed", "plain", "memory"])
def test_usage_is_summed_over_the_requests_of_a_run(wire: str) -> None:
    async def act() -> str:
        """Act."""
        return "acted"

    steps = [calls(call("c1", "act"), usage=(10, 5)), text("I will.", finish="tool_calls", usage=(20, 6)), text("Done.", usage=(30, 7))]
    usage = asyncio.run(play(steps, tools=[act], wire=wire)).result.usage
    assert (usage.input_tokens, usage.output_tokens, usage.requests, usage.tool_calls) == (60, 18, 3, 1)


def test_attempts_that_failed_count_as_requests_and_their_unknown_tokens_are_not_made_up() -> None:
    played = asyncio.run(play([cut(after="Hello"), error(503), text("Hello", usage=(10, 5))], wire="streamed"))
    usage = played.result.usage
    assert (usage.input_tokens, usage.output_tokens, usage.requests) == (10, 5, 3)


def test_a_run_that_is_cancelled_before_any_report_of_usage_has_none_and_not_zero() -> None:
    async def main() -> Any:
        step = raw(chunk("Here it comes", usage=None), asyncio.Event())
        async with WireServer([step]) as server:
            model = OpenAIChatModel("scripted", base_url=server.base_url)
            async with await Agent.create(model, limits=limits()) as agent:
                async for event in agent.stream("go"):
                    if isinstance(event, TextDelta):
                        await agent.cancel()
                    if isinstance(event, RunFinished):
                        return event.result
        return None

    result = asyncio.run(main())
    assert result.outcome is Outcome.CANCELLED
    assert (result.usage.input_tokens, result.usage.output_tokens) == (None, None)


# ---- waiting ---------------------------------------------------------------------------------------


def soon(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


# The headers of a 429, and the wait before the next attempt, between two bounds in seconds.
ASKED: dict[str, tuple[Any, float, float]] = {
    "seconds": ({"Retry-After": "3"}, 3.0, 3.0),
    "a fraction of a second": ({"Retry-After": "0.75"}, 0.75, 0.75),
    "milliseconds": ({"retry-after-ms": "1500"}, 1.5, 1.5),
    "milliseconds before seconds": ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5, 1.5),
    "a date": ({"Retry-After": soon}, 15.0, 20.0),
    "a date that has passed": ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.5, 0.5),
    "zero": ({"Retry-After": "0"}, 0.5, 0.5),
    "garbage": ({"Retry-After": "soon"}, 0.5, 0.5),
    "nothing": ({}, 0.5, 0.5),
}


@pytest.mark.parametrize("wire", ["memory", "streamed"])
@pytest.mark.parametrize("name", ASKED)
def test_the_next_attempt_is_no_earlier_than_the_provider_asked(name: str, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers, least, most = ASKED[name]
    headers = {key: value(20) if callable(value) else value for key, value in headers.items()}
    slept = without_waiting(monkeypatch)
    played = asyncio.run(play([error(429, headers=headers), text("Hello")], wire=wire, bounds=Limits()))
    assert played.result.text == "Hello"
    (event,) = played.of(RecoveryStarted)
    (waited,) = slept
    assert event.delay_s == waited
    assert least <= waited <= most


def without_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """From now on a wait between two attempts takes no time. The list grows by what was to be waited."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def at_once(delay: float, result: Any = None) -> Any:
        if delay:
            slept.append(delay)
        return await sleep(0, result)

    monkeypatch.setattr("interlock.driver.model_step.asyncio.sleep", at_once)
    return slept


@pytest.mark.parametrize("headers", [{"Retry-After": "3600"}, {"retry-after-ms": "3600000"}, {"Retry-After": soon}])
@pytest.mark.parametrize("wire", ["memory", "streamed"])
def test_a_provider_that_asks_for_an_hour_is_not_obeyed_and_the_error_says_how_long_it_asked(headers: dict[str, Any], wire: str) -> None:
    given = {key: value(3600) if callable(value) else value for key, value in headers.items()}
    played = asyncio.run(play([error(429, "slow down", headers=given)], wire=wire, bounds=Limits()))
    (failure,) = played.errors
    assert isinstance(failure, ProviderError)
    assert failure.retryable
    assert failure.retry_after_s == pytest.approx(3600, abs=5)
    assert len(played.bodies) == 1


def test_the_only_layer_that_retries_is_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = without_waiting(monkeypatch)

    async def main() -> int:
        async with WireServer([repeat(error(429, headers={"Retry-After": "3"}))]) as server:
            async with await Agent.create(OpenAIChatModel("scripted", base_url=server.base_url)) as agent:
                with pytest.raises(ProviderError):
                    await agent.run("go")
            return len(server.requests)

    assert asyncio.run(main()) == Limits().model_attempts == 4
    assert slept == [3.0, 3.0, 3.0]


def test_a_real_wait_is_as_long_as_it_was_asked_for() -> None:
    async def main() -> float:
        moments: list[float] = []

        def step(body: dict[str, Any]) -> Step:
            moments.append(asyncio.get_running_loop().time())
            return text("Hello") if len(moments) > 1 else error(429, headers={"retry-after-ms": "60"})

        async with WireServer(step) as server:
            model = OpenAIChatModel("scripted", base_url=server.base_url)
            async with await Agent.create(model, limits=limits()) as agent:
                assert (await agent.run("go")).text == "Hello"
        first, second = moments
        return second - first

    assert asyncio.run(main()) >= 0.06


def test_the_tokens_of_a_failed_attempt_that_the_provider_had_reported_are_counted() -> None:
    async def main() -> None:
        half = raw(
            {"choices": [{"index": 0, "delta": {"content": "Hal"}}]},
            {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2}},
            ends="eof",
        )
        async with WireServer([half, text("Whole.", usage=(10, 5))]) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k")
            async with await Agent.create(model, limits=Limits(backoff_s=0)) as agent:
                result = await agent.run("go")
        assert (result.text, result.usage.input_tokens, result.usage.output_tokens) == ("Whole.", 20, 7)

    asyncio.run(main())
