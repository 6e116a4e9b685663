"""Which episodes are reported when workers are lost: no part of a game passes for a whole one."""

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from sampler_cases import LENGTH, T, lose_worker, make_sampler, zeros
from tiers import PROCESSES, slow
from toy_envs import ScriptedEnv

from accel_rl.samplers import Episode

pytestmark = PROCESSES


def check(episodes: list[Episode], lost: NDArray[np.bool_]) -> None:
    of_lost = [episode.env_index for episode in episodes if episode.is_lost]
    assert of_lost and lost[of_lost].all()
    whole = [episode for episode in episodes if not episode.is_lost]
    assert {episode.env_index for episode in whole} == set(range(8))
    assert {episode.episode_length for episode in whole} == {LENGTH}


def test_part_of_a_game_is_not_reported_after_a_loss_within_a_rollout() -> None:
    """Neither where a game was lost nor where one had just ended by itself."""
    ended = np.zeros(8, np.bool_)

    def losing(step) -> np.ndarray:
        # Group 1 has not got its last step of the rollout yet, group 0 takes it first.
        if step.t == T - 1 and step.env_slice.start == 4:
            lose_worker(sampler, after_order_of=0)
            ended[:4] = sampler.rollout.episode_ended[T - 1, :4]
        return zeros(step)

    with make_sampler() as sampler:
        for num_rollouts in range(14):
            sampler.collect(losing if num_rollouts == 4 else zeros)
        assert 0 < ended.sum() < 4
        check(sampler.take_episodes(), lost=~ended)


@pytest.mark.parametrize("reset_policy", ["wait", slow("immediate")])
def test_part_of_a_game_is_not_reported_after_a_loss_between_rollouts(reset_policy: str) -> None:
    """With ``wait``, where some games had ended, and the next ones had not begun."""
    with make_sampler(reset_policy=reset_policy) as sampler:
        for _ in range(20):
            ended = sampler.collect(zeros).episode_ended.any(axis=0)
            if 0 < ended.sum() < 8 and not sampler._tracker.is_skipped.any():
                break
        lose_worker(sampler, after_order_of=1)
        sampler.get_state()
        for _ in range(10):
            sampler.collect(zeros)
        check(sampler.take_episodes(), lost=~ended if reset_policy == "wait" else ended | True)


def test_final_observations_of_before_a_loss_are_kept_after_it() -> None:
    def losing(step) -> np.ndarray:
        if step.t == 5 and step.env_slice.start == 4:
            lose_worker(sampler, after_order_of=0)
        return zeros(step)

    game = partial(ScriptedEnv, "..c")
    with make_sampler(game, horizon=16, decorrelation_steps=0) as sampler:
        rollout = sampler.collect(losing)
        assert sampler.generation == 1
    for b in range(8):
        kept = np.sort(rollout.final_step[:, b])
        assert kept[kept >= 0].tolist() == np.flatnonzero(rollout.truncated[:, b]).tolist()
