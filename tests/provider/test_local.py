"""A model on this machine: its process, which is started, ends and fails; the engine is a stand-in, its process and socket are real."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from helpers import limits, looped
from interlock import Agent, ProviderError, UsageError
from interlock.events import TextDelta
from interlock.messages import UserMessage
from interlock.model import ModelRequest, ModelResponse
from interlock.providers.local import LocalModel
from interlock.providers.local_server import LocalServer

ENGINE = Path(__file__).parent / "engine"


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the stand-in serves. The child has this process's path, and so the same engine."""
    monkeypatch.syspath_prepend(str(ENGINE))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


def asked(text: str) -> ModelRequest:
    return ModelRequest(messages=(UserMessage(content=text),))


async def answer(model: Any, text: str) -> ModelResponse:
    events = [event async for event in model.stream(asked(text))]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == events[-1].message.content
    return events[-1]


def child_of(model: LocalModel) -> subprocess.Popen[bytes]:
    server: Any = model._server
    return server._process


def test_the_model_is_started_once_with_what_was_asked_for_ends_at_aclose_and_starts_again(weights: Path) -> None:
    @looped
    async def main() -> None:
        model = LocalModel(weights, context=512, threads=3, parallel=2, gpu_layers=0)
        assert (model.name, model.native_output) == ("tiny", True)
        shown = json.loads((await answer(model, "params")).message.content)
        child = child_of(model)
        assert (shown["n_ctx"], shown["n_parallel"], shown["threads"], shown["n_gpu_layers"]) == (1024, 2, 3, 0)
        assert (shown["hostnames"], shown["port"], shown["ui"], shown["grammar"]) == (["127.0.0.1"], 0, False, "")
        assert shown["connection"] == "close"  # a connection that llama.cpp closes while it is used again would cost an attempt
        assert (await answer(model, "Again.")).message.content == "Again."
        assert child_of(model) is child
        await model.aclose()
        assert child.returncode is not None
        await model.aclose()
        assert (await answer(model, "Good morning.")).message.content == "Good morning."
        assert child_of(model) is not child
        await model.aclose()

    main()


def test_a_call_and_an_answer_come_out_of_the_form_over_the_real_socket(weights: Path) -> None:
    ran: list[str] = []

    def note(text: str) -> str:
        """Keep a note."""
        ran.append(text)
        return '{"answer":"Noted: \\u00e9 \\ud83d\\ude00"}'

    @looped
    async def main() -> None:
        async with await Agent.create(LocalModel(weights), tools=[note]) as agent:
            # The stand-in says what it was told last: first the call, then the tool's result.
            result = await agent.run('{"tool":"note","arguments":{"text": "milk"}}')
        assert result.require().text == "Noted: \u00e9 \U0001f600"
        assert result.messages[1].tool_calls[0].arguments == '{"text": "milk"}'

    main()
    assert ran == ["milk"]


def test_a_consumer_that_leaves_closes_the_connection_at_once_and_the_engine_notices(weights: Path) -> None:
    @looped
    async def main() -> None:
        model = LocalModel(weights)
        async with aclosing(model.stream(asked("hold"))) as events:
            assert await anext(events) == TextDelta("h")
            began = time.monotonic()
        assert time.monotonic() - began < 0.25
        async with asyncio.timeout(10):
            while not weights.with_name("left").exists():
                await asyncio.sleep(0.005)
        assert child_of(model).poll() is None
        await model.aclose()

    main()


def test_a_process_that_dies_is_a_cut_that_says_so_and_the_next_attempt_starts_another(weights: Path) -> None:
    @looped
    async def main() -> None:
        model = LocalModel(weights)
        with pytest.raises(ProviderError, match=r"tiny: the server of this model is gone: signal 9 ended its process") as failed:
            await answer(model, "die")
        assert (failed.value.retryable, failed.value.kind) == (True, "cut")
        assert (await answer(model, "Yes.")).message.content == "Yes."
        await model.aclose()

    main()


@pytest.mark.parametrize(
    ("content", "says", "code"),
    [
        (b"broken", "error loading model: data is not within the file bounds", "not_loaded"),
        (b"huge", "out of memory: .*attempted to allocate 9 MB.*pass a smaller context=", "out_of_memory"),
        (b"killed", "signal 9 ended its process, as a system does that is out of memory", "not_loaded"),
    ],
)
def test_a_file_that_cannot_be_loaded_says_why_and_is_not_tried_again(weights: Path, content: bytes, says: str, code: str) -> None:
    weights.write_bytes(b"GGUF" + content)

    @looped
    async def main() -> None:
        model = LocalModel(weights)
        with pytest.raises(ProviderError, match=says) as failed:
            await answer(model, "Hello.")
        assert (failed.value.retryable, failed.value.code) == (False, code)
        await model.aclose()

    main()


def test_a_conversation_that_does_not_fit_names_the_context(weights: Path) -> None:
    @looped
    async def main() -> None:
        model = LocalModel(weights, context=256)
        with pytest.raises(ProviderError, match="context=256 is too small for this conversation") as failed:
            await answer(model, "too long")
        assert (failed.value.retryable, failed.value.status) == (False, 400)
        await model.aclose()

    main()


