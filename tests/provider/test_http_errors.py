"""Every failure of an exchange is one typed error that says what to do, and no exchange leaves its connection behind."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import chain, cycle
from traceback import format_exception
from typing import Any

import pytest
from aiohttp.http_parser import HttpResponseParserPy

from interlock.errors import ProviderError, UsageError
from interlock.messages import UserMessage
from interlock.model import ModelRequest, ModelResponse, TextDelta, Usage
from interlock.providers import _http, _pool
from interlock.providers.faults import retry_after
from interlock.providers.openai import OpenAIChatModel
from interlock.testing import Step, WireServer, cut, error, hold, raw, repeat, text
from threaded import serving

from .conftest import Run

REQUEST = ModelRequest(messages=(UserMessage(content="hi"),))


@pytest.fixture(autouse=True, params=["direct", "session"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for both ways in which a request goes out."""
    if request.param == "session":
        monkeypatch.setattr(_pool, "_is_unwatched", lambda: False)


def model_at(base_url: str, **options: Any) -> OpenAIChatModel:
    return OpenAIChatModel("m", base_url=base_url, api_key="secret-key", **options)


async def failure_at(base_url: str, **options: Any) -> ProviderError:
    model = model_at(base_url, **options)
    try:
        with pytest.raises(ProviderError) as caught:
            async for _ in model.stream(REQUEST):
                pass
    finally:
        await model.aclose()
    assert "secret-key" not in str(caught.value)
    return caught.value


async def failure_of(step: Step, **options: Any) -> ProviderError:
    async with WireServer([step]) as server:
        return await failure_at(server.base_url, **options)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_a_status_that_may_pass_is_retryable(run: Run, status: int) -> None:
    failure = run(failure_of(error(status, "try later")))
    assert (failure.kind, failure.status, failure.retryable) == ("http", status, True)
    assert "try later" in str(failure)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422, 451])
def test_a_status_that_will_not_pass_is_not(run: Run, status: int) -> None:
    failure = run(failure_of(error(status, "no")))
    assert (failure.kind, failure.status, failure.retryable) == ("http", status, False)
    assert "no" in str(failure)


def test_an_account_without_credit_is_not_retried(run: Run) -> None:
    body = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}}
    failure = run(failure_of(error(429, body=body)))
    assert (failure.retryable, failure.code) == (False, "insufficient_quota")


def test_a_redirect_is_not_followed(run: Run) -> None:
    failure = run(failure_of(error(307, headers={"Location": "http://elsewhere.example/"})))
    assert (failure.status, failure.retryable) == (307, False)
    assert "http://elsewhere.example/" in str(failure)


@pytest.mark.parametrize("body", [b"<html>" + b"x" * 500_000, b"", b"\xff\xfe", b'{"error": null}', b"[]", b'"broken"'])
def test_any_error_body_makes_a_short_message(run: Run, body: bytes) -> None:
    failure = run(failure_of(error(500, body=body)))
    assert "HTTP 500" in str(failure)
    assert len(str(failure)) < 2_200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "3600"}, 3600.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"retry-after-ms": "soon", "Retry-After": "9"}, 9.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Mon, 99 Foo 2099 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_provider_asks_for_is_passed_on(run: Run, headers: dict[str, str], expected: float | None) -> None:
    assert run(failure_of(error(429, headers=headers))).retry_after_s == expected


def test_an_http_date_is_a_wait_from_now() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert retry_after({"retry-after": format_datetime(now + timedelta(seconds=42), usegmt=True)}, now=now) == 42.0
    assert retry_after({"retry-after": "Tue, 01 Jan 2030 00:00:42 -0000"}, now=now) == 42.0


