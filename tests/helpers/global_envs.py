"""Environments that draw from what a process shares, and from their spaces."""

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit


class Drawing(gymnasium.Env[Any, Any]):
    """Observes draws of ``np.random``, of `random`, of its action space and of its constructor."""

    observation_space = Box(0, 1, (4,), np.float32)

    def __init__(self) -> None:
        self.action_space = Discrete(1000)
        self.made = np.random.random()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.look(), {}

    def look(self) -> Any:
        sample = self.action_space.sample() / 1000
        return np.array([np.random.random(), random.random(), sample, self.made], np.float32)

    def step(self, action: Any) -> Any:
        return self.look(), 1.0, False, False, {}


def make() -> gymnasium.Env[Any, Any]:
    """Within a wrapper that has a space of its own."""
    return TimeLimit(Drawing(), 5)
