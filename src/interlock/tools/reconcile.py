"""What a tool's ``reconcile`` function answers when it is asked, after a crash, what became of a call."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Reconciled(Struct, frozen=True):
    """What became of a call that had started in a process that is gone. Made by ``happened``, ``did_not_happen`` and ``unknown``."""

    found: Literal["happened", "did_not_happen", "unknown"]
    reason: str = ""


class Happened(Reconciled, frozen=True):
    """It was carried out. result: what the handler would have returned."""

    result: Any = None


def happened(result: Any) -> Reconciled:
    """The call was carried out; ``result`` is what the handler would have returned (anything a handler may return)."""
    return Happened("happened", result=result)


def did_not_happen() -> Reconciled:
    """Nothing was done, and nothing will be. A tool with ``on_crash="rerun"`` is started again; otherwise the model is told."""
    return Reconciled("did_not_happen")


def unknown(reason: str = "") -> Reconciled:
    """Nobody can say. The model is told so, with ``reason``."""
    return Reconciled("unknown", str(reason))
