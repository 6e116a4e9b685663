"""Environments that tell numbers, for the tests of ``info_keys``."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from toy_envs import ScriptedEnv

from accel_rl.envs import StepResult

KEYS = ("place", "even", "is_success", "never")


def told(observation: Any, action: int, ended: bool) -> dict[str, Any]:
    """What the step from ``observation``, ``(identity, episode, step)``, tells."""
    _, episode, t = (int(each) for each in observation)
    step = t + 1
    info: dict[str, Any] = {"place": np.float64(100 * episode + 10 * step + action), "text": "no"}
    if step % 2 == 0:
        info["even"] = np.array([step])
    if ended:
        info["is_success"] = bool(episode % 2)
    return info


class TellingEnv(gymnasium.Env[Any, Any]):
    """Observation ``(own number, episode, step)``; info as `told` says, of a reset nothing.

    Episodes last 1 to 8 steps, some end in a truncation.
    """

    observation_space = spaces.Box(0, 2**40, (3,), np.int64)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.episode, self.identity = 0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.identity < 0:
            self.identity = int(self.np_random.integers(1_000_000))
        self.episode += 1
        self.t = 0
        self.length = int(self.np_random.integers(1, 9))
        self.is_cut_off = bool(self.np_random.random() < 0.4)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        before = self._observe()
        self.t += 1
        ended = self.t == self.length
        ends = (ended and not self.is_cut_off, ended and self.is_cut_off)
        return self._observe(), 1.0, *ends, told(before, int(action), ended)

    def _observe(self) -> Any:
        return np.array([self.identity, self.episode, self.t])


class SteppingEnv(ScriptedEnv):
    """Four steps a game, cut off; tells the step and, in every third one, nothing at all."""

    spec = replace(ScriptedEnv.spec, name="stepping", info_keys=("step", "action"))

    def __init__(self) -> None:
        super().__init__("...c")

    def step(self, action: int, out: Any) -> StepResult:
        result = super().step(action, out)
        return result._replace(info=() if self.t % 3 == 0 else (self.t, action))
