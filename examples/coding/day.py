"""A day's work on a small project: ``interlock run --tools coding`` reads, edits, runs the tests and reports, under a policy.

A scripted model behind a real socket plays the model, so that anyone can repeat it: no key, no network. On the way the process is
killed while the tests run, and another one goes on: the command that ran is not started again, and the model is told so. The commit
at the end needs a person, whose answer comes from a third process.

    python examples/coding/day.py
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from interlock.testing import WireServer, call, calls, text

HERE = Path(__file__).resolve().parent
TESTS = "python3 tests/test_till.py"
WORK = [
    calls(call("c1", "read_file", {"path": "src/till.py"}), call("c2", "read_file", {"path": "tests/test_till.py"})),
    calls(call("c3", "edit_file", {"path": "tests/test_till.py", "old": "== 810", "new": "== 570"})),
    calls(
        call("c4", "edit_file", {"path": "src/till.py", "old": "sum(price for _, price, _ in", "new": "sum(price * n for _, price, n in"})
    ),
    calls(call("c5", "run_command", {"command": TESTS})),
    calls(call("c6", "run_command", {"command": TESTS})),
    calls(call("c7", "run_command", {"command": "git commit -aqm 'Count each item'"})),
    text("total() forgot how many there are of each item. It is mended, the tests pass, and the change is committed."),
]
# The first time they run, the tests take long enough for the process to be killed meanwhile.
SLOW_ONCE = """
first = Path(".git/first")
if first.exists():
    import time

    first.unlink()
    time.sleep(30)
"""


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="interlock-till-") as folder:
        project = Path(folder, "project")
        shutil.copytree(HERE / "project", project, ignore=shutil.ignore_patterns("__pycache__"))
        tests = project / "tests" / "test_till.py"
        tests.write_text(tests.read_text().replace("\n\ndef test", f"{SLOW_ONCE}\n\ndef test", 1))
        for command in ("init -q", "config user.name Keeper", "config user.email keeper@shop.example", "add .", "commit -qm Till"):
            git(project, *command.split())
        (project / ".git" / "first").touch()
        async with WireServer(WORK) as server:
            await asyncio.to_thread(day, project, server.base_url)
        git(project, "log", "--format=%an: %s")


def git(project: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=project, check=True)


def day(project: Path, base_url: str) -> None:
    """Three processes, one session."""
    options = ["--model", f"openai-compatible:scripted@{base_url}", "--journal", f"sqlite:///{project.parent}/till.db"]
    options += ["--tools", "coding", "--policy", str(HERE / "policy.toml")]
    environment = {**os.environ, "HOME": str(project.parent), "XDG_CONFIG_HOME": str(project.parent), "NO_COLOR": "1"}
    environment = {name: value for name, value in environment.items() if not name.startswith("INTERLOCK_")}

    def interlock(*arguments: str) -> subprocess.Popen[bytes]:
        print(f"\n$ interlock {' '.join(arguments)}", flush=True)
        command = [str(Path(sys.executable).with_name("interlock")), *arguments, *options]
        return subprocess.Popen(command, cwd=project, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    working = interlock("run", "--session", "till", "The total is wrong if somebody buys several of one thing. Mend it.")
    while (project / ".git" / "first").exists():
        if working.poll() is not None:
            raise SystemExit("it ended before the tests began")
        time.sleep(0.01)
    working.kill()
    working.wait()
    print("\n[killed while the tests ran: kill -9]", flush=True)
    expect(13, interlock("resume", "till"))
    expect(0, interlock("answer", "till", "--allow"))


def expect(code: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of ``process``, which must be ``code``: 0 answered, 13 waits for a person."""
    if process.wait() != code:
        raise SystemExit(f"exit code {process.returncode} instead of {code}")


if __name__ == "__main__":
    asyncio.run(main())
