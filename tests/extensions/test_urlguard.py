"""UrlGuard: no call carries a URL into this machine or its network, however it is written."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import ToolFailure, UsageError
from interlock.extensions.urlguard import UrlGuard
from interlock.records import Traits
from interlock.toolbox import netcheck
from interlock.toolbox.addresses import is_public, parse
from interlock.toolbox.netcheck import UnsafeUrl, check_url
from interlock.tools import Tool

from .fakes import Context, Next, invocation

OFFLINE = Tool.from_schema(name="offline", parameters={"type": "object"})
FETCH = Tool.from_schema(name="fetch", parameters={"type": "object"}, traits=Traits(network=True))

DNS = {
    "example.com": ["93.184.216.34", "2606:2800:220:1::1"],
    "xn--bcher-kva.example": ["8.8.8.8"],
    "nat64.example": ["64:ff9b::808:808"],
    "private.example": ["10.0.0.1"],
    "mixed.example": ["8.8.8.8", "::1"],
    "zone.example": ["fe80::1%eth0"],
    "garbage.example": ["not an address"],
    "empty.example": [],
    "127.0.0.1.example": ["8.8.8.8"],
}


async def resolve(host: str) -> Sequence[str]:
    if host not in DNS:
        raise socket.gaierror("no such host")
    return DNS[host]


def verdict(arguments: dict[str, Any], *, made: Tool = OFFLINE, allow: Sequence[str] = ()) -> str:
    """ "ran", or why it was vetoed."""
    call_next, failure = Next(), None
    try:
        asyncio.run(UrlGuard(allow=allow, resolve=resolve).on_tool_call(Context(), invocation(made, arguments), call_next))
    except ToolFailure as error:
        failure = error
    assert call_next.calls == (0 if failure else 1)
    assert failure is None or (failure.effect == "none" and str(failure).startswith("SSRF violation: "))
    return "ran" if failure is None else str(failure)


UNSAFE = [
    # IPv4 in every form a resolver takes, and what is none but looks so
    *(
        "http://127.0.0.1",
        "http://2130706433/",
        "http://0x7f.1",
        "http://0X7F000001",
        "http://127.1",
        "http://017700000001",
        "http://0177.0.0.1",
    ),
    *("http://0/", "http://0.0.0.0", "http://256.1.1.1", "http://4294967296", "http://1.2.3.4.5", "http://08.8.8.8", "http://example.0x7f"),
    *("http://127.0.0.1.", "http://127.0.0.1..", "http://10.0.0.1:80", "http://169.254.169.254/latest", "http://100.100.100.200"),
    *("http://192.0.0.192", "http://168.63.129.16", "http://224.0.0.1", "http://255.255.255.255", "http://198.18.0.1", "http://240.0.0.1"),
    # IPv4 inside IPv6, and IPv6 of its own
    *("http://[::1]", "http://[::]", "http://[::ffff:127.0.0.1]", "http://[::ffff:7f00:1]", "http://[::127.0.0.1]", "http://[::8.8.8.8]"),
    *("http://[64:ff9b::a9fe:a9fe]", "http://[64:ff9b::7f00:1]", "http://[64:ff9b:1::808:808]", "http://[2002:7f00:1::]"),
    *("http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]", "http://[2606:4700::5efe:7f00:1]", "http://[2606:4700::200:5efe:a00:1]"),
    *(
        "http://[fe80::1%25eth0]",
        "http://[fd00:ec2::254]",
        "http://[ff02::1]",
        "http://[2001:db8::1]",
        "http://[3fff::1]",
        "http://[5f00::1]",
    ),
    *("http://[::1", "http://[127.0.0.1]", "http://::1/", "http://[::1]x"),
    # names
    *("http://localhost", "HTTP://LOCALHOST.", "http://a.localhost", "http://intranet/", "http://printer.local", "http://a_b"),
    *(
        "http://metadata.google.internal/",
        "http://private.example",
        "http://mixed.example",
        "http://zone.example",
        "http://garbage.example",
    ),
    *("http://empty.example", "http://unknown.example", "http://" + "a" * 64 + ".example", "http://-a..example"),
    # the same in other letters
    *("http://①②⑦.0.0.1", "http://127。0。0。1", "http://１２７.0.0.1", "http://127%2e0%2e0%2e1", "http://%6c%6f%63%61lhost"),
    *("http://lo\u00adcalhost", "http://local\u200bhost", "http://ⓛocalhost", "http://127.0.0.1%2f.example.com", "http://%00.example.com"),
    # parts that parsers read in different ways
    *("http://example.com@127.0.0.1", "http://a:b@127.0.0.1", "http://a@b@example.com", "http://127.0.0.1#@example.com", "http://@/"),
    *("http://example.com\\@127.0.0.1", "http:\\\\127.0.0.1", "http://127.0.0.1\\.example.com", "http://127.0.0.1?@example.com"),
    *("http:127.0.0.1", "http:/127.0.0.1", "http:///127.0.0.1", "http:////127.0.0.1", "http://example.com:99999", "http://example.com:8x"),
    *("  \x01http://127.0.0.1", "ht\ntp://127.0.0.1", "http://127.0.\n0.1/", "http:\t//127.0.0.1", "http://127.0.0.1 is home"),
    *("http://169.254.169.254\x0b.example.com", "http://exam\tple.com", "//127.0.0.1/x", "//private.example", "///127.0.0.1"),
    # other schemes
    *(
        "file:///etc/passwd",
        "file:/etc/passwd",
        "FILE:///x",
        "jar:file:///x!/",
        "gopher://127.0.0.1:25/_",
        "ftp://127.0.0.1",
        "ws://10.0.0.1",
    ),
    *("jar:http://127.0.0.1!/", "view-source:http://127.0.0.1", "jdbc:postgresql://10.0.0.1/db", "redis://10.0.0.1", "s3://bucket/key"),
    *("javascript://127.0.0.1/", "sqlite:///agent.db", "url:url:http://127.0.0.1", "aa:" * 80 + "http://127.0.0.1"),
]


@pytest.mark.parametrize("url", UNSAFE, ids=ascii)
def test_a_url_that_leads_inside_or_can_be_misread_is_a_veto(url: str) -> None:
    assert verdict({"x": url}) != "ran"


@pytest.mark.parametrize("url", UNSAFE, ids=ascii)
def test_it_is_a_veto_for_a_tool_of_the_network_too(url: str) -> None:
    assert verdict({"x": url}, made=FETCH) != "ran"


SAFE = [
    *(
        "http://example.com",
        "HTTPS://EXAMPLE.COM.:443/",
        "https://example.com/@user?q=a@b#//127.0.0.1",
        "//example.com/x",
        "ftp://example.com",
    ),
    *("http://user:pw@example.com:8080/x", "http://bücher.example/", "http://nat64.example", "http://127.0.0.1.example"),
    *(
        "http://[2606:4700::1]/",
        "http://[64:ff9b::808:808]",
        "http://[::ffff:8.8.8.8]",
        "http://8.8.8.8",
        "http://0x08080808/",
        "http://[2002:808:808::]",
    ),
    *("data:text/html,hi", "mailto:a@b.c", "javascript:alert(1)", "urn:isbn:123", "arn:aws:iam::123:role/x", "tel:+1"),
    *("http: the protocol", "http:", "file: a thing", "12:30", "std::string", "key: value", "C:\\Users\\x", "C:\\\\x", "C:/x"),
    *(
        "http://example.com is nice",
        "http://example.com\n\nis nice",
        "http://example.com, and",
        "https://example.com/a\nhttps://example.com/b",
    ),
    *("", ":", "//", "http", "2130706433"),
]


@pytest.mark.parametrize("text", SAFE, ids=ascii)
def test_what_is_public_or_no_url_passes(text: str) -> None:
    assert verdict({"x": text}) == "ran"


@pytest.mark.parametrize("text", [text for text in SAFE if "//127" not in text and not text.startswith("file:")], ids=ascii)
def test_it_passes_for_a_tool_of_the_network_too(text: str) -> None:
    assert verdict({"x": text}, made=FETCH) == "ran"


ONLY_FOR_THE_NETWORK = [
    *("see http://127.0.0.1 for more", "(http://localhost)", "a 'http://10.0.0.1'", "x=http:127.0.0.1", '{"u":"http:\\/\\/127.0.0.1"}'),
    *(
        "https://example.com/?u=http://127.0.0.1",
        "see " + "a" * 60 + "http://127.0.0.1",
        "see file:///etc/passwd",
        "note: gopher://127.0.0.1",
    ),
    *(
        "127.0.0.1:8000/x",
        "localhost",
        "app.localhost:80",
        "[::1]:80",
        "169.254.169.254",
        "\\\\localhost\\share",
        "file:main.py TODO",
        "see http://a\\@127.0.0.1",
    ),
]


@pytest.mark.parametrize("text", ONLY_FOR_THE_NETWORK, ids=lambda text: ascii(text)[:50])
def test_text_that_contains_a_url_counts_for_a_tool_of_the_network_only(text: str) -> None:
    assert verdict({"x": text}, made=FETCH) != "ran"
    assert verdict({"x": text}) == "ran"


@pytest.mark.parametrize(
    "text", ["see http://example.com.", "(http://example.com)", 'body "http://example.com\\nfoo"', "10.5", "hello", "// note"]
)
def test_public_urls_in_text_pass_for_a_tool_of_the_network(text: str) -> None:
    assert verdict({"x": text}, made=FETCH) == "ran"


def test_values_and_keys_count_at_any_depth() -> None:
    bad = "http://127.0.0.1"
    for arguments in ({bad: 1}, {"a": {bad: 1}}, {"a": [[{"b": ("x", bad)}]]}, {"a": {"x", bad}}, {"a": 1, "b": 2.0, "c": None, "d": bad}):
        assert verdict(arguments) != "ran"
    circular: dict[str, Any] = {"a": ["http://example.com", 1, None]}
    circular["a"].append(circular["a"])
    call_next = Next()
    call = invocation(OFFLINE, {})
    call.arguments = circular
    asyncio.run(UrlGuard(resolve=resolve).on_tool_call(Context(), call, call_next))
    assert call_next.calls == 1


@pytest.mark.parametrize(
    ("allow", "url", "passes"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/x", True),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001/x", False),
        ("http://127.0.0.1:8000", "https://127.0.0.1:8000/x", False),
        ("10.0.0.0/8", "http://10.1.2.3", True),
        ("10.0.0.0/8", "http://private.example", True),
        ("10.0.0.0/8", "http://11.0.0.0.nowhere.example", False),
        ("10.0.0.0/8", "http://mixed.example", False),
        ("127.0.0.1", "http://2130706433", True),
        ("::1", "http://[::1]:1/", True),
        ("intranet", "http://INTRANET./x", True),
        ("*.corp.example", "http://wiki.corp.example", True),
        ("*.corp.example", "http://corp.example", True),
        ("*.corp.example", "http://evilcorp.example", False),
        ("localhost:8000", "http://localhost:8000", True),
        ("localhost:8000", "http://localhost", False),
        ("s3://", "s3://bucket/key", True),
        ("s3://", "http://bucket/key", False),
        ("file://", "file:///etc/hosts", True),
        ("internal.example", "http://x@internal.example:99999", False),
    ],
)
def test_what_is_allowed_passes_and_no_more(allow: str, url: str, passes: bool) -> None:
    assert (verdict({"x": url}, allow=[allow]) == "ran") is passes


@pytest.mark.parametrize("entry", ["", " ", "http://", "https://", "a b", "http://a@b@c", "http:///", 3, None, "exa$mple"])
def test_a_wrong_entry_is_a_usage_error(entry: Any) -> None:
    with pytest.raises(UsageError):
        UrlGuard(allow=[entry])
    with pytest.raises(UsageError):
        UrlGuard(allow="10.0.0.0/8")


def test_a_resolver_that_hangs_or_breaks_means_unsafe() -> None:
    async def hang(host: str) -> Sequence[str]:
        await asyncio.get_running_loop().create_future()
        return ["8.8.8.8"]

    async def broken(host: str) -> Sequence[str]:
        raise RuntimeError("a bug")

    with pytest.raises(UnsafeUrl, match=r"within 0\.01 s"):
        asyncio.run(check_url("http://example.com", resolve=hang, timeout_s=0.01))
    with pytest.raises(UnsafeUrl, match="a bug"):
        asyncio.run(check_url("http://example.com", resolve=broken))


def test_the_checked_addresses_are_returned_so_that_a_client_can_use_them() -> None:
    assert asyncio.run(check_url("http://example.com", resolve=resolve)) == ("93.184.216.34", "2606:2800:220:1::1")
    assert asyncio.run(check_url("http://0x08080808")) == ("8.8.8.8",)
    assert asyncio.run(check_url("data:,x")) == ()


def test_a_name_is_resolved_once_per_call() -> None:
    asked: list[str] = []

    async def count(host: str) -> Sequence[str]:
        asked.append(host)
        return ["8.8.8.8"]

    call = invocation(FETCH, {"a": "http://example.com/1 and http://example.com/2", "b": ["http://example.com/3"]})
    asyncio.run(UrlGuard(resolve=count).on_tool_call(Context(), call, Next()))
    assert asked == ["example.com"]


def test_the_systems_resolver_runs_on_a_daemon_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def fake(host: str, port: None, *, type: int) -> list[Any]:
        threads.append(threading.current_thread())
        return [(2, type, 6, "", ("8.8.8.8", 0)), (2, type, 6, "", ("8.8.8.8", 0))]

    monkeypatch.setattr(netcheck.socket, "getaddrinfo", fake)
    assert asyncio.run(check_url("http://example.com")) == ("8.8.8.8",)
    assert threads[0].daemon
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700::1", "2a00:1450::1", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_ordinary_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@settings(max_examples=200, deadline=None)
@given(st.ip_addresses())
def test_what_python_calls_private_is_never_public_here(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    special = address.is_private or address.is_multicast or address.is_loopback or address.is_link_local or address.is_reserved
    embeds = address.version == 6 and any(address in ipaddress.ip_network(net) for net in ("::ffff:0:0/96", "64:ff9b::/96", "2002::/16"))
    assert not special or embeds or not is_public(address)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["{0}", "0x{0:x}", "{1}.{2}", "{1}.{3}.{4}", "0x{1:x}.0x{3:x}.{5}.{6}"]))
def test_every_form_of_an_address_is_read_as_the_resolver_reads_it(number: int, form: str) -> None:
    a, b, c, d = number.to_bytes(4, "big")
    text = form.format(number, a, number & 0xFFFFFF, b, number & 0xFFFF, c, d)
    assert parse(text) == ipaddress.IPv4Address(socket.inet_aton(text))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="htp:/\\@.#?[]%0127x\n\t 。local-", max_size=30).map(lambda text: "http:" + text), st.booleans())
def test_no_text_makes_the_guard_raise_anything_but_a_veto(text: str, network: bool) -> None:
    verdict({"x": text}, made=FETCH if network else OFFLINE)
