"""An environment of your own, sampled with a policy in NumPy: no torch anywhere.

    python examples/numpy_policy.py [NUM_GENERATIONS]

A cart on a line is pushed left or right and must be held at the middle. The policy is linear, and
the cross-entropy method (Rubinstein 1999) finds its three weights: each environment plays
with weights of its own, and the best ones say where to look next.
"""

from __future__ import annotations

import sys

import numpy as np

from accel_rl.envs import EnvSpec, StepResult
from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerConfig
from accel_rl.spaces import Leaf, discrete

NUM_ENVS, EPISODE_STEPS, NUM_BEST = 32, 60, 6


class Cart:
    """Observation: position and speed, ``[2]`` float32. Action 1 pushes right, 0 left."""

    spec = EnvSpec(
        name="cart",
        observation=Leaf((2,), np.dtype(np.float32)),
        action=discrete(2),
    )

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self, out: np.ndarray) -> None:
        self.position, self.speed, self.num_steps = float(self.rng.uniform(-1, 1)), 0.0, 0
        out[:] = self.position, self.speed

    def step(self, action: int, out: np.ndarray) -> StepResult:
        self.speed += 0.1 if action == 1 else -0.1
        self.position += 0.5 * self.speed
        self.num_steps += 1
        out[:] = self.position, self.speed
        is_lost, is_late = abs(self.position) > 2, self.num_steps == EPISODE_STEPS
        reward = 1 - abs(self.position)
        return StepResult(
            reward=reward,
            raw_reward=reward,
            terminated=is_lost,
            truncated=is_late and not is_lost,
            episode_ended=is_lost or is_late,
        )

    def close(self) -> None:
        pass


def main(num_generations: int = 15) -> float:
    """Searches, and returns the mean return of the last generation."""
    rng = np.random.default_rng(0)
    mean, spread = np.zeros(3), np.ones(3)
    # One rollout is one episode of each environment; what is lost earlier waits for the next one.
    config = SamplerConfig(num_envs=NUM_ENVS, horizon=EPISODE_STEPS, reset_policy="wait")
    with ParallelSampler(Cart, config=config, seed=0) as sampler:
        for generation in range(num_generations):
            weights = rng.normal(mean, spread, size=(NUM_ENVS, 3))

            def policy(step: PolicyInput, weights: np.ndarray = weights) -> np.ndarray:
                """step.observation: [n, 2]; step.env_slice: which environments these are."""
                own = weights[step.env_slice]
                push = (own[:, :2] * step.observation).sum(axis=1) + own[:, 2]
                return (push > 0).astype(np.int64)

            returns = sampler.collect(policy).reward.sum(axis=0)
            best = weights[np.argsort(returns)[-NUM_BEST:]]
            mean, spread = best.mean(axis=0), best.std(axis=0) + 0.05
            print(f"generation {generation}: mean return {returns.mean():.1f}", flush=True)
    return float(returns.mean())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
