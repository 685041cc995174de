"""Text that every store, hash and wire accepts."""

from __future__ import annotations

from typing import Any, cast

NAME_MAX = 200
"""Characters of a tool's name that are repeated to the model; it writes the names of unknown tools itself."""


def clean(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD; everything else, NUL too, is kept.

    Python strings can hold halves of a surrogate pair, which no UTF-8 encoder accepts. They come from JSON
    escapes, from file names and from other runtimes; they are mended once, where text enters.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def reason_of(error: BaseException) -> str:
    """What ``error`` says, cleaned; its class's name if it says nothing, or if saying it fails."""
    try:
        said = clean(str(error))
    except Exception:  # __str__ is other people's code
        said = ""
    return said or type(error).__name__


def clean_tree(value: Any) -> Any:
    """``clean`` applied to every string, keys too, of a JSON-able value. Unchanged strings keep their identity."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return {clean(k) if isinstance(k, str) else k: clean_tree(v) for k, v in items.items()}
    if isinstance(value, list):
        return [clean_tree(v) for v in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple(clean_tree(v) for v in cast("tuple[Any, ...]", value))
    return value
