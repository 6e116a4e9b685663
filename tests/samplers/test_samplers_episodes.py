"""Statistics of episodes: how long those that nobody takes are kept."""

from itertools import product

import numpy as np
import pytest

from accel_rl.envs.base import EnvSpec
from accel_rl.rollout import Rollout
from accel_rl.samplers import SamplerConfig
from accel_rl.samplers.block import environment_seed
from accel_rl.samplers.boundary import EpisodeTracker
from accel_rl.spaces import Leaf, discrete

B, T = 10, 5
MOST_KEPT = 1_000
SPEC = EnvSpec(name="short", observation=Leaf((1,), np.dtype(np.uint8)), action=discrete(2))


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_rl.samplers.boundary.MOST_KEPT", MOST_KEPT)


def rollout_of_ends(num_envs: int = B) -> Rollout:
    """Every step is an episode of its own."""
    rollout = Rollout.allocate(SamplerConfig(num_envs=num_envs, horizon=T).rollout_spec(SPEC))
    rollout.valid[:] = rollout.terminated[:] = rollout.episode_ended[:] = True
    return rollout


def test_episodes_that_nobody_takes_are_bounded() -> None:
    tracker = EpisodeTracker(B, skip_first=False)
    rollout, most = rollout_of_ends(), 0
    for number in range(60):  # of 50 episodes each
        rollout.raw_reward[:] = number
        tracker.update(rollout)
        most = max(most, len(tracker._ended))
    assert most == MOST_KEPT + B * T
    taken = tracker.take()
    assert len(taken) == most
    numbers = np.array([episode.episode_return for episode in taken])
    np.testing.assert_array_equal(numbers, np.repeat(np.arange(39.0, 60.0), B * T))  # the newest
    assert tracker.take() == []


def test_episodes_of_environments_that_step_apart_are_bounded() -> None:
    tracker = EpisodeTracker(B, skip_first=False)
    rollout, columns = rollout_of_ends(), np.arange(B)
    for _ in range(MOST_KEPT // B + 20):
        tracker.update(rollout, at=(np.zeros(B, np.int64), columns))
    assert len(tracker.take()) == MOST_KEPT + B


def test_first_episode_of_each_environment_is_left_out_if_asked() -> None:
    """And again of environments that begin in the place of others."""
    tracker = EpisodeTracker(B, skip_first=True)
    for number, expected in enumerate((B * (T - 1), B * T, B * T - 2)):
        if number == 2:
            tracker.forget(slice(3, 5))
        tracker.update(rollout_of_ends())
        assert len(tracker.take()) == expected


def test_seeds_differ_between_environments_restarts_and_runs() -> None:
    keys = product(range(3), range(3), range(3))
    assert len({environment_seed(*key).generate_state(2).tobytes() for key in keys}) == 27


def test_all_episodes_of_one_rollout_can_be_taken() -> None:
    num_envs = MOST_KEPT // T + 100
    tracker = EpisodeTracker(num_envs, skip_first=False)
    for _ in range(2):
        tracker.update(rollout_of_ends(num_envs))
        assert len(tracker.take()) == num_envs * T
