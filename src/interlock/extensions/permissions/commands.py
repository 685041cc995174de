"""Rules over shell commands. To deny, a pattern is matched as widely as it makes sense; to allow, as narrowly as it is written."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .escapes import covered
from .globs import glob_regex
from .script import Script, Simple, Word
from .wrappers import CARRIERS, SHELLS, inner_of, loosely_inside

__all__ = ["FEATURES", "CommandPattern", "Grant", "commands_in", "may_run", "uncovered"]

FEATURES = frozenset({"background", "process-substitution", "assignment"})
DEPTH_MAX = 20
# What these say changes how a command writes, not what it does.
_HARMLESS_VARIABLES = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|CLICOLOR|COLUMNS|CI")
# These decide what runs, whoever is asked to run it.
_DANGEROUS_VARIABLES = re.compile(
    r"PATH|LD_.*|DYLD_.*|IFS|ENV|BASH_.*|SHELLOPTS|BASHOPTS|PS[0-4]|PROMPT_COMMAND|CDPATH|GLOBIGNORE|.*PAGER|.*EDITOR|VISUAL|BROWSER|GIT_.*"
    r"|PYTHON.*|NODE_.*|PERL.*|RUBY.*|JAVA_.*|_JAVA_.*|LESS.*|.*SHELL|.*COMMAND.*|SSH_.*|HOME|MAKEFLAGS|.*_PROXY|.*_proxy",
)
# They change nothing outside the script, and need no rule.
_NEUTRAL = frozenset({"true", "false", ":", "exit", "break", "continue", "return"})
_SAFE_FILES = frozenset({"/dev/null"})


@dataclass(frozen=True)
class CommandPattern:
    """``git log *``: words, each a pattern of its own; ``*`` at the end is any number of further words, none included."""

    text: str

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.text))

    @cached_property
    def _regexes(self) -> tuple[re.Pattern[str], ...]:
        return tuple(glob_regex(word) for word in self.words)

    @cached_property
    def open(self) -> bool:
        return self.words[-1] == "*"

    def covers(self, simple: Simple) -> bool:
        """Narrowly: word by word, and nothing that is known only when the shell runs but under the ``*`` at the end."""
        fixed = self._regexes[: len(self.words) - self.open]
        words = simple.words
        if not words or (len(words) != len(fixed) if not self.open else len(words) < max(1, len(fixed))):
            return False
        if words[0].dynamic or words[0].glob:
            return False
        for regex, word in zip(fixed, words, strict=False):
            if word.dynamic or (word.glob and regex.pattern != glob_regex(word.text).pattern) or not regex.fullmatch(word.text):
                return False
        return len(fixed) == 0 or covered(words, upto=len(fixed))

    def may_be(self, simple: Simple) -> bool:
        """Widely: by the last part of the command's name, its options in any order and place, what is dynamic taken for anything."""
        words = simple.words
        if not words:
            return False
        name = words[0]
        if name.dynamic:
            return True
        if not (name.glob or self._regexes[0].fullmatch(posixpath.basename(name.text)) or self._regexes[0].fullmatch(name.text)):
            return False
        rest = self.words[1 : len(self.words) - (self.open and len(self.words) > 1)]
        options = [word for word in rest if word.startswith("-") and len(word) > 1]
        plain = [regex for word, regex in zip(self.words[1:], self._regexes[1:], strict=True) if word in rest and word not in options]
        return all(_has_option(option, words[1:]) for option in options) and _in_order(plain, words[1:])


def _has_option(option: str, words: tuple[Word, ...]) -> bool:
    if any(word.dynamic or word.glob for word in words):
        return True
    if option.startswith("--"):
        regex = glob_regex(option)
        return any(
            regex.fullmatch(head) or (len(head) > 4 and option.startswith(head))
            for head in (word.text.partition("=")[0] for word in words if word.text.startswith("--"))
        ) or any(regex.fullmatch(word.text) for word in words)
    short = "".join(word.text[1:] for word in words if re.match(r"-[^-]", word.text))
    return any(glob_regex(option).fullmatch(word.text) for word in words) or set(option[1:]) <= set(short)


def _in_order(patterns: list[re.Pattern[str]], words: tuple[Word, ...]) -> bool:
    """Whether the patterns match the words that are no options, in order from the first on; an option's value may stand between."""
    at = 0
    for regex in patterns:
        while at < len(words):
            word = words[at]
            at += 1
            if word.dynamic or word.glob or regex.fullmatch(word.text):
                break
            option = word.text.startswith("-") and len(word.text) > 1
            after_option = at >= 2 and words[at - 2].text.startswith("-") and "=" not in words[at - 2].text
            if not option and not after_option:
                return False
        else:
            return False
    return True


