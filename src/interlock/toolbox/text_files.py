"""Files as text: encodings, line ends, and the way back to bytes."""

from __future__ import annotations

import codecs
import difflib
import io
from typing import Literal, NamedTuple

from ..errors import ToolFailure
from ..messages import clean
from .directory import shown_path

__all__ = ["Text", "as_text", "diff_of", "is_binary", "lines_of", "newline_of", "to_bytes", "with_newlines"]

Encoding = Literal["utf-8", "utf-16-le", "utf-16-be", "latin-1"]

SNIFFED_BYTES = 8192
# Beyond this, the exact difference costs more than it tells.
DIFFED_LINES_MAX = 2000
CONTEXT_LINES = 3

_BOMS: tuple[tuple[bytes, Encoding], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Text(NamedTuple):
    """A file's text. bom: what stands before it. note: what a reader must know, or nothing.

    Bytes that are not UTF-8 in a file that otherwise is are lone surrogates in ``text``, so that they can be written back.
    """

    text: str
    encoding: Encoding = "utf-8"
    bom: bytes = b""
    note: str = ""


def is_binary(data: bytes) -> bool:
    """Whether a file that begins with ``data`` is no text: it holds a NUL, and no mark of UTF-16."""
    if data.startswith(codecs.BOM_UTF32_LE):  # which begins as UTF-16 does
        return True
    return b"\0" in data[:SNIFFED_BYTES] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def as_text(path: str, data: bytes) -> Text:
    """Decode a file: UTF-8, or UTF-16 with its mark, or else Latin-1, which the note says. Raises ToolFailure if it is no text."""
    if is_binary(data):
        raise ToolFailure(f"{path!r} is not a text file ({len(data):,} bytes)", effect="none")
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            try:
                note = "" if encoding == "utf-8" else f"[{encoding.upper()} with a byte order mark]"
                return Text(data[len(bom) :].decode(encoding), encoding, bom, note)
            except UnicodeDecodeError as error:
                if encoding != "utf-8":
                    raise ToolFailure(f"{path!r} begins as {encoding.upper()} text and is none ({error.reason})", effect="none") from error
    try:
        return Text(data.decode())
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
    wrong = sum("\udc80" <= character <= "\udcff" for character in text)
    if wrong > sum(character > "\x7f" for character in text) - wrong:
        return Text(data.decode("latin-1"), "latin-1", note="[not UTF-8; read as Latin-1]")
    return Text(text, note=f"[{wrong} {'byte is' if wrong == 1 else 'bytes are'} not UTF-8, and shown as \N{REPLACEMENT CHARACTER}]")


def to_bytes(path: str, text: str, like: Text) -> bytes:
    """``text`` as the bytes of a file like ``like``. Raises ToolFailure if its encoding has no such character."""
    try:
        return like.bom + text.encode(like.encoding, "surrogateescape" if like.encoding == "utf-8" else "strict")
    except UnicodeEncodeError as error:
        wrong = text[error.start]
        raise ToolFailure(
            f"{path!r} is {like.encoding.upper()}, which has no character U+{ord(wrong):04X}; nothing was written", effect="none"
        ) from error


def lines_of(text: str) -> list[str]:
    r"""The lines with their ends: ``\n``, ``\r\n`` or ``\r``, and no others, as editors count them."""
    return list(io.StringIO(text, newline=""))


def newline_of(text: str) -> str | None:
    """How every line of ``text`` ends; None if there is no line end, or several kinds."""
    crlf = text.count("\r\n")
    lf, cr = text.count("\n") - crlf, text.count("\r") - crlf
    kinds = [end for end, count in (("\n", lf), ("\r\n", crlf), ("\r", cr)) if count]
    return kinds[0] if len(kinds) == 1 else None


def with_newlines(text: str, newline: str | None) -> str:
    """``text`` with these line ends; as it is for None."""
    if newline is None:
        return text
    plain = text.replace("\r\n", "\n")
    return plain if newline == "\n" else plain.replace("\n", newline)


def diff_of(path: str, before: str, after: str) -> str:
    """A unified diff; of a very large change only where it is. Empty if nothing differs."""
    old, new = _bare(before), _bare(after)
    if old == new:
        return ""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    removed, added = len(old) - end - start, len(new) - end - start
    shown = shown_path(path)
    head = f"--- {shown}\n+++ {shown}\n"
    if max(removed, added) > DIFFED_LINES_MAX:
        return clean(f"{head}[{removed:,} lines from line {start + 1} on became {added:,} lines]")
    above = min(start, CONTEXT_LINES)
    # What stands around the change is marked, so that none of it is aligned with a line inside: a hunk would end too early for patch.
    lead = [f"{line}\r{number}" for number, line in enumerate(old[start - above : start])]
    trail = [f"{line}\r{number - end}" for number, line in enumerate(old[len(old) - end : len(old) - end + CONTEXT_LINES])]
    was, now = ([*lead, *lines[start : len(lines) - end], *trail] for lines in (old, new))
    found = [line.partition("\r")[0] for line in list(difflib.unified_diff(was, now, n=CONTEXT_LINES, lineterm=""))[2:]]
    return clean(head + "\n".join(_moved(line, start - above) if line.startswith("@@") else line for line in found))


def _bare(text: str) -> list[str]:
    """Lines without their ends; a last line that has none says so, as diffs do."""
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    if text and not text.endswith(("\n", "\r")):
        lines[-1] += "\n\\ No newline at end of file"
    return lines


def _moved(header: str, by: int) -> str:
    """A hunk's header, whose line numbers count from a window that begins ``by`` lines further down."""
    parts = header.split()
    for at in (1, 2):
        sign, (line, *count) = parts[at][0], parts[at][1:].split(",")
        parts[at] = f"{sign}{','.join([str(int(line) + by), *count])}"
    return " ".join(parts)
