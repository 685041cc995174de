"""Running a command: it ends when it must, with all that it started, and what it prints never costs more than its bound."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import looped
from interlock import SandboxUnavailable
from interlock.sandbox import Finished, Level, Sandbox, run
from leftovers import left, levels, linux, needs, none_left

MIB = 1024 * 1024


@pytest.fixture
def mark() -> Iterator[str]:
    with none_left() as mark:
        yield mark


async def shell(command: str, mark: str, where: Path, level: Level = "none", **options: Any) -> Finished:
    name, _, value = mark.partition("=")
    env = {"PATH": os.environ["PATH"], name: value}
    options = {"timeout_s": 30.0, "sandbox": Sandbox(level), "writable": [where], **options}
    return await run(["/bin/sh", "-c", command], cwd=where, env=env, **options)


@pytest.mark.parametrize("level", levels())
@looped
async def test_a_command_gives_its_output_and_its_exit_code_at_every_level(level: Level, mark: str, tmp_path: Path) -> None:
    done = await shell("echo one; echo two >&2; pwd > here; exit 3", mark, tmp_path, level)
    assert (done.reason, done.code, done.head, done.tail, done.total) == ("exited", 3, b"one\ntwo\n", b"", 8)
    assert done.background is None
    assert (tmp_path / "here").read_text().strip() == str(tmp_path)


@pytest.mark.parametrize("command", ["sleep 300 & echo ok", "setsid sleep 300 & echo ok", "nohup sleep 300 >/dev/null 2>&1 & echo ok"])
@pytest.mark.parametrize("level", levels())
@linux
@looped
async def test_what_is_left_running_is_reported_and_not_waited_for(command: str, level: Level, mark: str, tmp_path: Path) -> None:
    done = await shell(command, mark, tmp_path, level)
    assert (done.reason, done.code, done.head) == ("exited", 0, b"ok\n")
    assert done.duration_s < 1.0
    assert [process.command for process in done.remaining] == ["sleep 300"]
    assert done.background is not None
    assert done.background.alive
    assert await asyncio.to_thread(done.background.end)
    assert not left(mark)


@linux
@looped
async def test_what_ends_with_the_shell_is_not_called_left_behind(mark: str, tmp_path: Path) -> None:
    done = await shell("yes | head -n 1; sleep 0.01 & echo ok", mark, tmp_path)
    assert (done.remaining, done.background) == ((), None)


@linux
@looped
async def test_a_child_that_goes_on_printing_is_drained_and_does_not_hold_the_call(mark: str, tmp_path: Path) -> None:
    done = await shell("yes & while ! kill -0 $!; do :; done; echo ok", mark, tmp_path)
    assert done.duration_s < 1.0
    assert done.background is not None
    before = _printed(done.remaining[0].pid)
    until = time.monotonic() + 10
    while _printed(done.remaining[0].pid) < before + 10 * MIB:
        assert time.monotonic() < until, "its pipe is full, and nobody reads it"
        await asyncio.sleep(0.01)


def _printed(pid: int) -> int:
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["wchar"])


@pytest.mark.parametrize("level", levels())
@looped
async def test_when_the_time_is_over_everything_is_ended_what_ignores_it_too(level: Level, mark: str, tmp_path: Path) -> None:
    ignorer = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300; sleep 300' & sleep 300; sleep 300"
    began = time.monotonic()
    done = await shell(f"echo begun; {ignorer}", mark, tmp_path, level, timeout_s=0.5, grace_s=0.2)
    assert (done.reason, done.head) == ("timeout", b"begun\n")
    assert 0.7 <= time.monotonic() - began < 6.0
    assert not left(mark)


@linux
@looped
async def test_what_starts_itself_anew_when_it_is_asked_to_end_is_ended_too(mark: str, tmp_path: Path) -> None:
    (tmp_path / "again.sh").write_text("trap 'echo again; setsid sh ./again.sh & exit' TERM\nwhile :; do sleep 0.01; done\n")
    done = await shell("setsid sh ./again.sh & sh ./again.sh", mark, tmp_path, timeout_s=0.5, grace_s=0.3)
    assert (done.reason, done.background) == ("timeout", None)
    assert b"again" in done.head
    assert not left(mark)


@pytest.mark.parametrize("where", ["eval", "setsid sh -c"])
@linux
@looped
async def test_a_program_may_tidy_up_before_it_is_killed(where: str, mark: str, tmp_path: Path) -> None:
    program = "trap '\\''echo tidied; exit 0'\\'' TERM; while :; do sleep 0.01; done"
    done = await shell(f"{where} '{program}' & sleep 300", mark, tmp_path, timeout_s=0.5)
    assert done.reason == "timeout"
    assert b"tidied" in done.head.splitlines()


@pytest.mark.parametrize("command", ["sleep 300", "setsid sleep 300 & sleep 300", "trap '' TERM; sleep 300; sleep 300"])
@looped
async def test_when_the_call_is_cancelled_everything_has_ended_before_it_returns(command: str, mark: str, tmp_path: Path) -> None:
    task = asyncio.create_task(shell(f"echo > begun; {command}", mark, tmp_path, grace_s=0.2))
    while not (tmp_path / "begun").exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not left(mark)


@looped
async def test_a_second_cancellation_is_not_held_up_and_all_ends_nevertheless(mark: str, tmp_path: Path) -> None:
    task = asyncio.create_task(shell("trap '' TERM; echo > begun; sleep 300; sleep 300", mark, tmp_path, grace_s=2.0))
    while not (tmp_path / "begun").exists():
        await asyncio.sleep(0.01)
    began = time.monotonic()
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 2.0  # and the fixture sees that nothing is left


HELD = """
import asyncio, os, sys
from interlock.sandbox import Sandbox, run
async def main():
    env = {"PATH": os.environ["PATH"], sys.argv[1]: sys.argv[2]}
    sandbox = Sandbox("none")
    await run(["sh", "-c", "sleep 300 & setsid sleep 300 &"], cwd="/", env=env, sandbox=sandbox, timeout_s=60)
    await run(["sh", "-c", "echo > " + sys.argv[3] + "; sleep 300"], cwd="/", env=env, sandbox=sandbox, timeout_s=60)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_ends_with_the_process_that_ran_it_however_that_ended(number: int, mark: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    process = subprocess.Popen([sys.executable, "-c", HELD, *mark.split("="), str(begun)])
    try:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.01)
        assert len(left(mark)) >= 3
    finally:
        process.send_signal(number)
        process.wait()
    # The fixture waits until nothing that carries the mark is left.


