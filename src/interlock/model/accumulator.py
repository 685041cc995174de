"""Tool calls from fragments: the one place where a streamed call is put together, whatever the wire.

Vendors disagree about which of index, id and name a fragment carries. A fragment belongs to

1. a new call, if its id is known but it opens an unused index and carries a name (ids that are not unique);
2. otherwise the call with its id;
3. a new call, if its id is new and its index is in use (every parallel call numbered 0) or it has no index;
4. otherwise the latest call of its index, otherwise the call written last, otherwise a new one.

Two cases would lose a call under these rules alone. An id may come later than the rest of its call: it is adopted
by a call that has none. And whole calls may come without any id, or one twice under the same id: a name that
arrives when the arguments are already one complete JSON object starts a new call. Nothing else is concluded from
arguments that happen to parse: a call is finished when the response is.
"""

from __future__ import annotations

import msgspec

from ..events import ToolCallDelta
from ..messages import ToolCall, clean

__all__ = ["ToolCalls"]

# A name in pieces grows by copying; beyond this it is the name of no tool, and further pieces are left out.
_JOINED_NAME_MAX = 1024

# How often the arguments of one call are looked at as a whole. Only text full of "}" and "{" makes it look in vain.
_LOOKS_MAX = 16


class _Call:
    __slots__ = ("id", "looks", "name", "parts", "place")

    def __init__(self, place: int, id: str) -> None:
        self.place = place
        self.id = id
        self.name = ""
        self.parts: list[str] = []
        self.looks = 0


class ToolCalls:
    """Collects the fragments of one response. ``add`` each in order of arrival, then ``finish`` once."""

    __slots__ = ("_by_id", "_by_index", "_calls", "_current", "_index")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._current: _Call | None = None
        self._index: int | None = None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(
        self, index: int | None = None, id: str | None = None, name: str | None = None, arguments: str | None = None
    ) -> ToolCallDelta | None:
        """Take one fragment, any part of which may be missing.

        Returns what there is to show of it, or None for a fragment that says nothing.
        """
        call = self._current
        # The common fragment, first: more arguments for the call that is being written.
        if id or name or call is None or index != self._index:
            if call is None and not (id or name or arguments):
                return None
            call = self._find(index, id or "", name or "", arguments or "")
            self._current, self._index = call, index
            if index is not None:
                self._by_index[index] = call
            if id:
                self._by_id[id] = call
            if name and name != call.name and (not call.name or len(call.name) + len(name) <= _JOINED_NAME_MAX):
                call.name += name
        if arguments:
            call.parts.append(arguments)
        return ToolCallDelta(call.place, call.id, call.name, arguments or "")

    def _find(self, index: int | None, id: str, name: str, arguments: str) -> _Call:
        known = self._by_id.get(id) if id else None
        at_index = None if index is None else self._by_index.get(index)
        if known is not None:
            opens = bool(name) and index is not None and at_index is None
            call = None if opens else known
        elif id:
            call = self._current if index is None else at_index
            if call is not None and not _adopts(call, id, name):
                call = None
        else:
            call = at_index or (None if index is not None and name else self._current)
        if call is None or (name and _starts_over(call, name, arguments)):
            call = _Call(len(self._calls), id)
            self._calls.append(call)
        return call

    def finish(self) -> tuple[ToolCall, ...]:
        """The calls in order of their first fragments, arguments joined as they came.

        A call without name and arguments is none. Calls equal in id, name and arguments are one, unless the id is
        missing. A missing id stays ``""`` and an id may occur twice: who owns the session gives fresh ones.
        """
        calls: dict[tuple[object, ...], ToolCall] = {}
        for call in self._calls:
            arguments = "".join(call.parts)
            if call.name or arguments.strip():
                made = ToolCall(id=clean(call.id), name=clean(call.name), arguments=clean(arguments))
                calls.setdefault((made.id or call.place, made.name, made.arguments), made)
        return tuple(calls.values())


def _adopts(call: _Call, id: str, name: str) -> bool:
    """Whether a new id is the late id of ``call``: it has none, and the fragment does not open another call."""
    if call.id or (name and (call.parts or call.name not in ("", name))):
        return False
    call.id = id
    return True


def _starts_over(call: _Call, name: str, arguments: str) -> bool:
    """Whether a fragment that carries a name opens a further call although index and id point at ``call``."""
    if not call.parts or not (name != call.name or arguments.lstrip().startswith("{")):
        return False
    if call.looks >= _LOOKS_MAX or not call.parts[-1].rstrip().endswith("}"):
        return False
    call.looks += 1
    try:
        return isinstance(msgspec.json.decode("".join(call.parts)), dict)
    except (ValueError, RecursionError):
        return False
