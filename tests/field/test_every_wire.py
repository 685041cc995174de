"""What users met with one vendor, tried on every wire to which it applies, streamed and not.

Beside the scenarios, which all wires play alike, these are the cases in which each wire has words of its own.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from helpers import limits
from interlock import Agent, AgentRunConfig, FallbackModel, Limits, Outcome, ProviderError, RunResult, UsageError
from interlock.messages import AssistantMessage, FilePart, ImagePart, Message, TextPart, ToolCall, ToolMessage, UserMessage
from interlock.model import Model, ModelRequest
from interlock.testing import Step, WireServer, call, calls, cut, eof, error, raw, reasoning, repeat, text
from scenarios.wires import WIRES
from wire_rules import faults

WIRE = pytest.mark.parametrize("wire", WIRES)
STREAM = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
CALL_IDS = ("call_a", "call_b")


class Board:
    """Tools that keep what they were called with. ``pin`` needs an argument, ``ring`` none; ``slow`` ends after ``fast``."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fast_ended = asyncio.Event()

    def tools(self) -> list[Any]:
        async def pin(note: str) -> str:
            """Pin a note."""
            self.ran.append(f"pin {note}")
            return "pinned"

        async def ring() -> str:
            """Ring."""
            self.ran.append("ring")
            return "rung"

        async def slow() -> str:
            """Slow."""
            await self.fast_ended.wait()
            self.ran.append("slow")
            return "from slow"

        async def fast() -> str:
            """Fast."""
            self.ran.append("fast")
            self.fast_ended.set()
            return "from fast"

        return [pin, ring, slow, fast]


@dataclass
class Talk:
    """What came of it. sent: each request as the wire has it. said: the same in the form of chat completions."""

    results: list[RunResult]
    sent: list[dict[str, Any]]
    said: list[dict[str, Any]]
    ran: list[str]

    @property
    def result(self) -> RunResult:
        return self.results[-1]

    def faults(self) -> list[str]:
        return [fault for body in self.said for fault in faults(body)]

    def results_said(self) -> list[ToolMessage]:
        return [message for message in self.result.messages if isinstance(message, ToolMessage)]


def talk(wire: str, stream: bool, *steps: Step, prompts: tuple[str, ...] = ("Go.",), **config: Any) -> Talk:
    async def main() -> Talk:
        board = Board()
        async with WireServer(list(steps)) as server:
            model = WIRES[wire].model(server, stream)
            run_config = AgentRunConfig(session_id="s", **config)
            async with await Agent.create(model, tools=board.tools(), config=run_config, limits=limits()) as agent:
                results = [await agent.run(prompt) for prompt in prompts]
            bodies = [request.body for request in server.requests]
        return Talk(results, bodies, [WIRES[wire].chat(body) for body in bodies], board.ran)

    return asyncio.run(main())


# ---- what the reply's end and its content say of each other ------------------------------------------------


@WIRE
@STREAM
def test_reasoning_alone_is_told_from_nothing_at_all_and_is_never_sent_as_text(wire: str, stream: bool) -> None:
    thought = talk(wire, stream, repeat(reasoning("A secret plan.")))
    assert (thought.result.outcome, thought.result.reason, thought.result.text) == (Outcome.INCOMPLETE, "reasoning_only", "")
    assert "A secret plan." not in json.dumps(thought.said)
    empty = talk(wire, stream, repeat(text("")))
    assert (empty.result.outcome, empty.result.reason) == (Outcome.INCOMPLETE, "empty_reply")


@WIRE
@STREAM
def test_a_call_that_comes_with_the_stop_reason_of_an_answer_runs(wire: str, stream: bool) -> None:
    played = talk(wire, stream, calls(call("call_a", "ring"), finish="stop"), text("Done."), tool_choice="required")
    assert (played.ran, played.result.require().text) == (["ring"], "Done.")


