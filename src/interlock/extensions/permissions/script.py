"""What a shell command is made of, for whoever decides about it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Redirect", "Script", "Simple", "Word"]


@dataclass(frozen=True, slots=True)
class Word:
    """One word. text: its value, quotes and escapes removed. dynamic: a part of the value is known only when the shell runs.
    glob: file names may take its place."""

    text: str
    dynamic: bool = False
    glob: bool = False

    def __str__(self) -> str:
        return f"{self.text}{'<dynamic>' if self.dynamic else ''}"


@dataclass(frozen=True, slots=True)
class Redirect:
    """operator: ``>``, ``<``, ``>>``, ... target: the file; None for a descriptor (``2>&1``)."""

    operator: str
    target: Word | None


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command: its words, the name first; none where only something is assigned or redirected.

    features: what of the script's syntax an allow rule must name: ``background``, ``process-substitution``. moved: the script may
    change its directory, so that a relative path says little.
    """

    words: tuple[Word, ...]
    text: str
    assignments: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    features: frozenset[str] = frozenset()
    moved: bool = False

    @property
    def name(self) -> Word:
        return self.words[0] if self.words else Word("")


@dataclass(frozen=True, slots=True)
class Script:
    """What one text runs. problems: what could not be read; with one of these nothing of it is known for certain.

    unread: those of them that may hide a command which stands there; the others are about what is calculated when it runs.
    starts_itself: a function starts itself in the background.
    """

    commands: tuple[Simple, ...]
    problems: tuple[str, ...]
    text: str
    unread: tuple[str, ...] = ()
    starts_itself: bool = False
