"""A Gymnasium environment whose actions do not begin at 0."""

from typing import Any

import gymnasium
import numpy as np

FIRST = 2


class EchoEnv(gymnasium.Env[Any, Any]):
    """Gives back each action, 2, 3 or 4, as observation and reward."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=FIRST)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        assert self.action_space.contains(action)
        return np.full(1, action, np.float32), float(action), False, False, {}
