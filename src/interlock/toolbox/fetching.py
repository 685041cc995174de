"""Getting what a URL leads to, over a connection that can only go where the check has looked.

The client is never asked where a URL leads. It gets a URL whose host is ``checked.invalid``, which only the resolver below knows, and
which stands for the addresses that ``netcheck`` has seen; the header Host and the name in the TLS handshake are those that
``netcheck`` has read. So there is no second reading of a URL that could differ from the first, and no second look-up of a name.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin

from ..errors import ToolFailure
from .bodies import ContentType, Inflated, content_type, kind_of
from .netcheck import PORTS, Allow, Resolve, Target, UnsafeUrl, check_target, look_up, target_of, unwrapped

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from aiohttp.abc import AbstractResolver

__all__ = ["Connect", "Fetcher", "Page"]

Connect = Callable[[str, int], tuple[str, int]]
"""Where a checked address and port are dialled: ``(address, port) -> (address, port)``."""

REDIRECTS_MAX = 10
URL_CHARACTERS_MAX = 8192
CHUNK_BYTES = 16 * 1024
CONNECT_TIMEOUT_S = 10.0
USER_AGENT = "Mozilla/5.0 (compatible; Interlock)"

_CHECKED = "checked.invalid"
_REDIRECTED = "the URL redirects to where it may not lead"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PARTS = re.compile(r"(https?)://([^/?#]+)(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)  # "s" is also a long s otherwise
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ODD = re.compile(r"[\s\\]")


class Page(NamedTuple):
    """What came back. url: the last one, after redirects. data: decoded, at most ``bytes_max``; whole: nothing was cut off it.
    moved: how many redirects there were.
    """

    url: str
    status: int
    reason: str
    type: ContentType
    data: bytes
    whole: bool
    moved: int


class _Place(NamedTuple):
    """A URL that has been checked. rest: path and query, as written."""

    url: str
    target: Target
    port: int
    rest: str
    addresses: tuple[str, ...]


class Fetcher:
    """GETs, one connection each: no proxy, cookie, stored password or pooled connection, whatever the environment says.

    allow: what is safe although not public. only: the hosts that may be fetched from, redirects included; None for all.
    resolve: how names are resolved. connect: where a checked address is dialled, if not there. tls: None for the system's
    certificates. bytes_max: of a body, decoded, and as sent. Every failure is a ToolFailure with effect ``none``.
    """

    def __init__(
        self,
        *,
        bytes_max: int,
        allow: Allow | None = None,
        only: Allow | None = None,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._bytes_max = bytes_max
        self._allow = allow or Allow()
        self._only = only
        self._resolve = resolve
        self._connect = connect
        self._tls = tls

    async def get(self, url: str) -> Page:
        """Follow ``url`` to its page, checking every redirect as the first URL. Has no time limit; may be cancelled at any point."""
        for moved in range(REDIRECTS_MAX + 1):
            place = await self._checked(url, redirected=moved > 0)
            page = await self._one(place, moved)
            if isinstance(page, Page):
                return page
            url = page
        raise ToolFailure(f"the URL redirects more than {REDIRECTS_MAX} times", effect="none")

    async def _checked(self, url: str, *, redirected: bool) -> _Place:
        """Raises UnsafeUrl for what is not to be reached, and a plain ToolFailure for what is only not fetched."""
        if len(url) > URL_CHARACTERS_MAX:
            raise ToolFailure(f"the URL is longer than {URL_CHARACTERS_MAX:,} characters", effect="none")
        try:
            text = unwrapped(url)
            target = target_of(text)
            addresses = () if target is None else await check_target(target, allow=self._allow, resolve=self._resolve)
            parts = _PARTS.fullmatch(text)
            if target is None or target.port is None or parts is None:
                raise UnsafeUrl("only a whole URL that begins with http:// or https:// is fetched")
            if "@" in parts[2]:
                raise UnsafeUrl("a URL with a user name or a password is not fetched")
            if _ODD.search(parts[2]) or _CONTROL.search(text):
                raise UnsafeUrl("whitespace or control characters in the URL")
            if not addresses:
                addresses = await look_up(target, resolve=self._resolve)
        except UnsafeUrl as error:
            raise UnsafeUrl(f"{_REDIRECTED}: {error}" if redirected else str(error)) from error
        only = self._only
        if only is not None and not only.names(target) and not all(only.covers(ipaddress.ip_address(one)) for one in addresses):
            raise ToolFailure(f"{target.host} is not among the hosts that may be fetched from", effect="none")
        return _Place(text, target, target.port, parts[3], addresses)

    async def _one(self, place: _Place, moved: int) -> Page | str:
        """One request: the page, or the URL that it redirects to."""
        import aiohttp
        from yarl import URL

        target = place.target
        try:
            url = URL(f"{target.scheme}://{_CHECKED}:{place.port}{place.rest}").with_fragment(None)
        except ValueError as error:
            raise ToolFailure(f"the path of the URL is malformed: {error}", effect="none") from None
        headers = {
            "Host": _host_header(target),
            "Accept": "text/html, text/markdown;q=0.9, text/plain;q=0.8, application/json;q=0.8, */*;q=0.5",
            "Accept-Encoding": "gzip, deflate",
            "User-Agent": USER_AGENT,
        }
        try:
            async with self._session(place) as session:
                name = str(_literal(target.host) or target.host)
                async with session.get(url, headers=headers, allow_redirects=False, server_hostname=name) as reply:
                    if reply.status in _REDIRECTS and (location := reply.headers.get("Location")):
                        return _joined(place.url, location)
                    return await self._page(place, reply, moved)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ToolFailure(f"{target.host} could not be fetched from: {_reason(error)}", effect="none") from error

    def _session(self, place: _Place) -> ClientSession:
        import aiohttp

        dialled = [self._connect(address, place.port) if self._connect else (address, place.port) for address in place.addresses]
        connector = aiohttp.TCPConnector(resolver=_pinned(dialled), use_dns_cache=False, force_close=True, ssl=self._tls or True)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        )

    async def _page(self, place: _Place, reply: ClientResponse, moved: int) -> Page:
        kind = content_type(reply.headers.get("Content-Type", ""))
        reason = (reply.reason or "")[:100]
        if kind_of(kind.media) == "binary":
            return Page(place.url, reply.status, reason, kind, b"", False, moved)
        body = Inflated(reply.headers.get("Content-Encoding", ""), bytes_max=self._bytes_max)
        received = 0
        async for chunk in reply.content.iter_chunked(CHUNK_BYTES):
            body.feed(chunk)
            received += len(chunk)
            if body.full or received > self._bytes_max:
                body.full = True
                break
        body.finish()
        return Page(place.url, reply.status, reason, kind, bytes(body.data), not body.full, moved)


def _pinned(places: Sequence[tuple[str, int]]) -> AbstractResolver:
    """A resolver that knows one name and leads it to ``places``."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Pinned(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
            if host != _CHECKED:
                raise OSError(f"{host} has not been checked")
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=dialled,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address, dialled in places
            ]

        async def close(self) -> None:
            pass

    return Pinned()


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    from .addresses import parse

    try:
        return parse(host)
    except ValueError:
        return None


