"""A scripted server for code that is not in an event loop: another process, or a program that runs a loop of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from interlock.testing import Step, WireServer
from interlock.testing.script import Handler


def first_request(server: WireServer) -> None:
    """Return when the server has been asked something. It is in another thread, and whoever asks in another process."""
    until = time.monotonic() + 20
    while not server.requests:
        assert time.monotonic() < until, "nobody has asked"
        time.sleep(0.01)


@contextmanager
def serving(steps: Iterable[Step] | Handler) -> Iterator[WireServer]:
    """A WireServer in a thread of its own. Leaving it without an exception asserts that the script was played to its end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = WireServer(steps)
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.aclose(), loop).result(10)
        server.assert_done()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
