"""The sessions of a golden journal: scripted agents that are really run, with a clock and ids that are the same every time.

Each function plays one session in a ``World`` and leaves its rows there. Together they hold every kind of record, and every shape
of it that somebody's journal may hold for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import fields, replace

from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    Allow,
    Deny,
    Edit,
    Fatal,
    Limits,
    ProviderError,
    RunContext,
    Stop,
    Suspended,
    ToolFailure,
    did_not_happen,
    happened,
    tool,
    unknown,
)
from interlock.journal import MemoryJournal
from interlock.journal.memory import MemoryStore
from interlock.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    WireCopy,
)
from interlock.model import ModelRequest, ModelResponse, StopReason
from interlock.model import Stop as StopWith
from interlock.records import HandlerStarted, Record, Row
from interlock.records.redaction import with_texts
from interlock.testing import ScriptedModel, call, calls, cut, error, raw, reasoning, text

SECRET = "golden-secret"


class Priced(ScriptedModel):
    """A model that knows its own price."""

    def cost_usd(self, usage: Usage) -> float:
        return (usage.output_tokens or 0) / 4


class World:
    """Where one session's rows are kept. Its processes come and go: ``agent`` is a new one each time, on what is stored by then."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.store = MemoryStore()
        self._now = 1_700_000_000.0

    def clock(self) -> float:
        self._now = round(self._now + 0.001, 3)
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    async def agent(
        self, *steps: Any, tools: Any = (), extensions: Any = (), system: str = "", run_id: str = "r1", output: Any = None, **limits: Any
    ) -> Agent:
        rows, payloads = self.store.rows, self.store.payloads
        self.store = MemoryStore()
        self.store.rows = {name: list(kept) for name, kept in rows.items()}
        self.store.payloads = {name: dict(kept) for name, kept in payloads.items()}
        bounds = Limits(**{"backoff_s": 0.0, "drain_s": 0.01, **limits})
        config = AgentRunConfig(session_id=self.session_id, run_id=run_id)
        options: dict[str, Any] = {"tools": tools, "extensions": extensions, "system_prompt": system, "clock": self.clock, "output": output}
        return await Agent.create(Priced(list(steps)), config=config, journal=MemoryJournal(self.store), limits=bounds, **options)

    async def crash(self, run: Awaitable[Any], at: asyncio.Event) -> None:
        """Lose the process that runs ``run`` once ``at`` is set: only what is stored then goes on."""
        task = asyncio.ensure_future(run)
        await at.wait()
        store, rows = self.store, {name: list(kept) for name, kept in self.store.rows.items()}
        task.cancel()
        await asyncio.wait({task})
        store.rows = rows

    @property
    def rows(self) -> list[Row]:
        return self.store.rows[self.session_id]


def again(run_id: str) -> AgentRunConfig:
    return AgentRunConfig(run_id=run_id)


@tool
async def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing at {place}"


@tool(parallel=False)
async def pay(invoice: str, euros: int = 5) -> dict[str, Any]:
    """Pay an invoice."""
    return {"paid": invoice, "euros": euros, "note": 'Grüße 🦜 </é>\u2028"\\'}


@tool
async def refuse(why: str) -> str:
    """Always fails, and nothing happened."""
    raise ToolFailure(why, effect="none")


@tool
async def explode() -> str:
    """Raises."""
    raise OSError("the disk is gone")


async def answers(world: World) -> None:
    agent = await world.agent(reasoning("let me think", then="At six."), text("Good night.", usage=None), system="Be brief.")
    async with agent:
        await agent.run("When does the tide turn?")
        await agent.run([TextPart("And this?"), ImagePart(url="https://example.com/x.png", media_type="image/png")], config=again("r2"))  # type: ignore[arg-type]


