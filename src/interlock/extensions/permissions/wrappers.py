"""Commands that run another command: what is inside, as far as it can be told."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...errors import UsageError
from .script import Script, Simple, Word
from .shell import read_script

__all__ = ["CARRIERS", "SHELLS", "WORDS_MAX", "Inner", "inner_of", "loosely_inside"]

SHELLS = frozenset((*("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish"),))
CARRIERS = SHELLS | frozenset(
    (
        *("env", "nice", "nohup", "timeout", "time", "command", "builtin", "stdbuf", "ionice", "setsid", "xargs"),
        *("find", "fd", "fdfind", "exec", "eval", "trap", "sudo", "doas", "su", "pkexec", "runuser", "ssh"),
        *("coproc", "watch", "strace", "ltrace", "unshare", "nsenter", "chroot", "flock", "busybox", "toybox"),
        *("parallel", "entr", "script", "systemd-run", "caffeinate", "docker", "podman", "kubectl", "chrt"),
        *("taskset", "numactl", "proxychains", "torsocks", "firejail", "bwrap", "source", ".", "then", "else"),
        *("do", "npx", "uv", "poetry", "pipx", "make", "just"),
    )
)
"""Commands that run what their arguments say: a deny rule looks for its command anywhere behind them."""
# Each rest of them may be a command.
WORDS_MAX = 200


class Inner(NamedTuple):
    """What a wrapper runs. transparent: the wrapper itself needs no rule. problem: why it cannot be told."""

    scripts: tuple[Script, ...] = ()
    transparent: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Options:
    """How a wrapper's own options look. flags: without a value. valued: with one, in the same word or the next."""

    flags: str = ""
    valued: str = ""
    long_flags: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()
    skipped: int = 0
    """How many words of its own follow the options, such as the time of ``timeout``."""


_KNOWN: dict[str, _Options] = {
    "nice": _Options(valued="n", long_valued=frozenset({"--adjustment"})),
    "nohup": _Options(),
    "timeout": _Options(
        flags="v",
        valued="ks",
        long_flags=frozenset({"--foreground", "--preserve-status", "--verbose"}),
        long_valued=frozenset({"--kill-after", "--signal"}),
        skipped=1,
    ),
    "time": _Options(flags="pv"),
    "stdbuf": _Options(valued="ioe", long_valued=frozenset({"--input", "--output", "--error"})),
    "ionice": _Options(flags="t", valued="cn", long_valued=frozenset({"--class", "--classdata"})),
    "setsid": _Options(flags="fw", long_flags=frozenset({"--fork", "--wait"})),
    "command": _Options(flags="p"),
    "builtin": _Options(),
}


def inner_of(simple: Simple) -> Inner | None:
    """What ``simple`` runs by its arguments; None if it is no wrapper that is known in detail."""
    if not simple.words or simple.name.dynamic:
        return None
    reader = _READERS.get(simple.name.text)
    if reader is None and simple.name.text in _KNOWN:
        return _by_options(simple, _KNOWN[simple.name.text])
    return reader(simple) if reader is not None else None


def _command(words: tuple[Word, ...], simple: Simple, **changes: object) -> Script:
    made = replace(simple, words=words, text=" ".join(map(str, words)), redirects=(), **changes)
    return Script((made,), (), made.text)


def _after_options(words: tuple[Word, ...], options: _Options) -> tuple[Word, ...] | str:
    """The words after a wrapper's own options; or what is wrong with these."""
    at = 1
    while at < len(words):
        word = words[at]
        if word.dynamic or word.glob:
            return f"{words[0].text}: what it runs is known only when it runs"
        text = word.text
        if text == "--":
            at += 1
            break
        if not text.startswith("-") or text == "-":
            break
        name, equals, _ = text.partition("=")
        if text.startswith("--"):
            if name in options.long_valued:
                at += 1 if equals else 2
            elif name in options.long_flags and not equals:
                at += 1
            else:
                return f"{words[0].text}: the option {text[:40]} is not known here"
            continue
        rest = text[1:].lstrip(options.flags) if options.flags else text[1:]
        if words[0].text == "nice" and re.fullmatch(r"[0-9]+", rest):
            rest = ""
        if rest and rest[0] not in options.valued:
            return f"{words[0].text}: the option {text[:40]} is not known here"
        at += 2 if len(rest) == 1 else 1
    for word in words[at : at + options.skipped]:
        if word.dynamic or word.glob:
            return f"{words[0].text}: what it runs is known only when it runs"
    return words[at + options.skipped :]


def _by_options(simple: Simple, options: _Options) -> Inner:
    rest = _after_options(simple.words, options)
    if isinstance(rest, str):
        return Inner(problem=rest)
    if not rest:
        return Inner(problem=f"{simple.name.text} without a command")
    return Inner((_command(rest, simple, assignments=()),), transparent=True)


def _env(simple: Simple) -> Inner:
    rest = _after_options(simple.words, _Options(flags="i0v", valued="u", long_flags=frozenset({"--ignore-environment"})))
    if isinstance(rest, str):
        return Inner(problem=rest)
    assignments: list[tuple[str, Word]] = []
    while rest and "=" in rest[0].text:
        name, _, value = rest[0].text.partition("=")
        assignments.append((name, replace(rest[0], text=value)))
        rest = rest[1:]
    if not rest:  # it prints the environment, secrets included: a command like any other
        return Inner()
    return Inner((_command(rest, simple, assignments=tuple(assignments)),), transparent=True)


