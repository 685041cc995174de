"""What a web server sent, as text: compression undone within a bound, the kind of content, the character set."""

from __future__ import annotations

import codecs
import re
import zlib
from typing import Literal, NamedTuple

from ..errors import ToolFailure

__all__ = ["ContentType", "Inflated", "content_type", "kind_of", "text_of_body"]

Kind = Literal["html", "text", "binary"]

# A gzip body may be a chain of members. Real ones have one; each further one costs a copy of what follows it.
MEMBERS_MAX = 64
_STEP_BYTES = 64 * 1024
_GZIP_MAGIC = b"\x1f\x8b"


class Inflated:
    """A body whose compression is undone as it arrives, and never beyond ``bytes_max`` decoded bytes.

    encoding: the header Content-Encoding; ``gzip`` and ``deflate``, as were asked for, or none. Raises ToolFailure for others.
    """

    def __init__(self, encoding: str, *, bytes_max: int) -> None:
        self.data = bytearray()
        self.full = False
        """More was there than ``bytes_max``; feeding further has no effect."""
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise _unreadable(f"it came compressed as {name[:40]!r}, although only gzip and deflate were asked for")
        self._plain = name in ("", "identity")
        self._deflate = name == "deflate"
        self._bytes_max = bytes_max
        self._members = 0
        self._inflate = None if self._plain else zlib.decompressobj(wbits=31)
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        """Raises ToolFailure for what is not compressed as its header says."""
        if self._plain:
            self._take(chunk)
            return
        while chunk and not self.full and not self._ended:
            chunk = self._step(chunk)

    def finish(self) -> None:
        """The body ended here. Raises ToolFailure if it may not."""
        if self._plain or self._ended or self.full or self._members == 0 or self._inflate is None:
            return
        if not self._inflate.eof:
            self._take(self._inflate.flush())  # what a full step has left inside; a few hundred bytes at most
        if not self._inflate.eof and not self.full:
            raise _unreadable("its compressed body ends in the middle")

    def _step(self, chunk: bytes) -> bytes:
        """Undo some of ``chunk``, and return what of it is left."""
        if self._deflate and self._members == 0:
            # Half of all servers mean the bare stream, and the other half the one with a header of two bytes, which says so.
            headed = chunk[0] & 0x0F == 8 and (len(chunk) < 2 or (chunk[0] << 8 | chunk[1]) % 31 == 0)
            self._inflate = zlib.decompressobj(wbits=15 if headed else -15)
        self._members = self._members or 1
        inflate = self._inflate
        if inflate is None or inflate.eof:
            if not _GZIP_MAGIC.startswith(chunk[:2]) or self._members == MEMBERS_MAX:
                self._ended = True  # padding, which everyone ignores
                return b""
            self._members += 1
            inflate = self._inflate = zlib.decompressobj(wbits=31)
        try:
            self._take(inflate.decompress(chunk, min(_STEP_BYTES, self._bytes_max + 1)))
        except zlib.error as error:
            raise _unreadable(f"its body is not compressed as its header says ({error})") from error
        if inflate.eof:
            self._ended = self._deflate
            return inflate.unused_data
        return inflate.unconsumed_tail

    def _take(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > self._bytes_max:
            del self.data[self._bytes_max :]
            self.full = True


class ContentType(NamedTuple):
    """A header Content-Type. media: lower case, empty if there is none. charset: as written, or empty."""

    media: str
    charset: str


def content_type(header: str) -> ContentType:
    """Read it as leniently as browsers do."""
    media, *parameters = header.split(";")
    charset = ""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and not charset:
            charset = value.strip().strip("\"'")
    media = media.strip().lower()
    return ContentType(media if re.fullmatch(r"[a-z0-9!#$&^_.+-]{1,80}/[a-z0-9!#$&^_.+-]{1,80}", media) else "", charset)


# Types of application/ that are text, beside all that end in +json, +xml or +yaml.
_TEXT = frozenset(
    f"application/{name}"
    for name in (
        *("json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-javascript", "ecmascript", "typescript", "ndjson"),
        *("x-ndjson", "jsonl", "jsonlines", "x-sh", "x-shellscript", "sql", "graphql", "x-www-form-urlencoded", "xml-dtd", "x-tex"),
        *("x-httpd-php", "x-python", "x-ruby", "x-subrip", "mbox"),
    )
)


def kind_of(media: str) -> Kind | None:
    """What a media type says; None if it says nothing, and the body has to."""
    if media in ("text/html", "application/xhtml+xml"):
        return "html"
    if media.startswith("text/") or media in _TEXT or media.endswith(("+json", "+xml", "+yaml")):
        return "text"
    return None if media in ("", "application/octet-stream", "binary/octet-stream") else "binary"


# By the WHATWG's Encoding Standard: what a label means to browsers, which is not always what it says. Other codecs of Python's
# are out of a server's reach: some are slow by design, and some are no character sets.
_LABELS = {
    **dict.fromkeys(("utf-8", "utf8", "unicode-1-1-utf-8", "unicode11utf8", "unicode20utf8", "x-unicode20utf8"), "utf-8"),
    **dict.fromkeys(
        ("windows-1252", "cp1252", "x-cp1252", "ascii", "us-ascii", "latin1", "l1", "iso-8859-1", "iso8859-1", "iso_8859-1", "iso88591"),
        "cp1252",
    ),
    **dict.fromkeys(("windows-1254", "cp1254", "iso-8859-9", "latin5"), "cp1254"),
    **{f"windows-{page}": f"cp{page}" for page in (1250, 1251, 1253, 1255, 1256, 1257, 1258, 874)},
    **{f"cp{page}": f"cp{page}" for page in (1250, 1251, 1253, 1255, 1256, 1257, 1258, 866)},
    **{f"iso-8859-{part}": f"iso8859_{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **dict.fromkeys(("gb2312", "gbk", "gb18030", "x-gbk", "chinese", "gb_2312-80"), "gb18030"),
    **dict.fromkeys(("big5", "big5-hkscs", "x-x-big5", "cn-big5"), "big5hkscs"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j", "ms932"), "cp932"),
    **dict.fromkeys(("euc-jp", "x-euc-jp"), "euc_jp"),
    "iso-2022-jp": "iso2022_jp",
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987", "ksc5601", "korean", "windows-949"), "cp949"),
    **dict.fromkeys(("koi8-r", "koi8", "koi"), "koi8_r"),
    **dict.fromkeys(("koi8-u", "koi8-ru"), "koi8_u"),
    **dict.fromkeys(("macintosh", "mac", "x-mac-roman"), "mac_roman"),
    "ibm866": "cp866",
    **dict.fromkeys(("utf-16", "utf-16le", "unicode", "ucs-2"), "utf-16-le"),
    "utf-16be": "utf-16-be",
}
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"<meta[^>]{0,400}?charset\s{0,20}=\s{0,20}[\"']?\s{0,20}([a-zA-Z0-9_:.-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"<\?xml[^>]{0,200}?encoding\s{0,20}=\s{0,20}[\"']([a-zA-Z0-9_:.-]{1,40})", re.IGNORECASE)
_DECLARED_WITHIN = 4096


def text_of_body(data: bytes, charset: str) -> tuple[str, str | None]:
    """The text, and the name of the character set if it was guessed and is not UTF-8.

    The order of browsers: a byte order mark, the header's ``charset``, what the page declares; then UTF-8 if it is valid, and
    windows-1252 otherwise. What does not fit becomes U+FFFD.
    """
    for mark, codec in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(codec, "replace"), None
    codec = _LABELS.get(charset.strip().lower())
    if codec is None and (found := _META.search(data, 0, _DECLARED_WITHIN) or _XML.match(data)):
        codec = _LABELS.get(found[1].decode("ascii").lower())
        if codec is not None and codec.startswith("utf-16"):
            codec = "utf-8"  # it could not have been read so far
    if codec is not None:
        return data.decode(codec, "replace"), None
    try:
        # A character that the bound has cut in two is no reason against UTF-8.
        return codecs.getincrementaldecoder("utf-8")().decode(data), None
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace"), "windows-1252"


def _unreadable(why: str) -> ToolFailure:
    return ToolFailure(f"the answer cannot be read: {why}", effect="none")
