"""The rows of the table, the scripted server, and the starting of one sample."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SAMPLE_TIMEOUT_S = 300


@dataclass(frozen=True)
class Row:
    """One line of the table.

    kind and options: what ``sample.py`` does. target: of the ratio, or of our own value if ``absolute``, at most; at least
    for a throughput (unit ``rows/s``); None says that the row has none. quick: ``n`` of a quick look.
    """

    name: str
    what: str
    kind: str
    n: int
    quick: int
    options: dict[str, Any] = field(default_factory=dict)
    unit: str = "us"
    target: float | None = None
    absolute: bool = False

    @property
    def more_is_better(self) -> bool:
        return self.unit == "rows/s"


def _run(name: str, what: str, target: float | None, n: int, quick: int, **options: Any) -> Row:
    return Row(name, what, "runs", n, quick, options, target=target)


def _program(name: str, what: str, target: float | None, n: int) -> Row:
    return Row(name, what, "process", n, max(n // 3, 3), {"program": name}, target=target)


ROWS = (
    _run("run-memory", "one run with one tool, memory journal", 2.0, 300, 60, script="r1", warm=30),
    _run("run-process", "the same, SQLite, durability process", 2.5, 300, 60, script="r1", warm=30, journal="process"),
    _run("run-power", "the same, SQLite, durability power", 4.5, 200, 40, script="r1", warm=20, journal="power"),
    _run("chunk", "one streamed chunk, in a burst", 1.4, 20, 5, script="s10000", warm=2, per=10_000),
    Row(
        "chunk-google", "one chunk of Gemini's, the adapter alone", "wire", 20, 5, {"wire": "google", "warm": 2, "per": 10_000}, target=1.5
    ),
    Row(
        *("chunk-responses", "one event of the Responses API, the adapter alone", "wire", 20, 5),
        {"wire": "responses", "warm": 2, "per": 10_000},
        target=1.5,
    ),
    Row(
        "chunk-anthropic",
        "one event of Anthropic's, the adapter alone",
        "wire",
        20,
        5,
        {"wire": "anthropic", "warm": 2, "per": 10_000},
        target=1.5,
    ),
    _run("round-200", "one tool round at history 200", 2.0, 8, 2, script="r200", warm=1, per=201),
    _run("round-800", "one tool round at history 800", 2.0, 4, 1, script="r800", warm=1, per=801),
    _run("fragment", "one argument fragment, its event included", 1.5, 20, 5, script="a4000-40000", warm=2, per=4000),
    _run("fragment-x4", "the same in a call of four times as many", 1.5, 5, 2, script="a16000-160000", warm=1, per=16_000),
    _run("parallel-memory", "one of 32 parallel calls, memory journal", 3.0, 60, 15, script="p32", warm=5, per=32),
    _run("parallel-sqlite", "one of 32 parallel calls, SQLite", 5.0, 60, 15, script="p32", warm=5, per=32, journal="process"),
    Row(
        "layer-tool",
        "a layer on a tool call",
        "layers",
        40,
        10,
        {"script": "p32", "layers": 16, "option": "layers", "per": 32},
        target=1.0,
        absolute=True,
    ),
    Row(
        "layer-chunk",
        "a layer on a stream, per chunk",
        "layers",
        10,
        4,
        {"script": "s4000", "layers": 16, "option": "chunk_layers", "per": 4000},
        target=0.2,
        absolute=True,
    ),
    Row("sessions", "1,000 slow sessions at once", "sessions", 1000, 200, {"script": "slow", "warm": 2}, target=1.7),
    _program("import", "`import interlock`; bare: python alone", 1.3, 12),
    _program("touch", "`interlock.Agent`; bare: asyncio + msgspec", 1.3, 10),
    _program("construct", "import and construct, first model included", 1.7, 5),
    _program("first_run", "the same, and one run with one tool", None, 5),
    Row(
        "append-1",
        "durable append, power, 64 producers, 1 row per wait",
        "append",
        400,
        100,
        {"producers": 64, "rows": 1},
        unit="rows/s",
        target=0.4,
    ),
    Row("append-5", "the same, 5 rows per wait; bare: 1", "append", 200, 50, {"producers": 64, "rows": 5}, unit="rows/s", target=1.0),
)


def choose(words: list[str]) -> list[Row]:
    """The rows whose names begin with one of ``words``; all, if there are none."""
    unknown = [word for word in words if not any(row.name.startswith(word) for row in ROWS)]
    if unknown:
        raise SystemExit(f"no row is called {', '.join(unknown)}; there are: {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if not words or any(row.name.startswith(word) for word in words)]


@contextmanager
def server() -> Iterator[int]:
    """The scripted server in a process of its own, on a free port of the loopback; ended with the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 4096:  # 1,000 sessions are 1,000 sockets, here and there
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if hard == resource.RLIM_INFINITY else min(4096, hard), hard))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A termination unwinds like any other end, so that the server goes with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # It ends by itself after an hour, should this process be killed.
    process = subprocess.Popen([sys.executable, str(HERE / "server.py"), str(port), "3600"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready"):
            raise SystemExit("the scripted server did not start")
        yield port
    finally:
        process.terminate()
        process.wait()


TURNS = 20
"""In how many blocks a sample is made at most."""

BY_TURNS = frozenset({"runs", "process", "wire"})
"""The kinds of row whose two sides can take turns."""


def sample(row: Row, who: str, port: int, *, quick: bool = False, under: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """One sample in a fresh process; what it leaves on the disk is removed. Time is in microseconds.

    under: a command that runs the process, as valgrind does.
    """
    with _started(row, who, port, {"n": row.quick if quick else row.n, **row.options, **options}, under) as process:
        return json.loads(_line(process, last=True))


def pair(row: Row, port: int, *, quick: bool, bare_first: bool) -> tuple[float, float]:
    """A sample of each side, (bare, ours), as near in time as can be: by turns if the kind of row allows it, else one after the other."""
    sides = ("bare", "ours") if bare_first else ("ours", "bare")
    n = row.quick if quick else row.n
    if row.kind not in BY_TURNS or n < 2:
        values = {who: sample(row, who, port, quick=quick)["value"] for who in sides}
        return values["bare"], values["ours"]
    options = {"n": n, **row.options, "turns": min(n, TURNS)}
    with ExitStack() as stack:
        both = {who: stack.enter_context(_started(row, who, port, options)) for who in sides}
        lines = {who: _line(both[who]) for who in sides}  # "ready"
        for turn in range(options["turns"]):
            for who in sides if turn % 2 == 0 else reversed(sides):
                process = both[who]
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                lines[who] = _line(process)
    bare, ours = (json.loads(lines[who])["value"] for who in ("bare", "ours"))
    return bare, ours


@contextmanager
def _started(row: Row, who: str, port: int, options: dict[str, Any], under: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A process that makes one sample; it is over with the block."""
    if row.name == "append-5" and who == "bare":
        options = {**options, "rows": 1}
    # No key, proxy, hash seed or tool of the user's changes a number; what is imported is compiled once, as it is for users.
    changing = ("PYTHONDONTWRITEBYTECODE", "PYTHONPROFILEIMPORTTIME", "PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONTRACEMALLOC")
    environment = {name: value for name, value in os.environ.items() if name not in changing and not name.lower().endswith("_proxy")}
    environment |= {"OPENAI_API_KEY": "k", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="interlock-bench-") as directory, open(f"{directory}/errors", "w+") as errors:
        arguments = [who, row.kind, str(port), directory, *(f"{name}={value}" for name, value in options.items())]
        process = subprocess.Popen(
            [*under, sys.executable, str(HERE / "sample.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        stuck = threading.Timer(SAMPLE_TIMEOUT_S, process.kill)
        stuck.start()
        try:
            yield process
            if process.wait():
                raise EOFError
        except EOFError:
            process.wait()
            errors.seek(0)
            raise SystemExit(f"{row.name}, {who}: the sample failed\n{errors.read()}") from None
        finally:
            stuck.cancel()
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str], *, last: bool = False) -> str:
    """What the process says next, or last. Raises EOFError if it is gone."""
    assert process.stdout is not None
    lines = process.stdout.readlines() if last else [process.stdout.readline()]
    if not lines or not lines[-1]:
        raise EOFError
    return lines[-1]


def instructions(row: Row, who: str, port: int) -> float:
    """How many instructions one unit of ``row`` takes, which a busy machine does not change: the difference between a sample
    and one twice as long, under valgrind."""
    counts: list[int] = []
    for n in (row.quick, 2 * row.quick):
        with tempfile.TemporaryDirectory(prefix="interlock-bench-") as directory:
            out = f"{directory}/callgrind"
            sample(row, who, port, under=("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}"), n=n, gc="off")
            counts += [int(line.split()[1]) for line in Path(out).read_text().splitlines() if line.startswith("summary:")]
    return (counts[1] - counts[0]) / row.quick / float(row.options.get("per", 1))
