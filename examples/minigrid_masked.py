"""MiniGrid with PPO: observations are a mapping, and a mask says which actions do something.

Needs `pip install minigrid`. A key has to be found, a door opened with it, and the goal reached:

    accel_rl train config=examples/minigrid_masked.yaml trust=true
"""

from typing import Any

import gymnasium
import minigrid  # noqa: F401  # registers its environments
import numpy as np
from gymnasium import spaces

SCALE = np.array([10, 5, 2], np.float32)  # largest numbers of an object, a colour and a state


class Masked(gymnasium.ObservationWrapper[dict[str, Any], int, dict[str, Any]]):
    """Leaves the mission's text out, which is always the same, and adds ``action_mask``."""

    def __init__(self, env: gymnasium.Env[dict[str, Any], int]) -> None:
        super().__init__(env)
        image = env.observation_space["image"].shape  # type: ignore[index]
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 1, image, np.float32),
                "direction": spaces.Discrete(4),
                "action_mask": spaces.MultiBinary(7),
            }
        )

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return what the agent sees of ``observation``."""
        grid: Any = self.unwrapped
        ahead = grid.grid.get(*grid.front_pos)  # an object; None: nothing
        mask = [
            True,  # turn left
            True,  # turn right
            ahead is None or ahead.can_overlap(),  # go forward
            ahead is not None and ahead.can_pickup() and grid.carrying is None,  # pick up
            ahead is None and grid.carrying is not None,  # drop
            ahead is not None and ahead.type in ("door", "box"),  # open
            False,  # done: says nothing in this task
        ]
        return {
            "image": observation["image"] / SCALE,
            "direction": observation["direction"],
            "action_mask": np.array(mask, np.int8),
        }


def make() -> gymnasium.Env[dict[str, Any], int]:
    """Make the environment, as ``env=examples.minigrid_masked:make``."""
    return Masked(gymnasium.make("MiniGrid-DoorKey-5x5-v0"))
