"""Every bound of the runtime, in one table. Reaching one is a typed outcome or a typed error, never silence."""

from __future__ import annotations

import math

from msgspec import Struct

from ..errors import UsageError

# What a stored row can hold; beyond it a limit is none.
_NUMBER_MAX = 2**63 - 1
_MAY_BE_NONE = frozenset({"tool_calls", "tokens", "cost_usd", "deadline_s", "repeated_results", "repeated_failures", "repeated_effects"})


class Limits(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The bounds of a run. "3 in a row" is three re-prompts, so four requests. Durations are in seconds, sizes in bytes.

    Raises UsageError for a value of the wrong type, a negative one, or NaN.
    """

    # End LIMIT, with the field's name as the reason (``deadline_s`` as ``deadline``).
    requests: int = 25
    """Model requests of a run, re-prompts, retries and continuations included."""
    tool_calls: int | None = None
    """Calls of a run that enter the onion. What would pass it is settled without running."""
    tokens: int | None = None
    """Input and output tokens of a run, as far as the provider reports them. No request is made that would pass it if it takes as many as
    the one before."""
    cost_usd: float | None = None
    """Dollars of a run, by the model's price list. No request is made that would pass it if it costs as much as the one before."""
    deadline_s: float | None = None
    """Wall clock of a run, in seconds."""

    # End LIMIT ``loop``: the call that would pass it is settled without running. None is no guard. Counted anew in each run.
    repeated_results: int | None = None
    """How often the same call may give the same result, with nothing new in between."""
    repeated_failures: int | None = None
    """How often the same call may fail in the same way, with nothing new in between."""
    repeated_effects: int | None = None
    """How often the same call may be executed in a run, whatever comes of it; not for tools with ``on_crash="rerun"``."""

    # End INCOMPLETE, each with a code of its own.
    dropped_calls: int = 3
    """Re-prompts in a row after a call that was announced but not included: ``dropped_tool_call``."""
    empty_replies: int = 2
    """Re-prompts in a row after nothing at all: ``empty_reply``."""
    reasoning_only: int = 2
    """Re-prompts in a row after reasoning without text or calls: ``reasoning_only``."""
    malformed_calls: int = 3
    """Further requests in a row after a batch in which no call could run: ``malformed_tool_call``."""
    continuations: int = 3
    """Continuations of an answer that a length limit cut: ``length``."""
    invalid_outputs: int = 3
    """Re-prompts in a row after an answer that is not of the form asked for: ``invalid_output``."""
    pauses: int = 5
    """Continuations of a turn that the provider paused: ``pause``."""

    # End in ProviderError; the session can be resumed.
    model_attempts: int = 4
    """Attempts of one model step, the first included."""
    backoff_s: float = 0.5
    """Wait before the second attempt; doubled for each further one."""
    backoff_max_s: float = 8.0
    """The longest such wait."""
    retry_after_max_s: float = 60.0
    """A provider that asks for a longer wait fails the step at once, and the error says how long it asked."""

    # Settle the call, and go on.
    result_bytes: int = 64 * 1024
    """What the model sees of one result; the full copy is kept and can be read with ``read_result``."""
    result_store_bytes: int = 64 * 1024 * 1024
    """The largest full copy that is kept."""
    prompt_bytes: int = 16 * 1024 * 1024
    """The largest prompt or steering message; a larger one is a UsageError."""
    parallel_calls: int = 128
    """Calls of one session that may be in the onion at once; the others of their batch wait."""
    reconcile_s: float = 30.0
    """How long a tool's ``reconcile`` may take, unless the tool has a ``timeout_s``; then it is unknown what became of the call."""
    nesting: int = 8
    """How deep a tool may call tools."""

    # Bound the runtime itself.
    drain_s: float = 0.25
    """How long a cancelled call or layer is waited for before the run ends without it; it is awaited in the background."""
    worker_threads: int = 64
    """Threads for synchronous handlers, per agent."""
    worker_wait_s: float = 5.0
    """How long a call waits for a free worker thread before it is refused."""
    event_buffer: int = 256
    """Events that may wait for a consumer before the producer is slowed down."""
    lease_s: float = 15.0
    """How long a session's lease outlives the last sign of life of its process."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:  # fields() of msgspec reads the annotations anew: 1 ms for each RunStarted that is read
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            number = (int, float) if name.endswith(("_s", "_usd")) else (int,)
            if isinstance(value, bool) or not isinstance(value, number):
                kind = "a number of seconds" if name.endswith("_s") else "a number" if name.endswith("_usd") else "a whole number"
                raise UsageError(f"Limits({name}=...): {kind} is needed, not {value!r}")
            if not value >= 0 or (value > _NUMBER_MAX and not (math.isinf(value) and name == "deadline_s")):
                raise UsageError(f"Limits({name}=...): {value!r} is out of range")
        for name in ("requests", "model_attempts", "parallel_calls", "worker_threads", "event_buffer"):
            if getattr(self, name) < 1:
                raise UsageError(f"Limits({name}=...): at least 1 is needed")
        for name in ("repeated_results", "repeated_failures", "repeated_effects"):
            if getattr(self, name) == 0:
                raise UsageError(f"Limits({name}=...): at least 1 is needed, or None for no guard")