def _google(*parts: dict[str, Any], **more: Any) -> Step:
    return raw({"candidates": [{"index": 0, "content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", **more}]})


# A vendor's words for "I will not", with something said before it and a call, and with nothing.
REFUSALS: dict[str, dict[str, Step]] = {
    "chat": {
        "content_filter": text("Here is how", finish="content_filter"),
        "content_filter over nothing": text("", finish="content_filter"),
        "content_filter with a call": calls(call("call_a", "ring"), finish="content_filter"),
        "a refusal": raw({"choices": [{"index": 0, "delta": {"refusal": "I cannot."}, "finish_reason": "stop"}]}),
    },
    "responses": {
        "content_filter": text("Here is how", finish="content_filter"),
        "content_filter over nothing": text("", finish="content_filter"),
        "content_filter with a call": calls(call("call_a", "ring"), finish="content_filter"),
        "a refusal": raw({"choices": [{"index": 0, "delta": {"refusal": "I cannot."}, "finish_reason": "stop"}]}),
    },
    "anthropic": {
        "refusal": text("Here is how", finish="refusal"),
        "refusal over nothing": text("", finish="refusal"),
        "refusal with a call": calls(call("call_a", "ring"), finish="refusal"),
    },
    "google": {
        "SAFETY": _google({"text": "Here is how"}, finishReason="SAFETY"),
        "SAFETY over nothing": _google(finishReason="SAFETY"),
        "SAFETY with a call": _google({"functionCall": {"name": "ring", "args": {}}}, finishReason="SAFETY"),
        "a blocked prompt": raw({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}),
    },
}


@STREAM
@pytest.mark.parametrize(("wire", "name"), [(wire, name) for wire, steps in REFUSALS.items() for name in steps])
def test_a_refusal_is_not_asked_again_runs_nothing_and_is_in_no_later_request(wire: str, name: str, stream: bool) -> None:
    played = talk(wire, stream, REFUSALS[wire][name], text("Hello."), prompts=("Do harm.", "Say hello."))
    refused, answered = played.results
    assert (refused.outcome, refused.reason in ("refusal", "content_filter"), played.ran) == (Outcome.REFUSED, True, [])
    assert (answered.require().text, len(played.sent)) == ("Hello.", 2)
    assert [message["role"] for message in played.said[1]["messages"]] == ["user", "user"]
    assert not [word for word in ("Here is how", "I cannot.", "call_a", "functionCall") if word in json.dumps(played.sent[1])]


# ---- arguments -------------------------------------------------------------------------------------------


def _arguments(wire: str, arguments: Any, *names: str) -> Step:
    """A reply with calls whose arguments are said like that; ``""``, where they are an object, leaves them out."""
    if wire != "google":
        return calls(*(call(id, name, arguments) for id, name in zip(CALL_IDS, names, strict=False)))
    parts: list[dict[str, Any]] = [{"name": name} if arguments == "" else {"name": name, "args": arguments} for name in names]
    return _google(*({"functionCall": part} for part in parts))


NOTHING = {"google": ["", None, {}]}
NO_OBJECT = {"google": [[], ["x"], 3, True, "x", '{"note": "x"}']}


@STREAM
@pytest.mark.parametrize(
    ("wire", "arguments"), [(wire, given) for wire in WIRES for given in NOTHING.get(wire, ["", "  \n", "null", '"null"', "{}"])]
)
def test_missing_arguments_run_what_needs_none_and_are_refused_by_what_needs_some(wire: str, arguments: Any, stream: bool) -> None:
    played = talk(wire, stream, _arguments(wire, arguments, "ring", "pin"), text("Done."), text("Hello."), prompts=("Go.", "Hi."))
    rung, pinned = played.results_said()
    assert played.ran == ["ring"]
    assert (rung.failed, pinned.failed, pinned.effect) == (False, True, "none")
    assert "note" in str(pinned.content)
    assert played.faults() == []
    assert [json.loads(one["function"]["arguments"]) for one in played.said[-1]["messages"][1]["tool_calls"]] == [{}, {}]


