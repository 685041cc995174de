"""CommandHook: what a program of the user's may decide, and that whatever goes wrong with it is a denial that says so."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers import Played, agent_playing, looped, play
from interlock import Agent, AgentExtension, Allow, Outcome, RunContext, UsageError, tool
from interlock.extensions.approvals import Approvals
from interlock.extensions.hooks import ANSWER_BYTES_MAX, CommandHook
from interlock.messages import ToolMessage
from interlock.records import ToolStepEnded
from interlock.testing import ScriptedModel, call, calls, text

READ = "import json, sys; call = json.load(sys.stdin)\n"


class Till:
    def __init__(self) -> None:
        self.paid: list[Any] = []

    async def pay(self, amount: int, to: str = "Ann") -> str:
        """Pay."""
        self.paid.append((amount, to))
        return f"paid {amount}"


def hook(code: str, **options: Any) -> CommandHook:
    return CommandHook([sys.executable, "-I", "-S", "-c", code], name="the hook", **options)


def says(answer: Any) -> CommandHook:
    return hook(f"{READ}print({json.dumps(answer)!r})")


def played(till: Till, *layers: Any, steps: Any = None) -> Played:
    made = steps or [calls(call("c1", "pay", {"amount": 5})), text("Done.")]
    return asyncio.run(play(made, tools=[till.pay], extensions=layers))


def told(result: Any) -> ToolMessage:
    (message,) = [message for message in result.messages if isinstance(message, ToolMessage)]
    return message


def gone(pid: int) -> bool:
    """Whether the process has ended; waits for init to have noticed, in bounds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


# ---- what it may say ---------------------------------------------------------------------------------


