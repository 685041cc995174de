"""The words of bash's grammar that ``shell`` knows, and what makes a text more than text."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ...errors import UsageError

if TYPE_CHECKING:
    from tree_sitter import Language, Parser

__all__ = [
    "BLANK",
    "CONTROL",
    "ESCAPED",
    "EXPANDS",
    "EXPANSION",
    "GLOB",
    "KEYWORDS",
    "LINE_JOINED",
    "LOOP_NAME",
    "LOOSE",
    "MOVES",
    "NAME",
    "NUMERIC_TESTS",
    "REDIRECTS",
    "SETS_NAME",
    "SUM",
    "WORDS",
    "GrammarMissing",
    "braces",
    "check_grammar",
    "language",
    "parser",
]


class GrammarMissing(UsageError):
    """The shell grammar is not installed."""


def parser() -> Parser:
    """A parser of its own for each text: one cannot be shared by threads. Raises GrammarMissing."""
    found = language()
    from tree_sitter import Parser

    return Parser(found)


@cache
def language() -> Language:
    """Bash's, loaded once. Raises GrammarMissing."""
    try:
        import tree_sitter_bash
        from tree_sitter import Language
    except ImportError as error:
        raise GrammarMissing(
            "shell commands are read with bash's grammar, which is not installed: pip install 'interlock[guards]'"
        ) from error
    return Language(tree_sitter_bash.language())


def check_grammar() -> None:
    """Raises GrammarMissing."""
    language()


def braces(text: str) -> bool:
    """Whether ``{a,b}`` or ``{1..3}`` may be in it, which makes several words of one."""
    return "{" in text and ("," in text or ".." in text)


# A backslash and a line break vanish for the shell, and end a word for the grammar.
LINE_JOINED = re.compile(r"\S\\\n\S")
# {PATH}>file sets PATH to a number.
SETS_NAME = re.compile(r"(?<!\$)\{[^\s{}$]+\}[<>]")
BLANK = re.compile(rb"(?:[ \t\n]|\\\n)*")
ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# What an unquoted word cannot hold as it is.
LOOSE = re.compile(r"[\s;|&<>()`$\"']")
# What a shell expands inside double quotes and here-documents.
EXPANDS = re.compile(r"(?:\\.)|(\$[A-Za-z0-9_{(\[@*#?$!-]|`)", re.DOTALL)
# No program looks at a variable of the environment with such a name, proxies aside.
LOOP_NAME = re.compile(r"(?!.*_proxy$)[a-z_][a-z0-9_]*|[A-Z]")
GLOB = re.compile(r"[*?\[]")
NAME = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
EXPANSION = re.compile(
    r"\$\{#?[A-Za-z_][A-Za-z0-9_]*(?:(?::?[-+?]|##?|%%?|//?|/[#%]|\^\^?|,,?)[^@]*|:[0-9]+(?::[0-9]+)?)?\}|\$\{[0-9@*#?]\}", re.DOTALL
)
SUM = re.compile(r"[0-9+*/%() \t<>=!&|^~?:,-]*")
NUMERIC_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
CONTROL = frozenset(
    (
        *("program", "list", "pipeline", "subshell", "compound_statement", "do_group", "if_statement"),
        *("elif_clause", "else_clause", "while_statement", "for_statement", "case_statement", "case_item"),
        *("function_definition", "negated_command"),
    )
)
MOVES = frozenset({"cd", "pushd", "popd", "chdir"})
KEYWORDS = frozenset(
    (
        *("&&", "||", "|", "|&", ";", ";;", ";&", ";;&", "(", ")", "{", "}", "!", "if", "then", "elif", "else"),
        *("fi", "while", "until", "do", "done", "for", "select", "in", "case", "esac", "function"),
    )
)
REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
WORDS = frozenset(
    (
        *("word", "number", "raw_string", "ansi_c_string", "string", "translated_string", "concatenation"),
        *("brace_expression", "array", "command_substitution", "process_substitution", "simple_expansion"),
        *("expansion", "arithmetic_expansion", "special_variable_name", "test_operator"),
    )
)
