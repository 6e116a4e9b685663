"""`VectorEnv` in TorchRL's own `GymWrapper`, which needs the package torchrl."""

from functools import partial
from typing import Any

import pytest
from space_envs import Flat, SpaceEnv

from accel_rl.vector import VectorEnv

envs = pytest.importorskip("torchrl.envs", reason="needs the package torchrl")


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