@STREAM
@pytest.mark.parametrize(
    ("wire", "arguments"),
    [(wire, given) for wire in WIRES for given in NO_OBJECT.get(wire, ["[]", '["x"]', "3", "true", '"x"', "{", '{"note": "x"'])],
)
def test_arguments_that_are_no_object_never_run_and_are_an_object_when_they_go_back(wire: str, arguments: Any, stream: bool) -> None:
    """The last of them is what a router makes of a call that a limit cut, when it says that all is well."""
    played = talk(wire, stream, _arguments(wire, arguments, "ring", "pin"), text("Sorry."), text("Hello."), prompts=("Go.", "Hi."))
    assert played.ran == []
    assert [(message.failed, message.effect) for message in played.results_said()] == [(True, "none")] * 2
    assert played.faults() == []
    assert (played.result.require().text, len(played.sent)) == ("Hello.", 3)


@WIRE
@STREAM
def test_a_call_that_a_limit_cut_says_that_it_was_not_executed(wire: str, stream: bool) -> None:
    step = calls(call("call_a", "ring"), finish="length")
    played = talk(wire, stream, step, text("I see."))
    assert (played.ran, played.result.require().text) == ([], "I see.")
    (told,) = played.results_said()
    assert (told.failed, told.effect) == (True, "none")
    assert "was not executed" in str(played.said[1]["messages"][-1]["content"])


# ---- parallel calls --------------------------------------------------------------------------------------


