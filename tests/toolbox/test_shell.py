"""The tools that run commands: what a model gets to see of a command, and that no command holds, outlives or looks into the runtime."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import looped
from interlock import Agent, Allow, Deny, SandboxUnavailable, Tool, ToolFailure, UsageError
from interlock.errors import ToolTimeout
from interlock.messages import ToolMessage
from interlock.sandbox import Level, Sandbox, levels
from interlock.testing import ScriptedModel, call, calls, text
from interlock.toolbox import shell
from interlock.toolbox.decoding import output_text
from interlock.toolbox.shell import shell_tools
from leftovers import MARK, left, linux, none_left
from leftovers import levels as every_level


class Context:
    """As much of a RunContext as these handlers ask for."""

    def __init__(self, session_id: str = "s") -> None:
        self.session_id = session_id
        self.emitted: list[Any] = []

    def emit(self, data: Any) -> None:
        self.emitted.append(data)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with none_left() as mark:
        monkeypatch.setenv(*mark.split("=", 1))
        yield mark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    return root


def tools_of(root: Path, level: Level = "none", **options: Any) -> dict[str, Tool]:
    return {tool.name: tool for tool in shell_tools(root, **{"sandbox": level, "pass_env": [MARK], **options})}


async def ran(tools: dict[str, Tool], command: str, *, context: Context | None = None, **given: Any) -> str:
    return await tools["run_command"](context or Context(), command, **given)


def body(result: str) -> str:
    return result.partition("\n")[2]


@pytest.mark.parametrize("level", every_level())
@looped
async def test_a_result_says_how_it_ended_how_long_it_took_and_under_which_level(level: Level, root: Path, mark: str) -> None:
    header, _, output = (await ran(tools_of(root, level), "echo out; echo err >&2; exit 7")).partition("\n")
    assert header.startswith("[exit code 7; 0.")
    assert header.endswith(f" s; sandbox: {level}, network on]")
    assert output == "out\nerr\n"
    assert (await ran(tools_of(root, level), "true")).endswith("\n[no output]")
    if level != "bubblewrap":  # which gives a signal back as an exit code
        assert (await ran(tools_of(root, level), "kill -SEGV $$")).startswith("[ended by SIGSEGV; ")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat; echo done", "done\n"),
        ("read x || echo eof", "eof\n"),
        ("sh -c ': < /dev/tty' 2>/dev/null || echo no terminal", "no terminal\n"),
        ("${VISUAL:-vi} file || echo no editor", "no editor\n"),
        ("printf 'caf\\351 au lait'", "caf\ufffd au lait"),
        ("printf '\\377\\376h\\000i\\000'", "hi"),
        ("echo $PAGER $GIT_TERMINAL_PROMPT $TERM", "cat 0 dumb\n"),
    ],
)
@looped
async def test_nothing_waits_for_a_person(command: str, expected: str, root: Path, mark: str) -> None:
    began = time.monotonic()
    assert body(await ran(tools_of(root), command, timeout_s=30)) == expected
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("git", "git init -q . && git -c user.name=a -c user.email=a@b.c commit --allow-empty"),
        ("git", "git -c credential.helper= ls-remote https://127.0.0.1:1/x.git"),
        ("ssh", "ssh -F none -p 1 nobody@127.0.0.1"),
        ("sudo", "sudo -k -v"),
        ("vi", "vi file"),
        ("vim", "vim file"),
        ("nano", "nano file"),
        ("less", "less /etc/passwd >/dev/null; false"),
        ("python3", "python3 -c 'import getpass; getpass.getpass()'"),
    ],
)
@looped
async def test_programs_that_ask_fail_at_once(program: str, command: str, root: Path, mark: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    level = "rlimits" if program == "sudo" else "none"
    result = await ran(tools_of(root, level), command, timeout_s=30)
    if program != "sudo" or os.geteuid():  # root is asked for no password
        assert not result.startswith("[exit code 0;"), result


@pytest.mark.parametrize("command", ["yes", "trap '' TERM; while :; do sleep 300; done", "cat /dev/zero", "sleep 300 & sleep 300"])
@looped
async def test_a_command_that_does_not_end_is_ended_and_its_output_is_shown(command: str, root: Path, mark: str) -> None:
    began = time.monotonic()
    with pytest.raises(ToolTimeout, match="timed out after 1 s, and everything that it had started was ended") as raised:
        await ran(tools_of(root), f"echo first; {command}", timeout_s=1)
    assert time.monotonic() - began < 8.0
    assert raised.value.effect == "unknown"
    assert "\nfirst\n" in str(raised.value) or "zero" in command
    assert not left(mark)


@pytest.mark.parametrize("command", ["sleep 300 & echo ok", "setsid sleep 300 & echo ok", "nohup sleep 300 & sleep 0.1; echo ok"])
@linux
@looped
async def test_a_background_child_is_named_and_ended_when_asked(command: str, root: Path, mark: str) -> None:
    tools = tools_of(root)
    began = time.monotonic()
    result = await ran(tools, command)
    assert time.monotonic() - began < 5.0
    assert float(result.split(";")[1].split()[0]) < 1.1
    assert result.endswith("ok\n")
    assert "[Still running in the background as b1: sleep 300 (pid " in result
    with pytest.raises(ToolFailure, match="there is b1"):
        await tools["stop_background"](Context(), "b2")
    with pytest.raises(ToolFailure, match="nor anything else") as raised:
        await tools["stop_background"](Context("another session"), "b1")
    assert raised.value.effect == "none"
    assert await tools["stop_background"](Context(), "b1") == "b1 was ended"
    assert not left(mark)


@linux
@looped
async def test_what_is_left_running_has_a_bound(root: Path, mark: str) -> None:
    tools = tools_of(root, background_max=1)
    assert "as b1: sleep 300" in await ran(tools, "sleep 300 &")
    assert "[Ended, because 1 commands have left something running already (b1): sleep 301" in await ran(tools, "sleep 301 &")
    assert "as b2: sleep 302" in await ran(tools, "sleep 302 &", context=Context("another session"))
    await tools["stop_background"](Context(), "b1")
    assert "as b3: sleep 303" in await ran(tools, "sleep 303 &")


@linux
@looped
async def test_a_server_left_running_still_serves_the_next_command(root: Path, mark: str) -> None:
    tools = tools_of(root, "rlimits")
    serve = f"{sys.executable} -c \"import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
    serve += "open('port', 'w').write(str(s.server_port)); s.serve_forever()\" & while [ ! -s port ]; do sleep 0.01; done"
    assert "Still running" in await ran(tools, serve)
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:' + open('port').read()).status)"
    for _ in range(3):  # each writes a line to the server's standard error
        assert body(await tools["run_python"](Context(), fetch)) == "200\n"


@looped
async def test_a_large_output_is_kept_whole_and_a_huge_one_loses_its_middle(root: Path, mark: str) -> None:
    tools = tools_of(root)
    emoji = "😀" * 60_000
    Path(root, "emoji").write_text(emoji, encoding="utf-8")  # noqa: ASYNC240
    assert body(await ran(tools, "LC_ALL=C cat emoji")) == emoji
    result = await ran(tools, "echo first; yes | head -n 5000000; echo last")
    assert body(result).startswith("first\ny\n")
    assert result.endswith("y\nlast\n")
    assert "of 10,000,011 bytes were dropped here" in result
    assert len(result) < 4.5 * 1024 * 1024


@linux
@looped
async def test_a_huge_output_costs_no_memory_here_nor_in_the_process_that_keeps_it(root: Path, mark: str) -> None:
    def resident(process: str) -> int:
        lines = Path("/proc", process, "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    async def peak(size: int) -> int:
        result = await ran(tools, f"yes | head -c {size}; grep VmHWM /proc/$PPID/status")
        return int(result.rpartition("VmHWM:")[2].split()[0]) * 1024

    tools = tools_of(root)
    small = await peak(20_000_000)
    before = resident("self")
    assert await peak(1_000_000_000) < small + 16 * 1024 * 1024
    assert resident("self") - before < 50 * 1024 * 1024


@pytest.mark.parametrize("locale", ["C", "POSIX", "zh_CN.GBK"])
def test_the_locale_of_the_runtime_does_not_matter(locale: str, root: Path, mark: str) -> None:
    code = f"""