def test_loading_has_a_bound_and_a_caller_who_leaves_meanwhile_leaves_it_loading(weights: Path) -> None:
    weights.write_bytes(b"GGUFslow")

    @looped
    async def main() -> None:
        model = LocalModel(weights, start_timeout_s=0.05)
        with pytest.raises(ProviderError, match=r"not loaded within 0\.05 s") as failed:
            await answer(model, "Hello.")
        assert failed.value.kind == "timeout"
        await model.aclose()
        model = LocalModel(weights)
        waiting = asyncio.create_task(answer(model, "Hello."))
        while model._server is None:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        child = child_of(model)
        assert waiting.cancelled()
        assert child.poll() is None
        await model.aclose()
        assert child.returncode == -signal.SIGKILL

    main()


def test_a_model_that_nobody_closes_leaves_no_process(weights: Path) -> None:
    @looped
    async def main() -> subprocess.Popen[bytes]:
        model = LocalModel(weights)
        await answer(model, "Hello.")
        children.append(child_of(model))

    children: list[subprocess.Popen[bytes]] = []
    main()
    gc.collect()
    assert children[0].returncode is not None


def test_the_server_ends_when_the_process_that_started_it_is_killed(weights: Path) -> None:
    code = f"""
import asyncio, os, signal, sys
sys.path.insert(0, {str(ENGINE)!r})
from interlock.messages import UserMessage
from interlock.model import ModelRequest
from interlock.providers.local import LocalModel
async def main():
    model = LocalModel({str(weights)!r})
    async for event in model.stream(ModelRequest(messages=(UserMessage(content="hold"),))):
        print(model._server._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    child = int(done.stdout)
    until = time.monotonic() + 10
    while _alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")  # a zombie waits for its reaper


def test_what_cannot_be_a_model_is_refused_before_anything_starts(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.gguf").write_text("no weights")
    for path, says in [
        (tmp_path / "absent.gguf", "cannot be read"),
        (tmp_path, "cannot be read"),
        (tmp_path / "text.gguf", "not a GGUF file"),
    ]:
        with pytest.raises(UsageError, match=says):
            LocalModel(path)
    for wrong in ({"context": 8}, {"context": True}, {"threads": 0}, {"parallel": 0}, {"gpu_layers": -1}, {"start_timeout_s": 0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            LocalModel(weights, **wrong)
    find = importlib.util.find_spec
    monkeypatch.setattr("interlock.providers.local.find_spec", lambda name: None if name == "xllamacpp" else find(name))
    with pytest.raises(UsageError, match=re.escape('pip install "interlock[local]"')):
        LocalModel(weights)


def test_a_spec_string_names_a_file(weights: Path) -> None:
    @looped
    async def main() -> None:
        async with await Agent.create(f"local:{weights}", limits=limits(cost_usd=0.01)) as agent:  # it costs nothing
            assert (await agent.run("Good evening.")).require().text == "Good evening."
        with pytest.raises(UsageError, match="cannot be read"):
            await Agent.create(f"local:{weights}.absent")

    main()


def test_the_agents_process_never_loads_the_engine(weights: Path) -> None:
    @looped
    async def main() -> None:
        model = LocalModel(weights)
        await answer(model, "Hello.")
        await model.aclose()

    main()
    assert "xllamacpp" not in sys.modules


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("sys.exit(3)", "its process ended with code 3: it said nothing"),
        ("sys.exit('no such module')", "its process ended with code 1: no such module"),
        ("print('0.1 W failed to allocate 3 MB'); print('0.2 E other'); sys.exit(1)", "out of memory: 0.1 W failed to allocate 3 MB"),
        ("print('0.1 E first'); print('0.2 E second'); sys.exit(1)", "cannot be loaded: first"),
    ],
)
def test_a_process_that_never_serves_is_told_by_its_own_words(code: str, says: str) -> None:
    @looped
    async def main() -> None:
        server = LocalServer({}, command=(sys.executable, "-c", f"import sys; {code}"))
        with pytest.raises(ProviderError, match=re.escape(says)):
            await server.ready(20)
        await server.ended()
        server.stop()

    main()


def test_a_process_that_cannot_be_started_is_an_error_of_the_model(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(weights.with_name("no-python")))

    @looped
    async def main() -> None:
        with pytest.raises(ProviderError, match=r"tiny: the model's process cannot be started: .*no-python"):
            await answer(LocalModel(weights), "Hello.")

    main()


def test_closing_the_model_ends_a_reply_that_is_being_made_as_a_cut_that_says_so(weights: Path) -> None:
    @looped
    async def main() -> None:
        model = LocalModel(weights)
        stream = model.stream(asked("hold"))
        await anext(stream)
        await model.aclose()
        with pytest.raises(ProviderError, match="the server of this model is gone: it was stopped"):
            await anext(stream)

    main()


def test_ctrl_c_in_a_terminal_does_not_reach_the_engine(weights: Path) -> None:
    @looped
    async def main() -> None:
        model = LocalModel(weights)
        await answer(model, "Hello.")
        assert os.getpgid(child_of(model).pid) != os.getpgid(0)
        await model.aclose()

    main()