def test_a_server_that_is_not_there_is_named(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        failure = run(failure_at(url))
    assert (failure.kind, failure.retryable) == ("connect", True)
    assert url in str(failure)
    assert "check base_url" in str(failure)


def test_a_name_that_does_not_exist_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
        failure = await failure_at("http://nowhere.example/v1")
        assert (failure.kind, failure.retryable) == ("connect", True)
        assert "http://nowhere.example/v1" in str(failure)

    run(main())


async def _tcp_server(answer: bytes) -> tuple[asyncio.Server, str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def test_a_server_without_tls_is_no_https(run: Run) -> None:
    async def main() -> None:
        server, url = await _tcp_server(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        async with server:
            failure = await failure_at(url.replace("http:", "https:"))
            assert (failure.kind, failure.retryable) == ("connect", True)

    run(main())


@pytest.mark.parametrize(("answer", "kind"), [(b"", "cut"), (b"SSH-2.0-OpenSSH\r\n\r\n", "malformed")])
def test_an_answer_that_is_no_http_is_a_retryable_failure(run: Run, answer: bytes, kind: str) -> None:
    async def main() -> None:
        server, url = await _tcp_server(answer)
        async with server:
            failure = await failure_at(url)
            assert (failure.kind, failure.retryable) == (kind, True)

    run(main())


@pytest.mark.parametrize("parser", ["own", "in Python"])
def test_a_body_that_is_no_http_is_a_cut_reply(run: Run, monkeypatch: pytest.MonkeyPatch, parser: str) -> None:
    if parser == "in Python":
        monkeypatch.setattr("aiohttp.client_proto.HttpResponseParser", HttpResponseParserPy)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await go_on.wait()
        writer.write(b"no size\r\n")
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = _http.HttpClient(base_url=url, headers={}, timeouts=_http.Timeouts())
        async with server:
            exchange = await client.post(client.url("/chat"), b"{}")
            assert await exchange.read(heard=False) == b"hello"
            go_on.set()
            async with asyncio.timeout(5):
                with pytest.raises(ProviderError, match="broke before the reply was complete") as caught:
                    await exchange.read(heard=True)
            assert (caught.value.kind, caught.value.retryable) == ("cut", True)
            exchange.close()
            await client.aclose()

    go_on = asyncio.Event()
    run(main())


def test_a_connection_that_is_never_made_times_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        never = asyncio.Event()

        async def hang(*_: object, **__: object) -> None:
            await never.wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
        failure = await failure_at("http://slow.example/v1", connect_timeout_s=0.05)
        assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "connect_timeout")
        assert "http://slow.example/v1" in str(failure)

    run(main())


@pytest.mark.parametrize("frames", [(), (b"",)], ids=["no head", "head only"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_that_does_not_begin_times_out(run: Run, frames: tuple[bytes, ...], stream: bool) -> None:
    async def main() -> None:
        never = asyncio.Event()
        async with WireServer([raw(*frames, never)]) as server:
            failure = await failure_at(server.base_url, first_byte_timeout_s=0.05, stream=stream)
            assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "first_byte_timeout")
            await asyncio.wait_for(server.requests[0].disconnected.wait(), 1)

    run(main())


def test_a_reply_that_stops_in_the_middle_times_out(run: Run) -> None:
    async def main() -> None:
        async with WireServer([hold(asyncio.Event(), after="half")]) as server:
            failure = await failure_at(server.base_url, idle_timeout_s=0.05)
            assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "idle_timeout")
            await asyncio.wait_for(server.requests[0].disconnected.wait(), 1)

    run(main())


def test_a_slow_consumer_is_no_idle_provider(run: Run) -> None:
    async def main() -> None:
        async with WireServer([text("one two three", pieces=3)]) as server:
            model = model_at(server.base_url, idle_timeout_s=0.05)
            seen: list[Any] = []
            async for event in model.stream(REQUEST):
                seen.append(event)
                if len(seen) == 1:
                    waited = asyncio.get_running_loop().create_future()
                    asyncio.get_running_loop().call_later(0.15, waited.set_result, None)
                    await waited
            assert isinstance(seen[-1], ModelResponse)
            await model.aclose()

    run(main())


def test_a_reply_is_whole_after_its_finish_reason_even_if_the_server_goes_quiet(run: Run) -> None:
    async def main() -> None:
        finish = {"choices": [{"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}]}
        async with WireServer([raw(finish, asyncio.Event())]) as server:
            model = model_at(server.base_url, idle_timeout_s=0.05)
            *_, response = [event async for event in model.stream(REQUEST)]
            assert isinstance(response, ModelResponse)
            assert response.message.content == "42"
            await model.aclose()

    run(main())


SAID: Any = {"choices": [{"index": 0, "delta": {"content": "42"}}]}
FINISH: Any = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
NOTHING = [
    b"\n",
    b": keep-alive\n\n",
    b'data: {"choices":[]}\n\n',
    b"data: \n\n",
    b'data: {"choices":[{"index":0,"finish_reason":null}]}\n\n',
]


def endless(frame: Any, *, after: tuple[Any, ...] = ()) -> Step:
    """``after``, and then one frame again and again, as fast as the client reads."""
    frames: Any = chain(after, cycle([frame]))
    return Step(frames=frames)


@pytest.mark.parametrize("nothing", NOTHING)
def test_keep_alives_for_ever_before_the_reply_are_no_beginning(run: Run, nothing: bytes) -> None:
    failure = run(failure_of(endless(nothing), first_byte_timeout_s=0.05))
    assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "first_byte_timeout")


@pytest.mark.parametrize("nothing", NOTHING)
def test_keep_alives_for_ever_within_a_reply_are_no_progress(run: Run, nothing: bytes) -> None:
    failure = run(failure_of(endless(nothing, after=(SAID,)), idle_timeout_s=0.05))
    assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "idle_timeout")


def test_blank_lines_for_ever_within_a_plain_reply_are_no_progress(run: Run) -> None:
    failure = run(failure_of(endless(b"\n", after=(b'{"choices": [',)), idle_timeout_s=0.05))
    assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "idle_timeout")


@pytest.mark.parametrize("nothing", NOTHING)
def test_a_request_may_be_queued_behind_keep_alives_for_longer_than_a_reply_may_pause(run: Run, nothing: bytes) -> None:
    async def main() -> None:
        served = asyncio.Event()
        async with WireServer([raw(nothing, served, SAID, FINISH)]) as server:
            model = model_at(server.base_url, idle_timeout_s=0.05, first_byte_timeout_s=10)
            asyncio.get_running_loop().call_later(0.2, served.set)
            *_, response = [event async for event in model.stream(REQUEST)]
            assert isinstance(response, ModelResponse)
            await model.aclose()

    run(main())


def test_messages_without_text_are_signs_of_life(run: Run) -> None:
    async def main() -> None:
        empty: Any = {"choices": [{"index": 0, "delta": {"content": ""}}]}
        gates = [asyncio.Event() for _ in range(6)]
        frames = [frame for gate in gates for frame in (empty, gate)]
        async with WireServer([raw(SAID, *frames, FINISH)]) as server:
            model = model_at(server.base_url, idle_timeout_s=0.2)
            for number, gate in enumerate(gates):
                asyncio.get_running_loop().call_later(0.06 * (number + 1), gate.set)
            *_, response = [event async for event in model.stream(REQUEST)]
            assert isinstance(response, ModelResponse)
            await model.aclose()

    run(main())


@pytest.mark.parametrize("nothing", [*NOTHING, b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'])
def test_a_finished_reply_waits_only_briefly_whatever_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch, nothing: bytes) -> None:
    monkeypatch.setattr(_http, "_AFTER_FINISH_S", 0.05)

    async def main() -> None:
        async with WireServer([endless(nothing, after=(SAID, FINISH)), raw(SAID, FINISH, asyncio.Event())]) as server:
            model = model_at(server.base_url)
            for _ in range(2):
                async with asyncio.timeout(5):
                    *_, response = [event async for event in model.stream(REQUEST)]
                assert isinstance(response, ModelResponse)
                assert response.message.content == "42"
            await model.aclose()

    run(main())


def test_a_finished_reply_waits_for_its_usage(run: Run) -> None:
    async def main() -> None:
        late = asyncio.Event()
        usage: Any = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
        async with WireServer([raw(SAID, FINISH, late, usage)]) as server:
            model = model_at(server.base_url)
            asyncio.get_running_loop().call_later(0.1, late.set)
            *_, response = [event async for event in model.stream(REQUEST)]
            assert isinstance(response, ModelResponse)
            assert response.usage == Usage(input_tokens=3, output_tokens=4)
            await model.aclose()

    run(main())


def test_a_server_that_writes_on_after_a_finish_reason_has_the_whole_idle_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_AFTER_FINISH_S", 0.5)
    told = _http.Exchange.ending

    async def main() -> None:
        soon, later = asyncio.Event(), asyncio.Event()

        def ending(exchange: _http.Exchange, ending: bool) -> None:
            told(exchange, ending)
            asyncio.get_running_loop().call_later(0 if ending else 1, (soon if ending else later).set)

        monkeypatch.setattr(_http.Exchange, "ending", ending)
        async with WireServer([raw(SAID, FINISH, soon, SAID, later, SAID)]) as server:
            model = model_at(server.base_url)
            *_, response = [event async for event in model.stream(REQUEST)]
            assert isinstance(response, ModelResponse)
            assert response.message.content == "424242"
            await model.aclose()

    run(main())


@pytest.mark.parametrize("after", [(), (b"",), (SAID,)], ids=["no head", "head only", "in the middle"])
def test_no_exchange_lasts_longer_than_its_bound(run: Run, after: tuple[Any, ...]) -> None:
    failure = run(failure_of(raw(*after, asyncio.Event()), exchange_timeout_s=0.3))
    assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "exchange_timeout")


def test_a_reply_that_never_ends_is_ended(run: Run) -> None:
    failure = run(failure_of(endless(SAID), exchange_timeout_s=0.3))
    assert (failure.kind, failure.retryable, failure.code) == ("timeout", True, "exchange_timeout")


@pytest.mark.parametrize("stream", [True, False])
def test_a_finished_reply_leaves_its_connection_for_the_next(run: Run, stream: bool) -> None:
    async def main() -> None:
        async with WireServer([text("a"), text("b"), error(400), text("c")]) as server:
            model = model_at(server.base_url, stream=stream)
            for _ in range(4):
                try:
                    async for _ in model.stream(REQUEST):
                        pass
                except ProviderError:
                    pass
            assert [request.connection for request in server.requests] == [1, 1, 1, 1]
            await model.aclose()

    run(main())


def test_the_connection_is_reused_when_the_end_of_the_body_comes_after_done(run: Run) -> None:
    async def main() -> None:
        late = asyncio.Event()
        step = raw({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}, b"data: [DONE]\n\n", late, ends="eof")
        async with WireServer([step, text("b")]) as server:
            model = model_at(server.base_url)
            async for event in model.stream(REQUEST):
                if isinstance(event, ModelResponse):  # it does not wait for the end of the body
                    late.set()
            async for _ in model.stream(REQUEST):
                pass
            assert [request.connection for request in server.requests] == [1, 1]
            await model.aclose()

    run(main())


def test_a_server_that_does_not_end_after_done_does_not_hold_the_caller(run: Run) -> None:
    async def main() -> None:
        step = raw({"choices": [{"index": 0, "delta": {"content": "a"}}]}, b"data: [DONE]\n\n", asyncio.Event())
        async with WireServer([step]) as server:
            model = model_at(server.base_url)
            async with asyncio.timeout(2):
                assert len([event async for event in model.stream(REQUEST)]) == 2
                await server.requests[0].disconnected.wait()
            await model.aclose()

    run(main())


async def _leave_by_closing(model: OpenAIChatModel, started: asyncio.Event) -> None:
    async with aclosing(model.stream(REQUEST)) as events:
        async for event in events:
            assert isinstance(event, TextDelta)
            started.set()
            return


async def _leave_by_forgetting(model: OpenAIChatModel, started: asyncio.Event) -> None:
    async for _ in model.stream(REQUEST):
        started.set()
        return


async def _leave_by_cancelling(model: OpenAIChatModel, started: asyncio.Event) -> None:
    async def consume() -> None:
        async for _ in model.stream(REQUEST):
            started.set()

    task = asyncio.create_task(consume())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [_leave_by_closing, _leave_by_forgetting, _leave_by_cancelling])
def test_the_socket_is_closed_at_once_when_the_consumer_leaves(run: Run, leave: Any) -> None:
    async def main() -> None:
        async with WireServer([hold(asyncio.Event(), after="half"), text("b")]) as server:
            model = model_at(server.base_url)
            await leave(model, asyncio.Event())
            left_at = asyncio.get_running_loop().time()
            await asyncio.wait_for(server.requests[0].disconnected.wait(), 1)
            gone_at = server.requests[0].disconnected_at
            assert gone_at is not None
            assert gone_at - left_at < 0.25
            async for _ in model.stream(REQUEST):
                pass
            assert [request.connection for request in server.requests] == [1, 2]
            await model.aclose()

    run(main())


def test_a_consumer_that_leaves_before_the_reply_begins_closes_the_socket(run: Run) -> None:
    async def main() -> None:
        arrived = asyncio.Event()

        def never(body: dict[str, Any]) -> Step:
            arrived.set()
            return hold(asyncio.Event())

        async with WireServer(never) as server:
            model = model_at(server.base_url)
            task = asyncio.ensure_future(anext(aiter(model.stream(REQUEST))))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.requests[0].disconnected.wait(), 0.25)
            await model.aclose()

    run(main())


