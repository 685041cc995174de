"""What happens in one simulated world, as data: small enough to print, to shrink and to run again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BEHAVIOURS = (
    *("pass", "veto", "raise_after", "swallow", "twice", "race", "drop", "suspend", "cancel", "stop", "fatal"),
    *("fail", "leave", "nest", "change"),
)
"""What a layer does with a call. drop: answers without delegating. fail: answers with a failure. leave: returns while what it called runs.
cancel: calls on in a task of its own and cancels that. nest: makes a call of its own first. change: spells the arguments differently
from its second entry on. The others say it themselves."""

HANDLERS = ("ok", "slow", "raise", "fail", "fail_none", "nest", "nest_left", "stubborn", "cancelled", "big", "exit")
"""What a handler does. fail_none: fails, has done nothing, and says so. nest_left: makes a call in a task of its own and does
not wait for it. stubborn: does not stop when it is cancelled."""


SECRET = "hush-"
"""How every secret begins."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call, by its number. layers: what each layer does with it, outermost first. nested: the number of the call it makes.

    secret: it has an argument that a redaction takes out of the records, if the script has one.
    arguments: what the model sends instead of ``{"number": ...}``, for a tool of yours.
    """

    tool: str = "pay"
    layers: tuple[str, ...] = ()
    does: str = "ok"
    nested: int | None = None
    secret: bool = False
    arguments: dict[str, Any] | None = None

    def sent(self, number: int) -> dict[str, Any]:
        """The arguments that the model sends."""
        return self.arguments or {"number": number, **({"secret": secret_of(number)} if self.secret else {})}


def secret_of(number: int) -> str:
    """What call ``number`` says that must not be written down."""
    return f"{SECRET}{number}"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says to one request. kind: ``calls``, ``text`` or a fault. calls: numbers of calls. delay_s: before it speaks."""

    kind: str = "text"
    calls: tuple[int, ...] = ()
    delay_s: float = 0.0
    layer: str = "pass"
    """What the layer around the request does, if the script has one."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that strikes at a point. when: ``before`` or ``after``. what: a record type's append, ``flush`` or ``effect``.

    nth: the how manieth such point, from 1. kind: ``crash``, ``freeze``, ``steer``, ``interrupt``, ``cancel``, ``leave``, ``rival``,
    ``answer``, ``io_error``. share: of the buffered rows, how many the disk has after a crash (0 to 1). last_s: how long a
    freeze lasts, or how long after the point a rival comes. move: what a rival does.
    """

    kind: str
    when: str
    what: str
    nth: int = 1
    share: float = 0.0
    last_s: float = 0.0
    move: str = "resume"


@dataclass(frozen=True, slots=True)
class Script:
    """One world. seed: the order of what is ready together (None: as it came).

    moves: what the caller does, one after another: ``run``, ``unanswered`` (a run whose questions nobody answers), ``stream`` (leaves
    early), ``resume``, ``explain``, ``answer``, ``steer``, ``interrupt``, ``cancel``, ``import``, ``fork`` (at every phase),
    ``wait`` (50 s), ``switch`` (to another process), ``bare`` (to one without tools), ``restart``, ``close``.
    answers: what a person says to the questions, in turn: anything, ``"deny"`` or ``"edit"``. expires_s: when a question does.
    redacts: whether an extension takes the secrets of calls out of every record. noted: at which records one takes a note.
    limits: fields of Limits. flush_s: how long the disk takes.
    same_machine: whether a dead process's lease is known to be void.
    """

    seed: int | None = None
    calls: tuple[Call, ...] = ()
    replies: tuple[Reply, ...] = ()
    moves: tuple[str, ...] = ("run",)
    acts: tuple[Act, ...] = ()
    answers: tuple[Any, ...] = (True,)
    layers: int = 1
    model_layer: bool = False
    redacts: bool = False
    noted: tuple[str, ...] = ()
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    flush_s: float = 0.0
    expires_s: float | None = None
    same_machine: bool = True

    def call(self, number: int) -> Call:
        """The call of this number; one that does nothing special where a script was cut short."""
        return self.calls[number] if 0 <= number < len(self.calls) else Call()


def elements(script: Script) -> int:
    """How large a script is: what shrinking makes smaller."""
    plain = Call()
    oddities = sum(
        call.secret + (call.does != "ok") + (call.tool != plain.tool) + sum(layer != "pass" for layer in call.layers)
        for call in script.calls
    )
    oddities += sum((reply.layer != "pass") + (reply.delay_s > 0) + len(reply.calls) for reply in script.replies)
    flags = (
        (script.expires_s is not None)
        + script.model_layer
        + (script.flush_s > 0)
        + (script.seed is not None)
        + (not script.same_machine)
        + script.layers
    )
    return (
        len(script.replies)
        + len(script.moves)
        + len(script.answers)
        + 2 * len(script.acts)
        + len(script.noted)
        + len(script.limits)
        + oddities
        + flags
    )
