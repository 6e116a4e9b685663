"""Evaluation: which games count."""

import functools

import numpy as np
import pytest
from sampler_cases import GAMES, LENGTH, lose_worker, zeros
from tiers import PROCESSES, slow
from toy_envs import ScriptedEnv, ToyEnv

from accel_rl.samplers import (
    Episode,
    Evaluation,
    ParallelSampler,
    PolicyInput,
    SamplerConfig,
    SerialSampler,
    evaluate,
)


def config(**options) -> SamplerConfig:
    given = {"num_envs": 4, "horizon": 5, "num_groups": 1, **options}
    return SamplerConfig(**given)


def play(factory, num_steps: int, max_episode_steps: int = 50, **options) -> Evaluation:
    with SerialSampler(factory, config=config(**options), seed=2) as sampler:
        return evaluate(sampler, zeros, num_steps=num_steps, max_episode_steps=max_episode_steps)


def games_of(num_rollouts: int) -> list[Episode]:
    """The first games of four `ToyEnv`."""
    with SerialSampler(ToyEnv, config=config(), seed=2) as sampler:
        for _ in range(num_rollouts):
            sampler.collect(zeros)
        return sampler.take_episodes()


@pytest.mark.parametrize("num_steps", [1, 4, 40, 43, 200])
def test_games_that_begin_within_the_share_of_their_environment_count(num_steps: int) -> None:
    result = play(ToyEnv, num_steps)
    expected = []
    for b in range(4):
        begins_at = 0
        for game in (game for game in games_of(40) if game.env_index == b):
            if begins_at < np.ceil(num_steps / 4):
                expected.append(game)
            begins_at += game.episode_length
    assert sorted(result.episodes) == sorted(expected)
    assert result.num_steps == sum(game.episode_length for game in expected)
    assert (result.num_unfinished, result.num_lost) == (0, 0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"reset_policy": "wait"}, "reset_policy is wait; .*reset_policy='immediate'"),
        ({"decorrelation_steps": 5}, "decorrelation_steps is 5; .*decorrelation_steps=0"),
    ],
)
def test_sampler_that_would_leave_out_steps_is_refused(option, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        play(ToyEnv, 40, **option)


def test_a_long_game_that_begins_just_before_the_end_counts_whole() -> None:
    factory = functools.partial(ScriptedEnv, ".t", "." * 39 + "t")  # 2 steps, then 40, then 2 ...
    result = play(factory, num_steps=3, num_envs=1)
    assert [game.episode_length for game in result.episodes] == [2, 40]
    result = play(factory, num_steps=2, num_envs=1)
    assert [game.episode_length for game in result.episodes] == [2]


def test_an_environment_without_an_end_is_given_up_and_reported() -> None:
    result = play(functools.partial(ScriptedEnv, "t", "." * 1000), num_steps=8, num_envs=2)
    assert [game.episode_length for game in result.episodes] == [1, 1]
    assert result.num_unfinished == 2


@pytest.mark.parametrize("num_episodes", [1, 4, 6, 23])
def test_so_many_games_are_the_first_of_each_environment(num_episodes: int) -> None:
    with SerialSampler(ToyEnv, config=config(), seed=2) as sampler:
        result = evaluate(sampler, zeros, num_episodes=num_episodes, max_episode_steps=50)
    expected = []
    for b in range(4):
        share = num_episodes // 4 + (b < num_episodes % 4)
        expected += [game for game in games_of(40) if game.env_index == b][:share]
    assert len(expected) == num_episodes
    assert sorted(result.episodes) == sorted(expected)
    assert (result.num_unfinished, result.num_lost) == (0, 0)


def test_game_of_the_longest_length_counts_and_one_that_is_longer_ends_the_evaluation() -> None:
    factory = functools.partial(ScriptedEnv, "." * 49 + "t", "." * 59 + "t")
    with SerialSampler(factory, config=config(num_envs=2), seed=2) as sampler:
        result = evaluate(sampler, zeros, num_episodes=4, max_episode_steps=50)
        assert [game.episode_length for game in result.episodes] == [50, 50]
        assert result.num_unfinished == 2
    # Also one that ends while others are waited for.
    factory = functools.partial(ScriptedEnv, "." * 12 + "t")
    with SerialSampler(factory, config=config(num_envs=2, horizon=20), seed=2) as sampler:
        result = evaluate(sampler, zeros, num_episodes=2, max_episode_steps=12)
        assert (result.episodes, result.num_unfinished) == ([], 2)
        for numbers in ({}, {"num_steps": 1, "num_episodes": 1}):
            with pytest.raises(ValueError, match="give one of them"):
                evaluate(sampler, zeros, max_episode_steps=50, **numbers)


def test_what_is_shown_is_the_steps_taken() -> None:
    seen: list[int] = []
    with SerialSampler(ToyEnv, config=config(), seed=2) as sampler:
        evaluate(sampler, zeros, num_steps=40, max_episode_steps=50, show=seen.append)
    assert seen == list(range(20, 20 * len(seen) + 1, 20))


@pytest.mark.slow
@PROCESSES
@pytest.mark.parametrize("num_workers", [1, slow(2)])
def test_a_game_whose_worker_was_lost_is_played_anew(num_workers: int) -> None:
    steps: list[int] = []

    def losing(step: PolicyInput) -> np.ndarray:
        steps.append(step.t)
        if len(steps) == 3:
            lose_worker(sampler, after_order_of=0)
        return zeros(step)

    options = config(on_worker_failure="restart", num_workers=num_workers)
    with ParallelSampler(GAMES, config=options, seed=2) as sampler:
        result = evaluate(sampler, losing, num_steps=4, max_episode_steps=50)
    lengths = [game.episode_length for game in result.episodes]
    assert lengths == [LENGTH] * 4  # no part of one among them
    assert result.num_lost == 4 // num_workers
    assert not any(game.is_lost for game in result.episodes)
