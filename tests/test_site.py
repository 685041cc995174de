"""The documentation site builds: strictly, without network, and so that its pages need none. Every public name is in the reference."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "build_site.py"


@pytest.mark.timeout(240)
def test_the_site_builds_strictly_without_network_and_asks_nothing_of_another_host(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "site")], capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")

    inventory = zlib.decompress((tmp_path / "site" / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    documented = {line.split()[0] for line in inventory.splitlines()}
    for package in ("interlock", "interlock.testing", "interlock.events", "interlock.messages", "interlock.records"):
        module = import_module(package)
        missing = [name for name in module.__all__ if f"{package}.{name}" not in documented and name not in NOT_CLASSES]
        assert not missing, f"{package}: the reference has no {missing}"

    drawn = (tmp_path / "site" / "architecture" / "index.html").read_text(encoding="utf-8")
    phases = set(re.findall(r"<text [^>]*>(\w+)</text>", drawn))
    assert phases == set(import_module("interlock.machine").Phase.__members__)


# Type aliases and plain helpers that the reference shows in words, where they are used.
NOT_CLASSES = {"Handler", "Frame", "Event", "Message", "Part", "Content", "Effect", "Record", "SCOPES", "clean", "clean_tree", "reason_of"}


def test_something_that_asks_for_the_network_fails_the_build(tmp_path: Path) -> None:
    code = (
        f"import sys, socket; sys.path.insert(0, {str(SCRIPT.parent)!r}); from build_site import refuse_the_network\n"
        "sys.addaudithook(refuse_the_network); socket.create_connection(('127.0.0.1', 9))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path)
    assert "must build without network" in done.stderr
