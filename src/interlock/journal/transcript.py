"""The conversation, as a view over the records.

The results of a batch and new input join it together, when the next model step starts or the run ends; until then
they are kept aside. Retry scaffolding is an overlay on the requests of one streak and never joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ..messages import AssistantMessage, Message, ToolMessage, UserMessage
from ..records import (
    MessagesImported,
    ModelStepEnded,
    ModelStepStarted,
    Record,
    RunEnded,
    RunStarted,
    SteeringReceived,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
    Verdict,
)


class Transcript:
    """The fold of a session's records into what was said.

    messages: everything that has joined, always valid for a provider while no batch is open. ids: every call id of the
    session.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.messages: tuple[Message, ...] = ()
        self.ids: set[str] = set()
        self.runs: set[str] = set()
        """The id of every run of the session."""
        self.questions: dict[str, ToolStepSuspended] = {}
        """What a person was asked in the present run, by question id."""
        self._streak: list[tuple[Message, ...]] = []
        self.last: AssistantMessage | None = None
        """The last assistant message of the present run that joined."""
        self._continued = False
        self._batch: dict[str, ToolMessage | None] = {}
        self._input: tuple[UserMessage, ...] = ()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Fold one more record in. Records that say nothing to a model change nothing."""
        say = self._SAYS.get(type(record))
        if say is not None:
            say(self, record)

    @property
    def overlay(self) -> tuple[Message, ...]:
        """What the requests of the present streak say after the transcript: each narration with its nudge."""
        return tuple(message for said in self._streak for message in said)

    @property
    def pending_input(self) -> tuple[UserMessage, ...]:
        """New input that has not joined yet."""
        return self._input

    def snapshot(self) -> tuple[Message, ...]:
        """Everything said so far, an open batch with the results that it has included."""
        return (*self.messages, *(result for result in self._batch.values() if result is not None))

    def _start_run(self, record: RunStarted) -> None:
        self.runs.add(record.run_id)
        self.messages = (*self.messages, record.prompt)
        self.last = None
        self.questions = {}

    def _start_model(self, record: ModelStepStarted) -> None:
        self._close(land=record.attempt == 0)

    def _end_model(self, record: ModelStepEnded) -> None:
        if record.verdict is Verdict.RETRY:
            if self._continued:  # the message holds the text joined so far: it replaces its shorter self
                self._streak.pop()
            paused = record.continued and record.message.wire is not None  # a hosted tool may be at work without a word said
            said = (record.message,) if paused or record.message.content.strip() else ()
            nudge = (UserMessage(content=record.nudge),) if record.nudge else ()
            self._streak.append((*said, *nudge))
            self._continued = record.continued
            return
        self._streak, self._continued = [], False
        if record.joined:
            self.messages = (*self.messages, record.message)
            self.last = record.message
            self._batch = {call.id: None for call in record.message.tool_calls}
            self.ids.update(self._batch)

    def _start_tool(self, record: ToolStepStarted) -> None:
        if record.call is not None:  # a call that a call made: its id is taken, although it never joins
            self.ids.add(record.call.id)

    def _end_tool(self, record: ToolStepEnded) -> None:
        if record.message.tool_call_id in self._batch:  # the result of a nested call belongs to the call that made it
            self._batch[record.message.tool_call_id] = record.message

    def _ask(self, record: ToolStepSuspended) -> None:
        self.questions[record.question_id] = record

    def _steer(self, record: SteeringReceived) -> None:
        self._input = (*self._input, record.message)

    def _import(self, record: MessagesImported) -> None:
        self.messages = (*self.messages, *record.messages)
        self.ids.update(call.id for m in record.messages if isinstance(m, AssistantMessage) for call in m.tool_calls)

    def _end_run(self, record: RunEnded) -> None:
        self._close(land=True)
        self._streak, self._continued = [], False

    def _close(self, *, land: bool) -> None:
        if self._batch:
            self.messages = (*self.messages, *(result for result in self._batch.values() if result is not None))
            self._batch = {}
        if land and self._input:
            self.messages = (*self.messages, *self._input)
            self._input = ()

    # What each record says; one that is not here says nothing to a model.
    _SAYS: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        RunStarted: _start_run,
        ModelStepStarted: _start_model,
        ModelStepEnded: _end_model,
        ToolStepStarted: _start_tool,
        ToolStepEnded: _end_tool,
        ToolStepSuspended: _ask,
        SteeringReceived: _steer,
        MessagesImported: _import,
        RunEnded: _end_run,
    }


SAYING = frozenset(Transcript._SAYS)  # pyright: ignore[reportPrivateUsage]
"""The kinds of records that change a transcript."""
