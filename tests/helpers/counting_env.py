"""Environments that count, so that whole rollouts can be predicted: to test samplers with."""

from __future__ import annotations

import numpy as np

from accel_rl.envs.base import Array, EnvSpec, EnvState, StepResult
from accel_rl.spaces import Leaf, discrete


class ToyEnv:
    """Observation ``(own random number, episode, step)``; the raw reward tells step and action.

    Episodes, from 1, last 1 to ``most`` steps; with probability ``truncation`` they are cut off.
    Every ``life_interval`` steps a life is lost. The four actions change nothing else.
    """

    spec = EnvSpec(name="toy", observation=Leaf((3,), np.dtype(np.int64)), action=discrete(4))

    def __init__(
        self, *, max_episode_steps: int = 8, truncation: float = 0.4, life_interval: int = 3
    ) -> None:
        self.most, self.truncation = max_episode_steps, truncation
        self.life_interval = life_interval
        self.episode = self.length = self.t = 0

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.rng = np.random.default_rng(seed)
        self.identity = int(self.rng.integers(1_000_000))
        self.episode = 0

    def reset(self, out: Array) -> None:
        self.episode += 1
        self.t = 0
        self.length = int(self.rng.integers(1, self.most + 1))
        self.is_cut_off = bool(self.rng.random() < self.truncation)
        out[:] = (self.identity, self.episode, 0)

    def step(self, action: int, out: Array) -> StepResult:
        self.t += 1
        out[:] = (self.identity, self.episode, self.t)
        ended = self.t == self.length
        loses_life = self.t % self.life_interval == 0
        return StepResult(
            reward=float(np.sign(action - 1)),
            raw_reward=10.0 * self.t + action,
            terminated=(ended and not self.is_cut_off) or (loses_life and not ended),
            truncated=ended and self.is_cut_off,
            episode_ended=ended,
        )

    def close(self) -> None:
        pass


class CountingEnv(ToyEnv):
    """The same with a state, and the step as reward; nothing is cut off or lost unless asked."""

    spec = EnvSpec(name="counting", observation=ToyEnv.spec.observation, action=discrete(4))

    def __init__(
        self, *, max_episode_steps: int = 8, truncation: float = 0.0, life_interval: int = 10**9
    ) -> None:
        super().__init__(
            max_episode_steps=max_episode_steps, truncation=truncation, life_interval=life_interval
        )

    def step(self, action: int, out: Array) -> StepResult:
        result = super().step(action, out)
        return result._replace(reward=float(self.t), raw_reward=float(self.t))

    def get_state(self) -> EnvState:
        counts = [self.identity, self.episode, self.t, self.length]
        cut = {"is_cut_off": self.is_cut_off}
        return {"rng": self.rng.bit_generator.state, "counts": counts, **cut}

    def set_state(self, state: EnvState) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.identity, self.episode, self.t, self.length = state["counts"]
        self.is_cut_off = state["is_cut_off"]
