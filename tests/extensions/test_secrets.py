"""A secret is in nothing that is written, logged or shown, in whatever form and in however many pieces it comes."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import re
import time
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import limits, play, reply
from interlock import Agent, AgentExtension, Allow, CommandRefused, Outcome, ProviderError, RunContext, ToolFailure, UsageError, tool
from interlock.events import ReasoningDelta, StreamRestarted, TextDelta, ToolCallDelta, ToolProgress
from interlock.extensions.approvals import Approvals
from interlock.extensions.secret_patterns import FORMATS
from interlock.extensions.secrets import RedactSecrets
from interlock.journal import open_journal
from interlock.messages import AssistantMessage, ToolCall
from interlock.model import ModelResponse, Stop, StopReason
from interlock.records import ModelStepEnded, RefusedCall, Verdict
from interlock.records.redaction import what_changed, with_texts
from interlock.testing import ScriptedModel, call, calls, cut, text

PASSWORD = 'h4r"bour/pä ss'
PLAIN = "tr0ub4dor-and-3"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq\nabc+/=\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6.eyJzdWIiOiIxMjM0NTY3ODkwIiwi.SflKxwRJSMeKKF2QT4fw"
# Put together here, so that no scanner takes this file for a leak.
LOOKS = {
    "GitHub": "ghp" + "_16C7e42F292c6912E7710c838347Ae178B4a",
    "GitHub, fine-grained": "github_pat" + "_" + "11ABCDEFG0" * 8 + "xy",
    "GitLab": "glpat" + "-a1B2c3D4e5F6g7H8i9J0",
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "Google": "AIza" + "SyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
    "a model provider": "sk-" + "ant-api03-a1B2c3D4e5F6g7H8i9",
    "Stripe": "sk_live" + "_4eC39HqLyjWDarjtT1zdp7dc",
    "Slack": "xoxb" + "-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqgy",
    "Slack, webhook": "hooks.slack.com/" + "services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "npm": "npm" + "_a1B2c3D4e5F6g7H8i9J0a1B2c3D4e5F6g7H8",
    "PyPI": "pypi-" + "AgEIcHlwaS5vcmc" + "a1B2c3D4e5" * 6,
    "Hugging Face": "hf" + "_aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "JSON Web Token": JWT,
    "a password in a URL": "://ann:s3cret@",
}
HARMLESS = [
    "task-management-for-everybody-in-the-house",
    "ask-me-anything-about-the-weather-today",
    "sk-this-is-a-long-name-of-a-css-class",
    "https://example.com:8080/path?x=1",
    "mail ann@example.com about http://example.com",
    "AKIA is how AWS keys begin, and eyJ how tokens do",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "pypi-packages and npm_config_registry and hf_hub",
    "ghp_short",
]


def in_any_form(secret: str) -> list[str]:
    data = secret.encode()
    return [
        secret,
        json.dumps(secret),
        json.dumps({"x": [secret]}, ensure_ascii=False),
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret).lower() if secret.islower() else quote_plus(secret),
        *(base64.b64encode(before + data + b" after it").decode() for before in (b"", b"u:", b"ann:", b"12345:")),
        base64.urlsafe_b64encode(data).decode(),
    ]


@pytest.mark.parametrize("secret", [PASSWORD, PLAIN])
def test_a_declared_secret_is_found_in_every_form_that_is_promised(secret: str) -> None:
    clean = RedactSecrets([secret]).clean
    core = base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]
    for form in in_any_form(secret):
        cleaned = clean(f"before {form} after")
        assert "[redacted]" in cleaned, form
        assert secret not in cleaned
        assert core[4:-4] not in cleaned
        assert (cleaned[:7], cleaned[-6:]) == ("before ", " after")


@pytest.mark.parametrize("name", [format.name for format in FORMATS])
def test_each_format_is_found_where_it_stands_and_nothing_else_is_touched(name: str) -> None:
    clean, looks = RedactSecrets().clean, LOOKS[name]
    for around in ("key={};", "({})", '{{"key": "{}"}}', "Bearer {}\n", "{}"):
        cleaned = clean(around.format(looks))
        assert looks not in cleaned
        assert "[redacted]" in cleaned
        assert cleaned.startswith(around.split("{}")[0].format()[:4])
    assert clean(f"x {looks} y {looks}").count("[redacted]") == 2


def test_a_private_key_is_found_whole_escaped_and_cut_off() -> None:
    clean = RedactSecrets().clean
    assert clean(f"a {PEM} b") == "a [redacted] b"
    assert clean(f"a {json.dumps(PEM)} b") == 'a "[redacted]" b'
    assert clean(f"a {PEM} b {PEM}.") == "a [redacted] b [redacted]."
    assert "MIIE" not in clean(PEM[:60])


@pytest.mark.parametrize("harmless", HARMLESS)
def test_what_only_resembles_a_secret_stays(harmless: str) -> None:
    assert RedactSecrets().clean(harmless) == harmless


def test_without_formats_only_what_was_declared_is_taken_out() -> None:
    one = RedactSecrets([PLAIN], [r"\bPIN \d{4}\b"], formats=False)
    assert one.clean(f"{PLAIN} PIN 1234 {JWT}") == f"[redacted] [redacted] {JWT}"


PIECES = st.one_of(
    st.sampled_from(
        [*LOOKS.values(), *HARMLESS, PASSWORD, PLAIN, json.dumps(PASSWORD), PEM, PEM[:40], "-----BEGIN ", "sk-", "://", "eyJ", PLAIN[:7]]
    ),
    st.text(max_size=12),
    st.sampled_from([" ", "\n", ".", "-", "a", "1", "_"]),
)


@settings(max_examples=250, deadline=None)
@given(st.lists(PIECES, max_size=10), st.data())
def test_what_is_shown_in_pieces_is_what_the_whole_text_would_be(pieces: list[str], data: st.DataObject) -> None:
    secrets = RedactSecrets([PASSWORD, PLAIN, PLAIN + "-longer"])
    whole = "".join(pieces)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    one, shown = secrets.redact_deltas(), ""
    for start, end in zip([0, *places], [*places, len(whole)], strict=True):
        shown += one.feed(whole[start:end])
        assert PASSWORD not in shown
        assert PLAIN not in shown
    assert shown + one.end() == secrets.clean(whole)


@settings(max_examples=250, deadline=None)
@given(st.lists(PIECES, max_size=8))
def test_it_is_pure_and_leaves_alone_what_it_has_redacted(pieces: list[str]) -> None:
    secrets = RedactSecrets([PASSWORD, PLAIN], [r"[a-z]+@[a-z]+"])
    once = secrets.clean("".join(pieces))
    assert secrets.clean(once) == once


def test_most_text_is_shown_at_once_and_a_beginning_is_held_back_no_longer_than_it_may_be_one() -> None:
    one = RedactSecrets([PLAIN]).redact_deltas()
    assert one.feed("Good morning, ") == "Good morning, "
    assert one.feed("a ta") == "a ta"
    assert one.feed("t") == ""  # the secret begins so
    assert one.feed("r0u") == ""
    assert one.feed("n.") == "tr0un."
    assert one.feed(" sk-") == " "
    assert one.feed("12345678901234567890") == ""
    assert one.feed(" of") == "[redacted] of"


def test_patterns_of_ones_own_are_looked_for_line_by_line() -> None:
    one = RedactSecrets(patterns=[re.compile(r"PIN: \d+")]).redact_deltas()
    assert one.feed("the PIN: 12") == ""
    assert one.feed("34\nand ") == "the [redacted]\n"
    assert one.end() == "and "


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        "sk-",
        "eyJ",
        "eyJ-",
        "://",
        "://a:",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----",
        "AKIA",
        "xoxb-",
        PLAIN[:9],
        "ghp_a",
        "eyJaaaaaaaaaaaaaaaa.",
    ],
)
def test_it_takes_linear_time_on_huge_hostile_text(unit: str) -> None:
    """A quadratic search of so many characters takes minutes."""
    secrets = RedactSecrets([PLAIN, PASSWORD])
    huge = unit * (300_000 // len(unit))
    began = time.process_time()
    secrets.clean(huge)
    one = secrets.redact_deltas()
    for start in range(0, len(huge), 50):
        one.feed(huge[start : start + 50])
    one.end()
    assert time.process_time() - began < 15


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"secrets": ["short"]}, "fewer than 6"),
        ({"secrets": [""]}, "is a variable empty"),
        ({"secrets": PLAIN}, "a list is needed"),
        ({"secrets": [3]}, "texts are needed"),
        ({"patterns": ["("]}, "no regular expression"),
        ({"patterns": [re.compile(b"x")]}, "not of bytes"),
        ({"patterns": [".*"]}, "no secret and no pattern"),
        ({"mask": " "}, "no secret and no pattern"),
        ({"secrets": ["[redacted]"]}, "no secret and no pattern"),
    ],
)
def test_what_cannot_be_looked_for_is_said_when_it_is_made(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as error:
        RedactSecrets(**given)
    assert PLAIN not in str(error.value)


# ---- through a whole run -------------------------------------------------------------------------------


class Leaky(AgentExtension):
    """Says the secret wherever a layer can say something."""

    async def on_tool_call(self, context: Any, call: Any, call_next: Any) -> Any:
        context.emit({"seen": [call.arguments.get("password")], PLAIN: 1})
        if call.arguments.get("password") == PLAIN:
            raise PermissionError(f"{PLAIN} is known to everybody")
        return await call_next()


async def log_in(password: str, context: RunContext) -> str:
    """Log in."""
    assert password == PASSWORD
    context.emit(f"trying {password}")
    return f"logged in with {password}"


async def fail(password: str) -> str:
    """Fail."""
    raise ToolFailure(f"{password} was refused")


STEPS = [
    calls(call("a", "log_in", {"password": PASSWORD}), before=f"I use {PASSWORD} now. "),
    calls(
        call("b", "log_in", {"password": PLAIN}), call("c", f"tool_{PLAIN}_x", {"x": PASSWORD}), call("d", "fail", {"password": PASSWORD})
    ),
    cut(after=f"It is {PASSWORD} an"),
    text(f"I am in with {PASSWORD}, and {LOOKS['GitHub']} too."),
]


@pytest.mark.parametrize("wire", ["memory", "streamed", "plain"])
def test_a_secret_that_passes_through_everything_is_in_no_file_no_event_no_log_and_no_result(
    wire: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="interlock")
    caplog.set_level(logging.DEBUG, logger="interlock.tools")
    secrets = RedactSecrets([PASSWORD, PLAIN])
    made = play(
        STEPS,
        wire=wire,
        tools=[log_in, fail],
        extensions=[secrets, Leaky()],
        journal=f"sqlite:///{tmp_path / 'agent.db'}",
        prompts=[f"Use {PASSWORD}."],
    )
    played = asyncio.run(made)
    assert played.result.text == "I am in with [redacted], and [redacted] too."
    assert played.shown().endswith(played.result.text)
    assert played.of(ToolProgress)
    everything = {
        "events": repr(played.events) + msgspec.json.encode([repr(event) for event in played.events]).decode(),
        "records": repr(played.records),
        "result": repr(played.result),
        "requests": json.dumps(played.bodies[1:], ensure_ascii=False),
        "log": caplog.text,
    }
    assert "[redacted] is known to everybody" in caplog.text
    for where, what in everything.items():
        for secret in (PASSWORD, json.dumps(PASSWORD)[1:-1], PLAIN, LOOKS["GitHub"]):
            assert secret not in what, where
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any(PLAIN.encode() in data or "pä ss".encode() in data for data in files)


def test_the_same_without_it_is_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So the test above would notice."""
    caplog.set_level(logging.DEBUG, logger="interlock.tools")
    played = asyncio.run(play(STEPS, tools=[log_in, fail], extensions=[Leaky()], prompts=[f"Use {PASSWORD}."]))
    for what in (repr(played.events), repr(played.records), repr(played.result), repr(played.bodies[1:])):
        assert "pä ss" in what
    assert PLAIN in caplog.text


