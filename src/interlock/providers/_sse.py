"""Server-sent events over byte blocks, as the WHATWG HTML standard defines them (section 9.2).

Only the ``data`` of each event is handed out: every API read here puts the event's type into its data as well.
"""

from __future__ import annotations

from ..errors import ProviderError

__all__ = ["SSEReader"]

_BOM = b"\xef\xbb\xbf"


class SSEReader:
    """Give it blocks, cut anywhere, and it gives the data of the events that they complete.

    event_bytes_max: a larger event raises ProviderError (not retryable) instead of filling the memory.
    The data of an event may be empty. Work and memory are linear in the number of bytes, however small the blocks are.
    """

    __slots__ = ("_data", "_data_bytes", "_event_bytes_max", "_line", "_line_bytes", "_skip_lf", "_started")

    def __init__(self, *, event_bytes_max: int = 64 * 1024 * 1024) -> None:
        self._event_bytes_max = event_bytes_max
        self._line: list[bytes] = []
        """The pieces of a line that has no end yet, or of a named event whose data has none."""
        self._line_bytes = 0
        self._data: list[bytes] = []
        """The data lines of an event that has no end yet."""
        self._data_bytes = 0
        self._skip_lf = False
        """The last block ended with CR: an LF that follows belongs to it."""
        self._started = False

    def feed(self, block: bytes) -> list[bytes]:
        """The data of each event that ``block`` completes, in order."""
        if self._skip_lf and block:
            self._skip_lf = False
            if block.startswith(b"\n"):
                block = block[1:]
        if b"\r" in block:
            self._skip_lf = block.endswith(b"\r")
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in block:
            self._keep(block)
            return []
        if self._line:
            self._line.append(block)
            block = b"".join(self._line)
            self._line.clear()
            self._line_bytes = 0
        if not self._started:
            self._started = True
            block = block.removeprefix(_BOM)
        events: list[bytes] = []
        if not self._data:
            end = block.rfind(b"\n\n") + 2
            if end > 1 and (whole := _simple(block[:end]) or _named(block[:end])):
                if end == len(block):
                    return whole
                events, block = whole, block[end:]
                if block.startswith(b"event: ") and block.count(b"\n") == 1:
                    self._keep(block)  # together with its name, so that the rest of it is the usual block again
                    return events
        self._lines(block, events)
        return events

    def end(self) -> list[bytes]:
        """The data of an event that the end of the stream left without its blank line."""
        events: list[bytes] = []
        line = b"".join(self._line)
        self._line.clear()
        self._lines((line if self._started else line.removeprefix(_BOM)) + b"\n\n", events)
        return events

    def _lines(self, block: bytes, events: list[bytes]) -> None:
        *lines, rest = block.split(b"\n")
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data.clear()
                    self._data_bytes = 0
            elif line.startswith(b"data") and (line[4:5] == b":" or len(line) == 4):
                value = line[5:].removeprefix(b" ")
                self._data.append(value)
                self._data_bytes += len(value)
        self._keep(rest)

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
        if self._line_bytes + self._data_bytes > self._event_bytes_max:
            message = f"an event of the stream is larger than {self._event_bytes_max:,} bytes"
            raise ProviderError(message, kind="malformed", code="response_too_large")


def _simple(block: bytes) -> list[bytes] | None:
    """The usual block at once: events of one ``data: `` line each. None if there is anything else in it.

    JSON text has no raw line ends, so a separator inside the data is impossible, and that no other is left proves the form.
    """
    if not block.startswith(b"data: "):
        return None
    events = block[6:-2].split(b"\n\ndata: ")
    return events if b"\n" not in b"".join(events) else None  # to look for one byte is much cheaper than to count it


def _named(block: bytes) -> list[bytes] | None:
    """The same for events of an ``event: `` line and one ``data: `` line, as Anthropic and OpenAI's Responses send them.

    Each begins with its own ``event: ``, each has data, and there are just the line ends for that: so each has one data line.
    """
    if not block.startswith(b"event: "):
        return None
    events = [event.partition(b"\ndata: ")[2] for event in block[7:-2].split(b"\n\nevent: ")]
    return events if block.count(b"\n") == 3 * len(events) and all(events) else None
