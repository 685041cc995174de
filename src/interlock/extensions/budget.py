"""``Budget``: so many calls of a tool, or so much of one of its arguments, per run or per session. Counted from the journal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple, cast

import msgspec

from ..errors import ToolFailure, UsageError
from ..records import ExtensionNoted, HandlerStarted, Record, RunStarted, ToolStepEnded
from .base import AgentExtension, CallNext, RunContext, ToolInvocation

NOTHING = Decimal(0)
# A longer number is none that anybody means, and adding it up is not free.
DIGITS_MAX = 64


class Spent(NamedTuple):
    """calls and amount: of calls that may have done something and are over. open: by key, what calls that are not over have reserved."""

    calls: int = 0
    amount: Decimal = NOTHING
    open: Mapping[str, Decimal] = {}

    def total(self, without: str) -> tuple[int, Decimal]:
        """All of it, but for what the call ``without`` has reserved."""
        others = [amount for key, amount in self.open.items() if key != without]
        return self.calls + len(others), sum(others, self.amount)


class Budget(AgentExtension):
    """A call that would pass the budget is vetoed. At least one of ``calls`` and ``at_most`` is needed.

    tool: whose calls; None counts all tools together. calls: how many. sum and at_most: the argument that is added up, and the most that it
    may come to. per: what is counted, ``run`` or ``session``.

    Each call reserves its share before it goes on, in the journal, so parallel calls cannot pass together, and a crash or another process
    changes nothing. It is given back if the call had no effect (it was vetoed further in, denied, or its handler says so); a call whose
    effect is unknown has spent it. An argument that is no number, or a negative one, is a veto.
    Its place is inside your layers and hooks, so that it sees what they have edited, and outside a policy. Raises UsageError.
    """

    priority = 900

    def __init__(
        self,
        tool: str | None = None,
        *,
        calls: int | None = None,
        sum: str | None = None,
        at_most: float | Decimal | None = None,
        per: Literal["run", "session"] = "run",
    ) -> None:
        _check(calls, sum, at_most, per)
        self._tool = tool
        self._calls = calls
        self._sum = sum
        self._at_most = None if at_most is None else _number(at_most)
        self._per = per
        # Not the bounds: they may be changed, and what was spent before still counts.
        self.name = f"Budget({tool or 'all tools'}{f', {sum}' if sum else ''}, per {per})"

    async def on_tool_call(self, context: RunContext, call: ToolInvocation, call_next: CallNext) -> Any:
        if self._tool is not None and call.name != self._tool:
            return await call_next()
        amount = self._amount_of(call)
        spent = context.memory if isinstance(context.memory, Spent) else Spent()
        calls, total = spent.total(without=call.key)
        if self._calls is not None and calls >= self._calls:
            raise ToolFailure(f"the budget of {self._what()} is spent: {_times(self._calls)}, and there were {calls}", effect="none")
        if self._at_most is not None and total + amount > self._at_most:
            what = f"sum of {self._sum} may come to {self._at_most}, {total} is spent or reserved, and this call asks for {amount}"
            raise ToolFailure(f"the budget of {self._what()} would be passed: {what}", effect="none")
        context.note({"key": call.key, "amount": str(amount)})  # folded at once: the next call sees it
        return await call_next()

    def fold(self, memory: Any, record: Record) -> Any:
        kind = type(record)
        if kind is ExtensionNoted or kind is HandlerStarted or kind is ToolStepEnded:
            spent = memory if isinstance(memory, Spent) else Spent()
            return self._after(spent, record)
        if kind is RunStarted and self._per == "run":
            return Spent()
        return memory

    def _after(self, spent: Spent, record: Record) -> Spent:
        match record:
            case ExtensionNoted(extension=self.name, data={"key": str(key), "amount": str(amount)}):
                return spent._replace(open={**spent.open, key: self._noted(amount)})
            case HandlerStarted(key=key) if key in spent.open:
                return spent._replace(open={**spent.open, key: self._started(record, spent.open[key])})
            case ToolStepEnded(key=key, effect=effect) if key in spent.open:
                left = {other: amount for other, amount in spent.open.items() if other != key}
                if effect == "none":
                    return spent._replace(open=left)
                return Spent(spent.calls + 1, spent.amount + spent.open[key], left)
            case _:
                return spent

    def _noted(self, amount: str) -> Decimal:
        """What a call has reserved; all of the budget, should a redaction have made something else of the number."""
        try:
            return _number(amount)
        except ValueError:
            return self._at_most or NOTHING

    def _started(self, record: HandlerStarted, reserved: Decimal) -> Decimal:
        """What it really is: a layer further in may have changed the argument. As reserved, if it is not stored as it was."""
        if self._sum is None or record.redacted:
            return reserved
        try:
            arguments: Any = msgspec.json.decode(record.arguments)
            return _number(arguments.get(self._sum, 0))
        except (msgspec.MsgspecError, AttributeError, ValueError):
            return reserved

    def _amount_of(self, call: ToolInvocation) -> Decimal:
        if self._sum is None:
            return NOTHING
        try:
            amount = _number(call.arguments[self._sum])
        except (KeyError, ValueError):
            raise ToolFailure(f"the budget of {self._what()} needs a number as {self._sum}", effect="none") from None
        if amount < 0:
            raise ToolFailure(f"the budget of {self._what()} takes no negative {self._sum}", effect="none")
        return amount

    def _what(self) -> str:
        return f"{self._tool or 'all tools'} per {self._per}"


def _number(value: Any) -> Decimal:
    """Exact, as it is written. Raises ValueError for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError("no number")
    text = str(value)
    if len(text) > DIGITS_MAX:
        raise ValueError("too long")
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError("no number") from None
    if not number.is_finite() or abs(number.adjusted()) > DIGITS_MAX:
        raise ValueError("no finite number")
    return number


def _times(calls: int) -> str:
    return f"{calls} call{'s' if calls != 1 else ''}"


def _check(calls: Any, sum: Any, at_most: Any, per: Any) -> None:
    if calls is None and at_most is None:
        raise UsageError("Budget: calls=... or sum=..., at_most=... is needed")
    if calls is not None and (isinstance(calls, bool) or not isinstance(calls, int) or calls < 0):
        raise UsageError(f"Budget(calls=...): a whole number is needed, not {calls!r}")
    if (sum is None) != (at_most is None) or not isinstance(sum, str | None):
        raise UsageError("Budget: sum=... (the name of an argument) and at_most=... belong together")
    if at_most is not None:
        finite = isinstance(at_most, int | Decimal) or (isinstance(at_most, float) and math.isfinite(at_most))
        if isinstance(at_most, bool) or not finite or cast("Any", at_most) < 0:
            raise UsageError(f"Budget(at_most=...): a finite number is needed, not {at_most!r}")
    if per not in ("run", "session"):
        raise UsageError(f"Budget(per=...): 'run' or 'session' is needed, not {per!r}")
