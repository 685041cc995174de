"""An agent with its default layers: no URL into this machine or its network reaches a tool, however it is written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers import play
from interlock import tool
from interlock.extensions.urlguard import UrlGuard
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, ToolStepEnded
from interlock.testing import call, calls, text

INSIDE = [
    # IPv4 inside IPv6
    *("http://[64:ff9b::a9fe:a9fe]/latest/meta-data", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::]/"),
    *("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[::ffff:169.254.169.254]/", "http://[::1]/"),
    # IPv4 in other digits
    *("http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://0177.0.0.1/", "http://0x7f000001/", "http://127.0.0.1./"),
    # names
    *("http://LOCALHOST/", "HTTP://LocalHost:8080/", "http://localhost./", "http://a.localhost/", "http://intranet/", "http://db:5432/"),
    # userinfo
    *("http://example.com@127.0.0.1/", "http://user:password@localhost/", "http://user@169.254.169.254/"),
]


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("url", INSIDE)
def test_an_address_inside_is_a_veto_and_the_tool_does_not_even_fall_through_to_its_reader_service(url: str, network: bool) -> None:
    fetched: list[str] = []

    @tool(network=network)
    async def fetch(url: str, options: dict[str, Any] | None = None) -> str:
        """Fetch a page; by way of a reader service if that fails."""
        fetched.append(url)
        return "a page"

    steps = [
        calls(call("c1", "fetch", {"url": url}), call("c2", "fetch", {"url": "data:,x", "options": {"via": [url]}})),
        text("I may not."),
    ]
    played = asyncio.run(play(steps, tools=[fetch]))
    results = [m for m in played.result.messages if isinstance(m, ToolMessage)]
    assert fetched == []
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]
    for result in results:
        assert str(result.content).startswith("Tool error (fetch): SSRF violation: ")
        assert (result.failed, result.effect) == (True, "none")
    decided = {record.decided_by for record in played.records if isinstance(record, ToolStepEnded)}
    assert decided == {"UrlGuard"}


@pytest.mark.parametrize("url", [url for url in INSIDE if not url.rpartition("@")[2].startswith("http://[")])
def test_a_name_or_a_number_inside_is_a_veto_whatever_the_resolver_says(url: str) -> None:
    @tool(network=True)
    async def fetch(url: str) -> str:
        """Fetch a page."""
        return "a page"

    async def public(host: str) -> list[str]:
        return ["8.8.8.8"]

    played = asyncio.run(
        play([calls(call("c1", "fetch", {"url": url})), text("No.")], tools=[fetch], extensions=[UrlGuard(resolve=public)])
    )
    assert not [record for record in played.records if isinstance(record, HandlerStarted)]


@pytest.mark.parametrize("url", ["http://8.8.8.8/", "http://[2606:4700::1]/", "http://[64:ff9b::808:808]/", "http://[::ffff:8.8.8.8]/"])
def test_a_public_address_passes_in_the_same_forms(url: str) -> None:
    fetched: list[str] = []

    @tool(network=True)
    async def fetch(url: str) -> str:
        """Fetch a page."""
        fetched.append(url)
        return "a page"

    asyncio.run(play([calls(call("c1", "fetch", {"url": url})), text("Done.")], tools=[fetch]))
    assert fetched == [url]
