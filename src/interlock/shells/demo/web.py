"""fetch_page: a tool that reaches the network, and therefore one that a model can be talked into misusing."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import ToolFailure
from ...toolbox.netcheck import check_url
from ...tools import tool

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

__all__ = ["fetch_page"]

CHARACTERS_MAX = 4000
TIMEOUT_S = 15.0


@tool(network=True, on_crash="rerun", timeout_s=TIMEOUT_S)
async def fetch_page(url: str) -> str:
    """Fetch a public web page, such as a vendor's, and return the beginning of it.

    Args:
        url: Its address, with http:// or https://. A redirect is reported and not followed.
    """
    import aiohttp

    # Connecting to what was checked, and not to what the name leads to by then.
    connector = aiohttp.TCPConnector(resolver=_pinned(await check_url(url)))
    try:
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url, allow_redirects=False) as reply:
            where = f" to {reply.headers['Location']}" if "Location" in reply.headers else ""
            body = await reply.content.read(4 * CHARACTERS_MAX)
            return f"HTTP {reply.status}{where}\n{body.decode('utf-8', 'replace')[:CHARACTERS_MAX]}"
    except (aiohttp.ClientError, ValueError) as error:
        raise ToolFailure(f"the page could not be fetched: {error}") from error


def _pinned(addresses: Sequence[str]) -> AbstractResolver:
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Pinned(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
            families = [(address, socket.AF_INET6 if ":" in address else socket.AF_INET) for address in addresses]
            return [ResolveResult(hostname=host, host=a, port=port, family=f, proto=0, flags=socket.AI_NUMERICHOST) for a, f in families]

        async def close(self) -> None:
            pass

    return Pinned()
