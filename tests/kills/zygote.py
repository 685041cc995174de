"""A process that has everything imported and starts lives by forking: 10 ms each instead of 500.

A life is a process of its own all the same: everything that has a file, a thread or an event loop is made after the fork.
The zygote is told what to do in lines of JSON on its standard input, and answers each on its standard output.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from kills.life import Plan, Stops

LIFE_MAX_S = 30.0
"""A life that says nothing for so long hangs."""


class Zygote:
    """The harness's side: starts lives, hears them, kills them. Use it with ``with``; leaving it leaves no process behind."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="interlock-kills-")
        self.control = str(Path(self._folder.name) / "control")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.control)
        self._listener.listen(1)
        self._listener.settimeout(LIFE_MAX_S)
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, plan: Plan) -> LiveProcess:
        pid = self._ask(fork=asdict(plan))
        connection, _ = self._listener.accept()
        return LiveProcess(pid, connection, self)

    def reap(self, pid: int) -> int:
        """Wait until the process is gone, and its locks with it. Its exit code, or minus the signal."""
        return os.waitstatus_to_exitcode(self._ask(reap=pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input is the end of it
        self._listener.close()
        self._folder.cleanup()

    def _ask(self, **what: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class LiveProcess:
    """One life, as the harness sees it."""

    def __init__(self, pid: int, connection: socket.socket, zygote: Zygote) -> None:
        self.pid = pid
        self._connection = connection
        self._zygote = zygote
        self._heard = b""

    def hear(self, *, until: float | None = None) -> dict[str, Any] | None:
        """What it says next. None when it has nothing more to say, or nothing yet at ``until`` (by ``time.monotonic``)."""
        while b"\n" not in self._heard:
            wait_s = LIFE_MAX_S if until is None else until - time.monotonic()
            if wait_s <= 0:
                return None
            self._connection.settimeout(wait_s)
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                if until is None:
                    return {"what": "hangs"}
                return None
            if not data:
                return None
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def kill(self) -> list[dict[str, Any]]:
        """SIGKILL. Returns what it had said and nobody had heard yet."""
        os.kill(self.pid, signal.SIGKILL)
        rest: list[dict[str, Any]] = []
        while (said := self.hear()) is not None:
            rest.append(said)
        return rest

    def end(self) -> int:
        """Wait until it is gone. Its exit code, or minus the signal."""
        code = self._zygote.reap(self.pid)
        self._connection.close()
        return code


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import gc
    import logging
    from importlib import import_module

    from kills.life import Plan, tools

    # What an agent imports when it is first used; a life should spend its time on living.
    for name in ("agent.assembly", "agent.models", "driver.run", "journal.sqlite", "providers.openai"):
        import_module(f"interlock.{name}")
    tools(cast("Stops", None), Path())  # their schemas load pydantic; nothing is called
    logging.getLogger("interlock").addHandler(logging.NullHandler())  # vetoes are meant here
    gc.freeze()
    lives: set[int] = set()
    while line := sys.stdin.readline():
        told = json.loads(line)
        if "reap" in told:
            lives.discard(told["reap"])
            print(os.waitpid(told["reap"], 0)[1], flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _live(Plan(**told["fork"]))
        lives.add(pid)
        print(pid, flush=True)
    for pid in lives:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _live(plan: Plan) -> None:
    """In the child; never returns."""
    import asyncio

    from kills.life import Line, live

    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    line = Line(plan.control)
    try:
        asyncio.run(live(plan, line))
    except BaseException:
        line.say("error", trace=traceback.format_exc())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
