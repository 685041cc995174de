"""May a tool reach this URL? Only if its host is a public address, or a name all of whose addresses are.

URL parsers disagree, and whoever wants to reach an inner service looks for a URL that the guard and the client read
differently. So nothing is repaired: what could be read in two ways is unsafe, and so is whatever fails to be checked.
A name can resolve differently a moment later; ``check_url`` returns the addresses it has seen, so that a client of ours
can connect to exactly those.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import ToolFailure, UsageError
from ..tools.workers import WorkerPool
from .addresses import Address, Network, is_public, parse

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a host name, as text. Raises OSError if there are none."""

RESOLVE_TIMEOUT_S = 5.0
RESOLVER_THREADS = 16
# More than any real chain of schemes; "a:b:c" is not one either, but it may be long.
WRAPPERS_MAX = 64
# No scheme and host together are longer; where they are not known to end by then, the URL is unsafe.
HEAD_MAX = 8192

PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
"""The schemes after whose colon every browser takes any number of slashes, none included; and their ports."""

# Names that mean this machine or this network, whatever a resolver says.
_INNER = frozenset(
    {"localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan", "home.arpa", "localhost6"}
)

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):([/\\]*)", re.IGNORECASE)
_AUTHORITY_END = re.compile(r"[/?#]")
_SPACE = re.compile(r"\s")
# Whitespace that clients drop when they read a port as a number.
_SPACED_PORT = re.compile(r"\S*\s*(?::\s*[\d_+-]*\s*)?")
# A path that leads out of the directory that its first part would name.
_CLIMBS = re.compile(r"[/\\](?:\.|%2e){2}", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})+")
_PUNCTUATION = ".,;:!?)"
# Whitespace, controls and what takes no room: some clients strip the one, some the other, from both ends.
_STRIPPED = "".join(
    chr(code)
    for first, last in (
        *((0x00, 0x20), (0x7F, 0xA0), (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x1680, 0x1680), (0x180B, 0x180F)),
        *((0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x206F), (0x2800, 0x2800), (0x3000, 0x3000), (0x3164, 0x3164), (0xFE00, 0xFE0F)),
        *((0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFC), (0xE0000, 0xE007F)),
    )
    for code in range(first, last + 1)
)
# Older rules for international names replace or drop these, newer ones keep them: two different names.
_TWO_NAMES = frozenset("\u00df\u1e9e\u03c2\u200c\u200d")

_pool = WorkerPool(RESOLVER_THREADS)


