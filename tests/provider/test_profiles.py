"""Profiles: what each endpoint that speaks chat completions is sent, and where its key goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock import Agent, AgentRunConfig
from interlock.agent.models import model_of, vendors
from interlock.errors import UsageError
from interlock.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage, WireCopy
from interlock.model import ModelRequest, ModelResponse, ModelSettings, ToolSpec
from interlock.providers.chat_request import ChatRequestWriter
from interlock.providers.openai import OpenAIChatModel
from interlock.providers.profiles import GENERIC, PROFILES, Profile, profile_of
from interlock.testing import WireServer, call, calls, raw, reasoning, text

from .conftest import Run

ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})
NOW = ToolSpec(name="now", description="Now.", parameters={"type": "object", "properties": {}})


def body(
    profile: Profile | str, *messages: Message, tools: tuple[ToolSpec, ...] = (), settings: ModelSettings | None = None
) -> dict[str, Any]:
    chosen = profile if isinstance(profile, Profile) else PROFILES[profile]
    writer = ChatRequestWriter("m", stream=True, max_tokens_field=chosen.max_tokens_field, profile=chosen)
    return json.loads(writer.body(ModelRequest(messages=messages, tools=tools, settings=settings or ModelSettings()), "owner"))


def asked(id: str = "c1", **more: Any) -> AssistantMessage:
    return AssistantMessage(tool_calls=(ToolCall(id=id, name="add", arguments="{}"),), **more)


def answered(id: str = "c1") -> ToolMessage:
    return ToolMessage(tool_call_id=id, name="add", content="2")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for profile in PROFILES.values():
        for name in profile.key_variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://mine.openai.azure.com/openai/v1", "azure"),
        ("https://openrouter.ai.evil.example/v1", "openai-compatible"),
        ("https://evil-openrouter.ai/v1", "openai-compatible"),
        ("http://127.0.0.1:11434/v1", "openai-compatible"),
        ("http://[", "openai-compatible"),
    ],
)
def test_a_profile_is_chosen_by_the_host_and_by_nothing_that_only_looks_like_it(url: str, name: str) -> None:
    assert profile_of(None, url).name == name


def test_a_profile_can_be_named_or_made() -> None:
    own = Profile(name="mine", seed_field="zufall")
    assert profile_of("ollama", "https://api.deepseek.com") is PROFILES["ollama"]
    assert profile_of(own, "https://api.deepseek.com") is own
    assert body(own, UserMessage(content="u"), settings=ModelSettings(seed=1))["zufall"] == 1
    with pytest.raises(UsageError, match="there is none of that name; there are openai, deepseek"):
        OpenAIChatModel("m", base_url="http://127.0.0.1:9/v1", profile="nobody")


@pytest.mark.parametrize("vendor", [name for name, profile in PROFILES.items() if profile.url])
def test_each_profile_is_a_vendor_whose_key_is_asked_for_by_its_name(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = PROFILES[vendor]
    for name in profile.key_variables:
        with pytest.raises(UsageError, match=name):
            model_of(f"{vendor}:m")
        monkeypatch.setenv(name, "sk-own")
    model = model_of(f"{vendor}:some@model")
    assert isinstance(model, OpenAIChatModel)
    assert (model.name, model.base_url) == ("some@model", profile.url)
    sent = {name.lower(): value for name, value in model._http.headers.items()}
    assert sent.get("authorization") == ("Bearer sk-own" if profile.key_variables else None)


def test_a_vendors_key_goes_to_the_vendor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-deep")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-open")
    there = OpenAIChatModel("m", base_url="https://api.deepseek.com/v1")
    assert there._http.headers["Authorization"] == "Bearer sk-deep"
    for options in ({"profile": "deepseek"}, {}):
        elsewhere = OpenAIChatModel("m", base_url="https://proxy.example/v1", **options)
        assert "Authorization" not in elsewhere._http.headers
    # OPENAI_BASE_URL is how a user says that OPENAI_API_KEY belongs to that host.
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.deepseek.com")
    assert OpenAIChatModel("m")._http.headers["Authorization"] == "Bearer sk-open"
    assert OpenAIChatModel("m")._writer._profile is PROFILES["deepseek"]  # type: ignore[attr-defined]


def test_azure_gets_its_key_in_a_header_of_its_own_and_needs_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")
    model = model_of("azure:gpt-4o@https://mine.openai.azure.com/openai/v1")
    assert isinstance(model, OpenAIChatModel)
    assert model._http.headers["api-key"] == "azure-key"
    assert "Authorization" not in model._http.headers
    with pytest.raises(UsageError, match="needs a name and a URL"):
        model_of("azure:gpt-4o")
    assert next(vendor.form for vendor in vendors() if vendor.name == "azure") == "azure:NAME@http://host/v1"


@pytest.mark.parametrize(
    ("profile", "fields"),
    [
        ("openai", {"max_completion_tokens": 5, "seed": 1, "reasoning_effort": "low", "stream_options": {"include_usage": True}}),
        ("deepseek", {"max_tokens": 5, "seed": 1, "reasoning_effort": "low", "stream_options": {"include_usage": True}}),
        ("openrouter", {"max_tokens": 5, "seed": 1, "reasoning": {"effort": "low"}, "stream_options": {"include_usage": True}}),
        ("groq", {"max_completion_tokens": 5, "seed": 1, "reasoning_effort": "low", "stream_options": {"include_usage": True}}),
        ("mistral", {"max_tokens": 5, "random_seed": 1, "reasoning_effort": "low"}),
        ("azure", {"max_completion_tokens": 5, "seed": 1, "reasoning_effort": "low", "stream_options": {"include_usage": True}}),
        ("vllm", {"max_tokens": 5, "seed": 1, "reasoning_effort": "low", "stream_options": {"include_usage": True}}),
    ],
)
def test_settings_go_under_the_names_that_the_endpoint_has_for_them(profile: str, fields: dict[str, Any]) -> None:
    made = body(profile, UserMessage(content="u"), settings=ModelSettings(max_tokens=5, seed=1, reasoning_effort="low"))
    assert {name: value for name, value in made.items() if name not in ("model", "stream", "messages")} == fields


def test_where_a_tool_cannot_be_named_the_only_tool_is_required_and_one_of_several_is_refused() -> None:
    named = ModelSettings(tool_choice="add")
    assert body("openai", tools=(ADD, NOW), settings=named)["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert body("lmstudio", tools=(ADD,), settings=named)["tool_choice"] == "required"
    with pytest.raises(UsageError, match="offer that tool alone"):
        body("lmstudio", tools=(ADD, NOW), settings=named)


def test_ids_of_another_provider_have_the_length_that_mistral_takes_alike_in_call_and_result() -> None:
    made, result, own, _ = body("mistral", asked("call_abc_123"), answered("call_abc_123"), asked("D681PevKs"), answered("D681PevKs"))[
        "messages"
    ]
    id = made["tool_calls"][0]["id"]
    assert id == result["tool_call_id"]
    assert (len(id), id.isalnum()) == (9, True)
    assert own["tool_calls"][0]["id"] == "D681PevKs"


# ---- DeepSeek: reasoning goes back where it must, and nowhere else -----------------------------------------------


TALK = (
    UserMessage(content="hello"),
    AssistantMessage(content="Hello.", reasoning="They greet."),
    UserMessage(content="add"),
    asked("c1", reasoning="I must add."),
    answered("c1"),
    asked("c2"),
    answered("c2"),
    AssistantMessage(content="Two.", reasoning="It was two."),
    UserMessage(content="thanks"),
    AssistantMessage(content="Welcome.", reasoning="They thank."),
    UserMessage(content="bye"),
)


def test_deepseek_gets_the_reasoning_of_turns_with_a_tool_call_back_and_of_no_others() -> None:
    messages = body("deepseek", *TALK)["messages"]
    assert [message.get("reasoning_content") for message in messages] == [
        None,
        None,
        None,
        "I must add.",
        None,
        "",
        None,
        "It was two.",
        *[None] * 3,
    ]
    assert all("reasoning_content" not in message for message in messages if message["role"] != "assistant")


def test_deepseek_is_not_told_what_another_vendors_model_thought() -> None:
    theirs = AssistantMessage(
        tool_calls=(ToolCall(id="t1", name="add", arguments="{}"),),
        reasoning="Their secret.",
        wire=WireCopy(api="anthropic", model="m", body="[]"),
    )
    (_, asked, _) = body("deepseek", UserMessage(content="hi"), theirs, ToolMessage(tool_call_id="t1", name="add", content="2"))["messages"]
    assert asked["reasoning_content"] == ""


@pytest.mark.parametrize("profile", [GENERIC, *(one for one in PROFILES.values() if one.name != "deepseek")], ids=lambda one: one.name)
def test_no_other_endpoint_gets_reasoning_as_text(profile: Profile) -> None:
    sent = json.dumps(body(profile, *TALK))
    assert "I must add." not in sent
    assert "They greet." not in sent


def test_a_growing_conversation_is_written_as_if_it_were_written_anew() -> None:
    deepseek = PROFILES["deepseek"]
    writer, scratch = ChatRequestWriter("m", stream=True, max_tokens_field="max_tokens", profile=deepseek), dict[Any, Any]()
    for length in range(1, len(TALK) + 1):
        messages = (SystemMessage(content="Be brief."), *TALK[:length])
        made = json.loads(writer.body(ModelRequest(messages=messages, scratch=scratch), "owner"))
        assert made["messages"] == body(deepseek, *messages)["messages"]


def test_an_agent_on_deepseek_sends_what_was_thought_before_a_call_with_the_call(run: Run) -> None:
    def add(left: int) -> int:
        """Add."""
        return left + 1

    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "I must add."}}]}
    first = raw(thought, *calls(call("c1", "add", {"left": 1})).frames)

    async def main() -> None:
        async with WireServer([first, reasoning("Done?", then="Two."), text("Bye.")]) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", profile="deepseek")
            async with await Agent.create(model, tools=[add]) as agent:
                for prompt in ("Add.", "Thanks."):
                    await agent.run(prompt, config=AgentRunConfig(session_id="s"))
            second, third = (request.body["messages"] for request in server.requests[1:])
            assert [message.get("reasoning_content") for message in second] == [None, "I must add.", None]
            assert [message.get("reasoning_content") for message in third] == [None, "I must add.", None, "Done?", None]

    run(main())


# ---- OpenRouter: reasoning blocks go back as they came -----------------------------------------------------------

FRAGMENTS = [
    [{"type": "reasoning.text", "text": "I must", "index": 0, "format": "anthropic-claude-v1"}],
    [],
    [{"type": "reasoning.text", "text": " add.", "index": 0, "format": "anthropic-claude-v1"}],
    [{"type": "reasoning.text", "signature": "Et0B", "index": 0, "format": "anthropic-claude-v1"}],
    [{"type": "reasoning.encrypted", "data": "gAAA", "index": 1, "id": None}],
]
BLOCKS = [
    {"type": "reasoning.text", "text": "I must add.", "index": 0, "format": "anthropic-claude-v1", "signature": "Et0B"},
    {"type": "reasoning.encrypted", "data": "gAAA", "index": 1, "id": None},
]


@pytest.mark.parametrize("stream", [True, False])
def test_openrouters_reasoning_blocks_go_back_whole_with_their_call_and_not_with_a_changed_one(run: Run, stream: bool) -> None:
    thoughts = [{"choices": [{"index": 0, "delta": {"reasoning_details": one}}]} for one in FRAGMENTS]

    async def main() -> None:
        async with WireServer([raw(*thoughts, *calls(call("c1", "add", {"left": 1})).frames)]) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", profile="openrouter", stream=stream)
            response = [event async for event in model.stream(ModelRequest(messages=(UserMessage(content="u"),)))][-1]
            await model.aclose()
        assert isinstance(response, ModelResponse)
        message = response.message
        assert message.reasoning == "I must add."
        sent = body("openrouter", message)["messages"][0]
        if stream:
            assert sent["reasoning_details"] == BLOCKS
        else:
            assert [block["type"] for block in sent["reasoning_details"]] == ["reasoning.text", "reasoning.encrypted"]
        changed = AssistantMessage(content="More.", tool_calls=message.tool_calls, wire=message.wire)
        assert "reasoning_details" not in body("openrouter", changed)["messages"][0]
        assert "reasoning_details" not in body("deepseek", message)["messages"][0]

    run(main())


@pytest.mark.parametrize("status", [402, 429, 502])
def test_an_error_inside_a_200_has_the_status_that_openrouter_hides_in_its_code(run: Run, status: int) -> None:
    """openrouter.ai/docs, Errors: once a stream has begun the status is 200, and the code is in ``error.code``."""
    from interlock.errors import ProviderError
    from interlock.testing import error_object

    async def main() -> None:
        async with WireServer([error_object(status, "Provider returned error", after="Half", shape="choice")]) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="k", profile="openrouter")
            with pytest.raises(ProviderError) as caught:
                _ = [event async for event in model.stream(ModelRequest(messages=(UserMessage(content="u"),)))]
            await model.aclose()
        assert (caught.value.status, caught.value.retryable) == (status, status != 402)

    run(main())