async def parallel_calls(world: World) -> None:
    class Layers(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            context.note({"seen": call.name, "n": [1, 2.5, None, True]})
            if call.arguments.get("place") == "vetoed":
                raise PermissionError("not there")
            if call.arguments.get("place") == "known":
                return "known already"
            if call.arguments.get("place") == "edited":
                call.arguments["place"] = "elsewhere"
            return await call_next()

    places = ("harbour", "vetoed", "known", "edited")
    batch = [call(f"c{n}", "look", {"place": place}) for n, place in enumerate(places)]
    batch += [call("p", "pay", {"invoice": "A-1"}), call("f", "refuse", {"why": "closed"}), call("x", "explode")]
    async with await world.agent(
        calls(*batch, before="Let me look."), text("Done."), tools=[look, pay, refuse, explode], extensions=[Layers()]
    ) as agent:
        await agent.run("Look everywhere.")


async def refused_calls(world: World) -> None:
    @tool(available=lambda context: False)
    async def hidden() -> str:
        """Never offered."""
        return ""

    first = calls(
        call("a", "nowhere"),
        call("b", "look", '{"place": '),
        call("c", "hidden"),
        call("d", "look", {"place": 5}),
        call("", "look", {"place": "x"}),
    )
    cut_off = calls(call("e", "look", '{"place": "y'), finish="length")
    bad = [calls(call(f"m{n}", "nowhere")) for n in range(4)]
    async with await world.agent(first, cut_off, *bad, tools=[look, hidden]) as agent:
        await agent.run("Try.")


async def questions(world: World) -> None:
    class Ask(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            if context.answer is None:
                return Suspended(f"{call.name} {call.arguments}?", expires_s=60.0 if call.id == "late" else None)
            return await call_next()

    ids = ("yes", "no", "other", "late")
    batch = calls(*(call(id, "pay_any", {"invoice": id}) for id in ids))
    pay_any = tool(pay.handler, name="pay_any")
    options: dict[str, Any] = {"tools": [pay_any], "extensions": [Ask()]}
    async with await world.agent(batch, **options) as agent:
        waiting = await agent.run("Pay.")
    by_id = {question.call.id: question.id for question in waiting.questions}
    async with await world.agent(**options) as agent:
        await agent.answer(by_id["yes"], {"by": "Ann"})
        await agent.answer(by_id["no"], Deny("too much"))
        waiting = await agent.answer(by_id["other"], Edit({"invoice": "B-2", "euros": 1}))
        by_id = {question.call.id: question.id for question in waiting.questions}
    world.pass_time(3600.0)
    async with await world.agent(text("Two were paid."), **options) as agent:
        await agent.answer(by_id["other"])


async def waiting(world: World) -> None:
    class Ask(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if context.answer is not None else Suspended("Really?")

    async with await world.agent(calls(call("a", "pay", {"invoice": "A"})), tools=[pay], extensions=[Ask()]) as agent:
        await agent.run("Pay.")


async def nested_calls(world: World) -> None:
    @tool
    async def both(context: RunContext) -> Any:
        """Makes two calls."""
        first = await context.call_tool("look", {"place": "inside"})
        with suppress(ToolFailure):
            await context.call_tool("refuse", {"why": "not here"})
        return [first]

    async with await world.agent(calls(call("a", "both")), text("Done."), tools=[both, look, refuse]) as agent:
        await agent.run("Do both.")


async def steering(world: World) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    @tool(parallel=False)
    async def wait(n: int) -> str:
        """Waits."""
        inside.set()
        await go_on.wait()
        return f"waited {n}"

    batch = calls(*(call(f"w{n}", "wait", {"n": n}) for n in range(3)))
    async with await world.agent(batch, text("First this."), calls(call("v", "wait", {"n": 9})), text("Then that."), tools=[wait]) as agent:
        run = asyncio.ensure_future(agent.run("Wait."))
        await inside.wait()
        await agent.steer("Be quick.")
        await agent.steer("No, stop.", interrupt="now")
        go_on.set()
        await run
        inside.clear()
        go_on.clear()
        run = asyncio.ensure_future(agent.run("Again.", config=again("r2")))
        await inside.wait()
        await agent.steer("Go on.")
        go_on.set()
        await run


async def continued_answers(world: World) -> None:
    parts = [
        text("The first part, ", finish="length"),
        raw({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
        text("and the last."),
    ]
    endless = [text(f"part {n} ", finish="length") for n in range(3)]
    async with await world.agent(*parts, *endless, continuations=2) as agent:
        await agent.run("Tell a long story.")
        await agent.run("A longer one.", config=again("r2"))


async def reprompts(world: World) -> None:
    pause = [ModelResponse(message=AssistantMessage(content="So far. "), stop=StopWith(StopReason.PAUSE, "pause_turn"))]
    good = [
        text("I will look.", finish="tool_calls"),
        text(""),
        reasoning("hm"),
        calls(call("a", "look", {"place": "x"})),
        pause,
        text("So far. There."),
    ]
    dropped = [text(f"I will look, {n}.", finish="tool_calls") for n in range(4)]
    empty = [text("") for _ in range(3)]
    async with await world.agent(*good, *dropped, *empty, tools=[look]) as agent:
        await agent.run("Look.")
        await agent.run("Look again.", config=again("r2"))
        await agent.run("Say something.", config=again("r3"))


async def refusals(world: World) -> None:
    filtered = calls(call("a", "look", {"place": "x"}), before="I may not ", finish="content_filter")
    refusal = [ModelResponse(message=AssistantMessage(content="No."), stop=StopWith(StopReason.REFUSAL, "refusal"))]
    odd = [ModelResponse(message=AssistantMessage(content="Yes."), stop=StopWith(StopReason.UNKNOWN, "whatever"))]
    async with await world.agent(filtered, refusal, odd, tools=[look]) as agent:
        for number, prompt in enumerate(("First.", "Second.", "Third."), 1):
            await agent.run(prompt, config=again(f"r{number}"))


async def large_results(world: World) -> None:
    @tool
    async def large() -> str:
        """Returns a lot."""
        return "".join(f"line {n} é\n" for n in range(500))

    @tool
    async def picture() -> Any:
        """Returns parts."""
        return [TextPart("a picture"), ImagePart(data="aGFyYm91cg==", media_type="image/png")]

    batch = calls(call("a", "large"), call("b", "picture"))
    read = calls(call("c", "read_result", {"call_id": "a", "offset": 100, "limit": 50}))
    async with await world.agent(batch, read, text("Read."), tools=[large, picture], result_bytes=1024) as agent:
        await agent.run("Read it.")


async def imported(world: World) -> None:
    messages = [
        SystemMessage(content="You were somewhere else."),
        UserMessage(content=(TextPart("Look at"), ImagePart(url="https://example.com/y.png"))),
        AssistantMessage(
            content="", reasoning="hm", tool_calls=(ToolCall(id="a", name="old", arguments="{}"), ToolCall(id="b", name="old"))
        ),
        ToolMessage(tool_call_id="b", name="old", content="B", effect="happened"),
        UserMessage(content="And?"),
    ]
    async with await world.agent(text("I see.")) as agent:
        await agent.import_messages(messages)
        await agent.run("Go on.")


async def late_result(world: World) -> None:
    stop = asyncio.Event()

    @tool(timeout_s=0.01)
    async def slow() -> str:
        """Does not stop when it is told to."""
        while not stop.is_set():
            with suppress(asyncio.CancelledError):
                await stop.wait()
        return "after all"

    @tool(timeout_s=0.01)
    async def wrong() -> str:
        """The same, and fails in the end."""
        raise OSError(await slow.handler())  # type: ignore[misc]

    steps = [calls(call("a", "slow"), call("b", "wrong")), text("They timed out.")]
    async with await world.agent(*steps, tools=[slow, wrong]) as agent:
        await agent.run("Be quick.")
        stop.set()
        while pending := {task for task in agent.parts.background if not task.done()}:
            await asyncio.wait(pending)


def crashing(reached: asyncio.Event, **traits: Any) -> Any:
    """A tool in whose first call the process dies."""
    starts = [0]

    @tool(parallel=False, **traits)
    async def work(n: int) -> str:
        """Works."""
        starts[0] += 1
        if starts[0] == 1:
            reached.set()
            await asyncio.Event().wait()
        return f"worked on {n}"

    return work


def three(name: str = "work") -> Any:
    return calls(*(call(f"w{n}", name, {"n": n}) for n in range(3)))


async def resumed(world: World) -> None:
    reached = asyncio.Event()
    work = crashing(reached)
    async with await world.agent(three(), tools=[work]) as agent:
        await world.crash(agent.run("Work."), reached)
    async with await world.agent(text("Two of three."), tools=[work]) as agent:
        await agent.resume()


async def superseded(world: World) -> None:
    reached = asyncio.Event()
    work = crashing(reached)
    async with await world.agent(three(), tools=[work]) as agent:
        await world.crash(agent.run("Work."), reached)
    async with await world.agent(text("All right."), tools=[work]) as agent:
        await agent.run("Something else.", config=again("r2"))


async def rerun(world: World) -> None:
    reached = asyncio.Event()
    work = crashing(reached, on_crash="rerun")
    async with await world.agent(three(), tools=[work]) as agent:
        await world.crash(agent.run("Work."), reached)
    async with await world.agent(text("All three."), tools=[work]) as agent:
        await agent.resume()


def reconciling(found: Any, **traits: Any) -> Callable[[World], Awaitable[None]]:
    async def play(world: World) -> None:
        async def ask(key: str, arguments: dict[str, Any]) -> Any:
            return found

        reached = asyncio.Event()
        work = crashing(reached, reconcile=ask, **traits)
        async with await world.agent(three(), tools=[work]) as agent:
            await world.crash(agent.run("Work."), reached)
        async with await world.agent(text("Asked."), tools=[work]) as agent:
            await agent.resume()

    return play


async def left_open(world: World) -> None:
    """Nobody has come back yet: the handler of the first call runs, or did."""
    reached = asyncio.Event()
    async with await world.agent(three(), tools=[crashing(reached)]) as agent:
        await world.crash(agent.run("Work."), reached)


async def cancelled(world: World) -> None:
    inside = asyncio.Event()

    @tool(parallel=False)
    async def wait() -> str:
        """Waits for ever."""
        inside.set()
        await asyncio.Event().wait()
        return ""

    async with await world.agent(calls(call("a", "wait"), call("b", "wait")), tools=[wait]) as agent:
        run = asyncio.ensure_future(agent.run("Wait."))
        await inside.wait()
        await agent.cancel()
        await run


async def limits_reached(world: World) -> None:
    loop = [calls(call(f"c{n}", "look", {"place": "x"}), call(f"d{n}", "look", {"place": "y"})) for n in range(3)]
    async with await world.agent(*loop[:2], tools=[look], requests=2) as agent:
        await agent.run("Look for ever.")
    async with await world.agent(loop[2], tools=[look], tool_calls=1) as agent:
        await agent.run("Once more.", config=again("r2"))
    guard = {"repeated_results": 1, "repeated_failures": 2, "repeated_effects": 3}
    async with await world.agent(loop[0], loop[1], tools=[look], **guard) as agent:
        await agent.run("And again.", config=again("r3"))


async def failures(world: World) -> None:
    async with await world.agent(
        error(429, "slow down", headers={"retry-after": "0"}), cut(after="Half an ans"), text("Whole."), error(400, "no")
    ) as agent:
        await agent.run("Try.")
        with suppress(ProviderError):
            await agent.run("Try again.", config=again("r2"))
    async with await world.agent(text("Now."), error(401, "who are you?")) as agent:
        await agent.resume()
        with suppress(ProviderError):
            await agent.run("And again?", config=again("r3"))


async def layers_around_requests(world: World) -> None:
    class Twice(AgentExtension):
        async def on_model_request(self, context: RunContext, request: Any, call_next: Any) -> Any:
            if context.run_id == "r2":
                raise ValueError("the layer is broken")
            async for _ in call_next(request):
                pass
            async for event in call_next(request):
                yield event

    async with await world.agent(text("First."), text("Second."), extensions=[Twice()]) as agent:
        await agent.run("Say it twice.")
        with suppress(ValueError):
            await agent.run("Fail.", config=again("r2"))


async def stopped(world: World) -> None:
    class Stopper(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            if call.arguments["place"] == "fatal":
                raise Fatal("pull the plug")
            return Stop({"total": 3}) if call.arguments["place"] == "end" else await call_next()

    first = calls(call("a", "look", {"place": "end"}), call("b", "look", {"place": "x"}))
    second = calls(call("c", "look", {"place": "fatal"}), call("d", "look", {"place": "x"}))
    async with await world.agent(first, second, tools=[look], extensions=[Stopper()]) as agent:
        await agent.run("Go.")
        with suppress(Fatal):
            await agent.run("Go.", config=again("r2"))


async def child(world: World) -> None:
    async with await world.agent(text("For my parent.")) as agent:
        await agent.run("Help.", config=AgentRunConfig(run_id="r1", parent_session_id="answers"))


class Redact(AgentExtension):
    def redact(self, record: Record) -> Record:
        return with_texts(record, lambda text: text.replace(SECRET, "[redacted]"))


async def redacted(world: World) -> None:
    reached = asyncio.Event()

    @tool(parallel=False)
    async def log_in(key: str) -> str:
        """Logs in, the second time for ever."""
        if reached.is_set() or key == "harmless":
            return "in"
        reached.set()
        await asyncio.Event().wait()
        return ""

    batch = calls(call("a", "log_in", {"key": "harmless"}), call("b", "log_in", {"key": SECRET}), call("c", "log_in", {"key": SECRET}))
    options: dict[str, Any] = {"tools": [log_in], "extensions": [Redact()]}
    async with await world.agent(batch, **options) as agent:
        await world.crash(agent.run(f"Use {SECRET}."), reached)
    async with await world.agent(text("Not with that."), **options) as agent:
        await agent.resume()


async def redacted_answers(world: World) -> None:
    class Ask(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next() if context.answer is not None else Suspended("The code?")

    steps = [calls(call("a", "pay", {"invoice": "A"})), text("Paid.")]
    async with await world.agent(*steps, tools=[pay], extensions=[Ask(), Redact()]) as agent:
        waiting = await agent.run("Pay.")
        await agent.answer(waiting.questions[0].id, {"code": SECRET})


async def own_forms(world: World) -> None:
    """What only some providers say: their own form of a message, files, every count of tokens, usage of a failed attempt."""
    usage = Usage(input_tokens=90, output_tokens=9, cached_input_tokens=40, cache_write_tokens=50, reasoning_tokens=5)
    wire = WireCopy(
        api="anthropic", model="m", body='[{"type":"thinking","thinking":"hm","signature":"c2ln"},{"type":"text","text":"Read."}]'
    )
    said = AssistantMessage(content="Read.", reasoning="hm", wire=wire)
    failed = ProviderError("overloaded", retryable=True, kind="overloaded", status=529, usage=Usage(input_tokens=90))
    steps = [[failed], [ModelResponse(message=said, stop=StopWith(StopReason.STOP, "end_turn"), usage=usage)]]
    paper = FilePart(data="JVBERi0=", media_type="application/pdf", name="paper.pdf")
    async with await world.agent(*steps, cost_usd=100.0) as agent:
        await agent.run([TextPart("Read this."), paper, FilePart(url="https://example.com/z.pdf")])  # type: ignore[arg-type]


async def changed_by_layers(world: World) -> None:
    """What a provider and a handler gave is kept where a layer made something else of it."""

    class Change(AgentExtension):
        async def on_model_request(self, context: RunContext, request: ModelRequest, call_next: Any) -> Any:
            if request.turn == 1:  # one answer is thrown away
                async for _ in call_next(request):
                    pass
            async for event in call_next(request):
                if isinstance(event, ModelResponse) and request.turn == 2:
                    event = replace(event, message=replace(event.message, content="Changed."))
                yield event

        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            try:
                value = await call_next()
            except ValueError:
                return "rescued"
            return {"wrapped": value} if call.name != "outer" else value

    @tool
    async def fails() -> str:
        """Fails."""
        raise ValueError("broken")

    @tool
    async def large() -> str:
        """Says much."""
        return "x" * 2000

    @tool
    async def outer(context: RunContext) -> Any:
        """Calls another."""
        return await context.call_tool("pay", {"invoice": "inner"})

    steps = [
        calls(call("a", "fails"), call("b", "large"), call("c", "outer"), call("d", "pay", {"invoice": "D"})),
        text("Thrown away."),
        calls(call("e", "look", {"place": "E"})),
        text("Unchanged."),
    ]
    async with await world.agent(*steps, tools=[fails, large, outer, pay, look], extensions=[Change()], result_bytes=1000) as agent:
        await agent.run("Change what you like.")


async def answers_of_a_form(world: World) -> None:
    """An answer that is not of the form asked for, and then one that is."""
    async with await world.agent(text('{"value": "five"}'), calls(call("f", "final_answer", {"value": 5})), output=int) as agent:
        await agent.run("How many?")


async def forked(world: World) -> None:
    steps = [calls(call("a", "pay", {"invoice": "A"}), call("b", "pay", {"invoice": "B"})), text("Paid."), text("And on.")]
    async with await world.agent(*steps, tools=[pay]) as agent:
        source = agent.session("source")
        await source.run("Pay.")
        rows = await source.records()
        (first, _) = (row.seq for row in rows if isinstance(row.record, HandlerStarted))
        await source.fork(at_seq=first, new_session_id=world.session_id)
        await agent.run("Go on.", config=again("r2"))


async def every_limit(world: World) -> None:
    """A run for which nothing is as it is by default."""

    @tool(parallel=False, on_crash="rerun", timeout_s=9.0, requires_approval=True, network=True)
    async def work() -> str:
        """Works."""
        return "worked"

    bounds: dict[str, Any] = {}
    for field in fields(Limits):
        default = field.default
        bounds[field.name] = 60.0 if default is None and field.name.endswith(("_s", "_usd")) else 99_999 if default is None else default + 1
    async with await world.agent(calls(call("a", "work")), text("Done."), tools=[work], **bounds) as agent:
        (question,) = (await agent.run("Work.")).questions
        await agent.answer(question.id, Allow("session"))


SESSIONS: dict[str, Callable[[World], Awaitable[None]]] = {
    play.__name__.replace("_", "-"): play
    for play in (
        *(answers, parallel_calls, refused_calls, questions, waiting, nested_calls, steering, continued_answers, reprompts, refusals),
        *(large_results, imported, late_result, resumed, superseded, rerun, left_open, cancelled, limits_reached, failures),
        *(
            layers_around_requests,
            stopped,
            child,
            redacted,
            redacted_answers,
            own_forms,
            every_limit,
            changed_by_layers,
            answers_of_a_form,
            forked,
        ),
    )
} | {
    "reconciled": reconciling(happened({"worked": 0})),
    "reconciled-unknown": reconciling(unknown("the server is down")),
    "reconciled-not": reconciling(did_not_happen()),
    "reconciled-not-rerun": reconciling(did_not_happen(), on_crash="rerun"),
}


async def play_all() -> dict[str, World]:
    """Every session, played in a world of its own."""
    logging.disable(logging.CRITICAL)  # vetoes, and what is mended, are part of the script
    try:
        worlds: dict[str, World] = {}
        for name, play in SESSIONS.items():
            worlds[name] = World(name)
            await play(worlds[name])
    finally:
        logging.disable(logging.NOTSET)
    return worlds
