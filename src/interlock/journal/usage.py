"""What a session cost, as a view over its rows."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ..messages import Usage
from ..records import ModelStepEnded, ModelStepFailed, ModelStepStarted, Row, RunStarted, ToolStepStarted


def usage_by_run(rows: Iterable[Row]) -> dict[str, Usage]:
    """Per run, by run id, in the order in which they started.

    Tokens are what the provider reported (None if it never did; failed attempts count, too), requests are the ones that
    were sent, and tool_calls the calls that entered the onion, each once however often it was suspended or started again.
    """
    runs: dict[str, Usage] = {}
    entered: set[str] = set()
    run_id = ""
    for row in rows:
        match record := row.record:
            case RunStarted():
                run_id = record.run_id
                runs[run_id] = Usage()
            case ModelStepStarted() if run_id:
                runs[run_id] = _counted(runs[run_id], requests=1)
            case ModelStepEnded() | ModelStepFailed() if run_id and record.usage is not None:
                runs[run_id] += replace(record.usage, requests=0, tool_calls=0)
            case ToolStepStarted() if run_id and record.key not in entered:
                entered.add(record.key)
                runs[run_id] = _counted(runs[run_id], tool_calls=1)
            case _:
                pass
    return runs


def usage_of(rows: Iterable[Row]) -> Usage:
    """Of all runs together."""
    return sum(usage_by_run(rows).values(), start=Usage())


def _counted(usage: Usage, *, requests: int = 0, tool_calls: int = 0) -> Usage:
    return replace(usage, requests=usage.requests + requests, tool_calls=usage.tool_calls + tool_calls)
