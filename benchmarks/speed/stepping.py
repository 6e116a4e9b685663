"""Samplers and vector environments, ours and bare ones; a child of `speed`.

``sampler``: `ParallelSampler`, with random actions or with the network. ``vector_env``: ours.
``gymnasium``: Gymnasium's AsyncVectorEnv. ``loop``: one environment of Gymnasium in a plain loop.
``vectorised``: a loop over a vectorised environment of Gymnasium. ``envpool``: EnvPool's own
asynchronous loop. Steps that only reset an environment are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.children import Advance, read_spec, serve, versions

STEPS_AT_ONCE = 1024


def main() -> None:
    """Measures the part that the specification names."""
    spec = read_spec()
    parts = {
        "sampler": make_sampler,
        "vector_env": make_vector_env,
        "gymnasium": make_gymnasium,
        "loop": make_loop,
        "vectorised": make_vectorised,
        "envpool": make_envpool,
    }
    advance, settings = parts[spec["part"]](spec)
    serve(advance, settings | {"versions": versions("gymnasium", "envpool", "torch")})


def make_sampler(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, sampler (its config); atari, network and what `make_agent` asks for."""
    from accel_rl.envs import AtariConfig, make_env_factory
    from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerConfig

    env, network = spec["env"], spec.get("network", False)
    if "atari" in spec:
        env = make_env_factory(spec["game"], AtariConfig(**spec["atari"]))
    device = spec["device"] if network else "cpu"
    # The policy moves from core to core only where it computes in one thread.
    in_one_thread = network and device == "cpu" and spec["torch_threads"] == 1
    given = {"affinity": "rotate" if in_one_thread else "auto", **spec["sampler"]}
    config = SamplerConfig(**given)
    sampler = ParallelSampler(env, config=config, seed=spec["seed"], drives_gpu=device != "cpu")
    sampler.start()
    settings = {
        "sampler": given,
        "plan": sampler.plan.describe(),
        "worker_cores": worker_cores(sampler.plan.worker_cpus),
    }
    rng, num_actions = np.random.default_rng(spec["seed"]), sampler.env_spec.num_actions
    if not network:

        def policy(step: PolicyInput) -> Any:
            return rng.integers(num_actions, size=len(step.noise))

        return lambda: int(np.count_nonzero(sampler.collect(policy).valid)), settings

    import torch

    from accel_rl.samplers import ActionServer
    from benchmarks.harness.network import make_agent

    agent, more = make_agent(spec | {"num_actions": num_actions})
    server = ActionServer(agent, sampler, torch.device(device))

    def advance() -> int:
        rollout = sampler.collect(server)
        server.finish()  # as a learner has it, on its device
        return int(rollout.action.size)

    return advance, settings | more


def worker_cores(worker_cpus: Sequence[Sequence[int]]) -> int:
    """Number of physical cores on which workers are; ``worker_cpus[i]``: the CPUs of worker i."""
    from accel_rl.system.topology import available_cpus, physical_cores

    used = {cpu for cpus in worker_cpus for cpu in cpus}
    return sum(not used.isdisjoint(core.cpus) for core in physical_cores(available_cpus()))


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


def make_gymnasium(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed, vector_env."""
    import gymnasium
    from gymnasium.vector import AutoresetMode

    num_envs = spec["vector_env"]["num_envs"]
    settings: dict[str, Any] = {"shared_memory": True, "copy": False}
    vector_kwargs = settings | {"autoreset_mode": AutoresetMode.SAME_STEP}
    env: Any = gymnasium.make_vec(
        spec["env"], num_envs, vectorization_mode="async", vector_kwargs=vector_kwargs
    )
    env.reset(seed=spec["seed"])
    rng, num_actions = np.random.default_rng(spec["seed"]), int(env.single_action_space.n)

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


def make_loop(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec``: env, seed."""
    import gymnasium

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

    return advance, {}


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

    return advance, {}


if __name__ == "__main__":
    main()
