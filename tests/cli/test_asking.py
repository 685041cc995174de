"""A call that needs somebody's word, on a real terminal and from other processes: what is shown, what may be said, and what goes on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from interlock.events import ToolProgress
from interlock.messages import ToolCall
from interlock.records import Question
from interlock.shells.cli.asking import shown_arguments, shown_question
from interlock.shells.cli.display import Display
from interlock.shells.cli.text import visible
from interlock.testing import call, calls, text

INTERLOCK = [sys.executable, "-c", "import sys; from interlock.shells.cli import main; sys.exit(main())"]

DESK = '''
"""A program of the user's: its tool writes a line for each payment."""

from interlock import tool


@tool(requires_approval=True)
def pay(amount: int, to: str = "Ann") -> str:
    """Pay somebody."""
    with open("ledger", "a") as file:
        file.write(f"{amount} {to}\\n")
    return f"paid {amount}"


def make():
    return {"tools": [pay]}


async def later():
    return make()


def wrong():
    return {"tols": [pay]}


def number():
    return 3


def breaks():
    raise OSError("no such desk")


async def finished():
    from interlock import Agent
    from interlock.testing import ScriptedModel, text

    return await Agent.create(ScriptedModel([text("From the finished one.")]), tools=[pay], journal="sqlite:///elsewhere.db")


