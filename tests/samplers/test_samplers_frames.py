"""How many functions of accel_rl one step of one group goes through, in the server."""

import time
from functools import partial

import numpy as np
from frames import frames_of
from tiers import PROCESSES
from toy_envs import ScriptedEnv

from accel_rl.samplers import ParallelSampler, PolicyInput

LONG_GAMES = partial(ScriptedEnv, "." * 99_999 + "t")


def num_frames_of_rollout(horizon: int) -> int:
    """Of the second rollout, in which no group is waited for, but at its end."""

    def policy(step: PolicyInput) -> np.ndarray:
        other = int(step.env_slice.start == 0)
        while shared.done[0, other] != shared.sequence[other]:
            time.sleep(0.001)
        return np.zeros(len(step.observation), np.int64)

    settings = {"num_envs": 4, "num_workers": 1, "num_groups": 2, "horizon": horizon}
    with ParallelSampler(LONG_GAMES, **settings) as sampler:
        shared = sampler._pool._shared
        sampler.collect(policy)
        return len(frames_of(lambda: sampler.collect(policy)))


@PROCESSES
def test_step_of_a_group_goes_through_few_functions() -> None:
    more, fewer = map(num_frames_of_rollout, (60, 20))
    assert round((more - fewer) / (2 * 40)) <= 16
