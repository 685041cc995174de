"""One table of URLs, three ways to ask about each: the check itself, UrlGuard around any tool, and fetch_url without it. One verdict."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock import Agent, Limits, Tool, ToolFailure
from interlock.extensions.urlguard import UrlGuard
from interlock.messages import ToolMessage, text_of
from interlock.records import Traits
from interlock.testing import ScriptedModel, call, calls, text
from interlock.toolbox.netcheck import UnsafeUrl, check_url

from .web_world import World, client_tls, moved, world

PUBLIC_A, PUBLIC_B = "93.184.216.34", "2606:2800:220:1::1"
ZONE = {
    "example.com": [[PUBLIC_A, PUBLIC_B]],
    "www.example.com": [[PUBLIC_A]],
    "a-b.c_d.example.com": [[PUBLIC_A]],
    "xn--bcher-kva.example": [["8.8.8.8"]],
    "six.example.com": [["2606:4700::1111"]],
    "nat64.example.com": [["64:ff9b::808:808"]],
    "127.0.0.1.example.com": [["8.8.8.8"]],
    "localhost.example.com": [["8.8.8.8"]],
    "private.example": [["10.0.0.1"]],
    "loop.example": [["127.0.0.1"]],
    "loop6.example": [["::1"]],
    "mixed.example": [["8.8.8.8", "10.0.0.1"]],
    "mixed6.example": [["8.8.8.8", "fd00::1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "bad64.example": [["64:ff9b::a9fe:a9fe"]],
    "bad6to4.example": [["2002:7f00:1::"]],
    "isatap.example": [["2606:4700::5efe:7f00:1"]],
    "cloud.example": [["169.254.169.254"]],
    "agent.example": [["168.63.129.16"]],
    "empty.example": [[]],
}

HOSTILE = [
    # IPv4 as resolvers take it, and what only looks like it
    *("http://127.0.0.1", "http://127.0.0.1:8000/x", "http://2130706433/", "http://0x7f.1", "http://0X7F000001", "http://127.1"),
    *("http://127.0.1", "http://017700000001", "http://0177.0.0.1", "http://0x7f.0x0.0x0.0x1", "http://00000177.0.0.1", "http://0/"),
    *("http://0.0.0.0", "http://256.1.1.1", "http://4294967296", "http://1.2.3.4.5", "http://08.8.8.8", "http://example.0x7f"),
    *("http://127.0.0.1.", "http://127.0.0.1..", "http://2852039166/latest/meta-data", "http://0xa9fea9fe/", "http://169.254.43518"),
    # special addresses
    *("http://10.0.0.1:80", "http://172.16.0.1", "http://172.31.255.255", "http://192.168.1.1/admin", "http://169.254.169.254/latest"),
    *("http://100.100.100.200", "http://100.64.0.1", "http://192.0.0.192/opc/v1", "http://168.63.129.16/machine", "http://224.0.0.1"),
    *("http://255.255.255.255", "http://198.18.0.1", "http://240.0.0.1", "http://192.0.2.1", "http://198.51.100.7", "http://203.0.113.9"),
    *("http://192.88.99.1", "http://0.1.2.3", "https://127.0.0.1", "https://10.1.2.3:8443"),
    # IPv4 inside IPv6, and IPv6 of its own
    *(
        "http://[::1]",
        "http://[::1]:8000/",
        "http://[::]",
        "http://[0:0:0:0:0:0:0:1]",
        "http://[::ffff:127.0.0.1]",
        "http://[::ffff:7f00:1]",
    ),
    *("http://[::ffff:169.254.169.254]", "http://[::127.0.0.1]", "http://[::8.8.8.8]", "http://[64:ff9b::a9fe:a9fe]"),
    *("http://[64:ff9b::7f00:1]", "http://[64:ff9b::10.0.0.1]", "http://[64:ff9b:1::808:808]", "http://[2002:7f00:1::]"),
    *("http://[2002:a9fe:a9fe::]", "http://[2002:a00:1::1]", "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]"),
    *("http://[2606:4700::5efe:7f00:1]", "http://[2606:4700::200:5efe:a00:1]", "http://[fe80::1%25eth0]", "http://[fe80::1]"),
    *("http://[fd00:ec2::254]", "http://[fc00::1]", "http://[ff02::1]", "http://[2001:db8::1]", "http://[3fff::1]", "http://[5f00::1]"),
    *("http://[::1", "http://[127.0.0.1]", "http://::1/", "http://[::1]x", "http://[::1]:80x/", "http://[]/", "http://[v1.x]/"),
    # names of this machine and this network
    *("http://localhost", "http://localhost:8000/", "HTTP://LOCALHOST.", "http://a.localhost", "http://intranet/", "http://printer.local"),
    *("http://a_b", "http://metadata/computeMetadata/v1/", "http://metadata.google.internal/", "http://wiki.corp", "http://nas.home.arpa"),
    *("http://router.lan", "http://kubernetes.default.svc.internal", "http://host.docker.internal", "http://localhost6"),
    # names that lead there
    *("http://private.example", "http://loop.example:8000", "http://loop6.example", "http://mixed.example", "http://mixed6.example"),
    *("http://mapped.example", "http://bad64.example", "http://bad6to4.example", "http://isatap.example", "http://cloud.example/latest"),
    *("http://agent.example", "http://empty.example", "http://unknown.example", "https://PRIVATE.example./", "http://-a..example"),
    f"http://{'a' * 64}.example",
    # the same in other letters
    *("http://①②⑦.0.0.1", "http://127。0。0。1", "http://127．0．0．1", "http://127｡0｡0｡1", "http://１２７.0.0.1", "http://ⓛocalhost"),
    *("http://127%2e0%2e0%2e1", "http://%6c%6f%63%61lhost", "http://%31%32%37.0.0.1", "http://lo\u00adcalhost", "http://local\u200bhost"),
    *("http://127.0.0.1%2f.example.com", "http://%00.example.com", "http://fa\u00df.example", "http://127.0.0.1%23.example.com"),
    # parts that parsers read in different ways
    *("http://example.com@127.0.0.1", "http://a:b@127.0.0.1", "http://example.com:80@127.0.0.1/", "http://a@b@example.com"),
    *("http://127.0.0.1#@example.com", "http://127.0.0.1?@example.com", "http://@/", "http://example.com\\@127.0.0.1"),
    *("http:\\\\127.0.0.1", "http://127.0.0.1\\.example.com", "http:127.0.0.1", "http:/127.0.0.1", "http:///127.0.0.1"),
    *("http:////127.0.0.1", "http://1.1.1.1 x@127.0.0.1/", "http://1.1.1.1 &@127.0.0.1#@example.com/", "http://127.0.0.1: 80 /"),
    *("  \x01http://127.0.0.1", "ht\ntp://127.0.0.1", "http://127.0.\n0.1/", "http:\t//127.0.0.1", "http://exam\tple.com"),
    *("http://169.254.169.254\x0b.example.com", "<http://127.0.0.1/>", "URL:http://127.0.0.1/", "\ufeffhttp://127.0.0.1/"),
    # ports that are none
    *("http://example.com:99999", "http://example.com:8x", "http://example.com:-80", "http://example.com:0x50", "http://example.com:８０"),
    # other schemes, and none
    *(
        "file:///etc/passwd",
        "file:/etc/passwd",
        "FILE:///x",
        "jar:file:///x!/",
        "gopher://127.0.0.1:25/_",
        "ftp://127.0.0.1",
        "ws://10.0.0.1",
    ),
    *("view-source:http://127.0.0.1", "dict://127.0.0.1:11211/stat", "ldap://localhost", "tftp://10.0.0.1/x", "//127.0.0.1/x"),
    *("/\\127.0.0.1/x", "\\/10.0.0.1/", "\\\\printer\\x", "/\t/127.0.0.1/x", "/\n/intranet"),
    *("url:url:http://127.0.0.1", "jar:http://127.0.0.1!/", "netdoc:///etc/passwd", "s3://bucket/key"),
]

ALLOWED = [
    *("http://example.com", "http://example.com/", "https://example.com", "HTTPS://EXAMPLE.COM.:443/", "http://EXAMPLE.com/A?b=C"),
    *("http://www.example.com/a/b.html", "http://a-b.c_d.example.com/", "https://www.example.com:8443/x", "http://example.com:8080/x"),
    *("http://example.com:80", "http://example.com:65535/", "http://example.com:/", "https://example.com?q=1", "http://example.com#top"),
    *("https://example.com/@user?q=a@b", "https://example.com/?u=//127.0.0.1", "http://example.com/..//../etc/passwd"),
    *("http://example.com/a b", "http://example.com/%2e%2e/%00", "http://example.com/ä?ö=ü", "http://example.com/a;b=c,d!$&'()*+"),
    *(
        "http://example.com/\\@127.0.0.1/",
        "http://example.com?@127.0.0.1",
        "http://example.com#@127.0.0.1/",
        "http://example.com/;@10.0.0.1",
    ),
    *("http://example.com/?a=[1]&b={2}|^`", "http://example.com/%zz", "http://example.com/?%", "http://example.com/" + "x" * 4000),
    *(
        "http://bücher.example/",
        "https://bücher.example/x",
        "http://xn--bcher-kva.example",
        "http://BÜCHER.example",
        "http://exam%70le.com/",
    ),
    *("http://ｅxample.com/", "http://nat64.example.com", "http://six.example.com", "http://127.0.0.1.example.com"),
    *(
        "http://localhost.example.com",
        "http://8.8.8.8",
        "http://8.8.8.8:8080/",
        "http://0x08080808/",
        "http://134744072",
        "http://8.8.2056",
    ),
    *(
        "https://8.8.8.8/",
        "http://[2606:4700::1111]/",
        "http://[2606:4700::1111]:8080/",
        "https://[2606:4700::1111]",
        "http://[64:ff9b::808:808]",
    ),
    *("http://[::ffff:8.8.8.8]", "http://[2002:808:808::]", "http://1.1.1.1.", " http://example.com ", "<http://example.com/>"),
]

# What the address check has nothing against, because it is for every tool, but what is no page to fetch.
NARROWER = [
    *("http://user@example.com/", "http://user:pw@example.com/", "http://:@example.com/", "ftp://example.com/x", "ws://example.com"),
    *(
        "//example.com/x",
        "http:example.com",
        "http:/example.com",
        "http:///example.com",
        "example.com",
        "data:text/html,hi",
        "mailto:a@b.c",
    ),
    *("http://example.com is nice", "http://example.com/a\nb", "http://example.com/a\x7fb", "", "hello", "view-source:http://example.com/"),
    *("http\u017f://example.com:443/", "http\u017f://example.com:8080/"),
]


def agent_verdicts(made: World, urls: list[str], tool: Tool, *, guard: bool) -> Any:
    async def run() -> list[str]:
        batch = calls(*(call(f"c{index}", tool.name, {"url": url}) for index, url in enumerate(urls)))
        extensions = [UrlGuard(resolve=made.resolve)] if guard else []
        model = ScriptedModel([batch, text("done")])
        limits = Limits(tool_calls=1000)
        async with await Agent.create(
            model, tools=[tool], extensions=extensions, without=() if guard else [UrlGuard], limits=limits
        ) as agent:
            result = await agent.run("go")
        answers = [text_of(message.content) for message in result.messages if isinstance(message, ToolMessage)]
        assert len(answers) == len(urls)
        return answers

    return run()


def test_the_table_is_as_large_as_it_claims() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 120
    assert len(set(ALLOWED)) == len(ALLOWED) >= 40


def test_the_check_refuses_every_hostile_url_and_allows_every_public_one() -> None:
    async def main() -> None:
        async with world(ZONE) as made:
            for url in HOSTILE:
                with pytest.raises(UnsafeUrl):
                    await check_url(url, resolve=made.resolve)
                    pytest.fail(f"allowed: {url!a}")
            for url in ALLOWED:
                assert await check_url(url, resolve=made.resolve), ascii(url)

    asyncio.run(main())


@pytest.mark.parametrize("guard", [True, False], ids=["with the guard", "without the guard"])
def test_fetch_url_refuses_every_hostile_url_before_anything_is_dialled(guard: bool) -> None:
    async def main() -> None:
        async with world(ZONE) as made:
            (fetch_url,) = made.tools()
            answers = await agent_verdicts(made, HOSTILE, fetch_url, guard=guard)
            begin = "Tool error (fetch_url): " + ("SSRF violation: " if guard else "")
            wrong = [(url, answer) for url, answer in zip(HOSTILE, answers, strict=True) if not answer.startswith(begin)]
            assert not wrong, ascii(wrong)
            effect = "It was not executed; nothing happened." if guard else "It had no effect; nothing happened."
            assert {answer.rsplit("\n", 1)[1] for answer in answers} == {effect}
            assert made.dialled == []
            assert made.requests == []

    asyncio.run(main())


@pytest.mark.parametrize("guard", [True, False], ids=["with the guard", "without the guard"])
def test_fetch_url_gets_every_public_url_from_its_own_address(guard: bool) -> None:
    async def main() -> None:
        async with world(ZONE) as made:
            (fetch_url,) = made.tools()
            answers = await agent_verdicts(made, ALLOWED, fetch_url, guard=guard)
            wrong = [(url, answer) for url, answer in zip(ALLOWED, answers, strict=True) if not answer.endswith("hello")]
            assert not wrong, ascii(wrong)
            assert len(made.requests) == len(ALLOWED)

    asyncio.run(main())


def test_the_guard_gives_the_same_verdicts_around_any_tool_of_the_network() -> None:
    async def main() -> None:
        spy = Tool.from_schema(
            name="spy",
            parameters={"type": "object", "properties": {"url": {"type": "string"}}},
            handler=lambda url: "ran",
            traits=Traits(network=True),
        )
        async with world(ZONE) as made:
            refused = await agent_verdicts(made, HOSTILE, spy, guard=True)
            assert [url for url, answer in zip(HOSTILE, refused, strict=True) if "SSRF violation" not in answer] == []
            allowed = await agent_verdicts(made, ALLOWED, spy, guard=True)
            assert [url for url, answer in zip(ALLOWED, allowed, strict=True) if answer != "ran"] == []

    asyncio.run(main())


def test_what_is_public_but_no_page_is_not_fetched() -> None:
    async def main() -> None:
        async with world(ZONE) as made:
            for url in NARROWER:
                with pytest.raises(UnsafeUrl):
                    await made.fetch(url)
                    pytest.fail(f"fetched: {url!a}")
            assert made.dialled == []

    asyncio.run(main())


def test_a_redirect_to_a_hostile_url_is_refused_as_the_url_itself() -> None:
    targets = [url for url in HOSTILE if url.partition(":")[2].startswith("//") and not any(c in url for c in "\n\t\x01\x0b\ufeff")]
    assert len(targets) > 100

    async def main() -> None:
        async with world(ZONE) as made:
            for target in targets:
                made.otherwise = moved(target)
                before = len(made.dialled)
                with pytest.raises(UnsafeUrl, match="redirects to where it may not lead"):
                    await made.fetch("http://www.example.com/")
                    pytest.fail(f"followed: {target!a}")
                assert made.dialled[before:] == [(PUBLIC_A, 80)], ascii(target)

    asyncio.run(main())


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_every_redirect_is_followed_to_a_public_place_and_named(status: str) -> None:
    async def main() -> None:
        async with world(ZONE) as made:
            made.pages = {"/a": moved("b?token=secret", status=status), "/b?token=secret": moved("https://example.com/c#x", status=status)}
            shown = await made.fetch("http://www.example.com/a")
            assert shown.endswith("hello")
            assert "redirected to https://example.com/c;" not in shown
            assert "redirected to https://example.com/c]" in shown
            assert "secret" not in shown
            assert [port for _, port in made.dialled[:3]] == [80, 80, 443]

    asyncio.run(main())


def test_a_name_that_changes_its_address_between_the_check_and_the_connection_is_connected_where_it_was_checked() -> None:
    async def main() -> None:
        async with world({"rebind.example": [[PUBLIC_A], ["127.0.0.1"]]}) as made:
            assert (await made.fetch("http://rebind.example:8000/")).endswith("hello")
            assert made.asked == ["rebind.example"], "looked up once"
            assert made.dialled == [(PUBLIC_A, 8000)]
            with pytest.raises(UnsafeUrl, match=r"resolves to 127\.0\.0\.1"):
                await made.fetch("http://rebind.example:8000/")
            assert len(made.dialled) == 1

    asyncio.run(main())


def test_a_name_that_changes_between_the_guard_and_the_tool_is_refused_by_the_tool() -> None:
    async def main() -> None:
        async with world({"rebind.example": [[PUBLIC_A], ["10.0.0.1"]]}) as made:
            (fetch_url,) = made.tools()
            (answer,) = await agent_verdicts(made, ["http://rebind.example/"], fetch_url, guard=True)
            assert answer.startswith("Tool error (fetch_url): rebind.example resolves to 10.0.0.1")
            assert made.asked == ["rebind.example"] * 2
            assert made.dialled == []

    asyncio.run(main())


def test_a_name_that_changes_between_two_redirects_is_looked_at_again() -> None:
    async def main() -> None:
        async with world({"rebind.example": [[PUBLIC_A], ["169.254.169.254"]]}) as made:
            made.pages = {"/": moved("/latest/meta-data")}
            with pytest.raises(UnsafeUrl, match=r"redirects to where it may not lead: rebind\.example resolves to 169"):
                await made.fetch("http://rebind.example/")
            assert made.dialled == [(PUBLIC_A, 80)]

    asyncio.run(main())


def test_what_is_allowed_is_fetched_although_it_is_not_public_and_only_narrows() -> None:
    async def main() -> None:
        async with world(ZONE) as made:
            for allow, url in (
                ("127.0.0.1", "http://127.0.0.1/"),
                ("10.0.0.0/8", "http://private.example/"),
                ("private.example", "http://private.example/"),
                ("localhost", "http://localhost:8000/"),
            ):
                if "localhost" in url:
                    made.zone["localhost"] = made.zone["loop.example"]
                assert (await made.fetch(url, allow=[allow])).endswith("hello")
            with pytest.raises(UnsafeUrl):
                await made.fetch("http://private.example/", allow=["11.0.0.0/8"])
            assert (await made.fetch("https://www.example.com/", only=["*.example.com"])).endswith("hello")
            assert (await made.fetch("http://8.8.8.8/", only=["8.8.8.0/24"])).endswith("hello")
            with pytest.raises(ToolFailure, match="not among the hosts"):
                await made.fetch("http://8.8.8.8/", only=["example.com"])
            made.otherwise = moved("http://8.8.8.8/")
            with pytest.raises(ToolFailure, match="not among the hosts"):
                await made.fetch("http://example.com/", only=["example.com"])
            with pytest.raises(UnsafeUrl):
                await made.fetch("http://10.0.0.1/", only=["10.0.0.1"])

    asyncio.run(main())


def test_the_host_and_the_certificate_are_those_of_the_name_and_not_of_the_address() -> None:
    async def main() -> None:
        async with world(ZONE) as made:
            hosts = {
                "http://EXAMPLE.com./": "example.com",
                "http://example.com:8080/": "example.com:8080",
                "https://bücher.example:443/": "xn--bcher-kva.example",
                "http://0x08080808/": "8.8.8.8",
                "http://[2606:4700:0::1111]:8080/": "[2606:4700::1111]:8080",
            }
            for url, host in hosts.items():
                await made.fetch(url)
                assert f"\r\nhost: {host}\r\n" in made.requests[-1].replace("Host:", "host:"), url
                assert "checked.invalid" not in made.requests[-1]
            made.zone["other.test"] = made.zone["example.com"]
            with pytest.raises(ToolFailure, match="certificate is not valid") as caught:
                await made.fetch("https://other.test/")
            assert "checked.invalid" not in str(caught.value)
            assert made.requests[-1].startswith("GET / ")

    asyncio.run(main())


def test_the_tests_do_not_verify_less_than_a_user_would() -> None:
    assert client_tls().check_hostname
