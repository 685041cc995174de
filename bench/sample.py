"""One sample of one row, in a fresh process: ``sample.py WHO KIND PORT DIR [key=value ...]`` prints one JSON line.

WHO is ``bare`` or ``ours``. Time is CPU time, of all threads of this process (``getrusage``), except where the row is a
throughput. ``harness.py`` knows which kinds and options make up a row; ``prof=FILE`` adds a profile of what is measured.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # this directory last: profile.py must not hide the standard library's

import asyncio
import gc
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
TEXT = {"slow": 17, "r": 8, "p": 8, "a": 8}


def cpu(who: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


class Sample:
    """What every kind needs. ``measured`` is the region whose time counts."""

    def __init__(self, who: str, port: str, directory: str, options: dict[str, str]) -> None:
        self.who, self.port, self.directory, self.options = who, port, directory, options
        self.script = options.get("script", "r1")
        self.n, self.warm = int(options.get("n", 1)), int(options.get("warm", 3))
        self.profiler: Callable[[], AbstractContextManager[Any]] = nullcontext
        if "prof" in options and options["prof"] != "imports":
            from sampling import profiler

            self.profiler = lambda: profiler(options["prof"], options.get("how", "sampling"))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around the region that counts. What importing and warming up left to the garbage collector is collected before: its one
        pass over all modules would else fall into the region of some samples. gc=off keeps it out, for counts that must not jitter."""
        gc.collect()
        if self.options.get("gc") == "off":
            gc.disable()
        with self.profiler():
            yield

    def blocks(self) -> Iterator[int]:
        """How many units to do now, until all ``n`` are done.

        turns: they are done in so many blocks, each when a line has come on stdin, while the other side waits: whatever else slows the
        machine down for a second or ten slows both sides down.
        """
        turns = int(self.options.get("turns", 1))
        for turn in range(turns):
            if turns > 1:
                print("ready", flush=True)
                sys.stdin.readline()
            yield self.n * (turn + 1) // turns - self.n * turn // turns

    def adapter(self, script: str, **options: Any) -> Any:
        base = f"http://127.0.0.1:{self.port}/{script}/v1"
        if self.who == "bare":
            from adapters.bare_aiohttp import A

            chunk_layers = options.pop("chunk_layers", 0)
            options.pop("journal", None)
            return _chunk_layered(A, chunk_layers)(base, **options) if chunk_layers else A(base, **options)
        from adapters.ours import A as Ours

        return Ours(base, **options)

    def journal(self) -> str | None:
        durability = self.options.get("journal")
        return f"sqlite:///{self.directory}/{os.getpid()}.db?durability={durability}" if durability else None

    def check(self, reply: tuple[str, int]) -> None:
        """The whole answer has arrived: five letters per piece."""
        script = self.script
        pieces = TEXT.get(script) or TEXT.get(script[0]) or int(script[1:])
        if len(reply[0]) != pieces * 5:
            raise AssertionError(f"{self.who}: {len(reply[0])} characters instead of {pieces * 5}: {reply[0][:80]!r}")


def _chunk_layered(kind: Any, layers: int) -> Any:
    """The bare loop with plain generators around its stream."""

    async def through(inner: Any) -> Any:
        async for chunk in inner:
            yield chunk

    class Layered(kind):
        def stream(self, body: bytes) -> Any:
            stream = super().stream(body)
            for _ in range(layers):
                stream = through(stream)
            return stream

    return Layered


async def runs(sample: Sample) -> dict[str, float]:
    """``n`` runs, one after the other, after ``warm`` runs of the same, or of the short script if these are long."""
    adapter = sample.adapter(sample.script, journal=sample.journal())
    for _ in range(sample.warm):
        sample.check(await adapter.run("warm"))
    spent = 0.0
    with sample.measured():
        for block in sample.blocks():
            began = cpu()
            for _ in range(block):
                sample.check(await adapter.run("add 1 and 2"))
            spent += cpu() - began
    await adapter.close()
    return {"value": spent / sample.n / float(sample.options.get("per", 1)) * 1e6}


async def layers(sample: Sample) -> dict[str, float]:
    """What one more layer costs: runs with ``layers`` of them and without, by turns, in one process."""
    count, option = int(sample.options["layers"]), sample.options["option"]
    adapters = (sample.adapter(sample.script), sample.adapter(sample.script, **{option: count}))
    differences: list[float] = []
    for number in range(sample.warm + sample.n):
        spent = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            began = cpu()
            sample.check(await adapters[which].run("add 1 and 2"))
            spent[which] = cpu() - began
        differences.append(spent[1] - spent[0])
    for adapter in adapters:
        await adapter.close()
    return {"value": median(differences[sample.warm :]) / count / float(sample.options.get("per", 1)) * 1e6}


