"""A task that needs the action and the reward before: find out which of two arms pays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

NUM_STEPS = 6


class Bandit(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One arm pays 1 and the other costs 1, throughout an episode; observations show neither.

    Whoever remembers what an action brought scores 5 on average, by the first try, and 0 without.
    """

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._arm, self._num_steps = int(self.np_random.integers(2)), 0
        return np.ones(1, np.float32), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        reward = 1.0 if action == self._arm else -1.0
        return np.ones(1, np.float32), reward, self._num_steps == NUM_STEPS, False, {}


def make() -> Bandit:
    return Bandit()
