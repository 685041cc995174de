"""What a handler or a layer may ask of the run it is part of."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..messages import Usage
from ..records import Scope

T = TypeVar("T")

current_call: ContextVar[str | None] = ContextVar("interlock_tool_call_id", default=None)


def current_tool_call_id() -> str | None:
    """The id of the tool call that this task or worker thread is part of; None outside a call."""
    return current_call.get()


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    DepsT = TypeVar("DepsT", default=Any, covariant=True)
else:
    DepsT = TypeVar("DepsT", covariant=True)


class RunContext(Protocol[DepsT]):
    """The run, as a handler and a layer see it. A parameter annotated with this class is filled in and not shown to the model.

    ``RunContext[Deps]`` says the type of ``deps`` to a type checker. One context serves one extension (or the handlers)
    for one run; inside a call it knows which call it is in.
    """

    @property
    def session_id(self) -> str:
        """The conversation that this run is part of."""
        ...

    @property
    def run_id(self) -> str:
        """This run; another one for each prompt."""
        ...

    @property
    def deps(self) -> DepsT:
        """What the run's config carries for tools and layers."""
        ...

    @property
    def answer(self) -> Any:
        """A person's answer to the question that this call was suspended on; None if there was none."""
        ...

    @property
    def asked(self) -> bool:
        """In a layer: whether the question that the current call was last suspended on was this extension's own."""
        ...

    @property
    def granted(self) -> tuple[Scope, ...]:
        """How far beyond once a person has allowed the current call, with the arguments that it has now.

        ``"session"`` and ``"tool"``: what ``Allow(scope)`` said of an earlier call of this session, or of this one, at a question that
        offered it. ``"always"``: that was the answer about this very call; whoever offered it sees to it that it is remembered.
        """
        ...

    @property
    def memory(self) -> Any:
        """What this extension's ``fold`` has made of the session's records; None if it has no ``fold``."""
        ...

    @property
    def usage(self) -> Usage:
        """What the run has used so far."""
        ...

    @property
    def epoch(self) -> int:
        """The writer's epoch: a fencing token that an outside system can compare."""
        ...

    def find(self, kind: type[T]) -> T | None:
        """The agent's extension of the class ``kind``, the outermost if there are several; None if there is none."""
        ...

    def clock(self) -> float:
        """Seconds since 1970, by the runtime's clock."""
        ...

    def idempotency_key(self) -> str:
        """32 hexadecimal digits, the same for every start of the same call, over crashes too. Give it to the other side, which can then
        refuse a second time. Raises UsageError outside a call."""
        ...

    def note(self, data: Any) -> None:
        """Journal JSON-able ``data`` for this extension (``ExtensionNoted``). Raises UsageError outside an extension."""
        ...

    def emit(self, data: Any) -> None:
        """Show the consumer a ``ToolProgress`` of the current call. From any thread; dropped when the run is over."""
        ...

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a tool through the whole onion and the same door, journaled with the current call as its parent.

        Returns what it returned, raw. Raises what it raised: a veto, its handler's exception. Raises UsageError outside a
        call, for an unknown tool, or deeper than ``limits.nesting``.
        """
        ...

    async def read_payload(self, digest: str) -> bytes | None:
        """The full copy of a capped result, as UTF-8; None if it is not kept. digest: of the result's ``Payload``."""
        ...
