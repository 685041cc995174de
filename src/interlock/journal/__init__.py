"""The journal: an append-only log per session, its stores, and the views over it.

A store is loaded when it is first used; importing this room opens nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .base import Journal, SessionInfo, SessionLog, SessionState

if TYPE_CHECKING:
    from .memory import MemoryJournal
    from .sqlite import SQLiteJournal

__all__ = ["Journal", "MemoryJournal", "SQLiteJournal", "SessionInfo", "SessionLog", "SessionState", "open_journal"]

_LAZY = {"MemoryJournal": ".memory", "SQLiteJournal": ".sqlite"}
_FORMS = "'memory:', 'sqlite:///relative.db', 'sqlite:////absolute.db', '...?durability=power', or a Journal"


def open_journal(spec: str | Journal | None) -> Journal:
    """The journal that ``spec`` names, without I/O; await its ``open()`` next. None is ``memory:``.

    Raises UsageError for anything else. As in SQLAlchemy, three slashes begin a relative path and four an absolute
    one; ``%`` escapes are decoded, so a question mark in a file name is written ``%3F``.
    """
    if spec is None:
        spec = "memory:"
    if not isinstance(spec, str):
        if not isinstance(spec, type) and all(callable(getattr(spec, name, None)) for name in ("open", "session", "read", "aclose")):
            return spec
        raise UsageError(f"journal={spec!r}: not a journal; use {_FORMS}")
    scheme, colon, rest = spec.partition(":")
    if colon and scheme == "memory":
        if rest:
            raise UsageError(f"journal={spec!r}: 'memory:' takes nothing after the colon")
        from .memory import MemoryJournal

        return MemoryJournal()
    if colon and scheme == "sqlite":
        return _open_sqlite(spec, rest)
    if scheme in ("postgres", "postgresql") or scheme.startswith(("postgres+", "postgresql+")):
        raise UsageError(f"journal={scheme + ':...'!r}: a PostgreSQL store is not available in this version; use {_FORMS}")
    raise UsageError(f"journal={spec!r}: unknown; use {_FORMS}")


def _open_sqlite(spec: str, rest: str) -> Journal:
    from urllib.parse import parse_qsl, unquote  # with ipaddress, a tenth of what touching Agent costs

    location, _, query = rest.partition("?")
    path = unquote(location.removeprefix("///"))
    if not location.startswith("///") or not path or path == ":memory:":
        raise UsageError(f"journal={spec!r}: no file is named; use {_FORMS}")
    options = dict(parse_qsl(query, keep_blank_values=True))
    durability = options.pop("durability", "process")
    if options or durability not in ("process", "power"):
        raise UsageError(f"journal={spec!r}: the only option is durability=process (the default) or =power; use {_FORMS}")
    from .sqlite import SQLiteJournal

    return SQLiteJournal(path, durability=durability)


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)
