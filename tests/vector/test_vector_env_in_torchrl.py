"""`VectorEnv` in TorchRL's own `GymWrapper`, which needs the package torchrl."""

import zlib
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from space_envs import SpaceEnv

from accel_rl.vector import VectorEnv

envs = pytest.importorskip("torchrl.envs", reason="needs the package torchrl")

B = 4


@pytest.mark.parametrize("mode", ["Disabled", "SameStep"])
@pytest.mark.parametrize(
    "name", ["CartPole-v1", "catch", "box", "multi-binary", "dict", "integers"]
)
def test_their_own_check_passes(name: str, mode: str) -> None:
    make: Any = name if name in ("CartPole-v1", "catch") else partial(SpaceEnv, name)
    env = envs.GymWrapper(VectorEnv(make, 2, num_workers=0, autoreset_mode=mode, seed=0))
    envs.check_env_specs(env, seed=zlib.crc32(name.encode()) % 1000)


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