constant = 3
'''
AGENT = ["--agent", "desk.py:make"]


@pytest.fixture
def desk(commands: Commands) -> Commands:
    (commands.cwd / "desk.py").write_text(DESK)
    return commands


def ledger(desk: Commands) -> list[str]:
    file = desk.cwd / "ledger"
    return file.read_text().splitlines() if file.exists() else []


def pays(*amounts: int, **more: Any) -> Any:
    return calls(*(call(f"c{n}", "pay", {"amount": amount, **more}) for n, amount in enumerate(amounts)))


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *arguments: str, columns: int = 120) -> None:
        self.primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [*INTERLOCK, *arguments],
            env={**environment, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"},
            stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(secondary)
        self.raw = ""
        self._at = 0

    @property
    def shown(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.raw).replace("\r\n", "\n")

    def _more(self, until: float) -> bool:
        if not select.select([self.primary], [], [], max(0.0, until - time.monotonic()))[0]:
            raise AssertionError(f"nothing more came:\n{self.shown}")
        try:
            part = os.read(self.primary, 65536)
        except OSError:
            return False
        self.raw += part.decode("utf-8", "replace")
        return bool(part)

    def until(self, words: str) -> str:
        """What was shown since the last time, up to ``words``."""
        until = time.monotonic() + 60
        while words not in self.shown[self._at :]:
            assert self._more(until), self.shown
        shown = self.shown
        end = shown.index(words, self._at) + len(words)
        found, self._at = shown[self._at : end], end
        return found

    def types(self, line: str, *, after: str) -> str:
        shown = self.until(after)
        os.write(self.primary, line.encode() + (b"\n" if not line.endswith(("\x03", "\x04")) else b""))
        return shown

    def ends(self) -> tuple[int, str]:
        until = time.monotonic() + 60
        while self._more(until):
            pass
        return self.process.wait(30), self.shown


@contextmanager
def on_a_terminal(*arguments: str, **options: Any) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, **options)
    try:
        yield terminal
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.primary)


HOW = r"to answer: (interlock answer s --agent desk.py:make --question \S+ --allow) \(or --session, --tool, --always, --edit JSON, --deny "
RUN = ["run", "--session", "s", *AGENT, "Pay."]


def test_yes_on_the_terminal_runs_it_once_and_the_question_shows_what_it_is_about(desk: Commands) -> None:
    with desk.model([pays(5), text("Paid.")]), on_a_terminal(*RUN) as terminal:
        shown = terminal.types("y", after="pay? ")
        code, rest = terminal.ends()
    assert '? pay: May pay run? (asked by Approvals)\n  {\n    "amount": 5\n  }\n' in shown
    assert "  s  yes, and whenever pay is called with exactly these arguments in this session\n" in shown
    assert "  t  yes, and whenever pay is called in this session, WHATEVER its arguments\n" in shown
    assert f"  a  yes, and with exactly these arguments in every session: a rule in {desk.home}/config/interlock/approvals.toml\n" in shown
    assert (code, ledger(desk)) == (0, ["5 Ann"])
    assert "Paid." in rest


def test_whatever_is_no_answer_is_asked_again_and_what_was_typed_before_is_not_taken(desk: Commands) -> None:
    with desk.model([pays(5), text("Paid.")]), on_a_terminal(*RUN) as terminal:
        os.write(terminal.primary, b"y\ny\n")
        for nonsense in ("", "Y es", "sure", "1", "\x1b[A"):
            terminal.types(nonsense, after="pay? ")
            terminal.until("one of y, s, t, a, e, d, f is needed")
            assert ledger(desk) == []
        terminal.types("yes", after="pay? ")
        assert terminal.ends()[0] == 0
    assert ledger(desk) == ["5 Ann"]


@pytest.mark.parametrize(("key", "asked"), [("s", 2), ("t", 1)])
def test_a_yes_for_the_session_or_the_tool_spares_what_it_covers(desk: Commands, key: str, asked: int) -> None:
    steps = [pays(5), pays(5), pays(6), text("Paid.")]
    with desk.model(steps), on_a_terminal(*RUN) as terminal:
        for _ in range(asked):
            terminal.types(key, after="pay? ")
        code, shown = terminal.ends()
    assert (code, ledger(desk)) == (0, ["5 Ann", "5 Ann", "6 Ann"])
    assert shown.count("May pay run? (asked by") == asked


def test_a_yes_for_good_is_a_rule_in_the_users_file_and_a_later_run_asks_nothing(desk: Commands) -> None:
    with desk.model([pays(5), text("Paid.")]), on_a_terminal(*RUN) as terminal:
        terminal.types("a", after="pay? ")
        assert terminal.ends()[0] == 0
    (rule,) = tomllib.loads((desk.home / "config" / "interlock" / "approvals.toml").read_text())["allow"]
    assert (rule["tool"], rule["exact"]) == ("pay", {"amount": 5})
    with desk.model([pays(5), text("Paid again.")]):
        assert desk("run", *AGENT, "Pay.").stdout == "Paid again.\n"
    with desk.model([pays(6)]):
        desk("run", *AGENT, "Pay.", code=13)
    assert ledger(desk) == ["5 Ann", "5 Ann"]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_denial_tells_the_model_why(desk: Commands, at_once: bool) -> None:
    with desk.model([pays(5), text("Then not.")]) as server, on_a_terminal(*RUN) as terminal:
        terminal.types("d too much" if at_once else "d", after="pay? ")
        if not at_once:
            terminal.types("too much", after="for no reason) ")
        assert terminal.ends()[0] == 0
        assert "denied: too much" in server.requests[-1].body["messages"][-1]["content"]
    assert ledger(desk) == []


@pytest.mark.parametrize("way", ["on the line", "asked for", "with an editor"])
def test_edited_arguments_are_asked_about_again_and_run(desk: Commands, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    if way == "with an editor":
        script = desk.cwd / "edit.py"
        script.write_text("import os, sys\npath = sys.argv[1]\ntext = open(path).read().replace('5', '1')\n"
                          "open(path + '.new', 'w').write(text)\nos.rename(path + '.new', path)\nopen(path, 'a').close()\n")  # fmt: skip
        monkeypatch.setenv("EDITOR", f"{sys.executable} -I -S {script}")
    with desk.model([pays(5), text("Paid.")]), on_a_terminal(*RUN) as terminal:
        terminal.types("e nonsense", after="pay? ")
        terminal.until("not one JSON object")
        terminal.types('e {"amount": 1}' if way == "on the line" else "e", after="pay? ")
        if way == "asked for":
            terminal.types('{"amount": 1}', after="one JSON object: ")
        shown = terminal.types("y", after="pay? ")
        assert '"amount": 1\n  }\n  changed since the model wrote them:\n  {\n    "amount": 5\n' in shown
        assert terminal.ends()[0] == 0
    assert ledger(desk) == ["1 Ann"]


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_leaving_keeps_the_question_open_and_says_how_to_go_on(desk: Commands, key: str) -> None:
    with desk.model([pays(5)]), on_a_terminal(*RUN) as terminal:
        terminal.types(key, after="pay? ")
        code, shown = terminal.ends()
    assert (code, ledger(desk)) == (13, [])
    (how,) = re.findall(
        r"to answer: (interlock answer s --agent desk.py:make --question \S+ --allow) \(or --session, --tool, --always, ", shown
    )
    with desk.model([text("Paid.")]):
        assert desk(*how.split()[1:]).stdout == "Paid.\n"
    assert ledger(desk) == ["5 Ann"]


@pytest.mark.parametrize("options", [("--dry-run",), ("--policy", "my rules.toml"), ("--policy", "my rules.toml", "--dry-run")])
def test_the_command_that_goes_on_goes_on_under_the_same_guards(desk: Commands, options: tuple[str, ...]) -> None:
    (desk.cwd / "my rules.toml").write_text('version = 1\nname = "p"\n[[allow]]\ntool = "pay"\n')
    with desk.model([pays(5)]):
        said = desk(*RUN, *options, code=13).stderr
    for shown in (said, desk("answer", "s", *AGENT, *options).stdout):
        (how,) = re.findall(r"interlock (answer s .*--allow) \(or ", " ".join(shown.split()))
        assert shlex.split(how)[4:-3] == list(options)
    assert ledger(desk) == []
    with desk.model([text("Done.")]):
        desk(*shlex.split(how))
    assert ledger(desk) == ([] if "--dry-run" in options else ["5 Ann"])


def test_without_the_dry_run_nothing_that_it_left_open_is_executed(desk: Commands) -> None:
    with desk.model([pays(5)]):
        desk(*RUN, "--dry-run", code=13)
        assert "begun as a dry run" in desk("answer", "s", *AGENT, "--allow", code=3).stderr
        assert "begun as a dry run" in desk("resume", "s", *AGENT, code=3).stderr
        assert "dry run" in desk("resume", "s", *AGENT, "--explain").stdout
    assert ledger(desk) == []


def test_a_question_that_is_left_open_hides_nothing_either(desk: Commands) -> None:
    """The question of a policy shows the arguments, and so does a veto's line."""
    (desk.cwd / "rules.toml").write_text('version = 1\nname = "p"\n[[deny]]\ntool = "pay"\npath = "secret/**"\n[[ask]]\ntool = "pay"\n')
    with desk.model([calls(call("c0", "pay", {"amount": 5, "to": "A\u202eB"}), call("c1", "pay", {"amount": 5, "to": "secret/\u202eB"}))]):
        shown = desk(*RUN, "--policy", "rules.toml", code=13).stderr
    assert "\u202e" not in shown
    assert shown.count("A\\u202eB") >= 3


def test_a_terminal_that_is_closed_leaves_the_question_open(desk: Commands) -> None:
    with desk.model([pays(5)]):
        with on_a_terminal(*RUN) as terminal:
            terminal.until("pay? ")
            terminal.process.send_signal(signal.SIGHUP)
            assert terminal.process.wait(30) == 129
        assert '"amount": 5' in desk("answer", "s").stdout


def test_several_questions_are_asked_one_after_the_other_and_one_denial_leaves_the_others(desk: Commands) -> None:
    with desk.model([pays(5, 6, 7), text("Two of them.")]) as server, on_a_terminal(*RUN) as terminal:
        for key in ("y", "d no", "y"):
            terminal.types(key, after="pay? ")
        assert terminal.ends()[0] == 0
        results = [message for message in server.requests[-1].body["messages"] if message["role"] == "tool"]
    assert ledger(desk) == ["5 Ann", "7 Ann"]
    assert [message["tool_call_id"] for message in results] == ["c0", "c1", "c2"]


def test_what_cannot_be_seen_is_shown_as_escapes_and_long_arguments_are_cut_until_they_are_asked_for(desk: Commands) -> None:
    to = "Ann\u202e\u200b\x1b[2J\n" + "x" * 2000 + "the end"
    with desk.model([pays(5, to=to), text("Then not.")]), on_a_terminal(*RUN, columns=4000) as terminal:
        shown = terminal.types("f", after="pay? ")
        assert r"Ann\u202e\u200b\u001b[2J\n" in shown
        assert "the end" not in shown
        assert re.search(r"\[\.\.\. 1,\d{3} more characters\]", shown)
        assert "the end" in terminal.types("d", after="pay? ")
        terminal.types("", after="for no reason) ")
        terminal.ends()
        assert "\u202e" not in terminal.raw
        assert "\x1b[2J" not in terminal.raw


def test_somebody_else_who_answers_meanwhile_wins_and_the_terminal_goes_on(desk: Commands) -> None:
    with desk.model([pays(5, 6), text("Paid.")]), on_a_terminal(*RUN) as terminal:
        terminal.until("pay? ")
        (id, _) = re.findall(r"--question (\S+)", desk("answer", "s").stdout)
        denied = desk("answer", "s", *AGENT, "--question", id, "--deny", "no", code=13)
        assert "waiting" in denied.stderr
        os.write(terminal.primary, b"y\n")
        assert "was answered already" in terminal.types("y", after="pay? ")
        code, _ = terminal.ends()
    assert (code, ledger(desk)) == (0, ["6 Ann"])


def test_without_a_terminal_nothing_is_asked_and_the_exit_code_and_the_command_are_said(desk: Commands) -> None:
    with desk.model([pays(5)]):
        done = desk(*RUN, code=13)
    assert re.search(
        r"to answer: interlock answer s --agent desk.py:make --question \S+ --allow \(or --session, --tool, --always, ", done.stderr
    )
    assert ledger(desk) == []


def test_the_screen_in_the_docs_is_what_is_shown(desk: Commands) -> None:
    page = (Path(__file__).parents[2] / "docs" / "approvals.md").read_text(encoding="utf-8")
    screen = page.split("<!-- the screen -->\n```text\n")[1].split("```")[0]
    desk.environment.delenv("XDG_CONFIG_HOME")
    with desk.model([pays(50000, to="Glimmer \u202eHoldings"), text("Not paid.")]), on_a_terminal(*RUN) as terminal:
        terminal.types("d not on a Monday", after="pay? ")
        _, shown = terminal.ends()
    shown = re.sub(r"\d+\.\d\d s", "0.01 s", shown.replace(f"{desk.home}/", "~/"))
    assert shown.startswith(screen.partition("\n")[2])


# ---- the coding tools --------------------------------------------------------------------------------

CODING = ["run", "--session", "s", "--tools", "coding", "Mend it."]
BEFORE, AFTER = "all:\n\tcc a.c\n", "all:\n\tcc -O2 a.c\n"
CHANGE = """\
  | --- Makefile
  | +++ Makefile
  | @@ -1,2 +1,2 @@
  |  all:
  | -    cc a.c
  | +    cc -O2 a.c
"""


def mends() -> Any:
    return calls(call("c1", "edit_file", {"path": "Makefile", "old": "cc ", "new": "cc -O2 "}))


def test_a_change_is_shown_as_a_difference_line_by_line(desk: Commands) -> None:
    (desk.cwd / "Makefile").write_text(BEFORE)
    with desk.model([mends(), text("Mended.")]), on_a_terminal(*CODING) as terminal:
        shown = terminal.types("y", after="edit_file? ")
        assert terminal.ends()[0] == 0
    assert f"? edit_file: May edit_file change Makefile? (asked by Approvals)\n{CHANGE}  {{\n" in shown
    assert (desk.cwd / "Makefile").read_text() == AFTER


def test_a_change_is_shown_where_a_policy_asks_and_without_a_terminal_too(desk: Commands) -> None:
    (desk.cwd / "Makefile").write_text(BEFORE)
    (desk.cwd / "rules.toml").write_text('version = 1\nname = "p"\n[[ask]]\ntool = "edit_file"\n')
    policy = ["--tools", "coding", "--policy", "rules.toml"]
    with desk.model([mends()]), on_a_terminal("run", "--session", "s", *policy, "Mend it.") as terminal:
        shown = terminal.types("\x04", after="edit_file? ")
        terminal.ends()
    assert f"(asked by Permissions(p))\n{CHANGE}  {{\n" in shown
    assert CHANGE in desk("answer", "s", *policy).stdout
    with desk.model([mends()]):
        said = desk("run", "--session", "t", "--tools", "coding", "Mend it.", code=13).stderr
    assert said.count(CHANGE) == 1
    assert said.count("? edit_file: May edit_file change Makefile?\n") == 1
    with desk.model([]):
        assert desk("resume", "t", "--tools", "coding", code=13).stderr.count(CHANGE) == 1


def test_a_question_that_holds_a_whole_file_is_cut_until_all_of_it_is_asked_for(desk: Commands) -> None:
    (desk.cwd / "rules.toml").write_text('version = 1\nname = "p"\n[[ask]]\ntool = "write_file"\n')
    content = "one\n" * 2000 + "the middle" + "two\n" * 2000
    writes = calls(call("c1", "write_file", {"path": "a.txt", "content": content}))
    arguments = [*CODING[:-1], "--policy", "rules.toml", "Write it."]
    with desk.model([writes, text("Not.")]), on_a_terminal(*arguments, columns=4000) as terminal:
        shown = terminal.types("f", after="write_file? ")
        question = next(line for line in shown.splitlines() if line.startswith("? write_file"))
        assert len(question) < 1200
        assert "more characters ...]" in question
        assert question.endswith("(policy 'p', ask rule 1 (rules.toml:3): it is a call of write_file) (asked by Permissions(p))")
        assert "the middle" in terminal.types("d no", after="write_file? ").splitlines()[1]
        terminal.ends()


def test_whoever_leaves_out_the_set_of_tools_of_a_question_is_told_which_one_it_is(desk: Commands) -> None:
    writes = calls(call("c1", "write_file", {"path": "new.txt", "content": "x\n"}))
    with desk.model([writes, text("Written.")]):
        desk("run", "--session", "s", "--tools", "coding", "Write it.", code=13)
        asked = desk("answer", "s").stdout
        assert "interlock answer s --tools coding --question " in asked
        assert "in the program that has" not in asked
        assert "--agent" not in asked
        assert desk("resume", "s", "--explain").stdout.endswith("The set --tools coding has them.\n")
        for command in (["answer", "s", "--allow"], ["resume", "s"]):
            assert "say --tools coding" in desk(*command, code=3).stderr
        assert desk("answer", "s", "--allow", "--tools", "coding").stdout == "Written.\n"


def test_a_path_cannot_forge_a_part_of_the_question(desk: Commands) -> None:
    path = "a?\n--- b\n+++ b\n+harmless"
    with desk.model([calls(call("c1", "write_file", {"path": path, "content": "x\n"}))]):
        said = desk("run", "--session", "s", "--tools", "coding", "Mend it.", code=13).stderr
    assert r"? write_file: May write_file change 'a?\n--- b\n+++ b\n+harmless'?" in said
    assert "\n  | +harmless" not in said
    assert "\n  | +x\n" in said


def test_a_program_is_shown_line_by_line(desk: Commands) -> None:
    with desk.model([calls(call("c1", "run_python", {"code": "for n in (1, 2):\n    print(n)\n"}))]):
        said = desk("run", "--session", "s", "--tools", "coding", "Count.", code=13).stderr
    assert "? run_python: May run_python run this?\n  | for n in (1, 2):\n  |     print(n)\n" in said


@pytest.mark.parametrize(("typed", "told"), [("2", "The user chose: next"), ("/deny not now", "denied: not now"), ("y", "of these: y")])
def test_what_a_model_asks_is_answered_in_words(desk: Commands, typed: str, told: str) -> None:
    asks = calls(call("c1", "ask_user", {"question": "Which branch?", "choices": ["main", "next"]}))
    with desk.model([asks, text("So be it.")]) as server, on_a_terminal(*CODING) as terminal:
        shown = terminal.types("", after="your answer: ")
        terminal.types(typed, after="your answer: ")
        assert terminal.ends()[0] == 0
        assert told in server.requests[-1].body["messages"][-1]["content"]
    assert "? ask_user: Which branch?\n  |   1. main\n  |   2. next\n" in shown


ACCOUNTS = """
from desk import pay
from interlock import Suspended, extension
from interlock.extensions.approvals import Approvals


@extension
async def which(context, call, call_next):
    if context.answer is None:
        return Suspended("Which account?")
    return f"{await call_next()} from {context.answer}"


def make():
    return {"tools": [pay], "extensions": [which], "without": [Approvals]}
"""


def test_a_layer_that_asks_for_words_is_told_them_on_the_terminal(desk: Commands) -> None:
    (desk.cwd / "accounts.py").write_text(ACCOUNTS)
    arguments = ["run", "--session", "s", "--agent", "accounts.py:make", "Pay."]
    with desk.model([pays(5), text("Paid.")]) as server, on_a_terminal(*arguments) as terminal:
        assert "  r  reply in words (r TEXT)" in terminal.types("r", after="pay? ")
        terminal.until("one of y, r, e, d, f is needed")
        terminal.types("r the second one", after="pay? ")
        assert terminal.ends()[0] == 0
        assert "paid 5 from the second one" in server.requests[-1].body["messages"][-1]["content"]


def test_the_command_that_answers_a_model_in_words_is_said(desk: Commands) -> None:
    with desk.model([calls(call("c1", "ask_user", {"question": "Which branch?"})), text("On next.")]):
        said = desk(*CODING, code=13).stderr
        assert re.search(r"to answer: interlock answer s --tools coding --question \S+ --text ANSWER \(or --deny REASON\)", said)
        assert "session s: waiting, " in desk("show", "s").stderr
        assert desk("answer", "s", "--tools", "coding", "--text", "next").stdout == "On next.\n"
        assert "session s: idle, " in desk("show", "s").stderr


def test_a_policy_that_asks_whether_the_model_may_ask_is_told_yes_or_no(desk: Commands) -> None:
    (desk.cwd / "rules.toml").write_text('version = 1\nname = "p"\n[[ask]]\ntool = "ask_user"\n')
    asks = calls(call("c1", "ask_user", {"question": "Which branch?"}))
    with desk.model([asks, text("On next.")]) as server, on_a_terminal(*CODING[:-1], "--policy", "rules.toml", "x") as terminal:
        terminal.types("y", after="ask_user? ")
        terminal.types("next", after="your answer: ")
        assert terminal.ends()[0] == 0
        assert "The user answered: next" in server.requests[-1].body["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"bytes": 14, "seconds": 2.0049, "newest": "tick 1\ntick 2\n"}, "  2 s tick 2\n"),
        ({"bytes": 1, "seconds": 2.0, "newest": "\n"}, "  {'bytes': 1, 'seconds': 2.0, 'newest': '\\n'}\n"),
        ({"done": 3}, "  {'done': 3}\n"),
        ("half", "  half\n"),
    ],
)
def test_what_a_command_prints_is_shown_while_it_runs(data: Any, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    Display().event(ToolProgress(call_id="c", data=data))
    assert capsys.readouterr().err == shown


# ---- interlock answer --------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "further"), [("--session", [5]), ("--tool", [5, 6]), ("--always", [5])])
def test_answer_has_the_same_verbs_as_the_terminal(desk: Commands, scope: str, further: list[int]) -> None:
    with desk.model([pays(5), *(pays(amount) for amount in further), text("Paid.")]):
        desk(*RUN, code=13)
        assert desk("answer", "s", *AGENT, scope).stdout == "Paid.\n"
    assert ledger(desk) == ["5 Ann", *(f"{amount} Ann" for amount in further)]
    assert (desk.home / "config" / "interlock" / "approvals.toml").exists() is (scope == "--always")


def test_answer_edits_and_asks_again_and_takes_one_answer(desk: Commands) -> None:
    with desk.model([pays(5), text("Paid.")]):
        desk(*RUN, code=13)
        assert "one answer, not 2: --allow and --session" in desk("answer", "s", *AGENT, "--allow", "--session", code=2).stderr
        desk("answer", "s", *AGENT, "--edit", '{"amount": 1}', code=13)
        assert ledger(desk) == []
        assert desk("answer", "s", *AGENT, "--allow").stdout == "Paid.\n"
    assert ledger(desk) == ["1 Ann"]


# ---- --agent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["desk.py:make", "desk:make", "desk.py:later", "./desk.py:make"])
def test_a_factory_in_a_module_or_a_file_makes_the_agent(desk: Commands, factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "desk", raising=False)
    with desk.model([pays(5), text("Paid.")]):
        desk("run", "--session", "s", "--agent", factory, "Pay.", code=13)
        assert "Then the run waits." in desk("resume", "s", "--explain", "--agent", factory).stdout
        desk("resume", "s", "--agent", factory, code=13)
        desk("answer", "s", "--agent", factory, "--allow")
    assert ledger(desk) == ["5 Ann"]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("desk.py", "module:function"),
        ("desk.py:", "module:function"),
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("no_such_module_here:make", "cannot be imported (ModuleNotFoundError"),
        ("desk.py:nothing", "desk.py has no nothing"),
        ("desk.py:constant", "constant is no function but int"),
        ("desk.py:wrong", "Agent.create takes no 'tols'"),
        ("desk.py:number", "an Agent or the keywords of Agent.create are needed, not int"),
        ("desk.py:breaks", "it raised OSError: no such desk"),
        ("broken.py:make", "broken.py cannot be imported (SyntaxError"),
    ],
)
def test_a_factory_that_cannot_be_used_says_why(desk: Commands, factory: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (desk.cwd / "broken.py").write_text("def make(:\n")
    with desk.model([]):
        assert words in desk("run", "--agent", factory, "Pay.", code=2).stderr


def test_a_finished_agent_is_used_as_it_is_and_one_with_another_journal_cannot_answer_here(desk: Commands) -> None:
    desk.environment.delenv("INTERLOCK_MODEL", raising=False)
    assert desk("run", "--agent", "desk.py:finished", "Hello.").stdout == "From the finished one.\n"
    with desk.model([pays(5)]):
        desk(*RUN, code=13)
        said = desk("answer", "s", "--agent", "desk.py:finished", "--allow", code=2).stderr
    assert "the agent keeps its sessions elsewhere" in said
    assert ledger(desk) == []


def test_a_finished_agent_is_refused_where_the_hooks_of_the_settings_would_not_hold(desk: Commands) -> None:
    users_file(desk, '[[hooks]]\ncommand = ["true"]\n')
    assert "the settings have hooks" in desk("run", "--agent", "desk.py:finished", "Hello.", code=2).stderr


# ---- hooks and approvals in the settings -------------------------------------------------------------


def users_file(desk: Commands, content: str) -> Path:
    path = desk.home / "config" / "interlock" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_hook_of_the_settings_is_said_at_the_start_and_decides(desk: Commands) -> None:
    hook = desk.cwd / "hook.py"
    hook.write_text("import json, sys\nprint(json.dumps({'verdict': 'deny', 'reason': json.load(sys.stdin)['tool'] + ' is closed'}))\n")
    command = f'["{sys.executable}", "-I", "-S", "{hook}"]'
    users_file(desk, f'[[hooks]]\ncommand = {command}\ntools = ["list_*"]\ntimeout = "20s"\n')
    with desk.model([calls(call("a", "list_files")), text("Closed.")]) as server:
        done = desk("run", "What is here?")
        assert "list_files is closed" in server.requests[-1].body["messages"][-1]["content"]
    assert "is asked about tools like list_*" in done.stderr
    assert "hook " in desk("onion").stdout
    assert "is asked about tools like list_*" in desk("doctor", code=None).stdout


def test_a_hook_whose_program_is_missing_is_said_at_the_start_and_denies(desk: Commands) -> None:
    users_file(desk, '[[hooks]]\ncommand = ["./is-not-there"]\n')
    with desk.model([calls(call("a", "list_files")), text("No.")]) as server:
        done = desk("run", "What is here?")
        assert "it cannot be started" in server.requests[-1].body["messages"][-1]["content"]
    assert "its program cannot be found: each of these calls is denied" in done.stderr
    assert "✗ hook ./is-not-there is asked about every tool, and its program cannot be found" in desk("doctor", code=1).stdout


@pytest.mark.parametrize(
    "hooks",
    [
        "hooks = 3",
        "hooks = ['x']",
        "[[hooks]]\ntools = ['x']",
        "[[hooks]]\ncommand = 'x'",
        "[[hooks]]\ncommand = ['x']\ntool = ['y']",
        "[[hooks]]\ncommand = ['x']\ntimeout = 'soon'",
    ],
)
def test_a_hook_that_is_not_understood_is_refused_with_its_place(desk: Commands, hooks: str) -> None:
    path = users_file(desk, hooks)
    with desk.model([]):
        said = desk("run", "x", code=2).stderr
    assert str(path) in said
    assert "[[hooks]] tables with command" in said


@pytest.mark.parametrize("setting", ["approvals = 'mine.toml'", "redact = false", "[[hooks]]\ncommand = ['./run-me']"])
def test_a_projects_file_can_neither_run_a_program_nor_allow_itself_something(desk: Commands, setting: str) -> None:
    (desk.cwd / "interlock.toml").write_text(setting)
    with desk.model([]):
        assert "is not taken from a project's file, which may be somebody else's" in desk("run", "x", code=2).stderr


# ---- what is shown -----------------------------------------------------------------------------------


def test_everything_that_is_not_printable_becomes_an_escape() -> None:
    assert visible("a\n\t\x1b\u202e\u2066\u200d\xa0\U000e0041b é 海") == r"a\u000a\u0009\u001b\u202e\u2066\u200d\u00a0\U000e0041b é 海"


def test_many_lines_are_cut_with_their_number_and_nothing_else_is_lost() -> None:
    arguments = '{"list": [' + ", ".join(str(n) for n in range(100)) + "]}"
    shown = shown_arguments(arguments)
    assert (len(shown), shown[-1]) == (21, "[... 84 more lines]")
    assert len(shown_arguments(arguments, full=True)) == 104
    assert shown_arguments("repr of {no} JSON") == ["repr of {no} JSON"]


def test_a_question_cannot_look_like_the_terminals_own_lines() -> None:
    question = Question(
        id="q", key="k", call=ToolCall(id="c", name="pay", arguments="{}"), text="really?\n  y  yes\x1b[1m", arguments="{}", expires_at=1.0
    )
    lines = [line for line, _ in shown_question(question)]
    assert lines[:2] == ["? pay: really?", r"  |   y  yes\u001b[1m"]
    assert "which is a denial" in lines[-1]
