"""Batches for the tests: environments in a loop, as a batch; and one in NumPy with its loop."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accel_rl.envs import EnvSpec, Results, StepResult
from accel_rl.envs.base import Environment
from accel_rl.spaces import Leaf, discrete


class LoopBatch:
    """Environments in a loop, as a batch that resets in any of the three ways.

    In the way ``disabled`` an environment whose episode has ended takes no step.
    """

    def __init__(self, n: int, make: Callable[[], Environment], autoreset: str) -> None:
        self.envs = [make() for _ in range(n)]
        self.spec = self.envs[0].spec
        self.autoreset: Any = autoreset
        self.has_ended = [False] * n

    def seed(self, seeds: Sequence[np.random.SeedSequence | None]) -> None:
        for env, seed in zip(self.envs, seeds, strict=True):
            if seed is not None:
                env.seed(seed)

    def reset(self, mask: Any, out: Any) -> None:
        assert self.autoreset == "disabled" or mask.all()
        for i in np.flatnonzero(mask):
            self.envs[i].reset(out[i, ...])
            self.has_ended[i] = False

    def step(self, action: Any, out: Any, results: Results) -> None:
        for i, env in enumerate(self.envs):
            if self.has_ended[i]:
                if self.autoreset == "next_step":
                    env.reset(out[i, ...])
                    self.has_ended[i] = False
                for array in results[:5]:
                    array[i] = 7  # of no effect
                continue
            own = action[i] if action.ndim > 1 else int(action[i])
            result = env.step(own, out[i, ...])
            for array, value in zip(results[:5], result[:5], strict=True):
                array[i] = value
            if result.info:
                results.info[i] = result.info
            if result.episode_ended and self.autoreset == "same_step":
                results.final_observation[i] = out[i]
                env.reset(out[i, ...])
            else:
                self.has_ended[i] = result.episode_ended

    def close(self) -> None:
        for env in self.envs:
            env.close()


WALK = EnvSpec(name="walk", observation=Leaf((2,), np.float32), action=discrete(2))
LIMIT, BOUND = 9, 3


class Walk:
    """A walk from a random start; over beyond the bound, cut off at the limit."""

    spec = WALK

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self, out: Any) -> None:
        self.x, self.t = int(self.rng.integers(-BOUND, BOUND + 1)), 0
        out[:] = self.x, self.t

    def step(self, action: int, out: Any) -> StepResult:
        self.x += 2 * action - 1
        self.t += 1
        out[:] = self.x, self.t
        terminated = abs(self.x) > BOUND
        truncated = self.t >= LIMIT and not terminated
        return StepResult(self.x / 2, float(self.x), terminated, truncated, terminated or truncated)

    def close(self) -> None:
        pass

    def get_state(self) -> dict[str, Any]:
        return {"x": self.x, "t": self.t, "rng": self.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.x, self.t, self.rng.bit_generator.state = state["x"], state["t"], state["rng"]


class Walks:
    """``n`` of them, one call a step."""

    spec = WALK
    autoreset: Any = "disabled"

    def __init__(self, n: int) -> None:
        self.x, self.t = np.zeros((2, n), np.int64)
        self.rngs: list[Any] = [None] * n

    def seed(self, seeds: Sequence[np.random.SeedSequence | None]) -> None:
        for i, seed in enumerate(seeds):
            if seed is not None:
                self.rngs[i] = np.random.default_rng(seed)

    def reset(self, mask: Any, out: Any) -> None:
        for i in np.flatnonzero(mask):
            self.x[i] = self.rngs[i].integers(-BOUND, BOUND + 1)
        self.t[mask] = 0
        out[mask, 0], out[mask, 1] = self.x[mask], 0

    def step(self, action: Any, out: Any, results: Results) -> None:
        self.x += 2 * action - 1
        self.t += 1
        out[:, 0], out[:, 1] = self.x, self.t
        results.reward[:], results.raw_reward[:] = self.x / 2, self.x
        np.greater(np.abs(self.x), BOUND, out=results.terminated)
        np.greater_equal(self.t, LIMIT, out=results.truncated)
        results.truncated[:] &= ~results.terminated
        np.logical_or(results.terminated, results.truncated, out=results.episode_ended)

    def close(self) -> None:
        pass

    def get_state(self, i: int) -> dict[str, Any]:
        rng = self.rngs[i].bit_generator.state
        return {"x": int(self.x[i]), "t": int(self.t[i]), "rng": rng}

    def set_state(self, i: int, state: dict[str, Any]) -> None:
        self.x[i], self.t[i] = state["x"], state["t"]
        self.rngs[i].bit_generator.state = state["rng"]


def make_walks() -> Any:
    """What ``env=batches:make_walks`` names."""
    from accel_rl.envs import Batched

    return Batched(Walks)
