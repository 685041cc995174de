"""A shell command as its grammar reads it: every simple command in it, wherever it stands, and what could not be read.

The grammar is bash's, by tree-sitter. It is not trusted alone: a node that this module does not know, text between two nodes that is
no blank, and an expansion inside text that the grammar took for plain are problems too, and a command with a problem is not allowed.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from . import grammar
from .script import Redirect, Script, Simple, Word

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["COMMANDS_MAX", "SCRIPT_MAX", "read_argv", "read_script"]

# A longer command is no command that somebody reads before it runs.
SCRIPT_MAX = 64 * 1024
# Each is compared with every pattern, on the event loop.
COMMANDS_MAX = 500


def read_argv(words: list[str]) -> Script:
    """A command that comes as a list of words, without a shell."""
    if sum(map(len, words)) > SCRIPT_MAX:
        return _unread(f"more than {SCRIPT_MAX:,} characters", " ".join(words)[:200])
    return Script((Simple(tuple(map(Word, words)), " ".join(words)),), (), " ".join(words))


def read_script(text: str) -> Script:
    """What ``text`` runs when a shell gets it. Raises GrammarMissing."""
    parser = grammar.parser()
    if len(text) > SCRIPT_MAX:
        return _unread(f"more than {SCRIPT_MAX:,} characters", text[:200])
    odd = next((char for char in text if char not in "\n\t" and not char.isprintable()), None)
    if odd is not None:
        return _unread(f"the character U+{ord(odd):04X} ({unicodedata.name(odd, 'a control')}), which shells read differently", text)
    reading = _Reading(text.encode())
    try:
        reading.block(parser.parse(reading.source).root_node)
    except RecursionError:
        return _unread("nested too deeply", text)
    except OverflowError:
        return _unread(f"more than {COMMANDS_MAX} commands", text)
    if grammar.LINE_JOINED.search(text):
        reading.problem("a line that is continued in the middle of a word")
    if grammar.SETS_NAME.search(text):
        reading.problems.append("a redirection that sets a variable")
    features = frozenset(reading.features)
    moved = any(command.name.text in grammar.MOVES or command.name.dynamic for command in reading.commands)
    commands = tuple(replace(command, features=features, moved=moved) for command in reading.commands)
    unread = tuple(dict.fromkeys(reading.unread))
    return Script(commands, (*unread, *dict.fromkeys(reading.problems)), text, unread, reading.starts_itself and "background" in features)


def _unread(why: str, text: str) -> Script:
    return Script((), (why,), text, (why,))


class _Reading:
    """One walk over a tree. Every node is either known here or a problem."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.commands: list[Simple] = []
        self.problems: list[str] = []
        self.unread: list[str] = []
        self.features: set[str] = set()
        self.starts_itself = False

    def problem(self, what: str) -> None:
        """A command may be hidden there."""
        self.unread.append(what)

    def calculates(self, what: str, node: Node) -> None:
        """Nothing is hidden, but what the shell calculates may be a command."""
        self.problems.append(f"{what}: {self.text(node)[:80]!r}")

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _children(self, node: Node) -> list[Node]:
        """Its children, after a look at what lies between them."""
        at = node.start_byte
        for child in node.children:
            if not grammar.BLANK.fullmatch(self.source, at, max(at, child.start_byte)):
                self.problem(f"text that the grammar passes over: {self.source[at : child.start_byte].decode('utf-8', 'replace')!r}")
            at = max(at, child.end_byte)
        if node.children and not grammar.BLANK.fullmatch(self.source, at, max(at, node.end_byte)):
            self.problem(f"text that the grammar passes over: {self.source[at : node.end_byte].decode('utf-8', 'replace')!r}")
        return node.children

    # ---- statements -------------------------------------------------------------------------------------

    def block(self, node: Node) -> None:
        """A statement, or what is made of statements."""
        kind = node.type
        if node.is_missing or node.is_error:
            self.problem(f"no shell command: {self.text(node)[:80]!r}")
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, node)
        elif kind in grammar.CONTROL or node.is_error:
            before = len(self.commands)
            if kind == "for_statement":
                self._loops(node)
            for child in self._children(node):
                self._part(node, child)
            if kind == "function_definition":
                name = self.text(node.named_children[0])
                self.starts_itself |= any(command.name.text == name for command in self.commands[before:])
        elif kind in grammar.WORDS:
            self.word(node)
        elif kind not in ("comment", "variable_name", "extglob_pattern", "regex"):
            self.problem(f"syntax that is not read here ({kind}): {self.text(node)[:80]!r}")
        elif kind != "comment" and grammar.EXPANDS.search(self.text(node)):
            self.problem(f"an expansion in a pattern: {self.text(node)[:80]!r}")

    def _loops(self, node: Node) -> None:
        """``for PATH in src`` sets PATH for what is in the loop: but for the names that loops have, that is an assignment like others."""
        name = next((self.text(child) for child in node.named_children if child.type == "variable_name"), "")
        if not grammar.LOOP_NAME.fullmatch(name):
            self.commands.append(Simple((), self.text(node), ((name, Word("", dynamic=True)),)))

    def _part(self, parent: Node, child: Node) -> None:
        if child.is_named or child.is_error:
            self.block(child)
        elif child.type == "&":
            self.features.add("background")
        elif child.type not in grammar.KEYWORDS and self.text(child).strip():
            self.problem(f"syntax that is not read here ({child.type}): {self.text(parent)[:80]!r}")

    def command(self, node: Node) -> None:
        if len(self.commands) >= COMMANDS_MAX:
            raise OverflowError
        words, assignments, redirects = list[Word](), list[tuple[str, Word]](), list[Redirect]()
        for child in self._children(node):
            if child.type == "command_name":
                words += [self.word(inner) for inner in self._children(child)]
            elif child.type == "variable_assignment":
                assignments.append(self._assignment(child))
            elif child.type in grammar.REDIRECTS:
                redirects += self._redirect(child)
            elif child.type == "subshell" or child.type not in grammar.WORDS:
                self.problem(f"syntax that is not read here ({child.type}): {self.text(node)[:80]!r}")
                if child.is_named:
                    self.block(child)
            else:
                words.append(self.word(child))
        self.commands.append(Simple(tuple(words), self.text(node), tuple(assignments), tuple(redirects)))

    def declaration(self, node: Node) -> None:
        """``export``, ``declare``, ``unset`` and the like: a command named so."""
        first, *rest = self._children(node)
        words, assignments = [Word(self.text(first))], list[tuple[str, Word]]()
        for child in rest:
            if child.type == "variable_assignment":
                assignments.append(self._assignment(child))
            elif child.type == "variable_name":
                words.append(Word(self.text(child)))
            else:
                words.append(self.word(child))
        self.commands.append(Simple(tuple(words), self.text(node), tuple(assignments)))

    def assign(self, node: Node) -> None:
        nodes = self._children(node) if node.type == "variable_assignments" else [node]
        self.commands.append(Simple((), self.text(node), tuple(self._assignment(child) for child in nodes)))

    def _assignment(self, node: Node) -> tuple[str, Word]:
        name, value = "", Word("")
        for child in self._children(node):
            if child.type == "variable_name":
                name = self.text(child)
            elif child.type == "subscript":
                name = self.text(child)
                self.calculates("an index in an assignment", child)
                self._inside(child)
            elif child.type == "array":
                self._inside(child)
                value = Word(self.text(child), dynamic=True)
            elif child.is_named:
                value = self.word(child)
        return name, value

    def redirected(self, node: Node) -> None:
        before = len(self.commands)
        redirects: list[Redirect] = []
        for child in self._children(node):
            if child.type in grammar.REDIRECTS:
                redirects += self._redirect(child)
            else:
                self._part(node, child)
        if before == len(self.commands):
            self.commands.append(Simple((), self.text(node)))
        # Where a list is redirected the grammar does not always say whose file it is: it counts for each.
        for at in range(before, len(self.commands)):
            command = self.commands[at]
            self.commands[at] = replace(command, redirects=(*command.redirects, *redirects))

    def _redirect(self, node: Node) -> list[Redirect]:
        if node.type == "herestring_redirect":
            for child in self._children(node):
                if child.is_named and child.type != "file_descriptor":
                    self.word(child)
            return []
        if node.type == "heredoc_redirect":
            return self._heredoc(node)
        operator, found = "", list[Redirect]()
        for child in self._children(node):
            if child.type == "file_descriptor":
                continue
            if not child.is_named:
                operator = self.text(child)
            elif operator.endswith("&") and re.fullmatch(r"[0-9]+-?|-", self.text(child)):
                found.append(Redirect(operator, None))
            else:
                found.append(Redirect(operator, self.word(child)))
        if not found and not operator.endswith("&-"):
            self.problem(f"a redirection without a file: {self.text(node)[:80]!r}")
        return found

    def _heredoc(self, node: Node) -> list[Redirect]:
        """The text of a here-document is checked again: whether it ends where the grammar says, and whether it expands anything."""
        redirects: list[Redirect] = []
        delimiter, tabs = "", False
        for child in self._children(node):
            if child.type == "<<-":
                tabs = True
            elif child.type == "heredoc_start":
                delimiter = self.text(child)
            elif child.type == "heredoc_body":
                self._body(child, delimiter, tabs=tabs)
            elif child.type in grammar.REDIRECTS:
                redirects += self._redirect(child)
            elif child.is_error or child.is_missing or (child.is_named and child.type not in ("heredoc_end", "file_descriptor")):
                self.block(child)
            elif child.type == "&":
                self.features.add("background")
        return redirects

    def _body(self, node: Node, delimiter: str, *, tabs: bool) -> None:
        bare = re.sub(r"[\\'\"]", "", delimiter)
        text = self.text(node)
        lines = [line.lstrip("\t") if tabs else line for line in text.split("\n")]
        if bare in lines[:-1]:
            self.problem("a here-document that ends before the grammar says")
        if bare == delimiter:
            self._expanded(node, within=True)

    def substitution(self, node: Node) -> None:
        """``$(...)``, backticks, ``<(...)``."""
        if node.type == "process_substitution":
            self.features.add("process-substitution")
        for child in self._children(node):
            if child.type in grammar.REDIRECTS:
                self.commands.append(Simple((), self.text(node), redirects=tuple(self._redirect(child))))
            elif child.is_named or child.is_error:
                self.block(child)
            elif child.type == "&":
                self.features.add("background")

    def test(self, node: Node) -> None:
        """``[ ... ]``, ``[[ ... ]]``; ``((...))`` calculates, and what it calculates with may be a command."""
        if self.text(node).startswith("(("):
            self.calculates("arithmetic", node)
        self._tight(node)
        self._inside(node)

    def _tight(self, node: Node) -> None:
        """Nothing lies between the parts of a test but blanks."""
        if node.type in ("test_command", "unary_expression", "binary_expression", "parenthesized_expression", "ternary_expression"):
            for child in self._children(node):
                self._tight(child)

    def _inside(self, node: Node) -> None:
        """Look for what expands, at any depth, where the words themselves do not matter."""
        for child in node.children:
            if child.type == "test_operator" and self.text(child) in grammar.NUMERIC_TESTS:
                self.calculates("arithmetic in a test", node)
            if child.type in grammar.WORDS:
                self.word(child)
            elif child.type in ("extglob_pattern", "regex") or child.is_error or child.is_missing:
                self.block(child)
            else:
                self._inside(child)

    def compound(self, node: Node) -> None:
        if node.children and node.children[0].type == "((":
            self.calculates("arithmetic", node)
            self._inside(node)
            return
        for child in self._children(node):
            self._part(node, child)

    # ---- words -------------------------------------------------------------------------------------------

    def word(self, node: Node) -> Word:
        """One word, and what is run to make it."""
        kind, text = node.type, self.text(node)
        if node.is_missing or node.has_error:
            self.problem(f"no shell word: {text[:80]!r}")
        if kind in ("word", "number", "variable_name", "special_variable_name", "test_operator"):
            return self._plain(text)
        if kind == "raw_string":
            return Word(text[1:-1])
        if kind == "ansi_c_string":
            return Word(text[2:-1], dynamic="\\" in text)
        if kind in ("string", "translated_string"):
            return self._quoted(node)
        if kind in ("concatenation", "brace_expression", "array"):
            return self._joined(node)
        if kind == "process_substitution":
            self.substitution(node)
            return Word("/dev/fd/63")
        if kind == "command_substitution":
            self.substitution(node)
        elif kind == "simple_expansion":
            if not grammar.NAME.fullmatch(text):
                self.problem(f"an expansion of no name: {text[:80]!r}")
        elif kind == "expansion":
            self._expansion(node)
        elif kind == "arithmetic_expansion":
            if not grammar.SUM.fullmatch(text[3:-2] if text.startswith("$((") else text[2:-1]):
                self.calculates("arithmetic with names, whose values the shell calculates", node)
            self._inside(node)
        elif kind not in ("regex", "extglob_pattern", "heredoc_start"):
            self.problem(f"syntax that is not read here ({kind}): {text[:80]!r}")
        return Word(os.path.expanduser("~") if text in ("$HOME", "${HOME}") else "", dynamic=True)

    def _plain(self, text: str) -> Word:
        bare = grammar.ESCAPED.sub("", text)
        if grammar.LOOSE.search(bare):
            self.problem(f"a word that holds what ends words: {text[:80]!r}")
        return Word(grammar.ESCAPED.sub(r"\1", text), dynamic=grammar.braces(bare), glob=bool(grammar.GLOB.search(bare)))

    def _quoted(self, node: Node) -> Word:
        made: list[str] = []
        dynamic = self._expanded(node, made=made)
        return Word(re.sub(r"\\([$`\"\\\n])", r"\1", "".join(made)), dynamic=dynamic)

    def _expanded(self, node: Node, *, within: bool = False, made: list[str] | None = None) -> bool:
        """Quoted text: what is plain in it, which must expand to nothing, and what is not. Whether there is any of the latter."""
        dynamic = False
        at = node.start_byte if within else node.start_byte + self.text(node).index('"') + 1
        end = node.end_byte if within else node.end_byte - 1
        spans = [child for child in node.named_children if child.type not in ("string_content", "heredoc_content", "heredoc_body")]
        pieces: list[str] = []
        values: list[str] = []
        for child in spans:
            pieces.append(self.source[at : child.start_byte].decode("utf-8", "replace"))
            values += [pieces[-1], self.word(child).text]
            dynamic, at = True, child.end_byte
        pieces.append(self.source[at:end].decode("utf-8", "replace"))
        for piece in pieces:
            if any(match[1] for match in grammar.EXPANDS.finditer(piece)):
                self.problem(f"an expansion that the grammar takes for text: {piece[:80]!r}")
        if made is not None:
            made.extend((*values, pieces[-1]))
        return dynamic

    def _joined(self, node: Node) -> Word:
        parts = [self.word(child) for child in node.children if child.is_named]
        at = node.start_byte
        for child in node.children:
            if child.start_byte != at:
                self.problem(f"a word with a gap in it: {self.text(node)[:80]!r}")
            at = child.end_byte
        text = "".join(part.text for part in parts)
        return Word(
            text,
            dynamic=grammar.braces(self.text(node)) or node.type != "concatenation" or any(part.dynamic for part in parts),
            glob=any(part.glob for part in parts),
        )

    def _expansion(self, node: Node) -> None:
        text = self.text(node)
        if not grammar.EXPANSION.fullmatch(text):
            self.calculates("an expansion that may calculate, assign or run something", node)
        self._inside(node)


_HANDLERS: dict[str, Callable[[_Reading, Node], None]] = {
    "command": _Reading.command,
    "declaration_command": _Reading.declaration,
    "unset_command": _Reading.declaration,
    "variable_assignment": _Reading.assign,
    "variable_assignments": _Reading.assign,
    "redirected_statement": _Reading.redirected,
    "command_substitution": _Reading.substitution,
    "process_substitution": _Reading.substitution,
    "test_command": _Reading.test,
    "compound_statement": _Reading.compound,
}