def test_streamed_text_is_held_back_over_the_borders_of_its_chunks() -> None:
    message = AssistantMessage(content=f"It is {PLAIN}, now.", reasoning=f"use {PLAIN}")
    deltas = [ReasoningDelta(f"use {PLAIN[:5]}"), ReasoningDelta(PLAIN[5:])]
    deltas += [TextDelta(piece) for piece in ("It ", "is tr0", "ub4d", "or-and-", "3", ", now.")]  # type: ignore[list-item]
    steps = [[*deltas, ModelResponse(message=message, stop=Stop(StopReason.STOP, None))]]
    played = asyncio.run(play(steps, extensions=[RedactSecrets([PLAIN])]))
    assert [event.text for event in played.of(TextDelta)] == ["It ", "is ", "[redacted]", ", now."]
    assert "".join(event.text for event in played.of(ReasoningDelta)) == "use [redacted]"


def test_the_arguments_and_the_invented_name_of_a_call_are_not_shown_while_they_are_written() -> None:
    asked = ToolCall(id="c", name=f"run_{PLAIN}", arguments=json.dumps({"a": PASSWORD, "b": 1}))
    pieces = [asked.arguments[n : n + 3] for n in range(0, len(asked.arguments), 3)]
    deltas = [ToolCallDelta(index=0, id="c", name=asked.name, arguments=piece) for piece in pieces]
    response = ModelResponse(message=AssistantMessage(tool_calls=(asked,)), stop=Stop(StopReason.TOOL_CALLS, None))
    played = asyncio.run(play([[*deltas, response], text("done")], extensions=[RedactSecrets([PLAIN, PASSWORD])]))
    shown = played.of(ToolCallDelta)
    assert {event.name for event in shown} == {"run_[redacted]"}
    assert "".join(event.arguments for event in shown) == '{"a": "[redacted]", "b": 1}'
    assert PLAIN not in repr((played.records, played.result.messages))


