"""Taking out of a record what must not be written, before it is applied; and what this process alone still knows of a call."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..errors import UsageError
from ..machine import Call, State
from ..records import ExtensionNoted, ModelStepEnded, QuestionAnswered, Record, SessionOpened, ToolStepEnded, ToolStepStarted
from ..records.redaction import marked, what_changed
from .setup import Parts

R = TypeVar("R", bound=Record)


class Redactor:
    """The ``redact`` hooks of an agent's extensions, for one session.

    What they take out of the arguments of a call, or out of the answer to its question, is kept here, in memory, until the call is
    settled: the handler gets what the model asked for. Nobody else knows it, so a call whose process is gone cannot be run any more.
    """

    __slots__ = ("_failure", "_hooks", "_real", "_salt")

    def __init__(self, parts: Parts) -> None:
        self._hooks = tuple((parts.extensions[index].name, parts.extensions[index].redact) for index in parts.redactors)
        self._real: dict[str, dict[str, Any]] = {}
        self._salt = os.urandom(16)
        self._failure: UsageError | None = None

    def redacted(self, record: R) -> R:
        """``record`` as it may be written, through every hook, the outermost first.

        Raises UsageError, which names the extension, if a hook raises or changes what must stay, and from then on always: after
        a hook has failed once nothing more is written.
        """
        if self._failure is not None:
            raise UsageError(*self._failure.args) from self._failure
        after = record
        for name, hook in self._hooks:
            before, what = after, type(record).__name__
            try:
                made: object = hook(before)
            except BaseException as error:  # its text may hold what was to be taken out: the cause has it, the message does not
                failure = self._failed(f"redact of extension {name} raised {type(error).__name__} on {what}; nothing was written")
                if isinstance(error, SystemExit | KeyboardInterrupt):
                    raise
                raise failure from error
            if made is not before and (wrong := what_changed(before, made)):
                raise self._failed(f"redact of extension {name} must keep what is no text of {what}: {wrong}; nothing was written")
            after: R = made  # pyright: ignore[reportAssignmentType]  # its type was checked
        return after if after is record else marked(record, after)

    def shown(self, data: Any) -> Any:
        """``data`` as it may be shown or logged, through every hook; as plain JSON-able values, which is all that a hook looks into."""
        if self._failure is not None:
            raise UsageError(*self._failure.args) from self._failure
        try:
            data = msgspec.to_builtins(data, str_keys=True, enc_hook=str)
        except (TypeError, ValueError, OverflowError, RecursionError):
            data = f"({type(data).__name__}: no text)"
        for name, hook in self._hooks:
            try:
                made: object = hook(ExtensionNoted(extension="interlock", version=1, data=data))
            except Exception as error:
                raise self._failed(f"redact of extension {name} raised {type(error).__name__} on what was to be shown") from error
            if not isinstance(made, ExtensionNoted) or (isinstance(data, str) and not isinstance(made.data, str)):
                raise self._failed(f"redact of extension {name} made something else of what was to be shown")
            data = made.data
        return data

    def keep(self, record: Record, stored: Record, after: State) -> None:
        """Remember what ``stored``, which has just been applied, does not have of ``record``, and forget what is not needed any more."""
        real = self._real
        if isinstance(record, ModelStepEnded) and isinstance(stored, ModelStepEnded):
            keys = tuple(after.calls)
            real.update({keys[n]: {"call": record.message.tool_calls[n]} for n in stored.redacted if n < len(keys)})
        elif isinstance(record, ToolStepStarted) and isinstance(stored, ToolStepStarted):
            if record.call != stored.call:
                real[record.key] = {"call": record.call}
        elif isinstance(record, QuestionAnswered) and isinstance(stored, QuestionAnswered):
            self._keep_answer(record, stored)
        elif isinstance(record, ToolStepEnded):
            real.pop(record.key, None)
        elif isinstance(record, SessionOpened):
            real.clear()
        if not after.calls:
            real.clear()

    def _keep_answer(self, record: QuestionAnswered, stored: QuestionAnswered) -> None:
        known = {name: value for name, value in self._real.get(record.key, {}).items() if name != "answer"}
        if record.verdict == "edit":  # from now on these are the arguments
            known = {"edited": msgspec.json.encode(record.answer).decode()} if stored.redacted else {}
        elif stored.redacted:
            known["answer"] = record.answer
        self._real[record.key] = known

    def real(self, call: Call) -> Call:
        """``call`` as the model and the person meant it."""
        known = self._real.get(call.key)
        return replace(call, **known) if known else call

    def salt(self, key: str) -> bytes:
        """What goes into a digest of the arguments of a call that are not stored: without it they could be guessed from the digest."""
        return b"" if self._real.get(key, _NOTHING).keys().isdisjoint(("call", "edited")) else self._salt

    def _failed(self, message: str) -> UsageError:
        self._failure = UsageError(message)
        return self._failure


_NOTHING: dict[str, Any] = {}
