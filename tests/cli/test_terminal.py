"""On a real terminal: Markdown as it is written, what is withdrawn, 40 columns, wide characters, no colour."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from commands import Commands
from interlock.shells.cli.text import one_line, printable
from interlock.testing import Step, call, calls, text

INTERLOCK = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())"]
ANSWER = """# Tides

The tide turns at **six**.

- 海の時間は六時です、それから八時です、そして十時です
- twelve

```
a = 1

b = 2
```

See [here](http://example.org/)."""


def on_a_terminal(*arguments: str, columns: int = 80, **environment: str) -> tuple[int, str]:
    """Exit code, and everything that reached the terminal: stdout and stderr as they were written."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [*INTERLOCK, *arguments],
        env={**inherited, "TERM": "xterm-256color", **environment},
        stdin=secondary, stdout=secondary, stderr=secondary,
    )  # fmt: skip
    os.close(secondary)
    shown = b""
    while True:
        try:
            part = os.read(primary, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(primary)
    return process.wait(20), shown.decode()


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


STEPS = [calls(call("c1", "list_files"), before="Let me look."), text(ANSWER, pieces=20)]


def test_markdown_is_formatted_as_it_is_written(commands: Commands) -> None:
    with commands.model(STEPS):
        code, shown = on_a_terminal("run", "When does the tide turn?")
    assert code == 0
    said = plain(shown)
    assert "**" not in said.rsplit("Tides", 1)[1]
    assert "\x1b[1m" in shown
    assert said.index("→ list_files") < said.index("✓ list_files") < said.rindex("twelve")
    assert "http://example.org/" in said  # a link that says where it leads
    assert "\x1b]8" not in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")  # the cursor is shown again


def test_without_colour_there_is_none(commands: Commands) -> None:
    with commands.model(STEPS):
        code, shown = on_a_terminal("run", "When?", NO_COLOR="1")
    assert code == 0
    colours = re.findall(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|38|4[0-7]|48|9[0-7])(?:;[0-9;]*)?m", shown)
    assert colours == []


def test_a_dumb_terminal_gets_plain_text(commands: Commands) -> None:
    with commands.model([text(ANSWER)]):
        code, shown = on_a_terminal("run", "When?", TERM="dumb")
    assert code == 0
    assert "\x1b" not in shown
    assert "**six**" in shown


def test_in_40_columns_every_line_of_a_call_fits(commands: Commands) -> None:
    (commands.cwd / ("長い名前" * 8)).write_text("x")
    steps: list[Step] = [calls(call("c1", "list_files")), calls(call("c2", "read_file", {"path": "長い名前" * 8})), text("Done.")]
    with commands.model(steps):
        code, shown = on_a_terminal("run", "Read it.", columns=40)
    assert code == 0
    from rich.cells import cell_len

    lines = [line for line in plain(shown).replace("\r", "").splitlines() if line.startswith(("→", "✓"))]
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= 40


def test_in_40_columns_the_log_still_names_each_record(commands: Commands) -> None:
    with commands.model([calls(call("c1", "list_files")), text("Done.")]):
        commands("run", "--session", "s", "Look.")
    code, shown = on_a_terminal("log", "s", columns=40)
    assert code == 0
    lines = plain(shown).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 40
    for kind in ("SessionOpened", "RunStarted", "ModelStepStarted", "HandlerStarted", "ToolStepEnded", "RunEnded"):
        assert any(f"  {kind}" in line for line in lines), kind


def test_withdrawn_text_is_said_to_be(commands: Commands) -> None:
    with commands.model([text("I will look now.", finish="tool_calls"), text("Done.")]):
        code, shown = on_a_terminal("run", "Look.")
    said = plain(shown)
    assert code == 0
    assert said.index("I will look now.") < said.index("the text above is withdrawn (dropped_tool_call)") < said.rindex("Done.")


def test_markdown_can_be_switched_off(commands: Commands) -> None:
    (commands.cwd / "interlock.toml").write_text("markdown = false\n")
    with commands.model([text(ANSWER)]):
        assert "**six**" in on_a_terminal("run", "When?")[1]


@pytest.mark.parametrize(
    ("given", "width", "shown"), [("abc", 5, "abc"), ("abcdefgh", 6, "abc..."), ("海海海海", 7, "海海..."), ("a\nb\x1b[0m", 9, "a b�[0m")]
)
def test_lines_are_cut_by_cells(given: str, width: int, shown: str) -> None:
    assert one_line(given, width=width) == shown


def test_nothing_is_obeyed() -> None:
    assert printable("\x1b]0;title\x07\x9b31m\r\n") == "�]0;title��31m\n"


def test_a_block_in_progress_is_drawn_over_itself_and_seen_even_if_nothing_follows(commands: Commands) -> None:
    """Played on a screen of our own: what a person has before them at the end, line by line."""
    with commands.model([text("Tides\n\n- six\n- twelve\n- eight\n\nand on", pieces=12)]):
        code, shown = on_a_terminal("run", "When?")
    assert code == 0
    lines = [line.strip() for line in screen(shown) if line.strip()]
    assert lines[:5] == ["Tides", "• six", "• twelve", "• eight", "and on"]


def screen(shown: str) -> list[str]:
    """The lines that are left after carriage returns, line feeds, cursor up and erase line: all that is used."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", shown):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            rows[row] = ""
        elif not part.startswith("\x1b"):
            rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + len(part) :]
            column += len(part)
    return rows
