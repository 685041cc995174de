"""The text that a command's output is: UTF-8 as far as it goes, UTF-16 where it shows, and what is no text said to be none."""

from __future__ import annotations

import re

from ..tools.result import boundary

__all__ = ["output_text"]

# Colours and cursor movements; titles, pictures and the like, if they end on their line; and the rest of what a terminal would have
# taken for itself.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\r\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# However many carriage returns there are, they are looked at once.
_LINE_ENDS = re.compile(r"\r+\n?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LOOKED_AT = 8192
# More than this share of characters that no text has: it is not shown.
_STRANGE_MAX = 0.3


def output_text(head: bytes, tail: bytes, total: int) -> str:
    """What a model is shown of an output of ``total`` bytes of which ``head`` and ``tail`` are left. Without escape sequences; line ends
    are LF; other control characters, and bytes that are no text, are U+FFFD. Binary data is named by its size instead."""
    dropped = total - len(head) - len(tail)
    if not dropped:
        head, tail = head + tail, b""
    encoding = _encoding(head)
    if encoding != "utf-8" and dropped and (total - len(tail)) % 2:
        tail = tail[1:]
    elif encoding == "utf-8" and dropped:
        head = _whole(head)
        tail = tail[boundary(tail, _continued(tail), forward=True) :]
    start = _plain(head[:_LOOKED_AT].decode(encoding, "replace"))
    if start.count("�") > _STRANGE_MAX * len(start):
        return f"[{total:,} bytes of binary output, which are not shown; write them to a file, or look at them with od]"
    texts = [_plain(part.decode(encoding, "replace")) for part in (head, tail)]
    if not dropped:
        return texts[0].removeprefix("\ufeff")
    return f"{texts[0]}\n[... {dropped:,} of {total:,} bytes were dropped here, and are not kept anywhere ...]\n{texts[1]}".removeprefix(
        "\ufeff"
    )


def _encoding(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16-le" if head.startswith(b"\xff\xfe") else "utf-16-be"
    start = head[:_LOOKED_AT]
    half = len(start) // 2
    # Text of the West in UTF-16 has a NUL in every second place, and nowhere else.
    if half >= 2 and start[1::2].count(0) > half * 0.7 and start[::2].count(0) < half * 0.1:
        return "utf-16-le"
    if half >= 2 and start[::2].count(0) > half * 0.7 and start[1::2].count(0) < half * 0.1:
        return "utf-16-be"
    return "utf-8"


def _whole(head: bytes) -> bytes:
    """``head`` without a character that was cut at its end."""
    start = boundary(head, len(head) - 1)
    try:
        head[start:].decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return head[:start]
    return head


def _continued(tail: bytes) -> int:
    """Where the first character of ``tail`` begins that is there as a whole: at most three bytes are the end of one that is not."""
    count = 0
    while count < min(3, len(tail)) and tail[count] & 0xC0 == 0x80:
        count += 1
    return count


def _plain(text: str) -> str:
    return _CONTROLS.sub("�", _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)))
