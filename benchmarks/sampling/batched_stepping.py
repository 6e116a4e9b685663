"""Batches of simulators under random actions, ours and bare; the child of `batched_speed`.

``sampler``: `ParallelSampler`. ``envpool``: EnvPool's own asynchronous loop in one process.
``vectorised``: a loop over one vector environment of Gymnasium's in one process. Steps that reset
an environment are not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness.children import Advance, read_spec, serve, versions


def main() -> None:
    """Measures the part that the specification names."""
    spec = read_spec()
    parts = {"sampler": make_sampler, "envpool": make_envpool, "vectorised": make_vectorised}
    serve(*parts[spec["part"]](spec))


def make_sampler(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, settings (of the sampler)."""
    from accel_rl.samplers import ParallelSampler, PolicyInput

    sampler = ParallelSampler(spec["env"], seed=spec["seed"], **spec["settings"])
    sampler.start()
    rng, num_actions = np.random.default_rng(spec["seed"]), sampler.env_spec.num_actions

    def policy(step: PolicyInput) -> Any:
        return rng.integers(num_actions, size=len(step.uniform))

    def advance() -> int:
        return int(np.count_nonzero(sampler.collect(policy).valid))

    return advance, {"plan": sampler.plan.describe(), **versions("envpool", "gymnasium")}


def make_envpool(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, settings (of EnvPool)."""
    import envpool

    pool = envpool.make_gymnasium(spec["env"], seed=spec["seed"], **spec["settings"])
    num_actions, batch_size = int(pool.action_space.n), spec["settings"]["batch_size"]
    rng = np.random.default_rng(spec["seed"])
    pool.async_reset()

    def advance() -> int:
        num_steps = 0
        for _ in range(8):
            _, _, terminated, truncated, info = pool.recv()
            num_steps += batch_size - int(np.count_nonzero(terminated | truncated))
            pool.send(rng.integers(num_actions, size=batch_size), info["env_id"])
        return num_steps

    return advance, versions("envpool")


def make_vectorised(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, num_envs."""
    import gymnasium

    num_envs = spec["num_envs"]
    env: Any = gymnasium.make_vec(spec["env"], num_envs)
    env.reset(seed=spec["seed"])
    rng, num_actions = np.random.default_rng(spec["seed"]), int(env.single_action_space.n)

    def advance() -> int:
        num_steps = 0
        for _ in range(8):
            _, _, terminated, truncated, _ = env.step(rng.integers(num_actions, size=num_envs))
            num_steps += num_envs - int(np.count_nonzero(terminated | truncated))
        return num_steps

    return advance, versions("gymnasium")


if __name__ == "__main__":
    main()
