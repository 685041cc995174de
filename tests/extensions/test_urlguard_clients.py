"""UrlGuard reads a URL as urllib, requests, httpx and aiohttp do, where each of them is at its most lenient."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from interlock.extensions import urlguard
from interlock.extensions.urlguard import TARGETS_MAX, TEXT_MAX, UrlGuard, harmless, targets
from interlock.records import Traits
from interlock.toolbox.netcheck import HEAD_MAX, UnsafeUrl, check_url, target_of
from interlock.tools import Tool

from .fakes import Context, Next, invocation

OFFLINE = Tool.from_schema(name="offline", parameters={"type": "object"})
FETCH = Tool.from_schema(name="fetch", parameters={"type": "object"}, traits=Traits(network=True))


async def everything_is_public(host: str) -> Sequence[str]:
    return ["8.8.8.8"]


def runs(arguments: dict[str, Any], *, made: Tool = OFFLINE, allow: Sequence[str] = ()) -> bool:
    guard, call_next = UrlGuard(allow=allow, resolve=everything_is_public), Next()
    try:
        asyncio.run(guard.on_tool_call(Context(), invocation(made, arguments), call_next))
    except UnsafeUrl as error:
        return call_next.calls > 0 or not str(error).startswith("SSRF violation: ")
    return True


INVISIBLE = [*map(chr, [*range(0x21), 0x7F, 0x85, 0xA0, 0xAD, 0x1680, 0x180E, *range(0x2000, 0x2010), *range(0x2028, 0x2030)])]
INVISIBLE += [*map(chr, [0x205F, 0x2060, 0x3000, 0xFE0F, 0xFEFF, 0xFFFC, 0xE0020])]

INSIDE = [
    # whitespace and controls become a part of the user's name, and the client goes to what follows the @
    *(f"http://1.1.1.1{space}x@127.0.0.1:8000/" for space in INVISIBLE),
    *(f"http://1.1.1.1{space}@127.0.0.1:8000" for space in INVISIBLE),
    *(f"http://1.1.1.1@{space}127.0.0.1:8000" for space in "\t\r\n"),
    *(f"http://1.1.1.1{mark}x@127.0.0.1/" for mark in "\"'<>`{}|^,;()[]\\"),
    *("http://example.com x y z@127.0.0.1", "http:1.1.1.1 x@127.0.0.1/", "http:///1.1.1.1 x@127.0.0.1/", "ws://1.1.1.1 x@127.0.0.1"),
    *("view-source:http://1.1.1.1 x@127.0.0.1/", "gopher://1.1.1.1 x@127.0.0.1/", "http:// x@127.0.0.1/", "http: x@127.0.0.1/"),
    *("//1.1.1.1 x@127.0.0.1/", "//1.1.1.1 x@127.0.0.1: 80 /", "// x@127.0.0.1/", "//127.0.0.1/a b", "//127.0.0.1: 80 /a"),
    # whitespace around a port is dropped by int(), and line breaks by the same client
    *("http://127.0.0.1: 80 /", "http://127.0.0.1 : 80/", "http://172.1\n6.0.1:80 /", "ht\ntp://127.0.0.1:80 /", "http://172.1\n6.0.1 /"),
    # what is stripped from both ends
    *(f"{space}http://127.0.0.1/" for space in INVISIBLE),
    *(f"http://127.0.0.1:8000{space}" for space in INVISIBLE),
    *("\ufeff \u200bhttp://127.0.0.1/", "\u3000file:///etc/passwd", "\u00a0//127.0.0.1/"),
    # what is unwrapped
    *("<http://127.0.0.1/>", " <http://127.0.0.1/> ", "<URL:http://127.0.0.1/>", "<URL: http://127.0.0.1/>", "URL: http://127.0.0.1/"),
    *(
        "url:\u00a0http://127.0.0.1/",
        "< http://127.0.0.1/ >",
        "<<http://127.0.0.1/>>",
        "<file:///etc/passwd>",
        "<URL:file:.env>",
        "URL: file:x",
    ),
    *("<//127.0.0.1/>", "\ufeff<http://1.1.1.1 x@127.0.0.1/>"),
    # files: urllib decodes what follows the colon and opens it
    *("file:%2Fetc%2Fpasswd", "file:%2fetc/passwd", "file:%5c%5chost%5cshare", "file:z/secret", "file:.env", "file:x", "FILE:main.py"),
    *("file:a%20b", "file:.env#a b", "file:.env?a b", "file:z/my secret", "file:my dir/secret", "file:a b%2fc", "jar:file:x", "fi\nle:x"),
    *("file: x/../../etc/passwd", "file: /%2e%2e/etc/passwd", "file: /" + "x" * HEAD_MAX + "/../../etc/passwd"),
    # a host that does not end where it is looked for
    *("http://" + "x." * HEAD_MAX + "example.com@127.0.0.1/", "http://1.1.1.1 " + "x" * HEAD_MAX + "@127.0.0.1/"),
    *("http: " + "x" * HEAD_MAX + "@127.0.0.1/", "/" * (HEAD_MAX + 1) + "127.0.0.1/", "http:" + "/" * HEAD_MAX + "127.0.0.1"),
    *("//" + "x" * HEAD_MAX + "@127.0.0.1/", "ht" + "\n" * HEAD_MAX + "tp://127.0.0.1/"),
    # one name for the older rules of international names, another for the newer
    *("http://fa\u00df.example", "http://\u03c2.example", "http://a\u200db.example", "http://fa%c3%9f.example"),
]


@pytest.mark.parametrize("url", INSIDE, ids=lambda url: ascii(url)[:60])
@pytest.mark.parametrize("made", [OFFLINE, FETCH], ids=["offline", "network"])
def test_what_a_lenient_client_takes_inside_is_a_veto(url: str, made: Tool) -> None:
    assert not runs({"x": url}, made=made)
    assert not runs({"x": [{"y": url}]}, made=made)
    assert not runs({url: 1}, made=made)


IN_TEXT = [
    *(
        f"see http://1.1.1.1{space}x@127.0.0.1:8000/"
        for space in (" ", "\u00a0", "\x0b", "\u2028", "\n", '"', "'", "<", "`", "|", ",", "\\")
    ),
    *(
        '{"u": "http://1.1.1.1 x@127.0.0.1/"}',
        "see http://1.1.1.1 x@[::1]/",
        "see http://8.8.8.8 a@8.8.8.8 b@localhost",
        "see http:1.1.1.1 @127.1",
    ),
    *("see http: x@127.0.0.1/", "see http://1.1.1.1 x@\t127.0.0.1/", "see https://8.8.8.8/ http://8.8.8.8 ftp:8.8.8.8 x@127.0.0.1"),
    *("x http://" + "a." * HEAD_MAX + "example.com@127.0.0.1/", "x" * 65_530 + " http://127.0.0.1/", "x " * 40_000 + "gopher://127.0.0.1/"),
    *("me@localhost", "x@127.0.0.1:80/", "localhost/\nx", "\ufefflocalhost", "<localhost:80>", "8.8.8.8 x@127.0.0.1/", "localho\u017ft"),
]


@pytest.mark.parametrize("text", IN_TEXT, ids=lambda text: ascii(text)[:60])
def test_in_text_for_a_tool_of_the_network_every_reading_counts(text: str) -> None:
    assert not runs({"x": text}, made=FETCH)


@pytest.mark.parametrize("shift", range(-12, 4))
def test_a_url_is_found_wherever_the_text_is_divided(shift: int) -> None:
    assert [target.host for target in targets("x" * (65_536 + shift - 1) + " gopher://127.0.0.1/", network=True)] == ["127.0.0.1"]


@pytest.mark.parametrize(
    "text",
    [
        *("http://example.com is nice", "http://example.com/ by me@127.0.0.1", "http://example.com: nice", "http: see joe", "http: 80"),
        *("file: a thing", "file: src/main.py", "file:main.py TODO", "file:main.py def f", "URL: see below", "<p>a: b</p>", "<a href='x'>"),
        *("// note", "// by joe", "//go:build linux", "// Copyright joe@example.com 2020", "x: <y>", "\ufeffnote: x", "\u3000", "a:b"),
    ],
)
def test_words_are_not_taken_for_a_url(text: str) -> None:
    assert runs({"x": text})


@pytest.mark.parametrize(
    "text",
    [
        *("see http://example.com and mail joe@example.com", "Acme, https://example.com\njoe@example.com", "see http://example.com @ 5"),
        *("http://example.com/?a=b@127.0.0.1", "see 'http://user:pw@example.com/'", "note: x", "a" * 100_000 + ": x", "joe@example.com"),
    ],
    ids=lambda text: ascii(text)[:60],
)
def test_public_hosts_on_both_sides_of_an_at_pass_for_a_tool_of_the_network(text: str) -> None:
    assert runs({"x": text}, made=FETCH)


def test_an_entry_of_the_allow_list_does_not_match_a_part_of_the_host() -> None:
    head = "http://" + "x." * ((HEAD_MAX - 7 - 11) // 2) + "a.example.com"
    for length in range(HEAD_MAX - 4, HEAD_MAX + 5):
        url = "http://" + ("x." * HEAD_MAX)[-(length - 7 - 11) :] + "example.com" + "@127.0.0.1/"
        assert not runs({"x": url}, allow=["*.example.com"])
        assert not runs({"x": f"see {url}"}, made=FETCH, allow=["*.example.com"])
        with pytest.raises(UnsafeUrl):
            asyncio.run(check_url(url, allow=["*.example.com"]))
    with pytest.raises(UnsafeUrl, match=f"within {HEAD_MAX} characters"):
        target_of(head + "x" * 100)
    assert runs({"x": "http://a.example.com/" + "x" * HEAD_MAX}, allow=["*.example.com"])


HEAVY = [
    *("http:" * 1500 + "@1.1.1.1 ", "http: ", "http:a\\", "http://1.1.1.1 ", "a://", "@", "http:a @1.1.1.1 ", "http:[", 'http:"', "<", ":"),
    *("http:https:ws:wss:ftp: ", "a ", "x", "file:", "jar:", "http:\\ ", "127.0.0.1@", "[/@", "a.-+", "//", "\ufeff"),
]


@pytest.mark.parametrize("piece", HEAVY, ids=lambda piece: ascii(piece)[:20])
@pytest.mark.parametrize("before", ["", "see / "])
def test_the_time_grows_with_the_text_and_no_faster(piece: str, before: str) -> None:
    def work(size: int) -> float:
        text = before + (piece * (size // len(piece) + 1))[:size] + ": /"
        started = time.process_time()
        try:
            for _ in targets(text, network=True):
                pass
        except UnsafeUrl:
            pass
        return time.process_time() - started

    assert work(200_000) < 2.0  # A tenth of that, on a fast machine; what grows with the square takes minutes.


def test_the_loop_has_its_turn_while_much_text_is_looked_at() -> None:
    async def count() -> int:
        turns, done = 0, False

        async def tick() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        call = invocation(FETCH, {"a": "note: http://8.8.8.8/ " * 2000, "b": ["note: " + "x " * 200_000]})
        await UrlGuard(resolve=everything_is_public).on_tool_call(Context(), call, Next())
        done = True
        await ticking
        return turns

    assert asyncio.run(count()) >= 20


def test_beyond_the_bounds_a_call_is_unsafe_and_the_veto_says_so() -> None:
    def why(arguments: dict[str, Any], made: Tool) -> str:
        with pytest.raises(UnsafeUrl) as caught:
            asyncio.run(UrlGuard(resolve=everything_is_public).on_tool_call(Context(), invocation(made, arguments), Next()))
        return str(caught.value)

    half = "note: " + "x" * (TEXT_MAX // 2)
    assert "characters of text" in why({"a": half, "b": half}, FETCH)
    many = [f"http://h{number}.example/" for number in range(TARGETS_MAX + 1)]
    assert "different hosts" in why({"a": many}, OFFLINE)
    assert "different hosts" in why({"a": " ".join(many)}, FETCH)
    assert runs({"a": many[1:]})
    assert runs({"a": half})
    assert runs({"a": half, "b": half})  # a tool of no network: only a whole value is a URL
    assert runs({"a": "x" * (TEXT_MAX + 1)}, made=FETCH)  # nothing to search


def test_what_was_checked_is_what_runs() -> None:
    async def attempt(change: str) -> dict[str, Any]:
        asked, go, ran = asyncio.Event(), asyncio.Event(), list[dict[str, Any]]()

        async def slow(host: str) -> Sequence[str]:
            asked.set()
            await go.wait()
            return ["8.8.8.8"]

        call = invocation(OFFLINE, {"url": "http://example.com/", "more": [{"url": "x"}]})

        async def call_next() -> None:
            ran.append(call.arguments)

        task = asyncio.create_task(UrlGuard(resolve=slow).on_tool_call(Context(), call, call_next))
        await asked.wait()
        if change == "value":
            call.arguments["url"] = "http://127.0.0.1/"
        elif change == "depth":
            call.arguments["more"][0]["url"] = "http://127.0.0.1/"
        else:
            call.arguments = {"url": "http://127.0.0.1/"}
        go.set()
        await task
        return ran[0]

    for change in ("value", "depth", "whole"):
        assert asyncio.run(attempt(change)) == {"url": "http://example.com/", "more": [{"url": "x"}]}


def test_arguments_that_cannot_be_copied_are_unsafe() -> None:
    class Stubborn:
        def __deepcopy__(self, memo: object) -> Any:
            raise RuntimeError("no")

    call, call_next = invocation(OFFLINE, {}), Next()
    call.arguments = {"url": "http://example.com/", "x": Stubborn()}
    with pytest.raises(UnsafeUrl, match=r"SSRF violation: the arguments could not be checked \(RuntimeError: no\)"):
        asyncio.run(UrlGuard(resolve=everything_is_public).on_tool_call(Context(), call, call_next))
    assert call_next.calls == 0


@pytest.mark.parametrize("made", [OFFLINE, FETCH], ids=["offline", "network"])
def test_without_anything_like_a_url_nothing_is_copied_or_taken_apart(made: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **named: object) -> Any:
        raise AssertionError("not the quick way")

    monkeypatch.setattr(urlguard.copy, "deepcopy", never)
    monkeypatch.setattr(urlguard, "target_of", never)
    assert harmless({"a": "hello world", "b": 1, "c": None}, network=made is FETCH)
    for arguments in ({"a": "hello", "b": 1}, {"a": ["x", {"y": 1.5}]}, {"a": "10.5"}):
        call = invocation(made, arguments)
        before = call.arguments
        asyncio.run(UrlGuard().on_tool_call(Context(), call, Next()))
        assert call.arguments is before
