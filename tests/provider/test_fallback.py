"""Several models as one: the next is asked when one fails, and nobody keeps text twice."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from helpers import limits, no_noise
from interlock import Agent, AgentRunConfig, FallbackModel, Outcome, ProviderError, UsageError
from interlock.events import RunFinished, StreamRestarted, TextDelta
from interlock.messages import Usage
from interlock.model import ModelRequest
from interlock.providers.anthropic import AnthropicModel
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import ScriptedModel, call, calls, cut, eof, error, hold, text
from interlock.testing.wire import WireServer


async def shown(agent: Agent, prompt: str = "Go.") -> tuple[str, list[str], Any]:
    """The text in front of a consumer that clears what is withdrawn; why it was; the result."""
    said, reasons, result = "", list[str](), None
    async for event in agent.stream(prompt):
        if isinstance(event, TextDelta):
            said += event.text
        elif isinstance(event, StreamRestarted):
            said = ""
            reasons.append(event.reason)
        elif isinstance(event, RunFinished):
            result = event.result
    return said, reasons, result


@pytest.mark.parametrize(("first", "withdrawn"), [(error(503), []), (error(401), []), (cut(after="The ans"), ["fallback"])])
def test_the_next_model_is_asked_and_what_the_first_had_shown_is_withdrawn(
    first: Any, withdrawn: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        models = ScriptedModel([first], name="one"), ScriptedModel([text("The answer.")], name="two")
        async with await Agent.create(FallbackModel(models), limits=limits()) as agent:
            said, reasons, result = await shown(agent)
            assert (said, reasons, result.text, result.usage.requests) == ("The answer.", withdrawn, "The answer.", 1)
        for model in models:
            model.assert_done()
            assert model.closed

    with caplog.at_level(logging.WARNING, "interlock.providers"):
        asyncio.run(main())
    assert "is asked instead" in caplog.text


def test_a_whole_reply_in_place_of_a_stream_is_shown_all_the_same() -> None:
    async def main() -> None:
        async with WireServer([cut(after="Half an an")]) as broken, WireServer([text("Whole.")]) as sound:
            one = OpenAIChatModel("one", base_url=broken.base_url)
            two = OpenAIChatModel("two", base_url=sound.base_url, stream=False)
            async with await Agent.create(FallbackModel([one, two]), limits=limits()) as agent:
                assert (await shown(agent))[:2] == ("Whole.", ["fallback"])

    asyncio.run(main())


def test_when_every_model_has_failed_the_machine_tries_again_and_the_last_error_goes_on() -> None:
    async def main() -> None:
        models = ScriptedModel([error(503), error(503)], name="one"), ScriptedModel([error(500), error(400, "no such thing")], name="two")
        async with await Agent.create(FallbackModel(models), limits=limits()) as agent:
            with pytest.raises(ProviderError, match="no such thing"):
                await agent.run("Go.")
        for model in models:
            model.assert_done()

    asyncio.run(main())


@pytest.mark.parametrize("end", [cut, eof])
def test_a_second_cut_behind_a_cut_is_an_error_and_neither_text_becomes_an_answer(end: Any) -> None:
    async def main() -> None:
        async with WireServer([cut(after="The ans")]) as first, WireServer([end(after="The answer is")]) as second:
            model = FallbackModel(
                [OpenAIChatModel("m", base_url=first.base_url, api_key="k"), AnthropicModel("m", base_url=second.base_url, api_key="k")]
            )
            said, reasons = "", list[str]()
            config = AgentRunConfig(session_id="s")
            async with await Agent.create(model, config=config, limits=limits(model_attempts=1)) as agent:
                with pytest.raises(ProviderError) as caught:
                    async for event in agent.stream("Go."):
                        match event:
                            case TextDelta():
                                said += event.text
                            case StreamRestarted():
                                said = ""
                                reasons.append(event.reason)
                            case RunFinished():
                                raise AssertionError(event)
                            case _:
                                pass
                assert caught.value.kind == "cut"
                assert [message.content for message in await agent.session("s").messages()] == ["Go."]
            assert reasons[0] == "fallback"
            assert said in ("", "The answer is")  # shown, and by the error's own word no answer

    asyncio.run(main())


def test_the_tokens_of_a_model_that_failed_are_counted() -> None:
    class Costly(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            raise ProviderError("gone", usage=Usage(input_tokens=100, output_tokens=7))
            yield

    async def main() -> None:
        model = FallbackModel([Costly([]), ScriptedModel([text("Yes.", usage=(10, 5))])])
        async with await Agent.create(model, limits=limits()) as agent:
            usage = (await agent.run("Go.")).usage
            assert (usage.input_tokens, usage.output_tokens) == (110, 12)

    asyncio.run(main())


def test_a_call_of_the_model_that_failed_does_not_run_and_one_of_the_next_runs_once() -> None:
    done: list[str] = []

    async def act(name: str) -> str:
        done.append(name)
        return "done"

    async def main() -> None:
        one = ScriptedModel([cut(after=calls(call("c", "act", {"name": "one"}))), error(503)])
        two = ScriptedModel([calls(call("c", "act", {"name": "two"})), text("Done.")])
        async with await Agent.create(FallbackModel([one, two]), tools=[act], limits=limits()) as agent:
            assert (await agent.run("Go.")).text == "Done."

    asyncio.run(main())
    assert done == ["two"]


def test_leaving_closes_the_stream_of_the_model_that_is_being_read() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        one, two = ScriptedModel([error(503)]), ScriptedModel([hold(gate, after="Hello")])
        async with no_noise(), await Agent.create(FallbackModel([one, two]), limits=limits()) as agent:
            events = agent.stream("Go.")
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            assert two.open_streams == 1
            await events.aclose()
            assert two.open_streams == 0

    asyncio.run(main())


def test_structured_output_is_asked_for_in_a_way_that_every_model_of_them_can_follow() -> None:
    async def main() -> None:
        one = ScriptedModel([error(503)], native_output=True)
        two = ScriptedModel([calls(call("f", "final_answer", '{"value": 5}'))])
        async with await Agent.create(FallbackModel([one, two]), output=int, limits=limits()) as agent:
            result = await agent.run("Go.")
            assert (result.outcome, result.output) == (Outcome.COMPLETED, 5)

    asyncio.run(main())


def test_of_several_models_the_dearest_counts_against_a_limit_of_dollars() -> None:
    class Priced(ScriptedModel):
        def cost_usd(self, usage: Usage) -> float:
            return 0.5 if self.name == "dear" else 0.1

    async def main() -> None:
        model = FallbackModel([Priced([text("Yes.")], name="cheap"), Priced([], name="dear")])
        async with await Agent.create(model, limits=limits(cost_usd=1.0)) as agent:
            assert (await agent.run("Go.")).cost_usd == 0.5

    asyncio.run(main())


@pytest.mark.parametrize("models", [[], "openai:gpt", [ScriptedModel([])], ["openai:a", "openai:b"], 5])
def test_what_is_no_list_of_models_is_refused(models: Any) -> None:
    with pytest.raises(UsageError, match="FallbackModel"):
        FallbackModel(models)


def test_a_model_that_is_in_the_list_twice_does_not_hide_the_one_between() -> None:
    async def main() -> None:
        first, second = ScriptedModel([error(401)], name="one"), ScriptedModel([text("The answer.")], name="two")
        async with await Agent.create(FallbackModel([first, second, first]), limits=limits()) as agent:
            assert (await agent.run("Go.")).text == "The answer."

    asyncio.run(main())
