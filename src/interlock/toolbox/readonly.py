"""Tools that look at directories and change nothing: list_files, find_files, read_file, search_text."""

from __future__ import annotations

from ..tools import Tool
from .reading import reading_tools
from .roots import Roots, RootsLike

__all__ = ["readonly_tools"]


def readonly_tools(roots: RootsLike = ".") -> tuple[Tool, ...]:
    """list_files, find_files, read_file and search_text, confined to ``roots`` (see ``Roots``). Safe to start again after a crash.

    Raises UsageError if a root is not a readable directory.
    """
    return reading_tools(Roots(roots))
