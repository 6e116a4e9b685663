"""Catch, the smallest task in which a network must look at what it sees."""

from __future__ import annotations

import numpy as np

from accel_rl.envs.base import Array, EnvSpec, EnvState, StepResult
from accel_rl.spaces import Leaf, discrete

ROWS, COLUMNS = 10, 5
LEFT, STAY, RIGHT = range(3)


class Catch:
    """A task in which a paddle catches a falling ball.

    The ball falls one row a step from a random column of the top row. The paddle starts in the
    middle of the bottom row. The episode ends after nine steps, with reward 1 if the paddle is
    under the ball and -1 if not. The best return is 1; random actions return about -0.6 (Osband et
    al. 2020, arXiv:1908.03568).

    Observations are ``[10, 5]`` float32: 1 for the ball and the paddle, 0 elsewhere. Actions are 0
    (left), 1 (stay) and 2 (right).
    """

    spec = EnvSpec(
        name="catch",
        observation=Leaf((ROWS, COLUMNS), np.dtype(np.float32)),
        action=discrete(3),
    )

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self, out: Array) -> None:
        self._ball_row, self._ball_column = 0, int(self._rng.integers(COLUMNS))
        self._paddle = COLUMNS // 2
        self._draw(out)

    def step(self, action: int, out: Array) -> StepResult:
        self._paddle = min(max(self._paddle + action - STAY, 0), COLUMNS - 1)
        self._ball_row += 1
        self._draw(out)
        if self._ball_row < ROWS - 1:
            return StepResult(0.0, 0.0, False, False, False)
        reward = 1.0 if self._paddle == self._ball_column else -1.0
        return StepResult(reward, reward, True, False, True)

    def close(self) -> None:
        """Nothing to do."""

    def get_state(self) -> EnvState:
        return {
            "rng": self._rng.bit_generator.state,
            "ball": [self._ball_row, self._ball_column],
            "paddle": self._paddle,
        }

    def set_state(self, state: EnvState) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._ball_row, self._ball_column = state["ball"]
        self._paddle = state["paddle"]

    def _draw(self, out: Array) -> None:
        out.fill(0)
        out[self._ball_row, self._ball_column] = 1
        out[ROWS - 1, self._paddle] = 1
