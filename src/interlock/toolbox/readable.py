"""HTML as Markdown that a model can read: by html-to-markdown, in a process of its own.

The rules of HTML make some pages quadratic for every parser that keeps them: a page of 2 MB took one nine minutes. A thread cannot be
ended; a process can, and takes its memory and its faults with it. It gets the page, no variable of our environment and no secret.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..errors import ToolFailure, UsageError
from ..tools.workers import PoolFull, WorkerPool

__all__ = ["Readable", "find_library", "readable"]

# An ordinary page takes a tenth of a second, most of it for starting the process.
CONVERT_TIMEOUT_S = 10.0
# Each is a process with memory of its own; the calls of a batch run at once.
CONVERSIONS_MAX = 4
CHILD = Path(__file__).with_name("readable_child.py")
# Without these some systems find neither their libraries nor a source of chance.
_ENVIRONMENT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

_places = WorkerPool(CONVERSIONS_MAX)  # not for its threads: it counts over every event loop


class Readable(NamedTuple):
    """A page as Markdown. title: empty if it has none."""

    title: str
    text: str


class _Converted(msgspec.Struct, frozen=True):
    title: str
    text: str


def find_library() -> str:
    """The directory that holds the converter. Raises UsageError if it is not installed."""
    found = importlib.util.find_spec("html_to_markdown")
    if found is None or found.origin is None:
        raise UsageError("fetching pages needs html-to-markdown: pip install 'interlock[web]'")
    return str(Path(found.origin).parent.parent)


async def readable(page: str, *, base: str, bytes_max: int, library: str, timeout_s: float = CONVERT_TIMEOUT_S) -> Readable:
    """``page`` as Markdown, its links made whole with ``base``; cut after ``bytes_max`` of UTF-8.

    library: what ``find_library`` returned. Raises ToolFailure (effect ``none``) if that takes longer than ``timeout_s``, the wait for a
    place included, or fails. When this returns, raises or is cancelled the process has ended.
    """
    told = msgspec.json.encode({"base": base, "bytes_max": bytes_max}) + b"\n"
    try:
        async with asyncio.timeout(timeout_s):
            place = await _places.acquire(timeout_s)
            try:
                output, code = await _child(told + page.encode("utf-8", "replace"), library)
            finally:
                place.release()
    except (TimeoutError, PoolFull):
        raise _failed(f"it took longer than {timeout_s:g} s") from None
    except OSError as error:
        raise _failed(f"no process could be started: {error.strerror}") from error
    try:
        converted = msgspec.json.decode(output, type=_Converted)
    except msgspec.MsgspecError:
        raise _failed(f"the converter ended with {code}") from None
    return Readable(converted.title, converted.text)


async def _child(data: bytes, library: str) -> tuple[bytes, int | None]:
    """What the child made of ``data``, and its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(CHILD), library),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output, process.returncode


def _failed(why: str) -> ToolFailure:
    return ToolFailure(f"the page is HTML that could not be made readable: {why}. With raw=true you get the HTML itself", effect="none")
