"""``Files``: the file tools, and a memory of what the session has seen of each file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..errors import ToolFailure
from ..records import ExtensionNoted, Record
from ..toolbox.directory import shown_path
from ..toolbox.files import Seen, file_tools, preview
from ..toolbox.reading import FileText
from ..toolbox.roots import Roots, RootsLike
from ..tools import Tool
from .base import AgentExtension, CallNext, RunContext, ToolInvocation
from .secrets import RedactSecrets

__all__ = ["Files", "readable"]

# A session that looks at more files than this forgets those that it saw first, and has to read them again.
REMEMBERED_MAX = 5000
LINES_ASKED_MAX = 200
LINE_CHARACTERS_MAX = 400
CHANGING = frozenset({"write_file", "edit_file"})


class Files(AgentExtension):
    """Brings list_files, find_files, read_file, search_text, write_file and edit_file, confined to ``roots``.

    A file that exists is overwritten only if this session has read it, and as it was read: what somebody else has written since is
    said, not lost. What was seen is in the journal, as a digest per file, so that it holds over crashes and in every process. roots: see
    ``toolbox.roots.Roots``. approval: whether a person is asked before each change; False leaves that to a policy. Raises UsageError if one
    is no readable directory.
    """

    # Inside yours, so that it sees what the handler returned. If a layer further in changes a file's text, nobody has seen the file as it
    # is, and it is not overwritten.
    priority = 890

    def __init__(self, roots: RootsLike = ".", *, approval: bool = True) -> None:
        self.roots = Roots(roots)
        self._tools = file_tools(self.roots, guarded=True, approval=approval)

    def tools(self) -> Sequence[Tool]:
        return self._tools

    def instructions(self, context: RunContext) -> str | None:
        """How paths begin, where there are several roots."""
        names = self.roots.names
        return f"The files are in these directories, whose names paths begin with: {', '.join(names)}." if names else None

    def fold(self, memory: Any, record: Record) -> Any:
        if type(record) is not ExtensionNoted or record.extension != self.name:
            return memory
        data = cast("dict[str, Any]", record.data) if isinstance(record.data, dict) else {}
        path, digest = data.get("path"), data.get("digest")
        if not isinstance(path, str) or not isinstance(digest, str):  # another extension of that name has noted it
            return memory
        known: Mapping[str, str] = memory.digests if isinstance(memory, Seen) else {}
        # The one that was seen last is last, so that the first is the one to forget.
        digests = {name: value for name, value in known.items() if name != path} | {path: digest}
        if len(digests) > REMEMBERED_MAX:
            del digests[next(iter(digests))]
        return Seen(digests)

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        self._spell(call)
        result = await call_next()
        if isinstance(result, FileText) and self._is_news(context.memory, result) and not _is_hidden(context, call.name, result):
            context.note({"path": result.path, "digest": result.digest})
        return result

    async def question(self, context: RunContext, call: ToolInvocation) -> bool | str:
        """For an approval: what a call of write_file or edit_file would change now, as a question; False for any other tool."""
        if call.name not in CHANGING:
            return False
        return await asyncio.to_thread(self._question, call.name, dict(call.arguments))

    def change(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a call of write_file or edit_file would change now, as a person reads it; "" for any other tool. It reads the file."""
        return readable(preview(self.roots, name, arguments)) if name in CHANGING else ""

    def _question(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"May {name} change {shown_path(str(arguments.get('path')))}?\n{self.change(name, arguments)}"

    def _spell(self, call: ToolInvocation) -> None:
        """Of several roots, what a policy reads is the spelling that begins with a root's name, whichever the model has chosen."""
        path = call.arguments.get("path")
        if self.roots.names and call.tool in self._tools and isinstance(path, str) and path.startswith("/"):
            try:
                call.arguments["path"] = self.roots.at(path).shown
            except ToolFailure:  # the tool says so, too
                pass

    @staticmethod
    def _is_news(memory: Any, result: FileText) -> bool:
        return not isinstance(memory, Seen) or memory.digests.get(result.path) != result.digest


def _is_hidden(context: RunContext, name: str, text: str) -> bool:
    """Whether the model is shown something else than stands in the file: what it then wrote would take the place of a secret."""
    secrets = context.find(RedactSecrets) if name == "read_file" else None
    return secrets is not None and secrets.clean(text) != text


def readable(change: str) -> str:
    """What a person can read of a change; all of it is in the arguments."""
    lines = [line if len(line) <= LINE_CHARACTERS_MAX else f"{line[:LINE_CHARACTERS_MAX]}[...]" for line in change.split("\n")]
    if (out := len(lines) - LINES_ASKED_MAX) > 0:
        half = LINES_ASKED_MAX // 2
        lines[half : half + out] = [f"[... {out} lines are left out here ...]"]
    return "\n".join(lines)
