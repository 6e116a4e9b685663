"""The random generators that all environments of a process share: `random` and ``np.random``.

Each environment that is made or seeded seeds them, with its own seed. What is drawn from them then
depends on how many environments a process has, but not on time.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

State = tuple[Any, ...]

_MOST_WATCHED = 200
"""turns after which environments that have drawn nothing are taken to draw nothing at all"""
_newest: State = ()
"""behind the last `seed_generators`"""


def seed_generators(seed: np.random.SeedSequence) -> None:
    """Seed both generators."""
    global _newest
    first, *others = seed.generate_state(5).tolist()
    random.seed(first)
    np.random.seed(others)
    _newest = get_generators()


def get_generators() -> State:
    """Return the states of both generators. Equal states are equal tuples."""
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return random.getstate(), name, keys.tobytes(), *rest


def set_generators(state: State) -> None:
    """Let both generators go on from what `get_generators` returned."""
    mine, name, keys, *rest = state
    random.setstate(mine)
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))


class Turns:
    """Gives each group of a worker's environments states of the generators of its own.

    Several groups take turns in an order that depends on time. States are exchanged only if
    environments draw from the generators, since that takes as long as some steps of CartPole.
    """

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self._group = -1  # whose turn it is
        self._is_used = False
        self._num_watched = 0

    def add(self, group: int) -> None:
        """Keep the states for a group that has just begun."""
        self._states[group], self._group = get_generators(), group
        self._is_used |= self._states[group] != _newest

    def begin(self, group: int) -> None:
        is_unused = not self._is_used and self._num_watched == _MOST_WATCHED
        if group == self._group or is_unused:
            return
        now = get_generators()
        self._is_used |= now != self._states[self._group]
        self._num_watched += not self._is_used
        self._states[self._group], self._group = now, group
        set_generators(self._states[group])
