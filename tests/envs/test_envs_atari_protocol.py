"""Atari: what the protocol promises, looked at one thing at a time; seeds, options, messages."""

from typing import Any

import numpy as np
import pytest

from accel_rl.envs import AtariConfig, StepResult, atari
from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.base import is_environment


@pytest.fixture(autouse=True)
def no_saved_starts(monkeypatch) -> None:
    """Nor the 0.6 s in which it is found out whether there could be."""
    monkeypatch.setattr(atari, "starts_are_identical", lambda *_: False)


def make(game: str = "breakout", seed: int = 0, **options: Any) -> AtariEnv:
    env = AtariEnv(game, AtariConfig(**options))
    env.seed(np.random.SeedSequence(seed))
    return env


def play(env: AtariEnv, num_steps: int, seed: int = 0) -> tuple[list[StepResult], Any]:
    """Random play with resets: results, and observations ``[num_steps + 1, ...]`` before resets."""
    out = np.zeros(env.spec.observation_shape, env.spec.observation_dtype)
    env.reset(out)
    observations, results = [out.copy()], []
    for action in np.random.default_rng(seed).integers(env.spec.num_actions, size=num_steps):
        results.append(env.step(int(action), out))
        observations.append(out.copy())
        if results[-1].episode_ended:
            env.reset(out)
    return results, np.stack(observations)


@pytest.mark.parametrize(
    ("options", "shape", "num_actions"),
    [
        ({}, (4, 104, 80), 4),
        ({"observation_size": "84x84"}, (4, 84, 84), 4),
        ({"frame_stack": 2, "full_action_set": True}, (2, 104, 80), 18),
    ],
    ids=["default", "84x84", "full-actions"],
)
def test_spec_follows_options(
    options: dict[str, Any], shape: tuple[int, ...], num_actions: int
) -> None:
    env = AtariEnv("breakout", AtariConfig(**options))
    assert is_environment(env)
    assert (env.spec.name, env.spec.frame_skip) == ("breakout", 4)
    assert env.spec.observation_dtype == np.uint8
    assert env.spec.observation_shape == shape
    assert env.spec.num_actions == num_actions


def test_lost_life_terminates_blanks_the_stack_and_plays_on() -> None:
    results, observations = play(make(), 300)
    lost = [t for t, r in enumerate(results) if r.terminated and not r.episode_ended]
    over = [t for t, r in enumerate(results) if r.episode_ended]
    assert over and len([t for t in lost if t < over[0]]) == 4  # Breakout has five lives
    for t in lost:
        assert not observations[t + 1][:3].any()
        assert observations[t + 1][3].any()
    assert all(results[t].terminated and not results[t].truncated for t in over)
    assert observations[over[0] + 1][0].any()  # the final observation is no blank stack


def test_fire_is_pressed_after_lost_life() -> None:
    """In Breakout the ball comes only after FIRE: who never presses it plays on nevertheless."""
    for press_fire, expected_end in ((True, True), (False, False)):
        env = make(press_fire=press_fire, max_noops=0)
        out = np.zeros(env.spec.observation_shape, np.uint8)
        env.reset(out)
        assert any(env.step(0, out).episode_ended for _ in range(300)) == expected_end


def test_step_at_the_limit_is_truncated() -> None:
    results, _ = play(make("pong", max_episode_steps=7), 21)
    ends = [t for t, r in enumerate(results) if r.episode_ended]
    assert ends == [6, 13, 20]
    assert all(results[t].truncated and not results[t].terminated for t in ends)
    assert AtariConfig().max_episode_steps == 27_000


def test_reward_is_the_sign_and_raw_reward_the_game_own() -> None:
    results, _ = play(make("space_invaders"), 300)
    raw = [r.raw_reward for r in results]
    assert max(raw) >= 5
    assert [r.reward for r in results] == np.sign(raw).tolist()
    unclipped, _ = play(make("space_invaders", clip_reward=False), 300)
    assert [r.reward for r in unclipped] == [r.raw_reward for r in unclipped] == raw


def test_number_of_noops_is_uniform_up_to_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(atari, "start_game", lambda emulator, presses, num: drawn.append(num))
    env = make("freeway", max_noops=4)
    out = np.zeros(env.spec.observation_shape, np.uint8)
    for _ in range(1_000):
        env.reset(out)
    counts = np.bincount(drawn)
    assert len(counts) == 5
    assert abs(counts - 200).max() < 4 * np.sqrt(1_000 * 0.2 * 0.8)  # four standard errors


def test_sticky_actions_repeat_frames_at_their_rate() -> None:
    env = make(sticky_actions=0.25)
    env.reset(np.zeros(env.spec.observation_shape, np.uint8))
    num_steps = 5_000
    fresh = 0
    pressed = [0]
    actions = np.arange(num_steps) % 4  # each step's action differs from the one before
    for action in actions.tolist():
        early, last = env._stick(action)
        pressed += [*early, last]
        fresh += pressed[-4] == env._codes[action]
    # The step's first frame shows the new action with probability 0.75, its last with 1 - 0.25^4.
    standard_error = np.sqrt(0.75 * 0.25 / num_steps)
    assert abs(fresh / num_steps - 0.75) < 4 * standard_error
    last_fresh = np.mean(
        [code == env._codes[a] for code, a in zip(pressed[4::4], actions, strict=True)]
    )
    assert abs(last_fresh - (1 - 0.25**4)) < 0.01


@pytest.mark.parametrize(
    ("game", "sticky"),
    [
        ("breakout", 0.25),
        pytest.param("seaquest", 0.0, marks=pytest.mark.slow),
        pytest.param("solaris", 0.25, marks=pytest.mark.slow),
    ],
)
def test_same_seed_gives_the_same_play_and_another_seed_another(game: str, sticky: float) -> None:
    first, again, other = (
        play(make(game, seed, sticky_actions=sticky, max_episode_steps=20), 50)
        for seed in (5, 5, 6)
    )
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[1], other[1])


def test_seed_reaches_the_console() -> None:
    """Games that seed themselves from the console's timer start differently for another seed."""
    starts = []
    for seed in (1, 2):
        env = make("assault", seed, max_noops=0)
        env.reset(np.zeros(env.spec.observation_shape, np.uint8))
        starts.append(env._emulator.getRAM().tobytes())
    assert len(set(starts)) == 2


def test_environments_of_one_process_do_not_touch_each_other() -> None:
    alone, _ = play(make("seaquest", 3), 30)
    env, neighbour = make("seaquest", 3), make("seaquest", 4)
    out = np.zeros(env.spec.observation_shape, np.uint8)
    env.reset(out)
    neighbour.reset(out.copy())
    together = []
    for action in np.random.default_rng(0).integers(env.spec.num_actions, size=30).tolist():
        neighbour.step(0, out.copy())
        together.append(env.step(action, out))
    assert together == alone
