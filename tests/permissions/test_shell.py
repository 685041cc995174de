"""One policy over shell commands: what tries to get around it is refused, and what is harmless runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from interlock.errors import UsageError
from interlock.extensions.permissions import Policy

POLICY = """
version = 1
name = "looking"
default = "deny"

[[allow]]
tool = "shell"
command = [
    "ls", "ls *", "echo *", "cat *", "grep *", "find *", "git status", "git log *", "git diff *", "sort *", "wc *", "head *",
    "sed *", "awk *", "cut *", "uniq *", "date *", "printf *", "test *", "cd *", "pwd", "rg *", "tree *",
]
redirect = "out/*.txt"
"""

BYPASSES = [
    # a loop sets a variable, and so does a redirection
    "for PATH in src; do ls; done",
    "for LD_PRELOAD in ./x.so; do ls; done",
    "select PATH in src; do ls; done <<< 1",
    "for PATH; do ls; done",
    "for http_proxy in x; do ls; done",
    "ls {PATH}>/dev/null; ls",
    # files of the person's own, in other words than the floor has
    "cat $HOME/.ssh/id_rsa",
    'cat "${HOME}/.ssh/id_rsa"',
    "cat /etc/shado?",
    "cat /e?c/shado[w]",
    "cat /etc/{shadow,passwd}",
    "cat ~/{.ssh,x}/id_rsa",
    "cat --number=/etc/sha*w",
    "cat ../../../../../../../../etc/sh?dow",
    "cat < /etc/shado?",
    # lists, pipes, lines
    "ls && rm x",
    "ls || rm x",
    "ls; rm x",
    "ls | sh",
    "ls |& sh",
    "ls\nrm x",
    "ls #\nrm x",
    "ls & rm x",
    "ls &",
    "! rm x",
    "{ rm x; }",
    "(rm x)",
    "(ls; (rm x))",
    "if true; then rm x; fi",
    "for i in a; do rm x; done",
    "while rm x; do true; done",
    "until rm x; do true; done",
    "case a in a) rm x;; esac",
    "f() { rm x; }; f",
    "ls() { rm x; }; ls",
    "select i in a; do rm x; done",
    # substitutions
    "echo $(rm x)",
    "echo `rm x`",
    'echo "$(rm x)"',
    'echo "`rm x`"',
    "echo ${y:-$(rm x)}",
    'echo "${y:=$(rm x)}"',
    "echo $((a[$(rm x)]))",
    "cat <(rm x)",
    "ls > >(rm x)",
    "cat <<EOF\n$(rm x)\nEOF",
    "cat <<-EOF\n\t$(rm x)\n\tEOF",
    "cat <<EOF\n`rm x`\nEOF",
    "cat <<'A B'\nhi\nA B\nrm x",
    "cat <<< $(rm x)",
    "echo ${x@P}",
    "echo ${!x}",
    "cat <<< $\nrm x",
    "echo $ \nrm x",
    # redirections
    "echo hi > f",
    "echo hi >> f",
    "echo hi >| f",
    "ls &> f",
    "ls 2> f",
    "cat < /etc/passwd",
    "echo hi > out/../f.txt",
    "cd / && echo hi > out/a.txt",
    "echo hi > $f",
    "echo hi > /dev/tcp/10.0.0.1/80",
    "exec 3<>/dev/tcp/10.0.0.1/80",
    # names in disguise
    "/bin/rm x",
    "r\\m x",
    'r"m" x',
    "r''m x",
    "$'rm' x",
    "$'\\x72m' x",
    "$x y",
    "${x} y",
    "$(echo rm) x",
    "{rm,x}",
    "/bin/r? x",
    "/bin/r* x",
    "r\\\nm x",
    "~/bin/ls",
    "./ls",
    # wrappers
    "env rm x",
    "env -S 'rm x'",
    "env FOO=1 rm x",
    "command rm x",
    "builtin eval 'rm x'",
    "exec rm x",
    "nohup rm x",
    "nice -n 5 rm x",
    "timeout 5 rm x",
    "time rm x",
    "setsid rm x",
    "stdbuf -o0 rm x",
    "sudo ls",
    "sudo rm x",
    "doas rm x",
    "coproc rm x",
    "ls | xargs rm",
    "ls | xargs -I{} sh -c '{}'",
    "ls | xargs sh -c",
    "ls | xargs --replace rm ls {}",
    "ls | xargs -0I{} sh -c 'ls {}'",
    "ls | xargs -I @ sh -c 'ls @'",
    "ls | xargs -I@ @ x",
    "ls | xargs -i rm {}",
    "ls | xargs -n 1 rm",
    "zsh -c ls",
    "sh -c 'rm x'",
    "bash -c 'ls; rm x'",
    'bash -c "$x"',
    "bash -lc 'ls'",
    "bash script.sh",
    "sh < script.sh",
    "eval 'rm x'",
    'eval "$x"',
    "source f",
    ". f",
    "trap 'rm x' EXIT",
    "busybox rm x",
    "python -c 'import os'",
    # what a command does when it is told to
    "find . -exec rm {} \\;",
    "find . -exec ls {} \\; -exec rm {} \\;",
    "find . -execdir rm {} +",
    "find . -ok rm {} \\;",
    "find . -delete",
    "find . -fprint f",
    "find . $x",
    "git -c alias.x='!rm x' x",
    "git -c core.pager='rm x' log",
    "git --exec-path=. status",
    "git log --output=f",
    "git log --outp=f",
    "git diff --ext-diff",
    "git log $x",
    "git push",
    "sort -o f g",
    "sort --compress-program=rm f",
    "sort -uo f g",
    "rg --pre rm x",
    "tree -o f",
    "sed -i s/a/b/ f",
    "sed 's/a/rm x/e' f",
    "sed '1e rm x' f",
    "sed 'w f' g",
    "awk 'BEGIN{system(\"rm x\")}'",
    "awk '{print > \"f\"}' g",
    "awk -f f g",
    'awk \'/"/ {print $1 > "f"} /"/\' g',
    "uniq a b",
    "nice -n 5 -x rm x",
    "timeout --foo 5 ls",
    "date -s 0",
    "printf -v 'a[$(rm x)]' y",
    "test -v 'a[$(rm x)]'",
    "[[ 'a[$(rm x)]' -eq 1 ]]",
    "[ -v 'a[$(rm x)]' ]",
    "((a[$(rm x)]))",
    "for ((i=0;i<1;i++)); do ls; done",
    "let 'a[$(rm x)]'",
    # the environment
    "PATH=. ls",
    "LD_PRELOAD=./x.so ls",
    "GIT_PAGER='rm x' git log",
    "IFS=x ls",
    "x=rm; $x y",
    "export PATH=.",
    "declare x=1",
    "unset 'a[$(rm x)]'",
    "a[$(rm x)]=1 ls",
    "alias ls=rm",
    # what cannot be read
    "ls 'x",
    "ls )",
    "ls \x00rm",
    "ls\u00a0rm",
    "ls \u202erm",
    "ls \x1b[2K",
    "",
    "   ",
    "# nothing",
    "x" * 70_000,
]

HARMLESS = [
    "ls",
    "ls -la",
    "ls -la src tests",
    "ls *.py",
    "git status",
    "git log --oneline -n 5",
    "git log --format='%h %s; rm x'",
    "git diff HEAD~1 -- src/a.py",
    'echo "a && b"',
    "echo 'a; rm x | sh > f'",
    'echo "$HOME"',
    "echo a\\;b",
    "echo '$(rm x)'",
    "echo '`rm x`'",
    'echo "\\$(rm x)"',
    "echo a # rm x",
    "cat a b",
    "cat a | grep b | wc -l",
    "cat a && cat b",
    "ls; pwd",
    "ls\npwd",
    "cat <<'EOF'\n$(rm x); `rm x`\nEOF",
    "cat <<EOF\nplain text; no command\nEOF",
    "cat <<< 'rm x'",
    "grep -rn 'rm -rf' src",
    "grep -E 'a|b' f",
    "find . -name '*.py' -type f",
    "find . -name '*.py' -exec grep -l x {} +",
    "find . -name '*.py' | xargs grep x",
    "sort -u f | uniq -c | head -n 3",
    "sed -n '1,20p' f",
    "sed 's/a/b/g' f",
    "awk '{print $1}' f",
    "awk -F: '{print $1, $3}' f",
    "cut -d: -f1 f",
    "ls 2>/dev/null",
    "ls > /dev/null 2>&1",
    "echo hi > out/a.txt",
    "env LC_ALL=C sort f",
    "LC_ALL=C sort f",
    "timeout 5 git status",
    "nice ls",
    "sh -c 'ls | wc -l'",
    "for f in a b; do cat $f; done",
    "if test -f a; then cat a; else echo none; fi",
    "if [ -f a ]; then cat a; fi",
    "[[ -n $x ]] && ls",
    "while true; do ls; break; done",
    "(cd src && ls)",
    "{ ls; pwd; }",
    "echo $((1 + 2))",
    "echo $(git status)",
    "ls || true",
    "ls \\\n  -la",
    "date +%Y",
    "printf '%s\\n' a b",
    "echo {a,b}",
    "echo ${x:-none}",
    "rg 'a.*b' src",
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return Policy.parse(POLICY, root=tmp_path_factory.mktemp("root"))


@pytest.mark.parametrize("command", BYPASSES, ids=lambda command: repr(command)[:60])
def test_a_command_that_tries_to_get_around_the_rules_is_refused(policy: Policy, command: str) -> None:
    verdict = policy.decide("shell", {"command": command})
    assert verdict.decision == "deny"
    assert "looking" in str(verdict) or "safety floor" in str(verdict)


@pytest.mark.parametrize("command", HARMLESS, ids=lambda command: repr(command)[:60])
def test_a_harmless_command_is_allowed_under_the_same_policy(policy: Policy, command: str) -> None:
    verdict = policy.decide("shell", {"command": command})
    assert verdict.decision == "allow", str(verdict)


def test_there_are_enough_of_both() -> None:
    assert len(set(BYPASSES)) == len(BYPASSES) >= 60
    assert len(set(HARMLESS)) == len(HARMLESS) >= 30


PUSHES = [
    "git push",
    "git push origin main",
    "git -C sub push",
    "git --no-pager push --force",
    "git -c a.b=c push",
    "/usr/bin/git push",
    'g"i"t push',
    "g\\it push",
    "git pu''sh",
    "$x push",
    "git $x",
    "`echo git` push",
    "ls && git push",
    "ls; git push",
    "ls | git push",
    "echo $(git push)",
    "cat <<EOF\n$(git push)\nEOF",
    "f() { git push; }; f",
    "env A=1 git push",
    "env -i git push",
    "nohup git push",
    "timeout -k 1 5 git push",
    "sudo -u me git push",
    "ssh host git push",
    "ssh host 'cd x && git push'",
    "su -c 'git push'",
    "sh -c 'git push'",
    "bash -lc 'git push'",
    "sh -c \"sh -c 'git push'\"",
    "eval git push",
    "eval 'git' 'push'",
    "xargs git push",
    "echo push | xargs git",
    "find . -exec git push \\;",
    "watch git push",
    "docker run x git push",
    "trap 'git push' EXIT",
    "coproc git push",
    "time git push",
    "! git push",
    "echo 'git push' | sh",
    "bash <<EOF\ngit push\nEOF",
    "bash x.sh",
    "git push (",
    "GIT_DIR=x git push",
    "git push > /dev/null &",
]
NO_PUSHES = ["git status", "git stash push", "git commit -m push", "git log --grep push", "echo git push", "ls push", "echo 'git push'"]


@pytest.mark.parametrize("command", PUSHES)
def test_a_denied_command_is_found_wherever_it_stands(tmp_path: Path, command: str) -> None:
    policy = Policy.parse('version = 1\nname = "p"\ndefault = "allow"\n[[deny]]\ntool = "*"\ncommand = "git push"\n', root=tmp_path)
    assert policy.decide("shell", {"command": command}).decision == "deny"


@pytest.mark.parametrize("command", NO_PUSHES)
def test_a_denied_command_is_not_found_where_it_is_not(tmp_path: Path, command: str) -> None:
    policy = Policy.parse('version = 1\nname = "p"\ndefault = "allow"\n[[deny]]\ntool = "*"\ncommand = "git push"\n', root=tmp_path)
    assert policy.decide("shell", {"command": command}).decision == "allow"


@pytest.mark.parametrize(
    ("pattern", "command", "denied"),
    [
        ("rm -rf", "rm -fr x", True),
        ("rm -rf", "rm -r -f x", True),
        ("rm -rf", "rm x -rf", True),
        ("rm -rf", "rm -r x", False),
        ("rm -rf *", "rm -rf x", True),
        ("git push --force", "git push origin --force", True),
        ("git push --force", "git push --forc", True),
        ("git push --force", "git push origin", False),
        ("git *", "git", True),
        ("mkfs.* *", "mkfs.ext4 /dev/sda", True),
        ("*", "ls", True),
    ],
)
def test_options_of_a_denied_command_count_in_any_order_and_spelling(tmp_path: Path, pattern: str, command: str, denied: bool) -> None:
    policy = Policy.parse(f'version = 1\nname = "p"\ndefault = "allow"\n[[deny]]\ntool = "*"\ncommand = "{pattern}"\n', root=tmp_path)
    floor = "safety floor" in str(policy.decide("shell", {"command": command}))
    assert (policy.decide("shell", {"command": command}).decision == "deny" and not floor) == denied


@pytest.mark.parametrize(
    ("rule", "command", "decision"),
    [
        ('command = "make *"', "make &", "deny"),
        ('command = "make *"\nsyntax = "background"', "make &", "allow"),
        ('command = "diff *"', "diff <(make a) <(make b)", "deny"),
        ('command = ["diff *", "make *"]\nsyntax = "process-substitution"', "diff <(make a) <(make b)", "allow"),
        ('command = "diff *"\nsyntax = "process-substitution"', "diff <(make a) b", "deny"),
        ('command = "make *"', "DEBUG=1 make", "deny"),
        ('command = "make *"\nsyntax = "assignment"', "DEBUG=1 make", "allow"),
        ('command = "make *"\nsyntax = "assignment"', "PATH=. make", "deny"),
        ('command = "make *"\nredirect = "log/**"', "make > log/a/b", "allow"),
        ('command = "make *"\nredirect = "log/**"', "make > other", "deny"),
        ('command = "*"', "anything at all", "allow"),
        ('command = "*"', "$x", "deny"),
        ('command = "sudo make install"', "sudo make install", "allow"),
        ('command = "sudo make install"', "sudo make", "deny"),
        ('command = "find . -delete"', "find . -delete", "allow"),
        ('command = "git log *"', "git log", "allow"),
        ('command = "git log"', "git log x", "deny"),
        ('command = "npm run test:* *"', "npm run test:unit -- -x", "allow"),
        ('command = "npm run test:* *"', "npm run build", "deny"),
    ],
)
def test_what_a_rule_lists_it_allows_and_nothing_more(tmp_path: Path, rule: str, command: str, decision: str) -> None:
    policy = Policy.parse(f'version = 1\nname = "p"\n[[allow]]\ntool = "shell"\n{rule}\n', root=tmp_path)
    assert policy.decide("shell", {"command": command}).decision == decision


@pytest.mark.parametrize("command", ["ls;" * 20_000, "(" * 5_000, "$(" * 3_000 + ")" * 3_000, "ls " + "{a,b}" * 9_000], ids=len)
def test_a_command_that_takes_long_to_read_is_not_read(tmp_path: Path, command: str) -> None:
    """The check runs on the event loop: work is bounded by counts, and past them nothing is allowed."""
    policy = Policy.parse('version = 1\nname = "p"\n[[allow]]\ntool = "shell"\ncommand = "ls"\n', root=tmp_path)
    began = time.process_time()
    assert policy.decide("shell", {"command": command}).decision == "deny"
    assert time.process_time() - began < 2.0


def test_more_words_behind_a_command_that_runs_others_than_are_looked_at_are_refused(tmp_path: Path) -> None:
    policy = Policy.parse('version = 1\nname = "p"\n[[allow]]\ntool = "shell"\ncommand = "sudo *"\n', root=tmp_path)
    with pytest.raises(UsageError, match="more than 200 words behind sudo"):
        policy.decide("shell", {"command": "sudo " * 2_000 + "ls"})


def test_the_commands_of_one_call_may_be_allowed_by_several_rules(tmp_path: Path) -> None:
    rules = ('command = "ls"', 'command = "make"\nsyntax = "background"')
    text = 'version = 1\nname = "p"\n' + "".join(f'[[allow]]\ntool = "shell"\n{rule}\n' for rule in rules)
    policy = Policy.parse(text, root=tmp_path)
    assert policy.decide("shell", {"command": "ls; make"}).decision == "allow"
    assert policy.decide("shell", {"command": "ls &"}).decision == "deny", "what one rule allows for make is not allowed for ls"


@pytest.mark.parametrize(
    ("value", "decision"),
    [
        (["ls", "-la"], "allow"),
        (["rm", "x"], "deny"),
        (["sh", "-c", "rm x"], "deny"),
        (["ls", ";rm x"], "deny"),
        (["ls", "$(rm x)"], "deny"),
        ([], "deny"),
        ([1], "deny"),
        ({"a": "ls"}, "deny"),
        (5, "deny"),
        (None, "deny"),
    ],
)
def test_a_command_may_come_as_a_list_and_every_reading_of_it_counts(tmp_path: Path, value: object, decision: str) -> None:
    policy = Policy.parse('version = 1\nname = "p"\n[[allow]]\ntool = "shell"\ncommand = "ls *"\n', root=tmp_path)
    assert policy.decide("shell", {"command": value}).decision == decision


def test_several_commands_in_one_call_are_each_looked_at(tmp_path: Path) -> None:
    policy = Policy.parse('version = 1\nname = "p"\n[[allow]]\ntool = "shell"\ncommand = "ls *"\n', root=tmp_path)
    assert policy.decide("shell", {"commands": ["ls", "ls a"]}).decision == "allow"
    assert policy.decide("shell", {"commands": ["ls", "rm x"]}).decision == "deny"
    assert policy.decide("shell", {"command": "ls", "setup_command": "rm x"}).decision == "deny"


def test_the_words_of_a_command_may_stand_beside_it(tmp_path: Path) -> None:
    rules = '[[deny]]\ntool = "*"\ncommand = "git push *"\n[[allow]]\ntool = "shell"\ncommand = ["git *", "ls"]\n'
    policy = Policy.parse(f'version = 1\nname = "p"\n{rules}', root=tmp_path)
    for arguments, decision in (
        ({"command": "git", "args": ["status"]}, "allow"),
        ({"command": "git", "args": []}, "allow"),
        ({"command": "git", "args": ["push"]}, "deny"),
        ({"run": {"command": "git", "arguments": ["push", "--force"]}}, "deny"),
        ({"command": "git", "args": "push"}, "deny"),
        ({"command": "ls", "args": ["-l"]}, "deny"),
        ({"command": "git", "args": [1]}, "deny"),
    ):
        assert policy.decide("shell", arguments).decision == decision, arguments


@pytest.mark.parametrize(
    "command",
    [
        "ruff check -o x",
        "ruff check --output-file=x",
        "ruff format --cache-dir /x",
        "pytest --log-file=x",
        "pytest --pdbcls=a:B",
        "find . -d*",
    ],
)
def test_a_star_does_not_stand_for_what_writes_or_runs_something(tmp_path: Path, command: str) -> None:
    rules = '[[allow]]\ntool = "shell"\ncommand = ["ruff check *", "ruff format *", "pytest *", "find *"]\n'
    policy = Policy.parse(f'version = 1\nname = "p"\n{rules}', root=tmp_path)
    assert policy.decide("shell", {"command": command}).decision == "deny"
