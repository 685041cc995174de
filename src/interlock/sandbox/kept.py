"""What is kept of an output that may be endless: its head, its tail, and how much was dropped between them."""

from __future__ import annotations

from collections import deque

__all__ = ["HeadAndTail"]

# A writer of single bytes must not cost an object per byte.
_PIECE_BYTES = 64 * 1024


class HeadAndTail:
    """At most ``head_max`` bytes of the beginning and ``tail_max`` of the end; memory stays within that and two chunks more."""

    def __init__(self, head_max: int, tail_max: int) -> None:
        self.total = 0
        self._head = bytearray()
        self._head_max = head_max
        self._tail: deque[bytearray] = deque()
        self._tail_bytes = 0
        self._tail_max = tail_max

    def add(self, chunk: bytes) -> None:
        """Take the next part of the output."""
        self.total += len(chunk)
        room = self._head_max - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not chunk:
            return
        if self._tail and len(self._tail[-1]) < _PIECE_BYTES:
            self._tail[-1] += chunk
        else:
            self._tail.append(bytearray(chunk))
        self._tail_bytes += len(chunk)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_max:
            self._tail_bytes -= len(self._tail.popleft())

    def parts(self) -> tuple[bytes, bytes]:
        """The head and the tail; together they are the whole output if ``total`` is the sum of their lengths."""
        tail = b"".join(self._tail)
        return bytes(self._head), tail[max(0, len(tail) - self._tail_max) :]

    def newest(self, bytes_max: int) -> bytes:
        """The last of what came, at most ``bytes_max``; less if the pieces fall so."""
        last = self._tail[-1] if self._tail else self._head
        return bytes(last[-bytes_max:])
