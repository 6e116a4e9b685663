"""CartPole that shows where cart and pole are, and not how fast they move.

Two observations in a row tell the speeds, so that a network that remembers can learn it:

    accel_rl train config=examples/hidden_velocity_ppo.yaml trust=true
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformObservation


def make() -> gymnasium.Env[np.ndarray, int]:
    """Make the environment, as ``env=examples.hidden_velocity:make``."""
    env = gymnasium.make("CartPole-v1")
    return TransformObservation(env, lambda seen: seen[[0, 2]], Box(-5, 5, (2,), np.float32))