def test_cancelling_twice_at_any_moment_leaks_no_connection(run: Run) -> None:
    async def main() -> None:
        async with WireServer([repeat(text("one two three four", pieces=4))]) as server:
            model = model_at(server.base_url)

            async def consume() -> None:
                async with aclosing(model.stream(REQUEST)) as events:
                    async for _ in events:
                        await asyncio.sleep(0)

            for turns in range(40):
                task = asyncio.create_task(consume())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.done()
            await consume()
            await model.aclose()
            for _ in range(20):
                await asyncio.sleep(0)
            assert server.open_connections == 0

    run(main())


def test_a_torn_connection_is_not_used_again(run: Run) -> None:
    async def main() -> None:
        async with WireServer([cut(after="half"), text("b")]) as server:
            model = model_at(server.base_url)
            with pytest.raises(ProviderError, match="before the reply was complete"):
                async for _ in model.stream(REQUEST):
                    pass
            async for _ in model.stream(REQUEST):
                pass
            assert [request.connection for request in server.requests] == [1, 2]
            await model.aclose()

    run(main())


def test_a_model_that_was_never_closed_leaves_nothing_behind_and_serves_the_next_event_loop(run: Run) -> None:
    async def main(model: OpenAIChatModel) -> None:
        async for _ in model.stream(REQUEST):
            pass

    with serving([text("a"), text("b")]) as server:
        model = model_at(server.base_url)
        run(main(model))
        run(main(model))
        assert [request.connection for request in server.requests] == [1, 2]


