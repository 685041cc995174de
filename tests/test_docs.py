"""The documentation is true: its Python blocks run, its tables are the code's, its links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from msgspec.structs import fields

from interlock import Limits, RunContext, errors, events, records
from interlock.extensions.permissions import FLOOR
from interlock.machine import RECOVERIES
from interlock.shells.cli.exits import BROKEN_PIPE, ERROR_CODES, OUTCOME_CODES, SIGNAL_CODES
from interlock.shells.cli.settings import SCHEMA
from interlock.testing import Step, call, calls, text
from threaded import serving

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SERVER_IN_THE_DOCS = "http://127.0.0.1:8000/v1"


class Block(NamedTuple):
    """One fenced block. marks: what the comment above it says, word by word. index: its place in the page."""

    page: str
    index: int
    line: int
    language: str
    marks: tuple[str, ...]
    code: str


SHELL = {"sh", "bash"}
MARKS = {"with=server", "continues", "output"}
_FENCE = re.compile(r"(?:<!-- test: ([^\n]*?) -->\n)?^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> Iterator[Block]:
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        for index, match in enumerate(_FENCE.finditer(content)):
            line = content.count("\n", 0, match.start(3)) + 1
            marks = (match[1],) if (match[1] or "").startswith("skip: ") else tuple((match[1] or "").split())
            yield Block(page.relative_to(ROOT).as_posix(), index, line, match[2], marks, match[3])


BLOCKS = list(blocks())


def python_blocks() -> list[Block]:
    return [block for block in BLOCKS if block.language == "python"]


def chain(block: Block) -> list[Block]:
    """``block`` and the blocks of its page that it continues, first one first."""
    made = [block]
    for earlier in reversed([one for one in python_blocks() if one.page == block.page and one.index < block.index]):
        if "continues" not in made[0].marks:
            break
        made.insert(0, earlier)
    assert "continues" not in made[0].marks, f"{block.page}:{block.line}: continues nothing"
    return made


def file_of(block: Block) -> str:
    """The file of the project that ``block`` shows whole; the Python blocks of its page find it in their folder."""
    return next((mark.removeprefix("file=") for mark in block.marks if mark.startswith("file=")), "")


def output_of(block: Block) -> Block | None:
    """The block that shows what ``block`` prints: the next one of its page, if it is marked so."""
    return next((one for one in BLOCKS if (one.page, one.index) == (block.page, block.index + 1) and "output" in one.marks), None)


def obliging(body: Mapping[str, Any]) -> Step:
    """Calls the first tool that is offered once, with an argument for each of its parameters, then answers."""
    messages, tools = body["messages"], body.get("tools") or []
    if tools and messages[-1]["role"] == "user":
        function = tools[0]["function"]
        samples = {"string": "Harbour Paper", "integer": 12_000, "number": 1.5, "boolean": True}
        properties = function["parameters"].get("properties", {})
        arguments = {name: samples.get(schema.get("type"), "Lisbon") for name, schema in properties.items()}
        return calls(call("call-1", function["name"], arguments))
    return text("Done.")


def execute(made: list[Block]) -> str:
    """Run blocks one after the other in one namespace. Functions that are named as tests are called, as pytest would. Returns what
    the last block printed."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    for block in made:
        printed = io.StringIO()
        code = block.code
        if "with=server" in block.marks:
            with serving(obliging) as server, redirect_stdout(printed):
                perform(code.replace(SERVER_IN_THE_DOCS, server.base_url), f"{block.page}:{block.line}", namespace)
        else:
            with redirect_stdout(printed):
                perform(code, f"{block.page}:{block.line}", namespace)
    return printed.getvalue()


def perform(code: str, name: str, namespace: dict[str, Any]) -> None:
    before = set(namespace)
    compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:

        async def run() -> None:
            await eval(compiled, namespace)

        asyncio.run(run())
    else:
        exec(compiled, namespace)
    for test in [value for key, value in namespace.items() if key.startswith("test_") and key not in before]:
        test()