def test_what_was_held_back_of_text_that_is_withdrawn_is_never_shown() -> None:
    played = asyncio.run(play([cut(after=f"It is {PLAIN[:8]}"), text("It is done.")], extensions=[RedactSecrets([PLAIN])]))
    assert played.of(StreamRestarted)
    assert played.shown() == "It is done."
    assert PLAIN[:8] not in repr(played.events)


def test_what_one_request_held_back_does_not_come_out_with_the_text_of_the_next() -> None:
    class Again(AgentExtension):
        async def on_model_request(self, context: Any, request: Any, call_next: Any) -> Any:
            with suppress(ProviderError):
                async with aclosing(call_next(request)) as events:
                    async for event in events:
                        yield event
            async with aclosing(call_next(request)) as events:
                async for event in events:
                    yield event

    steps = [cut(after=f"It is {PLAIN[:8]}"), text("All done.")]
    played = asyncio.run(play(steps, extensions=[Again(), RedactSecrets([PLAIN])]))
    assert played.shown() == "All done."


def test_a_secret_that_a_length_limit_cuts_in_two_is_not_shown_in_halves() -> None:
    steps = [text(f"It is {PLAIN[:8]}", finish="length"), text(f"{PLAIN[8:]}, I think.")]
    played = asyncio.run(play(steps, extensions=[RedactSecrets([PLAIN])]))
    assert played.shown() == played.result.text == "It is [redacted], I think."
    assert PLAIN[8:] not in repr(played.events)
    cut_between = [steps[0], cut(after=PLAIN[8:12]), steps[1]]
    played = asyncio.run(play(cut_between, extensions=[RedactSecrets([PLAIN])]))
    assert played.shown() == played.result.text == "It is [redacted], I think."
    assert PLAIN[:8] not in repr([event for event in played.events if isinstance(event, TextDelta)])