def test_one_model_serves_many_streams_at_once(run: Run) -> None:
    async def main() -> None:
        def answer(body: dict[str, Any]) -> Step:
            return text(body["messages"][0]["content"], pieces=5)

        async with WireServer(answer) as server:
            model = model_at(server.base_url)

            async def ask(number: int) -> None:
                request = ModelRequest(messages=(UserMessage(content=f"number {number}"),))
                *_, last = [event async for event in model.stream(request)]
                assert isinstance(last, ModelResponse)
                assert last.message.content == f"number {number}"

            await asyncio.gather(*map(ask, range(150)))
            await model.aclose()
            await model.aclose()

    run(main())


def test_a_large_request_is_sent_whole(run: Run) -> None:
    async def main() -> None:
        async with WireServer([text("ok")]) as server:
            model = model_at(server.base_url)
            prompt = "x" * 3_000_000
            async for _ in model.stream(ModelRequest(messages=(UserMessage(content=prompt),))):
                pass
            assert server.requests[0].body["messages"][0]["content"] == prompt
            await model.aclose()

    run(main())


def test_no_proxy_is_taken_from_the_environment_unless_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def main() -> None:
        async with WireServer([text("ok")]) as server:
            async for _ in (model := model_at(server.base_url)).stream(REQUEST):
                pass
            await model.aclose()
            failure = await failure_at(server.base_url, trust_env=True)
            assert failure.kind == "connect"

    run(main())


