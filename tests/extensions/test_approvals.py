"""Approvals: who is asked, what an answer covers and for how long, what is written, and that whatever is not a yes is a no."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import multiprocessing
import os
import stat
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, looped, play, records_of
from interlock import (
    Agent,
    AgentExtension,
    AgentRunConfig,
    Allow,
    CommandRefused,
    Deny,
    Edit,
    Outcome,
    RunContext,
    Stop,
    Suspended,
    UsageError,
    extension,
    tool,
)
from interlock.extensions.approvals import Approvals, ask
from interlock.extensions.approvals_file import ApprovalsFile
from interlock.extensions.urlguard import UrlGuard
from interlock.journal import MemoryJournal
from interlock.messages import ToolMessage
from interlock.records import SCOPES, HandlerStarted, ToolStepEnded, ToolStepSuspended
from interlock.testing import ScriptedModel, call, calls, text
from reopened import reopened


class Till:
    """Where payments are counted. ``pay`` needs approval, ``look`` does not."""

    def __init__(self) -> None:
        self.paid: list[Any] = []
        self.looked = 0
        self.then: Callable[[], Any] = lambda: None

        @tool(requires_approval=True)
        async def pay(amount: int, to: str | None = "Ann") -> str:
            """Pay."""
            self.paid.append(amount)
            self.then()
            return f"paid {amount}"

        @tool
        async def look() -> str:
            """Look."""
            self.looked += 1
            return "seen"

        self.tools = [pay, look]


def pays(*amounts: int, first: str = "c") -> Any:
    return calls(*(call(f"{first}{n}", "pay", {"amount": amount}) for n, amount in enumerate(amounts)))


def told(result: Any) -> list[ToolMessage]:
    return [message for message in result.messages if isinstance(message, ToolMessage)]


class Policy(AgentExtension):
    """Stands for a policy with a rule that asks, and one that denies an amount whatever anybody has allowed."""

    priority = 100

    def __init__(self, *, denies: int = -1, grants: Any = None, over: int = 0) -> None:
        self.denies, self.grants, self.over = denies, grants, over

    async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
        if call.arguments.get("amount") == self.denies:
            raise PermissionError("the policy says no")
        if call.name != "pay" or call.arguments["amount"] < self.over:
            return await call_next()
        return ask(context, call, question="May the policy's call run?", grants=self.grants) or await call_next()


# ---- who is asked ------------------------------------------------------------------------------------


@looped
async def test_a_tool_that_requires_approval_does_not_run_unasked_although_nobody_has_registered_a_layer() -> None:
    till = Till()
    async with agent_playing([pays(5), text("Paid.")], tools=till.tools) as agent:
        waiting = await agent.run("Go.")
        assert (waiting.outcome, till.paid) == (Outcome.WAITING, [])
        (question,) = waiting.questions
        assert (question.text, question.arguments, question.asked_by) == ("May pay run?", '{"amount":5}', "Approvals")
        assert (await agent.answer(question.id, Allow())).text == "Paid."
    assert till.paid == [5]


@looped
async def test_the_layer_is_added_only_where_a_tool_needs_it_and_it_lies_inside_users_layers(capsys: pytest.CaptureFixture[str]) -> None:
    till = Till()

    @extension(priority=899)
    async def users(context: RunContext, call: Any, call_next: Any) -> Any:
        return await call_next()

    for tools, there in ((till.tools, True), (till.tools[1:], False)):
        async with await Agent.create(ScriptedModel([]), tools=tools, extensions=[users]) as agent:
            names = agent.onion()
            assert ("Approvals" in names) is there
            if there:
                assert names.index("users") < names.index("Approvals") < names.index("UrlGuard")
                assert "Approvals" in capsys.readouterr().out
    async with await Agent.create(ScriptedModel([]), tools=till.tools, without=[Approvals]) as agent:
        assert "Approvals" not in agent.onion()
    own = Approvals(expires_s=5)
    async with await Agent.create(ScriptedModel([]), tools=till.tools, extensions=[own]) as agent:
        assert agent.onion().count("Approvals") == 1


@looped
async def test_a_tool_that_an_extension_brings_keeps_its_extension_when_the_layer_is_added() -> None:
    class Brings(AgentExtension):
        def __init__(self, priority: int, named: str) -> None:
            self.priority, self.named = priority, named

        def fold(self, memory: Any, record: Any) -> Any:
            return self.named

        def tools(self) -> Any:
            async def remembers(context: RunContext) -> str:
                """Says."""
                return str(context.memory)

            return [tool(remembers, name=self.named, requires_approval=True)]

    class Inside(Brings, UrlGuard):
        pass

    layers = [Brings(100, "outside"), Inside(1000, "inside")]
    steps = [calls(call("a", "outside"), call("b", "inside")), text("Done.")]
    async with agent_playing(steps, extensions=layers) as agent:
        waiting = await agent.run("Go.")
        await agent.answer(waiting.questions[0].id)
        result = await agent.answer(waiting.questions[1].id)
    assert [message.content for message in told(result)] == ["outside", "inside"]


WHEN: dict[str, tuple[Callable[..., Any], str | None]] = {
    "True": (lambda context, call: True, "May look run?"),
    "a question": (lambda context, call: f"Really {call.name}?", "Really look?"),
    "False": (lambda context, call: False, None),
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", WHEN)
def test_a_function_decides_whether_a_person_is_asked_and_what(name: str, asynchronous: bool) -> None:
    decides, question = WHEN[name]

    async def later(context: RunContext, call: Any) -> Any:
        await asyncio.sleep(0)
        return decides(context, call)

    till = Till()
    steps = [calls(call("a", "look"))] + ([] if question else [text("Seen.")])
    played = asyncio.run(play(steps, tools=till.tools, extensions=[Approvals(when=later if asynchronous else decides)]))
    assert [asked.text for asked in played.result.questions] == ([question] if question else [])
    assert till.looked == (0 if question else 1)


def test_a_function_cannot_let_a_tool_run_that_requires_approval() -> None:
    till = Till()
    played = asyncio.run(play([pays(5)], tools=till.tools, extensions=[Approvals(when=lambda context, call: False)]))
    assert (played.result.outcome, till.paid) == (Outcome.WAITING, [])


@pytest.mark.parametrize("wrong", ["raises", "None", 1, "empty", "coroutine raises"])
def test_a_function_that_does_not_say_is_a_denial_that_names_it(wrong: Any) -> None:
    def decide(context: RunContext, call: Any) -> Any:
        if wrong == "raises":
            raise KeyError("no such account")
        return {"None": None, "empty": "  "}.get(wrong, wrong)

    async def later(context: RunContext, call: Any) -> Any:
        raise OSError("the directory is away")

    till = Till()
    layer = Approvals(when=later if wrong == "coroutine raises" else decide)
    played = asyncio.run(play([calls(call("a", "look")), text("Not.")], tools=till.tools, extensions=[layer]))
    (message,) = told(played.result)
    assert (till.looked, message.effect, message.failed) == (0, "none", True)
    assert "denied: nobody knows whether a person must be asked: " in str(message.content)
    assert ("later" if wrong == "coroutine raises" else "decide") in str(message.content)
    (ended,) = [record for record in played.records if isinstance(record, ToolStepEnded)]
    assert (ended.code, ended.decided_by) == ("vetoed", "Approvals")


@pytest.mark.parametrize(
    "options",
    [{"when": "yes"}, {"expires_s": float("nan")}, {"scopes": ("for ever",)}, {"scopes": ("once",)}, {"expires_s": "1h"}],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_when_the_layer_is_made(options: Any) -> None:
    with pytest.raises(UsageError):
        Approvals(**options)


# ---- what an answer covers ---------------------------------------------------------------------------


@looped
async def test_a_yes_once_is_for_this_call_alone() -> None:
    till = Till()
    async with agent_playing([pays(5), pays(5, first="d")], tools=till.tools) as agent:
        waiting = await agent.run("Go.")
        again = await agent.answer(waiting.questions[0].id)
    assert (again.outcome, till.paid) == (Outcome.WAITING, [5])


@looped
async def test_a_yes_for_the_session_covers_the_same_arguments_alone_and_survives_reopening() -> None:
    till, journal = Till(), MemoryJournal()
    async with reopened(journal, [pays(5), text("Paid.")], tools=till.tools) as agent:
        waiting = await agent.run("Go.")
        assert waiting.questions[0].scopes == ("session", "tool")
        await agent.answer(waiting.questions[0].id, Allow("session"))
        rows = await agent.session("s").records()
    journal = MemoryJournal()
    log = journal.session("s")
    for row in rows:
        log.append(row.record, at=row.at)
    await log.durable()
    steps = [pays(5, first="d"), pays(6, first="e"), text("Paid.")]
    async with reopened(journal, steps, tools=till.tools) as agent:
        waiting = await agent.run("And again.")
        assert (waiting.outcome, till.paid, waiting.questions[0].arguments) == (Outcome.WAITING, [5, 5], '{"amount":6}')
        await agent.answer(waiting.questions[0].id)
    assert till.paid == [5, 5, 6]


@looped
async def test_a_yes_for_the_tool_covers_whatever_arguments_and_no_other_tool_and_no_other_session() -> None:
    till = Till()

    @tool(requires_approval=True)
    async def refund(amount: int) -> str:
        """Refund."""
        return "refunded"

    steps = [pays(5), pays(6, 7, first="d"), calls(call("r", "refund", {"amount": 5}))]
    model = ScriptedModel([*steps, pays(5)])
    async with await Agent.create(model, tools=[*till.tools, refund], config=AgentRunConfig(session_id="s")) as agent:
        waiting = await agent.run("Go.")
        waiting = await agent.answer(waiting.questions[0].id, Allow("tool"))
        assert till.paid == [5, 6, 7]
        assert [question.call.name for question in waiting.questions] == ["refund"]
        other = await agent.session("other").run("Go.")
        assert (other.outcome, till.paid) == (Outcome.WAITING, [5, 6, 7])
        await agent.session("other").cancel()
        await agent.cancel()


@looped
async def test_what_was_allowed_for_a_session_is_not_allowed_in_its_fork() -> None:
    till = Till()
    async with agent_playing([pays(5), text("Paid."), pays(5, first="d")], tools=till.tools) as agent:
        waiting = await agent.run("Go.")
        await agent.answer(waiting.questions[0].id, Allow("session"))
        fork = await agent.fork(new_session_id="fork")
        result = await fork.run("Again.")
        assert (result.outcome, till.paid) == (Outcome.WAITING, [5])
        await fork.cancel()


@looped
async def test_a_denial_of_a_policy_beats_what_a_person_has_allowed_for_longer() -> None:
    till = Till()
    steps = [pays(5), pays(5, first="d"), text("Not.")]
    layer = Policy()
    async with agent_playing(steps, tools=till.tools, extensions=[layer]) as agent:
        waiting = await agent.run("Go.")
        layer.denies = 5
        result = await agent.answer(waiting.questions[0].id, Allow("tool"))
    assert till.paid == []
    assert all("the policy says no" in str(message.content) for message in told(result))


@looped
async def test_one_yes_is_enough_for_a_policy_and_a_tool_that_both_ask() -> None:
    till = Till()
    async with agent_playing([pays(5), text("Paid.")], tools=till.tools, extensions=[Policy()]) as agent:
        waiting = await agent.run("Go.")
        assert (waiting.questions[0].text, waiting.questions[0].asked_by) == ("May the policy's call run?", "Policy")
        assert (await agent.answer(waiting.questions[0].id)).outcome is Outcome.COMPLETED
    assert till.paid == [5]


@looped
async def test_who_asks_every_time_is_not_answered_by_what_was_allowed_for_longer_elsewhere() -> None:
    till, policy = Till(), Policy(grants=(), over=100)
    async with agent_playing([pays(5), pays(6, 500, first="d"), pays(500, first="e")], tools=till.tools, extensions=[policy]) as agent:
        waiting = await agent.run("Go.")
        waiting = await agent.answer(waiting.questions[0].id, Allow("tool"))
        (question,) = waiting.questions
        assert (till.paid, question.asked_by, question.scopes) == ([5, 6], "Policy", ())
        with pytest.raises(CommandRefused, match=r"does not offer Allow\('tool'\): it takes Allow\(\)"):
            await agent.answer(question.id, Allow("tool"))
        again = await agent.answer(question.id)
        assert (again.outcome, till.paid) == (Outcome.WAITING, [5, 6, 500])
        await agent.cancel()


@looped
async def test_a_layer_that_offers_nothing_longer_takes_no_longer_yes_and_stays_waiting() -> None:
    @extension
    async def simple(context: RunContext, call: Any, call_next: Any) -> Any:
        return await call_next() if context.answer else Suspended("Really?")

    till = Till()
    async with agent_playing([calls(call("a", "look")), text("Seen.")], tools=till.tools, extensions=[simple]) as agent:
        (question,) = (await agent.run("Go.")).questions
        for scope in SCOPES:
            with pytest.raises(CommandRefused, match="does not offer"):
                await agent.answer(question.id, Allow(scope))
        assert (await agent.answer(question.id)).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("scope", ["", "for ever", None, 3])
@looped
async def test_another_scope_is_a_usage_error_and_the_question_stays_open(scope: Any) -> None:
    till = Till()
    async with agent_playing([pays(5), text("Paid.")], tools=till.tools) as agent:
        (question,) = (await agent.run("Go.")).questions
        with pytest.raises(UsageError, match="'once', 'session', 'tool', 'always'"):
            await agent.answer(question.id, Allow(scope))
        await agent.answer(question.id)
    assert till.paid == [5]


@pytest.mark.parametrize("answer", ["go ahead", {"allowed": True}, 1, False, 0, "", []])
@looped
async def test_whatever_is_no_yes_is_a_denial_that_says_what_was_said(answer: Any) -> None:
    till = Till()
    async with agent_playing([pays(5), text("Then not.")], tools=till.tools) as agent:
        (question,) = (await agent.run("Go.")).questions
        result = await agent.answer(question.id, answer)
    assert (result.outcome, till.paid, told(result)[0].effect) == (Outcome.COMPLETED, [], "none")
    assert f"did not say yes: {answer}" in str(told(result)[0].content)


@looped
async def test_what_another_layer_was_told_is_neither_a_yes_nor_a_no() -> None:
    seen: list[Any] = []

    @extension
    async def account(context: RunContext, call: Any, call_next: Any) -> Any:
        seen.append((context.answer, context.asked))
        return await call_next() if context.answer else Suspended("From which account?")

    till = Till()
    async with agent_playing([pays(5), text("Paid.")], tools=till.tools, extensions=[account]) as agent:
        waiting = await agent.run("Go.")
        waiting = await agent.answer(waiting.questions[0].id, "savings")
        assert (waiting.questions[0].text, till.paid) == ("May pay run?", [])
        await agent.answer(waiting.questions[0].id)
    assert till.paid == [5]
    assert seen == [(None, False), ("savings", True), (True, False)]


@looped
async def test_a_change_after_the_answer_voids_it_and_asks_again() -> None:
    till, rate = Till(), [1]

    @extension
    async def converts(context: RunContext, call: Any, call_next: Any) -> Any:
        call.arguments["amount"] *= rate[0]
        return await call_next()

    async with agent_playing([pays(5), text("Paid.")], tools=till.tools, extensions=[converts]) as agent:
        (question,) = (await agent.run("Go.")).questions
        rate[0] = 1000
        waiting = await agent.answer(question.id, Allow("session"))
        assert (till.paid, waiting.questions[0].arguments) == ([], '{"amount":5000}')
        await agent.answer(waiting.questions[0].id)
    assert till.paid == [5000]


@looped
async def test_edited_arguments_are_asked_about_again_unless_they_are_allowed_already() -> None:
    till = Till()
    steps = [pays(5), pays(9, first="d"), pays(9, first="e"), text("Paid.")]
    async with agent_playing(steps, tools=till.tools) as agent:
        waiting = await agent.run("Go.")
        waiting = await agent.answer(waiting.questions[0].id, Edit({"amount": 1}))
        assert (till.paid, waiting.questions[0].arguments) == ([], '{"amount":1}')
        waiting = await agent.answer(waiting.questions[0].id, Allow("session"))
        waiting = await agent.answer(waiting.questions[0].id, Edit({"amount": 1}))
        assert till.paid == [1, 1]
        await agent.answer(waiting.questions[0].id)
    assert till.paid == [1, 1, 9]


@looped
async def test_a_rejected_call_leaves_its_siblings_alone_and_the_order_is_kept() -> None:
    till = Till()
    steps = [calls(call("a", "pay", {"amount": 5}), call("b", "look")), text("One of them.")]
    model = ScriptedModel(steps)
    async with agent_playing(model, tools=till.tools) as agent:
        waiting = await agent.run("Go.")
        assert till.looked == 1
        result = await agent.answer(waiting.questions[0].id, Deny("too much for a Monday"))
    assert (till.paid, till.looked) == ([], 1)
    assert [message.tool_call_id for message in told(result)] == ["a", "b"]
    assert "denied: too much for a Monday" in str(told(result)[0].content)
    assert [message["tool_call_id"] for message in model.bodies[-1]["messages"] if message["role"] == "tool"] == ["a", "b"]


@looped
async def test_another_layer_cannot_have_a_rejected_call_run_after_all() -> None:
    till = Till()

    @extension(priority=50)
    async def insists(context: RunContext, call: Any, call_next: Any) -> Any:
        return await context.call_tool("pay", {"amount": 5}) if call.name == "look" else await call_next()

    steps = [pays(5), calls(call("l", "look")), text("So be it.")]
    async with agent_playing(steps, tools=till.tools, extensions=[insists]) as agent:
        waiting = await agent.run("Go.")
        result = await agent.answer(waiting.questions[0].id, Deny("no"))
        started = await records_of(agent, HandlerStarted)
    assert (result.outcome, till.paid, started) == (Outcome.COMPLETED, [], [])


@looped
async def test_a_nested_call_that_needs_approval_is_refused_and_runs_once_it_is_allowed_for_the_session() -> None:
    till = Till()

    @tool
    async def settle(context: RunContext) -> str:
        """Pays by itself."""
        return await context.call_tool("pay", {"amount": 5})

    steps = [calls(call("a", "settle")), pays(5), calls(call("b", "settle")), text("Paid.")]
    async with agent_playing(steps, tools=[*till.tools, settle]) as agent:
        waiting = await agent.run("Go.")
        refused = told(waiting)[0]
        assert till.paid == []
        assert "cannot wait for a person: pay needs somebody's word, and did not run" in str(refused.content)
        assert not [record for record in await records_of(agent, ToolStepSuspended) if record.key.count("/") > 2]
        result = await agent.answer(waiting.questions[0].id, Allow("session"))
    assert (result.outcome, till.paid) == (Outcome.COMPLETED, [5, 5])


@looped
async def test_a_layer_that_stops_the_run_after_an_approved_call_leaves_a_paired_result() -> None:
    till = Till()

    @extension
    async def stops(context: RunContext, call: Any, call_next: Any) -> Any:
        return Stop(f"that is all: {await call_next()}")

    async with agent_playing([pays(5)], tools=till.tools, extensions=[stops]) as agent:
        waiting = await agent.run("Go.")
        result = await agent.answer(waiting.questions[0].id)
    assert (result.outcome, result.text, till.paid) == (Outcome.COMPLETED, "that is all: paid 5", [5])
    assert [(message.tool_call_id, message.content) for message in told(result)] == [("c0", "that is all: paid 5")]


@looped
async def test_nobody_answering_in_time_is_a_denial_and_a_late_yes_is_refused() -> None:
    till, now = Till(), [1000.0]
    options: dict[str, Any] = {"tools": till.tools, "extensions": [Approvals(expires_s=3600)], "clock": lambda: now[0]}
    async with agent_playing([pays(5), text("Then not.")], **options) as agent:
        (question,) = (await agent.run("Go.")).questions
        assert question.expires_at == 4600.0
        now[0] = 4600.0
        with pytest.raises(CommandRefused, match="has expired, which is a denial"):
            await agent.answer(question.id, Allow("tool"))
        result = await agent.resume()
    assert (result.text, till.paid) == ("Then not.", [])
    assert "nobody answered in time" in str(told(result)[0].content)


@looped
async def test_a_second_answer_is_refused_whatever_it_says() -> None:
    till = Till()
    async with agent_playing([pays(5, 6), text("Paid.")], tools=till.tools) as agent:
        first, second = (await agent.run("Go.")).questions
        await agent.answer(first.id, Deny("no"))
        for answer in (Allow(), Allow("tool"), Edit({"amount": 1}), Deny("again")):
            with pytest.raises(CommandRefused, match="answered already"):
                await agent.answer(first.id, answer)
        await agent.answer(second.id)
    assert till.paid == [6]


# ---- for good ----------------------------------------------------------------------------------------


async def one_question(file: Path, step: Any, answer: Any, *, session: str = "s", tools: Any = None) -> tuple[Any, Till]:
    """A run with this file: its questions are given this answer; the result, and what was paid."""
    till = Till()
    model = ScriptedModel([step, text("Done.")])
    config = AgentRunConfig(session_id=session)
    async with await Agent.create(model, tools=tools or till.tools, config=config, extensions=[Approvals(file=file)]) as agent:
        result = await agent.run("Go.")
        for question in result.questions:
            result = await agent.answer(question.id, answer)
    return result, till


@looped
async def test_a_yes_for_good_is_an_exact_rule_that_a_person_can_review_and_take_out_again(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "approvals.toml"
    result, till = await one_question(file, pays(5), Allow("always"))
    assert (result.outcome, till.paid) == (Outcome.COMPLETED, [5])
    tree = tomllib.loads(file.read_text())
    (rule,) = tree["allow"]
    assert (tree["version"], rule["tool"], rule["exact"]) == (1, "pay", {"amount": 5})
    assert rule["reason"].startswith("a person allowed it for good on 2")
    assert rule["reason"].endswith("in session s")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["approvals.toml"]

    result, till = await one_question(file, pays(5), Deny("asked"), session="later")
    assert (result.questions, till.paid) == ((), [5])
    result, till = await one_question(file, pays(6), Deny("asked"), session="other arguments")
    assert till.paid == []
    file.write_text(file.read_text().partition("[[allow]]")[0])
    result, till = await one_question(file, pays(5), Deny("asked"), session="taken out")
    assert till.paid == []


@looped
async def test_a_rule_that_was_taken_out_is_asked_about_again_in_the_very_session_that_had_it_written(tmp_path: Path) -> None:
    file, till = tmp_path / "approvals.toml", Till()
    steps = [pays(5), pays(5, first="d")]
    async with agent_playing(steps, tools=till.tools, extensions=[Approvals(file=file)]) as agent:
        waiting = await agent.run("Go.")
        assert waiting.questions[0].scopes == SCOPES
        till.then = file.unlink  # a person is quick
        waiting = await agent.answer(waiting.questions[0].id, Allow("always"))
        assert (waiting.outcome, till.paid, file.exists()) == (Outcome.WAITING, [5], False)
        await agent.cancel()


NASTY = {"to": 'a "b" \\ \x1b[2J\u202e\u200b\x7f é 😀\n', "": [1, 2.5, True, [], {"deep": {"x y": -1}}], "big": 10**30}


@looped
async def test_arguments_of_every_kind_are_written_so_that_they_can_be_seen_and_read_back(tmp_path: Path) -> None:
    file = ApprovalsFile(tmp_path / "approvals.toml")
    file.add("pay", NASTY, reason="x")
    written = file.path.read_text()
    assert all(character.isprintable() or character == "\n" for character in written)
    assert tomllib.loads(written)["allow"][0]["exact"] == NASTY
    assert file.allows("pay", NASTY)
    assert not file.allows("pay", {**NASTY, "big": 1e30})
    assert not file.allows("pay2", NASTY)
    file.add("pay", NASTY, reason="again")
    assert file.path.read_text() == written


@looped
async def test_numbers_and_truth_are_not_taken_for_each_other(tmp_path: Path) -> None:
    file = ApprovalsFile(tmp_path / "approvals.toml")
    file.add("pay", {"amount": 1}, reason="x")
    assert file.allows("pay", {"amount": 1})
    assert not any(file.allows("pay", {"amount": other}) for other in (True, 1.0, "1", [1]))
    assert not file.allows("pay", {"amount": 1, "to": "Bob"})
    assert not file.allows("pay", {})
    assert not file.allows("pay", {"amount": object()})


@looped
async def test_arguments_that_a_rule_cannot_hold_are_not_offered_for_good(tmp_path: Path) -> None:
    file, till = tmp_path / "approvals.toml", Till()
    steps = [calls(call("a", "pay", {"amount": 5, "to": None})), text("Paid.")]
    async with agent_playing(steps, tools=till.tools, extensions=[Approvals(file=file)]) as agent:
        (question,) = (await agent.run("Go.")).questions
        assert question.scopes == ("session", "tool")
        with pytest.raises(CommandRefused, match="does not offer"):
            await agent.answer(question.id, Allow("always"))
        await agent.answer(question.id)
    assert not file.exists()


@looped
async def test_comments_and_rules_of_a_person_are_kept_when_another_is_added(tmp_path: Path) -> None:
    path = tmp_path / "approvals.toml"
    own = 'version = 1  # mine\n[[allow]]\ntool = "look"\nexact = {}\n# to here\n'
    path.write_text(own)
    real = tmp_path / "real.toml"
    path.rename(real)
    path.symlink_to(real)
    file = ApprovalsFile(path)
    file.add("pay", {"amount": 5}, reason="x")
    assert path.is_symlink()
    assert path.read_text().startswith(own)
    assert file.allows("look", {})
    assert file.allows("pay", {"amount": 5})


BROKEN = {
    "no TOML": ("version = ", "not TOML"),
    "no version": ('name = "x"', "version = 1 is needed"),
    "an unknown key": ('version = 1\n[[deny]]\ntool = "pay"', "'deny' is nothing"),
    "an unknown key of a rule": ('version = 1\n[[allow]]\ntool = "pay"\nexact = {}\npath = "x"', "rule 1: 'path' is nothing"),
    "a rule without arguments": ('version = 1\n[[allow]]\ntool = "pay"', "rule 1: tool (a name) and exact"),
    "a date": ('version = 1\n[[allow]]\ntool = "pay"\nexact = {on = 2020-01-01}', "exact holds what no argument can be"),
    "a table for rules": ('version = 1\n[allow]\ntool = "pay"', "[[allow]]"),
    "no UTF-8": (b"version = 1 # \xff", "not UTF-8"),
    "too large": (b"#" * 1_100_000, "at most"),
}


@pytest.mark.parametrize("name", BROKEN)
@looped
async def test_a_file_that_is_not_understood_is_said_at_the_start_and_denies_later(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    path = tmp_path / "approvals.toml"
    layer = Approvals(file=path)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as refused:
        Approvals(file=path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    till = Till()
    async with agent_playing([pays(5), text("Not.")], tools=till.tools, extensions=[layer]) as agent:
        result = await agent.run("Go.")
    assert (result.outcome, till.paid) == (Outcome.COMPLETED, [])
    assert words in str(told(result)[0].content)
    with pytest.raises(UsageError):
        ApprovalsFile(path).add("pay", {"amount": 5}, reason="x")
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


@looped
async def test_a_yes_that_cannot_be_written_is_a_yes_to_this_call_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, logger="interlock.approvals"):
        layer_file = tmp_path / "approvals.toml"
        till = Till()
        async with agent_playing([pays(5), text("Paid.")], tools=till.tools, extensions=[Approvals(file=layer_file)]) as agent:
            (question,) = (await agent.run("Go.")).questions
            layer_file.symlink_to(tmp_path / "file" / "below")  # no folder
            await agent.answer(question.id, Allow("always"))
    assert till.paid == [5]
    assert "pay is allowed now, but not for good" in caplog.text


def test_a_rule_is_added_only_while_nobody_else_adds_one(tmp_path: Path) -> None:
    file = ApprovalsFile(tmp_path / "approvals.toml")
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_SH)
    adding = threading.Thread(target=file.add, args=("pay", {"amount": 5}), kwargs={"reason": "x"})
    adding.start()
    adding.join(1.0)  # it would be done long before, if it did not wait
    waited = adding.is_alive() and not file.path.exists()
    os.close(folder)
    adding.join(30)
    assert waited
    assert file.allows("pay", {"amount": 5})


def add_many(path: Path, name: str) -> None:
    file = ApprovalsFile(path)
    for number in range(20):
        file.add(name, {"amount": number}, reason="x")


def test_of_two_processes_that_write_rules_at_the_same_time_neither_loses_one(tmp_path: Path) -> None:
    path = tmp_path / "approvals.toml"
    processes = [multiprocessing.get_context("spawn").Process(target=add_many, args=(path, name)) for name in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    file = ApprovalsFile(path)
    assert all(file.allows(name, {"amount": number}) for name in ("one", "two") for number in range(20))
    assert len(tomllib.loads(path.read_text())["allow"]) == 40
