"""What a redaction may change in a record, and the one function that changes every text of any record."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from interlock.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    Part,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    WireCopy,
)
from interlock.model import StopReason
from interlock.records import (
    Ending,
    ExtensionNoted,
    HandlerStarted,
    Limits,
    MessagesImported,
    ModelStepEnded,
    ModelStepFailed,
    ModelStepStarted,
    Outcome,
    Payload,
    QuestionAnswered,
    ReconcileEnded,
    ReconcileStarted,
    Record,
    RefusedCall,
    RunCancelled,
    RunEnded,
    RunStarted,
    SessionForked,
    SessionOpened,
    SteeringReceived,
    ToolLateResult,
    ToolStepEnded,
    ToolStepStarted,
    ToolStepSuspended,
    Traits,
    Verdict,
)
from interlock.records.codec import decode, encode
from interlock.records.redaction import FREE, marked, what_changed, with_texts
from records.secret import GONE, SECRET

ARGUMENTS = f'{{"to": "Ann", "pin": "{SECRET}"}}'
CALL = ToolCall(id="c", name="pay", arguments=ARGUMENTS)
WIRE = WireCopy(api="anthropic", model="m", body=f'[{{"type": "text", "text": "{SECRET}"}}]')
PARTS = (
    TextPart(f"see {SECRET}"),
    ImagePart(url=f"http://x/{SECRET}", media_type="image/png"),
    FilePart(data=SECRET, name=f"{SECRET}.pdf", media_type="application/pdf"),
)

# One of each kind, the secret wherever text is free. Kinds that hold none are in PLAIN.
SAMPLES: list[Record] = [
    MessagesImported(
        messages=(
            SystemMessage(content=SECRET),
            UserMessage(content=PARTS),
            AssistantMessage(content=SECRET, reasoning=SECRET, tool_calls=(CALL,), wire=WIRE),
            ToolMessage(tool_call_id="c", name="pay", content=SECRET),
        ),
        repairs=(f"mended {SECRET}",),
    ),
    RunStarted(run_id="r", prompt=UserMessage(content=f"My key is {SECRET}."), limits=Limits(requests=3), traits={"pay": Traits()}),
    ModelStepEnded(
        message=AssistantMessage(content=SECRET, reasoning=SECRET, tool_calls=(CALL, ToolCall(id="d", name="pay")), wire=WIRE),
        stop=StopReason.UNKNOWN,
        stop_raw=SECRET,
        usage=Usage(input_tokens=3),
        verdict=Verdict.TOOLS,
        refused=(RefusedCall(1, "malformed", f"not {SECRET}"),),
        nudge=SECRET,
        ending=Ending(Outcome.INCOMPLETE, "x", SECRET),
    ),
    ModelStepFailed(kind="provider", message=f"bad key {SECRET}"),
    ToolStepStarted(key="r/0/0/0", call=CALL, parent="r/0/0"),
    HandlerStarted(key="r/0/0", attempt=0, arguments=ARGUMENTS),
    ToolStepEnded(
        key="r/0/0",
        message=ToolMessage(tool_call_id="c", name="pay", content=f"paid with {SECRET}", effect="happened"),
        effect="happened",
        payload=Payload("d", 3),
        ending=Ending(Outcome.COMPLETED, "stop", SECRET),
    ),
    ReconcileEnded(key="r/0/0", found="unknown", reason=f"no {SECRET} there"),
    ToolStepSuspended(key="r/0/0", question_id="q", question=f"Use {SECRET}?", digest="d", arguments=ARGUMENTS),
    QuestionAnswered(key="r/0/0", question_id="q", answer={"pin": [SECRET, 3], SECRET: None}),
    ToolLateResult(key="r/0/0", content=SECRET),
    SteeringReceived(message=UserMessage(content=SECRET)),
    ExtensionNoted(extension="e", version=1, data={"seen": [SECRET], "n": 1.5, "deep": {"x": SECRET}}),
    RunEnded(run_id="r", outcome=Outcome.COMPLETED, reason="answer", text=SECRET),
]
# Any, because each has the fields of its own kind.
S: dict[str, Any] = {type(record).__name__: record for record in SAMPLES}
PLAIN: list[Record] = [
    ReconcileStarted(key="r/0/0"),
    SessionOpened(epoch=1, version="1"),
    SessionForked(source="s", seq=3, known=5),
    ModelStepStarted(turn=0, attempt=0),
    RunCancelled(outcome=Outcome.CANCELLED, reason="cancelled"),
]


def name_of(record: Any) -> str:
    return type(record).__name__


def redacted(record: Record) -> Record:
    return with_texts(record, lambda text: text.replace(SECRET, GONE))


def without_free(value: Any) -> Any:
    """Everything that must stay, as plain values."""
    if isinstance(value, msgspec.Struct):
        fixed = [f for f in value.__struct_fields__ if f not in FREE.get(type(value), ())]
        return (type(value), *[(field, without_free(getattr(value, field))) for field in fixed])
    return [without_free(item) for item in value] if isinstance(value, tuple) else value


def test_the_samples_are_every_kind_of_record() -> None:
    assert sorted(map(name_of, (*SAMPLES, *PLAIN))) == sorted(kind.__name__ for kind in get_args(Record))


@pytest.mark.parametrize("record", SAMPLES, ids=name_of)
def test_every_text_of_a_record_can_be_changed_and_nothing_else_changes(record: Record) -> None:
    assert SECRET.encode() in encode(record)
    after = redacted(record)
    assert SECRET.encode() not in encode(after)
    assert GONE.encode() in encode(after)
    assert what_changed(record, after) == ""
    assert without_free(after) == without_free(record)
    assert decode(encode(after)) == after


@pytest.mark.parametrize("record", [*SAMPLES, *PLAIN], ids=name_of)
def test_a_record_without_the_text_stays_the_same_object(record: Record) -> None:
    assert with_texts(record, lambda text: text) is record
    assert redacted(redacted(record)) == redacted(record)


def test_arguments_are_changed_as_the_strings_they_mean_and_stay_json() -> None:
    hidden = HandlerStarted(key="k", attempt=0, arguments='{"a": "sk\\u002d7f3a9QmZ", "n": 1}')
    assert SECRET not in hidden.arguments
    after = redacted(hidden)
    assert isinstance(after, HandlerStarted)
    assert msgspec.json.decode(after.arguments) == {"a": GONE, "n": 1}
    torn = HandlerStarted(key="k", attempt=0, arguments=f'{{"a": "{SECRET}')
    assert redacted(torn) == replace(torn, arguments=f'{{"a": "{GONE}')


def test_the_providers_own_form_of_a_message_goes_with_anything_that_is_changed_in_it() -> None:
    step, imported = S["ModelStepEnded"], S["MessagesImported"]
    only_there = replace(step, message=AssistantMessage(content="harmless", wire=WIRE))
    assert redacted(only_there).message == AssistantMessage(content="harmless")  # type: ignore[union-attr]
    untouched = replace(step, message=AssistantMessage(content="harmless", wire=replace(WIRE, body="[]")))
    assert redacted(untouched).message.wire is not None  # type: ignore[union-attr]
    # A hook that has forgotten it is helped.
    forgetful = replace(step, message=replace(step.message, content="gone"))
    assert forgetful.message.wire is WIRE
    assert marked(step, forgetful).message.wire is None
    forgetful = replace(imported, messages=(*imported.messages[:2], replace(imported.messages[2], reasoning=""), imported.messages[3]))
    assert [getattr(message, "wire", None) for message in marked(imported, forgetful).messages] == [None] * 4
    assert marked(imported, imported).messages[2].wire is WIRE


def test_every_text_of_every_part_of_a_message_can_be_changed() -> None:
    """A new kind of part, or a new field of one, must be thought of in FREE."""
    kinds = (*get_args(Part), *get_args(Message), ToolCall, WireCopy)
    fixed = {(k.__name__, f) for k in kinds for f in k.__struct_fields__ if f not in FREE[k]}
    assert fixed == {
        *((kind, "media_type") for kind in ("ImagePart", "FilePart")),
        *(("ToolCall", name) for name in ("id", "name")),
        *(("WireCopy", name) for name in ("api", "model")),
        *(("AssistantMessage", name) for name in ("tool_calls", "incomplete")),
        *(("ToolMessage", name) for name in ("tool_call_id", "name", "failed", "effect")),
    }


def test_a_record_says_itself_which_arguments_and_answers_are_not_as_they_were() -> None:
    marks = {name_of(r): getattr(marked(r, redacted(r)), "redacted", None) for r in SAMPLES}
    assert {name: mark for name, mark in marks.items() if mark is not None} == {
        "ModelStepEnded": (0,),
        "HandlerStarted": True,
        "QuestionAnswered": True,
    }
    step, started, answered = S["ModelStepEnded"], S["HandlerStarted"], S["QuestionAnswered"]
    elsewhere = replace(step, message=replace(step.message, content="gone"))
    assert marked(step, elsewhere).redacted == ()
    assert (marked(started, started).redacted, marked(answered, answered).redacted) == (False, False)


CHANGES: dict[str, tuple[Record, Any]] = {
    "another kind": (S["MessagesImported"], S["RunStarted"]),
    "no record": (S["MessagesImported"], None),
    "a key": (S["HandlerStarted"], replace(S["HandlerStarted"], key="other")),
    "an attempt": (S["HandlerStarted"], replace(S["HandlerStarted"], attempt=1)),
    "a run's id": (S["RunStarted"], replace(S["RunStarted"], run_id="other")),
    "a limit": (S["RunStarted"], replace(S["RunStarted"], limits=Limits(requests=4))),
    "a tool's traits": (S["RunStarted"], replace(S["RunStarted"], traits={"pay": Traits(on_crash="rerun")})),
    "a call's name": (S["ToolStepStarted"], replace(S["ToolStepStarted"], call=replace(CALL, name="other"))),
    "a call's id": (S["ToolStepStarted"], replace(S["ToolStepStarted"], call=replace(CALL, id="other"))),
    "a call that is gone": (S["ToolStepStarted"], replace(S["ToolStepStarted"], call=None)),
    "one call less": (S["ModelStepEnded"], replace(S["ModelStepEnded"], message=replace(S["ModelStepEnded"].message, tool_calls=(CALL,)))),
    "what is marked as redacted": (S["ModelStepEnded"], replace(S["ModelStepEnded"], redacted=(1,))),
    "a verdict": (S["ModelStepEnded"], replace(S["ModelStepEnded"], verdict=Verdict.ANSWER)),
    "a refusal": (S["ModelStepEnded"], replace(S["ModelStepEnded"], refused=())),
    "an effect": (S["ToolStepEnded"], replace(S["ToolStepEnded"], effect="none")),
    "whose result it is": (S["ToolStepEnded"], replace(S["ToolStepEnded"], message=replace(S["ToolStepEnded"].message, tool_call_id="x"))),
    "a payload": (S["ToolStepEnded"], replace(S["ToolStepEnded"], payload=None)),
    "a question's id": (S["ToolStepSuspended"], replace(S["ToolStepSuspended"], question_id="other")),
    "an expiry": (S["ToolStepSuspended"], replace(S["ToolStepSuspended"], expires_at=5.0)),
    "what was found": (S["ReconcileEnded"], replace(S["ReconcileEnded"], found="did_not_happen")),
    "what a person said": (S["QuestionAnswered"], replace(S["QuestionAnswered"], verdict="deny")),
    "a digest": (S["ToolStepSuspended"], replace(S["ToolStepSuspended"], digest="other")),
    "an outcome": (S["RunEnded"], replace(S["RunEnded"], outcome=Outcome.LIMIT)),
    "a text that is none": (S["RunEnded"], replace(S["RunEnded"], text=5)),
    "a text that no store accepts": (S["RunEnded"], replace(S["RunEnded"], text="\ud800")),
    "arguments that are none": (S["HandlerStarted"], replace(S["HandlerStarted"], arguments=None)),
    "a note that is no JSON": (S["ExtensionNoted"], replace(S["ExtensionNoted"], data=object())),
    "imported messages in another order": (
        S["MessagesImported"],
        replace(S["MessagesImported"], messages=S["MessagesImported"].messages[::-1]),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_decides_what_happens_next_may_not_be_changed(name: str) -> None:
    before, after = CHANGES[name]
    said = what_changed(before, after)
    assert said
    assert SECRET not in said