def test_it_gets_the_call_as_json_with_what_the_model_wrote_and_what_it_is_now(tmp_path: Path) -> None:
    class Doubles(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            call.arguments["amount"] *= 2
            return await call_next()

    file, till = tmp_path / "seen.json", Till()
    code = f"{READ}open({str(file)!r}, 'w').write(json.dumps(call)); print('{{\"verdict\": \"allow\"}}')"
    result = played(till, Doubles(), hook(code)).result
    seen = json.loads(file.read_text())
    assert seen == {
        "session_id": "s",
        "run_id": result.run_id,
        "call_id": "c1",
        "tool": "pay",
        "arguments": {"amount": 10},
        "original_arguments": {"amount": 5},
    }
    assert till.paid == [(10, "Ann")]


def test_a_denial_is_a_veto_with_the_hooks_reason() -> None:
    till = Till()
    done = played(till, says({"verdict": "deny", "reason": "not on a Monday"}))
    assert (till.paid, told(done.result).effect) == ([], "none")
    assert "the hook: not on a Monday" in str(told(done.result).content)
    (ended,) = [record for record in done.records if isinstance(record, ToolStepEnded)]
    assert (ended.code, ended.decided_by) == ("vetoed", "the hook")


def test_an_edit_replaces_all_arguments_and_is_validated_like_any_other() -> None:
    till = Till()
    played(till, says({"verdict": "edit", "arguments": {"amount": 1, "to": "Bob"}}))
    assert till.paid == [(1, "Bob")]
    done = played(till, says({"verdict": "edit", "arguments": {"amount": "much"}}))
    assert (len(till.paid), told(done.result).failed) == (1, True)


@looped
async def test_a_question_waits_for_a_person_and_a_yes_for_the_session_is_not_asked_again() -> None:
    till = Till()
    steps = [calls(call("a", "pay", {"amount": 5})), calls(call("b", "pay", {"amount": 5})), text("Done.")]
    async with agent_playing(steps, tools=[till.pay], extensions=[says({"verdict": "ask", "question": "Pay Ann?"})]) as agent:
        waiting = await agent.run("Go.")
        (question,) = waiting.questions
        assert (question.text, question.scopes, question.asked_by, till.paid) == ("Pay Ann?", ("session",), "the hook", [])
        result = await agent.answer(question.id, Allow("session"))
    assert (result.outcome, till.paid) == (Outcome.COMPLETED, [(5, "Ann"), (5, "Ann")])


def test_tools_says_which_calls_it_is_asked_about() -> None:
    till = Till()
    no = json.dumps({"verdict": "deny", "reason": "no"})
    for patterns, paid in ((["refund*", "look"], 1), (["p?y"], 0), (["*"], 0), (["Pay"], 1)):
        till.paid.clear()
        played(till, hook(f"print({no!r})", tools=patterns))
        assert len(till.paid) == paid, patterns


def test_several_hooks_see_what_those_before_them_have_edited() -> None:
    till = Till()
    adds = f"{READ}call['arguments']['amount'] += 1; print(json.dumps({{'verdict': 'edit', 'arguments': call['arguments']}}))"
    played(till, hook(adds), hook(adds), hook(adds))
    assert till.paid == [(8, "Ann")]


@looped
async def test_it_lies_inside_users_layers_and_outside_a_guard_of_its_own_priority_registered_before_it() -> None:
    class Guard(Approvals):
        priority = 900

    class Users(AgentExtension):
        priority = 899.5  # type: ignore[assignment]

        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            return await call_next()

    async with await Agent.create(ScriptedModel([]), extensions=[Guard(), hook("pass"), Users()]) as agent:
        names = agent.onion()
    assert names.index("Users") < names.index("the hook") < names.index("Guard")


def test_what_it_was_shown_is_what_goes_on_whatever_a_layer_does_meanwhile() -> None:
    class Meanwhile(AgentExtension):
        async def on_tool_call(self, context: RunContext, call: Any, call_next: Any) -> Any:
            async def later() -> None:
                await asyncio.sleep(0)
                call.arguments = {"amount": 1_000_000}

            task = asyncio.ensure_future(later())
            try:
                return await call_next()
            finally:
                await task

    till = Till()
    played(till, Meanwhile(), says({"verdict": "allow"}))
    assert till.paid == [(5, "Ann")]


# ---- what may go wrong -------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, str]] = {
    "another exit code": (f'{READ}print(\'{{"verdict": "allow"}}\'); sys.exit(3)', "it exited with 3"),
    "an exception": (f"{READ}raise SystemExit('no rules found')", "it exited with 1: no rules found"),
    "a crash": (f"{READ}import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
    "nothing": (READ, "it did not answer"),
    "garbage": (f"{READ}print('yes')", "its answer cannot be understood"),
    "two objects": (f'{READ}print(\'{{"verdict": "allow"}}\' * 2)', "its answer cannot be understood"),
    "another verdict": (f'{READ}print(\'{{"verdict": "alow"}}\')', "its answer cannot be understood"),
    "no verdict": (f"{READ}print('{{}}')", "its answer cannot be understood"),
    "a list": (f"{READ}print('[\"allow\"]')", "its answer cannot be understood"),
    "another key": (f'{READ}print(\'{{"verdict": "allow", "unless": "amount"}}\')', "its answer cannot be understood"),
    "an edit without arguments": (f'{READ}print(\'{{"verdict": "edit"}}\')', "its answer cannot be understood"),
    "an edit with a list": (f'{READ}print(\'{{"verdict": "edit", "arguments": []}}\')', "its answer cannot be understood"),
    "no UTF-8": (f'{READ}sys.stdout.buffer.write(b\'{{"verdict": "deny", "reason": "\\xff"}}\')', "its answer is not UTF-8"),
    "too much": (f"{READ}print('{{\"verdict\": \"allow\"}}' + ' ' * {ANSWER_BYTES_MAX + 1})", "its answer has more than 262,144 bytes"),
    "too much without an end": (
        f"{READ}\nwhile True: print('{{\"verdict\": \"allow\"}}' + ' ' * 65536)",
        "its answer has more than 262,144 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_whatever_goes_wrong_with_it_is_a_denial_that_names_it_and_says_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    code, why = WRONG[name]
    till = Till()
    with caplog.at_level(logging.WARNING, logger="interlock.tools"):
        done = played(till, hook(code))
    assert till.paid == []
    assert f"the hook: {why}" in str(told(done.result).content)
    assert f"Middleware the hook vetoed tool pay: the hook: {why}" in caplog.text


@pytest.mark.parametrize("argv", [["./is-not-there"], ["/dev/null"], ["sh", "-c", "exec ./is-not-there"]], ids=str)
def test_a_program_that_is_missing_is_a_denial_that_says_so(argv: list[str]) -> None:
    till = Till()
    done = played(till, CommandHook(argv, name="the hook"))
    assert till.paid == []
    assert "the hook: it " in str(told(done.result).content)
    assert ("exited with 127" if argv[0] == "sh" else "cannot be started") in str(told(done.result).content)


def test_a_hook_that_closes_its_stdin_has_not_read_the_call() -> None:
    """More than a pipe holds, so that it is noticed whatever the two processes do next."""
    till = Till()
    steps = [calls(call("c1", "pay", {"amount": 5, "to": "A" * 1_000_000})), text("Done.")]
    done = played(till, hook('import os; os.read(0, 1); os.close(0); print(\'{"verdict": "allow"}\')'), steps=steps)
    assert till.paid == []
    assert "it closed its stdin before it had read the call" in str(told(done.result).content)


def test_a_hook_whose_closed_stdin_is_seen_before_the_call_is_given_to_it_has_not_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.SelectorEventLoop.subprocess_exec

    async def slow(*args: Any, **options: Any) -> Any:
        transport, protocol = await start(*args, **options)
        stdin: Any = transport.get_pipe_transport(0)
        async with asyncio.timeout(20):
            while not stdin.is_closing():
                await asyncio.sleep(0)
        return transport, protocol

    monkeypatch.setattr(asyncio.SelectorEventLoop, "subprocess_exec", slow)
    till = Till()
    done = played(till, hook('import os; os.close(0); print(\'{"verdict": "allow"}\')'))
    assert till.paid == []
    assert "it closed its stdin before it had read the call" in str(told(done.result).content)


def test_a_long_call_is_read_by_a_hook_that_answers_at_length_at_the_same_time() -> None:
    till = Till()
    steps = [calls(call("c1", "pay", {"amount": 5, "to": "A" * 1_000_000})), text("Done.")]
    code = """
import sys
print('{"verdict": "allow"' + ' ' * 200_000, flush=True)
sys.stderr.write('x' * 1_000_000)
sys.stdin.read()
print('}')
"""
    played(till, hook(code), steps=steps)
    assert [amount for amount, _ in till.paid] == [5]


def test_what_it_says_on_stderr_is_shown_in_bounds_and_cannot_make_lines_or_move_the_cursor() -> None:
    till = Till()
    done = played(till, hook(f"{READ}sys.exit('first\\nsecond\\x1b[2J ' + 'x' * 100_000)"))
    content = str(told(done.result).content)
    assert "it exited with 1: first second\N{REPLACEMENT CHARACTER}[2J xxx" in content
    assert len(content) < 1000


# ---- nothing left behind -----------------------------------------------------------------------------

CHILD = """
import os, sys, subprocess, time
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
with open({file!r} + ".new", "w") as out:
    out.write(str(os.getpid()) + " " + str(child.pid))
os.rename({file!r} + ".new", {file!r})
{then}
"""


def pids(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()]


def test_out_of_time_it_is_killed_with_what_it_has_started_and_that_is_a_denial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, till = tmp_path / "pids", Till()

    async def main() -> None:
        layer = hook(CHILD.format(file=str(file), then="time.sleep(60)"), timeout_s=3600)
        async with agent_playing([calls(call("c1", "pay", {"amount": 5})), text("Done.")], tools=[till.pay], extensions=[layer]) as agent:
            running = asyncio.ensure_future(agent.run("Go."))
            while not file.exists():
                assert not running.done(), running.result()  # or a hook that fails at once would be waited for without end
                await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()
            real = loop.time
            monkeypatch.setattr(loop, "time", lambda: real() + 3600)  # the hour passes only once both processes are there
            assert "the hook: it did not answer within 3600 s" in str(told(await running).content)

    asyncio.run(main())
    assert till.paid == []
    assert all(gone(pid) for pid in pids(file))


def test_what_it_leaves_behind_when_it_has_answered_is_killed_and_does_not_hold_the_call_up(tmp_path: Path) -> None:
    file, till = tmp_path / "pids", Till()
    began = time.monotonic()
    played(till, hook(CHILD.format(file=str(file), then='sys.stdin.read(); print(\'{"verdict": "allow"}\')')))
    assert till.paid == [(5, "Ann")]
    assert time.monotonic() - began < 30
    assert all(gone(pid) for pid in pids(file))


def test_a_cancelled_run_kills_it_with_what_it_has_started(tmp_path: Path) -> None:
    file, till = tmp_path / "pids", Till()

    async def main() -> None:
        async with await Agent.create(
            ScriptedModel([calls(call("c1", "pay", {"amount": 5}))]),
            tools=[till.pay],
            extensions=[hook(CHILD.format(file=str(file), then="time.sleep(60)"))],
        ) as agent:
            running = asyncio.ensure_future(agent.run("Go."))
            while not file.exists():
                assert not running.done(), running.result()  # or a hook that fails at once would be waited for without end
                await asyncio.sleep(0.01)
            await agent.cancel()
            assert (await running).outcome is Outcome.CANCELLED

    asyncio.run(main())
    assert till.paid == []
    assert all(gone(pid) for pid in pids(file))


@looped
async def test_the_event_loop_goes_on_while_a_hook_thinks(tmp_path: Path) -> None:
    fifo, till = tmp_path / "fifo", Till()
    os.mkfifo(fifo)
    code = f'{READ}open({str(fifo)!r}).read(); print(\'{{"verdict": "allow"}}\')'
    async with agent_playing([calls(call("c1", "pay", {"amount": 5})), text("Done.")], tools=[till.pay], extensions=[hook(code)]) as agent:
        running = asyncio.ensure_future(agent.run("Go."))
        writer: int | None = None
        while writer is None:  # the loop runs, or the hook would never be let go
            await asyncio.sleep(0.01)
            try:
                writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                assert not running.done()
        os.close(writer)
        await running
    assert till.paid == [(5, "Ann")]


def test_many_calls_at_once_have_a_process_each(tmp_path: Path) -> None:
    till = Till()
    steps = [calls(*(call(f"c{n}", "pay", {"amount": n}) for n in range(12))), text("Done.")]
    code = (
        f"{READ}print(json.dumps({{'verdict': 'allow'}} if call['arguments']['amount'] % 2 else {{'verdict': 'deny', 'reason': 'even'}}))"
    )

    done = asyncio.run(play(steps, tools=[tool(till.pay, parallel=True)], extensions=[hook(code)]))
    assert sorted(amount for amount, _ in till.paid) == [1, 3, 5, 7, 9, 11]
    messages = [message for message in done.result.messages if isinstance(message, ToolMessage)]
    assert [message.failed for message in messages] == [True, False] * 6


# ---- what is said at the start -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "level", "words"),
    [
        (lambda: CommandHook(["sh", "-c", "x"]), logging.INFO, "hook sh -c x is asked about every tool"),
        (lambda: CommandHook(["sh"], tools=["pay"], name="mine"), logging.INFO, "mine is asked about tools like pay"),
        (lambda: CommandHook(["sh"], tools=["pya", "pay"]), logging.WARNING, "no tool of this agent is like pya"),
        (lambda: CommandHook(["./is-not-there"]), logging.WARNING, "its program cannot be found: each of these calls is denied"),
    ],
    ids=["fine", "some tools", "a misspelled tool", "no program"],
)
@looped
async def test_the_active_hooks_and_what_is_wrong_with_them_are_said_when_the_agent_is_made(
    made: Any, level: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="interlock.hooks"):
        async with await Agent.create(ScriptedModel([]), tools=[Till().pay], extensions=[made()]):
            pass
    ((_, at, said),) = [record for record in caplog.record_tuples if record[0] == "interlock.hooks"]
    assert at == level
    assert words in said


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ("ls -l", {}),
        ([], {}),
        ([""], {}),
        ([1], {}),
        (["a\0b"], {}),
        (["a"], {"timeout_s": 0}),
        (["a"], {"timeout_s": float("inf")}),
        (["a"], {"timeout_s": float("nan")}),
        (["a"], {"timeout_s": True}),
        (["a"], {"timeout_s": "5s"}),
        (["a"], {"tools": "pay"}),
        (["a"], {"tools": []}),
        (["a"], {"tools": [3]}),
    ],
    ids=str,
)
def test_what_cannot_be_run_or_guards_nothing_is_refused_when_it_is_made(argv: Any, options: Any) -> None:
    with pytest.raises(UsageError, match="CommandHook"):
        CommandHook(argv, **options)


def test_a_hook_has_a_process_group_of_its_own(tmp_path: Path) -> None:
    """Ctrl-C in a terminal goes to the whole foreground group: a hook that died of it would look like a denial."""
    till, file = Till(), tmp_path / "group"
    code = f"{READ}import os; open({str(file)!r}, 'w').write(str(os.getpgid(0) == os.getpid())); print('{{\"verdict\": \"allow\"}}')"
    played(till, hook(code))
    assert file.read_text() == "True"
