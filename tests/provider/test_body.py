"""How a body is taken out of aiohttp's hands: whole, in order, and with its connection held back and let go on."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from interlock.providers._body import eased, join_pieces

from .conftest import Run


class Protocol(BaseProtocol):
    """Counts how often the connection is stopped and let go on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.transport = asyncio.Transport()
        self.stopped = self.gone_on = 0

    def pause_reading(self) -> None:
        self.stopped += 1

    def resume_reading(self, resume_parser: bool = True) -> None:
        self.gone_on += 1


def fed(*pieces: bytes, limit: int = 1000) -> tuple[StreamReader, Protocol]:
    loop = asyncio.get_running_loop()
    protocol = Protocol(loop)
    content = eased(StreamReader(protocol, limit, loop=loop))
    for piece in pieces:
        content.begin_http_chunk_receiving()
        content.feed_data(piece)
        content.end_http_chunk_receiving()
    return content, protocol


def test_pieces_are_handed_out_as_one_and_the_connection_goes_on_once(run: Run) -> None:
    async def main() -> None:
        content, protocol = fed(b"a", b"bc", b"def")
        join_pieces(content)
        assert await content.readany() == b"abcdef"
        assert protocol.gone_on == 1
        join_pieces(content)
        content.feed_data(b"g")
        content.feed_eof()
        join_pieces(content)
        assert await content.readany() == b"g"
        assert await content.readany() == b""
        assert content.at_eof()

    run(main())


def test_the_connection_goes_on_once_for_pieces_that_came_while_one_was_waited_for(run: Run) -> None:
    async def main() -> None:
        content, protocol = fed()
        waiting = asyncio.ensure_future(content.readany())
        await asyncio.sleep(0)
        for piece in (b"a", b"b", b"c"):
            content.feed_data(piece)
        assert await waiting == b"abc"
        assert protocol.gone_on == 1

    run(main())


def test_a_piece_of_which_a_part_was_handed_out_already_keeps_its_rest(run: Run) -> None:
    async def main() -> None:
        content, _ = fed(b"abc", b"def", b"ghi")
        assert await content.read(2) == b"ab"
        join_pieces(content)
        assert await content.readany() == b"cdefghi"

    run(main())


def test_what_is_too_much_stops_the_connection_until_all_of_it_was_handed_out(run: Run) -> None:
    async def main() -> None:
        content, protocol = fed(*[b"0123456789"] * 30, limit=100)
        assert protocol.stopped > 0
        join_pieces(content)
        assert protocol.gone_on == 0
        assert await content.readany() == b"0123456789" * 30
        assert protocol.gone_on == 1

    run(main())


def test_another_aiohttp_inside_is_left_alone() -> None:
    class Other:
        __slots__ = ()

    class Listed:
        _buffer = bytearray(b"ab")

    other: Any = Other()
    assert eased(other) is other
    join_pieces(other)
    listed: Any = Listed()
    join_pieces(listed)
    assert listed._buffer == b"ab"