@WIRE
@STREAM
@pytest.mark.parametrize("ids", [CALL_IDS, ("", ""), ("same", "same")], ids=["ids", "none", "the same"])
def test_results_stand_with_their_calls_in_call_order_whoever_ended_first(wire: str, stream: bool, ids: tuple[str, str]) -> None:
    played = talk(wire, stream, calls(call(ids[0], "slow"), call(ids[1], "fast")), text("Done."))
    assert played.ran == ["fast", "slow"]
    asked, first, second = played.said[1]["messages"][1:]
    assert [one["id"] for one in asked["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    assert [one["function"]["name"] for one in asked["tool_calls"]] == ["slow", "fast"]
    assert (first["content"], second["content"]) == ("from slow", "from fast")
    assert played.faults() == []


@STREAM
@pytest.mark.parametrize(("wire", "key", "kind"), [("anthropic", "content", "tool_result"), ("google", "parts", "functionResponse")])
def test_the_results_of_a_batch_are_one_turn_of_the_user_and_stand_first_in_it(wire: str, key: str, kind: str, stream: bool) -> None:
    asked = calls(call("call_a", "slow"), call("call_b", "fast"), before="Let me see.")
    played = talk(wire, stream, asked, text("Done."), text("Hello."), prompts=("Go.", "Hi."))
    turns = played.sent[2]["messages" if wire == "anthropic" else "contents"]
    them = "assistant" if wire == "anthropic" else "model"
    assert [turn["role"] for turn in turns] == ["user", them, "user", them, "user"]
    kinds = [block.get("type") or next(iter(block)) for block in turns[2][key]]
    assert kinds == [kind, kind]


def history(*ids: str) -> list[Message]:
    asked = AssistantMessage(tool_calls=tuple(ToolCall(id=f"c{n}", name="ring", arguments="{}") for n in range(len(ids))))
    told = [ToolMessage(tool_call_id=id, name="ring", content=f"result {n}") for n, id in enumerate(ids)]
    return [UserMessage(content="Look."), asked, *told]


@WIRE
def test_results_without_ids_are_refused_where_they_could_be_swapped_and_one_for_one_is_sent_with_its_call(wire: str) -> None:
    async def main() -> None:
        async with WireServer([text("I see.")]) as server:
            async with await Agent.create(WIRES[wire].model(server, True), config=AgentRunConfig(session_id="s")) as agent:
                with pytest.raises(UsageError, match="cannot be paired"):
                    await agent.import_messages(history("", ""))
                await agent.import_messages(history(""))
                (await agent.run("Well?")).require()
            (body,) = [WIRES[wire].chat(request.body) for request in server.requests]
        asked, told = body["messages"][1:3]
        assert [one["id"] for one in asked["tool_calls"]] == [told["tool_call_id"]]
        assert told["content"] == "result 0"
        assert faults(body) == []

    asyncio.run(main())


# ---- cuts, retries and fallbacks ---------------------------------------------------------------------------


@WIRE
@STREAM
@pytest.mark.parametrize("other", WIRES)
@pytest.mark.parametrize("end", [cut, eof])
def test_a_second_cut_behind_a_fallback_is_no_answer(wire: str, other: str, end: Any, stream: bool) -> None:
    async def main() -> None:
        half = end(after="The answer is 4")
        async with WireServer([half]) as first, WireServer([end(after="It is fort")]) as second:
            model = FallbackModel([WIRES[wire].model(first, stream), WIRES[other].model(second, stream)])
            async with await Agent.create(model, limits=limits(model_attempts=1)) as agent:
                with pytest.raises(ProviderError) as caught:
                    await agent.run("Go.")
                assert (caught.value.kind, caught.value.retryable) == ("cut", True)
                messages = await agent.session(agent.config.session_id).messages()
            assert [message.content for message in messages if isinstance(message, AssistantMessage) and not message.incomplete] == []
            assert (len(first.requests), len(second.requests)) == (1, 1)

    asyncio.run(main())


# Of how long to wait, in the form that each vendor has for it; and seconds, within bounds.
ASKED: dict[str, tuple[dict[str, str], float | None]] = {
    "seconds": ({"Retry-After": "3"}, 3.0),
    "milliseconds before seconds": ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
    "a date that has passed": ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    "an hour": ({"Retry-After": "3600"}, 3600.0),
    "garbage": ({"Retry-After": "soon"}, None),
}


@WIRE
@STREAM
@pytest.mark.parametrize("name", ASKED)
def test_how_long_a_provider_asks_to_wait_is_read_from_every_vendor(wire: str, stream: bool, name: str) -> None:
    headers, wait = ASKED[name]

    async def main() -> None:
        async with WireServer([error(429, "slow down", headers=headers)]) as server:
            model: Model = WIRES[wire].model(server, stream)
            with pytest.raises(ProviderError, match="slow down") as caught:
                _ = [event async for event in model.stream(ModelRequest(messages=(UserMessage(content="hi"),)))]
            await model.aclose()
        assert (caught.value.status, caught.value.retryable, caught.value.retry_after_s) == (429, True, wait)

    asyncio.run(main())


@WIRE
def test_a_wait_is_kept_by_the_machine_alone_and_one_of_an_hour_ends_the_run_at_once(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def at_once(delay: float, result: Any = None) -> Any:
        slept.extend([delay] if delay else [])
        return await sleep(0, result)

    monkeypatch.setattr("interlock.driver.model_step.asyncio.sleep", at_once)

    async def main(*steps: Step) -> tuple[str, int]:
        async with WireServer(list(steps)) as server:
            async with await Agent.create(WIRES[wire].model(server, True), limits=Limits()) as agent:
                try:
                    said = (await agent.run("Go.")).text
                except ProviderError as failure:
                    said = f"asked for {failure.retry_after_s:g} s"
            return said, len(server.requests)

    assert asyncio.run(main(error(429, headers={"Retry-After": "3"}), text("Hello."))) == ("Hello.", 2)
    assert slept == [3.0]
    assert asyncio.run(main(error(429, headers={"Retry-After": "3600"}))) == ("asked for 3600 s", 1)


# ---- tokens ----------------------------------------------------------------------------------------------


def _anthropic_usage(start: dict[str, Any] | None, *later: dict[str, Any] | None) -> Step:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None}
    frames: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        *({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage} for usage in later),
        {"type": "message_stop"},
    ]
    return raw(*frames)


def _google_usage(*totals: dict[str, Any] | None) -> Step:
    frames: list[dict[str, Any]] = [{"candidates": [{"content": {"parts": [{"text": "Hi"}]}}], "usageMetadata": one} for one in totals]
    return raw(*frames, {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]})


