"""The pool alone: who steps what, groups served as they come."""

import subprocess
import sys

import numpy as np
import pytest
from tiers import PROCESSES, SLOW
from toy_envs import ToyEnv

from accel_rl.rollout import Rollout, truncate_running
from accel_rl.samplers import SamplerConfig
from accel_rl.samplers.layout import (
    assign_columns,
    plan_workers,
)
from accel_rl.system.topology import Core, Machine


def table_of(config: SamplerConfig, num_workers: int) -> list[list[range]]:
    """``[worker][group]``, empty where a worker has nothing of a group."""
    table = [[range(0)] * config.num_groups for _ in range(num_workers)]
    for worker, group, columns in assign_columns(config, num_workers):
        assert columns and not table[worker][group]
        table[worker][group] = columns
    return table


@pytest.mark.parametrize(
    "num_envs, groups, workers",
    [
        (16, 2, 3),
        (16, 1, 16),
        (16, 2, 15),
        (128, 2, 15),
        (64, 4, 15),
        (8, 4, 5),
        (64, 2, 2),
        (2, 2, 1),
    ],
)
def test_every_environment_has_one_worker_and_shares_are_even(num_envs, groups, workers):
    config = SamplerConfig(num_envs=num_envs, num_groups=groups)
    columns = table_of(config, workers)
    assert sorted(b for worker in columns for group in worker for b in group) == [*range(num_envs)]
    assert max(sum(map(len, own)) for own in columns) == -(-num_envs // workers)
    size = num_envs // groups
    for slices in columns:
        for group, slice_ in enumerate(slices):
            assert all(b // size == group for b in slice_)
    for group in range(groups):
        held = [len(worker[group]) for worker in columns if worker[group]]
        assert max(held) - min(held) <= 1


@pytest.mark.parametrize(("num_envs", "expected"), [(8, 8), (16, 15), (30, 15), (14, 14)])
def test_few_environments_have_a_worker_each_where_cores_suffice(num_envs, expected):
    machine = Machine(tuple(Core((cpu,), 0) for cpu in range(16)))
    config = SamplerConfig(num_envs=num_envs, num_groups=2)
    plan = plan_workers(config, drives_gpu=True, machine=machine)
    assert len(plan.worker_cpus) == expected


@pytest.mark.parametrize("is_done", [False, True])
def test_truncation_keeps_what_was_last_seen_in_the_next_free_slot(is_done):
    config = SamplerConfig(num_envs=2, horizon=4, num_groups=1)
    rollout = Rollout.allocate(config.rollout_spec(ToyEnv.spec))
    rollout.final_step[:] = -1
    rollout.final_step[0, 0] = 1
    rollout.valid[:] = True
    numbers = np.arange(1, rollout.observation.size + 1)
    rollout.observation[...] = numbers.reshape(rollout.observation.shape)
    assert truncate_running(rollout, range(2), t=2, is_done=is_done, waits=False) == [0, 1]
    assert not rollout.terminated[2].any()
    assert rollout.truncated[2].all() and rollout.episode_ended[2].all()
    assert rollout.final_step[:2].tolist() == [[1, 2], [2, -1]]
    last_seen = rollout.observation[2 + is_done]
    assert (rollout.final_observation[[1, 0], [0, 1]] == last_seen).all()
    assert (rollout.valid[2] == is_done).all()


@SLOW
@PROCESSES
def test_open_files_of_many_workers_are_allowed_for():
    """More than the limit, before any is started."""
    script = """
import resource
from accel_rl.envs import make_env_factory
from accel_rl.samplers import ParallelSampler, SamplerConfig
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
config = SamplerConfig(num_envs=160, num_workers=80)
ParallelSampler(make_env_factory("catch"), config=config).close()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(printed.stdout) > 80 * 5 + 2 * 2 + 64
