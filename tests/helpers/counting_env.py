"""An environment that counts, so that a whole rollout can be predicted: to test samplers with."""

from __future__ import annotations

import numpy as np

from accel_rl.envs.base import Array, EnvSpec, EnvState, StepResult
from accel_rl.spaces import Leaf, discrete


class CountingEnv:
    """Observations ``[3]`` int64: (environment, episode, step); the reward is the step.

    ``environment`` is a number drawn from the seed; episodes count from 0; a reset gives step 0,
    the first ``step`` 1. Each episode's length is drawn from 1 to ``max_episode_steps``; with
    probability ``truncation`` it ends truncated, else terminated. Every ``life_interval`` steps a
    life is lost in between (terminated, but the episode goes on). The four actions change nothing.
    """

    spec = EnvSpec(
        name="counting",
        observation=Leaf((3,), np.dtype(np.int64)),
        action=discrete(4),
    )

    def __init__(
        self,
        *,
        max_episode_steps: int = 8,
        truncation: float = 0.0,
        life_interval: int | None = None,
    ) -> None:
        self._max_episode_steps = max_episode_steps
        self._truncation = truncation
        self._life_interval = life_interval

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.default_rng(seed)
        self._environment = int(self._rng.integers(2**31))
        self._episode = -1

    def reset(self, out: Array) -> None:
        self._episode += 1
        self._step = 0
        self._length = int(self._rng.integers(self._max_episode_steps)) + 1
        self._is_truncated = bool(self._rng.random() < self._truncation)
        out[:] = self._environment, self._episode, 0

    def step(self, action: int, out: Array) -> StepResult:
        self._step += 1
        out[:] = self._environment, self._episode, self._step
        ended = self._step == self._length
        truncated = ended and self._is_truncated
        lost_life = self._life_interval is not None and self._step % self._life_interval == 0
        return StepResult(
            reward=float(self._step),
            raw_reward=float(self._step),
            terminated=(ended or lost_life) and not truncated,
            truncated=truncated,
            episode_ended=ended,
        )

    def close(self) -> None:
        """Nothing to do."""

    def get_state(self) -> EnvState:
        return {
            "rng": self._rng.bit_generator.state,
            "counts": [self._environment, self._episode, self._step],
            "length": self._length,
            "is_truncated": self._is_truncated,
        }

    def set_state(self, state: EnvState) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._environment, self._episode, self._step = state["counts"]
        self._length, self._is_truncated = state["length"], state["is_truncated"]