async def sessions(sample: Sample) -> dict[str, float]:
    """``n`` sessions at once, each slow because its provider is."""
    warm = sample.adapter("r1")
    for _ in range(sample.warm):
        await warm.run("warm")
    adapter = sample.adapter(sample.script)
    with sample.measured():
        began, clock = cpu(), time.perf_counter()
        replies = await asyncio.gather(*(adapter.run("add 1 and 2") for _ in range(sample.n)))
        spent, wall = cpu() - began, time.perf_counter() - clock
    for reply in replies:
        sample.check(reply)
    await adapter.close()
    await warm.close()
    return {"value": spent * 1e6, "wall_s": wall}


# What a new process does: (bare, ours). The last two get the base URL as their argument.
_FIRST_RUN = "\nasync def main():\n    a = A(sys.argv[1])\n    await a.run('add 1 and 2')\n    await a.close()\nasyncio.run(main())"
_PROGRAMS = {
    "import": ("pass", "import interlock"),
    "touch": ("import asyncio, msgspec", "import interlock; interlock.Agent"),
    "construct": (
        "import asyncio, sys\nfrom adapters.bare_aiohttp import A\n"
        "async def main():\n    a = A(sys.argv[1])\n    a.c = await a.client()\n    await a.close()\nasyncio.run(main())",
        "import asyncio, sys\nfrom adapters.ours import A\n"
        "async def main():\n    a = A(sys.argv[1])\n    await a.open()\n    await a.close()\nasyncio.run(main())",
    ),
    "first_run": (
        "import asyncio, sys\nfrom adapters.bare_aiohttp import A" + _FIRST_RUN,
        "import asyncio, sys\nfrom adapters.ours import A" + _FIRST_RUN,
    ),
}


async def process(sample: Sample) -> dict[str, Any]:
    """The CPU time of whole processes, each a fresh interpreter."""
    program = _PROGRAMS[sample.options["program"]][sample.who != "bare"]
    command = [sys.executable, "-c", program, f"http://127.0.0.1:{sample.port}/r1/v1"]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    subprocess.run(command, check=True, env=environment, cwd=sample.directory)  # the files are in the page cache from here on
    if "prof" in sample.options:
        command[1:1] = ["-X", "importtime"]
        return {
            "imports": subprocess.run(command, check=True, env=environment, cwd=sample.directory, capture_output=True, text=True).stderr
        }
    began = cpu(resource.RUSAGE_CHILDREN)
    for block in sample.blocks():
        for _ in range(block):
            subprocess.run(command, check=True, env=environment, cwd=sample.directory)
    return {"value": (cpu(resource.RUSAGE_CHILDREN) - began) / sample.n * 1e6}


async def append(sample: Sample) -> dict[str, float]:
    """Rows per second of ``producers`` that each write ``rows`` rows and wait for them, over and over, through a power cut."""
    from append import bare, ours

    with sample.measured():
        write = bare if sample.who == "bare" else ours
        rate = await write(
            f"{sample.directory}/{os.getpid()}.db",
            producers=int(sample.options["producers"]),
            rows=int(sample.options["rows"]),
            rounds=sample.n,
        )
    return {"value": rate}


async def wire(sample: Sample) -> dict[str, float]:
    """One streamed chunk over a vendor's own wire, read by the adapter alone or by a bare loop."""
    import wires

    spoken, pieces = wires.WIRES[sample.options["wire"]], int(sample.options["per"])
    server = subprocess.Popen([sys.executable, str(HERE / "wires.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        base = f"http://127.0.0.1:{server.stdout.readline().strip()}/{sample.options['wire']}/{pieces}"
        run = await (wires.bare if sample.who == "bare" else wires.ours)(spoken, base)
        for _ in range(sample.warm):
            assert len(await run()) == 5 * pieces
        with sample.measured():
            spent = 0.0
            for block in sample.blocks():
                began = cpu()
                for _ in range(block):
                    await run()
                spent += cpu() - began
        await run.close()
    finally:
        server.terminate()
        server.wait()
    return {"value": spent / sample.n / pieces * 1e6}


async def main() -> None:
    who, kind, port, directory, *pairs = sys.argv[1:]
    sample = Sample(who, port, directory, dict(pair.split("=", 1) for pair in pairs))
    kinds: dict[str, Any] = {"runs": runs, "layers": layers, "sessions": sessions, "process": process, "append": append, "wire": wire}
    print(json.dumps(await kinds[kind](sample)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
