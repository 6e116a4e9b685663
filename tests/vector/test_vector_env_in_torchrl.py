"""`VectorEnv` in TorchRL's own `GymWrapper`, which needs the package torchrl."""

from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from space_envs import Flat, SpaceEnv

from accel_rl.vector import VectorEnv

envs = pytest.importorskip("torchrl.envs", reason="needs the package torchrl")

B = 4


@pytest.mark.parametrize(
    "make",
    [
        "CartPole-v1",
        "catch",
        partial(SpaceEnv, "box"),
        partial(SpaceEnv, "integers"),
        partial(Flat, ""),
    ],
    ids=["discrete", "catch", "box", "integers", "dict"],
)
def test_their_own_check_passes(make: Any) -> None:
    env = envs.GymWrapper(VectorEnv(make, 2, num_workers=0, autoreset_mode="Disabled", seed=0))
    envs.check_env_specs(env, seed=1)


@pytest.mark.slow
def test_rollout_over_resets_is_that_of_gymnasiums_with_the_same_seed() -> None:
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)
    rollouts = []
    for vector in (
        gymnasium.vector.SyncVectorEnv([make] * B, autoreset_mode="Disabled"),
        VectorEnv(make, B, num_workers=2, autoreset_mode="Disabled"),
    ):
        env = envs.GymWrapper(vector)
        env.set_seed(3)
        torch.manual_seed(0)
        rollouts.append(env.rollout(60, break_when_any_done=False))  # [B, T]
        env.close()
        assert env.is_closed
    theirs, ours = rollouts
    assert (theirs == ours).all()
    assert ours["next", "truncated"].any() and ours["next", "terminated"].any()
