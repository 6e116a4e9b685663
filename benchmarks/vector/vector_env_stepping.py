"""Vector environments under random actions, ours and others; the child of `vector_env_speed`.

``loop``: one Gymnasium environment in a plain loop, in one process. ``vector_env``: ours.
``sampler``: `ParallelSampler` on the same environments. ``gymnasium``: Gymnasium's own, one process
for each environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from benchmarks.harness.children import Advance, read_spec, serve

STEPS_AT_ONCE = 1024


def main() -> None:
    """Measures the part that the specification names."""
    spec = read_spec()
    make = {
        "loop": make_loop,
        "vector_env": make_vector_env,
        "sampler": make_sampler,
        "gymnasium": make_gymnasium,
    }
    serve(*make[spec["part"]](spec))


def make_loop(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed."""
    env: Any = gymnasium.make(spec["env"])
    env.reset(seed=spec["seed"])
    rng = np.random.default_rng(spec["seed"])

    def advance() -> int:
        for action in rng.integers(env.action_space.n, size=STEPS_AT_ONCE).tolist():
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return STEPS_AT_ONCE

    return advance, {}


def make_vector_env(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, vector_env (its options); with groups they are sent in turn."""
    from accel_rl.vector import VectorEnv

    # So that each step counted is one of an environment: else one after each end is a reset.
    env = VectorEnv(spec["env"], autoreset_mode="SameStep", **spec["vector_env"])
    env.reset(seed=spec["seed"])
    rng = np.random.default_rng(spec["seed"])
    num_actions, num_groups = int(env.single_action_space.n), len(env.groups)
    size = env.num_envs // num_groups
    if num_groups == 1:

        def step() -> None:
            env.step(rng.integers(num_actions, size=size))
    else:
        for _ in env.groups:
            env.send(rng.integers(num_actions, size=size))

        def step() -> None:
            env.recv()
            env.send(rng.integers(num_actions, size=size))

    return repeated(step, size), {"plan": env.plan.describe()}


def make_sampler(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, sampler (its config)."""
    from accel_rl.envs import make_env_factory
    from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerConfig

    config = SamplerConfig(**spec["sampler"])
    sampler = ParallelSampler(make_env_factory(spec["env"]), config=config, seed=spec["seed"])
    sampler.start()
    rng, num_actions = np.random.default_rng(spec["seed"]), sampler.env_spec.num_actions

    def policy(step: PolicyInput) -> Any:
        return rng.integers(num_actions, size=len(step.uniform))

    def advance() -> int:
        return sampler.collect(policy).action.size

    return advance, {"plan": sampler.plan.describe()}


def make_gymnasium(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, vector_env."""
    num_envs = spec["vector_env"]["num_envs"]
    settings = {"shared_memory": True, "copy": False, "autoreset_mode": "SameStep"}
    vector_kwargs = settings | {"autoreset_mode": AutoresetMode.SAME_STEP}
    env: Any = gymnasium.make_vec(
        spec["env"], num_envs, vectorization_mode="async", vector_kwargs=vector_kwargs
    )
    env.reset(seed=spec["seed"])
    rng = np.random.default_rng(spec["seed"])
    num_actions = int(env.single_action_space.n)

    def step() -> None:
        env.step(rng.integers(num_actions, size=num_envs))

    return repeated(step, num_envs), settings


def repeated(step: Any, num_steps: int) -> Advance:
    """Some calls of ``step``, each worth ``num_steps``."""
    num_calls = max(1, STEPS_AT_ONCE // num_steps)

    def advance() -> int:
        for _ in range(num_calls):
            step()
        return num_calls * num_steps

    return advance


if __name__ == "__main__":
    main()
