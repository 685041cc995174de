"""Tool calls are put together from fragments by one rule, whatever a vendor leaves out or repeats."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.messages import ToolCall
from interlock.model.accumulator import ToolCalls

Fragment = tuple[int | None, str | None, str | None, str | None]


def joined(*fragments: Fragment) -> list[tuple[str, str, str]]:
    calls = ToolCalls()
    for fragment in fragments:
        calls.add(*fragment)
    return [(call.id, call.name, call.arguments) for call in calls.finish()]


def test_the_documented_form_is_joined() -> None:
    assert joined((0, "a", "add", ""), (0, None, None, '{"x"'), (0, None, None, ":1}"), (1, "b", "sub", "{}")) == [
        ("a", "add", '{"x":1}'),
        ("b", "sub", "{}"),
    ]


def test_two_calls_with_the_same_index_are_two_calls() -> None:
    assert joined((0, "a", "f", '{"x":1}'), (0, "b", "f", '{"x":2}')) == [("a", "f", '{"x":1}'), ("b", "f", '{"x":2}')]


def test_two_calls_with_the_same_index_may_be_interleaved() -> None:
    fragments: list[Fragment] = [(0, "a", "f", '{"x"'), (0, "b", "g", '{"y"'), (0, "a", None, ":1}"), (0, "b", None, ":2}")]
    assert joined(*fragments) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


def test_fragments_without_id_go_to_the_latest_call_of_their_index() -> None:
    assert joined((0, "a", "f", ""), (0, "b", "g", ""), (0, None, None, '{"y":2}')) == [("a", "f", ""), ("b", "g", '{"y":2}')]


def test_calls_are_interleaved_by_index() -> None:
    fragments: list[Fragment] = [
        (0, "a", "f", ""),
        (1, "b", "g", ""),
        (0, None, None, '{"x"'),
        (1, None, None, '{"y"'),
        (0, None, None, ":1}"),
        (1, None, None, ":2}"),
    ]
    assert joined(*fragments) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


def test_an_id_on_the_first_fragment_only_is_enough() -> None:
    assert joined((0, "a", "f", ""), (0, None, None, '{"n"'), (0, "", "", ":25"), (0, None, None, "}")) == [("a", "f", '{"n":25}')]


def test_a_last_fragment_with_a_name_and_no_id_is_no_second_call() -> None:
    assert joined((0, "a", "f", '{"n":1'), (0, None, "f", "}")) == [("a", "f", '{"n":1}')]


@pytest.mark.parametrize("index", [0, None])
def test_a_name_repeated_on_every_chunk_is_not_joined_with_itself(index: int | None) -> None:
    assert joined((index, "a", "name", '{"n"'), (index, "a", "name", ":1"), (index, None, "name", "}")) == [("a", "name", '{"n":1}')]


def test_a_name_in_pieces_is_joined() -> None:
    assert joined((0, "a", "get_", None), (0, None, "weather", None), (0, None, None, "{}")) == [("a", "get_weather", "{}")]


def test_complete_arguments_followed_by_an_empty_fragment_are_one_call() -> None:
    assert joined((0, "a", "f", '{"n":1}'), (0, "a", None, ""), (0, "a", "f", "")) == [("a", "f", '{"n":1}')]


def test_a_whole_call_sent_twice_is_one_call() -> None:
    assert joined((0, "a", "f", '{"n":1}'), (0, "a", "f", '{"n":1}')) == [("a", "f", '{"n":1}')]
    assert joined((0, "a", "f", '{"n":1}'), (1, "a", "f", '{"n":1}')) == [("a", "f", '{"n":1}')]


def test_a_known_id_on_a_new_index_with_a_name_is_a_new_call() -> None:
    assert joined((0, "a", "f", '{"n":1}'), (1, "a", "f", '{"n":2}')) == [("a", "f", '{"n":1}'), ("a", "f", '{"n":2}')]


def test_a_known_id_on_a_new_index_without_a_name_is_the_known_call() -> None:
    assert joined((0, "a", "f", '{"n"'), (1, "a", None, ":1}")) == [("a", "f", '{"n":1}')]


def test_arguments_on_an_unknown_index_belong_to_the_call_being_written() -> None:
    assert joined((0, "a", "f", '{"n"'), (7, None, None, ":1}")) == [("a", "f", '{"n":1}')]


def test_equal_calls_with_different_ids_are_two_calls() -> None:
    assert joined((0, "a", "append", '{"t":"x"}'), (1, "b", "append", '{"t":"x"}')) == [
        ("a", "append", '{"t":"x"}'),
        ("b", "append", '{"t":"x"}'),
    ]


def test_whole_calls_without_ids_are_told_apart() -> None:
    assert joined((0, None, "f", '{"n":1}'), (0, None, "g", '{"n":2}'), (0, None, "g", '{"n":2}')) == [
        ("", "f", '{"n":1}'),
        ("", "g", '{"n":2}'),
        ("", "g", '{"n":2}'),
    ]
    assert joined((None, None, "f", "{}"), (None, None, "g", "")) == [("", "f", "{}"), ("", "g", "")]


def test_an_id_that_comes_late_is_adopted() -> None:
    assert joined((0, None, "f", ""), (0, "a", None, '{"n":1}')) == [("a", "f", '{"n":1}')]
    assert joined((None, None, "f", '{"n"'), (None, "a", None, ":1}")) == [("a", "f", '{"n":1}')]


def test_a_new_id_on_a_new_index_is_not_adopted_by_another_call() -> None:
    assert joined((0, None, "f", "{}"), (1, "b", None, None), (1, None, "g", "{}")) == [("", "f", "{}"), ("b", "g", "{}")]


def test_a_call_that_names_nothing_and_says_nothing_is_none() -> None:
    assert joined((0, None, None, None), (0, "a", None, ""), (0, None, "", " ")) == []


def test_arguments_without_a_name_are_kept_for_the_judge() -> None:
    assert joined((0, "a", None, '{"n":1}')) == [("a", "", '{"n":1}')]


def test_arguments_stay_the_raw_text() -> None:
    text = '{"n": 2'
    assert joined((0, "a", "f", text)) == [("a", "f", text)]
    for odd in ("null", " ", "[1]", "3", '{"a":1}{"b":2}'):
        assert joined((0, "a", "f", odd)) == [("a", "f", odd)]


def test_surrogate_halves_are_joined_across_fragments_and_lone_ones_replaced() -> None:
    assert joined((0, "a", "f", '{"t":"\ud83d'), (0, None, None, '\ude00\ud83d"}')) == [("a", "f", '{"t":"😀\ufffd"}')]


def test_each_fragment_is_shown_with_what_is_known_of_its_call() -> None:
    calls = ToolCalls()
    first = calls.add(3, "a", "f", "")
    second = calls.add(3, None, None, "{}")
    assert first is not None
    assert second is not None
    assert (first.index, first.id, first.name, first.arguments) == (0, "a", "f", "")
    assert (second.index, second.id, second.name, second.arguments) == (0, "a", "f", "{}")


@given(st.data())
def test_any_cut_and_any_interleaving_by_index_gives_the_same_calls(data: st.DataObject) -> None:
    made = [
        ToolCall(id=f"c{i}", name=f"tool_{i % 2}", arguments='{"text":"' + "xyz" * i + '"}') for i in range(data.draw(st.integers(1, 4)))
    ]
    queues: list[list[Fragment]] = []
    for index, call in enumerate(made):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(call.arguments)), max_size=4)))
        bounds = [0, *cuts, len(call.arguments)]
        pieces = [call.arguments[a:b] for a, b in pairwise(bounds)]
        queues.append([(index, call.id, call.name, ""), *((index, None, None, piece) for piece in pieces)])
    fragments: list[Fragment] = [queue.pop(0) for queue in queues]
    choice = random.Random(data.draw(st.integers()))
    while any(queues):
        fragments.append(choice.choice([queue for queue in queues if queue]).pop(0))
    assert joined(*fragments) == [(call.id, call.name, call.arguments) for call in made]


@given(
    st.lists(st.tuples(*[st.one_of(st.none(), s) for s in (st.integers(0, 2), st.sampled_from("ab"), st.sampled_from("fg"), st.text())]))
)
def test_no_row_of_fragments_ever_fails_and_no_argument_text_is_made_up(fragments: list[Any]) -> None:
    calls = ToolCalls()
    for fragment in fragments:
        calls.add(*fragment)
    given_text = "".join(fragment[3] or "" for fragment in fragments)
    assert not "".join(call.arguments for call in calls.finish()).replace("\ufffd", "").strip(given_text)


def test_a_long_call_in_tiny_fragments_is_joined_in_linear_time() -> None:
    def seconds(count: int) -> float:
        calls = ToolCalls()
        calls.add(0, "a", "write", '{"text":"')
        start = time.process_time()
        for _ in range(count):
            calls.add(0, None, None, "x")
        calls.finish()
        return time.process_time() - start

    seconds(1_000)
    small, large = min(seconds(20_000) for _ in range(3)), min(seconds(200_000) for _ in range(3))
    assert large < 40 * small


@pytest.mark.parametrize("piece", ["{}", '{"a":1}', "}{}"])
def test_a_name_repeated_with_every_fragment_of_a_long_text_is_joined_in_linear_time(piece: str) -> None:
    def seconds(count: int) -> float:
        calls = ToolCalls()
        calls.add(0, "a", "write", '{"text":"{}')
        start = time.process_time()
        for _ in range(count):
            calls.add(0, "a", "write", piece)
        calls.add(0, "a", "write", '"}')
        made = calls.finish()
        assert len(made) == 1
        return time.process_time() - start

    seconds(1_000)
    small, large = min(seconds(5_000) for _ in range(3)), min(seconds(50_000) for _ in range(3))
    assert large < 40 * small


def test_a_name_in_endless_pieces_is_bounded() -> None:
    calls = ToolCalls()
    for number in range(100_000):
        calls.add(0, "a", f"{number}-", "")
    (made,) = calls.finish() or (None,)
    assert made is not None
    assert made.name.startswith("0-1-2-")
    assert len(made.name) <= 1024
    assert joined((0, "a", "n" * 5000, "{}")) == [("a", "n" * 5000, "{}")]


def test_two_calls_of_a_tool_without_arguments_under_one_index_are_two_when_their_ids_differ() -> None:
    calls = ToolCalls()
    calls.add(0, "a", "ping")
    calls.add(0, "b", "ping")
    assert [(call.id, call.name) for call in calls.finish()] == [("a", "ping"), ("b", "ping")]


def test_calls_that_share_an_id_are_kept_apart_by_their_indices_before_their_arguments_are_there() -> None:
    calls = ToolCalls()
    calls.add(0, "x", "add")
    calls.add(1, "x", "mul")
    calls.add(0, arguments='{"n":1}')
    calls.add(1, arguments='{"n":2}')
    assert [(call.name, call.arguments) for call in calls.finish()] == [("add", '{"n":1}'), ("mul", '{"n":2}')]
