"""The command line: what it shows, where, and with which exit code; and that no traceback ever reaches a user."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.testing import Step, call, calls, cut, error, hold, repeat, text
from threaded import first_request, serving

INTERLOCK = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())"]


class Cli:
    """Runs the command in a directory of its own, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "cwd"
        self.home = folder / "home"
        self.cwd.mkdir()
        self.home.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }

    def run(self, *arguments: str, stdin: Any = subprocess.DEVNULL, **options: Any) -> subprocess.CompletedProcess[str]:
        if isinstance(stdin, str):
            options["input"] = stdin
        else:
            options["stdin"] = stdin
        done = subprocess.run(
            [*INTERLOCK, *arguments], cwd=self.cwd, env=self.env, capture_output=True, text=True, timeout=30, check=False, **options
        )
        assert "Traceback" not in done.stderr + done.stdout
        return done

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*INTERLOCK, *arguments], cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, **options)

    @contextmanager
    def model(self, steps: Iterable[Step]) -> Any:
        with serving(steps) as server:
            self.env["INTERLOCK_MODEL"] = f"openai-compatible:scripted@{server.base_url}"
            yield server


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def test_the_version(cli: Cli) -> None:
    assert cli.run("--version").stdout == f"interlock {interlock.__version__}\n"


def test_a_pipe_gets_the_answer_alone(cli: Cli) -> None:
    (cli.cwd / "notes.txt").write_text("the tide turns at six")
    steps = [calls(call("c1", "read_file", {"path": "notes.txt"}), before="Let me look."), text("At six.")]
    with cli.model(steps) as server:
        done = cli.run("run", "When does the tide turn?")
    assert (done.returncode, done.stdout) == (0, "At six.\n")
    assert "→ read_file" in done.stderr
    assert "✓ read_file" in done.stderr
    assert "2 requests, 1 tool call," in done.stderr
    assert server.requests[1].body["messages"][-1]["content"] == "the tide turns at six"
    offered = {tool["function"]["name"] for tool in server.requests[0].body["tools"]}
    assert offered == {"list_files", "find_files", "read_file", "search_text"}


def test_a_dry_run_executes_no_tool_and_says_so(cli: Cli) -> None:
    (cli.cwd / "notes.txt").write_text("the tide turns at six")
    with cli.model([calls(call("c1", "read_file", {"path": "notes.txt"})), text("Nobody looked.")]) as server:
        done = cli.run("run", "--dry-run", "When does the tide turn?")
    assert (done.returncode, done.stdout) == (0, "Nobody looked.\n")
    assert "no tool is executed" in done.stderr
    told = server.requests[1].body["messages"][-1]["content"]
    assert told == 'Dry run: read_file was not executed, and nothing was done. It would have been called with {"path":"notes.txt"}'


def test_a_session_is_kept_in_the_users_data_directory_and_continued(cli: Cli) -> None:
    with cli.model([text("Good morning."), text("You said hello.")]) as server:
        assert cli.run("run", "hello", "--session", "chat").returncode == 0
        assert cli.run("run", "What did I say?", "--session", "chat").returncode == 0
    contents = [message.get("content") for message in server.requests[1].body["messages"]]
    assert contents[-3:] == ["hello", "Good morning.", "What did I say?"]
    journal = cli.home / "data" / "interlock" / "sessions.db"
    assert journal.stat().st_mode & 0o777 == 0o600
    assert journal.parent.stat().st_mode & 0o777 == 0o700


def test_the_journal_can_be_named_by_option_or_environment(cli: Cli) -> None:
    with cli.model([text("one"), text("two")]):
        assert cli.run("run", "hello", "--journal", "sqlite:///here.db").returncode == 0
        cli.env["INTERLOCK_JOURNAL"] = "sqlite:///there.db"
        assert cli.run("run", "hello").returncode == 0
    assert (cli.cwd / "here.db").exists()
    assert (cli.cwd / "there.db").exists()
    assert not (cli.home / "data").exists()


def test_what_is_piped_in_joins_the_prompt(cli: Cli) -> None:
    with cli.model([text("one"), text("two")]) as server:
        assert cli.run("run", "Summarize this.", stdin="a long story\n").returncode == 0
        assert cli.run("run", stdin="only this").returncode == 0
    prompts = [request.body["messages"][-1]["content"] for request in server.requests]
    assert prompts == ["Summarize this.\n\n<stdin>\na long story\n</stdin>", "only this"]