def test_what_was_held_on_to_is_shown_when_nothing_follows_after_all() -> None:
    steps = [text("See https://exa", finish="length"), text("mple.com/very", finish="length")]
    played = asyncio.run(play(steps, extensions=[RedactSecrets([PLAIN])], bounds=limits(continuations=1)))
    assert played.result.outcome is Outcome.INCOMPLETE
    assert played.shown() == played.result.text == "See https://example.com/very"


def test_a_filter_that_raises_fails_the_step_and_shows_nothing_more() -> None:
    class Broken(AgentExtension):
        def redact_deltas(self) -> Any:
            class Filter:
                def feed(self, text: str) -> str:
                    raise ValueError(PLAIN)

                def end(self) -> str:
                    return ""

            return Filter()

    played = asyncio.run(play([text(f"It is {PLAIN}.")], extensions=[Broken()]))
    assert "redact_deltas of extension Broken raised" in str(played.errors[0])
    assert not played.of(TextDelta)
    assert PLAIN not in str(played.errors[0])


def test_progress_that_cannot_be_redacted_is_not_shown_and_fails_the_run() -> None:
    class Broken(AgentExtension):
        def redact(self, record: Any) -> Any:
            if getattr(record, "extension", "") == "interlock":
                raise ValueError("no")
            return record

    steps = [calls(call("a", "log_in", {"password": PASSWORD}))]
    played = asyncio.run(play(steps, tools=[log_in], extensions=[Broken()]))
    assert "redact of extension Broken raised ValueError on what was to be shown" in str(played.errors[0])
    assert not played.of(ToolProgress)


