"""Wrong types, empty values and impossible ones in everything that is called before a run."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    Limits,
    RunContext,
    Tool,
    ToolFailure,
    UsageError,
    extension,
    tool,
)
from interlock.extensions.toollog import ToolLog
from interlock.journal import SQLiteJournal, open_journal
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import ScriptedModel, WireServer, text
from interlock.tools import as_tool

from .saying import label, refused

LONE = "\ud835"
NOT_TEXT: list[Any] = [5, b"x", None, ["x"], object()]
NOT_ID: list[Any] = [5, b"x", "", "a\0b", LONE, "x" * 257, "a\nb", ["s"], 1.5, True]


def create(model: Any = None, **options: Any) -> None:
    """An agent that is never made; one that was is closed again, so that the test fails for the right reason."""

    async def main() -> None:
        agent = await Agent.create(ScriptedModel([]) if model is None else model, **options)
        await agent.aclose()

    asyncio.run(main())


async def ping() -> str:
    return "pong"


class Nameless(AgentExtension):
    pass


def extension_with(**attributes: Any) -> AgentExtension:
    return type("Odd", (AgentExtension,), attributes)()


def coroutine_hook() -> AgentExtension:
    async def on_model_request(self: Any, context: Any, request: Any, call_next: Any) -> Any:
        return call_next(request)

    return extension_with(on_model_request=on_model_request)


def generator_hook() -> AgentExtension:
    async def on_tool_call(self: Any, context: Any, call: Any, call_next: Any) -> Any:
        yield await call_next()

    return extension_with(on_tool_call=on_tool_call)


def hook_with_two_parameters() -> AgentExtension:
    async def on_tool_call(self: Any, context: Any, call: Any) -> Any:
        return None

    return extension_with(on_tool_call=on_tool_call)


CREATE: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("a config that is a dict", {"config": {"session_id": "s"}}, ("config", "AgentRunConfig", "dict")),
    ("a config that is its class", {"config": AgentRunConfig}, ("config", "AgentRunConfig")),
    ("limits that are a dict", {"limits": {"requests": 3}}, ("limits", "Limits", "dict")),
    ("limits that are a number", {"limits": 3}, ("limits", "Limits", "int")),
    ("a system prompt that is bytes", {"system_prompt": b"x"}, ("system_prompt", "bytes")),
    ("no system prompt", {"system_prompt": None}, ("system_prompt", "NoneType")),
    ("tools that are one function", {"tools": ping}, ("tools", "list")),
    ("tools that are a name", {"tools": "ping"}, ("tools", "list", "str")),
    ("no tools", {"tools": None}, ("tools", "list", "NoneType")),
    ("a tool that is a name", {"tools": ["ping"]}, ("tool", "function", "ping")),
    ("a tool that is None", {"tools": [None]}, ("tool", "None")),
    ("two tools of one name", {"tools": [ping, ping]}, ("two tools", "ping")),
    ("a lambda", {"tools": [lambda: 1]}, ("lambda", "name")),
    ("extensions that are one", {"extensions": Nameless()}, ("extensions", "list")),
    ("an extension that is a class", {"extensions": [Nameless]}, ("extensions", "Nameless", "instance")),
    ("an extension that is a function", {"extensions": [ping]}, ("extensions", "AgentExtension")),
    ("an extension inside the guards", {"extensions": [extension_with(priority=900)]}, ("priority", "900")),
    ("a priority that is text", {"extensions": [extension_with(priority="first")]}, ("priority", "first")),
    ("a priority that is no number", {"extensions": [extension_with(priority=math.nan)]}, ("priority", "nan")),
    ("a name that is a number", {"extensions": [extension_with(name=5)]}, ("name", "5")),
    ("a name with half a surrogate pair", {"extensions": [extension_with(name=LONE)]}, ("name",)),
    ("tools() that returns None", {"extensions": [extension_with(tools=lambda self: None)]}, ("tools()", "Odd", "NoneType")),
    ("tools() that returns numbers", {"extensions": [extension_with(tools=lambda self: [5])]}, ("Odd", "tools()")),
    ("a model hook that is a coroutine", {"extensions": [coroutine_hook()]}, ("on_model_request", "async generator", "yield")),
    ("a tool hook that is a generator", {"extensions": [generator_hook()]}, ("on_tool_call", "without 'yield'")),
    ("a tool hook without call_next", {"extensions": [hook_with_two_parameters()]}, ("on_tool_call", "call_next")),
    ("without an instance", {"without": [ToolLog()]}, ("without", "default")),
    ("without a name", {"without": ["ToolLog"]}, ("without", "ToolLog")),
    ("without that is a class", {"without": ToolLog}, ("without", "list")),
    ("a journal that is a path of an unknown kind", {"journal": "agent.db"}, ("journal", "agent.db", "sqlite:///")),
    ("a journal that is a number", {"journal": 5}, ("journal", "5")),
    ("a journal that is a class", {"journal": SQLiteJournal}, ("journal", "SQLiteJournal")),
    ("a clock that cannot be asked", {"clock": 5}, ("clock",)),
]


@pytest.mark.parametrize(("options", "words"), [pytest.param(*row[1:], id=row[0]) for row in CREATE])
def test_create_says_which_argument_does_not_fit(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        create(**options)


def test_the_same_extension_twice_is_refused() -> None:
    one = Nameless()
    with refused("twice"):
        create(extensions=[one, one])


class CoroutineModel:
    async def stream(self, request: Any) -> Any:
        return None

    async def aclose(self) -> None:
        pass


MODELS: list[tuple[Any, tuple[str, ...]]] = [
    ("", ("model", "spec")),
    ("gpt", ("gpt", "openai:NAME")),
    ("openai:", ("openai:NAME",)),
    (":x", ("model",)),
    ("nobody:x", ("nobody",)),
    ("openai-compatible:x", ("URL",)),
    ("openai-compatible:x@ftp://host", ("URL", "http")),
    ("ollama:\0", ("model",)),
    (f"ollama:{LONE}", ("model",)),
    (5, ("model", "int", "stream")),
    (b"openai:x", ("model", "bytes")),
    (object(), ("model", "object", "stream")),
    (ScriptedModel, ("model", "stream")),
    (CoroutineModel(), ("CoroutineModel", "stream", "yield")),
]


@pytest.mark.parametrize(("model", "words"), MODELS, ids=[f"{type(model).__name__}-{number}" for number, (model, _) in enumerate(MODELS)])
def test_what_is_no_model_is_refused_with_what_would_be_one(model: Any, words: tuple[str, ...]) -> None:
    with refused(*words):
        create(model)


@pytest.mark.parametrize("name", ["session_id", "run_id", "parent_session_id"])
@pytest.mark.parametrize("value", NOT_ID, ids=label)
def test_an_id_is_printable_text_of_a_reasonable_length(name: str, value: Any) -> None:
    with refused(name):
        AgentRunConfig(**{name: value})


CONFIG: list[tuple[str, Any]] = [
    *(("deadline_s", value) for value in ("1", -1, math.nan, True, [])),
    *(("temperature", value) for value in ("hot", -0.1, math.nan, math.inf, False)),
    *(("top_p", value) for value in ("x", -1, math.inf)),
    *(("max_tokens", value) for value in ("5", 5.5, True, 10**30, 0, -1)),
    *(("seed", value) for value in ("5", 5.5, 10**30)),
    *(("stop", value) for value in (5, [5], {"a": 1}, b"x")),
    *(("tool_choice", value) for value in (5, ["auto"], b"auto")),
    *(("parallel_tool_calls", value) for value in (1, "yes")),
    *(("reasoning_effort", value) for value in (5, b"low")),
    *(("extra", value) for value in ("x", [1], {"a": object()}, {1: object()}, {"messages": []})),
]


@pytest.mark.parametrize(("name", "value"), CONFIG, ids=label)
def test_a_config_names_the_field_that_does_not_fit(name: str, value: Any) -> None:
    with refused(name):
        AgentRunConfig(**{name: value})


@pytest.mark.parametrize("name", sorted(Limits.__struct_fields__))
@pytest.mark.parametrize("value", ["5", -1, math.nan, [], True, b"5"], ids=label)
def test_every_limit_is_a_number_in_its_range(name: str, value: Any) -> None:
    with refused("Limits", name):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["requests", "tool_calls", "result_bytes", "event_buffer"])
@pytest.mark.parametrize("value", [1.5, math.inf, 10**30], ids=label)
def test_a_count_is_a_whole_number_that_can_be_stored(name: str, value: Any) -> None:
    with refused("Limits", name):
        Limits(**{name: value})


def positional(**kinds: Any) -> Any:
    def fn(*args: Any, **kwargs: Any) -> None: ...

    return fn


TOOLS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("a name that is a number", {"name": 5}, ("name",)),
    ("an empty name", {"name": ""}, ("name",)),
    ("a name with a blank", {"name": "a b"}, ("name", "a_b")),
    ("a name with NUL", {"name": "a\0b"}, ("name",)),
    ("a name with half a surrogate pair", {"name": LONE}, ("name",)),
    ("a name that is too long", {"name": "x" * 65}, ("name", "64")),
    ("a description that is bytes", {"description": b"x"}, ("description",)),
    ("parallel that is a word", {"parallel": "no"}, ("parallel",)),
    ("on_crash that is unknown", {"on_crash": "ignore"}, ("on_crash", "report", "rerun")),
    ("no time at all", {"timeout_s": 0}, ("timeout_s",)),
    ("a negative time", {"timeout_s": -1}, ("timeout_s",)),
    ("time without end", {"timeout_s": math.inf}, ("timeout_s",)),
    ("a time that is no number", {"timeout_s": math.nan}, ("timeout_s",)),
    ("a time that is text", {"timeout_s": "5"}, ("timeout_s",)),
    ("reconcile that cannot be called", {"reconcile": 5}, ("reconcile",)),
    ("available that cannot be called", {"available": True}, ("available",)),
    ("network that is a number", {"network": 1}, ("network",)),
    ("requires_approval that is None", {"requires_approval": None}, ("requires_approval",)),
]


@pytest.mark.parametrize(("options", "words"), [pytest.param(*row[1:], id=row[0]) for row in TOOLS])
def test_a_tool_names_the_option_that_does_not_fit(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        tool(ping, **options)


def test_what_cannot_be_a_tool_is_refused_where_it_is_made() -> None:
    for odd in [*NOT_TEXT, "ping", {}, positional()]:
        with refused():
            as_tool(odd)
    with refused("tool already"):
        tool(tool(ping))
    with refused("schema"):
        Tool.from_schema(name="x", parameters={"type": "string"})
    with refused("schema"):
        Tool.from_schema(name="x", parameters=[])  # pyright: ignore[reportArgumentType]


def test_a_tool_may_name_what_is_assigned_after_it() -> None:
    @tool
    async def closes(context: RunContext) -> str:
        return str(later)

    later = "assigned"
    assert closes.name == "closes"


def test_an_extension_is_made_of_an_async_function_with_three_parameters() -> None:
    with refused("async"):
        extension(lambda context, call, call_next: None)
    with refused("async"):
        extension(5)  # pyright: ignore[reportArgumentType]

    @extension
    async def two(context: Any, call: Any) -> None: ...

    with refused("two", "call_next"):
        create(extensions=[two])


PROVIDER: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("a base URL without a scheme", {"base_url": "host/v1"}, ("base_url", "http")),
    ("a base URL of another kind", {"base_url": "ftp://host/v1"}, ("base_url", "http")),
    ("a base URL that is a number", {"base_url": 5}, ("base_url",)),
    ("a base URL with NUL", {"base_url": "http://ho\0st/v1"}, ("base_url",)),
    ("a base URL with a wrong port", {"base_url": "http://host:99999/v1"}, ("base_url",)),
    ("a key that is a number", {"api_key": 5}, ("api_key",)),
    ("a key with a line break", {"api_key": "a\nb"}, ("api_key",)),
    ("a key with half a surrogate pair", {"api_key": LONE}, ("api_key",)),
    ("headers that are a list", {"headers": ["x"]}, ("headers",)),
    ("a header with a line break", {"headers": {"x": "a\r\nb: c"}}, ("header",)),
    ("a header that is a number", {"headers": {"x": 5}}, ("header",)),
    ("no time to connect", {"connect_timeout_s": 0}, ("connect_timeout_s",)),
    ("time that is text", {"idle_timeout_s": "5"}, ("idle_timeout_s",)),
    ("time that is no number", {"first_byte_timeout_s": math.nan}, ("first_byte_timeout_s",)),
    ("stream that is a word", {"stream": "no"}, ("stream",)),
    ("a size that is text", {"response_bytes_max": "5"}, ("response_bytes_max",)),
    ("a proxy that is a number", {"proxy": 5}, ("proxy",)),
    ("another name for max_tokens", {"max_tokens_field": "tokens"}, ("max_tokens_field",)),
]


@pytest.mark.parametrize(("options", "words"), [pytest.param(*row[1:], id=row[0]) for row in PROVIDER])
def test_the_provider_names_the_option_that_does_not_fit(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        OpenAIChatModel("m", **{"base_url": "http://127.0.0.1:9/v1", **options})


@pytest.mark.parametrize("name", [*NOT_TEXT, ""], ids=label)
def test_a_model_has_a_name(name: Any) -> None:
    with refused("name"):
        OpenAIChatModel(name, base_url="http://127.0.0.1:9/v1")


def test_a_missing_key_names_the_variable_that_would_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    with refused("OPENAI_API_KEY", "api_key"):
        create("openai:gpt-x")


@pytest.mark.parametrize(
    "spec",
    ["", "sqlite", "sqlite:", "sqlite://x", "sqlite:///", "sqlite:///:memory:", "file:x", "sqlite:///a.db?mode=ro", "postgres://x"],
)
def test_a_journal_spec_is_refused_with_the_forms_there_are(spec: str) -> None:
    with refused("journal", "sqlite:///"):
        open_journal(spec)


@pytest.mark.parametrize("spec", ["sqlite:////tmp/a%00b.db", "sqlite:////tmp/\0.db", "sqlite:////tmp/\ud835.db"], ids=label)
def test_a_journal_spec_that_is_no_file_name_is_refused(spec: str) -> None:
    with refused("journal"):
        create(journal=spec)


def test_a_failure_and_a_pause_take_what_they_say_they_take() -> None:
    with refused("effect", "banana"):
        ToolFailure("x", effect="banana")  # pyright: ignore[reportArgumentType]
    assert str(ToolFailure("")) == ""


def test_the_decision_of_a_layer_is_never_lost_to_its_type() -> None:
    """Whatever a Suspended asks and a Stop holds, the run ends in a result, not in a TypeError."""
    from interlock import Stop, Suspended

    async def main(value: Any) -> str:
        @extension
        async def decides(context: Any, call: Any, call_next: Any) -> Any:
            return value

        from interlock.testing import call, calls

        model = ScriptedModel([calls(call("c1", "ping", {})), text("done")])
        async with await Agent.create(model, tools=[ping], extensions=[decides]) as agent:
            return (await agent.run("Go.")).outcome.name

    for question in ("", "a\0b", LONE, 5, None, ["x"], "x" * 10**6):
        assert asyncio.run(main(Suspended(question))) == "WAITING"  # pyright: ignore[reportArgumentType]
    for result in ("", "a\0b", LONE, 5, None, [LONE], {"a": 1}, math.nan):
        assert asyncio.run(main(Stop(result))) == "COMPLETED"
    assert asyncio.run(main(Stop(object()))) == "COMPLETED"


def test_a_server_can_only_be_asked_for_its_address_while_it_runs() -> None:
    with pytest.raises(UsageError, match="async with"):
        WireServer([]).base_url  # noqa: B018