KILLED = """
import asyncio, os, sys
from interlock.sandbox import Sandbox, run
async def main():
    env = {"PATH": os.environ["PATH"], "RUNTIME": str(os.getpid()), sys.argv[1]: sys.argv[2]}
    await run(["sh", "-c", sys.argv[3]], cwd="/", env=env, sandbox=Sandbox("none"), timeout_s=60)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "command",
    [
        # while what the command has left behind is looked at: the report cannot be handed over any more
        "setsid sleep 300 & (sleep 0.05; kill -9 $RUNTIME) & echo",
        # with progress in its hands that it has not read: the connection is reset, and does not just end
        "setsid sleep 300 & kill -STOP $RUNTIME; for n in 1 2 3 4 5 6 7; do echo; sleep 0.2; done; kill -9 $RUNTIME; sleep 300",
        # when all is reported
        "setsid sleep 300 & echo",
    ],
)
@linux
def test_everything_ends_with_the_process_that_ran_it_at_whatever_moment_that_ended(command: str, mark: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, *mark.split("="), command])
    assert process.wait(60) == -signal.SIGKILL
    # The fixture waits until nothing that carries the mark is left.


FORKED = """
import asyncio, os, sys
from interlock.sandbox import Sandbox, end_background, run
async def main():
    env = {"PATH": os.environ["PATH"], sys.argv[1]: sys.argv[2]}
    return await run(["sh", "-c", "setsid sleep 300 &"], cwd="/", env=env, sandbox=Sandbox("none"), timeout_s=60)
done = asyncio.run(main())
if os.fork() == 0:
    class Link:  # what is said over it arrives some time later, or never: here it is seen
        send = lambda self, said: os._exit(1)
        close = lambda self: None
    done.background._link = Link()
    end_background()
    os._exit(0)
_, said = os.wait()
print(done.background.alive and said == 0, flush=True)
if os.fork() == 0:
    os.execvp("cat", ["cat"]) if sys.argv[3] == "program" else sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("kind", ["program", "fork"])