@pytest.mark.parametrize(("status", "retryable"), [(407, False), (502, True)])
def test_a_proxy_that_makes_no_connection_is_named(run: Run, status: int, retryable: bool) -> None:
    async def main() -> None:
        server, url = await _tcp_server(b"HTTP/1.1 %d Not Now\r\nContent-Length: 0\r\n\r\n" % status)
        async with server:
            failure = await failure_at("https://model.example/v1", proxy=url.removesuffix("/v1"))
        assert (failure.kind, failure.retryable) == ("connect", retryable)
        assert f"the proxy made no connection to https://model.example/v1: HTTP {status} Not Now" in str(failure)

    run(main())


@pytest.mark.parametrize("name", ["", "X A", "X:A", "(x)", "Ü", " X", "X\t", "X\n"])
def test_what_is_no_name_of_a_header_is_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match="header"):
        model_at("http://127.0.0.1:1/v1", headers={name: "v"})


def test_openai_needs_a_key_and_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        OpenAIChatModel("gpt")
    with pytest.raises(UsageError, match="OTHER_KEY"):
        OpenAIChatModel("m", base_url="http://127.0.0.1:1/v1", key_variable="OTHER_KEY")
    OpenAIChatModel("gpt", headers={"authorization": "Bearer x"})
    OpenAIChatModel("m", base_url="http://127.0.0.1:1/v1")