class UnsafeUrl(ToolFailure):
    """The URL does not lead, or cannot be shown to lead, to a public address. Nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, effect="none")


class Target(NamedTuple):
    """Where a URL leads. host: lower case ASCII, without brackets; empty if the URL names none. port: None if unknown."""

    scheme: str
    host: str
    port: int | None


async def check_url(
    url: str, *, allow: Allow | Iterable[str] = (), resolve: Resolve | None = None, timeout_s: float = RESOLVE_TIMEOUT_S
) -> tuple[str, ...]:
    """The addresses that ``url`` leads to, all public or allowed; none for a URL that reaches no network (``data:``, ``mailto:``)
    or whose host is allowed by name.

    allow: see Allow. timeout_s: for the name's resolution. Raises UnsafeUrl, also for any error while checking.
    """
    allowed = allow if isinstance(allow, Allow) else Allow(allow)
    target = target_of(url)
    if target is None:
        return ()
    return await check_target(target, allow=allowed, resolve=resolve, timeout_s=timeout_s)


async def check_target(
    target: Target, *, allow: Allow, resolve: Resolve | None = None, timeout_s: float = RESOLVE_TIMEOUT_S
) -> tuple[str, ...]:
    """``check_url`` for a URL that has been read already."""
    if allow.names(target):
        return ()
    if target.scheme == "file":
        raise UnsafeUrl("a file: URL reads from this machine")
    if not target.host:
        raise UnsafeUrl(f"{target.scheme or 'the'} URL without a host, which some clients take for this machine")
    address = _literal(target.host)
    addresses = [address] if address is not None else await _addresses(target.host, resolve or resolve_in_thread, timeout_s)
    for found in addresses:
        if not is_public(found) and not allow.covers(found):
            how = "is" if address is not None else f"resolves to {found},"
            raise UnsafeUrl(f"{target.host} {how} not a public address")
    return tuple(str(found) for found in addresses)


async def look_up(target: Target, *, resolve: Resolve | None = None, timeout_s: float = RESOLVE_TIMEOUT_S) -> tuple[str, ...]:
    """The addresses of a target, public or not: for one that ``check_target`` has allowed by name. Raises UnsafeUrl if it has none."""
    try:
        address = parse(target.host)
    except ValueError as error:
        raise UnsafeUrl(f"{target.host[:60]!r} is not a proper IP address: {error}") from None
    found = [address] if address is not None else await _addresses(target.host, resolve or resolve_in_thread, timeout_s)
    return tuple(str(one) for one in found)


def unwrapped(url: str) -> str:
    """``url`` without what clients take off before they read it: whitespace, ``<...>``, ``URL:``."""
    text = url.strip(_STRIPPED)
    for _ in range(WRAPPERS_MAX):
        if text[:1] == "<" and text[-1:] == ">":
            text = text[1:-1].strip(_STRIPPED)
        elif text[:4].lower() == "url:":
            text = text[4:].strip(_STRIPPED)
        else:
            break
    return text


def target_of(url: str) -> Target | None:
    """Where ``url`` leads; None if it is no URL, or one that names no place on a network.

    Schemes that only wrap another URL (``view-source:``, ``jar:``, ``jdbc:``, ...) are looked through. Raises UnsafeUrl for
    what clients read in different ways.
    """
    text = unwrapped(url)
    # Browsers remove these wherever they stand.
    joined = text.replace("\n", "").replace("\r", "").replace("\t", "")
    cut = len(joined) > HEAD_MAX
    entire, joined = joined, joined[:HEAD_MAX]
    if joined[:1] in ("/", "\\") and joined[1:2] in ("/", "\\"):
        return _reference(joined, text, cut)
    at = 0
    for _ in range(WRAPPERS_MAX):
        match = _SCHEME.match(joined, at)
        if match is None:
            return None
        scheme, slashes, rest = match[1].lower(), match[2], joined[match.end() :]
        if (not rest and not slashes) or len(scheme) == 1:
            return None  # "c:" is a drive
        if rest[:1].isspace() and not slashes:  # "http: ..." begins a sentence; unless a client reads on
            if scheme == "file" and _CLIMBS.search(entire):
                return Target(scheme, "", None)
            if scheme in PORTS and "@" in _authority(rest, cut):
                raise UnsafeUrl("whitespace before the @ of a URL, which clients read as a part of it or as its end")
            return None
        if scheme == "file":
            return Target(scheme, "", None)
        if scheme in PORTS:  # browsers skip any number of slashes
            return _target(scheme, slashes, rest, text, cut)
        if len(slashes) >= 2:
            return _target(scheme, slashes[:2], slashes[2:] + rest, text, cut)
        at = match.end(1) + 1
    raise UnsafeUrl("a URL wrapped in too many schemes")


def _reference(joined: str, text: str, cut: bool) -> Target | None:
    """``//host/path``, which clients complete with a scheme; or a comment in a program."""
    rest = joined.lstrip("/\\")
    slashes = joined[: len(joined) - len(rest)]
    if not rest and not cut:
        return None
    authority = _authority(rest, cut)
    if _SPACE.search(authority) and not _SPACED_PORT.fullmatch(authority):
        user, at, host = authority.rpartition("@")
        if not at or not host or not _SPACED_PORT.fullmatch(host):
            return None
        rest = rest[len(user) + 1 :]
    return _target("", slashes, rest, text, cut)


def _authority(rest: str, cut: bool) -> str:
    """What of ``rest`` may be user and host. cut: more of the URL follows."""
    end = _AUTHORITY_END.search(rest)
    if end is None and cut:
        raise UnsafeUrl(f"a URL whose host does not end within {HEAD_MAX} characters")
    return rest if end is None else rest[: end.start()]


def _target(scheme: str, slashes: str, rest: str, text: str, cut: bool) -> Target | None:
    """rest: what follows the slashes, tabs and line breaks removed. text: how the whole was written."""
    authority = _authority(rest, cut)
    spaced = _SPACE.search(authority) is not None
    if spaced and "@" in authority:
        raise UnsafeUrl("whitespace before the @ of a URL, which clients read as a part of it or as its end")
    if spaced and not _SPACED_PORT.fullmatch(authority):
        # No client takes that: it is text that begins with a URL, which ends at the space.
        return target_of(text.split(maxsplit=1)[0].rstrip(_PUNCTUATION))
    if authority not in text:
        raise UnsafeUrl("a tab or line break inside the URL's host")
    if "\\" in slashes or "\\" in authority:
        raise UnsafeUrl("a backslash in a URL, which is a slash for some clients and not for others")
    userinfo, at, host = _SPACE.sub("", authority).rpartition("@")
    if "@" in userinfo or (at and not host):
        raise UnsafeUrl("no host, or more than one, around the @ of a URL")
    host, port = _split_port(host)
    return Target(scheme, normal_host(host), PORTS.get(scheme) if port is None else port)


