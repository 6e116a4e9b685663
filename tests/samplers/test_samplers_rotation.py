"""The policy's thread moves from core to core, and comes back."""

import os

import numpy as np
import pytest
from tiers import PROCESSES, slow
from toy_envs import ToyEnv

from accel_rl.samplers import ParallelSampler, SamplerConfig
from accel_rl.samplers.layout import rotation

pytestmark = PROCESSES

CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_rotation_visits_each_core_in_turn_and_restores_the_affinity():
    cores = [(cpu,) for cpu in CPUS]
    visited = []
    with rotation(cores) as move_on:
        for _ in range(2 * len(cores)):
            move_on()
            visited.append(tuple(os.sched_getaffinity(0)))
    assert visited == cores * 2
    assert sorted(os.sched_getaffinity(0)) == CPUS


def test_rotation_over_one_core_leaves_the_thread_alone():
    with rotation([(CPUS[0],), (CPUS[0],)]) as move_on:
        assert move_on is None
        assert sorted(os.sched_getaffinity(0)) == CPUS


@pytest.mark.parametrize(
    "affinity, groups, moves",
    [("rotate", 2, True), slow("rotate", 1, False), slow("auto", 2, False)],
)
def test_policy_moves_only_where_it_takes_turns_with_the_simulators(affinity, groups, moves):
    seen = set()

    def policy(step):
        seen.add(tuple(sorted(os.sched_getaffinity(0))))
        return np.zeros(len(step.observation), int)

    config = SamplerConfig(num_envs=8, num_groups=groups, affinity=affinity, horizon=4)
    with ParallelSampler(ToyEnv, config=config) as sampler:
        sampler.collect(policy)
        assert sorted(os.sched_getaffinity(0)) == CPUS
    assert (len(seen) > 1) == (moves and len(CPUS) > 1)


@pytest.mark.parametrize("affinity", ["rotate", slow("auto"), slow("off")])
def test_policy_on_a_gpu_stays_on_its_own_core_while_it_collects(affinity):
    """Also after the second rollout; between rollouts the thread is free."""
    seen = []

    def policy(step):
        seen.append(tuple(sorted(os.sched_getaffinity(0))))
        return np.zeros(len(step.observation), int)

    config = SamplerConfig(num_envs=8, num_groups=2, affinity=affinity, horizon=4)
    with ParallelSampler(ToyEnv, config=config, drives_gpu=True) as sampler:
        for _ in range(2):
            sampler.collect(policy)
            assert sorted(os.sched_getaffinity(0)) == CPUS
        expected = tuple(CPUS) if affinity == "off" else sampler.plan.server_cpus
    assert set(seen) == {expected} and len(seen) == 16


@pytest.mark.parametrize("drives_gpu", [False, slow(True)])
def test_affinity_is_restored_when_the_policy_fails(drives_gpu):
    def policy(step):
        raise KeyError("no action")

    options = {"num_envs": 8, "affinity": "rotate", "drives_gpu": drives_gpu}
    with ParallelSampler(ToyEnv, **options) as sampler:
        with pytest.raises(KeyError):
            sampler.collect(policy)
    assert sorted(os.sched_getaffinity(0)) == CPUS


class NiceEnv(ToyEnv):
    """Observes its process' niceness."""

    def reset(self, out) -> None:
        super().reset(out)
        out[:] = os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.slow
@pytest.mark.parametrize("affinity, added", [("rotate", 5), slow("auto", 0)])
def test_workers_yield_to_a_policy_on_their_cores(affinity, added):
    with ParallelSampler(NiceEnv, num_envs=4, affinity=affinity) as sampler:
        observation = sampler.rollout.observation[-1]
        assert (observation == min(19, os.getpriority(os.PRIO_PROCESS, 0) + added)).all()
