"""The body of a reply in aiohttp's hands, whose pieces are an HTTP chunk each: for a model's stream, one event.

By itself aiohttp hands pieces out one after the other, and after each of them below its low-water mark lets the connection go on: that
is half of what a streamed event costs beside its decoding. There is no public word for either. What is not there in another version of
aiohttp is left alone: then its own way holds, which is right, too.
"""

from __future__ import annotations

from aiohttp import StreamReader

__all__ = ["eased", "join_pieces"]


def eased(content: StreamReader) -> StreamReader:
    """``content``, told to let its connection go on when all that has come was handed out."""
    try:
        content._low_water = 1  # pyright: ignore[reportPrivateUsage]
    except AttributeError:
        pass
    return content


def join_pieces(content: StreamReader) -> None:
    """Make one piece of all that has come and was not handed out yet."""
    try:
        pieces = content._buffer  # pyright: ignore[reportPrivateUsage]
        if len(pieces) > 1:
            whole = b"".join(pieces)
            pieces.clear()
            pieces.append(whole)
    except (AttributeError, TypeError):
        pass