def _host_header(target: Target) -> str:
    """The host as clients write it: an address in its usual form, an IPv6 one in brackets, the port if it is not the scheme's."""
    address = _literal(target.host)
    host = target.host if address is None else f"[{address}]" if address.version == 6 else str(address)
    return host if target.port == PORTS[target.scheme] else f"{host}:{target.port}"


def _joined(url: str, location: str) -> str:
    """The URL that a redirect means. One with a host of its own is taken as it is, for the check to read: joining would mend it."""
    try:
        text = unwrapped(location)
        target = target_of(text)
        if target is not None:
            return text if target.scheme else f"{url.partition(':')[0]}:{text}"
        return urljoin(url, text)
    except (UnsafeUrl, ValueError) as error:
        raise UnsafeUrl(f"{_REDIRECTED}: {error}") from None


def _reason(error: Exception) -> str:
    """What went wrong, without the name that stands for the checked addresses and without the URL, which may hold a secret."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not valid for it ({getattr(error.certificate_error, 'verify_message', '') or error.certificate_error})"
    if isinstance(error, aiohttp.ClientConnectorError):
        code = error.os_error.errno  # its text names an address that the model has no use for
        return f"no connection ({os.strerror(code) if code else type(error.os_error).__name__})"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"its answer is not proper HTTP ({error.message[:200]})"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer broke off before its end"
    if isinstance(error, TimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S:g} s"
    return (str(error).replace(_CHECKED, "the server") or type(error).__name__)[:300]