@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: f"{block.page}:{block.line}")
def test_every_python_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for other in BLOCKS:
        if other.page == block.page and (name := file_of(other)):
            (tmp_path / Path(name).name).write_text(other.code, encoding="utf-8")
    printed = execute(chain(block))
    shown = output_of(block)
    if shown is not None:
        assert printed == shown.code, f"{block.page}:{shown.line} shows another output"


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    for block in BLOCKS:
        where = f"{block.page}:{block.line}"
        assert block.language in {"python", "toml", "json", "text", "console", "mermaid", *SHELL}, f"{where}: {block.language!r}"
        marks = {mark for mark in block.marks if not mark.startswith("file=")}
        assert marks <= MARKS or block.marks[0].startswith("skip: "), f"{where}: {block.marks}"
        if name := file_of(block):
            assert block.code == (ROOT / name).read_text(encoding="utf-8"), f"{where}: {name} is another one"
        if block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "json":
            one_per_line = block.code.splitlines() if block.code.startswith("{") and "}\n{" in block.code else [block.code]
            for value in one_per_line:
                json.loads(value)
        elif block.language == "text":
            before = [one for one in python_blocks() if (one.page, one.index) == (block.page, block.index - 1)]
            assert "output" not in block.marks or before, f"{where}: the output of what?"


def table(page: str, marker: str) -> list[list[str]]:
    """The rows of the table between ``<!-- marker -->`` and ``<!-- end of marker -->``, without its head."""
    content = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"<!-- {marker} -->")[1].split(f"<!-- end of {marker} -->")[0]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in content.strip().splitlines()[2:]]


def test_the_table_of_limits_is_the_code() -> None:
    shown = {row[0]: row[1] for row in table("recoveries-and-limits.md", "limits")}
    real = {field.name: "none" if field.default is None else str(field.default) for field in fields(Limits)}
    assert shown == real


def test_the_table_of_recoveries_is_the_code() -> None:
    shown = {row[0] for row in table("recoveries-and-limits.md", "recoveries")}
    assert shown == {*RECOVERIES, "model_failed"}


def test_the_table_of_exit_codes_is_the_code() -> None:
    shown = {int(row[0]) for row in table("cli.md", "exit codes")}
    assert shown == {*OUTCOME_CODES.values(), *ERROR_CODES.values(), *SIGNAL_CODES, BROKEN_PIPE}
    help_text = " ".join(interlock("run", "--help").split())
    assert all(re.search(rf"\b{code}\b", help_text) for code in shown)


def interlock(*arguments: str) -> str:
    command = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


# ---- shell blocks ------------------------------------------------------------------------------------------
# They are not run: they install, serve, or need a key. Every command in them must be one that exists, with options that exist.


@cache
def help_of(*words: str) -> str:
    return interlock(*words, "--help")


def check_interlock(words: list[str]) -> None:
    path: list[str] = []
    for word in words:
        commands = help_of(*path).partition("Commands")[2]
        if word.startswith("-") or not re.search(rf"^(?:│|  ) ?{re.escape(word)} ", commands, re.MULTILINE):
            break
        path.append(word)
    assert path or words[0].startswith("-"), f"there is no command {words[:1]}"
    real = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_of(*path)))
    used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= real, f"interlock {' '.join(path)} has no {used - real}"


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets, variables = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)), set(re.findall(r"\$\(([A-Z_]+)\)", makefile))
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            assert name in targets, f"make has no target {name}"
            continue
        assert name in variables | {"PYTHON"}, f"make has no variable {name}"
        for path in shlex.split(value):
            assert not path.startswith(("tests/", "examples/")) or (ROOT / path.split("::")[0]).exists(), path
            if re.fullmatch(r"G\d\d[\w-]*", path):
                mutants = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "mutants").glob("*.toml"))
                assert f'id = "{path}' in mutants, f"there is no mutant {path}"


def check_pip(words: list[str]) -> None:
    assert words[0] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for word in words[1:]:
        match = re.fullmatch(r"(interlock|\.)(?:\[([a-z,]+)\])?", word)
        assert match or word in {"fastapi", "uvicorn", "-e"} or word.startswith("mutmut"), word
        assert not match or not match[2] or set(match[2].split(",")) <= set(extras), word


def check_python(words: list[str]) -> None:
    assert words[0] == "-m" or words[0].startswith("examples/")
    for word in words:
        assert not word.startswith(("tests/", "examples/")) or (ROOT / word.split("::")[0]).exists(), word


def check_uvicorn(words: list[str]) -> None:
    module = words[-1].partition(":")[0]
    assert (ROOT / words[words.index("--app-dir") + 1] / f"{module}.py").exists()


