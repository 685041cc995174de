"""A day's work with the coding tools, as anyone can repeat it: killed while a command ran, resumed, and answered from a third process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DAY = Path(__file__).parents[2] / "examples" / "coding" / "day.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the processes that are left behind are ended on Linux alone")
def test_the_coding_tools_do_a_day_of_work_under_a_policy_killed_once_and_resumed() -> None:
    done = subprocess.run([sys.executable, str(DAY)], capture_output=True, text=True, timeout=120)
    said = done.stdout
    assert done.returncode == 0, f"{said}\n{done.stderr}"
    steps = (
        r"✗ edit_file .*denies this call by deny rule 1 'the checks stay'",
        r"✓ edit_file .*src/till\.py",
        r"→ run_command .*test_till\.py",
        r"\[killed while the tests ran",
        r"✗ run_command .*Its effect is unknown",
        r"✓ run_command .*exit code 0.*ok test_several_of_one_kind",
        r"\? run_command: .*git commit",
        r"✓ run_command .*exit code 0",
        r"It is mended, the tests pass, and the change is committed",
        r"Keeper: Count each item",
    )
    at = 0
    for step in steps:
        found = re.compile(step).search(said, at)
        assert found, f"{step!r} is not there, or too early:\n{said}"
        at = found.end()
    assert said.count('→ run_command {"command": "git commit') == 2, "before the question, and after the answer"
    assert said.count("Keeper: Count each item") == 1