import asyncio
from interlock.toolbox.shell import shell_tools
class Context:
    session_id = "s"
    def emit(self, data): pass
run, python, _ = shell_tools({str(root)!r}, sandbox="none")
result = asyncio.run(run(Context(), "yes '\\U0001f600\\u4f60' | head -n 20000; echo \\u597d > \\u4f60"))
assert result.count("\\U0001f600\\u4f60\\n") == 20000, ascii(result[:200])
result = asyncio.run(python(Context(), "print(open('\\u4f60').read(), '\\U0001f600')"))
assert result.endswith("\\u597d\\n \\U0001f600\\n"), ascii(result)
"""
    env = {**os.environ, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")


@looped
async def test_each_call_has_its_directory_and_its_variables(root: Path, mark: str) -> None:
    tools = tools_of(root, env={"A": "one = 1"})
    assert body(await ran(tools, "export B=2; pwd; echo $A $B", cwd="sub")) == f"{root}/sub\none = 1 2\n"
    assert body(await ran(tools, "pwd; echo $A $B")) == f"{root}\none = 1\n"


@pytest.mark.parametrize("name", ["run_command", "run_python"])
def test_a_policy_sees_every_variable_that_the_model_sets(name: str, root: Path) -> None:
    """An allowed `git status` would be anything, if PATH or LD_PRELOAD came in an argument of its own."""
    assert set(tools_of(root)[name].parameters["properties"]) == {"command" if name == "run_command" else "code", "cwd", "timeout_s"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cwd": ".."}, "outside of the working directory"),
        ({"cwd": "/"}, "outside of the working directory"),
        ({"cwd": "out"}, "outside of the working directory"),
        ({"cwd": "nowhere"}, "is not a directory"),
        ({"cwd": "a\0b"}, "null"),
        ({"timeout_s": 0}, "from 1 to 3600"),
        ({"timeout_s": 3601}, "from 1 to 3600"),
        ({"command": " "}, "the command is empty"),
        ({"command": "echo \0"}, "NUL"),
        ({"command": "#" * 200_000}, "larger than 100,000 bytes"),
    ],
)
@looped
async def test_what_cannot_be_run_is_refused_with_no_effect(given: dict[str, Any], said: str, root: Path, mark: str) -> None:
    (root / "out").symlink_to("..")
    with pytest.raises(ToolFailure, match=said) as raised:
        await ran(tools_of(root), **{"command": "echo > here", **given})
    assert raised.value.effect == "none"
    assert not (root / "here").exists()


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "b\0c"}, {"A\0": "x"}, {"A": 1}, {"A": None}, {"A": "x" * 100_000}])
def test_an_environment_that_no_program_can_have_is_a_wrong_call(env: dict[str, Any], root: Path) -> None:
    with pytest.raises(UsageError, match="cannot be a variable"):
        tools_of(root, env=env)


@looped
async def test_keys_of_the_runtime_are_not_handed_on(root: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:secret@host/db")
    monkeypatch.setenv("BASH_ENV", "secret")
    for name, given in (("run_command", "env"), ("run_python", "import os; print(os.environ)")):
        assert "secret" not in await tools_of(root)[name](Context(), given)
    assert "secret" in await ran(tools_of(root, pass_env=[MARK, "DATABASE_URL"]), "env")


@looped
async def test_progress_shows_the_newest_output(root: Path, mark: str) -> None:
    context = Context()
    await ran(tools_of(root), "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done", context=context)
    assert context.emitted
    assert set(context.emitted[0]) == {"bytes", "seconds", "newest"}


@looped
async def test_the_last_output_is_shown_although_nothing_follows_it(root: Path, mark: str) -> None:
    context = Context()
    with pytest.raises(ToolTimeout):
        await ran(tools_of(root), "echo waiting for the lock; sleep 60", context=context, timeout_s=2)
    assert [data["newest"] for data in context.emitted] == ["waiting for the lock\n"]
    assert context.emitted[0]["seconds"] < 1.9


@pytest.mark.parametrize("level", every_level())
@looped
async def test_a_python_program_runs_in_a_fresh_process(level: Level, root: Path, mark: str) -> None:
    python = tools_of(root, level)["run_python"]
    assert body(await python(Context(), "x = 1\nprint('grüße', __name__)")) == "grüße __main__\n"
    result = await python(Context(), "print(x)")
    assert result.startswith("[exit code 1; ")
    assert "NameError: name 'x' is not defined" in result
    (root / "json.py").write_text("raise SystemExit('shadowed')")
    code = "import json, os, sys; open('made', 'w').write('y'); print(sys.flags.isolated, json.dumps(os.getcwd()))"
    assert body(await python(Context(), code)) == f'1 "{root}"\n'
    assert (root / "made").read_text() == "y"


@looped
async def test_a_python_program_that_does_not_end_is_ended_and_what_it_printed_is_shown(root: Path, mark: str) -> None:
    with pytest.raises(ToolTimeout, match="begun"):
        await tools_of(root)["run_python"](Context(), "print('begun')\nwhile True: pass", timeout_s=1)


@looped
async def test_a_program_reads_nothing_and_leaves_no_file(root: Path, mark: str) -> None:
    sandbox = Sandbox("none")
    python = tools_of(root, sandbox=sandbox)["run_python"]
    assert "EOFError" in await python(Context(), "input()")
    assert body(await python(Context(), "x = '''" + "y" * 300_000 + "'''; print(len(x))")) == "300000\n"
    assert not any(Path(sandbox.scratch, "code").iterdir())  # noqa: ASYNC240


@looped
async def test_a_cancelled_call_leaves_nothing_running(root: Path, mark: str) -> None:
    task = asyncio.create_task(ran(tools_of(root), "echo > begun; setsid sleep 300 & sleep 300"))
    while not (root / "begun").exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not left(mark)


@linux
@looped
async def test_what_a_command_left_running_ends_if_the_call_is_cancelled_before_it_is_named(
    root: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(*given: Any) -> str:
        reading.set()
        go_on.wait(30.0)
        return output_text(*given)

    monkeypatch.setattr(shell, "output_text", slow)
    task = asyncio.create_task(ran(tools_of(root), "setsid sleep 300 & head -c 500000 /dev/zero"))
    try:
        await asyncio.to_thread(reading.wait, 30.0)
        assert left(mark)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        go_on.set()
    async with asyncio.timeout(15):
        while left(mark):
            await asyncio.sleep(0.02)


@looped
async def test_through_an_agent_a_command_is_one_call_with_its_effect(root: Path, mark: str) -> None:
    steps = [
        calls(call("a", "run_command", {"command": "echo made > file; cat file"})),
        calls(
            call("b", "run_command", {"command": "echo begun; sleep 300", "timeout_s": 1}),
            call("c", "run_python", {"code": "print(6 * 7)"}),
        ),
        calls(call("d", "run_command", {"command": "yes | head -c 300000"})),
        calls(call("e", "read_result", {"call_id": "d", "offset": 150_000, "limit": 10})),
        calls(call("f", "run_command", {"command": "echo", "cwd": ".."})),
        text("Done."),
    ]
    async with await Agent.create(ScriptedModel(steps), tools=shell_tools(root, sandbox="none", pass_env=[MARK], approval=False)) as agent:
        result = await agent.run("Go.")
    given = {message.tool_call_id: message for message in result.messages if isinstance(message, ToolMessage)}
    effects = [given[one].effect for one in "abcdef"]
    assert effects == ["happened", "unknown", "happened", "happened", "none", "none"]
    assert str(given["a"].content).endswith("\nmade\n")
    assert "begun" in str(given["b"].content)
    assert str(given["c"].content).endswith("\n42\n")
    assert "read_result(call_id=" in str(given["d"].content)
    assert "y\ny\ny" in str(given["e"].content)


@looped
async def test_a_person_is_asked_before_a_command_runs(root: Path, mark: str) -> None:
    steps = [calls(call("a", "run_command", {"command": "echo > a"}), call("b", "run_python", {"code": "open('b', 'w')"})), text("Done.")]
    async with await Agent.create(ScriptedModel(steps), tools=shell_tools(root, sandbox="none", pass_env=[MARK])) as agent:
        waiting = await agent.run("Go.")
        assert [name for name in ("a", "b") if (root / name).exists()] == []
        (first,) = waiting.questions
        (second,) = (await agent.answer(first.id, Allow())).questions
        await agent.answer(second.id, Deny("no"))
    assert [name for name in ("a", "b") if (root / name).exists()] == ["a"]


@looped
async def test_when_a_run_is_cancelled_its_command_ends(root: Path, mark: str) -> None:
    steps = [calls(call("a", "run_command", {"command": "echo > begun; trap '' TERM; sleep 300; sleep 300"})), text("Done.")]
    async with await Agent.create(ScriptedModel(steps), tools=shell_tools(root, sandbox="none", pass_env=[MARK], approval=False)) as agent:
        task = asyncio.create_task(agent.run("Go."))
        while not (root / "begun").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    until = time.monotonic() + 10  # longer than a run waits for a cancelled call: it is awaited in the background
    while left(mark):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)


def test_the_traits_say_what_the_tools_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tools_of(root)
    for name in ("run_command", "run_python"):
        traits = tools[name].traits
        assert (traits.on_crash, traits.parallel, traits.requires_approval, traits.network) == ("report", False, True, True)
        assert "(sandbox: none, network on)" in tools[name].description
    assert (tools["stop_background"].traits.on_crash, tools["stop_background"].traits.network) == ("report", False)
    assert "context" not in tools["run_command"].parameters["properties"]


def test_a_demanded_level_that_is_not_there_is_refused_when_the_tools_are_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "BUBBLEWRAP_PLACES", ("/nowhere",))
    with pytest.raises(SandboxUnavailable):
        shell_tools(root, sandbox="bubblewrap")


@pytest.mark.parametrize("make", [lambda root: root / "nowhere", lambda root: root / "file"])
def test_a_root_that_is_no_directory_is_a_wrong_call(make: Callable[[Path], Path], root: Path) -> None:
    (root / "file").touch()
    with pytest.raises(UsageError, match="is not a directory"):
        shell_tools(make(root))


@looped
async def test_a_root_that_is_a_link_works(root: Path, mark: str) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert body(await ran(tools_of(link), "pwd -P", cwd="sub")) == f"{root}/sub\n"
