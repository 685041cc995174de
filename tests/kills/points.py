"""Where a life can be made to stand still in order to be killed there, by the window that the place lies in."""

from __future__ import annotations

ONION = "in the onion, before the handler"
HANDLER = "between HandlerStarted and the handler's end"
RECORD = "from the handler's end to its record"
MODEL = "at the end of a model step"
ASKED = "while a tool is asked what became of a call"
PERSON = "while a person is asked"
ELSEWHERE = "elsewhere"
RANDOM = "at a random instant"

WINDOWS: dict[str, tuple[str, ...]] = {
    ONION: ("outer layer in", "inner layer in", "entry buffered", "start buffered"),
    HANDLER: ("first line", "begun", "effect made"),
    RECORD: ("inner layer out", "outer layer out", "result buffered"),
    MODEL: ("response read", "response buffered"),
    ASKED: ("question to the tool buffered", "the tool is asked", "the tool's answer buffered"),
    PERSON: ("question buffered", "waiting", "answer buffered"),
    ELSEWHERE: ("run buffered", "request due", "end buffered"),
    RANDOM: (),
}
"""A point that is "buffered" lies between a record's append and the moment when it is stored."""

NAMED = (ONION, HANDLER, RECORD, MODEL)
"""The windows that must each be hit often enough."""