def _xargs(simple: Simple) -> Inner:
    options = _Options(
        flags="0rtxp",
        valued="nLPsdaIE",
        long_flags=frozenset({"--null", "--no-run-if-empty", "--verbose", "--exit"}),
        # Not those whose value is optional: what follows them is no value, but the command.
        long_valued=frozenset({"--max-args", "--max-procs", "--max-chars", "--delimiter", "--arg-file"}),
    )
    rest = _after_options(simple.words, options)
    if isinstance(rest, str):
        return Inner(problem=rest)
    words = rest or (Word("echo"),)
    options_text = [word.text for word in simple.words[1 : len(simple.words) - len(rest)]]
    found = [(i, match[1]) for i, text in enumerate(options_text) if (match := re.fullmatch(r"-[0rtxp]*I(.*)", text, re.DOTALL))]
    if found:  # whatever it puts in the place of a word comes from its input
        at, marker = found[-1]
        marker = marker or options_text[at + 1]
        words = tuple(replace(word, dynamic=word.dynamic or marker in word.text) for word in words)
    else:
        words = (*words, Word("", dynamic=True))
    return Inner((_command(words, simple, assignments=()),), transparent=True)


def _find(simple: Simple) -> Inner | None:
    """The commands of ``-exec`` and the like. find itself needs its own rule."""
    scripts: list[Script] = []
    words, at = simple.words, 1
    while at < len(words):
        if words[at].text in ("-exec", "-execdir", "-ok", "-okdir") and not words[at].dynamic:
            end = at + 1
            while end < len(words) and not (words[end].text == ";" or (words[end].text == "+" and words[end - 1].text == "{}")):
                end += 1
            if end >= len(words) or end == at + 1:
                return Inner(problem="find -exec whose command does not end")
            inner = tuple(replace(word, dynamic=word.dynamic or "{}" in word.text) for word in words[at + 1 : end])
            scripts.append(_command(inner, simple, assignments=()))
            at = end
        at += 1
    return Inner(tuple(scripts)) if scripts else None


def _other_shell(simple: Simple) -> Inner | None:
    """zsh and fish read a text in ways of their own."""
    return Inner(problem=f"{simple.name.text}: its syntax is another one") if len(simple.words) > 1 else None


def _shell(simple: Simple) -> Inner | None:
    """``sh -c 'literal'`` is what its text says. Anything else that a shell may run is known only to the shell."""
    words, at, script = simple.words, 1, False
    while at < len(words) and words[at].text[:1] in ("-", "+") and len(words[at].text) > 1 and not words[at].dynamic:
        text = words[at].text
        if not re.fullmatch(r"-[ceux]+", text):
            return Inner(problem=f"{simple.name.text}: with the option {text[:40]} it is not looked into")
        script = script or "c" in text
        at += 1
    if not script:
        if any(word.dynamic for word in words[1:]):
            return Inner(problem=f"{simple.name.text}: what it runs is known only when it runs")
        return None
    if at >= len(words):
        return Inner(problem=f"{simple.name.text} -c without a command")
    if words[at].dynamic or (words[at].glob and not words[at].text):
        return Inner(problem=f"{simple.name.text} -c: what it runs is known only when it runs")
    return Inner((_nested(words[at].text, simple),), transparent=True)


def _eval(simple: Simple) -> Inner:
    if any(word.dynamic for word in simple.words[1:]):
        return Inner(problem="eval: what it runs is known only when it runs")
    return Inner((_nested(" ".join(word.text for word in simple.words[1:]), simple),), transparent=True)


def _nested(text: str, simple: Simple) -> Script:
    """``text`` as a script. A shell that is started inside knows what was assigned and redirected outside."""
    script = read_script(text)
    commands = (replace(each, features=each.features | simple.features, moved=each.moved or simple.moved) for each in script.commands)
    return replace(script, commands=tuple(commands))


_READERS: dict[str, Callable[[Simple], Inner | None]] = {
    "env": _env,
    "xargs": _xargs,
    "find": _find,
    "eval": _eval,
    **dict.fromkeys(SHELLS, _shell),
    "zsh": _other_shell,
    "fish": _other_shell,
}


def loosely_inside(simple: Simple) -> Iterator[Script]:
    """Whatever ``simple`` may run, if it is a command that runs others: each rest of its words, and each word that reads like a script.

    More than it really runs: for rules that deny. Raises UsageError for more words than are looked at.
    """
    if not simple.words or posixpath.basename(simple.name.text) not in CARRIERS:
        return
    if len(simple.words) > WORDS_MAX:
        raise UsageError(f"more than {WORDS_MAX} words behind {simple.name.text}, which runs what they say")
    for at in range(1, len(simple.words)):
        word = simple.words[at]
        yield _command(simple.words[at:], simple, assignments=())
        if not word.dynamic and re.search(r"[\s;|&]", word.text.strip()):
            yield read_script(word.text)
