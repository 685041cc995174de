"""The application in the documentation, on a real socket: what happens when an HTTP client leaves in the middle of an answer."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
import uvicorn

from interlock.messages import AssistantMessage, UserMessage
from interlock.testing import WireServer, hold, raw, text, when

EXAMPLE = Path(__file__).parent.parent / "examples" / "fastapi_app.py"
SOCKET_S = 0.25


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """uvicorn with ``app`` on a loopback socket of its own, as it runs in production but for signals and logs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=2))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started and not task.done():
                await asyncio.sleep(0.01)
            assert server.started
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def roles(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


async def lines_of(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in response.content]


@pytest.mark.parametrize("model_is", ["silent", "writing"])
def test_a_client_that_leaves_closes_the_providers_socket_and_the_session_goes_on(
    model_is: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        never = asyncio.Event()
        endless = [{"choices": [{"index": 0, "delta": {"content": "and on "}}]} for _ in range(20_000)]
        first = hold(never, after="It is a long") if model_is == "silent" else raw(*endless)
        again = when(lambda body: roles(body) == ["user", "user"], text("Forty-two."))
        async with WireServer([first, again, text("Somebody else.")]) as provider:
            monkeypatch.setenv("INTERLOCK_MODEL", f"openai-compatible:scripted@{provider.base_url}")
            app = example().app
            async with serving(app) as url, aiohttp.ClientSession() as client:
                async with client.post(f"{url}/chats/one", params={"prompt": "Tell me."}) as response:
                    assert response.status == 200
                    assert "text" in json.loads(await response.content.readline())
                    response.close()  # the connection, in mid-stream
                    left_at = asyncio.get_running_loop().time()
                await asyncio.wait_for(provider.requests[0].disconnected.wait(), 5)
                assert provider.requests[0].disconnected_at is not None
                assert provider.requests[0].disconnected_at - left_at < SOCKET_S

                async def ended() -> bool:
                    return any(type(row.record).__name__ == "RunEnded" for row in await app.state.agent.session("one").records())

                async with asyncio.timeout(5):
                    while not await ended():
                        await asyncio.sleep(0.01)

                async with client.post(f"{url}/chats/one", params={"prompt": "And?"}) as response:
                    lines = await lines_of(response)
                assert "".join(line.get("text", "") for line in lines) == "Forty-two."
                assert lines[-1] == {"outcome": "completed", "answer": "Forty-two."}
                kept = await app.state.agent.session("one").messages()
                assert kept == (UserMessage(content="Tell me."), UserMessage(content="And?"), AssistantMessage(content="Forty-two."))

                async with client.post(f"{url}/chats/two", params={"prompt": "Who is there?"}) as response:
                    assert (await lines_of(response))[-1]["answer"] == "Somebody else."
                assert roles(provider.requests[2].body) == ["user"]

    monkeypatch.chdir(tmp_path)
    asyncio.run(scenario())