def anything(words: list[str]) -> None:
    """A command that is not the project's."""


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "interlock": check_interlock,
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "uvicorn": check_uvicorn,
    **dict.fromkeys(
        (
            "cat",
            "cd",
            "cp",
            ".",
            "curl",
            "echo",
            "export",
            "git",
            "head",
            "jq",
            "less",
            "ls",
            "mkdir",
            "mutmut",
            "printf",
            "rm",
            "tail",
            "tmux",
            "wc",
        ),
        anything,
    ),
}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in SHELL], ids=lambda block: f"{block.page}:{block.line}")
def test_every_command_in_the_docs_exists(block: Block) -> None:
    without_files = re.sub(r"<<'?(\w+)'?\n.*?^\1$", "", block.code, flags=re.MULTILINE | re.DOTALL)  # what `<<END` puts into a file
    for line in without_files.replace("\\\n", " ").splitlines():
        for command in commands_in(line):
            name = command[0].removeprefix(".venv/bin/")
            assert name in COMMANDS, f"{block.page}:{block.line}: {name} is not known to this test"
            COMMANDS[name](command[1:])


def commands_in(line: str) -> list[list[str]]:
    """The commands of a line, without comments, redirections and assignments in front."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    made: list[list[str]] = [[]]
    into_file = False
    for word in lexer:
        if set(word) <= set("|&;"):
            made.append([])
        elif set(word) <= set("<>"):
            into_file = True
        elif into_file:
            into_file = False
        elif made[-1] or not re.match(r"[A-Z_]+=", word):
            made[-1].append(word)
    return [command for command in made if command]


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "demo",
        "sessions",
        "show",
        "log",
        "export",
        "fork",
        "replay",
        "delete",
        "models",
        "doctor",
        "onion",
        "config show",
        "config explain",
    ],
)
def test_the_options_in_the_docs_are_those_of_help(command: str) -> None:
    said = interlock(*command.split(), "--help").partition("Examples:")[0]
    real = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]+)", said, re.MULTILINE)) - {"--help"}
    content = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    if command.startswith("config"):
        assert real == {"--json"}
        return
    section = content.split(f"## interlock {command}")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE)) == real


def test_the_table_of_settings_is_the_code() -> None:
    shown = {row[0]: tuple(row[1:]) for row in table("cli.md", "settings")}
    assert shown == {key: (default_of(key), setting.flag or "", setting.meaning) for key, setting in SCHEMA.items()}


def default_of(key: str) -> str:
    default = SCHEMA[key].default
    return "" if default is None else ", ".join(default) if isinstance(default, list) else str(default).lower()


def test_links_lead_to_files_that_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:|#", target):
                assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_the_phase_diagram_is_drawn_from_the_table() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "phase_diagram.py"), "--check"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_guarantee_has_its_section_and_a_command_that_checks_it() -> None:
    content = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (G\d\d): .*?\n(.*?)(?=^##)", content, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == [f"G{number:02}" for number in range(1, 15)]
    for name, section in sections:
        assert re.search(r"^Status: ", section, re.MULTILINE), name
        commands = re.findall(r"^make test-fast ARGS=\S+|^make test-fast ARGS=\".*\"", section, re.MULTILINE)
        assert commands or "Status: comes later" in section, name
        if "Status: holds" in section:
            mutants = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "mutants").glob("*.toml"))
            assert mutants.count(f'id = "{name}-') >= 2, f"{name} has no two mutants"


def test_the_page_of_errors_is_the_tree() -> None:
    shown = {row[0] for row in table("errors.md", "errors")}
    assert shown == {name for name in errors.__all__ if name != "Effect"}


def test_the_application_in_the_docs_is_the_example() -> None:
    page = next(block for block in python_blocks() if block.page == "docs/fastapi.md")
    assert (ROOT / "examples" / "fastapi_app.py").read_text(encoding="utf-8").endswith(page.code)


def test_every_event_and_record_is_in_its_table() -> None:
    assert {row[0] for row in table("streaming.md", "events")} == {kind.__name__ for kind in get_args(events.Event)}
    shown = {name.strip().strip("`") for row in table("architecture.md", "records") for name in row[0].split(",")}
    assert shown == {kind.__name__ for kind in get_args(records.Record)}


def test_everything_that_a_context_offers_is_in_its_table() -> None:
    shown = {row[0].partition("(")[0] for row in table("tools.md", "context")}
    assert shown == {name for name in vars(RunContext) if not name.startswith("_")}


def test_the_table_of_the_safety_floor_is_the_code() -> None:
    shown = [(row[0], row[1], row[2].replace("`", "")) for row in table("guards.md", "floor")]
    real = [(rule.name, rule.reason, ", ".join((*rule.paths, *rule.commands, *([rule.means] if rule.means else [])))) for rule in FLOOR]
    assert shown == real