@linux
def test_a_process_that_the_runtime_forked_neither_ends_a_command_nor_keeps_it(kind: str, mark: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", FORKED, *mark.split("="), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"True\n"
        process.wait()
        until = time.monotonic() + 15.0
        while left(mark) and time.monotonic() < until:
            time.sleep(0.02)
        assert not left(mark)  # although the forked process lives: its input is open


CHAIN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
until = time.monotonic() + 20
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
"""


FOLLOWED = """
import os, socket, sys
from interlock.sandbox import keeper
keeper.below = lambda root: []  # the list of processes is always too old
ours, theirs = socket.socketpair()
name, value = sys.argv[1].split("=")
keeper.Keeper({
    "runtime": os.getppid(), "timeout_s": 0.5, "grace_s": 0.2, "head_bytes": 9, "tail_bytes": 9, "wrapper": "", "cwd": "/",
    "rlimits": {}, "reduced": False, "rules": None, "scoped": False, "says_when_ready": False, "env": {**os.environ, name: value},
    "argv": ["sh", "-c", "for n in 1 2 3; do " + sys.executable + " -I -S " + sys.argv[2] + " & done; sleep 300"],
}, theirs).keep()
print(ours.recv(4096))
"""


@linux
def test_what_changes_its_number_all_the_time_is_ended(mark: str, tmp_path: Path) -> None:
    chain = tmp_path / "chain.py"
    chain.write_text(CHAIN)
    done = subprocess.run([sys.executable, "-c", FOLLOWED, mark, str(chain)], capture_output=True, text=True, check=True)
    assert '"reason": "timeout"' in done.stdout
    assert '"alive": false' in done.stdout


NO_FORK = """
import os, socket, sys
from interlock.sandbox import keeper
def refuse():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = refuse
ours, theirs = socket.socketpair()
settings = {"runtime": os.getppid(), "timeout_s": 9, "grace_s": 9, "head_bytes": 9, "tail_bytes": 9, "wrapper": ""}
keeper.Keeper(settings, theirs).keep()
print(ours.recv(4096))
"""


def test_a_command_for_which_no_process_is_left_ran_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FORK], capture_output=True, text=True, check=True)
    assert '"reason": "failed", "failed": "BlockingIOError: [Errno 11] Resource temporarily unavailable"' in done.stdout


@linux
@looped
async def test_if_its_keeper_is_killed_the_rest_is_found_and_the_outcome_is_lost(mark: str, tmp_path: Path) -> None:
    done = await shell("setsid sleep 300 & setsid sleep 301 & kill -9 $PPID; sleep 300", mark, tmp_path)
    assert (done.reason, done.code) == ("lost", None)


@pytest.mark.parametrize("level", levels())
@looped
async def test_two_gigabytes_cost_no_more_memory_than_twenty_megabytes(level: Level, mark: str, tmp_path: Path) -> None:
    small = await shell("head -c 20000000 /dev/zero", mark, tmp_path, level)
    before = _resident()
    large = await shell("printf start; head -c 2000000000 /dev/zero; printf end", mark, tmp_path, level)
    assert large.total == 2_000_000_008
    assert large.head.startswith(b"start")
    assert large.tail.endswith(b"end")
    assert len(large.head) == len(large.tail) == 2 * MIB
    assert large.peak_bytes < small.peak_bytes * 1.25 + MIB
    assert _resident() - before < 50 * MIB


def _resident() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmRSS"))


@looped
async def test_an_output_is_bounded_in_time_too(mark: str, tmp_path: Path) -> None:
    began = time.monotonic()
    done = await shell("yes", mark, tmp_path, timeout_s=0.5, head_bytes=10, tail_bytes=10)
    assert time.monotonic() - began < 4.0
    assert (done.reason, done.head) == ("timeout", b"y\ny\ny\ny\ny\n")
    assert len(done.tail) == 10
    assert done.total > 20


@looped
async def test_nothing_can_ask_at_the_terminal(mark: str, tmp_path: Path) -> None:
    done = await shell("cat; read x || echo eof; exec 3<>/dev/tty || echo never", mark, tmp_path)
    assert done.reason == "exited"
    assert done.code != 0  # a shell ends when `exec` cannot open what it should
    assert done.head.startswith(b"eof\n")
    done = await shell("setsid sh -c ': < /dev/tty' || echo none either", mark, tmp_path)
    assert done.head.endswith(b"none either\n")


TERMINAL = """
import asyncio, os, sys
from interlock.sandbox import Sandbox, run
os.setsid()
os.open(sys.argv[1], os.O_RDWR)  # with which it is the terminal of this session
open("/dev/tty").close()
async def main():
    for command in ("exec 3</dev/tty", "setsid sh -c 'exec 3</dev/tty'"):
        env = {"PATH": os.environ["PATH"]}
        done = await run(["sh", "-c", f"({command}) 2>&1 || echo none"], cwd="/", env=env, sandbox=Sandbox("none"), timeout_s=30)
        print(done.head.decode().splitlines()[-1])
asyncio.run(main())
"""


@linux
def test_the_terminal_of_the_runtime_is_not_the_commands() -> None:
    master, slave = os.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", TERMINAL, os.ttyname(slave)], capture_output=True, text=True, check=True)
    finally:
        os.close(master)
        os.close(slave)
    assert done.stdout == "none\nnone\n"


@looped
async def test_a_program_that_is_not_there_ran_nothing(mark: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await run(["interlock-no-such-program"], cwd=tmp_path, env={"PATH": "/bin"}, sandbox=Sandbox("none"), timeout_s=5)
    with pytest.raises(OSError, match="No such file"):
        await shell("echo", mark, tmp_path / "nowhere")


@looped
async def test_an_isolation_that_cannot_be_set_up_ran_nothing(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox("none")
    monkeypatch.setattr(sandbox, "restrictions", lambda _: {"rules": None, "rlimits": {"RLIMIT_NOWHERE": 1}, "reduced": False})
    with pytest.raises(SandboxUnavailable, match="RLIMIT_NOWHERE"):
        await shell("echo > here", mark, tmp_path, sandbox=sandbox)
    assert not (tmp_path / "here").exists()


@looped
async def test_without_a_python_to_keep_it_a_command_does_not_run(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(SandboxUnavailable, match="could not be started to keep the command"):
        await shell("echo > here", mark, tmp_path)
    assert not (tmp_path / "here").exists()


@looped
async def test_progress_is_shown_while_it_runs(mark: str, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def take(progress: dict[str, Any]) -> None:
        seen.append(progress)
        (tmp_path / "seen").touch()

    await shell("while [ ! -e seen ]; do echo more; sleep 0.05; done", mark, tmp_path, on_progress=take)
    assert seen
    assert "more\n" in seen[0]["newest"]
    assert seen[0]["bytes"] >= 5


@pytest.mark.parametrize("level", levels())
@linux
@looped
async def test_a_command_holds_nothing_of_the_runtime_open(level: Level, mark: str, tmp_path: Path) -> None:
    with open(tmp_path / "held", "w") as held:  # noqa: ASYNC230
        os.set_inheritable(held.fileno(), True)
        done = await shell("ls -l /proc/self/fd", mark, tmp_path, level)
    opened = [line.split(" -> ")[1] for line in done.head.decode().splitlines() if " -> " in line]
    assert opened[0] == "/dev/null"
    assert opened[1] == opened[2]
    assert opened[1].startswith("pipe:")
    assert [path for path in opened[3:] if not path.startswith("/proc/")] == []  # the directory that ls reads


@looped
async def test_many_commands_at_once_do_not_mix(mark: str, tmp_path: Path) -> None:
    every = await asyncio.gather(*(shell(f"yes {number} | head -n 20000; exit {number}", mark, tmp_path) for number in range(16)))
    for number, done in enumerate(every):
        assert done.code == number
        assert done.head == f"{number}\n".encode() * 20_000


@looped
async def test_signals_are_as_a_program_expects_them(mark: str, tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGPIPE); print('ignored')"
    done = await run(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n{code}"], **_plain(mark, tmp_path)
    )
    assert done.code == -signal.SIGPIPE
    done = await shell("yes | head -n 1", mark, tmp_path)
    assert done.head == b"y\n"
    status = await shell("grep SigIgn /proc/self/status || true", mark, tmp_path)
    if status.head:
        assert int(status.head.split()[1], 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGTERM - 1)) == 0


def _plain(mark: str, where: Path) -> dict[str, Any]:
    name, _, value = mark.partition("=")
    return {"cwd": where, "env": {"PATH": os.environ["PATH"], name: value}, "sandbox": Sandbox("none"), "timeout_s": 30.0}


@needs("landlock")
@looped
async def test_under_landlock_a_command_cannot_kill_its_keeper(mark: str, tmp_path: Path) -> None:
    done = await shell("kill -9 $PPID || echo refused", mark, tmp_path, "landlock")
    assert done.head.endswith(b"refused\n")
    assert done.reason == "exited"
