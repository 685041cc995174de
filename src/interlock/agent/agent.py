"""The facade: one object that serves many sessions at once."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..driver.session import LiveSession
from ..errors import UsageError
from ..events import Event
from ..journal.base import Journal
from ..journal.transcript import Transcript
from ..messages import Message, UserMessage
from ..model import Model
from ..records import Limits, Row, RunResult
from .config import NOTHING_SAID, AgentRunConfig, check_id
from .session import Session

if TYPE_CHECKING:
    from ..driver.replay import Replay
    from ..driver.setup import Parts
    from .plan import ResumePlan
    from .sync import LoopThread

logger = logging.getLogger("interlock.agent")

T = TypeVar("T")

# A conversation that is read again from its journal costs about 3 us per record; one that is kept costs memory.
IDLE_SESSIONS_KEPT = 256


class Agent:
    """A model with its tools, its onion and its journal. Made by ``await Agent.create(...)``; also an async context manager.

    One agent serves many sessions at once; they never mix. A second run on a session that has one alive is SessionBusy.
    """

    def __init__(self, *, parts: Parts, journal: Journal, owns_journal: bool, config: AgentRunConfig, limits: Limits) -> None:
        self.parts = parts
        self.limits = limits
        self.config = config
        said = any(value is not None for name, value in vars(config).items() if name != "session_id")
        self._elsewhere = config if said else NOTHING_SAID
        """What holds for a run in another session than the agent's own."""
        self._journal = journal
        self._owns_journal = owns_journal
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._users = _use(parts.model)
        self._thread: LoopThread | None = None
        self._prompt_of: Callable[[Any, Limits, str], UserMessage] = import_module(".assembly", __package__).prompt_of

    # ---- making one ------------------------------------------------------------------------------------

    @classmethod
    async def create(
        cls,
        model: Model | str,
        *,
        config: AgentRunConfig | None = None,
        tools: Iterable[Any] = (),
        extensions: Iterable[Any] = (),
        without: Iterable[Any] = (),
        system_prompt: str = "",
        journal: Journal | str | None = None,
        limits: Limits | None = None,
        output: Any = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Make an agent.

        model: a Model, or a spec such as ``"openai:NAME"``. config: what holds for every run, unless that says otherwise.
        tools: functions, sync or async, and ``@tool`` ones. extensions: your layers, added to the defaults; an instance of
        a default's class replaces it. without: classes of defaults to leave out. system_prompt: the first message of every
        request. limits: the bounds of every run. journal: ``"memory:"`` (the default: NOTHING survives the process), ``"sqlite:///agent.db"``,
        or a Journal. output: the form of the answer (a pydantic model, a dataclass, a TypedDict, a union of them, ...); ``result.output``
        then is one. clock: seconds since 1970.

        Raises UsageError (what does not fit), JournalError (the journal cannot be opened; nothing was started).
        """
        config = _typed(config, AgentRunConfig, "config") or NOTHING_SAID
        limits = _typed(limits, Limits, "limits") or Limits()
        if not callable(clock):
            raise UsageError(f"clock must be a function that returns seconds since 1970, not {type(clock).__name__}")
        if config.session_id is None:
            config = AgentRunConfig(session_id=f"session-{os.urandom(6).hex()}").over(config)
        found = import_module(".models", __package__).model_of(model)
        parts: Parts = import_module(".assembly", __package__).assemble(
            found,
            tools=tools,
            extensions=extensions,
            without=without,
            system_prompt=system_prompt,
            limits=limits,
            clock=clock,
            output=output,
        )
        owns = journal is None or isinstance(journal, str)
        store: Journal = import_module("..journal", __package__).open_journal(journal)
        await store.open()
        return cls(parts=parts, journal=store, owns_journal=owns, config=config, limits=limits)

    @classmethod
    def create_sync(cls, model: Model | str, **options: Any) -> Self:
        """``create`` for scripts: the agent gets an event loop in a thread of its own. Use ``run_sync`` and ``close_sync``.

        Raises UsageError inside a running event loop.
        """
        thread: LoopThread = import_module(".sync", __package__).LoopThread("create_sync")
        try:
            agent = thread.call(cls.create(model, **options))
        except BaseException:
            thread.close()
            raise
        agent._thread = thread
        return agent

    # ---- running -----------------------------------------------------------------------------------------

    async def run(self, text: Any, *, config: AgentRunConfig | None = None) -> RunResult:
        """Run ``text`` (a string, a UserMessage or a list of parts) to an outcome.

        Returns a RunResult for every outcome, CANCELLED by ``cancel()`` included. Raises UsageError, SessionBusy, ProviderError
        (the session can be resumed), JournalError, and whatever a layer or a ``Fatal`` raised. If the caller is cancelled the
        run ends CANCELLED, its calls are cancelled and drained, and CancelledError is raised.
        """
        return await self._session(config).run(text)

    def stream(self, text: Any, *, config: AgentRunConfig | None = None) -> AsyncGenerator[Event, None]:
        """Run ``text`` and yield its events; the last is ``RunFinished``. Use it in ``async with aclosing(...)``.

        Leaving it (closing, cancelling, dropping the last reference) ends the run CANCELLED and closes the provider's socket.
        A slow consumer slows the model down. Raises what ``run`` raises, when it is first advanced.
        """
        return self._session(config).stream(text)

    def session(self, session_id: str) -> Session:
        """A handle for another session of this agent."""
        self._check_open()
        return Session(self, AgentRunConfig(session_id=check_id(session_id, "session_id")).over(self.config))

    async def resume(self) -> RunResult:
        """Go on with the open run of the agent's own session. See ``Session.resume``."""
        return await self._session(None).resume()

    async def explain(self) -> ResumePlan:
        """What ``resume`` would do, without doing it. See ``Session.explain``."""
        return await self._session(None).explain()

    async def answer(self, question_id: str, answer: Any = True) -> RunResult:
        """Answer a question of the agent's own session. See ``Session.answer``."""
        return await self._session(None).answer(question_id, answer)

    async def steer(self, text: Any, *, interrupt: str | None = None) -> None:
        """Say something to the open run of the agent's own session. See ``Session.steer``."""
        await self._session(None).steer(text, interrupt=interrupt)

    async def cancel(self) -> None:
        """End the open run of the agent's own session. See ``Session.cancel``."""
        await self._session(None).cancel()

    async def fork(self, session_id: str | None = None, at_seq: int | None = None, new_session_id: str | None = None) -> Session:
        """Make a new session of the beginning of another one, the agent's own if ``session_id`` is None. See ``Session.fork``."""
        source = self._session(None) if session_id is None else self.session(session_id)
        return await source.fork(at_seq, new_session_id)

    async def replay(self, session_id: str | None = None, *, config: AgentRunConfig | None = None) -> Replay:
        """Go through a session again, the agent's own if ``session_id`` is None, without asking anybody. See ``Session.replay``."""
        source = self._session(None) if session_id is None else self.session(session_id)
        return await source.replay(config=config)

    async def import_messages(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Append messages from elsewhere to the agent's own session. See ``Session.import_messages``."""
        return await self._session(None).import_messages(messages)

    def run_sync(self, text: Any, *, config: AgentRunConfig | None = None) -> RunResult:
        """``run`` for an agent made by ``create_sync``. Ctrl-C cancels the run. Raises UsageError inside a running event loop."""
        return self._loop_thread("run_sync").call(self.run(text, config=config))

    # ---- looking and closing -----------------------------------------------------------------------------

    def onion(self) -> tuple[str, ...]:
        """Print the layers, outermost first, with their priorities and hooks. Returns their names in that order."""
        parts = self.parts
        hooks = {"on_model_request": parts.model_layers, "on_tool_call": parts.tool_layers, "redact": parts.redactors}
        hooks["redact_deltas"] = parts.filters
        hooks["on_record"] = parts.recorders
        for index, extension in enumerate(parts.extensions):
            here = ", ".join(hook for hook, indices in hooks.items() if index in indices) or "no layer"
            print(f"{extension.priority:>6}  {extension.name}  ({here})")
        return tuple(extension.name for extension in parts.extensions)

    async def aclose(self) -> None:
        """Cancel what runs, wait until it is drained and recorded, close the model's connections and an own journal. Idempotent."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        # A task of its own: a tool may close its agent, and is cancelled by that; what was begun is finished all the same.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for live in self._live.values():
            if live.run is not None:
                live.run.cancel("closed")
        if self.parts.background:
            await asyncio.wait(set(self.parts.background), timeout=self.limits.drain_s + 1.0)
        self.parts.closed = True
        self._live.clear()
        self._users.count -= 1
        if self._users.count <= 0:
            await self.parts.model.aclose()
        if self._owns_journal:
            await self._journal.aclose()

    def close_sync(self) -> None:
        """``aclose`` for an agent made by ``create_sync``; ends its thread."""
        if self._thread is not None:
            self._thread.call(self.aclose())
            self._thread.close()
            self._thread = None

    def __enter__(self) -> Self:
        """``with Agent.create_sync(...) as agent:`` closes it at the end. Raises UsageError for an agent made by ``create``."""
        if self._thread is None:
            raise UsageError("with needs an agent made by Agent.create_sync; with Agent.create, use async with")
        return self

    def __exit__(self, *_: object) -> None:
        self.close_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- what sessions need --------------------------------------------------------------------------------

    def live(self, session_id: str) -> LiveSession:
        """This process's one LiveSession of ``session_id``. Idle ones past a number are forgotten, oldest first."""
        self._check_open()
        live = self._live.get(session_id)
        if live is not None and (live.run is not None or not live.lost):
            self._live.move_to_end(session_id)
            return live
        live = self._live[session_id] = LiveSession(session_id, self._journal.session(session_id), self.parts)
        self._live.move_to_end(session_id)
        while len(self._live) > IDLE_SESSIONS_KEPT:
            oldest = next(iter(self._live))
            if oldest == session_id or self._live[oldest].run is not None:
                break  # many are running: nothing is idle enough to be forgotten
            del self._live[oldest]
        return live

    def merged(self, config: AgentRunConfig | None, base: AgentRunConfig) -> AgentRunConfig:
        config = _typed(config, AgentRunConfig, "config")
        return config.over(base) if config is not None else base

    def prompt(self, text: Any, what: str) -> UserMessage:
        return self._prompt_of(text, self.limits, what)

    async def forked(self, source: str, at_seq: int | None, new_session_id: str | None) -> Session:
        new = check_id(new_session_id, "new_session_id") if new_session_id is not None else f"fork-{os.urandom(6).hex()}"
        fork: Any = import_module("..driver.fork", __package__)
        await fork.fork_session(self._journal, source, at_seq=at_seq, new_session_id=new, clock=self.parts.clock)
        return self.session(new)

    async def replayed(self, session_id: str, config: AgentRunConfig) -> Replay:
        rows = await self._journal.read(session_id)
        if not rows:
            raise UsageError(f"replay: there is no session {session_id!r}")
        setup, replay = import_module("..driver.setup", __package__), import_module("..driver.replay", __package__)
        run_config = setup.RunConfig(limits=self.limits, settings=config.settings(), deps=config.deps)
        return await replay.replay_session(session_id, rows, self._journal, self.parts, run_config)

    async def rows(self, session_id: str) -> list[Row]:
        return await self._journal.read(session_id)

    async def messages(self, session_id: str) -> tuple[Message, ...]:
        return Transcript(row.record for row in await self._journal.read(session_id)).snapshot()

    def say_repairs(self, session_id: str, repairs: tuple[str, ...]) -> None:
        for repair in repairs:
            logger.warning("imported messages of session %s: %s", session_id, repair)

    def _session(self, config: AgentRunConfig | None) -> Session:
        self._check_open()
        config = _typed(config, AgentRunConfig, "config")
        if config is None:
            return Session(self, self.config)
        return Session(self, config.over(self.config if config.session_id is None else self._elsewhere))

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the agent is closed")

    def _loop_thread(self, what: str) -> LoopThread:
        if self._thread is None:
            raise UsageError(f"{what} needs an agent made by Agent.create_sync; with Agent.create, await the async method")
        return self._thread


class _Users:
    """How many agents a model serves: it is closed with the last of them, and opens again when it is used again."""

    __slots__ = ("__weakref__", "count", "model")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.count = 0


# By id, because a model need be neither hashable nor weakly referable: the agents keep the entry, and the entry the model.
_shared: weakref.WeakValueDictionary[int, _Users] = weakref.WeakValueDictionary()


def _use(model: Model) -> _Users:
    users = _shared.get(id(model))
    if users is None:
        users = _shared[id(model)] = _Users(model)
    users.count += 1
    return users


def _typed(value: T | None, kind: type[T], name: str) -> T | None:
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return value
