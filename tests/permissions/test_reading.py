"""A policy file with a mistake is not used, and the mistake is named with its place."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import UsageError
from interlock.extensions.permissions import Policy, grammar

HEAD = 'version = 1\nname = "p"\n'

WRONG: list[tuple[str, int, str]] = [
    ("nonsense", 0, "this is not TOML"),
    ('name = "p"\n', 0, "version = 1 is needed"),
    ('version = 2\nname = "p"\n', 1, "version = 1 is needed"),
    ('version = true\nname = "p"\n', 1, "version = 1 is needed"),
    ("version = 1\n", 0, "name is needed"),
    ("version = 1\nname = 5\n", 2, "name is needed, as text that is not empty, not 5"),
    ('version = 1\nname = "a/b"\n', 2, "name 'a/b'"),
    (HEAD + 'default = "maybe"\n', 3, "default must be deny, ask or allow"),
    (HEAD + 'defualt = "deny"\n', 3, "no key 'defualt'; did you mean default?"),
    (HEAD + 'root = "nowhere"\n', 3, "is not a directory"),
    (HEAD + '[allow]\ntool = "t"\n', 0, "allow is a list of tables: write [[allow]]"),
    (HEAD + '[[allow]]\ntols = "t"\n', 4, "an allow rule has no key 'tols'; did you mean tool?"),
    (HEAD + "[[allow]]\n", 3, "tool is needed"),
    (HEAD + '[[allow]]\ntool = ""\n', 4, "tool has an empty pattern"),
    (HEAD + "[[allow]]\ntool = []\n", 4, "tool is needed, as a pattern or a list of patterns"),
    (HEAD + "[[allow]]\ntool = 5\n", 4, "not 5"),
    (HEAD + '[[allow]]\ntool = ["a", "a"]\n', 4, "names something twice"),
    (HEAD + '[[allow]]\ntool = "read file"\n', 4, "can never match"),
    (HEAD + '[[allow]]\ntool = "t"\npath = " "\n', 5, "path has an empty pattern"),
    (HEAD + '[[allow]]\ntool = "t"\npath = "../x"\n', 5, "can never match: a path with '..'"),
    (HEAD + '[[allow]]\ntool = "t"\npath = "https://x/"\n', 5, "is a URL: use host"),
    (HEAD + '[[allow]]\ntool = "t"\npath = {}\n', 5, "path is empty"),
    (HEAD + '[[allow]]\ntool = "t"\nhost = "http://"\n', 5, "is no host"),
    (HEAD + '[[allow]]\ntool = "t"\ncommand = ""\n', 5, "command has an empty pattern"),
    (HEAD + '[[allow]]\ntool = "t"\ncommand = "ls \'"\n', 5, "command"),
    (HEAD + '[[allow]]\ntool = "t"\ncommand = "ls && rm"\n', 5, "can never match: a pattern is one command"),
    (HEAD + '[[allow]]\ntool = "t"\ncommand = "ls > f"\n', 5, "can never match"),
    (HEAD + '[[allow]]\ntool = "t"\ncommand = "A=1 ls"\n', 5, "can never match"),
    (HEAD + '[[allow]]\ntool = "t"\nsyntax = "background"\n', 5, "syntax belongs to command"),
    (HEAD + '[[allow]]\ntool = "t"\ncommand = "ls"\nsyntax = "magic"\n', 6, "syntax 'magic': there are"),
    (HEAD + '[[deny]]\ntool = "t"\ncommand = "ls"\nsyntax = "background"\n', 6, "syntax is not for a deny rule"),
    (HEAD + '[[deny]]\ntool = "t"\nexpires = 5\n', 5, "expires is not for a deny rule"),
    (HEAD + '[[ask]]\ntool = "t"\nexpires = 0\n', 5, "a number of seconds above 0"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = 5\n', 5, "arguments is a table"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {}\n', 5, "arguments is a table"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = {}}\n', 5, "an empty comparison"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = {over = 1}}\n', 5, "over is no comparison"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = {min = "1"}}\n', 5, "min takes a number"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = {min = 5, max = 4}}\n', 5, "the rule can never match"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = {above = 5, max = 5}}\n', 5, "the rule can never match"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = []}\n', 5, "a list of values that is not empty"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = ""}\n', 5, "like takes a pattern"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = {absent = true, min = 1}}\n', 5, "absent = true stands alone"),
    (HEAD + '[[allow]]\ntool = "t"\narguments = {n = 2026-01-01}\n', 5, "nothing that JSON has"),
    (HEAD + '[[allow]]\ntool = "t"\nexact = 5\n', 5, "exact is a table"),
    (HEAD + '[[allow]]\ntool = "t"\npath = "a"\nexact = {}\n', 6, "it goes with no path"),
    (HEAD + '[[allow]]\ntool = "t"\nname = "x"\n[[ask]]\ntool = "s"\nname = "x"\n', 3, "the name 'x' is that of ask rule 1"),
    (HEAD + '[[deny]]\ntool = "*"\n[[allow]]\ntool = "t"\n', 5, "this allow rule can never match: deny rule 1"),
    (HEAD + '[[deny]]\ntool = "t*"\n[[ask]]\ntool = ["ta", "tb*"]\npath = "x"\n', 5, "this ask rule can never match"),
    (HEAD + '[[allow]]\ntool = "t"\n[[allow]]\ntool = "t"\npath = "x"\n', 5, "this allow rule can never match: allow rule 1"),
    (HEAD + '[[allow]]\ntool = "t"\npath = "x"\n[[allow]]\ntool = "t"\npath = "x"\n', 6, "can never match"),
    (HEAD + '[[example]]\ntool = "t"\nexpect = "yes"\n', 5, "expect must be deny, ask or allow"),
    (HEAD + '[[example]]\ntool = "t"\narguments = 5\nexpect = "deny"\n', 5, "arguments is a table"),
    (HEAD + '[[example]]\ntool = "t"\nexpected = "deny"\n', 5, "did you mean expect?"),
    (HEAD + '[[example]]\ntool = "t"\nexpect = "allow"\n', 3, "expected allow, and it is deny"),
]


@pytest.mark.parametrize(("text", "line", "says"), WRONG, ids=[f"{at}: {says[:50]}" for at, (_, _, says) in enumerate(WRONG)])
def test_a_mistake_is_named_with_its_place_and_the_policy_is_not_used(tmp_path: Path, text: str, line: int, says: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        Policy.load(file)
    said = str(caught.value)
    assert says in said
    assert (f"{file}:{line}:" if line else f"{file}") in said


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Policy.load(tmp_path / "none.toml")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        Policy.load(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b"#" * 1024 * 1024 + b"\n")
    with pytest.raises(UsageError, match="at most"):
        Policy.load(tmp_path / "large")


def test_every_example_that_does_not_come_true_is_named() -> None:
    text = HEAD + '[[allow]]\ntool = "t"\n' + '[[example]]\ntool = "t"\nexpect = "deny"\n' * 2
    with pytest.raises(UsageError, match=r"policy:5: t: expected deny(?s:.*)policy:8: t: expected deny"):
        Policy.parse(text)


def test_relative_paths_are_below_the_root_that_the_file_or_the_caller_names(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "src").mkdir()
    file = tmp_path / "rules" / "p.toml"
    file.write_text(HEAD + 'root = "../src"\n[[allow]]\ntool = "t"\npath = "a"\n')
    assert Policy.load(file).root == (tmp_path / "src").resolve()
    assert Policy.load(file, root=tmp_path).root == tmp_path.resolve()
    file.write_text(HEAD)
    assert Policy.load(file).root == Path.cwd().resolve()


def test_without_the_grammar_a_policy_over_commands_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("tree_sitter"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    grammar.language.cache_clear()
    try:
        with pytest.raises(UsageError, match=r"pip install 'interlock\[guards\]'"):
            Policy.parse(HEAD + '[[deny]]\ntool = "t"\ncommand = "rm"\n')
        policy = Policy.parse(HEAD + '[[allow]]\ntool = "t"\n')
        assert policy.decide("t", {"command": "view"}).decision == "allow", "a plain word needs no grammar"
        with pytest.raises(UsageError, match="grammar"):
            policy.decide("t", {"command": "ls -la"})
    finally:
        grammar.language.cache_clear()


def test_a_policy_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(HEAD + '[[deny]]\ntool = "t"\n')
    policy = Policy.load(file)
    assert str(policy) == f"policy 'p' ({policy.digest}, {file}): 1 deny, 0 ask, 0 allow; otherwise deny"
    file.write_text(HEAD + '[[deny]]\ntool = "s"\n')
    assert Policy.load(file).digest != policy.digest


@pytest.mark.parametrize("name", ["review", "coding", "payments"])
def test_the_example_policies_load_and_their_examples_come_true(name: str) -> None:
    policy = Policy.load(Path(__file__).parent.parent.parent / "examples" / "policies" / f"{name}.toml")
    assert policy.name == name
    assert len(policy.examples) >= 7
    assert {"allow", "deny"} <= {example.expect for example in policy.examples}