def _none(path: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Grant:
    """What one allow rule says of commands. redirects: whether a file may be read or written by redirection."""

    patterns: tuple[CommandPattern, ...]
    features: frozenset[str] = frozenset()
    redirects: Callable[[str], bool] = _none

    def covers(self, simple: Simple, *, bare: bool = False) -> bool:
        """bare: only what surrounds the command, not the command itself."""
        if not bare and simple.words and not _neutral(simple) and not any(pattern.covers(simple) for pattern in self.patterns):
            return False
        if not simple.features <= self.features:
            return False
        return all(self._assigns(name, value) for name, value in simple.assignments) and all(
            redirect.target is None or self._redirects(redirect.target, simple) for redirect in simple.redirects
        )

    def _assigns(self, name: str, value: Word) -> bool:
        if _HARMLESS_VARIABLES.fullmatch(name) and not value.dynamic and "/" not in value.text:
            return True
        return "assignment" in self.features and not _DANGEROUS_VARIABLES.fullmatch(name) and re.fullmatch(r"\w+", name) is not None

    def _redirects(self, word: Word, simple: Simple) -> bool:
        if word.dynamic or word.glob:
            return False
        return word.text in _SAFE_FILES or (not (simple.moved and not word.text.startswith("/")) and self.redirects(word.text))


def uncovered(script: Script, grants: tuple[Grant, ...], also: tuple[CommandPattern, ...] = (), *, depth: int = 0) -> str | None:
    """Why ``script`` may not run under ``grants``; None if every command in it may. also: patterns that are asked about, matched widely."""
    if script.problems:
        return f"it cannot be read: {script.problems[0]}"
    if not script.commands:
        return "there is no command in it"
    if depth > DEPTH_MAX:
        return "it is nested too deeply"
    for simple in script.commands:
        if (why := _uncovered(simple, grants, also, depth)) is not None:
            return why
    return None


def _uncovered(simple: Simple, grants: tuple[Grant, ...], also: tuple[CommandPattern, ...], depth: int) -> str | None:
    inner = inner_of(simple)
    if inner is not None and inner.problem:
        return inner.problem
    transparent = inner is not None and inner.transparent
    known = not simple.name.dynamic and not simple.name.glob
    if not (known and any(pattern.may_be(simple) for pattern in also)) and not any(
        grant.covers(simple, bare=transparent) for grant in grants
    ):
        return f"{_shown(simple)} is not allowed" + _because(simple, grants)
    for script in inner.scripts if inner is not None else ():
        if (why := uncovered(script, grants, also, depth=depth + 1)) is not None:
            return f"{why} (inside {simple.name.text})"
    return None


def _neutral(simple: Simple) -> bool:
    return simple.name.text in _NEUTRAL and not any(word.dynamic or word.glob for word in simple.words)


def _shown(simple: Simple) -> str:
    text = " ".join(simple.text.split())
    return f"`{text if len(text) <= 100 else text[:100] + '...'}`"


def _because(simple: Simple, grants: tuple[Grant, ...]) -> str:
    """What of it no rule names, where the command itself is named."""
    if not simple.words or not any(pattern.covers(simple) for grant in grants for pattern in grant.patterns):
        return ""
    parts = [*sorted(simple.features), *(f"setting {name}" for name, _ in simple.assignments)]
    parts += [f"redirecting to or from {redirect.target}" for redirect in simple.redirects if redirect.target is not None]
    return f" with {', '.join(parts)}" if parts else ""


def commands_in(script: Script, *, depth: int = 0) -> Iterator[Simple]:
    """Every command in ``script``, those inside wrappers too, and what may run behind a command that runs others."""
    if depth > DEPTH_MAX:
        return
    for simple in script.commands:
        yield simple
        inner = inner_of(simple)
        for further in (*(inner.scripts if inner is not None else ()), *(loosely_inside(simple) if depth == 0 else ())):
            yield from commands_in(further, depth=depth + 1)


def may_run(script: Script, patterns: tuple[CommandPattern, ...]) -> str | None:
    """What in ``script`` is, or may be, a command of ``patterns``; None if nothing is. What cannot be read may be anything."""
    if script.problems:
        return f"it cannot be read, so it may be anything: {script.problems[0]}"
    for simple in commands_in(script):
        hit = next((pattern for pattern in patterns if pattern.may_be(simple)), None)
        if hit is not None:
            return f"{_shown(simple)} is, or may be, `{hit.text}`"
        if why := _hidden(simple):
            return f"{why}, so it may be `{patterns[0].text}`"
    return None


def _hidden(simple: Simple) -> str | None:
    inner = inner_of(simple)
    if inner is not None and inner.problem:
        return inner.problem
    if inner is not None:
        broken = next((script.problems[0] for script in inner.scripts if script.problems), None)
        if broken is not None:
            return f"what {simple.name.text} runs cannot be read: {broken}"
    if posixpath.basename(simple.name.text) in SHELLS and (inner is None):
        return f"what {simple.name.text} runs is in a file or comes from outside"
    if posixpath.basename(simple.name.text) in CARRIERS and any(word.dynamic for word in simple.words[1:2]):
        return f"what {simple.name.text} runs is known only when it runs"
    return None
