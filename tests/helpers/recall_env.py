"""A task that needs memory: do at the end what was shown at the beginning."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

NUM_STEPS = 4


class Recall(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The first observation shows one of two signs, the others none; reward 1 or -1 at the end.

    An observation is both signs and the time left. By chance the mean reward is 0, and that is the
    best that can be had without memory.
    """

    observation_space = Box(0, 1, (3,), np.float32)
    action_space = Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._sign, self._num_steps = int(self.np_random.integers(2)), 0
        observation = self._observe()
        observation[self._sign] = 1
        return observation, {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        is_last = self._num_steps == NUM_STEPS
        reward = (1.0 if action == self._sign else -1.0) if is_last else 0.0
        return self._observe(), reward, is_last, False, {}

    def _observe(self) -> NDArray[np.float32]:
        left = 1 - self._num_steps / NUM_STEPS
        return np.array([0, 0, left], np.float32)


def make() -> Recall:
    return Recall()
