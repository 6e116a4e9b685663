"""Small tasks with floats, mappings and masks: swinging, walking on a grid, choosing and aiming."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv

Told = dict[str, Any]


class Swing(PendulumEnv):
    """Pendulum-v1 with its time limit of 200 steps, pictures without pygame, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.render_mode = "rgb_array"

    def reset(self, **options: Any) -> tuple[Any, Told]:
        self.t = 0
        self.render_mode = None
        try:
            return super().reset(**options)
        finally:
            self.render_mode = "rgb_array"

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Told]:
        assert self.action_space.contains(action)  # the environment itself clips and would not tell
        self.t += 1
        self.render_mode = None
        observation, reward, *_ = super().step(action)
        self.render_mode = "rgb_array"
        return observation, reward, False, self.t == 200, {}

    def render(self) -> Any:
        angle = int(255 * (np.cos(self.state[0]) + 1) / 2)
        return np.full((8, 8, 3), angle, np.uint8)

    def get_state(self) -> Told:
        rng = self.np_random.bit_generator.state
        return {"state": np.array(self.state), "t": self.t, "rng": rng}

    def set_state(self, state: Told) -> None:
        self.reset(seed=0)
        self.state, self.t = np.array(state["state"]), state["t"]
        self.np_random.bit_generator.state = state["rng"]


class SwingInParts(Swing):
    """The same, but the torque is the sum of two parts of a mapping."""

    def __init__(self) -> None:
        super().__init__()
        inner = spaces.Dict({"c": spaces.Box(-1, 1, (), np.float64)})
        self.action_space = spaces.Dict({"a": spaces.Box(-1, 1, (1,), np.float32), "b": inner})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Told]:
        assert self.action_space.contains(action)
        self.t += 1
        observation, reward, *_ = PendulumEnv.step(self, action["a"] + action["b"]["c"])
        return observation, reward, False, self.t == 200, {}


class MaskedGrid(gymnasium.Env[Any, Any]):
    """A room of 5 x 5 cells, as MiniGrid has them: turn left or right, or go forward.

    The goal pays 1 less what the way took. Forward is not allowed in front of a wall, and an error.
    """

    SIZE, LIMIT = 5, 40
    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 1, (2, SIZE, SIZE), np.float32),
            "direction": spaces.Discrete(4),
            "action_mask": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Told | None = None) -> tuple[Told, Told]:
        super().reset(seed=seed)
        cells = self.np_random.choice(self.SIZE**2, 2, replace=False)
        self.place, self.goal = (np.array(divmod(int(each), self.SIZE)) for each in cells)
        self.direction, self.t = int(self.np_random.integers(4)), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Told, float, bool, bool, Told]:
        self.t += 1
        if action == 2:
            if not self._is_free():
                raise ValueError("there is a wall")
            self.place = self._ahead()
        else:
            self.direction = (self.direction + (1 if action else -1)) % 4
        is_there = bool((self.place == self.goal).all())
        reward = 1 - 0.9 * self.t / self.LIMIT if is_there else 0.0
        return self._observe(), reward, is_there, self.t == self.LIMIT, {}

    def _ahead(self) -> Any:
        return self.place + ((0, 1), (1, 0), (0, -1), (-1, 0))[self.direction]

    def _is_free(self) -> bool:
        return bool(((self._ahead() >= 0) & (self._ahead() < self.SIZE)).all())

    def _observe(self) -> Told:
        image = np.zeros((2, self.SIZE, self.SIZE), np.float32)
        image[0][tuple(self.place)] = image[1][tuple(self.goal)] = 1
        mask = np.array([1, 1, self._is_free()], np.int8)
        return {"image": image, "direction": self.direction, "action_mask": mask}


class ToldMask(MaskedGrid):
    """The same with the mask in ``info``, and pictures."""

    render_mode = "rgb_array"
    observation_space = spaces.Dict(
        {name: MaskedGrid.observation_space[name] for name in ("image", "direction")}
    )

    def reset(self, **options: Any) -> tuple[Told, Told]:
        observation, _ = super().reset(**options)
        return observation, {"action_mask": observation.pop("action_mask")}

    def step(self, action: Any) -> tuple[Told, float, bool, bool, Told]:
        observation, *rest, _ = super().step(action)
        return observation, *rest, {"action_mask": observation.pop("action_mask")}

    def render(self) -> Any:
        return np.full((8, 8, 3), self.t, np.uint8)


class Aim(gymnasium.Env[Any, Any]):
    """One step: name the kind that is shown, and give the number that is shown; at most 1."""

    observation_space = spaces.Dict(
        {"kind": spaces.Discrete(3), "number": spaces.Box(-1, 1, (1,), np.float32)}
    )
    action_space = spaces.Dict(
        {"kind": spaces.Discrete(3), "number": spaces.Box(-1, 1, (1,), np.float32)}
    )

    def reset(self, *, seed: int | None = None, options: Told | None = None) -> tuple[Told, Told]:
        super().reset(seed=seed)
        self.kind = int(self.np_random.integers(3))
        self.number = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return {"kind": self.kind, "number": self.number}, {}

    def step(self, action: Any) -> tuple[Told, float, bool, bool, Told]:
        missed = float(abs(action["number"] - self.number)[0])
        reward = (0.5 if action["kind"] == self.kind else 0.0) + 0.5 - missed
        return self.reset()[0], reward, True, False, {}