def test_a_stored_name_of_a_tool_that_exists_cannot_be_changed() -> None:
    one, other = ToolCall(id="c", name=PLAIN, arguments="{}"), ToolCall(id="d", name=f"x{PLAIN}", arguments="{}")
    refused = (RefusedCall(1, "unknown_tool", f"there is no tool named {other.name!r}"),)
    message = AssistantMessage(tool_calls=(one, other))
    record = ModelStepEnded(message=message, stop=StopReason.TOOL_CALLS, verdict=Verdict.TOOLS, refused=refused)
    after = with_texts(record, RedactSecrets([PLAIN]).clean)
    assert [made.name for made in after.message.tool_calls] == [PLAIN, "x[redacted]"]
    assert after.refused[0].reason == "there is no tool named 'x[redacted]'"
    assert what_changed(record, after) == ""
    renamed = msgspec.structs.replace(record, message=AssistantMessage(tool_calls=(ToolCall(id="c", name="x", arguments="{}"), other)))
    assert "must stay as it is" in what_changed(record, renamed)


def test_the_filter_for_logs_takes_it_out_of_messages_arguments_and_tracebacks() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(RedactSecrets([PLAIN]).log_filter())
    logger = logging.getLogger("yours")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        raise ValueError(f"no {PLAIN}")
    except ValueError:
        logger.exception("it was %s", {"password": PLAIN}, stack_info=True)
    finally:
        logger.removeHandler(handler)
    assert PLAIN not in out.getvalue()
    assert "it was {'password': '[redacted]'}" in out.getvalue()
    assert "ValueError: no [redacted]" in out.getvalue()


def test_a_reply_that_was_not_streamed_is_shown_without_it() -> None:
    played = asyncio.run(play([reply(f"It is {PLAIN}.")], extensions=[RedactSecrets([PLAIN])]))
    assert [event.text for event in played.of(TextDelta)] == ["It is [redacted]."]


def test_an_agent_with_it_opens_its_own_journal_again(tmp_path: Path) -> None:
    """What was redacted once is not redacted again: opening, folding and reading give the same rows."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    extensions = [RedactSecrets([PASSWORD, PLAIN])]
    first = asyncio.run(play(STEPS, tools=[log_in, fail], extensions=extensions, journal=url))
    again = asyncio.run(play([text("Good.")], tools=[log_in, fail], extensions=extensions, journal=url))
    assert again.records[: len(first.records)] == first.records

    async def read() -> int:
        journal = open_journal(url)
        await journal.open()
        rows = await journal.read("s")
        await journal.aclose()
        return len(rows)

    assert asyncio.run(read()) == len(again.records)


def test_what_is_allowed_for_good_is_not_written_with_a_secret_in_it(tmp_path: Path) -> None:
    """A file of approvals has the real arguments: a call with a secret in them may be allowed for the session at most."""
    seen: list[str] = []

    @tool(requires_approval=True)
    def log_in(password: str) -> str:
        """Log in."""
        seen.append(password)
        return "welcome"

    file = tmp_path / "approvals.toml"
    asked = calls(call("a", "log_in", {"password": PLAIN}), call("b", "log_in", {"password": "a plain one"}))

    async def main() -> None:
        layers = [Approvals(file=file), RedactSecrets([PLAIN])]
        async with await Agent.create(ScriptedModel([asked, text("In.")]), tools=[log_in], extensions=layers) as agent:
            secret, plain = (await agent.run("Log in.")).questions
            assert (secret.scopes, plain.scopes) == (("session", "tool"), ("session", "tool", "always"))
            with pytest.raises(CommandRefused):
                await agent.answer(secret.id, Allow("always"))
            await agent.answer(secret.id, Allow("session"))
            await agent.answer(plain.id, Allow("always"))

    asyncio.run(main())
    assert sorted(seen) == sorted([PLAIN, "a plain one"])
    assert "a plain one" in file.read_text()
    assert PLAIN not in file.read_text()