def _responses_usage(usage: dict[str, Any] | None) -> Step:
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Hi"}]}
    response = {"id": "r", "object": "response", "status": "completed", "output": [message], "usage": usage}
    created = {"type": "response.created", "response": {**response, "status": "in_progress", "output": [], "usage": None}}
    return raw(created, {"type": "response.completed", "response": response})


def _gemini(given: int | None, made: int | None) -> dict[str, Any]:
    return {"promptTokenCount": given, "candidatesTokenCount": made}


def _claude(given: int | None, made: int | None) -> dict[str, Any]:
    return {"input_tokens": given, "output_tokens": made}


# Chat completions have theirs in test_usage.
REPORTS: dict[str, tuple[str, Step, tuple[int | None, int | None]]] = {
    "anthropic: at the start and at the end": ("anthropic", _anthropic_usage(_claude(10, 1), {"output_tokens": 5}), (10, 5)),
    "anthropic: cumulative, twice": ("anthropic", _anthropic_usage(_claude(10, 1), {"output_tokens": 3}, _claude(10, 5)), (10, 5)),
    "anthropic: as null": ("anthropic", _anthropic_usage(None, None), (None, None)),
    "anthropic: with a null field": ("anthropic", _anthropic_usage(_claude(10, None), {"output_tokens": None}), (10, None)),
    "anthropic: as zero": ("anthropic", _anthropic_usage(_claude(0, 0), {"output_tokens": 0}), (0, 0)),
    "google: cumulative, on every chunk": ("google", _google_usage(_gemini(10, 1), _gemini(10, 3), _gemini(10, 5)), (10, 5)),
    "google: as null": ("google", _google_usage(None), (None, None)),
    "google: as zero": ("google", _google_usage(_gemini(0, 0)), (0, 0)),
    "responses: at the end": ("responses", _responses_usage(_claude(10, 5)), (10, 5)),
    "responses: as null": ("responses", _responses_usage(None), (None, None)),
    "responses: with a null field": ("responses", _responses_usage(_claude(10, None)), (10, None)),
    "responses: as zero": ("responses", _responses_usage(_claude(0, 0)), (0, 0)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_last_report_of_a_request_counts_once_and_unknown_is_none_and_not_zero(name: str) -> None:
    wire, step, tokens = REPORTS[name]
    played = talk(wire, True, step, step, prompts=("Go.", "Again."))
    assert [result.require().text[:2] for result in played.results] == ["Hi", "Hi"]
    assert [(result.usage.input_tokens, result.usage.output_tokens) for result in played.results] == [tokens] * 2


@WIRE
@STREAM
def test_tokens_are_summed_over_the_requests_of_a_run_and_its_attempts(wire: str, stream: bool) -> None:
    steps = [calls(call("call_a", "ring"), usage=(10, 5)), error(503), text("Done.", usage=(30, 7))]
    usage = talk(wire, stream, *steps).result.usage
    assert (usage.input_tokens, usage.output_tokens, usage.requests, usage.tool_calls) == (40, 12, 3, 1)
    silent = talk(wire, stream, text("Done.", usage=None)).result.usage
    assert (silent.input_tokens, silent.output_tokens) == (None, None)


# ---- streamed and not ------------------------------------------------------------------------------------


def scripts(pieces: int) -> dict[str, list[Step]]:
    """By what is special about it. pieces: into how many chunks texts and arguments are cut."""
    one, two = call("call_a", "pin", {"note": "left"}), call("call_b", "pin", {"note": "right"})
    answer = text("It is 3.", usage=(7, 3), pieces=pieces)
    return {
        "usage beside calls": [calls(one, usage=(100, 20), pieces=pieces), answer],
        "no usage beside calls": [calls(one, usage=None, pieces=pieces), answer],
        "text and calls": [calls(one, two, before="Let me pin.", pieces=pieces), answer],
        "blank text and a call": [calls(one, before="\n\n", pieces=pieces), answer],
        "text up to a stop string": [text("First part. ", usage=(5, 4), pieces=pieces)],
        "an answer that opens with blanks": [text("  \n It is 3.", pieces=pieces)],
        "reasoning and text": [reasoning("Hm, so.", then="It is 3.", pieces=pieces)],
        "a limit in mid-text": [text("It i", finish="length", pieces=pieces), text("s 3.", pieces=pieces)],
        "nothing, then an answer": [text(""), answer],
        "text that is like a call": [text('<tool_call>{"name": "pin"}</tool_call>', pieces=pieces)],
    }


@WIRE
@pytest.mark.parametrize("name", scripts(1))
def test_a_run_is_the_same_streamed_in_one_piece_or_many_and_as_a_whole_reply(wire: str, name: str) -> None:
    def amounts_to(pieces: int, stream: bool) -> Any:
        played = talk(wire, stream, *scripts(pieces)[name], max_tokens=64)
        result = played.result
        said = [body["messages"] for body in played.said]
        return result.outcome, result.reason, result.text, result.messages, result.usage, said

    first = amounts_to(1, True)
    assert all(amounts_to(pieces, stream) == first for pieces, stream in ((4, True), (1, False)))


# ---- files -----------------------------------------------------------------------------------------------

# With a word that is sent of it: its bytes where the wire takes them, otherwise what it is called.
FILES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "an archive": (FilePart(data="UEs=", media_type="application/zip", name="a.zip"), ("a.zip", "UEs=")),
    "a text that is no base64": (FilePart(data="?", media_type="text/plain", name="a.txt"), ("a.txt", '"?"')),
    "a file that is nothing": (FilePart(), ("[file: no description]",)),
    "an image that is nothing": (ImagePart(), ("[image: no description]",)),
}


@WIRE
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_result_that_a_wire_cannot_carry_is_named_and_the_session_goes_on(wire: str, name: str) -> None:
    part, words = FILES[name]

    async def look() -> list[Any]:
        """Look."""
        return [TextPart("See:"), part]

    async def main() -> None:
        async with WireServer([calls(call("call_a", "look")), text("I see."), text("Hello.")]) as server:
            async with await Agent.create(WIRES[wire].model(server, True), tools=[look]) as agent:
                assert (await agent.run("Look.")).require().text == "I see."
                assert (await agent.run("Hi.")).require().text == "Hello."
            sent = json.dumps(server.requests[1].body)
        assert "See:" in sent
        assert any(word in sent for word in words)

    asyncio.run(main())


@WIRE
@pytest.mark.parametrize("name", ["an archive", "a text that is no base64"])
def test_a_file_of_the_user_that_a_wire_cannot_carry_fails_its_own_run_and_no_later_one(wire: str, name: str) -> None:
    part, words = FILES[name]

    async def main() -> None:
        async with WireServer([repeat(text("Hello."))]) as server:
            async with await Agent.create(WIRES[wire].model(server, True)) as agent:
                try:
                    await agent.run([TextPart("See:"), part])
                except UsageError:
                    assert not server.requests
                for prompt in ("Hi.", "And you?"):
                    assert (await agent.run(prompt)).require().text == "Hello."
            first, second = (json.dumps(request.body) for request in server.requests[-2:])
        assert all("See:" in sent and any(word in sent for word in words) for sent in (first, second))

    asyncio.run(main())
