"""Run as a program: python3 tests/test_till.py"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from till import change, total


def test_several_of_one_kind_cost_as_many_times_as_much():
    assert total([("pencil", 120, 3), ("paper", 450, 1)]) == 810


def test_nothing_costs_nothing():
    assert total([]) == 0


def test_what_is_given_back():
    assert change(810, 1000) == 190


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
