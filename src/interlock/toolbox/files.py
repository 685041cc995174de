"""Changing files: write and edit, whole or not at all, and never over something that nobody has seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import ToolFailure
from ..messages import clean
from ..tools import Reconciled, RunContext, Tool, happened, tool, unknown
from .directory import refused, shown_path
from .editing import Edit, edited
from .reading import FILE_BYTES_MAX, FileText, digest_of, reading_tools
from .roots import Place, Roots, RootsLike
from .text_files import Text, as_text, diff_of, lines_of, newline_of, to_bytes, with_newlines
from .writing import rewrite

__all__ = ["Seen", "changed_since", "edit_of", "file_tools", "preview"]


class Seen(NamedTuple):
    """What a session has seen of files. digests: of the content that it read or wrote last, by ``Place.shown``."""

    digests: Mapping[str, str]


def file_tools(roots: RootsLike | Roots = ".", *, guarded: bool = False, approval: bool = True) -> tuple[Tool, ...]:
    """list_files, find_files, read_file, search_text, write_file and edit_file, confined to ``roots`` (see ``Roots``).

    guarded: the extension that brings them keeps ``Seen`` as its memory; then a file is overwritten only if the session has read it as it
    is now. ``extensions.files.Files`` is that extension. approval: whether a person is asked before each change; False leaves that to a
    policy. Raises UsageError if a root is not a readable directory.
    """
    known = roots if isinstance(roots, Roots) else Roots(roots)
    return (
        *reading_tools(known),
        _write_tool(known, guarded=guarded, approval=approval),
        _edit_tool(known, guarded=guarded, approval=approval),
    )


def _write_tool(roots: Roots, *, guarded: bool, approval: bool) -> Tool:
    def what_became(idempotency_key: str, arguments: dict[str, Any]) -> Reconciled:
        """After a crash: a file that holds the text was written, now or before; any other proves nothing."""
        path, content = arguments["path"], arguments["content"]
        try:
            place = roots.at(path)
            held = as_text(path, place.directory.read(place.path, bytes_max=FILE_BYTES_MAX)).text
        except ToolFailure as failure:
            return unknown(str(failure))
        if with_newlines(held, "\n") == with_newlines(clean(content), "\n"):
            return happened(f"{path} holds the text")
        return unknown("the file holds something else; read it")

    # A barrier in call order: what is read beside it in the same batch was asked for before or after it, and not meanwhile.
    @tool(parallel=False, requires_approval=approval, reconcile=what_became)
    def write_file(path: str, content: str, context: RunContext) -> str:
        """Write a whole text file: a new one, or over one that was read before. To change a part of a file, use edit_file.

        Args:
            path: The file, relative to the working directory. Directories that are missing are made.
            content: The whole text.
        """
        if path.endswith("/"):
            raise refused(path, "it is named as a directory", "write")
        place, before = roots.at(path), Text("")
        notes: list[str] = []

        def make(present: bytes | None) -> bytes:
            nonlocal before
            if present is None:
                return to_bytes(path, clean(content), before)
            before = as_text(path, present)
            _check_seen(place, path, present, _seen(context, guarded=guarded), "read it first, or change a part of it with edit_file")
            text = with_newlines(clean(content), newline_of(before.text))
            try:
                return to_bytes(path, text, before)
            except ToolFailure:
                notes.append(f"It is UTF-8 now; it was {before.encoding.upper()}.")
                return to_bytes(path, text, Text(""))

        done = rewrite(place.directory, place.path, make, bytes_max=FILE_BYTES_MAX, create=True)
        text = as_text(path, done.after).text
        lines, bytes_ = len(lines_of(text)), len(done.after)
        size = f"{lines:,} line{'' if lines == 1 else 's'}, {bytes_:,} byte{'' if bytes_ == 1 else 's'}"
        if done.before is None:
            said = f"{shown_path(path)} is new: {size}"
        elif done.before == done.after:
            said = f"{shown_path(path)} held that very text already: {size}"
        else:
            said = f"{shown_path(path)} was overwritten: {size}\n{diff_of(place.shown, before.text, text)}".rstrip()
        return FileText.of(clean("\n".join([said, *notes])), place, done.after)

    return write_file


def _edit_tool(roots: Roots, *, guarded: bool, approval: bool) -> Tool:
    @tool(parallel=False, requires_approval=approval)
    def edit_file(path: str, old: str, new: str, context: RunContext, every: bool = False) -> str:
        """Replace an exact text in a file. Nothing is changed unless old is found, exactly once or with every=true.

        Args:
            path: The file, relative to the working directory.
            old: The text to replace, exactly as it stands in the file, with so much around it that it occurs only once.
            new: What stands there instead.
            every: Replace each occurrence.
        """
        place, texts = roots.at(path), ("", "")

        def make(present: bytes | None) -> bytes:
            nonlocal texts
            data = present or b""
            try:
                before, after = edit_of(path, data, Edit(old, new, every))
            except ToolFailure as failure:
                if changed_since(place, data, _seen(context, guarded=guarded)):
                    raise ToolFailure(f"{failure} (The file was changed since it was read.)", effect="none") from failure
                raise
            texts = (before.text, after)
            return to_bytes(path, after, before)

        done = rewrite(place.directory, place.path, make, bytes_max=FILE_BYTES_MAX, create=False)
        said = diff_of(place.shown, *texts) or f"{shown_path(path)}: only line ends were changed"
        seen, was = _seen(context, guarded=guarded), done.before or b""
        if changed_since(place, was, seen):
            said += "\n[The file had been changed since it was read; the rest of it may be new to you.]"
        if seen is not None and seen.digests.get(place.shown) != digest_of(was):  # what stands around the edit was not seen, nor is it now
            return clean(said)
        return FileText.of(clean(said), place, done.after)

    return edit_file


def edit_of(path: str, data: bytes, edit: Edit) -> tuple[Text, str]:
    """The text of a file's bytes, and the text that it becomes. Raises ToolFailure, which helps to get it right."""
    before = as_text(path, data)
    return before, edited(path, before.text, edit)


