"""Our parallel sampler, with random actions or with the network in the loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs import AtariConfig, make_env_factory
from accel_rl.rollout import Rollout
from accel_rl.samplers import ParallelSampler, SamplerConfig
from accel_rl.samplers.base import PolicyInput
from accel_rl.topology import available_cpus, physical_cores
from benchmarks.harness.children import read_spec, serve


def main() -> None:
    """Measures the sampler of the specification."""
    spec = read_spec()
    factory = make_env_factory(spec["game"], AtariConfig(**spec["atari"]))
    # The policy moves from core to core only where it computes in one thread.
    in_one_thread = spec["network"] and spec["device"] == "cpu" and spec["torch_threads"] == 1
    affinity = "rotate" if in_one_thread else "auto"
    config = SamplerConfig(**spec["sampler"], affinity=affinity)
    drives_gpu = spec["network"] and spec["device"] != "cpu"
    with ParallelSampler(
        factory, config=config, seed=spec["seed"], drives_gpu=drives_gpu
    ) as sampler:
        settings = {
            "sampler": spec["sampler"] | {"affinity": affinity},
            "plan": sampler.plan.describe(),
            "worker_cores": worker_cores(sampler.plan.worker_cpus),
        }
        if not spec["network"]:
            policy = RandomPolicy(sampler.env_spec.num_actions, spec["seed"])
            serve(lambda: count(sampler.collect(policy)), settings)
            return

        import torch

        from accel_rl.samplers import ActionServer
        from benchmarks.harness.network import make_agent

        agent, more = make_agent(spec | {"num_actions": sampler.env_spec.num_actions})
        with ActionServer(agent, sampler, torch.device(spec["device"])) as server:

            def advance() -> int:
                rollout = sampler.collect(server)
                server.finish()  # as a learner has it, on its device
                return count(rollout)

            serve(advance, settings | more)


def worker_cores(worker_cpus: Sequence[Sequence[int]]) -> int:
    """Number of physical cores on which workers are; ``worker_cpus[i]``: the CPUs of worker i."""
    used = {cpu for cpus in worker_cpus for cpu in cpus}
    return sum(not used.isdisjoint(core.cpus) for core in physical_cores(available_cpus()))


def count(rollout: Rollout) -> int:
    """Steps in a rollout."""
    return rollout.action.size


class RandomPolicy:
    """Uniform actions."""

    def __init__(self, num_actions: int, seed: int) -> None:
        self._num_actions = num_actions
        self._rng = np.random.default_rng(seed)

    def __call__(self, step: PolicyInput) -> NDArray[np.int64]:
        return self._rng.integers(self._num_actions, size=len(step.uniform))


if __name__ == "__main__":
    main()
