"""A failing script is made small, and what is left still fails."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from interlock.machine import Call as MachineCall
from interlock.machine import State
from interlock.records import Traits
from interlock.testing.sim import Act, Call, Reply, Script, script_of, shrink, simulate
from interlock.testing.sim.script import elements

BIG = Script(
    seed=7,
    calls=(Call(layers=("pass", "swallow")), Call("look", ("race", "pass"), "slow"), Call("move", ("pass", "pass")), Call()),
    replies=(Reply("dropped"), Reply("calls", (0, 1, 2)), Reply("length"), Reply("calls", (3,))),
    acts=(Act("steer", "after", "ModelStepStarted"), Act("crash", "after", "effect", 1), Act("cancel", "after", "RunEnded")),
    moves=("import", "run", "resume", "run", "steer"),
    noted=("RunStarted", "RunEnded"),
    layers=2,
    model_layer=True,
    flush_s=0.01,
    limits={"requests": 20},
)


@pytest.fixture
def _every_tool_is_rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    def traits_of(state: State, call: MachineCall) -> Traits:
        return Traits(on_crash="rerun")

    monkeypatch.setattr(import_module("interlock.machine.apply"), "traits_of", traits_of)


@pytest.mark.usefixtures("_every_tool_is_rerun")
def test_a_planted_bug_is_found_in_a_big_script_and_the_script_is_shrunk_to_what_shows_it() -> None:
    assert any("no handler starts twice" in said for said in simulate(BIG).violations)
    small = shrink(BIG, lambda script: any("no handler starts twice" in said for said in simulate(script).violations))
    assert len(small.acts) == 1
    assert small.acts[0].kind == "crash"
    assert small.acts[0].what == "effect"
    assert [reply.kind for reply in small.replies] == ["calls"]
    assert len(small.replies[0].calls) == 1
    assert small.moves == ("run",)
    assert (small.layers, small.noted, small.limits, small.model_layer, small.seed) == (0, (), {}, False, None)
    assert any("no handler starts twice" in said for said in simulate(small).violations)


@pytest.mark.usefixtures("_every_tool_is_rerun")
def test_a_planted_bug_is_found_by_chance_and_shrunk_without_being_told_what_to_look_for() -> None:
    failing = next(seed for seed in range(2000) if not simulate(seed).ok)
    small = shrink(script_of(failing))
    assert not simulate(small).ok
    assert elements(small) <= 7 < elements(script_of(failing))


def test_a_script_that_does_not_fail_is_not_shrunk() -> None:
    assert shrink(BIG) is BIG


def test_no_single_element_of_what_is_left_can_be_spared() -> None:
    def fails(script: Script) -> bool:
        return "import" in script.moves and any(reply.kind == "length" for reply in script.replies)

    small = shrink(BIG, fails)
    assert small == Script(replies=(Reply("length"),), moves=("import",), layers=0, answers=())
    assert not fails(replace(small, moves=()))
