"""Going on with a run that another process, or another agent, began: what has changed is said, and what is missing refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from ..errors import CommandRefused, NothingToResume
from ..machine import State, expired, is_open, is_stalled
from ..records import Limits
from .setup import Parts

if TYPE_CHECKING:
    from .run import Run

# Bounds of what this process does, not of the run's course: the machine never looks at them.
_OF_THE_PROCESS = frozenset(
    (
        *("deadline_s", "drain_s", "event_buffer", "lease_s", "nesting", "prompt_bytes"),
        *("reconcile_s", "result_bytes", "result_store_bytes", "worker_threads", "worker_wait_s"),
    )
)

DRY_RUN = "dry run"
"""The part of a fingerprint that says that no tool is executed."""

logger = logging.getLogger("interlock.driver")


def reopen(run: Run) -> None:
    """Make the open run one that can be driven on. Raises NothingToResume, and what ``go_on`` raises."""
    session = run.session
    if not is_open(session.state):
        raise NothingToResume(f"session {session.session_id!r} has no open run")
    go_on(run)
    if is_stalled(session.state):
        session.reopen(version=run.version)


def go_on(run: Run) -> None:
    """Say what has changed since the open run was begun, and expire its questions. Raises CommandRefused, and nothing is recorded, if it
    was begun with a tool that this agent does not have, under a policy that it does not hold, or as a dry run, which it is not."""
    state, parts = run.session.state, run.parts
    missing = missing_tools(state, parts)
    if missing:
        raise CommandRefused(
            f"session {run.session.session_id!r} cannot go on: its run {state.run_id!r} was begun with tools that this agent does not have "
            f"({', '.join(missing)}). Create the agent with them, in the program that has them; or begin a new run, which ends the open one"
        )
    unheld = missing_policies(state, parts)
    if unheld:
        raise CommandRefused(
            f"session {run.session.session_id!r} cannot go on: its run {state.run_id!r} was begun under the policy "
            f"{', '.join(unheld)}, which this agent does not hold. Create the agent with it; or begin a new run, which ends the open one"
        )
    if lost_dry_run(state, parts):
        raise CommandRefused(
            f"session {run.session.session_id!r} cannot go on: its run {state.run_id!r} was begun as a dry run, and this agent would "
            "execute what is still open. Create the agent with DryRun() (--dry-run); or begin a new run, which ends the open one"
        )
    for change in changes(state, parts, run.config.limits):
        logger.warning("session %s goes on, but not as its run was begun: %s", run.session.session_id, change)
    for record in expired(state, parts.clock()):  # nobody answered: a denial
        run.session.commit(record)


def missing_policies(state: State, parts: Parts) -> tuple[str, ...]:
    """The policies that the open run was begun under and that this agent does not hold, by name."""
    return tuple(part.removeprefix("policy ") for part in state.fingerprint if part.startswith("policy ") and part not in parts.fingerprint)


def lost_dry_run(state: State, parts: Parts) -> bool:
    """Whether the open run was begun as a dry run and this agent would execute its calls."""
    return DRY_RUN in state.fingerprint and DRY_RUN not in parts.fingerprint


def missing_tools(state: State, parts: Parts) -> tuple[str, ...]:
    """The tools of the open run that this agent does not have, by name."""
    return tuple(name for name in state.traits if name not in parts.tools)


def changes(state: State, parts: Parts, limits: Limits) -> tuple[str, ...]:
    """What differs between the agent that began the open run and this one, a sentence each; nothing if no run is open."""
    before, now = state.fingerprint, parts.fingerprint
    said: list[str] = []
    if not before:
        return ()
    if before.get("model") != now.get("model"):
        said.append(f"the model was {before.get('model')} and is {now.get('model')}")
    if before.get("system") != now.get("system"):
        said.append("the system prompt is another one")
    if before.get("output") != now.get("output"):
        said.append("the form of the answer is another one")
    policies = [part for part in before if part.startswith("policy ") and part in now and _changed(before, now, part)]
    said += [f"the {part} was {before[part]} and is {now[part]}, which holds from now on" for part in policies]
    said += [f"the {part} is new, and holds from now on" for part in now if part.startswith("policy ") and part not in before]
    tools = [name for name in parts.tools if name in state.traits]
    said += [f"the description or the schema of the tool {name} is another one" for name in tools if _changed(before, now, f"tool {name}")]
    said += [
        f"the traits of the tool {name} are others; those of the run hold" for name in tools if parts.traits[name] != state.traits[name]
    ]
    said += [f"the tool {name} is new; the run does not have it" for name in parts.tools if name not in state.traits]
    old, new = asdict(state.limits), asdict(limits)
    for name in (name for name in old if old[name] != new[name]):
        holds = f"is {new[name]} now" if name in _OF_THE_PROCESS else f"stays so (this agent has {new[name]})"
        said.append(f"limits.{name} was {old[name]} and {holds}")
    return tuple(said)


def _changed(before: dict[str, str], now: dict[str, str], part: str) -> bool:
    return before.get(part) != now.get(part)