def preview(roots: Roots, name: str, arguments: Mapping[str, Any]) -> str:
    """What a call of write_file or edit_file would change now, as a unified diff; or why it would fail. Nothing is changed."""
    path = str(arguments.get("path", ""))
    try:
        place = roots.at(path)
        if name == "edit_file":
            data = place.directory.read(place.path, bytes_max=FILE_BYTES_MAX)
            edit = Edit(str(arguments.get("old", "")), str(arguments.get("new", "")), bool(arguments.get("every", False)))
            before, after = edit_of(path, data, edit)
            return diff_of(place.shown, before.text, after) or "[only line ends would change]"
        content = str(arguments.get("content", ""))
        try:
            data = place.directory.read(place.path, bytes_max=FILE_BYTES_MAX)
        except ToolFailure as failure:
            if not isinstance(failure.__cause__, FileNotFoundError):
                raise
            data = None
        before = as_text(path, data or b"")
        change = diff_of(place.shown, before.text, with_newlines(clean(content), newline_of(before.text)))
        return change or ("[a new file with nothing in it]" if data is None else "[nothing would change]")
    except ToolFailure as failure:
        return f"It would fail: {failure}"


def changed_since(place: Place, data: bytes, seen: Seen | None) -> bool:
    """Whether the session has seen the file, and with another content than ``data``."""
    known = None if seen is None else seen.digests.get(place.shown)
    return known is not None and known != digest_of(data)


def _check_seen(place: Place, path: str, present: bytes, seen: Seen | None, otherwise: str) -> None:
    if seen is None:
        return
    if place.shown not in seen.digests:
        raise ToolFailure(f"{path!r} exists, and was not read in this session: {otherwise}", effect="none")
    if changed_since(place, present, seen):
        raise ToolFailure(f"{path!r} was changed since it was read: read it again before it is overwritten", effect="none")


def _seen(context: RunContext, *, guarded: bool) -> Seen | None:
    """None if nobody keeps it."""
    if not guarded:
        return None
    return context.memory if isinstance(context.memory, Seen) else Seen({})
