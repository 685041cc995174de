"""``RedactSecrets``: declared secrets, and what looks like one, are taken out of whatever is written, logged or shown."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast
from urllib.parse import quote, quote_plus

from ..errors import UsageError
from ..records import Record
from ..records.redaction import with_texts
from .base import AgentExtension, TextFilter
from .secret_patterns import KEY_END, STARTS, keys_in, without_secrets

# Shorter ones are in ordinary words and numbers, which would all be torn.
SECRET_MIN = 6
# A shorter piece of base64 is in other base64 by chance.
BASE64_MIN = 8
# One that was right behind another stands alone when that one is gone, and is found in the next pass.
PASSES_MAX = 8
# How much of what is held back is looked at again for the end of a private key.
TAIL = 64


class RedactSecrets(AgentExtension):
    """Takes secrets out of the journal, the transcript, the results, the events (streamed text included), and the runtime's own logs.

    secrets: known ones, each as it is, escaped for JSON, percent-encoded, and in base64 (inside a longer one, too). patterns: regular
    expressions of yours; what they find must lie within a line. formats: whether the well-known formats of keys, tokens and private
    keys are looked for as well. mask: what stands instead.

    The handler of a running call gets what the model asked for. Not found: a secret that is a JSON number, in hexadecimal,
    compressed, or cut into pieces. Raises UsageError for a secret that is shorter than 6 characters, a pattern that does not compile, and
    a mask in which there is a secret.
    """

    priority = -1000

    def __init__(
        self,
        secrets: Iterable[str] = (),
        patterns: Iterable[str | re.Pattern[str]] = (),
        *,
        formats: bool = True,
        mask: str = "[redacted]",
    ) -> None:
        forms = sorted({form for secret in _listed(secrets, "secrets") for form in _forms(secret)}, key=len, reverse=True)
        self._forms = tuple(forms)
        self._declared = re.compile("|".join(map(re.escape, forms))) if forms else None
        self._patterns = tuple(_compiled(pattern) for pattern in _listed(patterns, "patterns"))
        self._formats = formats
        self._mask = mask
        found = (one.search(mask) for one in (self._declared, *self._patterns) if one is not None)
        if not mask.strip() or any(found) or self.clean(f"x{mask}x") != f"x{mask}x":
            raise UsageError("RedactSecrets(mask=...): text is needed in which no secret and no pattern is found")

    def clean(self, text: str) -> str:
        """Pure: ``text`` without the secrets. Applied twice it changes nothing more."""
        for _ in range(PASSES_MAX):
            made = self._cleaned(text)
            if made == text:
                break
            text = made
        return text

    def _cleaned(self, text: str) -> str:
        if self._declared is not None:
            text = self._declared.sub(self._masked, text)
        for pattern in self._patterns:
            text = pattern.sub(self._masked, text)
        return without_secrets(text, self._mask) if self._formats else text

    def declared_in(self, text: str) -> Iterator[re.Match[str]]:
        """The declared secrets in ``text``, as they are found from its beginning."""
        return self._declared.finditer(text) if self._declared is not None else iter(())

    def _masked(self, found: re.Match[str]) -> str:
        return self._mask if found[0] else ""

    def redact(self, record: Record) -> Record:
        return with_texts(record, self.clean)

    def redact_deltas(self) -> TextFilter:
        return _Held(self, self._forms, lines=bool(self._patterns), formats=self._formats)

    def log_filter(self) -> logging.Filter:
        """For a handler of yours, ``handler.addFilter(...)``: takes the secrets out of whatever it logs, tracebacks too."""
        return _LogFilter(self)


class _LogFilter(logging.Filter):
    def __init__(self, secrets: RedactSecrets) -> None:
        super().__init__()
        self._secrets = secrets
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        clean = self._secrets.clean
        record.msg, record.args = clean(record.getMessage()), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = self._formatter.formatException(record.exc_info)
            record.exc_info = None
        if record.exc_text:
            record.exc_text = clean(record.exc_text)
        if record.stack_info:
            record.stack_info = clean(record.stack_info)
        return True


class _Held:
    """Text that comes in pieces: what may be the beginning of a secret is held back until it is known.

    Linear: while only one thing can end the waiting, each piece is looked at for that alone.
    """

    __slots__ = ("_before", "_firsts", "_formats", "_forms", "_lines", "_longest", "_parts", "_secrets", "_tail", "_wait")

    def __init__(self, secrets: RedactSecrets, forms: tuple[str, ...], *, lines: bool, formats: bool) -> None:
        self._secrets = secrets
        self._forms = forms
        self._firsts = frozenset(form[0] for form in forms)
        self._longest = len(forms[0]) if forms else 0
        self._lines = lines
        self._formats = formats
        self._before = ""
        self._parts: list[str] = []
        self._tail = ""
        self._wait = ""

    def feed(self, text: str) -> str:
        if self._wait:
            looked, self._tail = self._tail + text, (self._tail + text)[-TAIL:]
            if not _ends(self._wait, looked, text):
                self._parts.append(text)
                return ""
        pending = "".join((*self._parts, text))
        cut, self._wait = self._cut(pending)
        self._parts, self._tail = [pending[cut:]] if cut < len(pending) else [], pending[cut:][-TAIL:]
        return self._shown(pending[:cut])

    def end(self) -> str:
        pending, self._parts, self._wait = "".join(self._parts), [], ""
        return self._shown(pending)

    def _shown(self, text: str) -> str:
        """``text`` cleaned. The character before it counts: a key does not begin in the middle of a word."""
        if not text:
            return ""
        before = self._before
        made = self._secrets.clean(before + text)
        self._before = made[-1:]
        return made[len(before) :]

    def _cut(self, text: str) -> tuple[int, str]:
        """How much of ``text`` cannot be part of a secret that is not there yet, and what the rest waits for."""
        cut, wait = len(text), ""
        if self._formats:
            cut, wait = _may_begin(text, _last_word(text))
            for key, end in keys_in(text):
                if end < 0 and key < cut:
                    cut, wait = key, "key" if "PRIVATE KEY" in text[key:] else ""
                elif key < cut < end:
                    cut = key
            if cut < len(text) and (found := _ANY_START.search(text, _last_word(text[:cut]), cut)):
                cut = found.start()  # the word that it is in has a format's beginning before it
        if self._lines and (line := text.rfind("\n") + 1) < cut:
            cut, wait = line, "line"
        if self._forms and (declared := self._declared_from(text)) < cut:
            cut, wait = declared, ""
        return self._outside(text, cut, wait)

    def _declared_from(self, text: str) -> int:
        """Where a declared secret may have begun that is not whole yet, or may become a longer one."""
        base = 0
        for found in self._secrets.declared_in(text):
            if found.end() == len(text) and any(len(form) > len(found[0]) and form.startswith(found[0]) for form in self._forms):
                return found.start()
            base = found.end()
        for start in range(max(base, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts:
                rest = text[start:]
                if any(form.startswith(rest) for form in self._forms):
                    return start
        return len(text)

    def _outside(self, text: str, cut: int, wait: str) -> tuple[int, str]:
        """``cut``, or the beginning of the whole secret that it lies in."""
        for found in self._secrets.declared_in(text):
            if found.start() < cut < found.end():
                return found.start(), wait
        return cut, wait


def _ends(wait: str, looked: str, text: str) -> bool:
    match wait:
        case "space":
            return any(map(str.isspace, text))
        case "line":
            return "\n" in text
        case _:
            return KEY_END in looked


def _last_word(text: str) -> int:
    """Where the last run of characters without a whitespace begins."""
    at = len(text)
    while at and not text[at - 1].isspace():
        at -= 1
    return at


_LONGEST_START = max(map(len, STARTS))
_ANY_START = re.compile("|".join(map(re.escape, STARTS)))
_BEGINNINGS = frozenset(start[:length] for start in STARTS for length in range(1, len(start)))


def _may_begin(text: str, word: int) -> tuple[int, str]:
    """Where in the word at the end of ``text`` something with a format begins, or may begin with the characters that follow."""
    if found := _ANY_START.search(text, word):
        return found.start(), "space"
    near = range(max(word, len(text) - _LONGEST_START + 1), len(text))
    return next((at for at in near if text[at:] in _BEGINNINGS), len(text)), ""


def _listed(value: Any, name: str) -> list[Any]:
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise UsageError(f"RedactSecrets({name}=...): a list is needed, not {type(value).__name__}")
    return list(cast("Iterable[Any]", value))


def _compiled(pattern: Any) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern):
        pattern, compiled = cast("re.Pattern[Any]", pattern).pattern, cast("re.Pattern[str]", pattern)
    else:
        compiled = None
    if not isinstance(pattern, str):
        kind = type(cast("object", pattern)).__name__
        raise UsageError(f"RedactSecrets(patterns=...): a regular expression of text is needed, not of {kind}")
    if compiled is not None:
        return compiled
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"RedactSecrets(patterns=...): {pattern!r} is no regular expression: {error}") from error


def _forms(secret: Any) -> Iterator[str]:
    """``secret`` in every form in which it is looked for. Its text is in no error message."""
    if not isinstance(secret, str):
        raise UsageError(f"RedactSecrets(secrets=...): texts are needed, not {type(secret).__name__}")
    if len(secret.strip()) < SECRET_MIN:
        raise UsageError(
            f"RedactSecrets(secrets=...): one has fewer than {SECRET_MIN} characters, which are in ordinary text too; is a variable empty?"
        )
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    for quoted in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield quoted
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
    data = secret.encode("utf-8", "surrogatepass")
    for offset in range(3):  # where it may lie in a longer text, whose neighbours are in its first and last characters
        encoded = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[offset] : len(encoded) - ((offset + len(data)) % 3 != 0)]
        if len(inner) >= BASE64_MIN:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")
