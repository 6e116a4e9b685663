"""Tasks that need memory: do at the end what was shown at first; find out which arm pays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Told = dict[str, Any]


class Recall(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The first observation shows one of two signs, the others none; reward 1 or -1 at the end.

    An observation is both signs and the time left. By chance the mean reward is 0, and that is the
    best that can be had without memory.
    """

    observation_space = Box(0, 1, (3,), np.float32)
    action_space = Discrete(2)
    num_steps = 4

    def reset(
        self, *, seed: int | None = None, options: Told | None = None
    ) -> tuple[NDArray[np.float32], Told]:
        super().reset(seed=seed)
        self.right, self.t = int(self.np_random.integers(2)), 0
        observation = self.observe()
        observation[self.right] = 1
        return observation, {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, Told]:
        self.t += 1
        is_last = self.t == self.num_steps
        reward = 1.0 if action == self.right else -1.0
        return self.observe(), reward if is_last else 0.0, is_last, False, {}

    def observe(self) -> NDArray[np.float32]:
        return np.array([0, 0, 1 - self.t / self.num_steps], np.float32)


class Bandit(Recall):
    """One arm pays 1 and the other costs 1, throughout an episode; observations show neither.

    Whoever remembers what an action brought scores 5 on average, by the first try, and 0 without.
    """

    observation_space = Box(0, 1, (1,), np.float32)

    def reset(self, **options: Any) -> tuple[NDArray[np.float32], Told]:
        super().reset(**options)
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, Told]:
        self.t += 1
        reward = 1.0 if action == self.right else -1.0
        return np.ones(1, np.float32), reward, self.t == 6, False, {}
