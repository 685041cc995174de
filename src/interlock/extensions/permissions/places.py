"""Where in a TOML file something stands: its line, as far as it can be told."""

from __future__ import annotations

import re

__all__ = ["Places"]

_HEADER = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_.\"'-]+)\s*\]?\]")


class Places:
    """The lines of one file. source: how it is called."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines = text.splitlines()

    def of_table(self, key: str, number: int) -> str:
        """The ``number``-th ``[[key]]``; without a line if it is written in another way."""
        seen = 0
        for at, line in enumerate(self._lines, 1):
            header = _HEADER.match(line)
            if header and header[1] == key and line.lstrip().startswith("[["):
                seen += 1
                if seen == number:
                    return f"{self._source}:{at}"
        return f"{self._source}, {key} {number}"

    def of_key(self, where: str, key: str) -> str:
        """``key`` inside the table that ``where`` is, or before every table."""
        head, _, line = where.rpartition(":")
        start = int(line) if head == self._source and line.isdigit() else 0
        for at in range(start, len(self._lines)):
            if (
                _HEADER.match(self._lines[at])
                and start
                and not self._lines[at].lstrip().startswith(("[[deny.", "[deny.", "[ask.", "[allow."))
            ):
                break
            if re.match(rf"\s*(?:[\w.-]+\s*=\s*\{{.*\b)?[\"']?{re.escape(key)}[\"']?\s*(?:=|\.)", self._lines[at]):
                return f"{self._source}:{at + 1}"
        return where