def test_a_key_from_the_environment_goes_only_to_the_host_it_is_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " from-environment\n")
    monkeypatch.setenv("OTHER_KEY", "other")

    async def main() -> None:
        async with WireServer([text("a")] * 5) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            models = [
                OpenAIChatModel("m"),
                OpenAIChatModel("m", base_url=server.base_url.replace("127.0.0.1", "localhost")),
                OpenAIChatModel("m", base_url=server.base_url, key_variable="OTHER_KEY"),
                OpenAIChatModel("m", base_url=server.base_url, key_variable=None),
                OpenAIChatModel("m", api_key="given", headers={"X-Team": "blue"}),
            ]
            for model in models:
                async for _ in model.stream(REQUEST):
                    pass
                await model.aclose()
            sent = [request.headers.get("authorization") for request in server.requests]
            assert sent == ["Bearer from-environment", None, "Bearer other", None, "Bearer given"]
            assert server.requests[4].headers["x-team"] == "blue"

    run(main())


def test_a_401_without_a_key_says_so(run: Run) -> None:
    async def main() -> None:
        async with WireServer([error(401, "who are you")]) as server:
            model = OpenAIChatModel("m", base_url=server.base_url, key_variable=None)
            with pytest.raises(ProviderError, match="no API key was sent"):
                async for _ in model.stream(REQUEST):
                    pass
            await model.aclose()

    run(main())


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host/v1", "http://", "http://host:port/"])
def test_a_base_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="base_url"):
        OpenAIChatModel("m", base_url=url or "/v1", api_key="k")


