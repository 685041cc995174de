"""Text of every kind, wherever text goes in: it comes back as it was, by one rule, and never breaks a store or a wire.

The rule: NUL stays NUL, an escape that was written out stays written out, halves of a surrogate pair are joined, and a half
that is alone becomes U+FFFD.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock import Agent, AgentRunConfig, Outcome, RunContext, Stop, UsageError, extension, tool
from interlock.messages import AssistantMessage, ImagePart, SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import ScriptedModel, WireServer, call, calls, raw, text

from .saying import label, refused

JOURNALS = ("memory:", "sqlite")
EACH_JOURNAL = pytest.mark.parametrize("journal", JOURNALS)

# What goes in, and what comes out.
TEXTS: list[tuple[str, str]] = [
    ("W\0s\0l\0", "W\0s\0l\0"),
    ("\0", "\0"),
    (r"literal \u0000 and \ud835", r"literal \u0000 and \ud835"),
    ("half \ud835 a pair", "half \ufffd a pair"),
    ("\udc00\ud800", "\ufffd\ufffd"),
    ("two halves \ud83d\ude42", "two halves 🙂"),
    ("🙂𝕏漢", "🙂𝕏漢"),
    ("line\r\nsep\u2028\x85\x1b[31m", "line\r\nsep\u2028\x85\x1b[31m"),
    ("\ufeff\u200d\ufffe\uffff", "\ufeff\u200d\ufffe\uffff"),
    ("'; DROP TABLE log; --", "'; DROP TABLE log; --"),
    ('"}\n\ndata: [DONE]\n\n', '"}\n\ndata: [DONE]\n\n'),
    ("x" * (5 * 2**20), "x" * (5 * 2**20)),
    ("é" * 10**6, "é" * 10**6),
]
EACH_TEXT = pytest.mark.parametrize(("given", "kept"), TEXTS, ids=label)


def spec(journal: str, folder: Path) -> str:
    return journal if journal == "memory:" else f"sqlite:///{folder / 'j.db'}"


def on_agent(model: Any, body: Callable[[Agent], Any], **options: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(20):
            async with await Agent.create(model, **options) as agent:
                return await body(agent)

    return asyncio.run(main())


@EACH_JOURNAL
@EACH_TEXT
def test_a_prompt_comes_back_from_the_journal_as_it_was(given: str, kept: str, journal: str, tmp_path: Path) -> None:
    model = ScriptedModel([text("fine")])

    async def body(agent: Agent) -> None:
        result = await agent.run(given)
        assert result.messages[0] == UserMessage(content=kept)
        assert await agent.messages(result.session_id) == result.messages
        assert model.bodies[0]["messages"][0] == {"role": "user", "content": kept}  # pyright: ignore[reportIndexIssue]

    on_agent(model, body, journal=spec(journal, tmp_path))


@EACH_JOURNAL
@EACH_TEXT
def test_a_result_comes_back_from_the_journal_as_it_was(given: str, kept: str, journal: str, tmp_path: Path) -> None:
    async def says() -> str:
        return given

    model = ScriptedModel([calls(call("c1", "says", {})), text("fine")])

    async def body(agent: Agent) -> None:
        result = await agent.run("Go.")
        message = result.messages[2]
        assert isinstance(message, ToolMessage)
        assert not message.failed
        assert message.content == kept or len(kept) > 60_000
        assert await agent.messages(result.session_id) == result.messages

    on_agent(model, body, tools=[says], journal=spec(journal, tmp_path))


@EACH_JOURNAL
@EACH_TEXT
def test_an_argument_reaches_the_handler_as_it_was(given: str, kept: str, journal: str, tmp_path: Path) -> None:
    seen: list[str] = []

    async def hears(what: str, more: list[str]) -> str:
        seen.extend([what, *more])
        return "heard"

    arguments = json.dumps({"what": given, "more": [given]})
    model = ScriptedModel([calls(call("c1", "hears", arguments)), text("fine")])

    async def body(agent: Agent) -> None:
        result = await agent.run("Go.")
        assert result.outcome is Outcome.COMPLETED
        assert seen == [kept, kept]
        assert await agent.messages(result.session_id) == result.messages

    on_agent(model, body, tools=[hears], journal=spec(journal, tmp_path))


@EACH_JOURNAL
@pytest.mark.parametrize(("given", "kept"), TEXTS[:11], ids=label)
def test_what_raises_layers_notes_and_steering_say_is_kept(given: str, kept: str, journal: str, tmp_path: Path) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    async def raises(context: RunContext) -> str:
        context.emit({given: [given]})
        running.set()
        await go.wait()
        raise ValueError(given)

    @extension
    async def vetoes(context: Any, call: Any, call_next: Any) -> Any:
        context.note({given: [given]})
        if call.name == "vetoed":
            raise PermissionError(given)
        return await call_next()

    async def vetoed() -> None: ...

    async def body(agent: Agent) -> None:
        task = asyncio.create_task(agent.run("Go."))
        await running.wait()
        await agent.steer(given)
        go.set()
        result = await task
        first, second = (message for message in result.messages if isinstance(message, ToolMessage))
        assert kept in first.content
        assert kept in second.content
        assert UserMessage(content=kept) in result.messages
        assert await agent.messages(result.session_id) == result.messages

    model = ScriptedModel([calls(call("c1", "raises", {}), call("c2", "vetoed", {})), text(given or "x", pieces=1)])
    on_agent(model, body, tools=[raises, vetoed], extensions=[vetoes], journal=spec(journal, tmp_path))


@EACH_JOURNAL
def test_a_model_may_write_any_text_id_and_name(journal: str, tmp_path: Path) -> None:
    odd = ["a\0b", "\ud835", "", "x" * 300, "<script>", "c\n1", "🙂", "c1", "c1"]
    rounds = [calls(*(call(id, name, "{") for id in odd for name in odd[:6]), pieces=1), text("fine")]

    async def body(agent: Agent) -> None:
        result = await agent.run("Go.")
        assert result.outcome is Outcome.COMPLETED
        made = [one.id for message in result.messages if isinstance(message, AssistantMessage) for one in message.tool_calls]
        assert len(made) == len(set(made)) > 30
        assert await agent.messages(result.session_id) == result.messages

    on_agent(ScriptedModel(rounds), body, journal=spec(journal, tmp_path))


def test_an_emoji_may_be_torn_apart_by_chunks_and_by_escapes() -> None:
    whole = (
        "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "a🙂b"}, "finish_reason": None}]}, ensure_ascii=False) + "\n\n"
    )
    bytes_of = whole.encode()
    place = bytes_of.index("🙂".encode()) + 2
    halves = [{"choices": [{"index": 0, "delta": {"content": half}, "finish_reason": None}]} for half in ("\ud83d", "\ude42")]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

    async def main() -> str:
        async with WireServer([raw(bytes_of[:place], bytes_of[place:], *halves, end)]) as server:
            async with await Agent.create(OpenAIChatModel("m", base_url=server.base_url)) as agent:
                return (await agent.run("Go.")).text

    assert asyncio.run(main()) == "a🙂b🙂"


NO_PROMPTS: list[Any] = [
    None,
    5,
    b"x",
    {},
    [],
    ["x"],
    "",
    " \n\t",
    UserMessage(content=""),
    UserMessage(content=()),
    AssistantMessage(content="x"),
]
NO_PARTS: list[Any] = [
    [TextPart("")],
    [TextPart(" ")],
    [TextPart(5)],  # pyright: ignore[reportArgumentType]
    [ImagePart()],
    [ImagePart(url=5)],  # pyright: ignore[reportArgumentType]
    [ImagePart(data="AAAA", media_type=5)],  # pyright: ignore[reportArgumentType]
    [TextPart("x"), "y"],
    UserMessage(content=5),  # pyright: ignore[reportArgumentType]
    UserMessage(content=(TextPart(None),)),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize("prompt", [*NO_PROMPTS, *NO_PARTS], ids=label)
def test_what_is_no_prompt_is_refused_before_anything_is_recorded(prompt: Any) -> None:
    async def body(agent: Agent) -> None:
        with refused("prompt"):
            await agent.run(prompt)
        with refused("prompt"):
            async for _ in agent.stream(prompt):
                pass
        with refused("message"):
            await agent.steer(prompt)
        assert await agent.session("s").records() == []

    on_agent(ScriptedModel([]), body, config=AgentRunConfig(session_id="s"))


def test_a_prompt_beyond_the_limit_is_refused_whatever_it_is_made_of() -> None:
    async def body(agent: Agent) -> None:
        for prompt in ("x" * 1001, "é" * 501, [TextPart("x" * 600), TextPart("y" * 600)], UserMessage(content="x" * 2000)):
            with refused("prompt_bytes", "1,000"):
                await agent.run(prompt)

    from interlock import Limits

    on_agent(ScriptedModel([]), body, limits=Limits(prompt_bytes=1000))


def test_parts_with_half_a_surrogate_pair_are_mended() -> None:
    model = ScriptedModel([text("fine")])

    async def body(agent: Agent) -> None:
        await agent.run([TextPart("a\ud835"), ImagePart(url="http://x/\ud835")])

    on_agent(model, body)
    assert "\ufffd" in json.dumps(model.bodies[0], ensure_ascii=False)


IMPORTS: list[Any] = [
    None,
    5,
    "text",
    ["text"],
    [None],
    [{"role": "user", "content": "x"}],
    [UserMessage(content=5)],  # pyright: ignore[reportArgumentType]
    [UserMessage(content=(5,))],  # pyright: ignore[reportArgumentType]
    [SystemMessage(content=None)],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(content=None)],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(content="x", tool_calls=5)],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(content="x", tool_calls=({"id": "c"},))],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(tool_calls=(ToolCall(id=5, name="x"),))],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(tool_calls=(ToolCall(id="c", name="x", arguments={}),))],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(tool_calls=(ToolCall(id="c", name="x"),)), ToolMessage(tool_call_id="c", name="x", content=None)],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(tool_calls=(ToolCall(id="c", name="x"),)), ToolMessage(tool_call_id="c", name="x", content="", effect="banana")],  # pyright: ignore[reportArgumentType]
    [AssistantMessage(tool_calls=(ToolCall(id="c", name="x"),)), ToolMessage(tool_call_id=None, name="x", content="")],  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize("messages", IMPORTS, ids=label)
def test_what_is_no_conversation_is_not_imported(messages: Any) -> None:
    async def body(agent: Agent) -> None:
        with refused("message"):
            await agent.import_messages(messages)
        with refused("message"):
            await agent.session("s").import_messages(messages)
        assert await agent.session("s").records() == []

    on_agent(ScriptedModel([]), body, config=AgentRunConfig(session_id="s"))


@EACH_JOURNAL
def test_an_imported_conversation_with_hostile_text_is_mended_and_stored(journal: str, tmp_path: Path) -> None:
    async def body(agent: Agent) -> None:
        one = ToolCall(id="\ud835", name="a\0b", arguments="{\ud835")
        conversation = [
            UserMessage(content="\0\ud835"),
            AssistantMessage(content="\ud835", reasoning="\ud835", tool_calls=(one, one)),
            ToolMessage(tool_call_id="\ud835", name="a\0b", content=(TextPart("\ud835"), ImagePart(url="\ud835"))),
        ]
        await agent.import_messages(conversation)
        result = await agent.run("Go.")
        assert result.outcome is Outcome.COMPLETED
        assert await agent.messages(result.session_id) == result.messages

    on_agent(ScriptedModel([text("fine")]), body, journal=spec(journal, tmp_path))


@pytest.mark.parametrize(
    "value", [None, object(), 5, float("nan"), {"a": object()}, {1: 2}, b"\xff", "\ud835", "x" * 10**6, 10**30, ...], ids=label
)
@EACH_JOURNAL
def test_an_answer_is_json_or_is_refused_and_the_question_stays_open(value: Any, journal: str, tmp_path: Path) -> None:
    seen: list[Any] = []

    @extension
    async def asks(context: Any, call: Any, call_next: Any) -> Any:
        from interlock import Suspended

        if context.answer is None and not seen:
            seen.append("asked")
            return Suspended("Really?")
        return await call_next()

    async def ping() -> str:
        return "pong"

    async def body(agent: Agent) -> None:
        waiting = await agent.run("Go.")
        question = waiting.questions[0].id
        for wrong in (5, None, b"x", ["x"]):
            with refused("question_id"):
                await agent.answer(wrong, True)  # pyright: ignore[reportArgumentType]
        try:
            result = await agent.answer(question, value)
        except UsageError:
            assert (await agent.resume()).questions == waiting.questions
            with refused("answer", "JSON"):
                await agent.answer(question, value)
            result = await agent.answer(question, True)
        assert result.outcome is Outcome.COMPLETED

    on_agent(
        ScriptedModel([calls(call("c1", "ping", {})), text("fine")]), body, tools=[ping], extensions=[asks], journal=spec(journal, tmp_path)
    )


ODD_RESULTS: list[Any] = [
    None,
    "",
    float("nan"),
    {1: 2},
    {"a": {1, 2}},
    b"\xff\0",
    (TextPart("\ud835"),),
    [TextPart("x"), "y"],
    [TextPart("x"), 5],
    TextPart(5),  # pyright: ignore[reportArgumentType]
    ImagePart(),
    ImagePart(url=5),  # pyright: ignore[reportArgumentType]
    ValueError("not raised"),
    object(),
    type,
    10**400,
    Stop,
    iter([1]),
]


@pytest.mark.parametrize("value", ODD_RESULTS, ids=label)
@pytest.mark.parametrize("place", ["handler", "layer"])
def test_whatever_a_tool_or_a_layer_returns_becomes_one_stored_result(value: Any, place: str, tmp_path: Path) -> None:
    started: list[int] = []

    @tool
    async def odd() -> Any:
        started.append(1)
        return value

    @extension
    async def answers(context: Any, call: Any, call_next: Any) -> Any:
        return value if place == "layer" else await call_next()

    async def body(agent: Agent) -> None:
        result = await agent.run("Go.")
        assert result.outcome is Outcome.COMPLETED
        assert [type(message).__name__ for message in result.messages] == [
            "UserMessage",
            "AssistantMessage",
            "ToolMessage",
            "AssistantMessage",
        ]
        assert await agent.messages(result.session_id) == result.messages
        assert len(started) == (place == "handler")

    model = ScriptedModel([calls(call("c1", "odd", {})), text("fine")])
    on_agent(model, body, tools=[odd], extensions=[answers], journal=f"sqlite:///{tmp_path / 'j.db'}")
