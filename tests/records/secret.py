"""A secret, an extension that takes it out of every record, and ways to look for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interlock import AgentExtension
from interlock.records import Record
from interlock.records.redaction import with_texts

SECRET = "sk-7f3a9QmZ"
GONE = "[redacted]"


class Redact(AgentExtension):
    def redact(self, record: Record) -> Record:
        return with_texts(record, lambda text: text.replace(SECRET, GONE))


def files_with_the_secret(folder: Path) -> list[str]:
    """The files in ``folder`` that hold the secret, or a large part of it, anywhere in their bytes."""
    return [path.name for path in sorted(folder.iterdir()) if path.is_file() and SECRET[:8].encode() in path.read_bytes()]


def holds_it(value: Any) -> bool:
    return SECRET in repr(value)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