def _split_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise UnsafeUrl("a malformed IPv6 address in a URL")
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
    if not port:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise UnsafeUrl(f"{port[:20]!r} is not a port")
    return host, int(port)


def normal_host(host: str) -> str:
    """``host`` in lower case ASCII: percent-encoding, full-width forms and ideographic dots read as a browser reads them.

    Raises UnsafeUrl for a host with characters that no host has.
    """
    if ":" in host:
        return host.lower()
    decoded = unquote(host, errors="strict") if "%" in host else host
    if not decoded.isascii():
        if not _TWO_NAMES.isdisjoint(decoded):
            raise UnsafeUrl(f"the host {host[:60]!r} is one name for some clients and another for others")
        try:
            decoded = unicodedata.normalize("NFKC", decoded).encode("idna").decode("ascii")
        except UnicodeError:
            raise UnsafeUrl(f"the host {host[:60]!r} is not a valid name") from None
    decoded = decoded.lower().removesuffix(".")
    if decoded and not _NAME.fullmatch(decoded) and not re.fullmatch(r"[a-z0-9_-]{1,63}", decoded):
        raise UnsafeUrl(f"the host {host[:60]!r} is not a valid name")
    return decoded


def _literal(host: str) -> Address | None:
    try:
        address = parse(host)
    except ValueError as error:
        raise UnsafeUrl(f"{host[:60]!r} is not a proper IP address: {error}") from None
    if address is None:
        inner = next((name for name in _INNER if host == name or host.endswith(f".{name}")), None)
        if inner is not None or "." not in host:
            raise UnsafeUrl(f"{host!r} is a name of this machine or this network")
    return address


async def _addresses(host: str, resolve: Resolve, timeout_s: float) -> list[Address]:
    try:
        async with asyncio.timeout(timeout_s):
            answers = await resolve(host)
        found = [ipaddress.ip_address(answer.partition("%")[0]) for answer in answers]
    except TimeoutError:
        raise UnsafeUrl(f"{host} could not be resolved within {timeout_s:g} s") from None
    except Exception as error:  # Whatever goes wrong here: an address that was not seen is not known to be public.
        raise UnsafeUrl(f"{host} could not be resolved: {error or type(error).__name__}") from error
    if not found:
        raise UnsafeUrl(f"{host} has no address")
    return found


async def resolve_in_thread(host: str) -> Sequence[str]:
    """The system's resolver, on a daemon thread: one that hangs keeps neither the loop nor the process."""
    slot = await _pool.acquire(RESOLVE_TIMEOUT_S)
    answers = await slot.run(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class Allow:
    """What is safe although it is not public.

    Entries: a host (``"internal.example"``), one with all its subdomains (``"*.corp.example"``), either with a port
    (``"localhost:8000"``), an address or a network (``"10.0.0.0/8"``), an origin (``"http://127.0.0.1:8000"``), or a
    scheme (``"s3://"``). Raises UsageError for anything else.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        if isinstance(entries, str):
            raise UsageError(f"allow: a list of hosts, networks and origins is needed, not the text {entries!r}")
        self._networks: list[Network] = []
        self._targets: list[Target] = []  # An empty scheme or host stands for any, a port of None too.
        for entry in entries:
            self._add(entry)

    def _add(self, entry: str) -> None:
        try:
            text = entry.strip() if isinstance(entry, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance] callers may err
            if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
                if text[:-3].lower() in PORTS:
                    raise ValueError("that would allow every URL; leave the guard out instead")
                self._targets.append(Target(text[:-3].lower(), "", None))
            elif "://" in text:
                target = target_of(text.rstrip("/"))
                if target is None or not target.host:
                    raise ValueError("an origin is scheme://host or scheme://host:port")
                self._targets.append(target)
            elif (network := _network(text)) is not None:
                self._networks.append(network)
            else:
                wild = text.startswith(("*.", "."))
                host, port = _split_port(text.removeprefix("*").removeprefix("."))
                if not host:
                    raise ValueError("a host is missing")
                self._targets.append(Target("", ("." if wild else "") + normal_host(host), port))
        except (ValueError, UnsafeUrl) as error:
            raise UsageError(f"allow: {entry!r} is no host, network, origin or scheme: {error}") from error

    def covers(self, address: Address) -> bool:
        return any(address in network for network in self._networks if network.version == address.version)

    def names(self, target: Target) -> bool:
        return any(_matches(entry, target) for entry in self._targets)


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None


def _matches(entry: Target, target: Target) -> bool:
    if entry.scheme and entry.scheme != target.scheme:
        return False
    if entry.port is not None and entry.port != target.port:
        return False
    if entry.host.startswith("."):
        return target.host.endswith(entry.host) or target.host == entry.host[1:]
    return not entry.host or entry.host == target.host
