"""The safety floor: what nobody wants an agent to do unasked. Below deny rules, above ask and allow, which cannot lower it.

It is small, and it is no sandbox: it reads what a call says, and cannot see what a program does that the call starts.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from .commands import CommandPattern, commands_in
from .conditions import CommandIs, PathIs
from .facts import Facts
from .paths import PathPattern
from .policy import Policy, named_arguments
from .script import Script, Simple
from .wrappers import SHELLS, inner_of

__all__ = ["FLOOR", "Broken", "FloorRule", "floor"]


class Broken(NamedTuple):
    """A rule of the floor that a call breaks, and how."""

    name: str
    why: str
    reason: str


@dataclass(frozen=True)
class FloorRule:
    """One rule. paths: files that no call may name. commands: patterns that no command may be. means: what else it looks at, in words."""

    name: str
    reason: str
    paths: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    means: str = ""


FLOOR: tuple[FloorRule, ...] = (
    FloorRule(
        "credentials",
        "keys and passwords of the person who runs the agent",
        paths=(
            *("~/.ssh/**", "~/.gnupg/**", "~/.aws/**", "~/.azure/**", "~/.config/gcloud/**", "~/.kube/config", "~/.docker/config.json"),
            *(
                "~/.netrc",
                "~/.git-credentials",
                "~/.pypirc",
                "~/.npmrc",
                "/etc/shadow",
                "/etc/gshadow",
                "/etc/shadow-",
                "/etc/gshadow-",
                "/etc/sudoers",
                "/etc/sudoers.d/**",
            ),
        ),
    ),
    FloorRule(
        "start-up files",
        "what is written there runs later, outside every rule",
        paths=(
            *("~/.bashrc", "~/.bash_profile", "~/.bash_login", "~/.profile", "~/.zshrc", "~/.zshenv", "~/.zprofile", "~/.config/fish/**"),
            *("~/.config/autostart/**", "~/.config/systemd/**", "~/Library/LaunchAgents/**", "/etc/cron*/**", "/etc/crontab"),
            *("/var/spool/cron/**", "/etc/systemd/**", "/etc/profile", "/etc/profile.d/**", "/etc/ld.so.preload"),
        ),
        commands=("crontab *",),
    ),
    FloorRule(
        "the policy itself",
        "an agent does not change the rules that it works under",
        paths=("~/.config/interlock/**", "~/Library/Application Support/interlock/**"),
        means="the policy's own file, and that of Approvals",
    ),
    FloorRule(
        "erasing everything",
        "a recursive deletion of the root, the home or a system directory",
        means="rm -r, and find -delete, of /, ~, $HOME, /*, a directory directly below /, or of a variable's value alone",
    ),
    FloorRule(
        "disks",
        "it overwrites a disk",
        commands=("mkfs *", "mkfs.* *", "mkswap *", "wipefs *", "fdisk *", "sfdisk *", "parted *", "cryptsetup *"),
        means="dd, shred, tee, cp and redirections onto a device below /dev (null, stdout, stderr, tty and fd aside)",
    ),
    FloorRule(
        "the machine",
        "it stops the machine, or everything on it",
        commands=(
            "shutdown *",
            "reboot *",
            "halt *",
            "poweroff *",
            "init 0",
            "init 6",
            "systemctl poweroff",
            "systemctl reboot",
            "systemctl halt",
        ),
        means="kill of the process -1, and a function that starts itself in the background",
    ),
    FloorRule(
        "downloads that run",
        "it runs what somebody else may change before it is read",
        means="curl, wget or fetch in one command with a shell, python, perl, ruby or node that reads its program from there",
    ),
)
_NAMED = {rule.name: rule for rule in FLOOR}

_DOWNLOADS = frozenset({"curl", "wget", "fetch", "aria2c", "http", "https"})
_PROGRAMS = SHELLS | frozenset(["python", "python2", "python3", "perl", "ruby", "node", "php"])
_FIND_FIRST = frozenset({"-H", "-L", "-P", "-O0", "-O1", "-O2", "-O3"})
_DEVICES = re.compile(r"/dev/(?!(?:null|zero|full|random|urandom|stdin|stdout|stderr|tty|fd/[0-9]+|shm/.*|pts/.*|tcp/.*|udp/.*)$).+")
_WHOLE = re.compile(r"/+|/+\*|/+[^/]+/*(?:\*)?|~[^/]*/*\*?|(?:/+home|/+Users)/+[^/]+/*\*?")


def floor(policy: Policy, facts: Facts, own: tuple[Path, ...] = ()) -> Broken | None:
    """The first rule that the call breaks; None if it breaks none. own: further files that are as the policy's own.

    Raises GrammarMissing where a command cannot be read without."""
    patterns = _patterns(str(facts.root), tuple(str(file.absolute()) for file in (policy.file, *own) if file is not None), str(Path.home()))
    named = [facts.arguments.get(name) for name in named_arguments(policy, facts.tool, PathIs)]
    texts = [*facts.paths, *(text for value in named for text in facts.texts(value))]
    if (broken := _path_in(texts, facts, patterns)) is not None:
        return broken
    scripts = [*facts.scripts(), *(s for name in named_arguments(policy, facts.tool, CommandIs) for s in facts.scripts(name))]
    for script in scripts:
        if script.unread:
            return Broken("unreadable commands", script.unread[0], "what cannot be read cannot be kept off it")
        if (broken := _script(script, facts, patterns)) is not None:
            return broken
    return None


@lru_cache(maxsize=64)
def _patterns(root: str, files: tuple[str, ...], home: str) -> tuple[tuple[str, PathPattern], ...]:
    """home: what ``~`` is; a part of the key."""
    made = [(rule.name, PathPattern(path, Path(root))) for rule in FLOOR for path in rule.paths]
    return (*made, *(("the policy itself", PathPattern(file, Path(root))) for file in files))


def _path_in(texts: Iterable[object], facts: Facts, patterns: tuple[tuple[str, PathPattern], ...]) -> Broken | None:
    for text in texts:
        for name, pattern in patterns:
            if pattern.may_be(facts.readings(text)):
                return Broken(name, f"it names {text!r}", _NAMED[name].reason)
    return None


def _written_otherwise(simple: Simple, patterns: tuple[tuple[str, PathPattern], ...]) -> Broken | None:
    """A path that the shell makes of a word with ``*``, ``?``, ``[...]`` or ``{...}``."""
    targets = [redirect.target for redirect in simple.redirects if redirect.target is not None]
    for word in (*simple.words, *targets):
        if "/" in word.text and (word.glob or "{" in word.text):
            for text in (word.text, word.text.partition("=")[2]):
                for name, pattern in patterns:
                    if pattern.may_become(text):
                        return Broken(name, f"it may name {pattern.text!r}, by {word.text[:100]!r}", _NAMED[name].reason)
    return None


def _script(script: Script, facts: Facts, patterns: tuple[tuple[str, PathPattern], ...]) -> Broken | None:
    commands = list(commands_in(script))
    for simple in commands:
        words = [word.text.partition("=")[2] or word.text for word in simple.words if not word.text.startswith("--") or "=" in word.text]
        words += [word.text for word in simple.words]
        words += [redirect.target.text for redirect in simple.redirects if redirect.target is not None]
        looks_like_path = [word for word in words if "/" in word or word[:1] in "~."]
        if (broken := _path_in(looks_like_path, facts, patterns)) is not None:
            return broken
        if (hidden := _written_otherwise(simple, patterns)) is not None:
            return hidden
        for name, test in _TESTS:
            if test(simple):
                return Broken(name, f"`{' '.join(simple.text.split())[:100]}`", _NAMED[name].reason)
        for name, pattern in _COMMANDS:
            if not simple.name.dynamic and not simple.name.glob and pattern.may_be(simple):
                return Broken(name, f"`{' '.join(simple.text.split())[:100]}`", _NAMED[name].reason)
    if _runs_download(commands):
        return Broken("downloads that run", f"`{' '.join(script.text.split())[:100]}`", _NAMED["downloads that run"].reason)
    if script.starts_itself:
        return Broken("the machine", "a function that starts itself in the background", _NAMED["the machine"].reason)
    return None


_COMMANDS = tuple((rule.name, CommandPattern(text)) for rule in FLOOR for text in rule.commands)


def _base(simple: Simple) -> str:
    return posixpath.basename(simple.name.text)


def _erases(simple: Simple) -> bool:
    texts = [word.text for word in simple.words[1:]]
    short = "".join(text[1:] for text in texts if re.match(r"-[A-Za-z]", text))
    if _base(simple) == "rm" and (set("rR") & set(short) or any(len(t) > 3 and "--recursive".startswith(t) for t in texts)):
        return any(_everything(word.text, dynamic=word.dynamic) for word in simple.words[1:] if not word.text.startswith("-"))
    if _base(simple) == "find" and "-delete" in texts:
        # Its own options may come first, then several places; what follows the first test is none.
        places = takewhile(lambda word: not word.text.startswith(("-", "(", "!")) or word.text in _FIND_FIRST, simple.words[1:])
        return any(_everything(word.text, dynamic=word.dynamic) for word in places)
    return False


def _everything(text: str, *, dynamic: bool) -> bool:
    home = os.path.expanduser("~")
    if dynamic and "{" not in text and not text.startswith(home):
        return text in ("", "/", "/*", "*")
    if not text.startswith(("/", "~")):
        return False
    bare = posixpath.normpath(text) if not text.endswith("*") else posixpath.normpath(text[:-1] or "/") + "/*"
    return bare in (home, f"{home}/*") or _WHOLE.fullmatch(re.sub("^/+", "/", bare)) is not None


def _overwrites(simple: Simple) -> bool:
    onto = [redirect.target.text for redirect in simple.redirects if redirect.target is not None and ">" in redirect.operator]
    if _base(simple) == "dd":
        onto += [word.text[3:] for word in simple.words if word.text.startswith("of=")]
    elif _base(simple) in ("shred", "tee"):
        onto += [word.text for word in simple.words[1:]]
    elif _base(simple) in ("cp", "mv") and len(simple.words) > 2:
        onto.append(simple.words[-1].text)
    return any(_DEVICES.fullmatch(posixpath.normpath(text)) for text in onto if text.startswith("/dev/"))


def _kills(simple: Simple) -> bool:
    return _base(simple) == "kill" and len(simple.words) > 2 and simple.words[-1].text == "-1"


def _runs_download(commands: list[Simple]) -> bool:
    if not any(_base(simple) in _DOWNLOADS for simple in commands):
        return False
    for simple in commands:
        if re.sub(r"[0-9.]+$", "", _base(simple)) not in _PROGRAMS and _base(simple) not in (*_PROGRAMS, "eval", "source", "."):
            continue
        inner = inner_of(simple)
        if (
            len(simple.words) == 1
            or any(word.dynamic or word.text.startswith("/dev/fd/") for word in simple.words[1:])
            or (inner is not None and inner.problem)
        ):
            return True
        if all(word.text.startswith("-") for word in simple.words[1:]):  # sh -s, python -
            return True
    return False


_TESTS: tuple[tuple[str, Callable[[Simple], bool]], ...] = (
    ("erasing everything", _erases),
    ("disks", _overwrites),
    ("the machine", _kills),
)
