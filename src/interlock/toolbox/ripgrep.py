"""ripgrep as a sieve: which files can hold a text. What is shown of them is read by us, inside the Directory."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

from .programs import program_outside

__all__ = ["candidates", "found_ripgrep"]

TIMEOUT_S = 10.0
OUTPUT_BYTES_MAX = 4 * 1024 * 1024


def found_ripgrep(roots: Sequence[str] = ()) -> str | None:
    """Where ripgrep is; None if it is not on PATH outside of ``roots``, or this system cannot start it in a directory that is held open."""
    return program_outside("rg", roots) if sys.platform.startswith("linux") else None


def candidates(
    program: str, directory: int, text: str, *, ignore_case: bool, skip: Iterable[str], file_bytes_max: int, timeout_s: float = TIMEOUT_S
) -> set[str] | None:
    """The files below an open directory that hold ``text`` (ASCII, without line breaks), relative to it, and perhaps some that do not.

    ripgrep opens files by their paths, so a link that is swapped in while it runs could lead it out: its answer is a hint where to look,
    and nothing of it may be shown. It gets no configuration, no input and no environment but PATH. None if it fails, says too much
    or takes longer than ``timeout_s``; it is killed then.
    """
    command = [
        program,
        "--no-config",
        "--files-with-matches",
        "--null",
        "--fixed-strings",
        "--text",
        "--hidden",
        "--no-ignore",
        "--no-messages",
    ]
    command += [
        "--no-follow",
        "--color=never",
        f"--max-filesize={file_bytes_max}",
        *(["--ignore-case"] if ignore_case else ["--case-sensitive"]),
    ]
    command += [f"--glob=!**/{name}/**" for name in skip]
    try:
        process = subprocess.Popen(
            [*command, "--regexp", text, "./"],
            cwd=f"/proc/self/fd/{directory}",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    try:
        output = _output(process, time.monotonic() + timeout_s)
        if output is None or process.wait(timeout=timeout_s) not in (0, 1):
            return None
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
    return {os.fsdecode(name.removeprefix(b"./")) for name in output.split(b"\0") if name}


def _output(process: subprocess.Popen[bytes], until: float) -> bytes | None:
    """All that it says; None if that is too much, or too late."""
    assert process.stdout is not None
    whole = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                return bytes(whole)
            whole += part
            if len(whole) > OUTPUT_BYTES_MAX:
                return None
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
