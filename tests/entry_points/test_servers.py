"""Servers that are not there, not what they should be, or not for us: a ProviderError that says what to check."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock import Agent, AgentRunConfig, Limits, Outcome, ProviderError
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import WireServer, error, raw, text

from .saying import refused

QUICK = Limits(backoff_s=0.001, backoff_max_s=0.001)
SESSION = AgentRunConfig(session_id="s")


def run_against(base_url: str, **options: Any) -> None:
    async def main() -> None:
        model = OpenAIChatModel("m", base_url=base_url, api_key="sk-secret", **options)
        async with await Agent.create(model, limits=QUICK) as agent:
            await agent.run("Hello.")

    asyncio.run(main())


def refused_as_provider(base_url: str, *words: str, **options: Any) -> None:
    with refused(*words, kind=ProviderError):
        run_against(base_url, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def speaking(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """A server that speaks as ``talk`` does, and its address without a scheme."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def test_a_server_that_is_not_running_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    refused_as_provider(url, "cannot connect", url, "base_url")


def test_a_name_that_does_not_exist_is_named() -> None:
    refused_as_provider("http://no-such-host.invalid/v1", "no-such-host.invalid", "base_url")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"220 mail.example.org ESMTP\r\n", ("HTTP", "base_url")),
        (b"", ("closed the connection",)),
        (b"\x00\xff\x00\xff" * 100, ("HTTP", "base_url")),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>", ("text/html", "base_url")),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]", ()),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", ("302",)),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found", ("404", "base_url")),
    ],
)
def test_a_server_that_speaks_otherwise_says_what_to_check(answer: bytes, words: tuple[str, ...]) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

        async with speaking(talk) as address:
            model = OpenAIChatModel("m", base_url=f"http://{address}/v1", api_key="sk-secret")
            async with await Agent.create(model, limits=QUICK) as agent:
                with refused(*words, kind=ProviderError):
                    await agent.run("Hello.")

    asyncio.run(main())


def test_tls_to_a_plain_port_and_plain_to_a_tls_port_are_errors_that_name_the_address() -> None:
    async def main() -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        async with speaking(plain) as address:
            url = f"https://{address}/v1"
            async with await Agent.create(OpenAIChatModel("m", base_url=url), limits=QUICK) as agent:
                with refused(url, "base_url", kind=ProviderError):
                    await agent.run("Hello.")

        async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"\x15\x03\x01\x00\x02\x02\x46")  # what a TLS server says to plain text

        async with speaking(alert) as address:
            async with await Agent.create(OpenAIChatModel("m", base_url=f"http://{address}/v1"), limits=QUICK) as agent:
                with refused(address, kind=ProviderError):
                    await agent.run("Hello.")

    asyncio.run(main())


def test_a_key_is_in_no_error_message() -> None:
    async def main() -> None:
        async with WireServer(lambda body: error(401, "Incorrect API key provided: sk-secret")) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, api_key="sk-0123456789")
            async with await Agent.create(model, limits=QUICK) as agent:
                with pytest.raises(ProviderError, match="401") as caught:
                    await agent.run("Hello.")
                assert "sk-0123456789" not in repr(caught.value) + str(caught.value) + repr(model)

    asyncio.run(main())


def test_a_run_that_failed_for_good_can_be_resumed_when_the_server_is_back() -> None:
    async def main() -> None:
        async with WireServer([error(400), text("Back.")]) as server:
            async with await Agent.create(OpenAIChatModel("m", base_url=server.base_url), limits=QUICK, config=SESSION) as agent:
                with refused("400", kind=ProviderError):
                    await agent.run("Hello.")
                result = await agent.resume()
                assert (result.outcome, result.text) == (Outcome.COMPLETED, "Back.")

    asyncio.run(main())


def test_a_reply_without_end_is_bounded() -> None:
    async def main() -> None:
        chunk = {"choices": [{"index": 0, "delta": {"content": "x" * 1000}, "finish_reason": None}]}
        async with WireServer(lambda body: raw(*[chunk] * 300)) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, response_bytes_max=100_000)
            async with await Agent.create(model, limits=QUICK) as agent:
                with refused("100,000 bytes", kind=ProviderError):
                    await agent.run("Hello.")
            assert len(server.requests) == 1

    asyncio.run(main())


def test_a_server_that_goes_silent_is_left() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with WireServer(lambda body: raw(b"", gate)) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, idle_timeout_s=0.05, first_byte_timeout_s=0.05)
            async with await Agent.create(model, limits=Limits(backoff_s=0.0, model_attempts=2)) as agent:
                with refused("0.05 s", kind=ProviderError):
                    await agent.run("Hello.")
            await server.requests[-1].disconnected.wait()

    asyncio.run(main())