@pytest.mark.parametrize(
    ("steps", "code", "says"),
    [
        ([repeat(text("I will read the file now.", finish="tool_calls"))], 10, "dropped_tool_call"),
        ([text("That is", finish="content_filter")], 11, "refused"),
        ([calls(call("c1", "list_files")), text("done")][:1], 12, "limit"),
        ([error(401, "no such key")], 4, "no such key"),
    ],
)
def test_everything_but_an_answer_has_a_code_of_its_own(cli: Cli, steps: list[Step], code: int, says: str) -> None:
    with cli.model(steps):
        done = cli.run("run", "Go on.", *(["--max-requests", "1"] if code == 12 else []))
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert says in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "hello"], "which model"),
        (["run", "hello", "--model", "nonsense"], "no model spec"),
        (["run", "--model", "openai-compatible:x@http://127.0.0.1:1/v1"], "what should be done"),
        (["run", "", "--model", "openai-compatible:x@http://127.0.0.1:1/v1"], "what should be done"),
        (["run", "hello", "--model", "openai-compatible:x@http://127.0.0.1:1/v1", "--journal", "nonsense:"], "journal"),
        (["run", "hello", "--model", "openai-compatible:x@http://127.0.0.1:1/v1", "--session", "\x07"], "session_id"),
        (["run", "hello", "--max-requests", "0"], "max-requests"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_code_2(cli: Cli, arguments: list[str], says: str) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr


def test_a_journal_that_cannot_be_used_is_one_sentence_and_code_5(cli: Cli) -> None:
    (cli.cwd / "broken.db").write_bytes(b"this is no database, " * 100)
    with cli.model([]):
        done = cli.run("run", "hello", "--journal", "sqlite:///broken.db")
    assert done.returncode == 5, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_cut_answer_is_asked_for_again_and_said(cli: Cli) -> None:
    with cli.model([cut(after="The answer is for"), text("The answer is forty.")]):
        done = cli.run("run", "What is it?")
    assert (done.returncode, done.stdout) == (0, "The answer is forty.\n")
    assert "recovering from model_failed" in done.stderr


def test_ctrl_c_cancels_and_keeps_the_session(cli: Cli) -> None:
    with cli.model([hold(asyncio.Event(), after="Thinking about"), text("I am back.")]) as server:
        process = cli.popen("run", "Think.", "--session", "kept", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first_request(server)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
        assert b"Traceback" not in err
        assert b"--session kept" in err
        assert out == b""
        done = cli.run("run", "Go on.", "--session", "kept")
    assert (done.returncode, done.stdout) == (0, "I am back.\n")
    assert "Think." in [message["content"] for message in server.requests[1].body["messages"]]


def test_a_session_that_runs_elsewhere_is_refused(cli: Cli) -> None:
    gate = asyncio.Event()
    with cli.model([hold(gate, then=text("done"))]) as server:
        process = cli.popen("run", "Think.", "--session", "busy", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first_request(server)
        refused = cli.run("run", "Me too.", "--session", "busy")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert refused.returncode == 3, refused.stderr
    assert "busy" in refused.stderr


def test_an_impatient_second_ctrl_c_is_no_traceback(cli: Cli) -> None:
    with cli.model([hold(asyncio.Event())]) as server:
        process = cli.popen("run", "Think.", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first_request(server)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.readline()
        assert b"once more ends at once" in said
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT), err  # the same for a shell
    assert b"Traceback" not in err


def test_a_home_that_cannot_hold_a_journal_is_one_sentence(cli: Cli) -> None:
    cli.env["XDG_DATA_HOME"] = os.devnull + "/data"
    with cli.model([]):
        done = cli.run("run", "hello")
    assert done.returncode == 2
    assert "INTERLOCK_JOURNAL" in done.stderr


def test_a_prompt_that_is_no_text_is_mended(cli: Cli) -> None:
    with cli.model([text("I see.")]) as server:
        done = subprocess.run(
            [*INTERLOCK, "run", b"caf\xff"],
            cwd=cli.cwd,
            env=cli.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert server.requests[0].body["messages"][-1]["content"] == "caf\N{REPLACEMENT CHARACTER}"


def test_more_on_stdin_than_fits_is_refused(cli: Cli) -> None:
    with cli.model([]):
        done = cli.run("run", "Summarize.", stdin="x" * (1024 * 1024 + 1))
    assert done.returncode == 2
    assert "1,048,576 bytes" in done.stderr


def test_a_reader_that_leaves_is_no_traceback(cli: Cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with cli.model([text("an answer that nobody reads")]):
        process = cli.popen("run", "hello", stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 141
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err


def test_closed_standard_streams_are_no_traceback(cli: Cli) -> None:
    with cli.model([text("an answer")]):
        command = " ".join(["exec", f"'{sys.executable}'", "-c", f"'{INTERLOCK[2]}'", "run", "hello", "<&-", ">&-"])
        done = subprocess.run(["sh", "-c", command], cwd=cli.cwd, env=cli.env, stderr=subprocess.PIPE, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_on_a_terminal_text_appears_as_it_is_written_and_controls_nothing(cli: Cli) -> None:
    steps = [text("I will look.", finish="tool_calls"), text("red \x1b[31malert\x1b]0;title\x07 done")]
    with cli.model(steps):
        primary, secondary = pty.openpty()
        process = cli.popen("run", "hello", stdout=secondary, stderr=subprocess.PIPE)
        os.close(secondary)
        shown = b""
        while True:
            try:
                part = os.read(primary, 4096)
            except OSError:  # the terminal's other end is closed
                break
            if not part:
                break
            shown += part
        os.close(primary)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert b"I will look." in shown
    assert b"withdrawn (dropped_tool_call)" in err
    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert b"alert" in shown


def test_without_its_extra_the_command_line_is_one_sentence_and_code_2(cli: Cli) -> None:
    code = "import sys; sys.modules['typer'] = None; from interlock.shells.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], env=cli.env, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "interlock: the command line needs two more libraries; install them with: pip install 'interlock[cli]'"
