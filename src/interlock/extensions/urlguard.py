"""``UrlGuard``: no tool call carries a URL into this machine or its network."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, cast

from ..toolbox.netcheck import RESOLVE_TIMEOUT_S, Allow, Resolve, Target, UnsafeUrl, check_target, target_of, unwrapped
from .base import AgentExtension, CallNext, RunContext, ToolInvocation

# In the text of a network tool: where a URL begins, and what cannot be part of its host.
_BEGIN = re.compile(
    r"(?<![a-z0-9+.-])(?:https?|wss?|ftp|file):[/\\]*|(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,40}:[/\\]{2,}|(?:https?|wss?|ftp|file):[/\\]+",
    re.IGNORECASE,
)
_HOST = re.compile(r"\[[0-9a-f:.%a-z]*\](?::[0-9]+)?|[^\s/?#\"'<>()\[\]{}`,;|\\]*", re.IGNORECASE)
_AUTHORITY_END = re.compile(r"[/?#]")
_REMOVED = re.compile(r"[\t\r\n]*")
_FILE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)*?file:([^?#]*)", re.IGNORECASE)
_PATH = re.compile(r"[/\\]|%2f|%5c", re.IGNORECASE)
# A whole value that is clearly a host, for a network tool: many of them put the scheme in front themselves.
_BARE = re.compile(
    r"(?:[^/?#]*@)?(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-f:.]+\]|(?:[a-z0-9-]+\.)*localhost)\.?(?::[0-9]{1,5})?(?:[/?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
# Two slashes as browsers read them: backslashes too, and what they remove between them.
_SLASHES = re.compile(r"[/\\][\t\r\n]*[/\\]")
# Without any of these, a text is neither a bare host nor one after two slashes.
_NOT_WORDS = re.compile(r"[.\\]|/[\t\r\n]|localhost", re.IGNORECASE)
# How much of one call is looked at; a call with more of it is unsafe. Text counts where it is searched for URLs.
TEXT_MAX = 1_000_000
TARGETS_MAX = 256
# After so many strings or URLs, or so much text without one, the loop has its turn.
_TURN = 128
_WINDOW = 65_536
# No beginning of a URL is longer, slashes beyond the second aside.
_OVERLAP = 64


class UrlGuard(AgentExtension):
    """Vetoes a call if any string in its arguments, keys too, is a URL that does not lead to a public address.

    A name is resolved, and every answer must be public; what cannot be checked is unsafe. Any scheme counts. A value
    ``file:...`` is unsafe even without a slash (``file:.env``), unless several words follow without one (``file:main.py TODO``).
    ``data:``, ``mailto:``, ``javascript:`` and the like reach no network by themselves. For a tool with ``network=True`` URLs
    inside longer text and bare addresses count as well. A call with more than TARGETS_MAX hosts, or for a network tool more
    than TEXT_MAX characters to search, is unsafe too. The checked arguments are copied first, and the copy is what runs.

    allow: hosts, networks, origins or schemes that are safe although not public; see ``toolbox.netcheck.Allow``.
    resolve and timeout_s: how names are resolved. A name can change its address between this check and the tool's own
    look-up: a tool that fetches should connect to the addresses that ``toolbox.netcheck.check_url`` returned.
    """

    priority = 1000

    def __init__(self, *, allow: Iterable[str] = (), resolve: Resolve | None = None, timeout_s: float = RESOLVE_TIMEOUT_S) -> None:
        self._allow = Allow(allow)
        self._resolve = resolve
        self._timeout_s = timeout_s

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        network = call.tool.traits.network
        if not harmless(call.arguments, network=network):
            texts = [text for text in strings(call.arguments) if _suspect(text, network=network)]
            if texts:
                # What is checked is what runs, whatever others do to the arguments in the meantime.
                arguments = _copied(call.arguments)
                await self._check(texts, network=network)
                call.arguments = arguments
        return await call_next()

    async def _check(self, texts: list[str], *, network: bool) -> None:
        checked: set[Target] = set()
        count = 0
        try:
            if network and sum(len(text) for text in texts if ":" in text) > TEXT_MAX:
                raise UnsafeUrl(f"more than {TEXT_MAX:,} characters of text that may contain URLs, which is more than is checked")
            for text in texts:
                for target in _places(text, network=network):
                    count += 1
                    if count % _TURN == 0:
                        await asyncio.sleep(0)
                    if target is None or target in checked:
                        continue
                    if len(checked) >= TARGETS_MAX:
                        raise UnsafeUrl(f"more than {TARGETS_MAX} different hosts, which is more than are checked")
                    await check_target(target, allow=self._allow, resolve=self._resolve, timeout_s=self._timeout_s)
                    checked.add(target)
        except UnsafeUrl as error:
            raise UnsafeUrl(f"SSRF violation: {error}") from error
        except Exception as error:  # A check that did not end well has shown nothing to be safe.
            raise _unchecked(error) from error


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return copy.deepcopy(arguments)
    except Exception as error:
        raise _unchecked(error) from error


def _unchecked(error: Exception) -> UnsafeUrl:
    return UnsafeUrl(f"SSRF violation: the arguments could not be checked ({type(error).__name__}: {error})")


def _suspect(text: str, *, network: bool) -> bool:
    return ":" in text or "//" in text or (network and (_SLASHES.search(text) is not None or _BARE.fullmatch(unwrapped(text)) is not None))


def harmless(arguments: dict[str, Any], *, network: bool) -> bool:
    """Whether no string can be a URL, seen without taking anything apart: the usual call, in a microsecond."""
    for name, value in arguments.items():
        kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]  # a cast is a call
        if kind is str:
            if ":" in value or "//" in value or (network and _NOT_WORDS.search(value)):
                return False
        elif kind is not int and kind is not bool and kind is not float and value is not None:
            return False
        if type(name) is not str or ":" in name or "/" in name:
            return False
    return True


def strings(value: Any) -> Iterator[str]:
    """Every string at any depth, keys included; a container that contains itself is looked at once."""
    seen: set[int] = set()
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, (dict, list, tuple, set, frozenset)) and id(cast("Any", item)) not in seen:
            seen.add(id(cast("Any", item)))
            if isinstance(item, dict):
                stack.extend(cast("dict[Any, Any]", item).keys())
                stack.extend(cast("dict[Any, Any]", item).values())
            else:
                stack.extend(cast("Iterable[Any]", item))


def targets(text: str, *, network: bool) -> Iterator[Target]:
    """Where the URL that ``text`` is leads, and for a network tool those in it. Raises UnsafeUrl for what reads in two ways."""
    return (target for target in _places(text, network=network) if target is not None)


def _places(text: str, *, network: bool) -> Iterator[Target | None]:
    """``targets``, and None at least once for every piece of work."""
    yield None
    if not _suspect(text, network=network):
        return
    yield _whole(text, network=network)
    if not network:
        return
    bare = unwrapped(text)
    if _BARE.fullmatch(bare):
        yield target_of(f"http://{bare}")
    read: set[tuple[str, str]] = set()  # schemes and hosts
    looked: dict[str, int] = {}  # by scheme: how far the text has been searched for an @
    end = -1
    at = 0
    while at < len(text):
        begin = _BEGIN.search(text, at, at + _WINDOW)
        if begin is None:
            at = at + _WINDOW - _OVERLAP if at + _WINDOW < len(text) else len(text)
            yield from repeat(None, _TURN)
            continue
        begin = _BEGIN.match(text, begin.start()) or begin  # the window may have cut it
        scheme, slashes = begin[0].split(":", 1)
        scheme = scheme.lower()
        if scheme == "file" and slashes:
            yield Target("file", "", None)
        host = begin.end()
        token = _HOST.match(text, host)
        at = token.end() if token else host
        pieces = [(slashes, text[host:at])]
        if end < host:
            found = _AUTHORITY_END.search(text, host)
            end = len(text) if found is None else found.start()
        # What ends the host for whoever takes the URL out of the text may be a part of the user's name for the client,
        # which then goes to what follows the @.
        start = max(at, looked.get(scheme, 0))
        while (mark := text.find("@", start, end)) >= 0:
            start = mark + 1
            skipped = _REMOVED.match(text, start)
            after = _HOST.match(text, skipped.end() if skipped else start)
            if after:
                pieces.append(("//", after[0]))
            if len(pieces) >= _TURN:
                yield from _read(scheme, pieces, read)
                pieces.clear()
        looked[scheme] = max(end, looked.get(scheme, 0))
        yield from _read(scheme, pieces, read)


def _read(scheme: str, pieces: list[tuple[str, str]], read: set[tuple[str, str]]) -> Iterator[Target | None]:
    for slashes, piece in pieces:
        authority = piece.rstrip(".,:;!*_")
        if authority and (scheme, authority) not in read:
            read.add((scheme, authority))
            yield target_of(f"{scheme}:{slashes}{authority}/")
        else:
            yield None


def _whole(text: str, *, network: bool) -> Target | None:
    start = unwrapped(text)
    # For a tool that reaches no network, "\\\\d" is a piece of a pattern, and "file:main.py TODO" a search.
    if not network and start[:2] in ("\\\\", "\\/", "/\\"):
        return None
    target = target_of(start)
    if target is not None and target.scheme == "file" and not network and _is_search(start):
        return None
    return target


def _is_search(text: str) -> bool:
    """Whether ``file:...`` is words, not a path: clients would open even ``file:.env``, but not a name of several words."""
    match = _FILE.match(text)
    return match is not None and any(character.isspace() for character in match[1]) and not _PATH.search(match[1])
