"""Every adapter passes the public conformance kit, and the kit sees the faults for which it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from interlock.errors import ProviderError
from interlock.messages import AssistantMessage, StopReason
from interlock.model import Model, ModelRequest, ModelResponse, Stop, TextDelta
from interlock.providers.anthropic import AnthropicModel
from interlock.providers.google import GoogleModel
from interlock.providers.openai import OpenAIChatModel, OpenAIResponsesModel
from interlock.testing import Step, call, calls, reasoning, text
from interlock.testing.conformance import Expected, Transcript, check_model, transcript_of

from .conftest import Run


class Wire(NamedTuple):
    """make: the adapter. path: where its requests go; plain_path: where those that want no stream go, if that is another place."""

    make: Callable[[str, bool], Model]
    path: str
    plain_path: str | None = None


WIRES = {
    "chat": Wire(lambda url, stream: OpenAIChatModel("m", base_url=url, api_key="k", stream=stream), "/v1/chat/completions"),
    "responses": Wire(lambda url, stream: OpenAIResponsesModel("m", base_url=url, api_key="k", stream=stream), "/v1/responses"),
    "anthropic": Wire(lambda url, stream: AnthropicModel("m", base_url=url, api_key="k", stream=stream), "/v1/messages"),
    "google": Wire(
        lambda url, stream: GoogleModel("gemini-3-pro", base_url=url, api_key="k", stream=stream),
        "/v1/models/gemini-3-pro:streamGenerateContent",
        "/v1/models/gemini-3-pro:generateContent",
    ),
}

CALLS = calls(call("c1", "add", {"left": 1, "text": "é🙂"}), call("c2", "ping"), before="Lét me see.")
STEPS: dict[str, tuple[Step, Expected]] = {
    "text": (text("Héllo 🙂 world."), Expected(text="Héllo 🙂 world.", stop=StopReason.STOP, tokens=(10, 5))),
    "calls": (CALLS, Expected(text="Lét me see.", calls=[("add", {"left": 1, "text": "é🙂"}), ("ping", {})], tokens=(10, 5))),
    "reasoning": (reasoning("I think.", then="So."), Expected(text="So.", stop=StopReason.STOP)),
    "length": (text("It is", finish="length"), Expected(text="It is", stop=StopReason.LENGTH)),
    "nothing": (text(""), Expected(stop=StopReason.STOP)),
}


@pytest.mark.timeout(300)  # thousands of replies, one for each byte
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("wire", WIRES)
def test_each_adapter_conforms_streamed_and_not_at_every_split_and_every_cut(run: Run, wire: str, name: str) -> None:
    step, expected = STEPS[name]
    make, path, plain_path = WIRES[wire]
    transcript = transcript_of(step, path=path, plain_path=plain_path, name=f"{wire}: {name}", expected=expected)
    verdict = run(check_model(make, transcript, every=1 if name == "calls" else 7))
    verdict.require()
    assert verdict.plays > 20


# ---- the kit's own eyes ------------------------------------------------------------------------------------


class Faulty:
    """An adapter with one fault. fault: ``(events of a sound one, whether it asked for a stream) -> events``."""

    def __init__(self, inner: Model, fault: Callable[[list[Any]], list[Any]], *, forgives: bool = False) -> None:
        self._inner, self._fault, self._forgives = inner, fault, forgives

    async def stream(self, request: ModelRequest) -> Any:
        events: list[Any] = []
        try:
            async for event in self._inner.stream(request):
                events.append(event)
        except ProviderError:
            if not self._forgives:
                raise
            shown = "".join(event.text for event in events if isinstance(event, TextDelta))
            events.append(ModelResponse(message=AssistantMessage(content=shown), stop=Stop(StopReason.STOP, "stop")))
        for event in self._fault(events):
            yield event

    async def aclose(self) -> None:
        await self._inner.aclose()


STEP, EXPECTED = STEPS["text"]
TRANSCRIPT = transcript_of(STEP, path="/v1/chat/completions", expected=EXPECTED)


def sound(url: str, stream: bool) -> Model:
    return OpenAIChatModel("m", base_url=url, api_key="k", stream=stream)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda events: events[:-1], "0 responses"),
        (lambda events: [*events, events[-1]], "2 responses"),
        (lambda events: [events[-1], *events[:-1]], "there must be one, the last"),
        (lambda events: [*events[:1], *events], "shown was"),
        (lambda events: events[1:], "shown was"),
    ],
)
def test_the_kit_sees_what_is_doubled_lost_or_out_of_order(run: Run, fault: Any, said: str) -> None:
    verdict = run(check_model(lambda url, stream: Faulty(sound(url, stream), fault), TRANSCRIPT, every=50))
    assert not verdict.passed
    with pytest.raises(AssertionError, match=said):
        verdict.require()


def test_the_kit_sees_a_fragment_that_is_taken_for_an_answer(run: Run) -> None:
    make = lambda url, stream: Faulty(sound(url, stream), lambda events: events, forgives=True)  # noqa: E731
    verdict = run(check_model(make, TRANSCRIPT, every=500))
    assert any("which was taken for a reply: the text differ" in failure for failure in verdict.failures)


def test_the_kit_sees_a_wrong_reading_and_an_answer_that_differs_when_it_is_not_streamed(run: Run) -> None:
    wrong = Transcript(name="t", stream=TRANSCRIPT.stream, plain=TRANSCRIPT.plain, expected=Expected(text="Other.", tokens=(1, 1)))
    failures = run(check_model(sound, wrong, every=500)).failures
    assert any("not 'Other.'" in failure for failure in failures)
    assert any("tokens are (10, 5)" in failure for failure in failures)
    other = transcript_of(text("Something else."), path="/v1/chat/completions")
    failures = run(check_model(sound, Transcript(name="t", stream=TRANSCRIPT.stream, plain=other.plain), every=500)).failures
    assert failures == ("plain and streamed: the text differ: 'Something else.' and 'Héllo 🙂 world.'",)


def test_the_kit_sees_a_connection_that_stays_open_after_its_consumer_left(run: Run) -> None:
    class Clings(OpenAIChatModel):
        async def stream(self, request: ModelRequest) -> Any:
            self.held = super().stream(request)
            async for event in self.held:
                yield event

    verdict = run(check_model(lambda url, stream: Clings("m", base_url=url, api_key="k", stream=stream), TRANSCRIPT, every=500))
    assert any("still open after 250 ms" in failure for failure in verdict.failures)
