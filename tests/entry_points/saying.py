"""An error must say whose fault it is and what to do: it is of our tree, and its message has the words that matter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from interlock import InterlockError, UsageError


@contextmanager
def refused(*words: str, kind: type[InterlockError] = UsageError) -> Iterator[None]:
    """The block raises exactly ``kind``, and its message has all of ``words``, whatever their case."""
    with pytest.raises(InterlockError) as caught:
        yield
    error = caught.value
    assert type(error) is kind, repr(error)
    missing = [word for word in words if word.lower() not in str(error).lower()]
    assert not missing, f"{error} says nothing of {missing}"
    assert len(str(error)) < 2000, "an error message that nobody reads to its end"


def label(value: object) -> str:
    """A test's id: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+|[^ -~]", "", ascii(value))[:40]
