"""Numbers that environments tell, in infos as Gymnasium's own and for Stable-Baselines3."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from telling_envs import SteppingEnv, TellingEnv
from toy_envs import Lives

from accel_rl.vector import VectorEnv


def test_each_group_gets_its_own() -> None:
    env = VectorEnv(SteppingEnv, 4, num_groups=2, num_workers=0)
    env.reset()
    env.send([0, 1])
    env.send([1, 0])
    for actions in ([0, 1], [1, 0]):
        infos = env.recv()[-1]
        assert infos["step"].tolist() == [1, 1] and infos["action"].tolist() == actions
        assert infos["step"].dtype == np.float64 and infos["_step"].all()


def test_lost_life_is_an_end_like_others() -> None:
    env = VectorEnv(partial(Lives, ".ll.t"), 1, num_workers=0, autoreset_mode="SameStep")
    env.reset()
    found = []
    for _ in range(5):
        infos = env.step([0])[-1]
        final = infos.get("final_info", {})
        found.append([each["life"].tolist() for each in (infos, final) if "life" in each])
        assert ("life" in infos) == (not final)
    assert found == [[[0]], [[0]], [[1]], [[2]], [[2]]]


@pytest.mark.parametrize(
    ("env", "key"),
    [
        (TellingEnv, "raw_reward"),
        (TellingEnv, "_raw_reward"),
        (TellingEnv, "_place"),
        ("catch", "x"),
    ],
)
def test_key_that_cannot_be_told_is_refused(env: Any, key: str) -> None:
    with pytest.raises(ValueError, match=f"info_keys has {key}, a name|env=catch.* no info"):
        VectorEnv(env, 1, num_workers=0, info_keys=["place", key])
