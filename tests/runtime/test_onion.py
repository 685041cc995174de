"""The onion: the order of its layers, and what a layer sees and may change."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from helpers import agent_playing, play, records_of, reply, said
from interlock import Agent, AgentRunConfig, Outcome, UsageError, current_tool_call_id, extension, tool
from interlock.events import StreamRestarted, TextDelta
from interlock.extensions.base import AgentExtension, CallNext, RunContext, ToolInvocation
from interlock.extensions.coerce import CoerceArguments
from interlock.extensions.runtime_tools import RuntimeTools
from interlock.extensions.toollog import ToolLog
from interlock.extensions.urlguard import UrlGuard
from interlock.journal import MemoryJournal
from interlock.messages import SystemMessage, ToolMessage
from interlock.model import ModelRequest, ModelResponse
from interlock.records import ExtensionNoted, HandlerStarted, ModelStepFailed, ModelStepStarted, RunEnded, ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, cut, error, text


class Marks(AgentExtension):
    """Writes into ``log`` before and after, at both boundaries."""

    def __init__(self, name: str, log: list[str], priority: int = 100) -> None:
        self.name = name
        self.log = log
        self.priority = priority

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        self.log.append(f"{self.name} before")
        try:
            return await call_next()
        finally:
            self.log.append(f"{self.name} after")

    async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        self.log.append(f"{self.name} before the model")
        async with aclosing(call_next(request)) as events:
            async for event in events:
                yield event
        self.log.append(f"{self.name} after the model")


def one_call(handler: Any, *layers: Any, **options: Any) -> Any:
    return asyncio.run(play([calls(call("c1", handler.__name__)), text("done")], tools=[handler], extensions=layers, **options))


# ---- who decided -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delegates", [False, True])
def test_a_layer_that_returns_null_where_nothing_came_up_has_decided(delegates: bool) -> None:
    async def act() -> None:
        raise ValueError("no")

    @extension(name="null")
    async def null(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if delegates:
            with contextlib.suppress(ValueError):
                await call_next()

    played = one_call(act, null)
    (record,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (record.message.content, record.message.failed, record.decided_by) == ("null", False, "null")


def test_a_hook_may_return_any_awaitable_and_what_it_leaves_behind_is_stopped_all_the_same() -> None:
    stopped: list[bool] = []

    class Elsewhere(AgentExtension):
        def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            async def leave() -> str:
                self.inner = asyncio.ensure_future(call_next())
                await began.wait()
                return "left"

            return asyncio.ensure_future(leave())

    async def act() -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.append(True)

    began = asyncio.Event()
    played = one_call(act, Elsewhere())
    assert [message.content for message in played.result.messages if isinstance(message, ToolMessage)] == ["left"]
    assert stopped == [True]


# ---- order ---------------------------------------------------------------------------------------------


def test_layers_nest_outer_before_inner_before_operation_inner_after_outer_after() -> None:
    log: list[str] = []

    async def act() -> None:
        log.append("operation")

    one_call(act, Marks("inner", log, 200), Marks("outer", log, 50))
    tool_part = [line for line in log if "model" not in line]
    assert tool_part == ["outer before", "inner before", "operation", "inner after", "outer after"]
    assert [line for line in log if "model" in line][:4] == [
        "outer before the model",
        "inner before the model",
        "inner after the model",
        "outer after the model",
    ]


def test_layers_of_equal_priority_keep_the_order_in_which_they_were_registered_at_every_hook() -> None:
    log: list[str] = []

    async def act() -> None:
        log.append("operation")

    one_call(act, *(Marks(name, log) for name in "abc"))
    assert [line for line in log if line.endswith("before")] == ["a before", "b before", "c before"]
    assert [line for line in log if line.endswith("after")] == ["c after", "b after", "a after"]
    assert [line for line in log if line.endswith("before the model")][:3] == [f"{name} before the model" for name in "abc"]


def test_the_onion_prints_its_layers_outermost_first(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> tuple[str, ...]:
        async with agent_playing([], extensions=[Marks("mine", []), Marks("first", [], -200)]) as agent:
            return agent.onion()

    names = asyncio.run(main())
    printed = capsys.readouterr().out.splitlines()
    assert names[0] == "first"
    assert names.index("CoerceArguments") < names.index("mine") < names.index("RuntimeTools") < names.index("UrlGuard")
    assert set(names) == {"first", "mine", "ToolLog", "CoerceArguments", "RuntimeTools", "UrlGuard"}
    assert [line.split()[1] for line in printed] == list(names)


def test_a_default_can_be_left_out_and_replaced() -> None:
    log = ToolLog()

    class MyGuard(UrlGuard):
        pass

    async def main() -> None:
        async with agent_playing([], without=[UrlGuard, CoerceArguments, RuntimeTools, ToolLog]) as agent:
            assert agent.parts.extensions == ()
        async with agent_playing([], extensions=[log, MyGuard()]) as agent:
            kinds = [type(one) for one in agent.parts.extensions]
            assert log in agent.parts.extensions
            assert kinds.count(ToolLog) == 1
            assert MyGuard in kinds
            assert UrlGuard not in kinds
        for wrong in ([Marks], [AgentExtension], ["UrlGuard"]):
            with pytest.raises(UsageError, match="without"):
                await Agent.create(ScriptedModel([]), without=wrong)

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [object(), Marks, "Marks", lambda: None])
def test_what_is_no_extension_is_refused(wrong: Any) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="extensions"):
            await Agent.create(ScriptedModel([]), extensions=[wrong])

    asyncio.run(main())


def test_a_layer_of_the_users_cannot_lie_inside_the_guards_and_no_instance_can_be_there_twice() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="900"):
            await Agent.create(ScriptedModel([]), extensions=[Marks("deep", [], 900)])
        one = Marks("one", [])
        with pytest.raises(UsageError, match="twice"):
            await Agent.create(ScriptedModel([]), extensions=[one, one])

    asyncio.run(main())


def test_hooks_that_are_not_overridden_are_left_out_of_the_onion() -> None:
    class Nothing(AgentExtension):
        pass

    class OnlyTools(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            return await call_next()

    async def main() -> None:
        defaults = [ToolLog, CoerceArguments, RuntimeTools, UrlGuard]
        async with agent_playing([], extensions=[Nothing(), OnlyTools()], without=defaults) as agent:
            parts = agent.parts
            assert [len(hooks) for hooks in (parts.tool_layers, parts.model_layers, parts.recorders, parts.folders)] == [1, 0, 0, 0]

    asyncio.run(main())


# ---- names -----------------------------------------------------------------------------------------------


def test_a_name_can_be_set_without_calling_super_and_is_the_class_name_otherwise() -> None:
    class Plain(AgentExtension):
        def __init__(self) -> None:
            self.unrelated = 1

    class Named(AgentExtension):
        def __init__(self) -> None:
            self.name = "mine"

    class ClassNamed(AgentExtension):
        name = "of the class"

    assert (Plain().name, Named().name, ClassNamed().name) == ("Plain", "mine", "of the class")
    plain = Plain()
    plain.name = "later"
    assert (plain.name, Plain().name) == ("later", "Plain")


def test_an_extension_is_made_of_one_function() -> None:
    @extension
    async def on_tools(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        """Wrap tool calls."""
        return [await call_next(), "wrapped"]

    @extension(priority=50, name="model side")
    async def on_model(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        messages = (*request.messages, SystemMessage(content="Be brief."))
        async for event in call_next(replace(request, messages=messages)):
            yield event

    async def act() -> str:
        return "acted"

    assert isinstance(on_tools, AgentExtension)
    assert (on_tools.name, on_tools.priority, on_model.name, on_model.priority) == ("on_tools", 100, "model side", 50)
    played = one_call(act, on_tools, on_model)
    (message,) = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert message.content == '["acted","wrapped"]'
    assert all(said(body)[-1] == ("system", "Be brief.") for body in played.bodies)
    for wrong in (lambda context, call, call_next: None, 7, "x"):
        with pytest.raises(UsageError, match="extension"):
            extension(wrong)


# ---- parallel calls -------------------------------------------------------------------------------------


def test_two_parallel_calls_run_two_complete_chains_in_two_tasks() -> None:
    tasks: dict[str, set[Any]] = {"a": set(), "b": set()}
    together = asyncio.Barrier(2)

    class Meet(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            tasks[call.id].add(asyncio.current_task())
            await together.wait()
            result = await call_next()
            await together.wait()
            tasks[call.id].add(asyncio.current_task())
            return f"{call.id}:{result}"

    async def act(n: int) -> int:
        await together.wait()
        tasks["ab"[n]].add(asyncio.current_task())
        return n

    steps = [calls(call("a", "act", {"n": 0}), call("b", "act", {"n": 1})), text("done")]
    one, two = Meet(), Meet()
    two.name = "second"
    played = asyncio.run(play(steps, tools=[act], extensions=[one, two]))
    assert [m.content for m in played.result.messages if isinstance(m, ToolMessage)] == ["a:a:0", "b:b:1"]
    assert len(tasks["a"]) == len(tasks["b"]) == 1
    assert tasks["a"] != tasks["b"]


# ---- who am I ----------------------------------------------------------------------------------------------


def test_the_id_of_the_call_is_known_in_every_layer_in_the_handler_and_in_its_thread_and_nowhere_else() -> None:
    seen: dict[str, list[Any]] = {"a": [], "b": []}
    outside: list[Any] = []

    class Look(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            seen[call.id].append(current_tool_call_id())
            result = await call_next()
            seen[call.id].append(current_tool_call_id())
            return result

        async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
            outside.append(current_tool_call_id())
            async for event in call_next(request):
                yield event

    async def act(where: str) -> None:
        seen[where].append(current_tool_call_id())
        await asyncio.sleep(0)
        seen[where].append(await asyncio.create_task(ask()))

    async def ask() -> Any:
        return current_tool_call_id()

    def act_in_a_thread(where: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen[where].append(current_tool_call_id())

    async def main() -> None:
        steps = [calls(call("a", "act", {"where": "a"}), call("b", "act_in_a_thread", {"where": "b"})), text("done")]
        async with agent_playing(steps, tools=[act, act_in_a_thread], extensions=[Look(), replace_name(Look())]) as agent:
            await agent.run("go")
            outside.append(current_tool_call_id())

    asyncio.run(main())
    assert seen == {"a": ["a"] * 6, "b": ["b"] * 5}
    assert set(outside) == {None}


def replace_name(layer: AgentExtension) -> AgentExtension:
    layer.name = "second"
    return layer


def test_an_id_that_is_missing_or_already_used_is_replaced_before_anyone_sees_it() -> None:
    ids: list[tuple[str, Any]] = []

    @extension
    async def look(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        ids.append((call.id, current_tool_call_id()))
        return await call_next()

    async def act() -> None:
        pass

    steps = [calls(call("x", "act")), calls(call("x", "act")), calls(call("", "act")), text("done")]
    played = asyncio.run(play(steps, tools=[act], extensions=[look]))
    assert all(layer == task for layer, task in ids)
    assert len({id for id, _ in ids}) == 3
    assert ids[0][0] == "x"
    assert [m.tool_call_id for m in played.result.messages if isinstance(m, ToolMessage)] == [id for id, _ in ids]


VALUE: ContextVar[str] = ContextVar("VALUE", default="unset")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", ["async", "async with a time limit", "thread", "thread with a time limit"])
def test_context_variables_reach_the_handler_and_each_call_has_its_own_copy(count: int, kind: str) -> None:
    seen: list[str] = []

    def note(n: int) -> str:
        seen.append(VALUE.get())
        VALUE.set(f"changed by {n}")
        return VALUE.get()

    async def note_async(n: int) -> str:
        return note(n)

    handler = note if kind.startswith("thread") else note_async
    made = tool(name="note", timeout_s=10 if "limit" in kind else None)(handler)

    @extension
    async def span(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        VALUE.set(f"{VALUE.get()}, {call.id}")
        return await call_next()

    async def main() -> None:
        VALUE.set("caller")
        steps = [calls(*(call(f"c{n}", "note", {"n": n}) for n in range(count))), text("done")]
        async with agent_playing(steps, tools=[made], extensions=[span]) as agent:
            result = await agent.run("go")
            assert VALUE.get() == "caller"
            assert [m.content for m in result.messages if isinstance(m, ToolMessage)] == [f"changed by {n}" for n in range(count)]

    asyncio.run(main())
    assert sorted(seen) == [f"caller, c{n}" for n in range(count)]


# ---- what a layer may change -----------------------------------------------------------------------------


def test_the_id_and_the_name_of_a_call_cannot_be_changed() -> None:
    problems: list[str] = []

    @extension
    async def change(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        for attribute in ("id", "name"):
            with pytest.raises(UsageError) as caught:
                setattr(call, attribute, "other")
            problems.append(str(caught.value))
        with pytest.raises(UsageError):
            call.arguments = "no dictionary"  # type: ignore[assignment]
        with pytest.raises(TypeError):
            call.original_arguments["n"] = 5  # type: ignore[index]
        with pytest.raises(AttributeError):
            call.original_arguments = {}  # type: ignore[misc]
        return await call_next()

    ran: list[int] = []

    async def act() -> None:
        ran.append(1)

    played = one_call(act, change)
    assert played.result.outcome is Outcome.COMPLETED
    assert ran == [1]
    assert "call_tool" in problems[1]


@pytest.mark.parametrize("how", ["mutate", "assign", "assign and mutate"])
def test_changed_arguments_count_whichever_way_they_are_changed(how: str) -> None:
    got: list[dict[str, Any]] = []

    @extension(priority=50)
    async def change(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if how != "mutate":
            call.arguments = {**call.arguments}
        if how == "assign":
            call.arguments = {**call.arguments, "n": 2}
        else:
            call.arguments["n"] = 2
        assert call.original_arguments == {"n": 1, "tags": ["a"]}
        call.arguments["tags"].append("b")
        return await call_next()

    @extension(priority=60)
    async def look(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        assert call.arguments == {"n": 2, "tags": ["a", "b"]}
        assert call.original_arguments == {"n": 1, "tags": ["a"]}
        return await call_next()

    async def act(n: int, tags: list[str]) -> None:
        got.append({"n": n, "tags": tags})

    steps = [calls(call("c", "act", {"n": 1, "tags": ["a"]})), text("done")]
    played = asyncio.run(play(steps, tools=[act], extensions=[change, look]))
    assert got == [{"n": 2, "tags": ["a", "b"]}]
    (started,) = [record for record in played.records if isinstance(record, HandlerStarted)]
    assert started.arguments == '{"n":2,"tags":["a","b"]}'
    sent = played.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert sent == '{"n": 1, "tags": ["a"]}'


def test_arguments_that_a_layer_spoils_are_refused_by_the_final_validation() -> None:
    @extension
    async def spoil(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        call.arguments["n"] = object()
        return await call_next()

    ran: list[int] = []

    async def act(n: int) -> None:
        ran.append(n)

    played = asyncio.run(play([calls(call("c", "act", {"n": 1})), text("done")], tools=[act], extensions=[spoil]))
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ran, ended.code) == ([], "invalid_arguments")


@pytest.mark.parametrize("arguments", ["", "   ", "null", '"null"', "{}"])
def test_missing_blank_and_null_arguments_are_no_arguments(arguments: str) -> None:
    seen: list[Any] = []

    @extension
    async def look(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        seen.append((dict(call.arguments), dict(call.original_arguments)))
        return await call_next()

    async def act() -> None:
        pass

    played = asyncio.run(play([calls(call("c", "act", arguments)), text("done")], tools=[act], extensions=[look]))
    assert seen == [({}, {})]
    assert played.result.outcome is Outcome.COMPLETED


# ---- the model boundary -------------------------------------------------------------------------------------


def test_a_layer_may_edit_the_request_and_the_transcript_does_not_change_by_it() -> None:
    @extension
    async def edit(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        async for event in call_next(replace(request, messages=(*request.messages, SystemMessage(content="Trace.")), tools=())):
            yield event

    async def act() -> None:
        pass

    played = asyncio.run(play([text("hello")], tools=[act], extensions=[edit]))
    assert said(played.bodies[0]) == [("user", "Go."), ("system", "Trace.")]
    assert "tools" not in played.bodies[0]
    assert len(played.result.messages) == 2


def test_a_tool_that_a_layer_took_out_of_the_request_is_not_run_when_the_model_calls_it_all_the_same() -> None:
    @extension
    async def read_only(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        async for event in call_next(replace(request, tools=())):
            yield event

    ran: list[int] = []

    async def act() -> None:
        ran.append(1)

    played = one_call(act, read_only)
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ran, ended.code, ended.effect) == ([], "not_offered", "none")


def test_a_request_that_a_layer_has_made_invalid_is_mended_before_it_is_sent() -> None:
    @extension
    async def forget(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        kept = tuple(m for m in request.messages if not isinstance(m, ToolMessage))
        async for event in call_next(replace(request, messages=kept)):
            yield event

    async def act() -> None:
        pass

    played = one_call(act, forget)
    roles = [message["role"] for message in played.bodies[1]["messages"]]
    assert roles == ["user", "assistant", "tool"]


class Retry(AgentExtension):
    """Tries a second time when the first attempt fails, or gives nothing."""

    async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        try:
            async for event in call_next(request):
                yield event
        except Exception:
            async for event in call_next(request):
                yield event


def test_a_second_call_next_is_a_further_attempt_of_the_same_step_and_counts() -> None:
    played = asyncio.run(play([error(500), text("second", usage=(7, 3))], extensions=[Retry()]))
    result = played.result
    assert (result.text, result.usage.requests, result.usage.input_tokens) == ("second", 2, 7)
    started = [record for record in played.records if isinstance(record, ModelStepStarted)]
    assert [(record.turn, record.attempt) for record in started] == [(0, 0), (0, 1)]
    assert not [record for record in played.records if isinstance(record, ModelStepFailed)]


def test_the_usage_of_every_attempt_counts_although_only_the_last_is_the_answer() -> None:
    @extension
    async def best_of_two(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        async with aclosing(call_next(request)) as first:
            async for _ in first:
                pass
        async for event in call_next(request):
            yield event

    played = asyncio.run(play([text("first", usage=(10, 1)), text("second", usage=(20, 2))], extensions=[best_of_two]))
    usage = played.result.usage
    assert (played.result.text, usage.requests, usage.input_tokens, usage.output_tokens) == ("second", 2, 30, 3)


def test_text_of_an_attempt_that_a_layer_gave_up_is_withdrawn() -> None:
    played = asyncio.run(play([cut(after="Hel"), text("Hello")], extensions=[Retry()]))
    assert played.result.text == "Hello"
    assert played.shown() == "Hello"
    assert len(played.of(StreamRestarted)) == 1


def test_a_layer_may_answer_without_the_model() -> None:
    @extension
    async def cache(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        yield TextDelta("from the cache")
        yield reply("from the cache")[0]

    played = asyncio.run(play([], extensions=[cache]))
    assert (played.result.text, played.shown(), played.bodies) == ("from the cache", "from the cache", [])


def test_a_layers_own_exception_reaches_the_caller_without_a_retry_and_the_session_can_be_resumed() -> None:
    problem = ZeroDivisionError("of the layer")
    broken = [True]

    @extension
    async def fragile(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        async for event in call_next(request):
            yield event
            if broken:
                raise problem

    async def main() -> None:
        async with agent_playing([text("first"), text("second")], extensions=[fragile]) as agent:
            with pytest.raises(ZeroDivisionError) as caught:
                await agent.run("go")
            assert caught.value is problem
            (failed,) = await records_of(agent, ModelStepFailed)
            assert (failed.kind, failed.retryable) == ("layer", False)
            broken.clear()
            result = await agent.resume()
            assert (result.outcome, result.text) == (Outcome.COMPLETED, "second")
            assert len(result.messages) == 2

    asyncio.run(main())


def test_after_a_layers_exception_a_new_run_ends_the_open_one_first() -> None:
    broken = [True]

    @extension
    async def fragile(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        if broken:
            raise ZeroDivisionError
        async for event in call_next(request):
            yield event

    async def main() -> None:
        async with agent_playing([text("second")], extensions=[fragile]) as agent:
            with pytest.raises(ZeroDivisionError):
                await agent.run("go")
            broken.clear()
            assert (await agent.run("again")).text == "second"
            ended = await records_of(agent, RunEnded)
            assert [(one.outcome, one.reason) for one in ended] == [(Outcome.INCOMPLETE, "layer_error"), (Outcome.COMPLETED, "answer")]

    asyncio.run(main())


def test_a_tool_that_the_provider_runs_itself_never_enters_the_tool_boundary() -> None:
    entered: list[str] = []

    @extension(name="tools")
    async def tools(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        entered.append(call.name)
        return await call_next()

    @extension(name="hosted")
    async def hosted(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        async for event in call_next(request):
            if isinstance(event, ModelResponse):
                searched = replace_content(event, f"{event.message.content} (searched the web)")
                yield searched
            else:
                yield event

    played = asyncio.run(play([text("It rains.")], extensions=[tools, hosted]))
    assert played.result.text == "It rains. (searched the web)"
    assert entered == []


def replace_content(response: ModelResponse, content: str) -> ModelResponse:
    return msgspec.structs.replace(response, message=msgspec.structs.replace(response.message, content=content))


def test_one_entry_of_the_model_onion_per_attempt_re_prompts_and_continuations_included() -> None:
    entries: list[tuple[int, int]] = []

    @extension
    async def count(context: RunContext, request: ModelRequest, call_next: Any) -> AsyncIterator[Any]:
        entries.append((request.turn, request.attempt))
        async for event in call_next(request):
            yield event

    steps = [error(500), text("I will.", finish="tool_calls"), text("ab", finish="length"), text("cd")]
    played = asyncio.run(play(steps, extensions=[count]))
    assert played.result.text == "abcd"
    assert entries == [(0, 0), (0, 1), (0, 2), (0, 3)]


# ---- the other hooks -----------------------------------------------------------------------------------------


def test_memory_is_the_fold_of_the_sessions_records_and_survives_the_agent() -> None:
    class Counter(AgentExtension):
        def fold(self, memory: Any, record: Any) -> Any:
            return (memory or 0) + (isinstance(record, ExtensionNoted) and record.extension == self.name)

        async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
            context.note({"call": call.id})
            return [await call_next(), context.memory]

    async def act() -> str:
        return "acted"

    async def main() -> list[Any]:
        journal, contents = MemoryJournal(), []
        for number in range(2):
            model = ScriptedModel([calls(call(f"c{number}", "act")), text("done")])
            config = AgentRunConfig(session_id="s")
            async with await Agent.create(model, config=config, tools=[act], extensions=[Counter()], journal=journal) as agent:
                result = await agent.run("go")
                contents += [m.content for m in result.messages if isinstance(m, ToolMessage)]
        await journal.aclose()
        return contents

    assert asyncio.run(main()) == ['["acted",1]', '["acted",1]', '["acted",2]']


def test_instructions_join_the_system_prompt_and_on_record_sees_every_record(caplog: pytest.LogCaptureFixture) -> None:
    class Polite(AgentExtension):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def instructions(self, context: RunContext) -> str:
            return "Be polite."

        def on_record(self, context: RunContext, record: Any) -> None:
            self.seen.append(type(record).__name__)
            raise ValueError("a recorder that fails")

    polite = Polite()
    played = asyncio.run(play([text("hello")], extensions=[polite], system_prompt="You are a clerk."))
    assert said(played.bodies[0])[0] == ("system", "You are a clerk.\n\nBe polite.")
    assert played.result.outcome is Outcome.COMPLETED
    assert polite.seen == [type(record).__name__ for record in played.records]
    assert "on_record raised" in caplog.text


def test_deps_usage_and_clock_are_what_the_run_was_given() -> None:
    got: list[Any] = []

    @extension
    async def look(context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        got.append((context.deps, context.clock(), context.usage.requests, context.session_id, context.run_id, context.answer))
        return await call_next()

    async def act() -> None:
        pass

    async def main() -> None:
        steps = [calls(call("c", "act")), text("done")]
        async with agent_playing(steps, tools=[act], extensions=[look], clock=lambda: 1234.5) as agent:
            await agent.run("go", config=AgentRunConfig(deps={"db": 1}, run_id="r1"))
            rows = await agent.session("s").records()
            assert {row.at for row in rows} == {1234.5}

    asyncio.run(main())
    assert got == [({"db": 1}, 1234.5, 1, "s", "r1", None)]
