"""Parameters of a test in the tiers that their costs allow."""

from collections.abc import Iterable
from typing import Any

import pytest

PROCESSES, SLOW = pytest.mark.processes, pytest.mark.slow


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=SLOW)


def processes(*values: Any) -> Any:
    return pytest.param(*values, marks=PROCESSES)


def slow_processes(*values: Any) -> Any:
    return pytest.param(*values, marks=[SLOW, PROCESSES])


def in_tiers(values: Iterable[str], quick: str, slow: str = "") -> list[object]:
    """Those named in ``quick`` as they are, those in ``slow`` marked so, all others nightly."""
    return [
        value
        if value in quick.split()
        else pytest.param(
            value, marks=pytest.mark.slow if value in slow.split() else pytest.mark.nightly
        )
        for value in values
    ]


def first_quick(values: Iterable[object], number: int = 1) -> list[object]:
    """The first ``number`` as they are, all others slow. A value may be a tuple of several."""
    return [
        value
        if i < number
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow
        )
        for i, value in enumerate(values)
    ]