@pytest.mark.parametrize("option", ["connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s", "exchange_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, "5", float("nan")])
def test_a_timeout_that_is_none_is_refused_at_once(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=option):
        model_at("http://127.0.0.1:1/v1", **{option: value})


def test_a_key_in_the_base_url_is_sent_and_is_in_no_message(run: Run) -> None:
    async def main() -> None:
        quiet = asyncio.Event()
        for step in (cut(), error(401, "who are you"), hold(quiet)):
            async with WireServer([step]) as server:
                options: dict[str, Any] = {"base_url": server.base_url.replace("//", "//user:word@") + "?key=hidden", "key_variable": None}
                model = OpenAIChatModel("m", first_byte_timeout_s=0.3, **options)
                with pytest.raises(ProviderError) as caught:
                    async for _ in model.stream(REQUEST):
                        pass
                await model.aclose()
                assert server.requests[0].path.endswith("?key=hidden")
                for said in (str(caught.value), repr(model)):
                    assert server.base_url in said
                    assert "hidden" not in said
                    assert "word@" not in said
        with pytest.raises(ProviderError, match="cannot connect") as caught:
            async for _ in OpenAIChatModel("m", **options).stream(REQUEST):  # pyright: ignore[reportPossiblyUnbound]
                pass
        assert "hidden" not in str(caught.value)

    run(main())


KEY_IN_QUERY = "?key=hidden"


def test_a_key_in_the_base_url_is_in_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def said_by(base_url: str, **options: Any) -> str:
        with pytest.raises(ProviderError) as caught:
            async for _ in (model := model_at(base_url + KEY_IN_QUERY, **options)).stream(REQUEST):
                pass
        await model.aclose()
        return "".join(format_exception(caught.value))

    async def main() -> None:
        server, url = await _tcp_server(b"SSH-2.0-OpenSSH\r\n\r\n")
        async with server:
            said = await said_by(url)
            assert "did not answer in HTTP" in said
            assert "hidden" not in said

        async def hang(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
        said = await said_by("http://slow.example/v1", connect_timeout_s=0.05)
        assert "no connection to" in said
        assert "hidden" not in said

    run(main())


def test_a_key_from_the_environment_is_not_sent_to_its_vendor_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert OpenAIChatModel("m", base_url="https://api.openai.com/v1").key_headers
    assert not OpenAIChatModel("m", base_url="http://api.openai.com/v1").key_headers
    assert OpenAIChatModel("m", base_url="http://api.openai.com/v1", api_key="given").key_headers


def test_a_query_in_the_base_url_is_kept(run: Run) -> None:
    async def main() -> None:
        async with WireServer([text("a")]) as server:
            model = model_at(server.base_url + "/deployments/d/?api-version=1")
            async for _ in model.stream(REQUEST):
                pass
            assert server.requests[0].path == "/v1/deployments/d/chat/completions?api-version=1"
            await model.aclose()

    run(main())


@pytest.mark.parametrize(
    ("base", "path"),
    [("/a%2Fb/v1", "/a%2Fb/v1"), ("/a%3Fb%2541/", "/a%3Fb%2541"), ("/ä ö", "/%C3%A4%20%C3%B6"), ("//a//b/", "//a//b"), ("", "")],
)
def test_the_path_of_a_base_url_stays_as_it_was_written(base: str, path: str) -> None:
    client = _http.HttpClient(base_url="http://127.0.0.1:1" + base, headers={}, timeouts=_http.Timeouts())
    assert client.url("/models/ü:go?alt=sse").raw_path_qs == path + "/models/%C3%BC:go?alt=sse"


# ---- how a body is handed out ------------------------------------------------------------------------


def test_a_reader_that_waits_holds_the_server_back_and_gets_every_piece(run: Run) -> None:
    """Small pieces, each an HTTP chunk of its own: the connection goes on only when all that has come was handed out."""
    pieces = 60_000
    event = b'data: {"choices":[{"delta":{"content":"%05d %s"}}]}\n\n' % (0, b"x" * 200)
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in range(pieces):
            body = event.replace(b"00000", b"%05d" % piece)
            writer.write(b"%x\r\n%b\r\n" % (len(body), body))
            sent += 1
            if piece % 100 == 0:
                await writer.drain()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()
        writer.close()

    async def stands_still() -> int:
        """What was sent when the server has waited for a hundred turns."""
        still, last = 0, -1
        while still < 100:
            still, last = (still + 1, last) if sent == last else (0, sent)
            await asyncio.sleep(0.001)
        return last

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        model = model_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        seen: list[str] = []
        async with server, aclosing(model.stream(REQUEST)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    seen.append(event.text[:5])
                    if len(seen) == 1:
                        assert await stands_still() < pieces
        await model.aclose()
        assert seen == [f"{piece:05d}" for piece in range(pieces)]

    run(main())


def test_the_connection_goes_on_once_for_all_that_has_come(run: Run) -> None:
    """Or each small piece of a stream costs twice as much; a version of aiohttp that must be told in another way is noticed here."""

    async def main() -> None:
        async with WireServer([text("hello")]) as server:
            client = _http.HttpClient(base_url=server.base_url, headers={}, timeouts=_http.Timeouts())
            exchange = await client.post(client.url("/chat/completions"), b'{"model":"m","messages":[]}')
            low, high = exchange._content.get_read_buffer_limits()
            assert low == 1
            assert high > 1000
            await exchange.finish()
            await client.aclose()

    run(main())
