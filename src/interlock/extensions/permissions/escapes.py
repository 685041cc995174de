"""Arguments with which a command that only looks does more: they run another command, or write.

A ``*`` in an allow rule does not stand for these; a rule that means them must write them. The table holds well-known commands that
people allow with a ``*`` because they only look, and is no list of everything that can go wrong: `python *` allows whatever Python can.
"""

from __future__ import annotations

import re

from .script import Word

__all__ = ["ESCAPES", "covered"]

_PYTEST = ("--log-file", "--debug", "--pdbcls", "--pastebin", "--html", "--report-log", "--result-log")
ESCAPES: dict[str, tuple[str, ...]] = {
    "find": ("-delete", "-fprint", "-fprint0", "-fprintf", "-fls", "-ok", "-okdir"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "git": (
        *("-c", "-C", "--exec-path", "--config-env", "--git-dir", "--work-tree", "--output", "--ext-diff", "--textconv", "--upload-pack"),
        *("--receive-pack", "--exec", "-O", "--open-files-in-pager", "--template", "--extcmd", "--upload-archive", "-x"),
    ),
    "rg": ("--pre", "--hostname-bin", "--search-zip"),
    "ag": ("--pager",),
    "sort": ("-o", "--output", "--compress-program", "-T", "--temporary-directory"),
    "tree": ("-o", "-R"),
    "tar": (
        "--to-command",
        "--checkpoint-action",
        "-I",
        "--use-compress-program",
        "-F",
        "--info-script",
        "--new-volume-script",
        "--rsh-command",
    ),
    "less": ("-o", "-O", "--log-file", "--LOG-FILE", "-k", "--lesskey-file"),
    "man": ("-P", "--pager", "-H", "--html"),
    "date": ("-s", "--set"),
    "file": ("-C", "--compile", "-m", "--magic-file"),
    "xxd": ("-r", "-revert"),
    "yq": ("-i", "--inplace"),
    "jq": ("-L", "--library-path"),
    "diff": ("--output",),
    "curl": ("-o", "-O", "--output", "--remote-name", "-K", "--config", "-T", "--upload-file", "--output-dir", "--remote-name-all", "-c"),
    "wget": ("-O", "--output-document", "-e", "--execute", "-i", "--use-askpass", "-a", "-o", "--config", "-P"),
    "printf": ("-v",),
    "test": ("-v", "-R", "-eq", "-ne", "-lt", "-le", "-gt", "-ge"),
    "hostname": ("-F", "-b"),
    "ps": (),
    "pytest": (
        "-p",
        "--pyargs",
        "-c",
        "--rootdir",
        "--confcutdir",
        "--basetemp",
        "--junitxml",
        "--junit-xml",
        "-o",
        "--override-ini",
        *_PYTEST,
    ),
    "ruff": ("--config", "-o", "--output-file", "--cache-dir"),
    "sh": ("-c",),
    "bash": ("-c",),
}
# Programs in an argument. What is here only prints, deletes lines or replaces text.
_SED = re.compile(
    r"(?:[0-9,$]*|/[^/\\]*/)[pdq=]|(?:[0-9,$]*)s/[^/\\\n]*/[^/\\\n]*/[gpI0-9]*|(?:[0-9,$]*)s\|[^|\\\n]*\|[^|\\\n]*\|[gpI0-9]*"
)
# Not even inside what looks like a string: where one begins and ends only awk knows.
_AWK_RUNS = re.compile(r"system|getline|close|fflush|load|include|[|<>@`\\]")


def covered(words: tuple[Word, ...], *, upto: int) -> bool:
    """Whether the words from ``upto`` on are such as a ``*`` stands for."""
    name, rest = words[0].text, words[upto:]
    known = ESCAPES.get(name)
    if name in ("sed", "gsed"):
        return _sed(rest)
    if name in ("awk", "gawk", "mawk", "nawk"):
        return _awk(rest)
    if name in ("uniq", "xxd"):  # its second file is written
        return sum(not word.text.startswith("-") for word in rest) <= 1 and not any(word.dynamic or word.glob for word in rest)
    if known is None:
        return True
    ended = False
    for word in rest:
        # What is known only when the shell runs may be one of them.
        if word.dynamic or (word.glob and (word.text[:1] in "*?[" or re.match(r"-[^=]*[*?\[]", word.text))):
            return ended
        if word.text == "--" and name != "find":
            ended = True
        if not ended and any(_is(word.text, option) for option in known):
            return False
    return True


def _is(text: str, option: str) -> bool:
    if option.startswith("--"):
        head = text.partition("=")[0]
        return text.startswith("--") and len(head) > 2 and option.startswith(head)
    if len(option) > 2:
        return text == option
    return text.startswith("-") and not text.startswith("--") and option[1] in text[1:]


def _sed(words: tuple[Word, ...]) -> bool:
    options = [word for word in words if word.text.startswith("-")]
    if any(word.dynamic for word in words) or any(
        word.text not in ("-n", "-E", "-r", "--quiet", "--silent", "-u", "-z") for word in options
    ):
        return False
    plain = [word for word in words if not word.text.startswith("-")]
    return bool(plain) and _SED.fullmatch(plain[0].text) is not None


def _awk(words: tuple[Word, ...]) -> bool:
    plain = list(words)
    while plain and re.fullmatch(r"-F.*", plain[0].text, re.DOTALL) and not plain[0].dynamic:
        plain = plain[2:] if plain[0].text == "-F" else plain[1:]
    if not plain or plain[0].dynamic or plain[0].text.startswith("-") or any("=" in word.text for word in plain[1:]):
        return False
    return _AWK_RUNS.search(plain[0].text) is None
