"""Most chunks have nothing but text or pieces of calls, and are read by a shorter way, which makes the same of them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from interlock.errors import ProviderError
from interlock.providers import chat_reply
from interlock.providers.chat_reply import MISSES_MAX, ChatReply

words = st.sampled_from(["", "a", "zürich", '{"q":', "1}", "\ud83d", "\ude00", "😀"])
pieces = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, None]),
        "id": st.sampled_from(["c1", "c2", "", None]),
        "function": st.none() | st.fixed_dictionaries({}, optional={"name": st.sampled_from(["f", None]), "arguments": words}),
    },
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": st.none() | words,
        "tool_calls": st.none() | st.lists(pieces, max_size=2),
        "reasoning_content": st.none() | words,
        "refusal": st.none() | words,
        "reasoning_details": st.none() | st.just([{"text": "t"}]),
        "function_call": st.none() | st.just({"name": "f", "arguments": "{}"}),
    },
)
choices = st.fixed_dictionaries(
    {"delta": deltas},
    optional={
        "index": st.sampled_from([0, 1, None]),
        "finish_reason": st.sampled_from([None, "", "stop", "length", "tool_calls"]),
        "message": st.none(),
        "error": st.none(),
    },
)
chunks = st.fixed_dictionaries(
    {"choices": st.lists(choices, min_size=0, max_size=2)},
    optional={"usage": st.none() | st.just({"prompt_tokens": 1}), "error": st.none(), "x_groq": st.none()},
)
plain_chunks = st.fixed_dictionaries({"choices": st.lists(st.fixed_dictionaries({"delta": deltas}), min_size=1, max_size=1)})


def read(stream: list[dict[str, Any]], *, shorter: bool) -> list[Any]:
    """What is shown of each chunk and whether it says something; then the response, or why there is none."""
    reply, seen = ChatReply(), list[Any]()
    reply._plain = shorter
    if not shorter:
        reply._misses = MISSES_MAX + 1
    for one in stream:
        reply.said = False
        try:
            shown = list(reply.take(json.dumps(one).encode()))
        except ProviderError as error:
            return [*seen, str(error)]
        seen.append((shown, bool(shown) or reply.said))
    try:
        return [*seen, reply.response()]
    except ProviderError as error:
        return [*seen, str(error)]


@example([{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}])
@example([{"choices": [{"delta": {"content": "a"}, "index": 1}]}, {"choices": [{"delta": {"content": "b"}}]}])
@example([{"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 1}}])
@given(st.lists(chunks | plain_chunks, max_size=12))
def test_the_shorter_way_makes_the_same_of_any_stream(stream: list[dict[str, Any]]) -> None:
    assert read(stream, shorter=True) == read(stream, shorter=False)


def test_a_stream_of_other_chunks_is_not_tried_for_ever(monkeypatch: Any) -> None:
    """Some vendors send the token counts so far with every chunk: that it is not plain is learnt after a few."""
    tried = 0
    decode = chat_reply.decode_plain

    def counted(payload: bytes) -> Any:
        nonlocal tried
        tried += 1
        return decode(payload)

    monkeypatch.setattr(chat_reply, "decode_plain", counted)
    other = {"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 1}}
    assert read([other] * 100, shorter=True)[0][1]
    assert tried == MISSES_MAX + 1
    tried = 0
    read([{"choices": [{"delta": {"content": "a"}}]}] * 100, shorter=True)
    assert tried == 100
