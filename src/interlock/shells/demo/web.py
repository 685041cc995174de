"""fetch_page: a tool that reaches the network, and therefore one that a model can be talked into misusing."""

from __future__ import annotations

from ...toolbox.bodies import text_of_body
from ...toolbox.fetching import Fetcher
from ...tools import tool

__all__ = ["fetch_page"]

CHARACTERS_MAX = 4000
TIMEOUT_S = 15.0


@tool(network=True, on_crash="rerun", timeout_s=TIMEOUT_S)
async def fetch_page(url: str) -> str:
    """Fetch a public web page, such as a vendor's, and return the beginning of it.

    Args:
        url: Its address, with http:// or https://.
    """
    page = await Fetcher(bytes_max=4 * CHARACTERS_MAX).get(url)
    text, _ = text_of_body(page.data, page.type.charset)
    return f"HTTP {page.status}\n{text[:CHARACTERS_MAX]}"
