"""The seed of a sampler seeds all that environments draw from, also what their process shares."""

import random
from typing import Any

import global_envs
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from accel_rl.envs import Batched, make_env_factory
from accel_rl.samplers import ParallelSampler, PolicyInput, SerialSampler
from accel_rl.samplers.generators import Turns, seed_generators
from accel_rl.vector import VectorEnv

FACTORY = make_env_factory("global_envs:make")


def make_batch(n: int) -> SyncVectorEnv:
    return SyncVectorEnv([global_envs.make] * n, autoreset_mode=AutoresetMode.DISABLED)


def policy(step: PolicyInput) -> Any:
    return np.zeros(len(step.noise), np.int64)


def play(kind: Any, seed: int, factory: Any = FACTORY, **options: Any) -> Any:
    with kind(factory, num_envs=4, horizon=12, seed=seed, **options) as sampler:
        return np.stack([sampler.collect(policy).observation.copy() for _ in range(3)])


@pytest.mark.parametrize("factory", [FACTORY, Batched(make_batch)], ids=["single", "batch"])
def test_seed_in_this_process_seeds_all_that_environments_draw_from(factory: Any) -> None:
    random.seed(1)
    first = play(SerialSampler, 3, factory)
    own = random.random()
    random.seed(1)
    assert random.random() == own  # a program's own generators are left as they were
    np.random.seed(7)
    assert np.array_equal(play(SerialSampler, 3, factory), first)
    other = play(SerialSampler, 4, factory)
    assert (other != first).mean((0, 1, 2)).min() > 0.9
    drawn = first[:, :-1, :, :2]
    assert len(np.unique(drawn)) == drawn.size  # none twice


@pytest.mark.slow
@pytest.mark.processes
def test_seed_in_workers_seeds_all_that_environments_draw_from() -> None:
    """Whatever the order in which a worker's groups take turns."""
    options = {"num_workers": 1, "num_groups": 2}
    first = play(ParallelSampler, 3, **options)
    assert np.array_equal(play(ParallelSampler, 3, **options), first)
    assert (play(ParallelSampler, 4, **options) != first).mean((0, 1, 2)).min() > 0.9


def test_reset_of_a_vector_environment_with_a_seed_seeds_them_too() -> None:
    env = VectorEnv(FACTORY, 2, num_workers=0)
    found = []
    for _ in range(2):
        seen = [env.reset(seed=5)[0]] + [env.step(np.zeros(2, np.int64))[0] for _ in range(8)]
        found.append(np.stack(seen)[..., :3])
    env.close()
    assert np.array_equal(*found)


@pytest.mark.parametrize("order", [(0, 1, 0, 1, 1, 0), (1, 1, 0, 0, 1, 0)])
def test_groups_draw_the_same_in_any_order(order: tuple[int, ...]) -> None:
    turns, drawn = Turns(), {0: [], 1: []}
    for group in (0, 1):
        seed_generators(np.random.SeedSequence(group))
        turns.add(group)
    for group in order:
        turns.begin(group)
        drawn[group].append((random.random(), np.random.random()))
    for group, numbers in drawn.items():
        seed_generators(np.random.SeedSequence(group))
        assert numbers == [(random.random(), np.random.random()) for _ in numbers]
